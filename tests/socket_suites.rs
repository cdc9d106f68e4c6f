//! Tests of other projects, by TCP and with connections that are offered rings at once: the same
//! pass (doc/sockets.md).
//!
//! `make test-all` installs or builds them and runs these tests.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use urdma_harness::process::Process;
use urdma_tests::rings::{at_the_end, client, from_call, reasons};
use urdma_tests::{alone, OneHost};

/// Longest time of a suite.
const LIMIT: Duration = Duration::from_secs(400);
/// Debian's, whose tests are installed.
const PYTHON: &str = "/usr/bin/python3";
const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings/suite.py");
/// Where `make test-all` builds libuv's tests.
const LIBUV: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../target/libuv/build/uv_run_tests_a"
);
/// Modules of Python's package test, half of the tests of each that pass on Debian 12 by TCP, and
/// half of the octets that rings carry. The octets of test_wsgiref are one stream, which its sender
/// fills from its begin: it stays with TCP in some of the runs.
const MODULES: [(&str, usize, u64); 21] = [
    ("test_socket", 304, 38686280),
    ("test_ssl", 84, 172400),
    ("test_selectors", 37, 0),
    ("test_epoll", 5, 0),
    ("test_poll", 3, 0),
    ("test_select", 3, 0),
    ("test_socketserver", 13, 8388628),
    ("test_httplib", 57, 67084622),
    ("test_httpservers", 29, 6053),
    ("test_ftplib", 47, 360955),
    ("test_urllib2_localnet", 11, 46339),
    ("test_asyncore", 46, 2532),
    ("test_asynchat", 12, 658),
    ("test_smtplib", 41, 5473),
    ("test_poplib", 35, 91899),
    ("test_imaplib", 47, 571147),
    ("test_telnetlib", 9, 0),
    ("test_xmlrpc", 46, 7409),
    ("test_wsgiref", 18, 0),
    ("test_docxmlrpc", 4, 2414),
    ("test_asyncio", 1152, 128047228),
];
/// Where `make test-all` unpacks the sources of redis and Ruby, whose programs are Debian's.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/suites");
/// Files of tests of redis.
const REDIS_UNITS: [&str; 8] = [
    "unit/pubsub",
    "unit/multi",
    "unit/querybuf",
    "unit/limits",
    "unit/protocol",
    "unit/obuf-limits",
    "integration/redis-cli",
    "integration/replication-2",
];
/// How often tests are repeated that have passed in one way only: some depend on the time that
/// something takes.
const REPETITIONS: usize = 3;

/// `passed`, `failed` or `skipped`, by the name of the test.
type Outcomes = BTreeMap<String, String>;

/// A suite whose tests can be run by TCP and over rings.
trait Suite {
    /// Runs all tests, or those that are named, with a command that begins with `words`.
    fn run(&self, names: &[String], start: &dyn Fn(&[&str]) -> Command) -> Outcomes;
}

/// Modules of Python's package test.
struct Python<'a> {
    module: &'a str,
    dir: PathBuf,
}

impl Suite for Python<'_> {
    fn run(&self, names: &[String], start: &dyn Fn(&[&str]) -> Command) -> Outcomes {
        let file = self.dir.join("outcomes");
        let path = file.display().to_string();
        let mut words = vec![PYTHON, SUITE, &path];
        let all = format!("test.{}", self.module);
        words.extend(names.iter().map(String::as_str));
        if names.is_empty() {
            words.push(&all);
        }
        let mut command = start(&words);
        // Some tests leave files.
        command.current_dir(&self.dir);
        let ended = Process::start(&mut command).unwrap().wait(LIMIT).unwrap();
        assert!(ended.succeeded(), "{}: {}", self.module, ended.describe());
        let text = fs::read_to_string(&file).unwrap();
        let outcomes = text.lines().map(|line| line.split_once(' ').unwrap());
        outcomes
            .map(|(outcome, name)| (name.to_owned(), outcome.to_owned()))
            .collect()
    }
}

/// libuv's tests.
struct Libuv;

impl Suite for Libuv {
    fn run(&self, names: &[String], start: &dyn Fn(&[&str]) -> Command) -> Outcomes {
        let all = [String::new()];
        let names = if names.is_empty() { &all } else { names };
        let mut outcomes = Outcomes::new();
        for name in names {
            let words = [LIBUV, name];
            let used = if name.is_empty() { 1 } else { 2 };
            let mut command = start(&words[..used]);
            command.env("UV_RUN_AS_ROOT", "1");
            let ended = Process::start(&mut command).unwrap().wait(LIMIT).unwrap();
            outcomes.extend(ended.output.lines().filter_map(of_tap));
        }
        outcomes
    }
}

/// The tests of redis, by its own client in Tcl.
struct Redis;

impl Suite for Redis {
    fn run(&self, names: &[String], start: &dyn Fn(&[&str]) -> Command) -> Outcomes {
        let mut words = vec!["tclsh", "tests/test_helper.tcl", "--clients", "1"];
        words.extend(REDIS_UNITS.iter().flat_map(|unit| ["--single", *unit]));
        words.extend(names.iter().flat_map(|name| ["--only", name]));
        let output = run_in("redis", start(&words));
        output.lines().filter_map(of_redis).collect()
    }
}

/// The test and the outcome of a line like `[ok]: NAME (4 ms)`, with colours.
fn of_redis(line: &str) -> Option<(String, String)> {
    let (outcome, rest) = line.split_once("]: ")?;
    let outcome = match outcome {
        _ if outcome.contains("ok") => "passed",
        _ if outcome.contains("err") => "failed",
        _ => return None,
    };
    let name = rest.rsplit_once(" (").map_or(rest, |(name, _)| name);
    Some((name.to_owned(), outcome.to_owned()))
}

