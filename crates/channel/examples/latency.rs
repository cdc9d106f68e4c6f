//! How fast two processes are through a channel: `cargo run --release -p urdma-channel --example
//! latency`.
//!
//! Prints half a round trip of 100 octets in a cell, without and with waking a peer that might
//! sleep; the rate of such cells in one direction; and the rate of a stream of 64 KB frames with a
//! copy at each end. Each is measured a few times, and the median counts. Cores 0 and 1 are used.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use urdma_channel::{
    CellOctets, Channel, ChannelConfig, Incoming, Kind, Next, OwnRegion, PeerRegion, CELL_DATA,
    LARGE_FRAME,
};
use urdma_waiting::{OwnPage, PeerPage};

const REPEAT: usize = 9;
const ROUNDS: u32 = 200_000;
const CELLS: u32 = 4_000_000;
const STREAM_OCTETS: usize = 2 << 30;
const MESSAGE_OCTETS: usize = 1 << 20;
const PAGE: usize = 4096;
const OCTETS: usize = 100;
/// Messages that the receiver of many settles together.
const BATCH: u32 = 32;

fn main() {
    let (mut p, _page_p, from_p, page_of_p) = end(1);
    let (mut q, _page_q, from_q, page_of_q) = end(2);
    p.attach(from_q, page_of_q);
    q.attach(from_p, page_of_p);
    // SAFETY: this program has one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        pin(1);
        measure(&mut q, false);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    pin(0);
    let [bare, waking, cells, stream] = measure(&mut p, true);
    println!("half a round trip, {OCTETS} octets   {bare:8.0} ns");
    println!("the same, looking for sleepers {waking:8.0} ns");
    println!("cells of {OCTETS} octets            {cells:8.1} M/s");
    println!("64 KB frames, copied twice     {stream:8.1} GB/s");
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the other process failed");
}

fn end(stagger: u8) -> (Channel, OwnPage, Incoming, PeerPage) {
    let (region, fd) = OwnRegion::create(&ChannelConfig::default(), stagger).unwrap();
    let (page, page_fd) = OwnPage::create().unwrap();
    let incoming = Incoming::new(PeerRegion::open(fd).unwrap());
    let peer_page = PeerPage::open(page_fd).unwrap();
    (Channel::new(region), page, incoming, peer_page)
}

fn pin(core: usize) {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET and sched_setaffinity stay within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// All measurements, at one of the two ends.
fn measure(channel: &mut Channel, is_first: bool) -> [f64; 4] {
    let seconds_of = |work: &mut dyn FnMut()| {
        let mut seen: Vec<f64> = (0..REPEAT)
            .map(|_| {
                let start = Instant::now();
                work();
                start.elapsed().as_secs_f64()
            })
            .collect();
        seen.sort_by(f64::total_cmp);
        seen[REPEAT / 2]
    };
    let bare = seconds_of(&mut || ping_pong(channel, is_first, false));
    let waking = seconds_of(&mut || ping_pong(channel, is_first, true));
    let cells = seconds_of(&mut || one_way(channel, is_first));
    // Like the frames, it begins with a page: copies that differ in that are slower.
    let mut memory = vec![3; MESSAGE_OCTETS + PAGE];
    let begin = memory.as_ptr().align_offset(PAGE);
    let memory = &mut memory[begin..][..MESSAGE_OCTETS];
    let stream = seconds_of(&mut || frames(channel, is_first, memory));
    [
        bare / f64::from(ROUNDS) / 2.0 * 1e9,
        waking / f64::from(ROUNDS) / 2.0 * 1e9,
        f64::from(CELLS) / cells / 1e6,
        STREAM_OCTETS as f64 / stream / 1e9,
    ]
}

#[inline(always)]
fn send(channel: &mut Channel, text: &[u8; OCTETS]) {
    loop {
        if let Some(mut room) = channel.begin(Kind::Work, 0) {
            room.octets_mut()[..OCTETS].copy_from_slice(text);
            room.publish(OCTETS, 7);
            return;
        }
        channel.complete(|_| ());
    }
}

#[inline(always)]
fn receive(channel: &mut Channel, out: &mut CellOctets) -> Next {
    loop {
        match channel.next(out, |_| ()) {
            Next::Empty => {}
            Next::Corrupt => panic!("a corrupt cell"),
            message => {
                std::hint::black_box(&out);
                return message;
            }
        }
    }
}

#[inline(never)]
fn ping_pong(channel: &mut Channel, is_first: bool, wakes: bool) {
    let (text, mut out) = ([1; OCTETS], [0; CELL_DATA]);
    for round in 0..2 * ROUNDS {
        if (round % 2 == 0) == is_first {
            send(channel, &text);
            if wakes {
                channel.notify();
            }
        } else {
            receive(channel, &mut out);
            channel.settle();
        }
    }
}

/// The receiver says that it has received everything.
fn finish(channel: &mut Channel, is_first: bool) {
    if is_first {
        receive(channel, &mut [0; CELL_DATA]);
        channel.settle();
    } else {
        channel.settle();
        send(channel, &[2; OCTETS]);
    }
}

#[inline(never)]
fn one_way(channel: &mut Channel, is_first: bool) {
    let (text, mut out) = ([1; OCTETS], [0; CELL_DATA]);
    for i in 0..CELLS {
        if is_first {
            send(channel, &text);
        } else {
            receive(channel, &mut out);
            if i % BATCH == 0 {
                channel.settle();
            }
        }
    }
    finish(channel, is_first);
}

fn send_frame(channel: &mut Channel, from: &[u8]) -> bool {
    let Some(mut room) = channel.begin(Kind::Work, from.len()) else {
        return false;
    };
    room.payload_mut().copy_from_slice(from);
    room.publish(0, 7);
    true
}

#[inline(never)]
fn frames(channel: &mut Channel, is_first: bool, memory: &mut [u8]) {
    let mut out = [0; CELL_DATA];
    for i in 0..STREAM_OCTETS / LARGE_FRAME {
        let at = i * LARGE_FRAME % MESSAGE_OCTETS;
        let part = &mut memory[at..at + LARGE_FRAME];
        if is_first {
            while !send_frame(channel, part) {
                channel.complete(|_| ());
            }
        } else if let Next::Message {
            payload: Some(payload),
            ..
        } = receive(channel, &mut out)
        {
            assert!(channel.incoming().unwrap().copy_payload(payload, 0, part));
            channel.settle();
        }
    }
    finish(channel, is_first);
}
