//! Bad input and killed processes: an error message, the right errno, and no leaks.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{urdma, Copies, Instance, LeasePolicy, Scratch};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{
    alone, check, expect_all_taken_back, expect_nothing_left, expect_stream_ended, kill_one_end,
    stream, OneHost, CHECK_LIMIT, SHORT, VERBS_CHECK,
};

fn run(command: &mut Command) -> Ended {
    Process::run(command, SHORT).unwrap()
}

fn expect_sentence(ended: &Ended, parts: &[&str]) {
    assert!(!ended.succeeded(), "it succeeded: {}", ended.output);
    for part in parts {
        assert!(
            ended.output.contains(part),
            "no '{part}' in: {}",
            ended.output
        );
    }
}

#[test]
fn run_without_daemon_says_how_to_start_one() {
    let scratch = Scratch::new("test").unwrap();
    let mut command = urdma().unwrap();
    command
        .args(["run", "--run-dir"])
        .arg(scratch.path().join("no-instance"))
        .args(["--", "ibv_devinfo"]);
    expect_sentence(&run(&mut command), &["urdma up"]);
}

#[test]
fn run_with_unknown_instance_names_those_that_run() {
    let _alone = alone();
    let one = OneHost::up();
    let mut command = urdma().unwrap();
    command
        .args(["run", "--run-dir"])
        .arg(one.scratch.path().join("other"))
        .args(["--", "ibv_devinfo"]);
    expect_sentence(&run(&mut command), &["other", "one"]);
    one.down();
}

#[test]
fn configuration_error_names_file_line_and_key() {
    let scratch = Scratch::new("test").unwrap();
    let failure = Instance::up(
        scratch.path(),
        "bad",
        "127.0.0.1",
        "[port]\nknd = \"none\"\n",
    )
    .unwrap_err();
    for part in ["bad.toml", "line 4", "knd"] {
        assert!(failure.0.contains(part), "no '{part}' in: {failure}");
    }
    let failure = Instance::up(scratch.path(), "bad", "no-address", "").unwrap_err();
    for part in ["bad.toml", "line 2", "address"] {
        assert!(failure.0.contains(part), "no '{part}' in: {failure}");
    }
}

#[test]
fn stranger_to_the_instance_is_told_who_may_use_it() {
    let _alone = alone();
    let copies = Copies::of_urdma().unwrap();
    let one = OneHost::up();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(copies.path().join("urdma"))
        .args(["status", "--run-dir"])
        .arg(one.host.run_dir());
    expect_sentence(&run(&mut command), &["no permission", "urdma up"]);
    one.down();
}

