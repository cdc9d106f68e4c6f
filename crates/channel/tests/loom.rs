//! Cells, counts and parking under every interleaving (with up to a few pre-emptions) that the
//! memory model allows: `RUSTFLAGS="--cfg loom" cargo test --release -p urdma-channel --test loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use urdma_channel::steps::Live;
use urdma_channel::{Channel, Incoming, Kind, Next, Outgoing, OwnRegion, CELL_DATA};
use urdma_waiting::{Bells, OwnPage, Parked, Seat, Signal, Watched};

const CELLS: u32 = 2;
/// The fourth message's position exceeds 32 bits; the cell of the third one has been used before,
/// as it always has.
const BEGIN: u64 = (1 << 32) - 3;

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// Both ends of a channel, and their pages. `begin` messages were exchanged before.
fn pair(begin: u64) -> [(Channel, OwnPage); 2] {
    let half = || {
        let (region, peer) = OwnRegion::model(CELLS);
        let channel = Channel::with_outgoing(Outgoing::<Live>::with_steps(region, begin));
        (
            channel,
            Incoming::starting_at(peer, begin),
            OwnPage::model(),
        )
    };
    let (mut p, from_p, (page_p, page_of_p)) = half();
    let (mut q, from_q, (page_q, page_of_q)) = half();
    p.attach(from_q, page_of_q);
    q.attach(from_p, page_of_p);
    [(p, page_p), (q, page_q)]
}

/// Sends a text of two lines.
fn send(channel: &mut Channel, kind: Kind, text: u8) -> bool {
    let Some(mut room) = channel.begin(kind, 0) else {
        return false;
    };
    room.octets_mut().fill(text);
    room.publish(CELL_DATA, text.into());
    true
}

/// Takes a message; adds the owners that its count completes.
fn take(channel: &mut Channel, owners: &mut Vec<u32>) -> Option<u8> {
    let mut octets = [0; CELL_DATA];
    match channel.next(&mut octets, |owner| owners.push(owner)) {
        Next::Empty => None,
        Next::Corrupt => panic!("corrupt cell"),
        Next::Message { len, .. } => {
            assert!(octets[..len].iter().all(|octet| *octet == octets[0]));
            Some(octets[0])
        }
    }
}

#[test]
fn messages_arrive_once_and_whole_while_the_ring_wraps() {
    model(3, || {
        let [(mut p, _), (mut q, _)] = pair(BEGIN);
        let writer = thread::spawn(move || {
            let mut sent = Vec::new();
            for text in 1..=4 {
                p.complete(|_| ());
                if send(&mut p, Kind::Answer, text) {
                    sent.push(text);
                }
            }
            (p, sent)
        });
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.extend(take(&mut q, &mut Vec::new()));
            q.settle();
        }
        let (_p, sent) = writer.join().unwrap();
        while let Some(text) = take(&mut q, &mut Vec::new()) {
            taken.push(text);
        }
        assert_eq!(taken, sent);
        assert!(sent.len() >= 2);
    });
}

#[test]
fn request_is_completed_only_after_the_answer_that_refuses_it_was_taken() {
    model(3, || {
        let [(mut p, _), (mut q, _)] = pair(BEGIN);
        assert!(send(&mut p, Kind::Answer, 1));
        let receiver = thread::spawn(move || {
            assert_eq!(take(&mut q, &mut Vec::new()), Some(1));
            assert!(send(&mut q, Kind::Answer, 9));
            q.settle();
            // A message after it, whose count covers the request as well.
            assert!(send(&mut q, Kind::Answer, 10));
            q
        });
        let (mut taken, mut completed) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            p.complete(|owner| completed.push(owner));
            assert!(completed.is_empty() || taken.contains(&9));
            taken.extend(take(&mut p, &mut completed));
            assert!(completed.is_empty() || taken.contains(&9));
        }
        let _q = receiver.join().unwrap();
        while let Some(text) = take(&mut p, &mut completed) {
            taken.push(text);
        }
        p.complete(|owner| completed.push(owner));
        assert_eq!((taken, completed), (vec![9, 10], vec![1]));
    });
}

/// Sleeps until there is something to do.
fn sleep(channel: &Channel, page: &OwnPage, bells: &mut Bells) -> Parked {
    page.listen(bells);
    channel.listen(bells);
    page.park(bells, None, || channel.has_work())
}

#[test]
fn sleeper_misses_no_message() {
    model(3, || {
        let [(mut p, _page_p), (mut q, page_q)] = pair(BEGIN);
        let sender = thread::spawn(move || {
            for text in [1, 2] {
                assert!(send(&mut p, Kind::Answer, text));
                p.notify();
            }
            p
        });
        let mut bells = Bells::default();
        for text in [1, 2] {
            // A lost wake-up is a deadlock, which the model reports.
            while !q.has_work() {
                sleep(&q, &page_q, &mut bells);
            }
            assert_eq!(take(&mut q, &mut Vec::new()), Some(text));
        }
        sender.join().unwrap();
    });
}

