//! Byte streams over verbs (`urdma-exs`): both ends sleep when they have nothing to do.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::Process;
use urdma_tests::{alone, expect_all_taken_back, ports, OneHost, SHORT};

/// How long one end may run.
const LIMIT: Duration = Duration::from_secs(240);

/// Starts one end of a stream.
fn end(host: &Instance, role: &str, address: &str, octets: u64, options: &[&str]) -> Process {
    let program = binary_dir().unwrap().join("urdma-exs-check");
    let octets = octets.to_string();
    let program = program.to_string_lossy().into_owned();
    let mut argv = vec![program.as_str(), role, address, &octets];
    argv.extend(options);
    Process::start(&mut host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
}

/// Both ends of a stream, started; the server first.
fn both([server, client]: [&Instance; 2], octets: u64, options: &[&str]) -> [Process; 2] {
    let address = format!("{}:{}", server.address(), ports());
    let mut serving = end(server, "server", &address, octets, options);
    serving.wait_for_text("listening", SHORT).unwrap();
    [serving, end(client, "client", &address, octets, options)]
}

/// Passes octets from a client to a server; both must have the same digest. Returns what the client
/// has printed.
fn pass(hosts: [&Instance; 2], octets: u64, options: &[&str]) -> String {
    let [serving, asking] = both(hosts, octets, options);
    let asked = asking.wait(LIMIT).unwrap();
    assert!(
        asked.succeeded(),
        "client: {}; server: {}",
        asked.describe(),
        serving.printed()
    );
    let served = serving.wait(SHORT).unwrap();
    assert!(served.succeeded(), "server: {}", served.describe());
    let digest = |printed: &str| {
        let line = printed.lines().find(|line| line.starts_with("sha256 "));
        line.unwrap().to_owned()
    };
    assert_eq!(digest(&asked.output), digest(&served.output));
    asked.output
}

#[test]
fn gigabyte_over_one_host_arrives() {
    let _alone = alone();
    let one = OneHost::up();
    pass([&one.host, &one.host], 1 << 30, &[]);
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn stream_over_two_hosts_arrives() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    pass([&hosts.a, &hosts.b], 64 << 20, &[]);
    hosts.down().unwrap();
}
