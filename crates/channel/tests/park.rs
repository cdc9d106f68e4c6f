//! Sleeping in one process while another one writes.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{complete, config, fork, page, region, send, take, wait};
use urdma_channel::{Channel, Incoming, Kind, OwnRegion, PeerRegion};
use urdma_waiting::{Bells, OwnPage, Parked, PeerPage};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// Both ends of a channel, with pages, for two processes.
fn pair() -> [(Channel, OwnPage); 2] {
    let config = config(32, 2, 2);
    let end = |stagger| {
        let (region, fd) = OwnRegion::create(&config, stagger).unwrap();
        let (page, page_fd) = OwnPage::create().unwrap();
        let incoming = Incoming::new(PeerRegion::open(fd).unwrap());
        (
            Channel::new(region),
            incoming,
            page,
            PeerPage::open(page_fd).unwrap(),
        )
    };
    let (mut p, from_p, page_p, page_of_p) = end(1);
    let (mut q, from_q, page_q, page_of_q) = end(2);
    p.attach(from_q, page_of_q);
    q.attach(from_p, page_of_p);
    [(p, page_p), (q, page_q)]
}

fn sleep(channel: &Channel, page: &OwnPage, timeout: Option<Duration>) -> Parked {
    let mut bells = Bells::default();
    page.listen(&mut bells);
    channel.listen(&mut bells);
    page.park(&bells, timeout, || channel.has_work())
}

/// Sleeps until a message has come.
fn wait_for_message(channel: &mut Channel, page: &OwnPage) -> Vec<u8> {
    loop {
        if let Some((octets, ..)) = take(channel) {
            return octets;
        }
        assert_ne!(sleep(channel, page, PATIENCE), Parked::Timeout);
    }
}

#[test]
fn two_processes_wake_each_other() {
    const ROUNDS: u32 = 5000;
    let [(mut p, page_p), (mut q, page_q)] = pair();
    let child = fork(|| {
        for _ in 0..ROUNDS {
            let text = wait_for_message(&mut q, &page_q);
            q.settle();
            assert!(send(&mut q, Kind::Work, &text, 0));
        }
    });
    for i in 0..ROUNDS {
        assert!(send(&mut p, Kind::Work, &i.to_le_bytes(), i));
        assert_eq!(wait_for_message(&mut p, &page_p), i.to_le_bytes());
        p.settle();
    }
    assert_eq!(wait(child), 0);
}

#[test]
fn counts_wake_a_sleeper_that_waits_for_them_and_no_other() {
    let [(mut p, page_p), (mut q, page_q)] = pair();
    let child = fork(|| {
        for _ in 0..3 {
            wait_for_message(&mut q, &page_q);
            q.settle();
            q.notify();
        }
        // So that p sees the end of this process' work.
        std::thread::sleep(Duration::from_millis(50));
        assert!(send(&mut q, Kind::Work, b"all settled", 0));
        wait_for_message(&mut q, &page_q);
        q.settle();
        q.notify();
    });
    // Not interested: the next thing to wake it is the message.
    for owner in 0..3 {
        assert!(send(&mut p, Kind::Work, b"work", owner));
    }
    p.set_wake_at(None);
    assert_eq!(wait_for_message(&mut p, &page_p), b"all settled");
    p.settle();
    // Its cell's count had completed all.
    assert!(complete(&mut p).is_empty());
    // Interested.
    let mut room = p.begin(Kind::Work, 0).unwrap();
    room.octets_mut()[0] = 1;
    let written = room.publish(1, 9);
    p.notify();
    p.set_wake_at(Some(written));
    let mut completed = complete(&mut p);
    while completed.is_empty() {
        assert_ne!(sleep(&p, &page_p, PATIENCE), Parked::Timeout);
        completed = complete(&mut p);
    }
    assert_eq!(completed, [9]);
    assert_eq!(wait(child), 0);
}

#[test]
fn process_that_reads_the_page_of_a_sleeper_cannot_take_its_wake_ups_away() {
    let [(mut p, _page_p), (mut q, page_q)] = pair();
    let child = fork(|| {
        wait_for_message(&mut q, &page_q);
    });
    // The third process has the child's page in the same way as this one. Long enough for the
    // child to sleep; if it does not, the test finds nothing, but does not fail.
    std::thread::sleep(Duration::from_millis(50));
    let other = 0u32;
    for map in mappings_of("memfd:urdma-page") {
        for offset in (0..4096).step_by(4) {
            // SAFETY: moves those who wait on a word of the page, if any, to another one.
            unsafe {
                let other = std::ptr::from_ref(&other);
                libc::syscall(
                    libc::SYS_futex,
                    map + offset,
                    libc::FUTEX_REQUEUE,
                    0,
                    99,
                    other,
                );
            }
        }
    }
    assert!(send(&mut p, Kind::Work, b"x", 0));
    assert_eq!(wait(child), 0);
}

/// The addresses at which files of this name are mapped.
fn mappings_of(name: &str) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains(name))
        .map(|line| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn sleeper_without_work_sleeps_until_its_time_or_until_its_own_process_wakes_it() {
    let [(p, page_p), _q] = pair();
    let short = Some(Duration::from_millis(2));
    assert_eq!(sleep(&p, &page_p, short), Parked::Timeout);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            page_p.unpark();
        });
        assert_eq!(sleep(&p, &page_p, PATIENCE), Parked::Woken);
    });
}

#[test]
fn sleeper_with_a_message_does_not_sleep() {
    let [(mut p, _), (q, page_q)] = pair();
    assert!(send(&mut p, Kind::Work, b"x", 0));
    assert_eq!(sleep(&q, &page_q, PATIENCE), Parked::HadWork);
}

#[test]
fn sleeper_with_more_channels_than_the_kernel_takes_sleeps_shortly() {
    let config = config(32, 0, 0);
    let mut bells = Bells::default();
    let channels: Vec<Channel> = (0..128)
        .map(|_| {
            let (own, incoming) = region(&config);
            let mut channel = Channel::new(own);
            channel.attach(incoming, page().1);
            channel
        })
        .collect();
    let (page, _) = page();
    page.listen(&mut bells);
    for channel in &channels {
        channel.listen(&mut bells);
    }
    // No bell rings.
    assert_eq!(page.park(&bells, PATIENCE, || false), Parked::Timeout);
}
