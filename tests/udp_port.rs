//! Ports over UDP sockets between network namespaces, as an ordinary user: what the network does to
//! them, other kinds of ports at the other end, and what cannot be opened.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::{urdma, Instance, LeasePolicy, Scratch, TwoHosts};
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::{wait_until, Process};
use urdma_harness::programs::{self, Job};
use urdma_harness::scheduler::WithoutAutogroups;
use urdma_tests::bridges::bridge;
use urdma_tests::sockets::{assign, host, spaces, unassign, up, ADDRESSES};
use urdma_tests::{
    alone, check, expect_peer_given_up, expect_stream_ended, mix_while, ports, run_all, stream,
    SHORT, VERBS_CHECK,
};

/// Enough operations for two interruptions.
const OPERATIONS: u32 = 20_000;

/// Programs that connect to `server`, those of perftest by TCP to `tcp`.
fn jobs(tcp: &str, server: &str) -> Vec<Job> {
    let first = ports();
    vec![
        programs::perftest("ib_send_lat", 64, false, first, tcp),
        programs::perftest("ib_write_bw", 65_536, false, first + 1, tcp),
        programs::perftest("ib_read_bw", 65_536, false, first + 2, tcp),
        programs::rping(first + 3, server),
        programs::mckey(server, "", ""),
    ]
}

fn down(hosts: [Instance; 2]) {
    for host in hosts {
        host.down().unwrap();
    }
}

/// What `urdma status` says that does not work.
fn notes(host: &Instance) -> String {
    host.status().unwrap()["port"]["notes"].to_string()
}

fn expect_note(host: &Instance, words: &str) {
    let found = wait_until(words, SHORT, || notes(host).contains(words));
    found.unwrap_or_else(|late| panic!("{late}; {}", notes(host)));
}

#[test]
fn programs_run_over_ipv6() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let hosts = up(&spaces, &scratch, 1500);
    let first = ports();
    let v6 = ADDRESSES[0][1];
    let jobs = [
        programs::rping(first, v6),
        programs::ucmatose(first + 1, v6),
        programs::rstream(first + 2, v6),
        programs::mckey(v6, "", ""),
    ];
    run_all(&jobs, &hosts.a, &hosts.b, LeasePolicy::Never);
    hosts.down().unwrap();
}

#[test]
fn two_instances_of_one_host_have_addresses_of_their_own() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    for addresses in [["127.0.0.1", "127.0.0.2"], ["10.77.0.1", "10.77.0.3"]] {
        if addresses[1] == "10.77.0.3" {
            assign(&spaces, 0, addresses[1]);
        }
        let [a, b] = [0, 1].map(|number| {
            let (name, address) = (["a", "b"][number], addresses[number]);
            host(&spaces, (0, name), scratch.path(), &[address], "").unwrap()
        });
        run_all(
            &jobs(addresses[0], addresses[0]),
            &a,
            &b,
            LeasePolicy::Never,
        );
        check("mix", &a, &b, LeasePolicy::Never, scratch.path());
        down([a, b]);
    }
}

#[test]
fn tap_port_at_the_other_end_is_understood_both_ways() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let tap = "[port]\nkind = \"tap\"\nnetdev = \"tap0\"\n";
    let address = "10.77.0.102";
    let tap = Instance::up_in(spaces.name(1), scratch.path(), "b", address, tap).unwrap();
    unassign(&spaces, 1, ADDRESSES[1][0]);
    bridge(&spaces, 1, Some("10.77.0.2/24"));
    let dir = Scratch::new("test").unwrap();
    let sockets = host(&spaces, (0, "a"), dir.path(), &["10.77.0.1"], "").unwrap();
    run_all(
        &jobs("10.77.0.1", "10.77.0.1"),
        &sockets,
        &tap,
        LeasePolicy::Never,
    );
    run_all(
        &jobs("10.77.0.2", address),
        &tap,
        &sockets,
        LeasePolicy::Never,
    );
    check("mix", &sockets, &tap, LeasePolicy::Never, dir.path());
    down([sockets, tap]);
}

