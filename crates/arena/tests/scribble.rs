//! A process writes random data to all of the arena while others use it: the others may lose
//! datagrams, but never panic, access memory outside of the mapping, or hang.
//!
//! The seed is printed; `URDMA_SEED` repeats a run, `URDMA_SCRIBBLE_SECONDS` makes it longer.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use urdma_types::SlotId;

use arrayvec::ArrayVec;
use common::{number, seed, Random};
use urdma_arena::{Arena, ArenaConfig, Arrival, Endpoint, Reaper, RxFrame, SHORT_CAPACITY};

const SLOTS: u8 = 3;

fn slot(index: u8) -> SlotId {
    SlotId::new(index).unwrap()
}

/// A random aligned word somewhere that matters: slot table, rings, short rings, heads of frames.
fn scribble(arena: &Arena, file: &std::fs::File, random: &mut Random) {
    let layout = arena.layout();
    let owner = slot(random.below(SLOTS.into()).try_into().unwrap());
    let at = match random.below(5) {
        4 => layout.shorts_at(owner) + random.below(8 * 17) * 128,
        0 => layout.slot_at(owner) + random.below(32) * 8,
        1 | 2 => layout.ring_at(owner) + random.below(layout.config().ring_cells as usize) * 8,
        _ => {
            let k = random
                .below(layout.frames_per_slot() as usize)
                .try_into()
                .unwrap();
            let frame = urdma_arena::layout::FrameIndex::new(owner, k);
            layout.frame_at(frame).unwrap() + random.below(3) * 8
        }
    };
    let mut word = [0u8; 8];
    file.read_exact_at(&mut word, at as u64).unwrap();
    let old = u64::from_le_bytes(word);
    let new = match random.below(4) {
        0 => random.next(),
        1 => old ^ 1 << random.below(64),
        2 => old.wrapping_add(random.below(5) as u64).wrapping_sub(2),
        _ => old ^ (random.next() & 0xffff_ff00_0000),
    };
    file.write_all_at(&new.to_le_bytes(), at as u64).unwrap();
}

/// Does everything an endpoint can do, with whatever it finds.
fn work(arena: &Arena, me: SlotId, mut random: Random, stop: &AtomicBool) {
    let Ok(mut endpoint) = Endpoint::attach(arena, me) else {
        return;
    };
    let parker = endpoint.parker();
    let mut kept: ArrayVec<RxFrame, 8> = ArrayVec::new();
    let mut memory = vec![0u8; 1 << 17];
    while !stop.load(Ordering::Relaxed) {
        let to = slot(random.below(usize::from(SLOTS) + 1).try_into().unwrap());
        let octets = if random.below(4) == 0 {
            random.below(65_536)
        } else {
            random.below(200)
        };
        if let Some(mut frame) = endpoint.alloc(octets) {
            let room = frame.data_mut();
            room[..octets.min(64)].fill(7);
            match random.below(3) {
                0 => drop(endpoint.send(to, frame, octets)),
                1 => {
                    drop(endpoint.send_quiet(to, frame, octets));
                    endpoint.ring_doorbell(to);
                }
                _ => drop(frame),
            }
        }
        let mut octets = [7; SHORT_CAPACITY];
        if endpoint.may_send_short(to) {
            let _ = endpoint.send_short(to, &octets, 1 + random.below(SHORT_CAPACITY));
            endpoint.ring_doorbell(to);
        }
        let mut burst: ArrayVec<RxFrame, 4> = ArrayVec::new();
        match endpoint.recv_any(&mut octets) {
            Some(Arrival::Short { len, .. }) => assert!(len <= SHORT_CAPACITY),
            Some(Arrival::Frame(frame)) => burst.push(frame),
            None => {}
        }
        endpoint.recv_burst(&mut burst);
        for frame in burst {
            assert!(frame.len() <= urdma_arena::LARGE_CAPACITY);
            assert!(frame.copy_to_slice(0, &mut memory[..frame.len()]));
            let _ = frame.copy_head(&mut [0; 128]);
            let _ = (frame.meta(), frame.from());
            for (at, len) in frame.followers() {
                assert!(at + len <= frame.capacity());
            }
            match random.below(3) {
                0 => endpoint.release(frame),
                1 => drop(endpoint.forward(to, frame)),
                _ if kept.is_full() => kept.clear(),
                _ => kept.push(frame),
            }
        }
        if random.below(64) == 0 {
            parker.park(Some(Duration::from_micros(200)), || random.below(2) == 0);
        }
        if random.below(4096) == 0 {
            drop(endpoint);
            let _ = Reaper::new(arena).reset(me);
            match Endpoint::attach(arena, me) {
                Ok(again) => endpoint = again,
                Err(_) => return,
            }
        }
    }
}

#[test]
fn arena_full_of_nonsense_neither_panics_nor_hangs_anyone() {
    let seed = seed();
    let time = Duration::from_secs(number("URDMA_SCRIBBLE_SECONDS", 3));
    let start = Instant::now();
    let mut random = Random::new(seed);
    let mut rounds = 0;
    while start.elapsed() < time {
        let config = ArenaConfig {
            slots: SLOTS.into(),
            ring_cells: 16,
            small_frames: 8,
            large_frames: 4,
        };
        let arena = Arena::create(&config).unwrap();
        let file = std::fs::File::from(arena.fd().try_clone_to_owned().unwrap());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for index in 0..SLOTS {
                let (random, stop) = (Random::new(random.next()), &stop);
                scope.spawn(move || work(&arena, slot(index), random, stop));
            }
            let mut reaper = Reaper::new(&arena);
            for i in 0..3000 {
                scribble(&arena, &file, &mut random);
                if i % 500 == 0 {
                    std::thread::yield_now();
                    reaper.reap(slot(random.below(SLOTS.into()).try_into().unwrap()));
                    let account = reaper.account();
                    let counted = account.free
                        + account.corrupt
                        + account.held.iter().sum::<u64>()
                        + account.in_flight.iter().sum::<u64>();
                    assert_eq!(counted, account.total);
                    let _ = reaper.verify();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        rounds += 1;
    }
    println!("seed {seed}: {rounds} arenas scribbled over");
}
