//! RDMA crates from crates.io: their own tests and examples, on one host.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::Process;
use urdma_harness::programs::{words, Job, Ready};
use urdma_tests::{alone, ports, run_all, OneHost};

/// How long building a crate and its dependencies may take.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
const LIMIT: Duration = Duration::from_secs(300);
/// The directory of the sources and build results.
const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/crates");

/// A crate of crates.io.
struct Crate {
    name: &'static str,
    version: &'static str,
}

const IBVERBS: Crate = Crate {
    name: "ibverbs",
    version: "0.9.2",
};
const SIDEWAY: Crate = Crate {
    name: "sideway",
    version: "0.4.3",
};
const ASYNC_RDMA: Crate = Crate {
    name: "async-rdma",
    version: "0.5.0",
};

/// cargo for a package of `DIRECTORY`, without the environment of the cargo that runs this test.
fn cargo(package: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments);
    with_cargos_environment(&mut command, package);
    command
}

/// Prepares a command that runs cargo.
fn with_cargos_environment(command: &mut Command, package: &Path) {
    command
        .current_dir(package)
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("CARGO_TARGET_DIR", format!("{DIRECTORY}/target"))
        // Newer compilers find more with the lints that crates deny.
        .env("RUSTFLAGS", "--cap-lints=warn");
}

/// Runs a command and returns its output.
fn run(command: &mut Command, limit: Duration) -> String {
    let ended = Process::run(command, limit).unwrap();
    assert!(ended.succeeded(), "{command:?}: {}", ended.describe());
    ended.output
}

impl Crate {
    /// The crate's sources, a copy of what cargo fetches from the registry.
    fn sources(&self) -> PathBuf {
        let name = format!("{}-{}", self.name, self.version);
        let copy = Path::new(DIRECTORY).join(&name);
        if !copy.exists() {
            std::fs::create_dir_all(DIRECTORY).unwrap();
            let package = format!("{}@{}", self.name, self.version);
            run(&mut cargo(Path::new(DIRECTORY), &["info", &package]), LIMIT);
            let fetched = fetched(&name);
            run(Command::new("cp").arg("-r").args([&fetched, &copy]), LIMIT);
        }
        copy
    }

    /// Builds the tests that `targets` name and runs them over urdma, except those in `skipped`;
    /// fails unless exactly `passes` tests pass and no others exist.
    fn expect_tests_to_pass(&self, targets: &str, skipped: &[&str], passes: usize) {
        let _alone = alone();
        let sources = self.sources();
        let targets = words(targets);
        let mut argv: Vec<&str> = vec!["cargo", "test", "--locked"];
        argv.extend(targets.iter().map(String::as_str));
        let build = [&argv[1..], &["--no-run"]].concat();
        run(&mut cargo(&sources, &build), BUILD_LIMIT);
        let one = OneHost::up();
        argv.push("--");
        argv.extend(skipped.iter().flat_map(|name| ["--skip", name]));
        let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
        with_cargos_environment(&mut command, &sources);
        let printed = run(&mut command, LIMIT);
        assert_eq!(passed(&printed), passes, "{printed}");
        one.down();
    }

    /// The program of an example, built.
    fn example(&self, name: &str) -> String {
        let build = ["build", "--locked", "--example", name];
        run(&mut cargo(&self.sources(), &build), BUILD_LIMIT);
        format!("{DIRECTORY}/target/debug/examples/{name}")
    }
}

/// The directory of a crate's sources in cargo's cache, which has one directory per registry.
fn fetched(name: &str) -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo"),
        PathBuf::from,
    );
    std::fs::read_dir(home.join("registry/src"))
        .unwrap()
        .map(|registry| registry.unwrap().path().join(name))
        .find(|sources| sources.is_dir())
        .unwrap_or_else(|| panic!("cargo has not fetched {name}"))
}

/// The number of passed tests, from the summaries of all test programs of a crate.
fn passed(printed: &str) -> usize {
    printed
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|summary| summary.split(' ').next()?.parse::<usize>().ok())
        .sum()
}

#[test]
#[ignore = "make test-all"]
fn ibverbs_passes() {
    IBVERBS.expect_tests_to_pass("--lib", &[], 2);
    let _alone = alone();
    let one = OneHost::up();
    let argv = [IBVERBS.example("loopback")];
    let printed = run(&mut one.host.run(LeasePolicy::Never, &argv).unwrap(), LIMIT);
    assert!(printed.contains("received") && printed.contains("sent"));
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn sideway_passes() {
    SIDEWAY.expect_tests_to_pass(
        "--lib --test test_atomic --test test_cq --test test_mr_and_cq \
         --test test_post_send --test test_qp",
        &[],
        68,
    );
    let _alone = alone();
    let one = OneHost::up();
    let jobs = ["rc_pingpong", "rc_pingpong_split"].map(|name| {
        let port = ports();
        let server = format!("{} -d urdma0 -g 1 -p {port}", SIDEWAY.example(name));
        let client = words(&format!("{server} 127.0.0.1"));
        Job::saying(name, words(&server), client, Ready::Tcp(port), "iters in")
    });
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn async_rdma_passes() {
    // One test looks the device up with the command `rdma` of iproute2. The tests of immediate data
    // are omitted: they expect the completion flags of Soft-RoCE, which reports a GRH in
    // completions of connections.
    ASYNC_RDMA.expect_tests_to_pass(
        "--lib --test atomic --test device --test loop --test mr_slice \
         --test rmr_access --test rmr_timeout",
        &[],
        49,
    );
}
