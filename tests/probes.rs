//! The static probes of the provider and of urdmad, and the scripts of tools/bpftrace.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, LeasePolicy, Scratch};
use urdma_harness::process::{wait_until, Process};
use urdma_tests::{
    alone, check, check_alone, expect_nothing_left, lossy_hosts, OneHost, SHORT, VERBS_CHECK,
};

/// Probes of the provider and the number of their arguments.
const OF_PROVIDER: [(&str, usize); 12] = [
    ("cm_state", 4),
    ("cm_req", 6),
    ("cm_rep", 4),
    ("cm_rtu", 3),
    ("cm_retry", 4),
    ("cm_reject", 4),
    ("qp_create", 2),
    ("qp_modify", 6),
    ("event_push", 3),
    ("wake", 1),
    ("rto", 3),
    ("cwnd", 3),
];
/// Those of urdmad, which manages connections for the kernel module.
const OF_DAEMON: [(&str, usize); 8] = [
    ("cm_state", 4),
    ("cm_req", 6),
    ("cm_rep", 4),
    ("cm_rtu", 3),
    ("cm_retry", 4),
    ("cm_reject", 4),
    ("wake", 1),
    ("lease", 3),
];

/// A note of a probe, as readelf prints it.
#[derive(Debug, Default)]
struct Note {
    provider: String,
    name: String,
    location: u64,
    semaphore: u64,
    arguments: usize,
}

