//! Byte streams over verbs (`urdma-exs`): both ends sleep when they have nothing to do.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::Process;
use urdma_tests::{alone, expect_all_taken_back, ports, OneHost, NOTICE, SHORT};

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

/// A count that an end has printed.
fn count(printed: &str, name: &str) -> u64 {
    let mut words = printed.split_whitespace();
    words.find(|&word| word == name).unwrap();
    words.next().unwrap().parse().unwrap()
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

#[test]
fn every_way_of_transfer_arrives() {
    let _alone = alone();
    let one = OneHost::up();
    let hosts = [&one.host, &one.host];
    let small_ring = ["--ring-octets", "100003", "--seed", "5"];
    let direct = pass(hosts, 100 << 20, &["--transfers", "direct"]);
    assert_eq!(count(&direct, "indirect"), 0);
    assert!(count(&direct, "direct") > 100);
    let indirect = pass(hosts, 100 << 20, &["--transfers", "indirect"]);
    assert_eq!(count(&indirect, "direct"), 0);
    assert!(count(&indirect, "indirect") > 100);
    pass(hosts, 20 << 20, &small_ring);
    // Sends that exceed what one transfer, the ring, and one RDMA Write carry.
    pass(
        hosts,
        100 << 20,
        &["--max-octets", "30000000", "--posted", "3"],
    );
    // Sends that are shorter than a control message.
    pass(hosts, 100_000, &["--max-octets", "60"]);
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn streams_that_are_short_end_at_both_ends() {
    let _alone = alone();
    let one = OneHost::up();
    for seed in 1..=20_u64 {
        let seed = seed.to_string();
        pass([&one.host, &one.host], 1000, &["--seed", &seed]);
    }
    one.down();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    for seed in 1..=20_u64 {
        let seed = seed.to_string();
        pass([&hosts.a, &hosts.b], 1000, &["--seed", &seed]);
    }
    hosts.down().unwrap();
}

/// Kills one end of a stream in progress; the other must end with an error.
fn kill_one(hosts: [&Instance; 2], victim_is_server: bool) {
    let [mut serving, mut asking] = both(hosts, 1 << 40, &[]);
    serving.wait_for_text("receiving", SHORT).unwrap();
    asking.wait_for_text("sending", SHORT).unwrap();
    let (victim, survivor) = match victim_is_server {
        true => (serving, asking),
        false => (asking, serving),
    };
    victim.signal(Signal::SIGKILL).unwrap();
    let ended = survivor.wait(NOTICE).unwrap();
    assert!(!ended.succeeded());
    assert!(
        ended.output.contains("stream ended"),
        "{}",
        ended.describe()
    );
}

#[test]
fn kill_of_one_end_is_an_error_at_the_other() {
    let _alone = alone();
    let one = OneHost::up();
    for victim_is_server in [true, false, true, false] {
        kill_one([&one.host, &one.host], victim_is_server);
        expect_all_taken_back(&one.host);
    }
    one.down();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    for victim_is_server in [true, false] {
        kill_one([&hosts.a, &hosts.b], victim_is_server);
        expect_all_taken_back(&hosts.a);
        expect_all_taken_back(&hosts.b);
    }
    hosts.down().unwrap();
}

#[test]
fn abort_is_told_with_its_code_by_both_ends() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    for [server, client] in [[&hosts.a, &hosts.a], [&hosts.a, &hosts.b]] {
        let ends = both([server, client], 10 << 20, &["--abort", "7"]);
        let [served, asked] = ends.map(|end| end.wait(NOTICE).unwrap());
        let told = "stream ended: the peer aborted the stream with code 7";
        assert!(served.output.contains(told), "{}", served.describe());
        let told = "stream ended: the stream was aborted with code 7";
        assert!(asked.output.contains(told), "{}", asked.describe());
        expect_all_taken_back(server);
        expect_all_taken_back(client);
    }
    hosts.down().unwrap();
}
