//! Captures of real traffic by urdmad and by the provider, read by Debian's tshark with
//! `tools/wireshark/trp.lua`: every frame decodes, none is malformed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::{Ended, Process};
use urdma_harness::tshark::{self, MALFORMED};
use urdma_harness::{pair, programs};
use urdma_tests::{alone, ports, OneHost, VERBS_CHECK};

const LIMIT: Duration = Duration::from_secs(180);

/// RDMAP opcodes (doc/spec/trp.md) of the programs below, between hosts.
const READ_REQUEST: &str = "1";
const READ_RESPONSE: &str = "2";
const SEND: &str = "3";
const TERMINATE: &str = "7";
const ATOMIC_REQUEST: &str = "10";
const ATOMIC_RESPONSE: &str = "11";
const OPCODES: [&str; 6] = [
    READ_REQUEST,
    READ_RESPONSE,
    SEND,
    TERMINATE,
    ATOMIC_REQUEST,
    ATOMIC_RESPONSE,
];
/// Messages of channels (doc/spec/channel.md) of the same programs inside a host: SEND,
/// READ_REQUEST, READ_RESPONSE, ATOMIC_REQUEST, ATOMIC_RESPONSE, TERMINATE, WRITE_IMMEDIATE.
const MESSAGES: [&str; 7] = ["1", "4", "5", "6", "7", "8", "12"];
/// REQ, REP, RTU, DREQ.
const CM_KINDS: [&str; 4] = ["1", "2", "3", "5"];
/// COOKIE, between hosts.
const CM_COOKIE: &str = "8";
/// What a capture shows: these fields of the script.
const FIELDS: [&str; 3] = ["trp.opcode", "urdma_channel.kind", "trp.cm.kind"];

/// `argv`, with the provider's capture in `capture` if given.
fn with_capture(capture: Option<&Path>, argv: Vec<String>) -> Vec<String> {
    let Some(directory) = capture else {
        return argv;
    };
    let variable = format!("URDMA_CAPTURE={}", directory.join("%p.pcapng").display());
    [vec!["env".to_owned(), variable], argv].concat()
}

/// Sends, reads, atomics, a stream, connection management and a Terminate between `server` and
/// `client`.
fn run_mix(server: &Instance, client: &Instance, scratch: &Path, capture: Option<&Path>) {
    let (address, port) = (server.address(), ports());
    for mut job in [
        programs::perftest("ib_send_bw", 4096, false, port, address),
        programs::perftest("ib_read_lat", 64, false, port + 1, address),
        programs::perftest("ib_atomic_lat", 8, false, port + 2, address),
        programs::rping(port + 3, address),
        programs::rstream(port + 4, address),
    ] {
        job.server = with_capture(capture, job.server);
        job.client = with_capture(capture, job.client);
        if let Err(failure) = pair::run(&job, server, client, LeasePolicy::Never) {
            panic!("{}: {failure}", job.label);
        }
    }
    let socket = scratch.join("meet").display().to_string();
    let ends = [(server, "server"), (client, "client")].map(|(host, role)| {
        let argv = [VERBS_CHECK, "wrong-rkey", role, &socket].map(str::to_owned);
        let argv = with_capture(capture, argv.to_vec());
        Process::start(&mut host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
    });
    for end in ends {
        end_well("verbs-check", &end.wait(LIMIT).unwrap());
    }
}

fn end_well(what: &str, ended: &Ended) {
    assert!(ended.succeeded(), "{what}: {}", ended.describe());
}

/// Checks one capture; returns its values of [`FIELDS`].
fn check(directory: &Path, capture: &Path, skip: &str) -> [BTreeSet<String>; 3] {
    let bad = format!("(!(trp or urdma_channel) or {MALFORMED}){skip}");
    let broken = tshark::read(directory, capture, &["-Y", &bad]).unwrap();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let fields = FIELDS.iter().flat_map(|field| ["-e", field]);
    let format = ["-T", "fields", "-Y", "trp or urdma_channel"];
    let arguments: Vec<_> = format.into_iter().chain(fields).collect();
    let shown = tshark::read(directory, capture, &arguments).unwrap();
    // A process that only receives sends nothing over a channel.
    [0, 1, 2].map(|column| {
        let values = shown.iter().filter_map(|line| line.split('\t').nth(column));
        let values = values.filter(|value| !value.is_empty());
        values.map(str::to_owned).collect()
    })
}

fn expect_all(what: &str, expected: &[&str], shown: &BTreeSet<String>) {
    for value in expected {
        assert!(shown.contains(*value), "no {what} {value}: {shown:?}");
    }
}

/// Captures all kinds of messages between two hosts at the first one; what `urdma capture` printed.
fn capture_mix(hosts: TwoHosts, scratch: &Path, options: &[&str], file: &Path) -> Ended {
    let mut command = hosts.a.subcommand("capture").unwrap();
    command.args(options).args(["--seconds", "1000"]).arg(file);
    let mut capturing = Process::start(&mut command).unwrap();
    capturing.wait_for_text("capturing", LIMIT).unwrap();
    run_mix(&hosts.a, &hosts.b, scratch, None);
    capturing.signal(Signal::SIGINT).unwrap();
    let ended = capturing.wait(LIMIT).unwrap();
    end_well("urdma capture", &ended);
    hosts.down().unwrap();
    ended
}

#[test]
fn daemons_capture_of_two_hosts_decodes_in_tshark() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    let capture = scratch.path().join("forwarded.pcapng");
    let ended = capture_mix(hosts, scratch.path(), &[], &capture);
    // Between the hosts there is ARP and neighbour discovery too.
    let [opcodes, _, cm_kinds] = check(scratch.path(), &capture, " and not (arp or icmpv6)");
    expect_all("opcode", &OPCODES, &opcodes);
    expect_all("CM message", &CM_KINDS, &cm_kinds);
    expect_all("CM message", &[CM_COOKIE], &cm_kinds);
    let frames = tshark::read(scratch.path(), &capture, &[]).unwrap().len();
    assert!(
        ended.output.contains(&format!("{frames} frames in ")),
        "{frames}: {}",
        ended.output
    );
}

#[test]
fn capture_of_connection_management_has_nothing_else() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    let capture = scratch.path().join("cm.pcapng");
    let ended = capture_mix(hosts, scratch.path(), &["--only", "cm"], &capture);
    let [opcodes, _, cm_kinds] = check(scratch.path(), &capture, "");
    assert!(opcodes.is_empty(), "{opcodes:?}");
    expect_all("CM message", &CM_KINDS, &cm_kinds);
    expect_all("CM message", &[CM_COOKIE], &cm_kinds);
    assert!(
        ended.output.contains("left out by the filter"),
        "{}",
        ended.output
    );
}

#[test]
fn providers_capture_of_one_host_decodes_in_tshark() {
    let _alone = alone();
    let one = OneHost::up();
    let directory = one.scratch.path().join("captures");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(one.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    run_mix(&one.host, &one.host, one.scratch.path(), Some(&directory));
    let captures: Vec<PathBuf> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let (mut messages, mut cm_kinds) = (BTreeSet::new(), BTreeSet::new());
    for capture in &captures {
        let [_, mut some, mut kinds] = check(&directory, capture, "");
        messages.append(&mut some);
        cm_kinds.append(&mut kinds);
    }
    assert!(captures.len() >= 10, "{captures:?}");
    expect_all("message", &MESSAGES, &messages);
    expect_all("CM message", &CM_KINDS, &cm_kinds);
    one.down();
}
