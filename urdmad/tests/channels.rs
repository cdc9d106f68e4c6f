//! Channels: urdmad passes regions on, and nothing else.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use support::{Daemon, Process, Scratch, LIMIT};
use urdma_ipc::{ControlError, Event};

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_FUTURE_WRITE);

/// No event within this time is none.
const PAUSE: Duration = Duration::from_secs(2);

/// A memfd of `octets` with these seals.
fn memfd(octets: i64, seals: SealFlag) -> OwnedFd {
    let fd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&fd, octets).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

fn offer(from: &Process, to: u8) {
    offer_in(from, to, None);
}

/// Offers a channel to the process that has the slot in a generation.
fn offer_in(from: &Process, to: u8, generation: Option<u32>) {
    let (region, page) = (memfd(8192, SEALS), memfd(4096, SEALS));
    from.client
        .offer_channel(to, generation, &[region.as_fd(), page.as_fd()])
        .unwrap();
}

/// The next event that is none of another process.
fn outcome(process: &Process) -> Option<Event> {
    std::iter::repeat_with(|| process.next_event())
        .find(|event| !matches!(event, Some(Event::SlotGone { .. })))
        .flatten()
}

fn is_disconnected(process: &Process) -> bool {
    std::iter::repeat_with(|| process.client.next_event(Some(LIMIT)))
        .find_map(|event| match event {
            Ok(Some(_)) => None,
            Ok(None) => Some(false),
            Err(error) => Some(matches!(error, ControlError::Gone)),
        })
        .unwrap()
}

#[test]
fn offered_channel_arrives_with_the_regions_and_the_slot_of_its_process() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (a, b) = (daemon.attach(), daemon.attach());
    offer(&a, b.attached.slot);
    let (event, fds) = b.client.next_event(Some(LIMIT)).unwrap().unwrap();
    assert!(
        matches!(event, Event::ChannelOffered { slot, .. } if slot == a.attached.slot),
        "{event:?}"
    );
    let lengths: Vec<i64> = fds.iter().map(|fd| fstat(fd).unwrap().st_size).collect();
    assert_eq!(lengths, [8192, 4096]);
    let passed = outcome(&a);
    assert!(
        matches!(passed, Some(Event::ChannelPassed { slot, .. }) if slot == b.attached.slot),
        "{passed:?}"
    );
}

#[test]
fn offer_to_a_slot_without_a_process_is_refused_and_may_be_repeated() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (a, b) = (daemon.attach(), daemon.attach());
    let slot = b.attached.slot;
    drop(b);
    assert!(matches!(a.next_event(), Some(Event::SlotGone { .. })));
    for _ in 0..2 {
        offer(&a, slot);
        let refused = Event::ChannelRefused {
            slot,
            generation: None,
        };
        assert_eq!(outcome(&a), Some(refused));
    }
}

// It counted as one to the next process, and the offer to that process as a repetition, for which a
// client is disconnected: one user ended the programs of others by processes that offer and end.
#[test]
fn offer_that_comes_after_the_end_of_its_process_is_not_one_to_the_next() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "slots = 2\n");
    let (a, b) = (daemon.attach(), daemon.attach());
    let slot = b.attached.slot;
    drop(b);
    let Some(Event::SlotGone { generation, .. }) = a.next_event() else {
        panic!("the process has not ended");
    };
    let next = daemon.attach();
    assert_eq!(next.attached.slot, slot);
    for _ in 0..2 {
        offer_in(&a, slot, Some(generation));
        let refused = Event::ChannelRefused {
            slot,
            generation: Some(generation),
        };
        assert_eq!(outcome(&a), Some(refused));
    }
    offer_in(&a, slot, Some(generation + 1));
    let offered = outcome(&next);
    assert!(
        matches!(offered, Some(Event::ChannelOffered { slot, .. }) if slot == a.attached.slot),
        "{offered:?}"
    );
}

#[test]
fn process_whose_slot_is_taken_again_is_offered_a_channel_of_its_own() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "slots = 2\n");
    let (a, b) = (daemon.attach(), daemon.attach());
    let slot = b.attached.slot;
    let mut generations = Vec::new();
    let mut peer = b;
    for _ in 0..2 {
        offer(&a, slot);
        match outcome(&a) {
            Some(Event::ChannelPassed { generation, .. }) => generations.push(generation),
            other => panic!("{other:?}"),
        }
        drop(peer);
        assert!(matches!(a.next_event(), Some(Event::SlotGone { .. })));
        peer = daemon.attach();
        assert_eq!(peer.attached.slot, slot);
    }
    assert_ne!(generations[0], generations[1]);
}

