//! `make perf`: measures urdma next to limits and peers, prints the table, writes JSON and plots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use urdma_harness::scheduler::WithoutAutogroups;
use urdma_harness::Failure;
use urdma_perf::connections;
use urdma_perf::lines;
use urdma_perf::lossy;
use urdma_perf::part::Part;
use urdma_perf::plan::Plan;
use urdma_perf::plot::PICTURES;
use urdma_perf::processors::Kind;
use urdma_perf::report::{machine, Report, Saved, Section};
use urdma_perf::samples::Samples;
use urdma_perf::stream_sweep;

/// Measures urdma next to raw limits of this machine and to its peers
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Number of rounds, of whose values the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Parts to measure [default: all]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Directory for perf.json and the plots
    #[arg(long, default_value = "perf/out")]
    out: PathBuf,
    /// Measure nothing; draw the plots of this perf.json again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rounds", "only"])]
    redraw: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("urdma-perf: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.redraw {
        Some(report) => redraw(report, &arguments.out),
        None => measure(arguments),
    }
}

fn measure(arguments: &Arguments) -> Result<(), Failure> {
    // Programs that poll keep those of other sessions from running otherwise.
    let _without = WithoutAutogroups::set();
    let mut plan = Plan::new(&arguments.only)?;
    plan.once();
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        plan.round(round);
    }
    let samples = plan.samples();
    let is_whole = arguments.only.is_empty();
    // All rows of the kind that was seen more often, those that were measured of the other.
    let sections = samples.kinds().into_iter().enumerate();
    let sections = sections
        .map(|(at, kind)| Section::new(kind, samples.of(kind), is_whole && at == 0))
        .collect();
    let report = Report {
        machine: machine(),
        rounds: arguments.rounds.into(),
        sections,
    };
    println!("\n{report}");
    write(&arguments.out, &report)
}

fn write(directory: &Path, report: &Report<'_>) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    let json =
        serde_json::to_string_pretty(report).map_err(|error| Failure::new(error.to_string()))?;
    let path = directory.join("perf.json");
    fs::write(&path, json)?;
    println!("written: {}", path.display());
    match report.sections.first() {
        Some(section) => draw(directory, &report.machine, section.kind, section.samples),
        None => Ok(()),
    }
}

/// Draws the plots of a report that an earlier call has written.
fn redraw(report: &Path, directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    let saved: Saved = serde_json::from_slice(&fs::read(report)?)
        .map_err(|error| Failure::new(format!("{}: {error}", report.display())))?;
    match saved.sections.first() {
        Some(section) => draw(directory, &saved.machine, section.kind, &section.samples),
        None => Err(Failure::new(format!("{}: no values", report.display()))),
    }
}

/// Writes the plots for which there are values, of the kind of processors that was seen more often.
fn draw(directory: &Path, machine: &str, kind: Kind, samples: &Samples) -> Result<(), Failure> {
    let write = |file: &str, svg: String| -> Result<(), Failure> {
        let path = directory.join(file);
        fs::write(&path, svg)?;
        println!("written: {}", path.display());
        Ok(())
    };
    let machine = format!("{machine}, {kind}");
    for picture in PICTURES {
        let rounds = picture.rounds(samples);
        if rounds > 0 {
            let svg = picture.svg(samples, &subtitle(&machine, rounds))?;
            write(picture.file, svg)?;
        }
    }
    let all = [
        (
            "connections.svg",
            connections::charts(samples),
            connections::rounds(samples),
        ),
        ("loss.svg", lossy::charts(samples), lossy::rounds(samples)),
        (
            "streams.svg",
            stream_sweep::charts(samples),
            stream_sweep::rounds(samples),
        ),
    ];
    for (file, charts, rounds) in all.iter().filter(|(_, charts, _)| !charts.is_empty()) {
        write(file, lines::svg(charts, &subtitle(&machine, *rounds))?)?;
    }
    Ok(())
}

fn subtitle(machine: &str, rounds: usize) -> String {
    match rounds {
        1 => format!("{machine}; one round"),
        _ => format!("{machine}; medians of {rounds} rounds"),
    }
}
