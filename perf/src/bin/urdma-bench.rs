//! `urdma bench`: sweeps on the user's machine, with a progress bar, a table, JSON and plots.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use urdma_harness::instance::{Instance, Queues, Scratch, TwoHosts};
use urdma_harness::Failure;
use urdma_perf::bench::{self, Arguments, Point, Sweep};
use urdma_perf::lines;
use urdma_perf::report::machine;
use urdma_perf::samples::Samples;

const BAR: usize = 30;
const PERFTEST: &str = "ib_write_bw";
/// MTU of the two instances between which packets are lost.
const MTU: u16 = 1500;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("urdma bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the sweeps; returns whether every point could be measured.
fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let sweeps = match arguments.only.as_slice() {
        [] => &Sweep::ALL,
        some => some,
    };
    if !is_installed(PERFTEST) {
        return Err(Failure::new(
            "the sweeps use Debian's perftest, which is not installed: apt-get install perftest",
        ));
    }
    let mut points = measure(sweeps)?;
    if sweeps.contains(&Sweep::Loss) {
        points.extend(measure_loss()?);
    }
    println!("{}{}", machine(), bench::table(&points));
    write(&arguments.out, &points)?;
    Ok(points.iter().all(|point| point.value.is_ok()))
}

fn measure(sweeps: &[Sweep]) -> Result<Vec<Point>, Failure> {
    let steps = bench::steps(sweeps);
    if steps.is_empty() {
        return Ok(Vec::new());
    }
    let scratch = Scratch::new("bench")?;
    let host = Instance::up(scratch.path(), "bench", "127.0.0.1", "")?;
    let mut points = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        progress(number, steps.len(), &step.label());
        points.push(step.measure(&host, bench::port(number)));
    }
    progress(steps.len(), steps.len(), "");
    eprintln!();
    host.down()?;
    Ok(points)
}

/// The loss sweep, between two instances.
fn measure_loss() -> Result<Vec<Point>, Failure> {
    let scratch = Scratch::new("bench")?;
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, MTU)?;
    let sweep = bench::loss_sweep();
    let mut samples = Samples::default();
    for (number, point) in sweep.iter().enumerate() {
        progress(number, sweep.len(), point.probe.name);
        let sample = point.measure(&hosts.a, &hosts.b, bench::port(number));
        samples.add(point.probe, sample);
    }
    progress(sweep.len(), sweep.len(), "");
    eprintln!();
    hosts.down()?;
    Ok(bench::loss_points(&samples))
}

/// Draws a bar over the last one on a terminal, and prints a line each elsewhere.
fn progress(done: usize, of: usize, what: &str) {
    let filled = BAR * done / of.max(1);
    let bar = format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR - filled));
    let mut out = std::io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r{bar} {done:3} of {of} {what:36}");
        let _ = out.flush();
    } else {
        let _ = writeln!(out, "{bar} {done:3} of {of} {what}");
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn write(directory: &Path, points: &[Point]) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    let (json_path, svg_path) = (directory.join("bench.json"), directory.join("bench.svg"));
    let report = serde_json::json!({ "machine": machine(), "points": points });
    fs::write(&json_path, format!("{report:#}\n"))?;
    fs::write(&svg_path, lines::svg(&bench::charts(points), &machine())?)?;
    println!("written: {}, {}", json_path.display(), svg_path.display());
    Ok(())
}
