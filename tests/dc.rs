//! The dynamically connected transport through verbs: `tests/dc-check`, a C program that is linked
//! with `liburdmadv.so`, on one host and between two.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Scratch};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, compile, expect_all_taken_back, up_with_faults, OneHost, CHECK_LIMIT};

/// The directory of the sources.
const TESTS: &str = env!("CARGO_MANIFEST_DIR");
/// The names under which the library is linked and loaded.
const NAMES: [&str; 2] = ["liburdmadv.so", "liburdmadv.so.0"];

/// Compiles `tests/dc-check` as a user of the installed library does.
fn compile_check(directory: &Path) -> PathBuf {
    let library = binary_dir().unwrap().join("liburdma_dv.so");
    let library = fs::canonicalize(&library)
        .unwrap_or_else(|error| panic!("{}: {error}: run make build", library.display()));
    for name in NAMES {
        symlink(&library, directory.join(name)).unwrap();
    }
    let program = directory.join("dc-check");
    let mut arguments = vec![format!("-I{TESTS}/../crates/dv/include")];
    let sources = [
        "main.c",
        "alone.c",
        "pair.c",
        "dc.c",
        "../verbs-check/end.c",
    ];
    arguments.extend(sources.map(|source| format!("{TESTS}/dc-check/{source}")));
    arguments.push(format!("-Wl,-rpath,{}", directory.display()));
    arguments.push(format!("-L{}", directory.display()));
    arguments.extend(["-lurdmadv", "-libverbs"].map(str::to_owned));
    compile(&program, arguments);
    program
}

/// Two processes of a scenario, on these hosts.
struct Pair {
    target: Process,
    initiator: Process,
}

impl Pair {
    fn start(scratch: &Scratch, program: &Path, hosts: [&Instance; 2], scenario: &str) -> Self {
        let meet = scratch.path().join("meet");
        let [target, initiator] =
            [("target", hosts[0]), ("initiator", hosts[1])].map(|(role, host)| {
                let arguments = [program.as_os_str(), scenario.as_ref(), role.as_ref()];
                let argv = arguments.map(|argument| argument.to_str().unwrap());
                let argv = [&argv[..], &[meet.to_str().unwrap()]].concat();
                Process::start(&mut host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
            });
        Self { target, initiator }
    }

    fn expect_done(self, scenario: &str) {
        let ended = [self.initiator, self.target].map(|end| end.wait(CHECK_LIMIT).unwrap());
        let [sent, served] = &ended;
        assert!(
            ended.iter().all(Ended::succeeded),
            "{scenario}: initiator: {}; target: {}",
            sent.describe(),
            served.describe()
        );
    }
}

/// Runs these scenarios on one host, whose urdmad then has everything back.
fn on_one_host(scenarios: &[&str]) {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    for scenario in scenarios {
        Pair::start(&one.scratch, &program, [&one.host; 2], scenario).expect_done(scenario);
    }
    expect_all_taken_back(&one.host);
    one.down();
}

/// Runs these scenarios between two hosts, whose link has a fault.
fn between_hosts(fault: &str, scenarios: &[&str]) {
    let _alone = alone();
    let scratch = Scratch::new("dc").unwrap();
    let program = compile_check(scratch.path());
    let [a, b] = up_with_faults(&scratch, fault);
    for scenario in scenarios {
        Pair::start(&scratch, &program, [&a, &b], scenario).expect_done(scenario);
    }
    a.down().unwrap();
    b.down().unwrap();
}

#[test]
fn refusals_have_an_errno_and_a_reason() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    let argv = [program.to_str().unwrap(), "alone"];
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut command, CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    one.down();
}

#[test]
fn every_operation_reaches_a_target_of_the_host() {
    on_one_host(&["transfer"]);
}

#[test]
fn every_operation_reaches_a_target_of_another_host() {
    between_hosts("", &["transfer"]);
}

#[test]
fn every_operation_reaches_a_target_through_loss() {
    between_hosts("[fault]\nloss = \"2%\"\nseed = 7\n", &["transfer"]);
}

#[test]
fn wrong_names_and_targets_that_end_fail_the_request_on_one_host() {
    on_one_host(&["names", "destroyed", "leave"]);
}

#[test]
fn wrong_names_and_targets_that_end_fail_the_request_between_hosts() {
    between_hosts("", &["names", "destroyed", "leave"]);
}

/// Kills the target's process when the initiator asks for it.
fn kill_target(scratch: &Scratch, program: &Path, hosts: [&Instance; 2]) {
    let Pair {
        target,
        mut initiator,
    } = Pair::start(scratch, program, hosts, "killed");
    initiator.wait_for_text("kill it", CHECK_LIMIT).unwrap();
    target.signal(Signal::SIGKILL).unwrap();
    target.wait(CHECK_LIMIT).unwrap();
    let ended = initiator.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
}

#[test]
fn target_whose_process_is_killed_fails_the_request() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    kill_target(&one.scratch, &program, [&one.host; 2]);
    expect_all_taken_back(&one.host);
    one.down();
    let scratch = Scratch::new("dc").unwrap();
    let program = compile_check(scratch.path());
    let [a, b] = up_with_faults(&scratch, "");
    kill_target(&scratch, &program, [&a, &b]);
    a.down().unwrap();
    b.down().unwrap();
}