/// Ruby's tests of its sockets.
struct Ruby;

impl Suite for Ruby {
    fn run(&self, names: &[String], start: &dyn Fn(&[&str]) -> Command) -> Outcomes {
        let mut words = vec!["ruby", "-Itool/lib", "test/runner.rb", "-v", "test/socket"];
        let only: Vec<String> = names.iter().map(|name| format!("--name={name}")).collect();
        words.extend(only.iter().map(String::as_str));
        of_ruby(&run_in("ruby3.1", start(&words)))
    }
}

/// The outcomes: a line like `[ 1/9] NAME = 0.01 s` for each test, and below `Failure:`, `Error:`
/// or `Skipped:` the names of those that have not passed.
fn of_ruby(output: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut other = None;
    for line in output.lines() {
        let named = line
            .split_once("] ")
            .and_then(|(_, rest)| rest.split_once(" = "));
        if let (true, Some((name, _))) = (line.starts_with('['), named) {
            outcomes.insert(name.to_owned(), "passed".to_owned());
        } else if let Some(outcome) = other.take() {
            let name = line.split([':', ' ']).next().unwrap_or_default();
            outcomes.insert(name.to_owned(), outcome);
        }
        other = match line.split_once(") ") {
            Some((_, "Failure:" | "Error:")) => Some("failed".to_owned()),
            Some((_, "Skipped:")) => Some("skipped".to_owned()),
            _ => None,
        };
    }
    outcomes
}

/// What a command prints that runs in the source of a package.
fn run_in(package: &str, mut command: Command) -> String {
    let dir = Path::new(SOURCES).join(package);
    let is_there = dir.join("tests").exists() || dir.join("test").exists();
    assert!(is_there, "fetch it: scripts/suites.sh target/suites");
    command.current_dir(dir);
    let ended = Process::start(&mut command).unwrap().wait(LIMIT).unwrap();
    ended.output
}

/// The test and the outcome of a line of the Test Anything Protocol.
fn of_tap(line: &str) -> Option<(String, String)> {
    let (is_ok, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok ")?),
    };
    let (_, name) = rest.split_once(" - ")?;
    let (name, directive) = name.split_once(" # ").unwrap_or((name, ""));
    let outcome = match (is_ok, directive.starts_with("SKIP")) {
        (false, _) => "failed",
        (true, true) => "skipped",
        (true, false) => "passed",
    };
    Some((name.trim().to_owned(), outcome.to_owned()))
}

fn plain(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The tests that have different outcomes.
fn differing(one: &Outcomes, other: &Outcomes) -> Vec<String> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differs = |name: &&&String| one.get(**name) != other.get(**name);
    names
        .iter()
        .filter(differs)
        .map(|name| (*name).clone())
        .collect()
}

/// Runs a suite by TCP and over rings: its tests pass, fail or are skipped alike, at least `passed`
/// pass, and rings carry `octets`.
fn compare(one: &OneHost, suite: &dyn Suite, (passed, octets): (usize, u64)) {
    let before = at_the_end(one);
    let over_rings = |words: &[&str]| from_call(one, 0, words);
    let mut runs = [suite.run(&[], &plain), suite.run(&[], &over_rings)];
    let after = at_the_end(one);
    let carried = after.ring_octets - before.ring_octets;
    let all = runs[0].values();
    let count = all.filter(|outcome| *outcome == "passed").count();
    println!(
        "{count} passed; {} connections, {carried} octets over rings; {:?}",
        after.joined - before.joined,
        reasons(&client(one))
    );
    let mut names = differing(&runs[0], &runs[1]);
    for _ in 0..REPETITIONS {
        if names.is_empty() {
            break;
        }
        println!("again: {names:?}");
        for name in &names {
            let name = std::slice::from_ref(name);
            runs[0].extend(suite.run(name, &plain));
            runs[1].extend(suite.run(name, &over_rings));
        }
        names = differing(&runs[0], &runs[1]);
    }
    let outcomes = |name: &String| (name.clone(), runs[0].get(name), runs[1].get(name));
    let names: Vec<_> = names.iter().map(outcomes).collect();
    assert!(names.is_empty(), "by TCP, over rings: {names:#?}");
    assert!(count >= passed, "{count}");
    assert!(carried >= octets, "{carried}: {:?}", reasons(&client(one)));
}

#[test]
#[ignore = "make test-all"]
fn tests_of_python_pass_over_rings() {
    let _alone = alone();
    for (module, passed, octets) in MODULES {
        println!("{module}");
        let one = OneHost::up();
        let dir = one.scratch.path().to_owned();
        compare(&one, &Python { module, dir }, (passed, octets));
        one.down();
    }
}

#[test]
#[ignore = "make test-all"]
fn tests_of_libuv_pass_over_rings() {
    let _alone = alone();
    let is_built = Path::new(LIBUV).exists();
    assert!(is_built, "build it: scripts/libuv.sh target/libuv");
    let one = OneHost::up();
    compare(&one, &Libuv, (198, 80_000_000));
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn tests_of_redis_pass_over_rings() {
    let _alone = alone();
    let one = OneHost::up();
    compare(&one, &Redis, (84, 5_700_000));
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn tests_of_ruby_pass_over_rings() {
    let _alone = alone();
    let one = OneHost::up();
    compare(&one, &Ruby, (88, 32_000));
    one.down();
}
