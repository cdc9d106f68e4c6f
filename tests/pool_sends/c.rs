//! Ends in C (`pool-c-check/messages.c` and `long.c`), which use `liburdma-pool.so`.

use std::path::Path;

use urdma_harness::instance::{LeasePolicy, Scratch};
use urdma_harness::process::Process;
use urdma_tests::{alone, compile_with_pool, link_urdmadv, CHECK_LIMIT};

use super::{killed, Hosts, Over, MET};

/// One host, and the program.
struct Check {
    hosts: Hosts,
    directory: Scratch,
}

impl Check {
    fn up() -> Self {
        Self::of("messages.c")
    }

    /// With a program of `pool-c-check`.
    fn of(source: &str) -> Self {
        let directory = Scratch::new("pool-messages").unwrap();
        link_urdmadv(directory.path());
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("pool-c-check");
        let program = directory.path().join("check");
        compile_with_pool(&program, &sources.join(source), directory.path());
        Self {
            hosts: Hosts::one(),
            directory,
        }
    }

    fn over(mut self, over: Over) -> Self {
        self.hosts = self.hosts.over(over);
        self
    }

    /// A part of the program at one of the addresses, whose peer has the other one.
    fn start(&self, part: &str, at: usize) -> Process {
        let ports = self.hosts.addresses.each_ref().map(|address| {
            let (_, port) = address.split_once(':').unwrap();
            port
        });
        let program = self.directory.path().join("check");
        let argv = [program.to_str().unwrap(), part, ports[at], ports[1 - at]];
        let host = &self.hosts.hosts[0];
        let mut command = host.run(LeasePolicy::Never, &argv).unwrap();
        command.env("LD_LIBRARY_PATH", self.directory.path());
        if self.hosts.over == Over::Initiators {
            command.env(MET, "1");
        }
        Process::start(&mut command).unwrap()
    }

    fn echo(&self) -> Process {
        let mut echo = self.start("echo", 0);
        echo.wait_for_text("listens", CHECK_LIMIT).unwrap();
        echo
    }
}

fn expect_done(end: Process) {
    let ended = end.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    assert!(ended.output.contains("done"), "{}", ended.describe());
}

#[test]
fn programs_in_c_send_to_each_other() {
    send_to_each_other(Over::Connections);
}

#[test]
fn programs_in_c_over_initiators_send_to_each_other() {
    send_to_each_other(Over::Initiators);
}

fn send_to_each_other(over: Over) {
    let _alone = alone();
    let check = Check::up().over(over);
    let mut echo = check.echo();
    expect_done(check.start("ask", 1));
    // Each end of the four users has ended.
    echo.wait_for_text("ended\nended\nended\nended\n", CHECK_LIMIT)
        .unwrap();
    check.hosts.down([echo]);
}

/// Messages of 1 octet to 16 MB, in both directions at the same time.
#[test]
fn programs_in_c_send_long_messages_to_each_other() {
    send_long_messages(Over::Connections);
}

#[test]
fn programs_in_c_over_initiators_send_long_messages_to_each_other() {
    send_long_messages(Over::Initiators);
}

fn send_long_messages(over: Over) {
    let _alone = alone();
    let check = Check::of("long.c").over(over);
    let mut accepts = check.start("accept", 0);
    accepts.wait_for_text("listens", CHECK_LIMIT).unwrap();
    let mut ends = [accepts, check.start("open", 1)];
    for end in &mut ends {
        end.wait_for_text("done", CHECK_LIMIT).unwrap();
    }
    check.hosts.down(ends);
}

#[test]
fn program_in_c_sends_to_one_in_rust() {
    let _alone = alone();
    let check = Check::up();
    let echo = check.hosts.start("echoes", 0);
    check.hosts.let_go();
    expect_done(check.start("ask", 1));
    check.hosts.down([echo]);
}

#[test]
fn program_in_rust_sends_to_one_in_c() {
    let _alone = alone();
    let check = Check::up();
    let echo = check.echo();
    let asks = check.hosts.start("asks", 1);
    check.hosts.let_go();
    killed(&check.hosts);
    expect_done(asks);
    check.hosts.down([echo]);
}

#[test]
fn calls_of_messages_refuse_what_their_pages_say() {
    refuse_what_their_pages_say(Over::Connections);
}

#[test]
fn calls_of_messages_over_initiators_refuse_what_their_pages_say() {
    refuse_what_their_pages_say(Over::Initiators);
}

fn refuse_what_their_pages_say(over: Over) {
    let _alone = alone();
    let check = Check::up().over(over);
    let echo = check.echo();
    expect_done(check.start("errors", 1));
    check.hosts.down([echo]);
}