#[test]
fn sleeper_misses_no_count_that_it_waits_for() {
    model(3, || {
        let [(mut p, page_p), (mut q, _page_q)] = pair(BEGIN);
        assert!(send(&mut p, Kind::Answer, 1));
        assert!(send(&mut p, Kind::Answer, 2));
        let receiver = thread::spawn(move || {
            for text in [1, 2] {
                assert_eq!(take(&mut q, &mut Vec::new()), Some(text));
                q.settle();
                q.notify();
            }
            q
        });
        let mut bells = Bells::default();
        let mut completed = Vec::new();
        while completed.len() < 2 {
            // Not for the first one.
            p.set_wake_at(Some(BEGIN + 2));
            sleep(&p, &page_p, &mut bells);
            p.complete(|owner| completed.push(owner));
        }
        receiver.join().unwrap();
    });
}

#[test]
fn sleeper_misses_no_wish_of_its_own_process() {
    model(3, || {
        let page = Arc::new(OwnPage::model().0);
        let wish = Arc::new(AtomicU32::new(0));
        let other = {
            let (page, wish) = (page.clone(), wish.clone());
            thread::spawn(move || {
                wish.store(1, Ordering::Relaxed);
                page.unpark();
            })
        };
        let mut bells = Bells::default();
        while wish.load(Ordering::Relaxed) == 0 {
            page.listen(&mut bells);
            page.park(&bells, None, || wish.load(Ordering::Relaxed) == 1);
        }
        other.join().unwrap();
    });
}

/// As [`sleep`], in a call on descriptors.
fn sleep_in_call(channel: &Channel, page: &OwnPage, bells: &mut Bells) {
    page.listen(bells);
    let socket = page.socket().unwrap();
    if page
        .park_in_call(bells, || channel.has_work(), || socket.wait())
        .is_some()
    {
        socket.take();
    }
}

#[test]
fn sleeper_in_a_call_on_descriptors_misses_no_message() {
    model(3, || {
        let [(mut p, _page_p), (mut q, page_q)] = pair(BEGIN);
        let sender = thread::spawn(move || {
            for text in [1, 2] {
                assert!(send(&mut p, Kind::Answer, text));
                p.notify();
            }
            p
        });
        let mut bells = Bells::default();
        for text in [1, 2] {
            let mut taken = take(&mut q, &mut Vec::new());
            while taken.is_none() {
                sleep_in_call(&q, &page_q, &mut bells);
                taken = take(&mut q, &mut Vec::new());
            }
            assert_eq!(taken, Some(text));
        }
        sender.join().unwrap();
    });
}

