//! The cost of opening the device: `ibv_devinfo` through urdma, next to the same program without a
//! device.

use std::process::Command;
use std::time::{Duration, Instant};

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::{Ended, Process};

use crate::samples::Sample;

const LIMIT: Duration = Duration::from_secs(10);
const PROGRAM: &str = "ibv_devinfo";
/// The name that it prints for a device of urdma.
const DEVICE: &str = "urdma0";
/// The fastest of this many runs counts, since a run is short and other programs use the machine.
const RUNS: usize = 5;

/// How often the end of a run is looked for.
const LOOK: Duration = Duration::from_micros(50);

/// Runs a program to its end, and measures how long that takes.
fn timed(command: &mut Command) -> Result<(Ended, Duration), String> {
    let start = Instant::now();
    let mut process = Process::start(command).map_err(|f| f.to_string())?;
    while process.is_running() && start.elapsed() < LIMIT {
        std::thread::sleep(LOOK);
    }
    let elapsed = start.elapsed();
    let ended = process.wait(LIMIT).map_err(|f| f.to_string())?;
    Ok((ended, elapsed))
}

fn fastest(mut run: impl FnMut() -> Sample) -> Sample {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        best = best.min(run()?);
    }
    Ok(best)
}

/// Milliseconds of a run without urdma, which finds no device.
///
/// # Errors
/// The program is not installed.
pub fn plain() -> Sample {
    fastest(|| {
        let (_without_device, elapsed) = timed(&mut Command::new(PROGRAM))?;
        Ok(elapsed.as_secs_f64() * 1e3)
    })
}

/// Milliseconds of a run through `urdma run` on `host`.
///
/// # Errors
/// The program failed or did not find the device.
pub fn through_urdma(host: &Instance, lease: LeasePolicy) -> Sample {
    fastest(|| {
        let mut command = host.run(lease, &[PROGRAM]).map_err(|f| f.to_string())?;
        let (ended, elapsed) = timed(&mut command)?;
        if !ended.succeeded() || !ended.output.contains(DEVICE) {
            return Err(format!("{PROGRAM}: {}", ended.describe()));
        }
        Ok(elapsed.as_secs_f64() * 1e3)
    })
}
