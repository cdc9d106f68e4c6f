//! `make perf`: measures urdma next to limits and peers, prints the table, writes JSON and plots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use urdma_harness::Failure;
use urdma_perf::part::Part;
use urdma_perf::plan::Plan;
use urdma_perf::report::{machine, Report};
use urdma_perf::samples::NOT_MEASURED;
use urdma_perf::{lines, lossy, plot, rows};

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
    let mut plan = Plan::new(&arguments.only)?;
    plan.simulate();
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        plan.round(round);
    }
    let mut rows = rows::evaluate(plan.samples());
    if !arguments.only.is_empty() {
        rows.retain(|row| row.why_not() != Some(NOT_MEASURED));
    }
    let loss = lossy::charts(plan.samples());
    let report = Report {
        machine: machine(),
        rounds: arguments.rounds.into(),
        rows: &rows,
        loss: &loss,
        samples: plan.samples(),
    };
    println!("\n{report}");
    write(&arguments.out, &report)
}

fn write(directory: &Path, report: &Report<'_>) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    let json =
        serde_json::to_string_pretty(report).map_err(|error| Failure::new(error.to_string()))?;
    let (json_path, svg_path) = (directory.join("perf.json"), directory.join("perf.svg"));
    fs::write(&json_path, json)?;
    let subtitle = format!("{}; medians of {} rounds", report.machine, report.rounds);
    fs::write(&svg_path, plot::svg(report.samples, &subtitle))?;
    println!("written: {}, {}", json_path.display(), svg_path.display());
    if !report.loss.is_empty() {
        let loss_path = directory.join("loss.svg");
        fs::write(&loss_path, lines::svg(report.loss, &subtitle))?;
        println!("written: {}", loss_path.display());
    }
    Ok(())
}
