//! The lines of `urdma trace`.

use std::fmt::Write;

use nix::time::{clock_gettime, ClockId};
use urdma_ipc::RecordingInfo;
use urdma_trace::{Event, Link};

use super::select::Connection;
use super::words::{describe, thousandths};

const DAY_S: u64 = 24 * 60 * 60;

/// Two clocks at one moment, nanoseconds: the events' and the wall clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clocks {
    pub(super) monotonic_ns: u64,
    wall_ns: u64,
}

impl Clocks {
    /// Reads both.
    pub(super) fn now() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock).map_or(std::time::Duration::ZERO, Into::into);
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
        };
        Self {
            monotonic_ns: read(ClockId::CLOCK_MONOTONIC),
            wall_ns: read(ClockId::CLOCK_REALTIME),
        }
    }

    /// The time of day (UTC) of an event.
    fn time_of_day(&self, time_ns: u64) -> String {
        let wall_ns = if time_ns <= self.monotonic_ns {
            self.wall_ns.saturating_sub(self.monotonic_ns - time_ns)
        } else {
            self.wall_ns.saturating_add(time_ns - self.monotonic_ns)
        };
        let (second, us) = (wall_ns / 1_000_000_000 % DAY_S, wall_ns / 1000 % 1_000_000);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        format!("{hour:02}:{minute:02}:{:02}.{us:06}", second % 60)
    }
}

/// The name of a connection: its queue pair, else its connection id.
fn name(connection: &Connection) -> String {
    match (connection.link.qpn, connection.link.conn) {
        (0, 0) => "processes and requests".to_owned(),
        (0, conn) => format!("connection {conn:#010x}"),
        (qpn, 0) => format!("queue pair {qpn:#08x}"),
        (qpn, conn) => format!("queue pair {qpn:#08x}, connection {conn:#010x}"),
    }
}

/// The headline of a process.
pub(super) fn process(info: &RecordingInfo) -> String {
    let what = match info.slot {
        0 => format!("urdmad, process {}", info.pid),
        slot => format!(
            "slot {slot}: process {} ({}) of user {}",
            info.pid, info.program, info.uid
        ),
    };
    let end = match info.ended {
        None => String::new(),
        Some(ended) if ended.is_death => {
            format!(
                ", ended {} s ago without detaching (exit, crash or signal)",
                ended.ago_s
            )
        }
        Some(ended) => format!(", detached {} s ago", ended.ago_s),
    };
    format!("{what}{end}\n")
}

/// The events of a connection, below a headline that says why it failed, if it did.
pub(super) fn connection(connection: &Connection, clocks: &Clocks) -> String {
    let mut text = format!("  {}", name(connection));
    if connection.link != Link::default() {
        // Writing to a String cannot fail.
        if let Some(peer) = connection.peer {
            let _ = write!(text, ", peer {peer}");
        }
        if let Some(failure) = connection.failure() {
            let _ = write!(text, ": {}", describe(failure));
        }
    }
    text.push('\n');
    let begin = connection.events.first().map_or(0, |event| event.time_ns);
    for event in &connection.events {
        let since = thousandths(event.time_ns.saturating_sub(begin) / 1000);
        let at = clocks.time_of_day(event.time_ns);
        let _ = writeln!(text, "    {at} {since:>12} ms  {}", describe(event));
    }
    text
}

/// One event with its process and connection.
pub(super) fn event(
    info: &RecordingInfo,
    connection: &Connection,
    event: &Event,
    clocks: &Clocks,
) -> String {
    let at = clocks.time_of_day(event.time_ns);
    let name = name(connection);
    format!(
        "{at} {} ({}) {name}: {}\n",
        info.pid,
        info.program,
        describe(event)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_is_as_far_from_now_as_the_event() {
        let clocks = Clocks {
            monotonic_ns: 10_000_000_000,
            wall_ns: (DAY_S * 3 + 3600 + 62) * 1_000_000_000,
        };
        assert_eq!(clocks.time_of_day(10_000_000_000), "01:01:02.000000");
        assert_eq!(clocks.time_of_day(8_999_999_000), "01:01:00.999999");
        assert_eq!(clocks.time_of_day(u64::MAX).len(), 15);
    }
}
