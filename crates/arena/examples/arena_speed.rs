//! How fast two processes are through the arena: `cargo run --release -p urdma-arena --example
//! arena_speed`.
//!
//! Prints the round trip of a bare word, the round trip of a 64-octet frame through two endpoints,
//! and the rate of a stream of large frames that is copied in on one side and out on the other.
//! Each is timed in many short chunks; the median counts, so that being preempted now and then does
//! not.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use urdma_types::SlotId;

use urdma_arena::{Arena, ArenaConfig, Endpoint, RxFrame};

const ROUNDS: u64 = 200_000;
/// Round trips timed together.
const CHUNK: u64 = 100;
const STREAM_OCTETS: usize = 2 << 30;
/// Octets of a stream timed together.
const CHUNK_OCTETS: usize = 16 << 20;
const MESSAGE_OCTETS: usize = 1 << 20;

fn main() {
    println!("word round trip        {:8.0} ns", word_round_trip());
    println!("frame round trip, empty{:8.0} ns", frame_round_trip(false));
    println!("frame of 64 round trip {:8.0} ns", frame_round_trip(true));
    for octets in [1442, 8942, 16_384, 65_408] {
        println!("stream of {octets:6}       {:8.1} GB/s", stream(octets));
    }
}

fn median(mut seen: Vec<f64>) -> f64 {
    seen.sort_by(f64::total_cmp);
    seen[seen.len() / 2]
}

/// Seconds that `once` typically takes, of `rounds` times.
fn typical(rounds: u64, chunk: u64, mut once: impl FnMut(u64)) -> f64 {
    let chunk_usize = usize::try_from(chunk).unwrap();
    let mut times = Vec::new();
    for first in (0..rounds).step_by(chunk_usize) {
        let start = Instant::now();
        (first..first + chunk).for_each(&mut once);
        times.push(start.elapsed().as_secs_f64() / chunk as f64);
    }
    median(times)
}

/// Runs `child` in a forked process pinned to core 1 and `parent` here on core 0.
fn two_processes<T>(child: impl FnOnce(), parent: impl FnOnce() -> T) -> T {
    // SAFETY: this program has one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        pin(1);
        child();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    pin(0);
    let result = parent();
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the other process failed");
    result
}

fn pin(core: usize) {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET and sched_setaffinity stay within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn word_round_trip() -> f64 {
    #[repr(align(128))]
    struct Words([AtomicU64; 32]);
    // SAFETY: an anonymous shared mapping, big enough and zeroed.
    let words: &Words = unsafe {
        &*libc::mmap(
            std::ptr::null_mut(),
            size_of::<Words>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
        .cast()
    };
    let (there, back) = (&words.0[0], &words.0[16]);
    let spin = |word: &AtomicU64, value| {
        while word.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    two_processes(
        || {
            for i in 1..=ROUNDS {
                spin(there, i);
                back.store(i, Ordering::Release);
            }
        },
        || {
            1e9 * typical(ROUNDS, CHUNK, |i| {
                there.store(i + 1, Ordering::Release);
                spin(back, i + 1);
            })
        },
    )
}

fn receive(endpoint: &mut Endpoint) -> RxFrame {
    loop {
        if let Some(frame) = endpoint.recv() {
            return frame;
        }
        std::hint::spin_loop();
    }
}

fn send(endpoint: &mut Endpoint, to: SlotId, octets: usize, payload: &[u8]) {
    let mut frame = loop {
        if let Some(frame) = endpoint.alloc(octets) {
            break frame;
        }
        std::hint::spin_loop();
    };
    frame.data_mut()[..payload.len()].copy_from_slice(payload);
    let mut attempt = endpoint.send(to, frame, octets);
    while let Err((frame, _)) = attempt {
        std::hint::spin_loop();
        attempt = endpoint.send(to, frame, octets);
    }
}

fn slots() -> (SlotId, SlotId) {
    (SlotId::new(1).unwrap(), SlotId::new(2).unwrap())
}

fn frame_round_trip(copy: bool) -> f64 {
    let arena = Arena::create(&ArenaConfig::default()).unwrap();
    let (a, b) = slots();
    let take = |endpoint: &mut Endpoint| {
        let frame = receive(endpoint);
        let mut head = [0u8; 128];
        assert_eq!(
            if copy {
                frame.copy_head(&mut head)
            } else {
                frame.len()
            },
            64
        );
        std::hint::black_box(&head);
        endpoint.release(frame);
    };
    two_processes(
        || {
            let mut endpoint = Endpoint::attach(&arena, b).unwrap();
            for _ in 0..ROUNDS {
                take(&mut endpoint);
                send(&mut endpoint, a, 64, &[9; 64]);
            }
        },
        || {
            let mut endpoint = Endpoint::attach(&arena, a).unwrap();
            while !arena.is_alive(b) {
                std::thread::yield_now();
            }
            1e9 * typical(ROUNDS, CHUNK, |_| {
                send(&mut endpoint, b, 64, &[7; 64]);
                take(&mut endpoint);
            })
        },
    )
}

fn stream(octets: usize) -> f64 {
    let arena = Arena::create(&ArenaConfig::default()).unwrap();
    let (a, b) = slots();
    let chunk = CHUNK_OCTETS / octets;
    let frames = STREAM_OCTETS / octets / chunk * chunk;
    two_processes(
        || {
            let mut endpoint = Endpoint::attach(&arena, b).unwrap();
            let mut memory = vec![1u8; MESSAGE_OCTETS + octets];
            let mut at = 0;
            for _ in 0..frames {
                let frame = receive(&mut endpoint);
                assert!(frame.copy_to_slice(0, &mut memory[at..at + octets]));
                endpoint.release(frame);
                at = if at + octets >= MESSAGE_OCTETS {
                    0
                } else {
                    at + octets
                };
            }
        },
        || {
            let mut endpoint = Endpoint::attach(&arena, a).unwrap();
            let memory = vec![2u8; MESSAGE_OCTETS + octets];
            while !arena.is_alive(b) {
                std::thread::yield_now();
            }
            let mut at = 0;
            let one = typical(frames as u64, chunk as u64, |_| {
                send(&mut endpoint, b, octets, &memory[at..at + octets]);
                at = if at + octets >= MESSAGE_OCTETS {
                    0
                } else {
                    at + octets
                };
            });
            octets as f64 / one / 1e9
        },
    )
}
