//! rdma-core's pyverbs tests over one host: none fails, and what is skipped is what
//! doc/conformance.md says, for the reason that it says.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::Lease;
use urdma_harness::process::Process;
use urdma_tests::{alone, OneHost};

const RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pyverbs/run.py");
const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../doc/conformance.md");
/// Debian's Python, for which pyverbs is built; there may be others before it in the path.
const PYTHON: &str = "/usr/bin/python3";
/// The suite takes some seconds, and three minutes were seen on a machine with ten times as much to
/// do as it can.
const LIMIT: Duration = Duration::from_secs(900);
/// Huge pages of 2 MB that its tests use at the same time.
const HUGEPAGES: u64 = 8;
/// What the lines of the list begin with, in doc/conformance.md: the reason, then the tests.
const BULLET: &str = "- `";

/// Reasons with the tests that were skipped for them.
type Skips = BTreeMap<String, Vec<String>>;

/// The reasons that depend on the machine and not on the device are made alike.
fn reason(said: &str) -> String {
    if said.contains("/dev/dri/") || said.contains("cuda-python") {
        "no GPU".to_owned()
    } else {
        said.to_owned()
    }
}

/// The list as doc/conformance.md has it.
fn listed() -> Skips {
    let text = std::fs::read_to_string(LIST).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(BULLET));
    lines
        .filter_map(|line| line.split_once("`: "))
        .map(|(reason, tests)| {
            let tests = tests.split(", ").map(ToOwned::to_owned).collect();
            (reason.to_owned(), tests)
        })
        .collect()
}

/// The list as it would be in doc/conformance.md.
fn written(skips: &Skips) -> String {
    skips
        .iter()
        .fold(String::new(), |mut text, (reason, tests)| {
            writeln!(text, "{BULLET}{reason}`: {}", tests.join(", ")).unwrap();
            text
        })
}

/// Names of tests that passed, of those that failed with why, and the skips.
fn read(results: &Path) -> (Vec<String>, Vec<String>, Skips) {
    let (mut passed, mut failed, mut skips) = (Vec::new(), Vec::new(), Skips::new());
    for line in std::fs::read_to_string(results).unwrap().lines() {
        let result: serde_json::Value = serde_json::from_str(line).unwrap();
        let name = result["test"].as_str().unwrap().to_owned();
        let why = result["reason"].as_str().unwrap();
        match result["outcome"].as_str().unwrap() {
            "passed" => passed.push(name),
            "skipped" => skips.entry(reason(why)).or_default().push(name),
            _ => failed.push(format!("{name}: {why}")),
        }
    }
    skips.values_mut().for_each(|tests| tests.sort());
    (passed, failed, skips)
}

#[test]
fn pyverbs_tests_pass_or_are_skipped_as_listed() {
    let _alone = alone();
    let _hugepages = Hugepages::reserve(HUGEPAGES).unwrap();
    let one = OneHost::up();
    let (folder, results) = (
        one.scratch.path().join("suite"),
        one.scratch.path().join("results"),
    );
    let (folder, results_text) = (folder.to_string_lossy(), results.to_string_lossy());
    let argv = [
        PYTHON,
        RUNNER,
        &folder,
        &results_text,
        "--dev",
        "urdma0",
        "--port",
        "1",
        "--gid",
        "1",
    ];
    let mut command = one.host.run(Lease::Never, &argv).unwrap();
    let ended = Process::run(&mut command, LIMIT).unwrap();
    let (passed, failed, skips) = read(&results);
    assert!(
        failed.is_empty(),
        "{}\n{}",
        failed.join("\n"),
        ended.describe()
    );
    assert!(ended.succeeded(), "{}", ended.describe());
    assert!(
        skips == listed(),
        "{} passed; doc/conformance.md has another list of skipped tests than\n{}",
        passed.len(),
        written(&skips)
    );
    let summary = format!(
        "{} pass, none fails, {} are skipped",
        passed.len(),
        skips.values().map(Vec::len).sum::<usize>()
    );
    let text = std::fs::read_to_string(LIST).unwrap();
    assert!(
        text.contains(&summary),
        "doc/conformance.md does not say: {summary}"
    );
    one.down();
}