#[test]
fn sleeper_in_a_call_on_descriptors_misses_no_wish_of_its_own_process() {
    model(3, || {
        let page = Arc::new(OwnPage::model().0);
        let wish = Arc::new(AtomicU32::new(0));
        let other = {
            let (page, wish) = (page.clone(), wish.clone());
            thread::spawn(move || {
                wish.store(1, Ordering::Relaxed);
                page.unpark();
            })
        };
        let mut bells = Bells::default();
        loop {
            page.listen(&mut bells);
            if wish.load(Ordering::Relaxed) == 1 {
                break;
            }
            // What is wished for after the bells were read changes them.
            let socket = page.socket().unwrap();
            if page
                .park_in_call(&bells, || false, || socket.wait())
                .is_some()
            {
                socket.take();
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn thread_that_naps_is_woken_after_another_one_has_handed_over() {
    model(2, || {
        let [(mut p, _page_p), (q, page_q)] = pair(BEGIN);
        let (q, page_q) = (Arc::new(Mutex::new(q)), Arc::new(page_q));
        let sender = thread::spawn(move || {
            assert!(send(&mut p, Kind::Answer, 1));
            p.notify();
            p
        });
        let poller = {
            let (q, page_q) = (q.clone(), page_q.clone());
            thread::spawn(move || {
                page_q.hand_over();
                if q.lock().unwrap().has_work() {
                    page_q.unpark();
                }
            })
        };
        let mut bells = Bells::default();
        page_q.listen(&mut bells);
        let channel = q.lock().unwrap();
        channel.listen(&mut bells);
        let has_come = channel.has_work();
        drop(channel);
        if !has_come {
            // Its time is never over in the model: a lost wake-up is a deadlock.
            page_q.nap(&bells, std::time::Duration::MAX);
        }
        poller.join().unwrap();
        let _p = sender.join().unwrap();
        assert_eq!(take(&mut q.lock().unwrap(), &mut Vec::new()), Some(1));
    });
}

// Regression: the other thread stored that peers are to ring the bell, after this one had begun a
// sleep in a call on descriptors, which a bell does not end.
#[test]
fn sleeper_in_a_call_is_woken_after_another_thread_has_handed_over() {
    model(3, || {
        let [(mut p, _page_p), (q, page_q)] = pair(BEGIN);
        let (q, page_q) = (Arc::new(Mutex::new(q)), Arc::new(page_q));
        let sender = thread::spawn(move || {
            assert!(send(&mut p, Kind::Answer, 1));
            p.notify();
            p
        });
        let arms = {
            let (q, page_q) = (q.clone(), page_q.clone());
            thread::spawn(move || {
                page_q.hand_over();
                if q.lock().unwrap().has_work() {
                    page_q.unpark();
                }
            })
        };
        let mut bells = Bells::default();
        while take(&mut q.lock().unwrap(), &mut Vec::new()).is_none() {
            page_q.listen(&mut bells);
            q.lock().unwrap().listen(&mut bells);
            let has_work = || q.lock().unwrap().has_work();
            let socket = page_q.socket().unwrap();
            if page_q
                .park_in_call(&bells, has_work, || socket.wait())
                .is_some()
            {
                socket.take();
            }
        }
        arms.join().unwrap();
        sender.join().unwrap();
    });
}

// Regression: without a fence, the thread that armed a queue did not see the count, and the peer
// did not see that the count was waited for.
#[test]
fn sleeper_misses_no_count_that_another_thread_begins_to_wait_for() {
    model(3, || {
        let [(mut p, page_p), (mut q, _page_q)] = pair(BEGIN);
        assert!(send(&mut p, Kind::Answer, 1));
        let (p, page_p) = (Arc::new(Mutex::new(p)), Arc::new(page_p));
        let receiver = thread::spawn(move || {
            assert_eq!(take(&mut q, &mut Vec::new()), Some(1));
            q.settle();
            q.notify();
            q
        });
        let arms = {
            let (p, page_p) = (p.clone(), page_p.clone());
            thread::spawn(move || {
                let mut channel = p.lock().unwrap();
                channel.set_wake_at(Some(BEGIN + 1));
                if page_p.is_parked() {
                    page_p.fence_before_look();
                } else {
                    page_p.hand_over();
                }
                if channel.has_work() {
                    page_p.unpark();
                }
            })
        };
        let mut bells = Bells::default();
        let mut completed = Vec::new();
        while completed.is_empty() {
            page_p.listen(&mut bells);
            let mut channel = p.lock().unwrap();
            channel.complete(|owner| completed.push(owner));
            channel.listen(&mut bells);
            drop(channel);
            if completed.is_empty() {
                page_p.park(&bells, None, || p.lock().unwrap().has_work());
            }
        }
        arms.join().unwrap();
        receiver.join().unwrap();
    });
}

/// The background thread of a process: it drives when no other thread does, until it drives again
/// after `is_over`.
fn background(seat: &Seat, page: &OwnPage, channel: &Mutex<Channel>, is_over: &AtomicU32) {
    let mut bells = Bells::default();
    loop {
        while seat.watch(Duration::ZERO, Duration::MAX, || false) != Watched::Mine {}
        if is_over.load(Ordering::SeqCst) == 1 {
            return;
        }
        page.listen(&mut bells);
        channel.lock().unwrap().listen(&mut bells);
        page.park(&bells, None, || seat.is_requested());
    }
}

#[test]
fn driver_in_a_wait_misses_no_message_and_gives_the_seat_back() {
    model(2, || {
        let [(mut p, _page_p), (q, page_q)] = pair(BEGIN);
        let (q, page_q) = (Arc::new(Mutex::new(q)), Arc::new(page_q));
        let seat = Arc::new(Seat::default());
        let is_over = Arc::new(AtomicU32::new(0));
        let sender = thread::spawn(move || {
            assert!(send(&mut p, Kind::Answer, 1));
            p.notify();
            p
        });
        let (of_q, of_page, of_seat) = (q.clone(), page_q.clone(), seat.clone());
        let ends = is_over.clone();
        let other = thread::spawn(move || background(&of_seat, &of_page, &of_q, &ends));
        let seated = seat.sit(&page_q, &Signal::default(), 0).unwrap();
        let mut bells = Bells::default();
        loop {
            page_q.listen(&mut bells);
            let mut channel = q.lock().unwrap();
            channel.listen(&mut bells);
            if take(&mut channel, &mut Vec::new()) == Some(1) {
                break;
            }
            drop(channel);
            page_q.park(&bells, None, || q.lock().unwrap().has_work());
        }
        is_over.store(1, Ordering::SeqCst);
        seat.leave(seated, false);
        other.join().unwrap();
        let _p = sender.join().unwrap();
    });
}

#[test]
fn event_of_another_thread_wakes_the_driver() {
    model(3, || {
        let (page, _of_page) = OwnPage::model();
        let signal = Arc::new(Signal::default());
        let raised = signal.clone();
        let other = thread::spawn(move || raised.raise());
        let mut bells = Bells::default();
        loop {
            let seen = signal.count();
            if seen == 1 {
                break;
            }
            page.listen(&mut bells);
            assert!(bells.add_signal(&signal, seen));
            signal.await_with(|| page.park(&bells, None, || false));
        }
        other.join().unwrap();
    });
}
