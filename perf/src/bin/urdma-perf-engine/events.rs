//! Events in the flight recorder, with the engine's clock.

use std::time::Instant;

use urdma_channel::OwnRecording;
use urdma_engine::StoppedClock;
use urdma_trace::{CmState, Link, Recorder};

/// Records `events` that are those of `queue_pairs` in turn.
pub(crate) fn run(queue_pairs: u32, events: u32) -> Result<(), String> {
    let _clock = StoppedClock::stop().ok_or("the engine's clock runs")?;
    let (recording, _memory) = OwnRecording::create().map_err(|error| error.to_string())?;
    let recorder = Recorder::new(recording, StoppedClock::now_ns);
    let begin = Instant::now();
    for number in 0..events {
        let link = Link {
            conn: number,
            qpn: 0x1_0000 + 1 + number % queue_pairs.max(1),
        };
        record(&recorder, link);
    }
    let each_ns = begin.elapsed().as_secs_f64() * 1e9 / f64::from(events.max(1));
    println!("{events} events, each {each_ns:.1} ns");
    Ok(())
}

/// What is counted: an event with its probe.
#[inline(never)]
fn record(recorder: &Recorder, link: Link) {
    recorder.cm_state(link, CmState::RtuGated, CmState::Established);
}