/// A host with a port of kind `af_xdp`, and one with sockets.
fn af_xdp_and_sockets(spaces: &Namespaces, dirs: [&Scratch; 2]) -> [Instance; 2] {
    let netdev = spaces.netdev(1);
    let port = format!("[port]\nkind = \"af_xdp\"\nnetdev = \"{netdev}\"\n");
    let address = ADDRESSES[1][0];
    let af_xdp = Instance::up_in(spaces.name(1), dirs[0].path(), "b", address, &port).unwrap();
    let sockets = host(spaces, (0, "a"), dirs[1].path(), &["10.77.0.1"], "").unwrap();
    [af_xdp, sockets]
}

// The sockets' kernel leaves checksums to be completed, which a veth pair never does.
#[test]
fn af_xdp_port_at_the_other_end_takes_partial_checksums() {
    let _alone = alone();
    let dirs = [(); 2].map(|()| Scratch::new("test").unwrap());
    let spaces = spaces(1500);
    let [af_xdp, sockets] = af_xdp_and_sockets(&spaces, [&dirs[0], &dirs[1]]);
    let (first, address) = (ports(), ADDRESSES[1][0]);
    let jobs = [
        programs::perftest("ib_send_lat", 64, false, first, address),
        programs::perftest("ib_write_bw", 65_536, false, first + 1, address),
        programs::rping(first + 2, address),
    ];
    run_all(&jobs, &af_xdp, &sockets, LeasePolicy::Never);
    let small = |port| programs::perftest("ib_send_lat", 64, false, port, "10.77.0.1");
    run_all(&[small(first + 3)], &sockets, &af_xdp, LeasePolicy::Never);
    let dropped = &af_xdp.status().unwrap()["counters"]["data"]["drop_rx_bad_udp_checksum"];
    assert_eq!(dropped.as_u64(), Some(0));
    down([af_xdp, sockets]);
}

#[test]
fn af_xdp_port_at_the_other_end_sends_streams() {
    let _alone = alone();
    let _without_autogroups = WithoutAutogroups::set();
    let dirs = [(); 2].map(|()| Scratch::new("test").unwrap());
    let spaces = spaces(1500);
    let [af_xdp, sockets] = af_xdp_and_sockets(&spaces, [&dirs[0], &dirs[1]]);
    let own = "10.77.0.1";
    run_all(&jobs(own, own), &sockets, &af_xdp, LeasePolicy::Never);
    check("mix", &sockets, &af_xdp, LeasePolicy::Never, dirs[1].path());
    down([af_xdp, sockets]);
}

