//! rdma-core's pyverbs tests on one host: none fails, and the skipped ones and their reasons are
//! those of doc/conformance.md, which has a section for each version of the suite.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::Process;
use urdma_tests::{alone, OneHost};

const RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pyverbs/run.py");
const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../doc/conformance.md");
/// Debian's Python, for which pyverbs is built; others may precede it in the path.
const PYTHON: &str = "/usr/bin/python3";
/// The suite takes some seconds; three minutes were seen on a machine with tenfold load.
const LIMIT: Duration = Duration::from_secs(900);
/// Hugepages of 2 MB that the tests use at the same time.
const HUGEPAGES: u64 = 8;
/// The beginning of the heading of a section in doc/conformance.md; the version follows.
const HEADING: &str = "### `python3-pyverbs` ";
/// The beginning of each item of the list in doc/conformance.md: the reason, then the tests.
const BULLET: &str = "- `";
/// Columns of a line of the list at most; continuation lines are indented by two.
const COLUMNS: usize = 100;

/// Reasons, with the tests that were skipped for them.
type Skips = BTreeMap<String, Vec<String>>;

/// Normalizes reasons that depend on the machine and not on the device.
fn reason(said: &str) -> String {
    if said.contains("/dev/dri/") || said.contains("cuda-python") {
        "no GPU".to_owned()
    } else {
        said.to_owned()
    }
}

/// The version of the installed suite, without Debian's revision.
fn version() -> String {
    let query = ["-W", "-f", "${source:Upstream-Version}", "python3-pyverbs"];
    let said = Command::new("dpkg-query").args(query).output().unwrap();
    assert!(said.status.success(), "python3-pyverbs is not installed");
    String::from_utf8(said.stdout).unwrap()
}

/// The sections of a page, by version.
fn sections(page: &str) -> BTreeMap<&str, &str> {
    let starts = page.match_indices(HEADING);
    starts
        .map(|(start, _)| {
            let text = &page[start + HEADING.len()..];
            let text = text.split_once("\n##").map_or(text, |(section, _)| section);
            text.split_once('\n').unwrap()
        })
        .collect()
}

/// The list in a section in the format of doc/conformance.md.
fn listed(section: &str) -> Skips {
    let joined = section.replace("\n  ", " ");
    let items = joined.lines().filter_map(|line| line.strip_prefix(BULLET));
    items
        .filter_map(|line| line.split_once("`: "))
        .map(|(reason, tests)| {
            let tests = tests.split(", ").map(ToOwned::to_owned).collect();
            (reason.to_owned(), tests)
        })
        .collect()
}

/// The list in the format of doc/conformance.md.
fn written(skips: &Skips) -> String {
    let mut text = String::new();
    for (reason, tests) in skips {
        let mut line = format!("{BULLET}{reason}`:");
        for (index, test) in tests.iter().enumerate() {
            let comma = if index + 1 < tests.len() { "," } else { "" };
            if line.len() + 1 + test.len() + comma.len() > COLUMNS {
                writeln!(text, "{line}").unwrap();
                " ".clone_into(&mut line);
            }
            write!(line, " {test}{comma}").unwrap();
        }
        writeln!(text, "{line}").unwrap();
    }
    text
}

/// The tests that passed, those that failed with the reason, and the skipped ones.
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
fn lists_of_conformance_page_read_and_written_are_the_same() {
    let page = std::fs::read_to_string(LIST).unwrap();
    let sections = sections(&page);
    assert!(sections.len() > 1);
    for (version, section) in sections {
        let text = written(&listed(section));
        assert!(!text.is_empty(), "{version}");
        assert!(section.contains(&text), "{version}: the page lacks\n{text}");
    }
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
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut command, LIMIT).unwrap();
    let (passed, failed, skips) = read(&results);
    assert!(
        failed.is_empty(),
        "{}\n{}",
        failed.join("\n"),
        ended.describe()
    );
    assert!(ended.succeeded(), "{}", ended.describe());
    let summary = format!(
        "{} pass, none fails, {} are skipped",
        passed.len(),
        skips.values().map(Vec::len).sum::<usize>()
    );
    let page = std::fs::read_to_string(LIST).unwrap();
    let version = version();
    let section = sections(&page).remove(version.as_str()).unwrap_or_default();
    assert!(
        section.contains(&summary) && skips == listed(section),
        "the section of doc/conformance.md about version {version} should say: {summary}\n{}",
        written(&skips)
    );
    one.down();
}
