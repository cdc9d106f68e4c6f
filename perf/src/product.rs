//! Debian's perftest through `urdma run`, as a user would call it.

use urdma_harness::instance::{Instance, Lease};
use urdma_harness::pair;
use urdma_harness::programs::{self, Job};

use crate::samples::Sample;

/// How often the operation is repeated: enough for a typical value, few enough where four processes share two cores.
const ITERATIONS: u32 = 20_000;
const ITERATIONS_FORWARDED: u32 = 4_000;

/// `job` with another number of iterations than the catalogue's.
fn with_iterations(mut job: Job, iterations: u32) -> Job {
    for argv in [&mut job.server, &mut job.client] {
        if let Some(at) = argv.iter().position(|argument| argument == "-n") {
            if let Some(value) = argv.get_mut(at + 1) {
                *value = iterations.to_string();
            }
        }
    }
    job
}

fn run(job: Job, server: &Instance, client: &Instance, lease: Lease) -> Sample {
    let is_forwarded = lease == Lease::Never && server.run_dir() != client.run_dir();
    let iterations = if is_forwarded {
        ITERATIONS_FORWARDED
    } else {
        ITERATIONS
    };
    let job = with_iterations(job, iterations);
    pair::run(&job, server, client, lease)
        .map_err(|failure| failure.to_string())?
        .map(|figure| figure.value)
        .ok_or_else(|| format!("{} printed no figure", job.label))
}

/// Typical latency of `tool`, one way, in microseconds.
///
/// # Errors
/// What went wrong with the program.
pub fn latency(
    tool: &str,
    octets: u32,
    port: u16,
    (server, client): (&Instance, &Instance),
    lease: Lease,
) -> Sample {
    let job = programs::perftest(tool, octets, false, port, server.address());
    run(job, server, client, lease)
}

/// Average bandwidth of `tool`, GB/s.
///
/// # Errors
/// What went wrong with the program.
pub fn bandwidth(
    tool: &str,
    octets: u32,
    port: u16,
    (server, client): (&Instance, &Instance),
    lease: Lease,
) -> Sample {
    let job = programs::perftest(tool, octets, false, port, server.address());
    // perftest's MB are 2^20 octets.
    run(job, server, client, lease).map(|mebioctets| mebioctets * 1_048_576.0 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_replaced_on_both_sides() {
        let job = with_iterations(programs::perftest("ib_send_lat", 64, false, 1, "h"), 77);
        for argv in [&job.server, &job.client] {
            let at = argv.iter().position(|argument| argument == "-n");
            assert_eq!(
                at.and_then(|at| argv.get(at + 1)).map(String::as_str),
                Some("77")
            );
        }
    }
}