#[test]
fn address_that_goes_away_for_a_while_or_for_too_long_and_comes_back() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let TwoHosts { a, b } = up(&spaces, &scratch, 1500);
    let ip = ADDRESSES[0][0];
    mix_while((&a, &b), scratch.path(), OPERATIONS, |_, _| {
        for _ in 0..2 {
            unassign(&spaces, 0, ip);
            std::thread::sleep(Duration::from_secs(1));
            assign(&spaces, 0, ip);
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let (serving, asking) = stream(&a, &b, LeasePolicy::Never, scratch.path());
    unassign(&spaces, 0, ip);
    expect_note(&b, "nothing arrives from 10.77.0.1 for");
    expect_peer_given_up(asking);
    assign(&spaces, 0, ip);
    expect_stream_ended(serving);
    check("mix", &a, &b, LeasePolicy::Never, scratch.path());
    wait_until("no note", SHORT, || notes(&b) == "[]").unwrap();
    down([a, b]);
}

/// Adds or deletes a rule by which a host drops the UDP packets that arrive, as a firewall does.
fn change_firewall(spaces: &Namespaces, end: usize, change: &str) {
    let netdev = spaces.netdev(end);
    let rule = [
        "rule",
        change,
        "pref",
        "10",
        "iif",
        netdev,
        "ipproto",
        "udp",
        "blackhole",
    ];
    spaces.ip(end, &rule).unwrap();
}

#[test]
fn firewall_that_drops_ends_requests_in_bounded_time_and_status_says_so() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let TwoHosts { a, b } = up(&spaces, &scratch, 1500);
    let (serving, asking) = stream(&a, &b, LeasePolicy::Never, scratch.path());
    // Rules apply before the host's own addresses are looked up if that has a later place.
    for local in [["add", "20"], ["del", "0"]] {
        let rule = ["rule", local[0], "pref", local[1], "lookup", "local"];
        spaces.ip(0, &rule).unwrap();
    }
    change_firewall(&spaces, 0, "add");
    expect_note(&b, "nothing arrives from 10.77.0.1 for");
    expect_note(&b, "firewalls");
    expect_peer_given_up(asking);
    // The other host hears nothing either, and learns of the end when the stream's retries do.
    change_firewall(&spaces, 0, "del");
    expect_stream_ended(serving);
    check("mix", &a, &b, LeasePolicy::Never, scratch.path());
    down([a, b]);
}

/// Sends the ICMP message by which a router reports the MTU of a path: from an address, to the
/// sender of a datagram between ports 21504, about the destination of it.
const REPORT_MTU: &str = "
import socket, struct, sys
ends, mtu = sys.argv[1:4], int(sys.argv[4])
family = socket.AF_INET6 if ':' in ends[0] else socket.AF_INET
sender, receiver = [socket.inet_pton(family, end) for end in ends[1:]]
udp = struct.pack('!HHHH', 21504, 21504, 1000, 0)
if family == socket.AF_INET:
    protocol = socket.IPPROTO_ICMP
    ip = struct.pack('!BBHHHBBH', 0x45, 0, 1020, 1, 0x4000, 64, 17, 0) + sender + receiver
    report = struct.pack('!HHHH', 0x304, 0, 0, mtu) + ip + udp
    total = sum(struct.unpack('!%dH' % (len(report) // 2), report))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    report = report[:2] + struct.pack('!H', total ^ 0xffff) + report[4:]
else:
    protocol = socket.IPPROTO_ICMPV6
    ip = struct.pack('!IHBB', 6 << 28, 1000, 17, 64) + sender + receiver
    report = struct.pack('!HHI', 0x200, 0, mtu) + ip + udp
raw = socket.socket(family, socket.SOCK_RAW, protocol)
raw.bind((ends[0], 0))
raw.sendto(report, (ends[1], 0))
";

#[test]
fn forged_report_of_a_short_mtu_does_not_stop_packets() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let hosts = up(&spaces, &scratch, 1500);
    let shortest = ["552", "1280"];
    for (family, third) in ["10.77.0.9", "fd77::9"].into_iter().enumerate() {
        assign(&spaces, 1, third);
        let [victim, other] = ADDRESSES.map(|of_host| of_host[family]);
        let mtu = shortest[family];
        let report = [
            "/usr/bin/python3",
            "-c",
            REPORT_MTU,
            third,
            victim,
            other,
            mtu,
        ];
        spaces.run(1, &report).unwrap();
        // The kernel of the victim believes it.
        let words = format!("mtu {mtu}");
        let route = || spaces.ip(0, &["route", "get", other]).unwrap();
        wait_until(&words, SHORT, || route().contains(&words)).unwrap();
        let port = ports();
        let jobs = match family {
            0 => jobs(victim, victim),
            _ => vec![
                programs::rping(port, victim),
                programs::rstream(port + 1, victim),
            ],
        };
        run_all(&jobs, &hosts.a, &hosts.b, LeasePolicy::Never);
        assert!(route().contains(&words), "{}", route());
        assert!(!notes(&hosts.a).contains("mtu"), "{}", notes(&hosts.a));
    }
    hosts.down().unwrap();
}

#[test]
fn host_without_urdmad_route_or_answer_is_named_with_the_reason() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let b = host(&spaces, (1, "b"), scratch.path(), &ADDRESSES[1], "").unwrap();
    for (ip, reason) in [
        ("10.77.0.1", "start urdmad there"),
        ("10.77.0.99", "nothing arrives from 10.77.0.99"),
        ("192.0.2.1", ""),
    ] {
        let rping = programs::rping(ports(), ip);
        let mut command = b.run(LeasePolicy::Never, &rping.client).unwrap();
        let ended = Process::run(&mut command, 2 * SHORT).unwrap();
        assert!(!ended.succeeded(), "{}", ended.describe());
        expect_note(&b, reason);
    }
    b.down().unwrap();
}

#[test]
fn idle_urdmad_sleeps() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let hosts = up(&spaces, &scratch, 1500);
    check(
        "data",
        &hosts.a,
        &hosts.b,
        LeasePolicy::Never,
        scratch.path(),
    );
    let wake_ups = || wake_ups(&hosts.a) + wake_ups(&hosts.b);
    wait_until("two quiet seconds", SHORT, || {
        let before = wake_ups();
        std::thread::sleep(Duration::from_secs(2));
        wake_ups() == before
    })
    .unwrap();
    hosts.down().unwrap();
}

// A build in root's home cannot be entered by the user.
#[test]
fn programs_of_another_user_are_not_those_of_the_build() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let host = host(&spaces, (0, "a"), scratch.path(), &ADDRESSES[0], "").unwrap();
    let command = host.run(LeasePolicy::Never, &[VERBS_CHECK]).unwrap();
    let daemon = fs::read_link(format!("/proc/{}/exe", host.daemon_pid().unwrap())).unwrap();
    let paths: Vec<&Path> = command.get_args().map(Path::new).collect();
    let named = |name| paths.iter().find(|path| path.ends_with(name)).unwrap();
    for program in [&daemon, *named("urdma"), *named("verbs-check")] {
        for dir in program.ancestors().skip(1) {
            let mode = fs::metadata(dir).unwrap().permissions().mode();
            assert_eq!(
                mode & 0o005,
                0o005,
                "{} of {}",
                dir.display(),
                program.display()
            );
        }
    }
    host.down().unwrap();
}

