//! Processor time of a process and all its threads, from the scheduler's accounts in nanoseconds.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use urdma_harness::instance::{Instance, Lease};
use urdma_harness::process::Process;

use crate::samples::Sample;

/// How long starting up may take.
const START_LIMIT: Duration = Duration::from_secs(10);
/// What happens right after the start is not idleness.
const SETTLE: Duration = Duration::from_millis(1500);
const WATCH: Duration = Duration::from_secs(3);
/// What `urdma-perf-idle` prints when it is about to wait.
pub const WAITING: &str = "waiting on the completion channel";

/// Nanoseconds that all threads of `pid` have run.
fn run_time_ns(pid: u32) -> Result<u64, String> {
    let threads =
        fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| format!("process {pid}: {e}"))?;
    let of_thread = |directory: &Path| -> Option<u64> {
        let line = fs::read_to_string(directory.join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse().ok()
    };
    Ok(threads
        .flatten()
        .filter_map(|thread| of_thread(&thread.path()))
        .sum())
}

/// What each process uses while nothing happens, per cent of one core.
///
/// # Errors
/// A process is gone.
pub fn idle(pids: &[u32]) -> Result<Vec<f64>, String> {
    sleep(SETTLE);
    let before = pids
        .iter()
        .map(|pid| run_time_ns(*pid))
        .collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    sleep(WATCH);
    let after = pids
        .iter()
        .map(|pid| run_time_ns(*pid))
        .collect::<Result<Vec<_>, _>>()?;
    let watched_ns = start.elapsed().as_secs_f64() * 1e9;
    let share =
        |(after, before): (&u64, &u64)| after.saturating_sub(*before) as f64 / watched_ns * 100.0;
    Ok(after.iter().zip(&before).map(share).collect())
}

/// A process that waits on a completion channel of `host`, and the host's urdmad.
///
/// # Errors
/// The application did not come so far.
pub fn application_and_daemon(host: &Instance, programs: &Path) -> (Sample, Sample) {
    let measure = || -> Result<Vec<f64>, String> {
        let text = |failure: urdma_harness::Failure| failure.to_string();
        let program = programs.join("urdma-perf-idle");
        let mut command: Command = host
            .run(Lease::Never, &[program.as_os_str()])
            .map_err(text)?;
        let mut application = Process::start(&mut command).map_err(text)?;
        application
            .wait_for_text(WAITING, START_LIMIT)
            .map_err(text)?;
        idle(&[application.id(), host.daemon_pid().map_err(text)?])
    };
    match measure().as_deref() {
        Ok([application, daemon]) => (Ok(*application), Ok(*daemon)),
        Ok(_) => (Err("not measured".into()), Err("not measured".into())),
        Err(reason) => (Err(reason.to_string()), Err(reason.to_string())),
    }
}

/// urdmad of `host` alone.
///
/// # Errors
/// It is gone.
pub fn daemon(host: &Instance) -> Sample {
    let pid = host.daemon_pid().map_err(|failure| failure.to_string())?;
    idle(&[pid])?
        .first()
        .copied()
        .ok_or_else(|| "not measured".into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn run_time_of_a_busy_process_grows() {
        let me = std::process::id();
        let (before, start) = (run_time_ns(me).unwrap(), Instant::now());
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        assert!(run_time_ns(me).unwrap() > before);
        assert!(run_time_ns(u32::MAX).is_err());
    }
}
