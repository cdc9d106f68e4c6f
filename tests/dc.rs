//! The dynamically connected transport through verbs: `tests/dc-check`, a C program that is linked
//! with `liburdmadv.so`, on one host and between two.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, LeasePolicy, Scratch};
use urdma_harness::process::{wait_until, Ended, Process};
use urdma_tests::{
    alone, compile, expect_all_taken_back, link_urdmadv, up_with_faults, OneHost, CHECK_LIMIT,
    NOTICE,
};

/// The directory of the sources.
const TESTS: &str = env!("CARGO_MANIFEST_DIR");

/// Compiles `tests/dc-check` as a user of the installed library does.
fn compile_check(directory: &Path) -> PathBuf {
    link_urdmadv(directory);
    let program = directory.join("dc-check");
    let mut arguments = vec![format!("-I{TESTS}/../crates/dv/include")];
    let sources = [
        "main.c",
        "alone.c",
        "pair.c",
        "load.c",
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

/// A target, and initiators that load it, each a process; the hosts are theirs.
struct Loaded<'a> {
    program: &'a Path,
    /// The file by which the target is found.
    name: PathBuf,
    /// Of the target, and of the initiators.
    hosts: [&'a Instance; 2],
}

impl Loaded<'_> {
    fn start(&self, host: &Instance, arguments: &[&str], said: &str) -> Process {
        let argv = [&[self.program.to_str().unwrap()], arguments].concat();
        let mut process =
            Process::start(&mut host.run(LeasePolicy::Never, &argv).unwrap()).unwrap();
        process.wait_for_text(said, CHECK_LIMIT).unwrap();
        process
    }

    fn serve(&self) -> Process {
        let name = self.name.to_str().unwrap();
        self.start(self.hosts[0], &["serve", name], "serves")
    }

    /// Many requests at a time, until the initiator or its target ends.
    fn load(&self) -> Process {
        let name = self.name.to_str().unwrap();
        self.start(self.hosts[1], &["load", name, "0"], "busy")
    }

    /// A new initiator completes requests of every kind.
    fn expect_served(&self) {
        let name = self.name.to_str().unwrap();
        let load = self.start(self.hosts[1], &["load", name, "64"], "busy");
        let ended = load.wait(CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }

    /// The contexts of the only target of the first host, which a process with this id has.
    fn contexts(&self, target: &Process) -> u64 {
        let status = self.hosts[0].status().unwrap();
        let slots = status["slots"].as_array().unwrap();
        let slot = slots.iter().find(|slot| slot["pid"] == target.id());
        let report = &slot.unwrap_or_else(|| panic!("no target in {status}"))["report"];
        assert_eq!(report["dc_targets"], 1, "{status}");
        report["dc_contexts"].as_u64().unwrap()
    }

    fn expect_contexts(&self, target: &Process, expected: u64) {
        wait_until("the contexts of the target", NOTICE, || {
            self.contexts(target) == expected
        })
        .unwrap_or_else(|late| panic!("{late}: {} of {expected}", self.contexts(target)));
    }

    /// Kills two initiators, one after the other, then the target.
    fn kill_each(&self) {
        let kill = |process: Process| {
            process.signal(Signal::SIGKILL).unwrap();
            process.wait(CHECK_LIMIT).unwrap();
        };
        let target = self.serve();
        self.expect_contexts(&target, 0);
        let busy = [self.load(), self.load()];
        self.expect_contexts(&target, 2);
        for (killed, left) in busy.into_iter().zip([1, 0]) {
            kill(killed);
            self.expect_contexts(&target, left);
            self.expect_served();
            self.expect_contexts(&target, left);
        }
        let busy = [self.load(), self.load()];
        kill(target);
        for initiator in busy {
            let ended = initiator.wait(CHECK_LIMIT).unwrap();
            assert!(ended.succeeded(), "{}", ended.describe());
        }
        let target = self.serve();
        self.expect_served();
        kill(target);
    }
}

#[test]
fn contexts_of_a_killed_initiator_end_and_initiators_of_a_killed_target_hear_of_it() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    let loaded = Loaded {
        program: &program,
        name: one.scratch.path().join("name"),
        hosts: [&one.host; 2],
    };
    loaded.kill_each();
    expect_all_taken_back(&one.host);
    one.down();
    let scratch = Scratch::new("dc").unwrap();
    let program = compile_check(scratch.path());
    let [a, b] = up_with_faults(&scratch, "");
    let loaded = Loaded {
        program: &program,
        name: scratch.path().join("name"),
        hosts: [&a, &b],
    };
    loaded.kill_each();
    a.down().unwrap();
    b.down().unwrap();
}
