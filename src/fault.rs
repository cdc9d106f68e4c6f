//! `urdma fault`: loss, delay and other impairments of an instance's port.

use std::time::Duration;

use clap::{Args, ValueEnum};
use urdma_ipc::fault::{parse_octets, parse_rate, parse_share, parse_time, Direction, Impairment};
use urdma_ipc::status::{FaultStatus, LineStatus};

use crate::error::Error;
use crate::target::Target;

/// Options of `urdma fault`.
#[derive(Debug, Args)]
pub(crate) struct FaultArgs {
    #[command(flatten)]
    target: Target,
    /// Remove all impairments
    #[arg(long, conflicts_with = "Wanted")]
    off: bool,
    #[command(flatten)]
    wanted: Wanted,
}

/// The impairments; those that are not named are removed.
#[derive(Debug, Args)]
struct Wanted {
    /// Direction of the frames; the other direction stays unchanged
    #[arg(long, value_enum)]
    direction: Option<CliDirection>,
    /// Seed of all random choices
    #[arg(long)]
    seed: Option<u64>,
    /// Fraction of packets that are lost, such as 1%
    #[arg(long, value_parser = parse_share)]
    loss: Option<u32>,
    /// Fraction of packets that are duplicated
    #[arg(long, value_parser = parse_share)]
    duplicate: Option<u32>,
    /// Fraction of packets that are reordered
    #[arg(long, value_parser = parse_share)]
    reorder: Option<u32>,
    /// Maximum extra delay of reordered packets [default: 100us]
    #[arg(long, value_parser = parse_time)]
    reorder_by: Option<u64>,
    /// Fraction of packets with one flipped bit; needs checksums
    #[arg(long, value_parser = parse_share)]
    corrupt: Option<u32>,
    /// Delay of every packet, such as 1ms
    #[arg(long, value_parser = parse_time)]
    delay: Option<u64>,
    /// Rate of the link, such as 10Gbit/s
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,
    /// Length of the link's queue in octets, such as 1MB
    #[arg(long, value_parser = parse_octets, requires = "rate")]
    queue: Option<u64>,
    /// Queue length from which packets are ECN-marked, such as 100kB
    #[arg(long, value_parser = parse_octets, requires = "rate")]
    mark: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CliDirection {
    /// Received packets
    In,
    /// Sent packets
    Out,
    Both,
}

impl Wanted {
    fn is_nothing(&self) -> bool {
        self.direction.is_none() && self.seed.is_none() && self.impairment().is_none()
    }

    fn direction(&self) -> Direction {
        match self.direction {
            Some(CliDirection::In) => Direction::In,
            Some(CliDirection::Out) => Direction::Out,
            Some(CliDirection::Both) | None => Direction::Both,
        }
    }

    fn impairment(&self) -> Impairment {
        let none = Impairment::default();
        Impairment {
            loss_ppm: self.loss.unwrap_or(0),
            duplicate_ppm: self.duplicate.unwrap_or(0),
            reorder_ppm: self.reorder.unwrap_or(0),
            reorder_by_ns: self.reorder_by.unwrap_or(none.reorder_by_ns),
            corrupt_ppm: self.corrupt.unwrap_or(0),
            delay_ns: self.delay.unwrap_or(0),
            rate_bit_s: self.rate,
            queue_octets: self.queue.unwrap_or(none.queue_octets),
            mark_octets: self.mark,
        }
    }
}

/// Sets the impairments, if any are given, and shows them.
pub(crate) fn fault(args: &FaultArgs) -> Result<(), Error> {
    let client = args.target.connect()?;
    if args.off {
        client.set_faults(Direction::Both, Impairment::default(), None)?;
    } else if !args.wanted.is_nothing() {
        let (direction, impairment) = (args.wanted.direction(), args.wanted.impairment());
        client.set_faults(direction, impairment, args.wanted.seed)?;
    }
    let faults = client.status()?.faults;
    let faults = faults.ok_or_else(|| Error::sentence("this instance has no port"))?;
    print!("{}", render(&faults, true));
    Ok(())
}

/// A line for each direction; one without impairments is left out unless `all` is set.
pub(crate) fn render(faults: &FaultStatus, all: bool) -> String {
    [("in ", &faults.inbound), ("out", &faults.outbound)]
        .into_iter()
        .filter(|(_, line)| all || line.is_some())
        .map(|(direction, line)| match line {
            None => format!("faults   {direction} none\n"),
            Some(line) => format!("faults   {direction} {}\n", sentence(line, faults.seed)),
        })
        .collect()
}

fn sentence(line: &LineStatus, seed: u64) -> String {
    let counts = &line.counts;
    let mut text = format!(
        "{}, seed {seed}; of {} packets",
        line.impairment, counts.offered
    );
    for (what, count) in [
        ("lost", counts.lost),
        ("doubled", counts.duplicated),
        ("reordered", counts.reordered),
        ("corrupted", counts.corrupted),
        ("marked", counts.marked),
        ("lost to a full queue", counts.queue_full),
        ("lost for want of room", counts.no_room),
        ("under way", line.held_packets),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    if counts.waited_ns > 0 {
        let [mean, most] = [counts.mean_wait_ns(), counts.waited_most_ns].map(Duration::from_nanos);
        text.push_str(&format!(", wait in the queue {mean:?}, at most {most:?}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use urdma_ipc::status::FaultCounts;

    #[test]
    fn render_shows_what_was_asked_for_and_what_was_done() {
        let faults = FaultStatus {
            seed: 7,
            inbound: None,
            outbound: Some(LineStatus {
                impairment: Impairment {
                    loss_ppm: 10_000,
                    ..Impairment::default()
                },
                counts: FaultCounts {
                    offered: 100,
                    lost: 2,
                    waited_ns: 300_000,
                    waited_most_ns: 7_000,
                    ..FaultCounts::default()
                },
                ..LineStatus::default()
            }),
        };
        assert_eq!(
            render(&faults, false),
            "faults   out loss 1%, seed 7; of 100 packets, 2 lost, wait in the queue 3µs, at most \
            7µs\n"
        );
        assert!(render(&faults, true).starts_with("faults   in  none\n"));
    }
}
