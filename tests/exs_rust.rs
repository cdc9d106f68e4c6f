//! Byte streams of Rust programs (`urdma_exs::ByteStream`): blocking ones and those of tokio.
//!
//! Both ends of a stream are processes of an instance, which run the test `end` of this program.
#![allow(clippy::unwrap_used)]

#[path = "exs-rust/asynchronous.rs"]
mod asynchronous;
#[path = "exs-rust/blocking.rs"]
mod blocking;

use std::net::SocketAddr;
use std::time::Duration;

use sha2::{Digest, Sha256};
use urdma_exs_cli::pattern::{self, Pattern};
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, expect_all_taken_back, ports, start_end, OneHost, SHORT};

/// How long one end may run.
const LIMIT: Duration = Duration::from_secs(180);
/// What an end does, and the address of the server.
const ROLE: &str = "URDMA_TEST_EXS_ROLE";
const ADDRESS: &str = "URDMA_TEST_EXS_ADDRESS";

/// The octets of a stream, and their digest.
fn content(octets: usize) -> Vec<u8> {
    let mut content = vec![0; octets];
    Pattern::new(7).fill(&mut content);
    content
}

/// SHA-256, as hexadecimal digits.
fn digest(octets: &[u8]) -> String {
    pattern::hex(&Sha256::digest(octets))
}

fn start(host: &Instance, role: &str, address: &str) -> Process {
    start_end(host, &[(ROLE, role), (ADDRESS, address)])
}

#[test]
#[ignore = "an end of a stream, which the other tests start"]
fn end() {
    let address: SocketAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let role = std::env::var(ROLE).unwrap();
    match role.split_once('.').unwrap() {
        ("blocking", role) => blocking::run(role, address),
        ("tokio", role) => asynchronous::run(role, address),
        other => panic!("no role {other:?}"),
    }
    .unwrap_or_else(|error| panic!("{role}: {:?}: {error}", error.kind()));
    println!("{role} is done");
}

fn expect_done(role: &str, ended: &Ended, peer: &str) {
    assert!(ended.succeeded(), "{}; peer: {peer}", ended.describe());
    let done = format!("{role} is done");
    assert!(ended.output.contains(&done), "{}", ended.describe());
}

/// Runs both ends, each of which checks what it receives.
fn run(server: &str, client: &str) {
    let _alone = alone();
    let one = OneHost::up();
    let address = format!("{}:{}", one.host.address(), ports());
    let mut serving = start(&one.host, server, &address);
    serving.wait_for_text("listening", SHORT).unwrap();
    let asking = start(&one.host, client, &address);
    let asked = asking.wait(LIMIT).unwrap();
    expect_done(client, &asked, &serving.printed());
    expect_done(server, &serving.wait(SHORT).unwrap(), &asked.output);
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn example_of_the_document_is_compiled_and_runs() {
    let _alone = alone();
    let example = include_str!("exs-example/main.rs");
    let document = include_str!("../doc/streams.md");
    assert!(
        document.contains(&format!("```rust\n{example}```")),
        "doc/streams.md has another example than tests/exs-example"
    );
    let one = OneHost::up();
    let program = binary_dir().unwrap().join("urdma-exs-example");
    let address = format!("{}:{}", one.host.address(), ports());
    let command = |role| {
        let argv = [program.to_str().unwrap(), role, &address];
        one.host.run(LeasePolicy::Never, &argv).unwrap()
    };
    let mut serving = Process::start(&mut command("server")).unwrap();
    serving.wait_for_text("listening", SHORT).unwrap();
    let asked = Process::run(&mut command("client"), SHORT).unwrap();
    assert!(asked.output.contains("HELLO"), "{}", asked.describe());
    for ended in [asked, serving.wait(SHORT).unwrap()] {
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    one.down();
}

#[test]
fn blocking_streams_arrive() {
    run("blocking.echo", "blocking.asks");
}

#[test]
fn blocking_stream_that_is_dropped_sends_what_was_written() {
    run("blocking.receives", "blocking.drops");
}

#[test]
fn file_arrives() {
    run("blocking.receives", "blocking.sends a file");
}

#[test]
fn blocking_ends_have_the_errors_of_sockets() {
    run("blocking.refuses", "blocking.is refused");
}

#[test]
fn short_sends_of_an_end_that_sleeps_do_not_wait_for_others() {
    run("blocking.is stopped", "blocking.sleeps");
}

#[test]
fn tokio_streams_arrive() {
    run("tokio.echo", "tokio.asks");
}

#[test]
fn tokio_and_blocking_ends_make_a_stream() {
    run("tokio.echo", "blocking.asks");
    run("blocking.echo", "tokio.asks");
}

#[test]
fn read_that_is_given_up_loses_no_octets() {
    run("tokio.echo", "tokio.gives reads up");
}

#[test]
fn tokio_stream_that_is_dropped_sends_what_was_written() {
    run("tokio.receives", "tokio.drops");
}

#[test]
fn tokio_ends_have_the_errors_of_sockets() {
    run("tokio.refuses", "tokio.is refused");
}
