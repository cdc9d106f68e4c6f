use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Duration;

use super::*;

/// Threads, and how often each is woken.
const THREADS: u32 = 4;
const ROUNDS: u32 = 2000;

/// Sleeps until one of the bells is rung.
fn sleep(main: c_int, mine: c_int, sleepers: &Sleepers) {
    let entry = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut list = [entry(main), entry(mine)];
    // SAFETY: a list of two entries.
    let found = unsafe { libc::poll(list.as_mut_ptr(), 2, 20_000) };
    assert!(found > 0, "a wake-up was lost");
    if list[0].revents != 0 {
        sleepers.take(mine, || bell::silence(main));
    }
    if list[1].revents != 0 {
        bell::silence(mine);
    }
}

/// Waits until `number` is `wanted`; the odd threads ask what was taken before, the others look
/// after they have entered.
fn wait_for(wanted: u32, is_odd: bool, main: c_int, sleepers: &Sleepers, number: &AtomicU32) {
    loop {
        let taken = sleepers.taken();
        let seen = number.load(SeqCst);
        if seen == wanted {
            return;
        }
        let mine = if is_odd {
            match sleepers.begin(taken) {
                Begun::Bell(mine) => mine,
                Begun::Taken => continue,
                Begun::Impossible => panic!("no descriptor"),
            }
        } else {
            let mine = sleepers.enter().unwrap();
            if number.load(SeqCst) == wanted {
                sleepers.end(mine);
                return;
            }
            mine
        };
        sleep(main, mine, sleepers);
        sleepers.end(mine);
    }
}

#[test]
fn each_thread_sees_each_ring() {
    let main = Own::bell().unwrap();
    let main = main.as_raw_fd();
    let sleepers = Sleepers::new();
    let [number, answers] = [const { AtomicU32::new(0) }; 2];
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sleepers, number, answers) = (&sleepers, &number, &answers);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    wait_for(round, thread % 2 == 1, main, sleepers, number);
                    answers.fetch_add(1, SeqCst);
                }
            });
        }
        for round in 1..=ROUNDS {
            while answers.load(SeqCst) < (round - 1) * THREADS {
                thread::yield_now();
            }
            if round % 64 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
            number.store(round, SeqCst);
            bell::ring(main);
        }
    });
    assert!(sleepers.is_empty());
}
