//! The cost of idle programs: processor time of all threads, from the scheduler's statistics in
//! nanoseconds, and resident memory.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::{processor_time, Process};

use crate::samples::{text, Sample};

/// Limit for the start of a program.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time between start and measurement. urdmad reaches its longest interval between two looks at a
/// quiet port after five seconds.
const SETTLE: Duration = Duration::from_secs(6);
const WATCH: Duration = Duration::from_secs(3);
/// The line that `urdma-perf-idle` prints before it waits.
pub const WAITING: &str = "waiting";
/// Argument of `urdma-perf-idle` for a process without a device.
pub const PLAIN: &str = "plain";
/// Number of queue pairs over which the memory of one is averaged.
const MANY: u32 = 1000;

/// Resident memory of `pid` in octets.
///
/// # Errors
/// The process has ended.
pub fn resident_octets(pid: u32) -> Result<f64, String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|e| format!("process {pid}: {e}"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kibioctets| kibioctets * 1024.0)
        .ok_or_else(|| format!("process {pid} has ended"))
}

/// Processor time of each idle process, in per cent of one core.
fn use_of_core(pids: &[u32]) -> Result<Vec<f64>, String> {
    let all = || pids.iter().map(|pid| processor_time(*pid).map_err(text));
    sleep(SETTLE);
    let before = all().collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    sleep(WATCH);
    let after = all().collect::<Result<Vec<_>, _>>()?;
    let watched_ns = start.elapsed().as_secs_f64() * 1e9;
    let share = |(after, before): (&Duration, &Duration)| {
        after.saturating_sub(*before).as_nanos() as f64 / watched_ns * 100.0
    };
    Ok(after.iter().zip(&before).map(share).collect())
}

fn start(mut command: Command) -> Result<Process, String> {
    let mut process = Process::start(&mut command).map_err(text)?;
    process.wait_for_text(WAITING, START_LIMIT).map_err(text)?;
    Ok(process)
}

/// Starts `urdma-perf-idle` with `queue_pairs` queue pairs on `host`, where it waits on its
/// completion channel.
fn attached(
    host: &Instance,
    lease: LeasePolicy,
    programs: &Path,
    queue_pairs: u32,
) -> Result<Process, String> {
    let program = programs.join("urdma-perf-idle").display().to_string();
    start(
        host.run(lease, &[program, queue_pairs.to_string()])
            .map_err(text)?,
    )
}

/// Processor time of an application that waits on a completion channel of `host`, and of the host's
/// urdmad.
///
/// # Errors
/// The application did not start or did not set up its queue pairs.
pub fn application_and_daemon(host: &Instance, programs: &Path) -> (Sample, Sample) {
    let measure = || -> Result<Vec<f64>, String> {
        let application = attached(host, LeasePolicy::Never, programs, 1)?;
        use_of_core(&[application.id(), host.daemon_pid().map_err(text)?])
    };
    match measure().as_deref() {
        Ok([application, daemon]) => (Ok(*application), Ok(*daemon)),
        Ok(_) => (Err("not measured".into()), Err("not measured".into())),
        Err(reason) => (Err(reason.to_string()), Err(reason.to_string())),
    }
}

/// Processor time of the urdmad of `host` without an application.
///
/// # Errors
/// urdmad has ended.
pub fn daemon(host: &Instance) -> Sample {
    let pid = host.daemon_pid().map_err(text)?;
    use_of_core(&[pid])?
        .first()
        .copied()
        .ok_or_else(|| "not measured".into())
}

/// Resident memory in MB of a process that has loaded libibverbs and found no device.
///
/// # Errors
/// The process did not start.
pub fn plain_memory(programs: &Path) -> Sample {
    let mut command = Command::new(programs.join("urdma-perf-idle"));
    command.arg(PLAIN);
    let process = start(command)?;
    resident_octets(process.id()).map(|octets| octets / 1e6)
}

/// Resident memory in MB of a process that waits on a completion channel of `host`.
///
/// # Errors
/// The application did not start or did not set up its queue pairs.
pub fn attached_memory(host: &Instance, lease: LeasePolicy, programs: &Path) -> Sample {
    let process = attached(host, lease, programs, 1)?;
    resident_octets(process.id()).map(|octets| octets / 1e6)
}

/// Resident memory in KB of an additional queue pair with one work request each way.
///
/// # Errors
/// The application did not start or did not set up its queue pairs.
pub fn queue_pair_memory(host: &Instance, programs: &Path) -> Sample {
    let memory = |queue_pairs| -> Sample {
        let process = attached(host, LeasePolicy::Never, programs, queue_pairs)?;
        resident_octets(process.id())
    };
    let (one, many) = (memory(1)?, memory(1 + MANY)?);
    Ok((many - one) / f64::from(MANY) / 1e3)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_resident() {
        let octets = resident_octets(std::process::id()).unwrap();
        assert!(octets > 100_000.0);
        assert!(resident_octets(u32::MAX).is_err());
    }
}
