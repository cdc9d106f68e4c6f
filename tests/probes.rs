//! The static probes of the provider and of urdmad, and the scripts of tools/bpftrace.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::resource::{setrlimit, Resource};
use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Scratch};
use urdma_harness::process::{wait_until, Process};
use urdma_tests::{
    alone, check, check_alone, expect_nothing_left, lossy_hosts, OneHost, SHORT, VERBS_CHECK,
};

/// Probes of the provider and the number of their arguments.
const OF_PROVIDER: [(&str, usize); 14] = [
    ("cm_state", 4),
    ("cm_req", 6),
    ("cm_rep", 4),
    ("cm_rtu", 3),
    ("cm_retry", 4),
    ("cm_reject", 4),
    ("cm_dreq", 3),
    ("cm_drep", 3),
    ("qp_create", 2),
    ("qp_modify", 6),
    ("event_push", 3),
    ("wake", 1),
    ("rto", 3),
    ("cwnd", 3),
];
/// Those of urdmad, which manages connections for the kernel module.
const OF_DAEMON: [(&str, usize); 10] = [
    ("cm_state", 4),
    ("cm_req", 6),
    ("cm_rep", 4),
    ("cm_rtu", 3),
    ("cm_retry", 4),
    ("cm_reject", 4),
    ("cm_dreq", 3),
    ("cm_drep", 3),
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

/// A section of a file.
struct Section {
    /// Its addresses.
    addresses: Range<u64>,
    /// Where it begins in the file.
    offset: u64,
}

fn section(file: &Path, name: &str) -> Section {
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
    let [begin, offset, octets] = [1, 2, 3].map(|at| hexadecimal(fields[at]));
    Section {
        addresses: begin..begin + octets,
        offset,
    }
}

fn expect_probes(file: &str, expected: &[(&str, usize)]) {
    let file = binary_dir().unwrap().join(file);
    let (code, semaphores) = (section(&file, ".text"), section(&file, ".probes"));
    let octets = fs::read(&file).unwrap();
    let mut found = BTreeMap::new();
    for note in notes(&file) {
        assert_eq!(note.provider, "urdma", "{note:?}");
        // A copy whose code is removed would leave a note with another address.
        assert!(
            code.addresses.contains(&note.location),
            "{note:?} is not in {:x?}",
            code.addresses
        );
        assert!(
            semaphores.addresses.contains(&note.semaphore),
            "{note:?}: {:x?}",
            semaphores.addresses
        );
        if cfg!(target_arch = "x86_64") {
            // The kernel replaces no other instruction by a call, and none on two pages.
            let at = note.location - code.addresses.start + code.offset;
            let at = usize::try_from(at).unwrap();
            assert_eq!(octets[at..at + 5], [0x66, 0x66, 0x66, 0x66, 0x90]);
            assert_eq!(note.location % 8, 0, "{note:?}");
        }
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
                "sent DREQ",
                "received DREP",
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

/// Since Linux 6.18 a probe that was passed once is a system call, which urdmad's filter has to
/// leave alone.
#[test]
#[ignore = "needs root, bpftrace, tracefs and a kernel that allows BPF"]
fn urdmad_is_traced_in_its_sandbox() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let [a, b] = lossy_hosts(scratch.path());
    let urdmad = binary_dir().unwrap().join("urdmad");
    let probe = format!("usdt:{}:urdma:wake", urdmad.display());
    let count = format!("BEGIN {{ printf(\"traces\\n\"); }} {probe} {{ @wakes = count(); }}");
    let mut command = Command::new("bpftrace");
    let mut tracing =
        Process::start(command.args(["--usdt-file-activation", "-e", &count])).unwrap();
    tracing.wait_for_text("traces", SHORT).unwrap();
    check("data", &a, &b, LeasePolicy::Never, scratch.path());
    let text = end(tracing);
    let wakes = text.split_once("@wakes: ").map(|(_, count)| count.trim());
    let wakes: Option<u32> = wakes.and_then(|count| count.parse().ok());
    assert!(wakes.is_some_and(|count| count > 10), "{NEEDS_BPF}: {text}");
    for host in [a, b] {
        host.down().unwrap();
    }
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

/// Messages at which an end is killed: the client sends the first, the server the second, and so
/// on.
const MESSAGES: [&str; 5] = ["cm_req", "cm_rep", "cm_rtu", "cm_dreq", "cm_drep"];
/// An instruction that ends a process that no debugger traces, with SIGTRAP.
const BREAKPOINT: &[u8] = match cfg!(target_arch = "x86_64") {
    true => &[0xcc],
    false => &0xd420_0000_u32.to_le_bytes(),
};

/// Where the library is in the memory of a process that has attached.
fn library_in(process: &Process) -> u64 {
    let mut base = None;
    wait_until("a process that has attached", SHORT, || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.id())).unwrap();
        let is_attached = maps.contains("urdma-recording");
        let line = maps
            .lines()
            .find(|line| line.ends_with("liburdma_provider.so"));
        let begin = line.and_then(|line| line.split_once('-'));
        base = begin.filter(|_| is_attached).map(|(begin, _)| begin.into());
        base.is_some()
    })
    .unwrap();
    hexadecimal(&base.unwrap_or_else(String::new))
}

