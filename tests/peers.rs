//! A peer that is stopped for a while or for too long, or whose urdmad is restarted: the connection
//! continues without loss, or both ends get an error.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::Process;
use urdma_tests::{
    alone, check, expect_all_taken_back, expect_peer_given_up, expect_stream_ended, mix_while,
    stream, OneHost,
};

const FROZEN: Duration = Duration::from_secs(1);

/// Enough operations to be interrupted, on one host and between two.
const OPERATIONS: u32 = 60_000;
const OPERATIONS_FORWARDED: u32 = 10_000;

/// Stops `process` for a second.
fn freeze(process: &Process) {
    process.signal(Signal::SIGSTOP).unwrap();
    std::thread::sleep(FROZEN);
    process.signal(Signal::SIGCONT).unwrap();
}

/// Stops each end of a `mix` for a second; its queue pairs wait for half a minute.
fn freeze_for_a_while(server: &Instance, client: &Instance, scratch: &Scratch, operations: u32) {
    mix_while(
        (server, client),
        scratch.path(),
        operations,
        |serving, asking| {
            freeze(serving);
            freeze(asking);
        },
    );
}

/// Stops the target of a stream until its initiator gives up; continued, it gets an error too.
fn freeze_for_too_long(server: &Instance, client: &Instance, scratch: &Scratch) {
    let (serving, asking) = stream(server, client, LeasePolicy::Never, scratch.path());
    serving.signal(Signal::SIGSTOP).unwrap();
    expect_peer_given_up(asking);
    serving.signal(Signal::SIGCONT).unwrap();
    expect_stream_ended(serving);
}

#[test]
fn frozen_peer_on_one_host_goes_on_or_is_given_up() {
    let _alone = alone();
    let one = OneHost::up();
    freeze_for_a_while(&one.host, &one.host, &one.scratch, OPERATIONS);
    freeze_for_too_long(&one.host, &one.host, &one.scratch);
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn frozen_peer_on_another_host_goes_on_or_is_given_up() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    freeze_for_a_while(&hosts.a, &hosts.b, &scratch, OPERATIONS_FORWARDED);
    freeze_for_too_long(&hosts.a, &hosts.b, &scratch);
    for host in [&hosts.a, &hosts.b] {
        expect_all_taken_back(host);
    }
    hosts.down().unwrap();
}

#[test]
fn restarted_daemon_ends_connections_and_makes_new_ones() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    // Each side of net_memif, and each side of the connections.
    for (server, client) in [(&hosts.a, &hosts.b), (&hosts.b, &hosts.a)] {
        let (serving, asking) = stream(server, client, LeasePolicy::Never, scratch.path());
        client.kill_and_restart().unwrap();
        expect_stream_ended(asking);
        expect_stream_ended(serving);
        check("mix", server, client, LeasePolicy::Never, scratch.path());
    }
    hosts.down().unwrap();
}
