//! A writer that stores nonsense: its reader gets nonsense, but neither panics nor leaves the
//! mapping. The seed is printed; `URDMA_SEED` repeats a run (of the same stores; when they happen
//! stays random), `URDMA_SCRIBBLE_SECONDS` makes it longer.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{config, page, region, seed, Forged};
use urdma_channel::{Channel, Kind, Next, CELL_DATA, LARGE_FRAME};
use urdma_types::Rng;
use urdma_waiting::{Bells, OwnPage};

const CELLS: u32 = 32;

/// A store somewhere that matters, often almost right.
fn scribble(forged: &Forged, random: &mut Rng, position: u32) {
    let layout = &forged.layout;
    match random.below_len(4) {
        0 => {
            let len = random.below_len(130).to_le_bytes()[0];
            let frame = u16::try_from(random.below_len(6)).unwrap();
            let octets = u32::try_from(random.below_len(LARGE_FRAME + 10)).unwrap();
            let count = u32::try_from(random.below_len(CELLS as usize)).unwrap();
            let at = layout.ring() + (position % CELLS) as usize * 128;
            forged.put(at + 8, u64::from(octets) << 32 | u64::from(frame));
            let word = u64::from(position.wrapping_add(1)) << 32;
            forged.put(at, word | u64::from(len) << 24 | u64::from(count));
        }
        1 => forged.put(128, random.bits() & 0x3f_0000_003f),
        2 => forged.put(random.below_len(layout.frames() / 8) * 8, random.bits()),
        _ => forged.put(256, random.bits()),
    }
}

/// Does everything a process can do with a channel, with whatever it finds.
fn work(channel: &mut Channel, page: &OwnPage, mut random: Rng, position: &mut dyn FnMut(u64)) {
    let mut octets = [0; CELL_DATA];
    let mut memory = vec![0; LARGE_FRAME];
    let mut bells = Bells::default();
    let mut owners = 0..;
    let mut expected = 0;
    let mut check = |owner| {
        assert_eq!(owner, expected, "out of order");
        expected += 1;
    };
    for _ in 0..2000 {
        let kind = [Kind::Work, Kind::Answer][random.below_len(2)];
        let payload = [0, 0, 1, 3000][random.below_len(4)];
        if let Some(mut room) = channel.begin(kind, payload) {
            room.octets_mut().fill(7);
            room.payload_mut().fill(8);
            room.publish(random.below_len(CELL_DATA + 1), owners.next().unwrap());
        }
        if let Next::Message { len, payload, .. } = channel.next(&mut octets, &mut check) {
            assert!(len <= CELL_DATA);
            if let Some(payload) = payload {
                let room = &mut memory[..payload.len()];
                assert!(channel.incoming().unwrap().copy_payload(payload, 0, room));
            }
        }
        match random.below_len(8) {
            0 => channel.set_wake_at(Some(random.bits() % 100)),
            1 => {
                page.listen(&mut bells);
                channel.listen(&mut bells);
                let timeout = Some(Duration::from_micros(10));
                page.park(&bells, timeout, || channel.has_work());
            }
            2 => channel.complete(&mut check),
            3 => channel.settle(),
            4 => drop(channel.notify()),
            _ => {}
        }
        position(channel.incoming().unwrap().taken());
    }
    let outgoing = channel.outgoing();
    assert!(outgoing.written() - outgoing.completed() <= 2 * u64::from(CELLS));
    assert_eq!(outgoing.completed(), u64::from(expected));
}

#[test]
fn region_full_of_nonsense_neither_panics_nor_hangs_its_reader() {
    let mut random = Rng::new(seed());
    let seconds = std::env::var("URDMA_SCRIBBLE_SECONDS").ok();
    let time = Duration::from_secs(seconds.and_then(|v| v.parse().ok()).unwrap_or(3));
    let begin = Instant::now();
    let mut taken = 0;
    while begin.elapsed() < time {
        let config = config(CELLS, 3, 2);
        let forged = Forged::new(&config);
        let (own, _peer) = region(&config);
        let (page, of_page) = page();
        let mut channel = Channel::new(own);
        channel.attach(forged.open(), of_page);
        let position = std::sync::atomic::AtomicU32::new(0);
        let has_ended = AtomicBool::new(false);
        let mut writer = Rng::new(random.bits());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    scribble(&forged, &mut writer, position.load(Ordering::Relaxed));
                }
            });
            work(&mut channel, &page, Rng::new(random.bits()), &mut |at| {
                position.store(u32::try_from(at).unwrap(), Ordering::Relaxed);
            });
            has_ended.store(true, Ordering::Relaxed);
        });
        taken += channel.incoming().unwrap().taken();
    }
    println!("{taken} messages of nonsense");
    assert!(taken > 0);
}