/// Has a process end when it next comes to a probe: a message that it sends has not been sent then,
/// and one that it has received has had no effect.
fn end_at(process: &Process, probe: &Note) {
    let base = library_in(process);
    let memory = format!("/proc/{}/mem", process.id());
    let memory = File::options().write(true).open(memory).unwrap();
    memory
        .write_all_at(BREAKPOINT, base + probe.location)
        .unwrap();
    // It does not come to a probe whose semaphore is 0.
    memory
        .write_all_at(&1_u16.to_ne_bytes(), base + probe.semaphore)
        .unwrap();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Server,
}

/// Two programs that connect and disconnect all the time.
struct Storm<'a> {
    host: &'a Instance,
}

impl Storm<'_> {
    fn start(&self, end: &str) -> Process {
        let argv = [VERBS_CHECK, end, "7394"];
        Process::start(&mut self.host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
    }

    fn client(&self) -> Process {
        self.start("storm-client")
    }

    fn server(&self) -> Process {
        let mut server = self.start("storm-server");
        server.wait_for_text("listening", SHORT).unwrap();
        server
    }

    /// Kills `victim` at a message, of its first connection or of one of many. The other end goes
    /// on with the victim's successor.
    fn kill_at(&self, probe: &Note, victim: End, is_first: bool) {
        let (mut client, server);
        match (victim, is_first) {
            (End::Client, true) => {
                client = self.client();
                end_at(&client, probe);
                server = self.server();
            }
            (End::Server, true) => {
                server = self.server();
                end_at(&server, probe);
                client = self.client();
            }
            (_, false) => {
                server = self.server();
                client = self.client();
                client.wait_for_text("connecting", SHORT).unwrap();
                let ends = [(End::Client, &client), (End::Server, &server)];
                let ends = ends.into_iter().filter(|(end, _)| *end == victim);
                ends.for_each(|(_, process)| end_at(process, probe));
            }
        }
        let (killed, mut survivor) = match victim {
            End::Client => (client, server),
            End::Server => (server, client),
        };
        let ended = killed.wait(SHORT).unwrap().describe();
        assert!(ended.contains("signal 5"), "{probe:?} {victim:?}: {ended}");
        let mut successor = match victim {
            End::Client => self.client(),
            End::Server => self.server(),
        };
        let connecting = match victim {
            End::Client => &mut successor,
            End::Server => &mut survivor,
        };
        connecting.wait_for_text("connecting", SHORT).unwrap();
        assert!(survivor.is_running(), "{}", survivor.printed());
    }
}

/// Kills each end at each message, `times` times.
fn kill_at_each_message(times: u32) {
    let _alone = alone();
    // The ends leave no files.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).unwrap();
    let notes = notes(&binary_dir().unwrap().join("liburdma_provider.so"));
    let one = OneHost::up();
    let storm = Storm { host: &one.host };
    let mut before = None;
    for message in MESSAGES {
        let probe = notes.iter().find(|note| note.name == message).unwrap();
        for number in 0..times {
            for victim in [End::Client, End::Server] {
                storm.kill_at(probe, victim, number % 2 == 0);
            }
            expect_nothing_left(&one.host, &mut before);
        }
    }
    one.down();
}

#[test]
fn kill_of_either_end_at_each_message_of_a_connection_leaves_nothing() {
    kill_at_each_message(2);
}

#[test]
#[ignore = "make test-all"]
fn a_thousand_kills_at_the_messages_of_connections_leave_nothing() {
    kill_at_each_message(100);
}