/// The statuses of urdmad's threads but that of control, which clients wake.
fn statuses_of_threads(host: &Instance) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", host.daemon_pid().unwrap())).unwrap();
    // A thread that has ended meanwhile has none.
    let statuses =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses
        .filter(|status| status.contains("urdmad-"))
        .collect()
}

/// How often these threads have slept: two of the port, the one that closes what clients have sent,
/// and the one by which it has sockets closed. Others, which these start, end soon.
fn wake_ups(host: &Instance) -> u64 {
    let mut statuses = Vec::new();
    wait_until("four threads", SHORT, || {
        statuses = statuses_of_threads(host);
        statuses.len() == 4
    })
    .unwrap();
    let count = |status: &String| -> u64 {
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    };
    statuses.iter().map(count).sum()
}

/// The message of `urdma up` with this port.
fn refusal(spaces: &Namespaces, scratch: &Path, addresses: &[&str], extra: &str) -> String {
    let refused = host(spaces, (1, "b"), scratch, addresses, extra);
    refused.unwrap_err().to_string()
}

fn expect_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no \"{word}\": {text}");
    }
}

#[test]
fn port_that_cannot_be_opened_says_what_to_do() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let dir = Scratch::new("test").unwrap();
    let spaces = spaces(1500);
    let refused = |addresses: &[&str], extra| refusal(&spaces, scratch.path(), addresses, extra);
    let text = refused(&["10.1.2.3"], "");
    expect_words(
        &text,
        &["10.1.2.3 is not an address of this host", "ip addr add"],
    );
    let text = refused(&["10.77.0.2"], "mtu = 9000\n");
    expect_words(&text, &["has an MTU of 1500", "set port.mtu = 1500"]);
    for key in ["lease_queues = 1", "netdev = \"x\"", "checksum = true"] {
        expect_words(&refused(&["10.77.0.2"], key), &["no such key"]);
    }
    expect_words(
        &refused(&["10.77.0.2"], "colour = 1"),
        &["unknown field `colour`"],
    );
    let host = host(&spaces, (1, "a"), dir.path(), &["10.77.0.2"], "").unwrap();
    let text = refused(&["10.77.0.2"], "");
    expect_words(
        &text,
        &[
            "UDP port 21504 of 10.77.0.2 is in use",
            "address of its own",
        ],
    );
    host.down().unwrap();
}

#[test]
fn limit_of_open_files_that_is_too_low_is_named() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let config = scratch.path().join("a.toml");
    let addresses = ["127.9.9.1", "127.9.9.2"];
    fs::write(
        &config,
        format!("address = {addresses:?}\n[port]\nkind = \"udp\"\n"),
    )
    .unwrap();
    // Without root's capabilities the limit cannot be raised.
    let mut command = Command::new("setpriv");
    command
        .args([
            "--bounding-set=-all",
            "--inh-caps=-all",
            "prlimit",
            "--nofile=200:200",
        ])
        .arg(urdma().unwrap().get_program())
        .args(["up", "--run-dir"])
        .arg(scratch.path().join("a"))
        .arg("--config")
        .arg(&config);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(!ended.succeeded(), "{}", ended.describe());
    expect_words(&ended.output, &["508 sockets are needed", "ulimit -n"]);
}