/// As in root's home.
#[test]
fn urdma_in_a_directory_that_its_user_cannot_enter_says_so() {
    let copies = Copies::of_urdma().unwrap();
    fs::set_permissions(copies.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let urdma = copies.path().join("urdma");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    // setpriv gives up root's capabilities with the program that it executes.
    command.arg(&urdma).args(["up", "--instance", "unreached"]);
    let shown = urdma.display().to_string();
    let words = ["no permission", &shown, "make install"];
    expect_sentence(&run(&mut command), &words);
}

#[test]
fn second_up_of_same_instance_is_refused() {
    let _alone = alone();
    let one = OneHost::up();
    let failure = Instance::up(one.scratch.path(), "one", "127.0.0.1", "").unwrap_err();
    assert!(failure.0.contains("is up already"), "{failure}");
}

#[test]
fn lease_without_port_falls_back_and_says_so() {
    let _alone = alone();
    let one = OneHost::up();
    let mut command = one.host.subcommand("run").unwrap();
    command.args(["--lease", "require", "--", "ibv_devinfo"]);
    expect_sentence(&run(&mut command), &["lease"]);
    one.down();
}

/// Checks that rping to an address where no host answers prints `words`.
fn expect_no_connection(address: &str, words: &str) {
    let _alone = alone();
    let one = OneHost::up();
    let rping = ["rping", "-c", "-a", address, "-p", "7999", "-C", "1"];
    let mut command = one.host.run(LeasePolicy::Never, &rping).unwrap();
    expect_sentence(&run(&mut command), &[words]);
    one.down();
}

#[test]
fn connect_without_a_listener_is_rejected() {
    // Not UNREACHABLE, which would mean that no host answered.
    expect_no_connection("127.0.0.1", "REJECTED");
}

#[test]
fn connect_to_address_of_no_host_fails_with_an_error_event() {
    expect_no_connection("127.0.0.77", "ADDR_ERROR");
}

#[test]
fn kill_of_either_end_is_told_to_the_other_and_everything_is_taken_back() {
    let _alone = alone();
    let one = OneHost::up();
    for victim_is_target in [true, false].into_iter().cycle().take(10) {
        let ends = stream(&one.host, &one.host, LeasePolicy::Never, one.scratch.path());
        kill_one_end(ends, victim_is_target);
        expect_all_taken_back(&one.host);
    }
    one.down();
}

#[test]
fn kill_of_urdmad_ends_both_programs_with_flushed_requests() {
    let _alone = alone();
    let one = OneHost::up();
    let (serving, asking) = stream(&one.host, &one.host, LeasePolicy::Never, one.scratch.path());
    // The new daemon takes over the previous one's resources.
    one.host.kill_and_restart().unwrap();
    for process in [asking, serving] {
        expect_stream_ended(process);
    }
    check(
        "data",
        &one.host,
        &one.host,
        LeasePolicy::Never,
        one.scratch.path(),
    );
    one.down();
}

/// Kills either end of connections that are being made, `rounds` times, at random moments.
fn kill_while_connecting(rounds: u32) {
    const PORT: &str = "7411";
    let _alone = alone();
    let one = OneHost::up();
    let start = |end: &str, words: &str| {
        let argv = [VERBS_CHECK, end, PORT];
        let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
        let mut process = Process::start(&mut command).unwrap();
        process.wait_for_text(words, SHORT).unwrap();
        process
    };
    let mut before = None;
    let mut server = start("storm-server", "listening");
    let mut random = std::process::id();
    for round in 0..rounds {
        let mut client = start("storm-client", "connecting");
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let microseconds = u64::from(random >> 20);
        std::thread::sleep(Duration::from_micros(microseconds));
        if round % 4 == 3 {
            server.signal(Signal::SIGKILL).unwrap();
            // The port is free once it has ended, which takes longer beside other programs.
            drop(server);
            // The client goes on without a listener, and with the next one.
            server = start("storm-server", "listening");
            std::thread::sleep(Duration::from_micros(microseconds));
        }
        assert!(client.is_running(), "{}", client.printed());
        client.signal(Signal::SIGKILL).unwrap();
        drop(client);
        if round % 20 == 19 {
            assert!(server.is_running(), "{}", server.printed());
            server.signal(Signal::SIGKILL).unwrap();
            drop(server);
            expect_nothing_left(&one.host, &mut before);
            server = start("storm-server", "listening");
        }
    }
    drop(server);
    one.down();
}

#[test]
fn kill_of_either_end_while_they_connect_leaves_nothing() {
    kill_while_connecting(60);
}

#[test]
#[ignore = "make test-all"]
fn a_thousand_kills_of_either_end_while_they_connect_leave_nothing() {
    kill_while_connecting(1000);
}

// Regression: a thread, two descriptors, the shared memory and 170 KB leaked per urdmad.
#[test]
fn program_keeps_nothing_of_a_daemon_that_it_has_outlived() {
    const ROUNDS: u32 = 6;
    let _alone = alone();
    let one = OneHost::up();
    let argv = [VERBS_CHECK, "outlives"];
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let mut program = Process::start(&mut command).unwrap();
    for round in 0..ROUNDS {
        let words = format!("round {round}");
        program.wait_for_text(&words, SHORT).unwrap();
        one.host.kill_and_restart().unwrap();
    }
    let ended = program.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    one.down();
}