fn readelf(options: &[&str], file: &Path) -> String {
    let mut command = Command::new("readelf");
    let ended = Process::run(command.args(options).arg(file), SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    ended.output
}

fn hexadecimal(text: &str) -> u64 {
    u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap()
}

fn notes(file: &Path) -> Vec<Note> {
    let mut notes: Vec<Note> = Vec::new();
    for line in readelf(&["-n", "-W"], file).lines() {
        let Some((key, value)) = line.split_once(": ") else {
            continue;
        };
        let value = value.trim();
        // The first key is in the line of the note's owner.
        let key = key.split_whitespace().last().unwrap_or_default();
        match (key, notes.last_mut()) {
            ("Provider", _) => notes.push(Note {
                provider: value.to_owned(),
                ..Note::default()
            }),
            ("Name", Some(note)) => note.name = value.to_owned(),
            ("Location", Some(note)) => {
                let mut parts = value.split(", ");
                note.location = hexadecimal(parts.next().unwrap());
                let semaphore = parts.find_map(|part| part.strip_prefix("Semaphore: "));
                note.semaphore = hexadecimal(semaphore.unwrap());
            }
            ("Arguments", Some(note)) => note.arguments = value.split_whitespace().count(),
            _ => {}
        }
    }
    notes
}

/// Beginning and length of a section.
fn section(file: &Path, name: &str) -> std::ops::Range<u64> {
    let text = readelf(&["-S", "-W"], file);
    let line = text
        .lines()
        .find(|line| line.contains(&format!(" {name} ")));
    let fields: Vec<&str> = line
        .unwrap()
        .split_once(name)
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let (begin, octets) = (hexadecimal(fields[1]), hexadecimal(fields[3]));
    begin..begin + octets
}

fn expect_probes(file: &str, expected: &[(&str, usize)]) {
    let file = binary_dir().unwrap().join(file);
    let (code, semaphores) = (section(&file, ".text"), section(&file, ".probes"));
    let mut found = BTreeMap::new();
    for note in notes(&file) {
        assert_eq!(note.provider, "urdma", "{note:?}");
        // A copy whose code is removed would leave a note with another address.
        assert!(
            code.contains(&note.location),
            "{note:?} is not in {code:x?}"
        );
        assert!(
            semaphores.contains(&note.semaphore),
            "{note:?}: {semaphores:x?}"
        );
        found.insert(note.name, note.arguments);
    }
    let expected: BTreeMap<String, usize> = expected
        .iter()
        .map(|(name, arguments)| ((*name).to_owned(), *arguments))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn library_has_the_documented_probes() {
    expect_probes("liburdma_provider.so", &OF_PROVIDER);
}

#[test]
fn urdmad_has_the_documented_probes() {
    expect_probes("urdmad", &OF_DAEMON);
}

/// Starts a script of tools/bpftrace and waits until it traces.
fn script(name: &str, first_line: &str) -> Process {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/bpftrace/run");
    let library: PathBuf = binary_dir().unwrap().join("liburdma_provider.so");
    let mut command = Command::new(tools);
    command.arg(name).env("URDMA_LIBRARY", library);
    let mut tracing = Process::start(&mut command).unwrap();
    tracing.wait_for_text(first_line, SHORT).unwrap();
    tracing
}

/// What it has printed after Ctrl-C.
fn end(tracing: Process) -> String {
    tracing.signal(Signal::SIGINT).unwrap();
    let ended = tracing.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    ended.output
}

const NEEDS_BPF: &str = "needs root, bpftrace, tracefs and a kernel that allows BPF";

#[test]
#[ignore = "needs root, bpftrace, tracefs and a kernel that allows BPF"]
fn scripts_show_connections() {
    let _alone = alone();
    let one = OneHost::up();
    for (name, first_line, parts) in [
        (
            "timeline",
            "TIME (us)",
            &[
                "sent REQ for port",
                "received REP",
                "sent RTU",
                "state 2 to 3",
                "event 9, status 0",
            ][..],
        ),
        (
            "slow-connections",
            "connections that take longer",
            &["@connect_us", "not established"],
        ),
    ] {
        let tracing = script(name, first_line);
        check_alone(&one.host, "cm");
        let text = end(tracing);
        for part in parts {
            assert!(text.contains(part), "{NEEDS_BPF}: no '{part}' in:\n{text}");
        }
    }
    one.down();
}

#[test]
#[ignore = "needs root, bpftrace, tracefs and a kernel that allows BPF"]
fn script_counts_retransmissions_by_peer() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let [a, b] = lossy_hosts(scratch.path());
    let tracing = script("retransmissions", "retransmissions by peer");
    check("data", &a, &b, LeasePolicy::Never, scratch.path());
    let text = end(tracing);
    assert!(text.contains("@timeouts"), "{NEEDS_BPF}: {text}");
    for host in [a, b] {
        host.down().unwrap();
    }
}

/// Kills each process that uses the library at one of its first messages of connection management,
/// sent or received, or changes of a connection's state.
fn kills_at_messages() -> Process {
    let library = binary_dir().unwrap().join("liburdma_provider.so");
    let probes = [
        "cm_state",
        "cm_req",
        "cm_rep",
        "cm_rtu",
        "cm_retry",
        "cm_reject",
    ]
    .map(|probe| format!("usdt:{}:urdma:{probe}", library.display()));
    let script = format!(
        "BEGIN {{ printf(\"tracing\\n\"); }}
         {} {{
             if (@at[pid] == 0) {{ @at[pid] = 1 + rand % 48; }}
             @met[pid] = @met[pid] + 1;
             if (@met[pid] == @at[pid]) {{ @kills[probe] = count(); signal(\"KILL\"); }}
         }}
         END {{ clear(@at); clear(@met); }}",
        probes.join(",")
    );
    let mut command = Command::new("bpftrace");
    command.args(["--unsafe", "--usdt-file-activation", "-e", &script]);
    let mut tracing = Process::start(&mut command).unwrap();
    tracing.wait_for_text("tracing", SHORT).unwrap();
    tracing
}

#[test]
#[ignore = "needs root, bpftrace, tracefs and a kernel that allows BPF"]
fn a_thousand_kills_at_the_messages_of_a_handshake_leave_nothing() {
    const KILLS: usize = 1000;
    const PORT: &str = "7394";
    let _alone = alone();
    let one = OneHost::up();
    let start = |end: &str| {
        let argv = [VERBS_CHECK, end, PORT];
        Process::start(&mut one.host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
    };
    // It may be killed at the first message, before it prints that it listens.
    let serve = || {
        let mut server = start("storm-server");
        wait_until("a server", SHORT, || {
            server.printed().contains("listening") || !server.is_running()
        })
        .unwrap();
        server
    };
    let mut before = None;
    let mut kills = 0;
    let tracing = kills_at_messages();
    while kills < KILLS {
        let (mut server, mut client) = (serve(), start("storm-client"));
        for _ in 0..KILLS / 20 {
            wait_until("a kill", SHORT, || {
                !server.is_running() || !client.is_running()
            })
            .unwrap();
            kills += 1;
            // The other one goes on, until it is killed in its turn.
            if client.is_running() {
                server = serve();
            } else {
                client = start("storm-client");
            }
        }
        drop((server, client));
        expect_nothing_left(&one.host, &mut before);
    }
    let text = end(tracing);
    for probe in ["cm_state", "cm_req", "cm_rep", "cm_rtu"] {
        assert!(
            text.contains(probe),
            "{NEEDS_BPF}: no '{probe}' in:\n{text}"
        );
    }
    one.down();
}
