//! Environments in which something is missing, and the messages of urdma there.
#![allow(clippy::unwrap_used)]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{setrlimit, Resource};
use urdma_harness::instance::{urdma, Instance, LeasePolicy};
use urdma_harness::process::Process;
use urdma_tests::{alone, OneHost, SHORT};

/// Less than the default arena needs, and enough for everything else.
const ADDRESSES_OCTETS: u64 = 4 << 30;

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

/// `urdma up` for an additional instance, which must fail.
fn up_another(host: &Instance) -> Command {
    let mut up = urdma().unwrap();
    up.arg("up")
        .arg("--run-dir")
        .arg(host.run_dir().with_file_name("another"));
    up
}

#[test]
fn address_limit_below_the_arena_is_named_with_the_way_out() {
    let _alone = alone();
    let one = OneHost::up();
    let words = ["ulimit -v", "MB", "`slots`", "`[frames]`"];
    let mut run = one.host.run(LeasePolicy::Never, &["ibv_devinfo"]).unwrap();
    let mut up = up_another(&one.host);
    for command in [&mut run, &mut up] {
        limit_addresses(command);
        expect_words(command, &words);
    }
    one.down();
}

#[test]
fn missing_dev_is_named() {
    let _alone = alone();
    let one = OneHost::up();
    let run = one.host.run(LeasePolicy::Never, &["ibv_devinfo"]).unwrap();
    for command in [run, up_another(&one.host)] {
        expect_words(&mut without_dev(&command), &["there is no /dev/null"]);
    }
    one.down();
}
