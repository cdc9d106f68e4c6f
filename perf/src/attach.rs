//! The cost of opening the device: `ibv_devinfo` through urdma, next to the same program without a
//! device.

use std::process::Command;
use std::time::{Duration, Instant};

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::Process;

use crate::samples::Sample;

const LIMIT: Duration = Duration::from_secs(10);
const PROGRAM: &str = "ibv_devinfo";
/// The name that it prints for a device of urdma.
const DEVICE: &str = "urdma0";
/// The fastest of this many runs counts, since a run is short and other programs use the machine.
const RUNS: usize = 5;

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
        let start = Instant::now();
        let _without_device =
            Process::run(&mut Command::new(PROGRAM), LIMIT).map_err(|f| f.to_string())?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    })
}

/// Milliseconds of a run through `urdma run` on `host`.
///
/// # Errors
/// The program failed or did not find the device.
pub fn through_urdma(host: &Instance, lease: LeasePolicy) -> Sample {
    fastest(|| {
        let mut command = host.run(lease, &[PROGRAM]).map_err(|f| f.to_string())?;
        let start = Instant::now();
        let ended = Process::run(&mut command, LIMIT).map_err(|f| f.to_string())?;
        let elapsed = start.elapsed();
        if !ended.succeeded() || !ended.output.contains(DEVICE) {
            return Err(format!("{PROGRAM}: {}", ended.describe()));
        }
        Ok(elapsed.as_secs_f64() * 1e3)
    })
}
