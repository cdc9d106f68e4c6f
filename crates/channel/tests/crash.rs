//! A process is killed after each of its steps; its peer has what it had sent and settled before,
//! and nothing else.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{complete, fork, mappings_of, page, take};
use urdma_channel::steps::Steps;
use urdma_channel::{
    Channel, ChannelConfig, Incoming, Kind, Outgoing, OwnRegion, PeerRegion, Room, CELL_DATA,
};

/// What the child has done; in memory that it shares with this process.
#[derive(Default)]
struct Progress {
    /// Steps until it kills itself.
    left: AtomicU64,
    published: AtomicU64,
    settled: AtomicU64,
}

static PROGRESS: AtomicU64 = AtomicU64::new(0);

fn progress() -> &'static Progress {
    let at = PROGRESS.load(Ordering::Relaxed) as *const Progress;
    // SAFETY: the test has mapped it there, for ever.
    unsafe { &*at }
}

/// Kills this process at its last step.
struct Doomed;

impl Steps for Doomed {
    fn at(label: &'static str) {
        let progress = progress();
        match label {
            "cell: published" => progress.published.fetch_add(1, Ordering::Relaxed),
            "counts: stored" => progress.settled.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        if progress.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SAFETY: kills only this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

fn map_progress() {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    PROGRESS.store(at as u64, Ordering::Relaxed);
}

const CONFIG: ChannelConfig = ChannelConfig {
    cells: 32,
    small_frames: 4,
    large_frames: 2,
};

fn text(number: u64, octets: usize) -> Vec<u8> {
    (0..octets as u64)
        .map(|i| (number * 7 + i).to_le_bytes()[0])
        .collect()
}

fn lengths(number: u64) -> (usize, usize) {
    let len = usize::try_from(number * 13).unwrap() % (CELL_DATA + 1);
    (len, [0, 100, 0, 5000][usize::try_from(number).unwrap() % 4])
}

fn write<S: Steps>(mut room: Room<'_, S>, number: u64) {
    let (len, payload) = lengths(number);
    room.octets_mut()[..len].copy_from_slice(&text(number, len));
    room.payload_mut().copy_from_slice(&text(number, payload));
    room.publish(len, 0);
}

/// Sends, and settles what its peer sends, as fast as the peer allows.
fn script(mut channel: Channel<Doomed>) {
    let mut octets = [0; CELL_DATA];
    let mut number = 0;
    while number < 50 {
        let (_, payload) = lengths(number);
        match channel.begin(Kind::Work, payload) {
            Some(room) => {
                write(room, number);
                number += 1;
            }
            None => channel.complete(|_| ()),
        }
        channel.next(&mut octets, |_| ());
        channel.settle();
        channel.notify();
    }
}

fn end(stagger: u8) -> (OwnRegion, Incoming, File) {
    let (region, fd) = OwnRegion::create(&CONFIG, stagger).unwrap();
    let file = File::from(fd);
    let copy: OwnedFd = file.try_clone().unwrap().into();
    (region, Incoming::new(PeerRegion::open(copy).unwrap()), file)
}

/// Runs the script until the given step; true when it came to its end.
fn run(die_at: u64) -> bool {
    let progress = progress();
    progress.left.store(die_at, Ordering::Relaxed);
    progress.published.store(0, Ordering::Relaxed);
    progress.settled.store(0, Ordering::Relaxed);
    let (to_child, from_parent, _) = end(1);
    let (to_parent, from_child, file) = end(2);
    let (page, of_page) = page();
    let child = fork(|| {
        let outgoing = Outgoing::<Doomed>::with_steps(to_parent, 0);
        let mut channel = Channel::with_outgoing(outgoing);
        channel.attach(from_parent, of_page);
        script(channel);
    });
    let mut channel = Channel::new(to_child);
    channel.attach(from_child, common::page().1);
    let (mut sent, mut settled, mut taken) = (0, 0, 0);
    let mut check = |channel: &mut Channel| {
        if let Some((octets, payload, owners)) = take(channel) {
            let (len, payload_len) = lengths(taken);
            assert_eq!(octets, text(taken, len));
            assert_eq!(payload, text(taken, payload_len));
            taken += 1;
            settled += owners.len() as u64;
        }
        settled += complete(channel).len() as u64;
        channel.settle();
        (taken, settled)
    };
    let mut status = 0;
    // SAFETY: looks after our own child.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        check(&mut channel);
        if let Some(room) = channel.begin(Kind::Work, 0) {
            room.publish(0, sent);
            sent += 1;
        }
    }
    // What its region still holds.
    let mut before = None;
    loop {
        let now = check(&mut channel);
        if before == Some(now) {
            break;
        }
        before = Some(now);
    }
    assert_eq!(
        before.unwrap().0,
        progress.published.load(Ordering::Relaxed)
    );
    assert!(before.unwrap().1 >= progress.settled.load(Ordering::Relaxed));
    assert!(before.unwrap().1 <= u64::from(sent));
    drop((channel, page));
    assert_eq!(mappings_of(&file), 0);
    assert!(status == 0 || status == libc::SIGKILL, "{status}");
    status == 0
}

#[test]
fn process_killed_after_each_single_step_has_sent_what_it_had_published() {
    map_progress();
    let mut die_at = 1;
    while !run(die_at) {
        die_at += 1;
    }
    println!("killed after each of {} steps", die_at - 1);
    assert!(die_at > 120);
}
