//! Environments in which something is missing, and the messages of urdma there.
#![allow(clippy::unwrap_used)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{setrlimit, Resource};
use urdma_harness::instance::{urdma, Instance, LeasePolicy};
use urdma_harness::process::Process;
use urdma_tests::{alone, OneHost, SHORT};

/// Enough for a program and its channels, and for urdmad.
const ADDRESSES_OCTETS: u64 = 1 << 30;

/// Runs a command and checks that it fails with these words.
fn expect_words(command: &mut Command, words: &[&str]) {
    let ended = Process::run(command, SHORT).unwrap();
    assert!(!ended.succeeded(), "{}", ended.output);
    for word in words {
        assert!(ended.output.contains(word), "no {word} in {}", ended.output);
    }
}

fn limit_addresses(command: &mut Command) {
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            Ok(setrlimit(
                Resource::RLIMIT_AS,
                ADDRESSES_OCTETS,
                ADDRESSES_OCTETS,
            )?)
        });
    }
}

/// `command` in a container whose /dev is empty.
fn without_dev(command: &Command) -> Command {
    let mut contained = Command::new("bwrap");
    contained
        .args(["--bind", "/", "/", "--tmpfs", "/dev", "--die-with-parent"])
        .arg(command.get_program())
        .args(command.get_args());
    contained
}

/// A subcommand of `urdma` for an additional instance.
fn another(host: &Instance, subcommand: &str) -> Command {
    let mut command = urdma().unwrap();
    command
        .arg(subcommand)
        .arg("--run-dir")
        .arg(host.run_dir().with_file_name("another"));
    command
}

// The number of slots takes no addresses: memory is mapped for each process that there is.
#[test]
fn address_limit_leaves_room_for_programs_and_urdmad() {
    let _alone = alone();
    let one = OneHost::up();
    let run = one.host.run(LeasePolicy::Never, &["ibv_devinfo"]).unwrap();
    let [up, down] = ["up", "down"].map(|subcommand| another(&one.host, subcommand));
    let ended = [run, up, down].map(|mut command| {
        limit_addresses(&mut command);
        Process::run(&mut command, SHORT).unwrap()
    });
    for ended in ended {
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    one.down();
}

#[test]
fn missing_dev_is_named() {
    let _alone = alone();
    let one = OneHost::up();
    let run = one.host.run(LeasePolicy::Never, &["ibv_devinfo"]).unwrap();
    for command in [run, another(&one.host, "up")] {
        expect_words(&mut without_dev(&command), &["there is no /dev/null"]);
    }
    one.down();
}