/// What a client may not send: it is disconnected, and the other process gets nothing.
fn expect_disconnected(send: impl FnOnce(&Process, u8)) {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (a, b) = (daemon.attach(), daemon.attach());
    send(&a, b.attached.slot);
    assert!(is_disconnected(&a));
    let slot = a.attached.slot;
    let event = b.next_event();
    assert!(
        matches!(event, Some(Event::SlotGone { slot: gone, .. }) if gone == slot),
        "{event:?}"
    );
    daemon.status();
}

#[test]
fn memory_longer_than_any_region_is_not_passed_on() {
    const LONGEST: i64 = 16 << 20;
    let (long, page) = (memfd(LONGEST + 1, SEALS), memfd(4096, SEALS));
    for fds in [[&long, &page], [&page, &long]] {
        expect_disconnected(|process, to| send_two(process, to, fds[0].as_fd(), fds[1].as_fd()));
    }
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (a, b) = (daemon.attach(), daemon.attach());
    send_two(
        &a,
        b.attached.slot,
        memfd(LONGEST, SEALS).as_fd(),
        page.as_fd(),
    );
    assert!(matches!(outcome(&a), Some(Event::ChannelPassed { .. })));
}

fn send_two(process: &Process, to: u8, region: BorrowedFd<'_>, page: BorrowedFd<'_>) {
    process
        .client
        .offer_channel(to, None, &[region, page])
        .unwrap();
}

#[test]
fn region_without_its_seals_is_not_passed_on() {
    for missing in SEALS.iter() {
        expect_disconnected(|process, to| {
            let region = memfd(8192, SEALS.difference(missing));
            send_two(process, to, region.as_fd(), memfd(4096, SEALS).as_fd());
        });
    }
}

#[test]
fn file_that_is_no_region_is_not_passed_on() {
    expect_disconnected(|process, to| {
        let file = File::open("/dev/null").unwrap();
        send_two(process, to, memfd(8192, SEALS).as_fd(), file.as_fd());
    });
}

/// A connection whose last close(2) waits for a minute, since its peer reads nothing.
fn lingering() -> (OwnedFd, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65_536]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 60,
    };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
    (stream.into(), listener)
}

#[test]
fn descriptor_that_takes_long_to_close_does_not_stop_urdmad() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let a = daemon.attach();
    let (socket, _listener) = lingering();
    send_two(&a, 1, socket.as_fd(), memfd(4096, SEALS).as_fd());
    drop(socket);
    assert!(is_disconnected(&a));
    // This call fails after ten seconds without an answer.
    daemon.status();
}

#[test]
fn second_offer_to_one_process_is_not_passed_on() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (a, b) = (daemon.attach(), daemon.attach());
    offer(&a, b.attached.slot);
    offer(&a, b.attached.slot);
    assert!(is_disconnected(&a));
    assert!(matches!(b.next_event(), Some(Event::ChannelOffered { .. })));
    assert!(matches!(b.next_event(), Some(Event::SlotGone { .. })));
}

#[test]
fn second_deposit_and_one_that_is_no_channel_are_refused() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let deposit = |process: &Process, region: &OwnedFd| {
        let page = memfd(4096, SEALS);
        let fds = [region.as_fd(), page.as_fd()];
        process.client.deposit_channel(&fds).unwrap();
    };
    let region = memfd(8192, SEALS);
    let a = daemon.attach();
    deposit(&a, &region);
    assert!(a.client.recordings().is_ok());
    deposit(&a, &region);
    assert!(is_disconnected(&a));
    let b = daemon.attach();
    deposit(&b, &memfd(8192, SealFlag::F_SEAL_SHRINK));
    assert!(is_disconnected(&b));
}

#[test]
fn offer_to_itself_is_not_passed_on() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let a = daemon.attach();
    offer(&a, a.attached.slot);
    assert!(is_disconnected(&a));
}

#[test]
fn client_that_does_not_read_for_a_while_stays_connected_and_learns_what_still_matters() {
    // More than its socket has room for.
    const PROCESSES: usize = 1000;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let a = daemon.attach();
    for _ in 0..PROCESSES {
        let b = daemon.attach();
        offer(&b, a.attached.slot);
        assert!(matches!(outcome(&b), Some(Event::ChannelPassed { .. })));
    }
    let last = daemon.attach();
    offer(&last, a.attached.slot);
    // Of each slot the last process counts, and that the one before has ended.
    let heard: Vec<Event> = std::iter::from_fn(|| a.client.next_event(Some(PAUSE)).unwrap())
        .map(|(event, _)| event)
        .collect();
    assert!(heard.len() < 2 * PROCESSES, "{}", heard.len());
    let of_last = |event: &&Event| match event {
        Event::SlotGone { slot, .. } | Event::ChannelOffered { slot, .. } => {
            *slot == last.attached.slot
        }
        _ => false,
    };
    let of_last: Vec<&Event> = heard.iter().filter(of_last).collect();
    assert!(matches!(of_last.last(), Some(Event::ChannelOffered { .. })));
    assert_eq!(daemon.status().slots.len(), 2);
}
