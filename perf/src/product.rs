//! Debian's perftest through `urdma run`, as a user calls it.

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::pair;
use urdma_harness::programs::{self, Job};

use crate::samples::{Sample, Unit};
use crate::workloads::{Path, Workload, STREAM_MESSAGES, STREAM_OCTETS};

/// Iterations of a latency: enough for a typical value, few enough where four processes share two
/// cores.
const LATENCIES: u32 = 20_000;
const LATENCIES_FORWARDED: u32 = 4_000;
/// Octets of a forwarded run, which take as long.
const OCTETS_FORWARDED: usize = STREAM_OCTETS / 8;
/// Without it perftest looks for the peak of a run by comparing each request with each later one,
/// which takes minutes for a million requests.
const NO_PEAK: &str = "-N";

/// The value of `flag` in the workload's flags.
fn flag(workload: &Workload, flag: &str) -> Option<u32> {
    let at = workload.flags.iter().position(|given| *given == flag)?;
    workload.flags.get(at + 1)?.parse().ok()
}

fn iterations(workload: &Workload) -> u32 {
    let messages_of =
        |octets: usize| u32::try_from(octets / workload.octets as usize).unwrap_or(u32::MAX);
    let is_forwarded = workload.path == Path::Forwarded;
    let total = match (workload.probe.unit, is_forwarded) {
        (Unit::Microseconds, false) => LATENCIES,
        (Unit::Microseconds, true) => LATENCIES_FORWARDED,
        (Unit::MillionsPerSecond, _) => STREAM_MESSAGES,
        (_, false) => messages_of(STREAM_OCTETS).min(STREAM_MESSAGES),
        (_, true) => messages_of(OCTETS_FORWARDED),
    };
    total / flag(workload, "-q").unwrap_or(1)
}

/// The workload as a job on `port`.
fn job(workload: &Workload, port: u16, server: &str) -> Job {
    let mut job = programs::perftest(workload.tool, workload.octets, false, port, server)
        .with_iterations(iterations(workload));
    if !workload.flags.is_empty() {
        job = job.with(workload.flags);
    }
    match workload.probe.unit {
        Unit::Microseconds => job,
        Unit::MillionsPerSecond => job.with(&[NO_PEAK]).as_message_rate(),
        _ => job.with(&[NO_PEAK]),
    }
}

/// Runs the workload between `server` and `client`; the value is in the unit of its probe.
///
/// # Errors
/// The program failed, or printed no figure.
pub fn measure(workload: &Workload, port: u16, server: &Instance, client: &Instance) -> Sample {
    let lease = match workload.path {
        Path::OneHost | Path::Forwarded => LeasePolicy::Never,
        Path::Leased | Path::Leased1500 => LeasePolicy::Require,
    };
    let job = job(workload, port, server.address());
    let figure = pair::run(&job, server, client, lease)
        .map_err(|failure| failure.to_string())?
        .ok_or_else(|| format!("{} printed no figure", job.label))?;
    Ok(match workload.probe.unit {
        // perftest's MB are 2^20 octets.
        Unit::GigabytesPerSecond => figure.value * 1_048_576.0 / 1e9,
        _ => figure.value,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::part::Part;
    use crate::workloads::WORKLOADS;

    fn value(argv: &[String], flag: &str) -> String {
        let at = argv.iter().position(|argument| argument == flag).unwrap();
        argv[at + 1].clone()
    }

    #[test]
    fn jobs_have_the_same_iterations_and_flags_at_both_ends() {
        for workload in WORKLOADS {
            let job = job(workload, 1, "h");
            for flag in ["-n", "-s", "-p"] {
                assert_eq!(value(&job.server, flag), value(&job.client, flag));
            }
            assert_eq!(value(&job.client, "-n"), iterations(workload).to_string());
        }
    }

    #[test]
    fn sweep_moves_as_many_messages_over_any_number_of_queue_pairs() {
        let sweep = WORKLOADS.iter().filter(|w| w.part == Part::Qps);
        for workload in sweep {
            let total = iterations(workload) * flag(workload, "-q").unwrap();
            assert_eq!(total, STREAM_MESSAGES);
        }
    }
}
