//! `urdma bench`: its message without perftest, and the files that it writes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use urdma_harness::instance::{urdma, Scratch};
use urdma_harness::process::Process;
use urdma_tests::SHORT;

const LIMIT: Duration = Duration::from_secs(900);

#[test]
fn bench_without_perftest_says_what_to_install() {
    let mut command = urdma().unwrap();
    command
        .args(["bench", "--only", "latency"])
        .env("PATH", "/nonexistent");
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(!ended.succeeded());
    assert!(
        ended.output.contains("apt-get install perftest"),
        "{}",
        ended.output
    );
}

#[test]
fn help_and_version_name_the_command_that_was_typed() {
    for (option, said) in [("--help", "Usage: urdma bench "), ("-V", "urdma bench ")] {
        let mut command = urdma().unwrap();
        let ended = Process::run(command.args(["bench", option]), SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        assert!(ended.output.contains(said), "{}", ended.output);
    }
}

#[test]
fn bench_writes_table_json_and_plot() {
    let scratch = Scratch::new("test").unwrap();
    let mut command = urdma().unwrap();
    command
        .args(["bench", "--only", "qps", "--out"])
        .arg(scratch.path());
    let ended = Process::run(&mut command, LIMIT).unwrap();
    // On a busy machine a point may fail; it is reported, and the others are present.
    assert!(ended.output.contains("64-octet writes"), "{}", ended.output);
    let json = fs::read(scratch.path().join("bench.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(report["points"].as_array().unwrap().len(), 5, "{report}");
    let svg = fs::read_to_string(scratch.path().join("bench.svg")).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
}
