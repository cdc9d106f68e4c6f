//! `liburdma-pool.so`: C programs that use `urdma_pool.h`, compiled by the tests: one that checks
//! every call, and the example of doc/pool.md.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, LeasePolicy, Scratch};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{
    alone, compile_with_pool, expect_all_taken_back, link_urdmadv, ports, OneHost, CHECK_LIMIT,
    SHORT,
};

const TESTS: &str = env!("CARGO_MANIFEST_DIR");
const PAGE: &str = include_str!("../doc/pool.md");
const TRANSPORTS: [&str; 2] = ["rc", "dc"];

/// One host, and a program that is linked with the library as an installed one is.
struct Check {
    one: OneHost,
    directory: Scratch,
    program: PathBuf,
}

impl Check {
    fn up(source: &Path) -> Self {
        let directory = Scratch::new("pool-c").unwrap();
        link_urdmadv(directory.path());
        let program = directory.path().join("check");
        compile_with_pool(&program, source, directory.path());
        Self {
            one: OneHost::up(),
            directory,
            program,
        }
    }

    fn of_calls() -> Self {
        Self::up(&Path::new(TESTS).join("pool-c-check/main.c"))
    }

    fn start(&self, arguments: &[&str]) -> Process {
        let argv = [&[self.program.to_str().unwrap()], arguments].concat();
        let mut command = self.one.host.run(LeasePolicy::Never, &argv).unwrap();
        command.env("LD_LIBRARY_PATH", self.directory.path());
        Process::start(&mut command).unwrap()
    }

    fn node(&self, arguments: &[&str]) -> Process {
        let mut node = self.start(arguments);
        node.wait_for_text("listens", SHORT).unwrap();
        node
    }

    /// Ends the node and the host; both have what they gave.
    fn down(self, node: Process) {
        kill(node);
        expect_all_taken_back(&self.one.host);
        self.one.down();
    }
}

fn kill(node: Process) {
    node.signal(Signal::SIGKILL).unwrap();
    node.wait(SHORT).unwrap();
}

fn expect_done(ended: &Ended) {
    assert!(ended.succeeded(), "{}", ended.describe());
    assert!(ended.output.contains("done"), "{}", ended.describe());
}

#[test]
fn calls_do_and_refuse_what_their_pages_say() {
    let _alone = alone();
    let check = Check::of_calls();
    for transport in TRANSPORTS {
        let port = ports().to_string();
        let node = check.node(&["node", transport, &port]);
        for part in ["client", "threads", "errors"] {
            let checking = check.start(&[part, transport, &port]);
            expect_done(&checking.wait(CHECK_LIMIT).unwrap());
        }
        kill(node);
    }
    expect_all_taken_back(&check.one.host);
    check.one.down();
}

#[test]
fn client_switches_to_a_connection_and_back() {
    let _alone = alone();
    let check = Check::of_calls();
    let port = ports().to_string();
    let node = check.node(&["node", "dc", &port]);
    let counting = check.start(&["switched", "dc", &port]);
    expect_done(&counting.wait(CHECK_LIMIT).unwrap());
    check.down(node);
}

#[test]
fn client_learns_of_a_node_from_a_metadata_service() {
    let _alone = alone();
    let check = Check::of_calls();
    let [port, service] = [(); 2].map(|()| ports().to_string());
    let metad = binary_dir().unwrap().join("urdma-metad");
    let listen = format!("127.0.0.1:{service}");
    let argv = [metad.to_str().unwrap(), "--listen", &listen];
    let mut command = check.one.host.run(LeasePolicy::Never, &argv).unwrap();
    let mut serving = Process::start(&mut command).unwrap();
    serving.wait_for_text("listens", SHORT).unwrap();
    let node = check.node(&["node", "dc", &port, &service]);
    let reading = check.start(&["client", "dc", &port, &service]);
    expect_done(&reading.wait(CHECK_LIMIT).unwrap());
    kill(serving);
    check.down(node);
}

#[test]
fn client_outlives_a_node_that_is_killed() {
    let _alone = alone();
    let check = Check::of_calls();
    for transport in TRANSPORTS {
        let port = ports().to_string();
        let node = check.node(&["node", transport, &port]);
        let mut client = check.start(&["killed", transport, &port]);
        client.wait_for_text("reads", SHORT).unwrap();
        kill(node);
        client.wait_for_text("failed", CHECK_LIMIT).unwrap();
        let anew = check.node(&["node", transport, &port]);
        expect_done(&client.wait(CHECK_LIMIT).unwrap());
        kill(anew);
    }
    expect_all_taken_back(&check.one.host);
    check.one.down();
}

#[test]
fn example_of_the_page_reads_and_is_short() {
    let _alone = alone();
    let (_, example) = PAGE.split_once("\n```c\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    assert!(example.lines().count() <= 45, "{}", example.lines().count());
    let scratch = Scratch::new("pool-example").unwrap();
    let source = scratch.path().join("example.c");
    fs::write(&source, example).unwrap();
    let check = Check::up(&source);
    let port = ports().to_string();
    let node = check.node(&["node", &port]);
    let read = check.start(&["client", &port]).wait(CHECK_LIMIT).unwrap();
    assert!(read.output.contains("read: hello"), "{}", read.describe());
    check.down(node);
}
