//! The arena alone, without verbs and protocol: their cost is the difference to `ib_send_lat`.

use urdma_arena::{Arena, ArenaConfig, Endpoint, RxFrame};
use urdma_types::SlotId;

use super::fork::{poll, two_processes, typical_half_round_trip, Mark};
use crate::samples::Sample;

const OCTETS: usize = 64;

fn send(endpoint: &mut Endpoint, to: SlotId, octet: u8) {
    let mut frame = poll(|| endpoint.alloc(OCTETS));
    frame.data_mut()[..OCTETS].fill(octet);
    let mut attempt = endpoint.send(to, frame, OCTETS);
    while let Err((frame, _)) = attempt {
        std::hint::spin_loop();
        attempt = endpoint.send(to, frame, OCTETS);
    }
}

fn take(endpoint: &mut Endpoint) -> u8 {
    let frame: RxFrame = poll(|| endpoint.recv());
    let mut head = [0; 128];
    std::hint::black_box(frame.copy_head(&mut head));
    std::hint::black_box(&head);
    endpoint.release(frame);
    head[0]
}

/// Half the round trip of a frame of 64 octets, in microseconds.
///
/// # Errors
/// The arena cannot be made, or the second process failed.
pub fn half_round_trip() -> Sample {
    let text = |error: std::io::Error| error.to_string();
    let arena = Arena::create(&ArenaConfig::default()).map_err(text)?;
    let (a, b) = SlotId::new(1).zip(SlotId::new(2)).ok_or("no such slots")?;
    // Both endpoints are attached before the fork; each process then uses its own.
    let mut at_a = Endpoint::attach(&arena, a).map_err(text)?;
    let mut at_b = Endpoint::attach(&arena, b).map_err(text)?;
    two_processes(
        || {
            let mut mark = Mark::More.octet();
            while mark != Mark::Last.octet() {
                mark = take(&mut at_b);
                send(&mut at_b, a, mark);
            }
        },
        || {
            typical_half_round_trip(|mark| {
                send(&mut at_a, b, mark.octet());
                take(&mut at_a);
            })
        },
    )
}
