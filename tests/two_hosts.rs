//! Two hosts joined by net_memif, forwarded by urdmad and with leased queues; and by UDP sockets.
#![allow(clippy::unwrap_used)]

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::{LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::Process;
use urdma_harness::programs;
use urdma_tests::{
    alone, check, expect_all_taken_back, free_mbufs, kill_one_end, leave_in_every_way, ports,
    run_all, sockets, stream, NOTICE, SHORT,
};

const HUGEPAGES: u64 = 512;
const SCENARIOS: [&str; 10] = [
    "data",
    "mix",
    "unmapped",
    "slow-receiver",
    "wrong-rkey",
    "no-remote-read",
    "long-message",
    "rnr-late",
    "rnr-never",
    "full",
];

fn everything(hosts: &TwoHosts, lease: LeasePolicy, scratch: &Scratch) {
    let jobs = programs::main_job(ports(), hosts.a.address());
    run_all(&jobs, &hosts.a, &hosts.b, lease);
    let jobs = programs::lossy_datagrams(ports(), hosts.a.address());
    run_all(&jobs, &hosts.a, &hosts.b, lease);
    for scenario in SCENARIOS {
        check(scenario, &hosts.a, &hosts.b, lease, scratch.path());
    }
    leave_in_every_way(&hosts.a, &hosts.b, lease, scratch.path());
}

#[test]
fn forwarded_without_hugepages_everything_passes() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    everything(&hosts, LeasePolicy::Never, &scratch);
    hosts.down().unwrap();
}

#[test]
fn over_udp_sockets_everything_passes_as_an_ordinary_user() {
    let _alone = alone();
    for mtu in [1500, 9000] {
        let scratch = Scratch::new("test").unwrap();
        let spaces = sockets::spaces(mtu);
        let hosts = sockets::up(&spaces, &scratch, mtu);
        everything(&hosts, LeasePolicy::Never, &scratch);
        hosts.down().unwrap();
    }
}

#[test]
fn leased_everything_passes() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let _hugepages = Hugepages::reserve(HUGEPAGES).unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Leased(2), 9000).unwrap();
    everything(&hosts, LeasePolicy::Require, &scratch);
    hosts.down().unwrap();
}

#[test]
fn kill_of_lessee_gives_queue_and_buffers_back() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let _hugepages = Hugepages::reserve(HUGEPAGES).unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Leased(2), 9000).unwrap();
    let settled = || {
        expect_all_taken_back(&hosts.a);
        expect_all_taken_back(&hosts.b);
        [free_mbufs(&hosts.a), free_mbufs(&hosts.b)]
    };
    let before = settled();
    for victim_is_target in [true, false, true, false] {
        let ends = stream(&hosts.a, &hosts.b, LeasePolicy::Require, scratch.path());
        kill_one_end(ends, victim_is_target);
        assert_eq!(settled(), before);
    }
    hosts.down().unwrap();
}

#[test]
fn peer_that_never_answers_is_unreachable_in_bounded_time() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    expect_unreachable_while_stopped(hosts);
    let scratch = Scratch::new("test").unwrap();
    let spaces = sockets::spaces(1500);
    expect_unreachable_while_stopped(sockets::up(&spaces, &scratch, 1500));
}

fn expect_unreachable_while_stopped(hosts: TwoHosts) {
    let rping = programs::rping(ports(), hosts.b.address());
    // Resolves the neighbour.
    run_all(
        std::slice::from_ref(&rping),
        &hosts.b,
        &hosts.a,
        LeasePolicy::Never,
    );
    let peer = Pid::from_raw(i32::try_from(hosts.b.daemon_pid().unwrap()).unwrap());
    nix::sys::signal::kill(peer, Signal::SIGSTOP).unwrap();
    let mut command = hosts.a.run(LeasePolicy::Never, &rping.client).unwrap();
    let ended = Process::run(&mut command, NOTICE);
    nix::sys::signal::kill(peer, Signal::SIGCONT).unwrap();
    let ended = ended.unwrap();
    assert!(!ended.succeeded());
    assert!(ended.output.contains("UNREACHABLE"), "{}", ended.describe());
    hosts.down().unwrap();
}

#[test]
fn lease_that_cannot_be_had_is_forwarded_and_says_so() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    let mut command = hosts.a.subcommand("run").unwrap();
    command.args(["--lease", "try", "--", "ibv_devinfo"]);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    assert!(
        ended.output.contains("lease") && ended.output.contains("forward"),
        "{}",
        ended.output
    );
    hosts.down().unwrap();
}
