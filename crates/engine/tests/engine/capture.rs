//! Captures of two engines (`URDMA_CAPTURE`), read by Debian's tshark with
//! `tools/wireshark/trp.lua`.

use std::path::{Path, PathBuf};
use std::process::Command;

use urdma_engine::{Access, Completion, RemoteAddr, SendOp, Status};
use urdma_harness::instance::Scratch;
use urdma_harness::tshark::{self, MALFORMED};

use crate::rig::{engine, instance, pair_of, parts, End};

const VARIABLE: &str = "URDMA_CAPTURE";
/// The directory of the captures, for the process in which the engines write them.
const DIRECTORY: &str = "URDMA_TEST_CAPTURES";
/// Octets of a message in a frame.
const LONG: usize = 4096;
/// Octets of a message in a cell.
const SHORT: usize = 8;

fn capture(directory: &Path, slot: u8) -> PathBuf {
    directory.join(format!("{slot}.pcapng"))
}

fn succeed(end: &End, wr_id: u64) -> Completion {
    end.expect(wr_id, Status::Success).completion
}

/// One message of each kind from slot 1, and what they cause in slot 2.
fn exchange(directory: &Path) {
    let instance = instance();
    let engines = [1, 2].map(|slot| {
        // One file per process is what the variable is for, and an engine reads it when it starts.
        std::env::set_var(VARIABLE, capture(directory, slot));
        engine(&instance, slot)
    });
    let (a, b) = pair_of(engines, LONG, Access::all());
    for wr_id in 1..=2 {
        b.receive(wr_id, &[b.sge(0, LONG)]).unwrap();
    }
    a.post_with(1, SendOp::Send, Some(0xfeed), true, &[a.sge(0, SHORT)])
        .unwrap();
    succeed(&a, 1);
    assert_eq!(succeed(&b, 1).imm, Some(0xfeed));
    let remote = b.remote(0);
    let write = SendOp::Write { remote };
    a.post_with(2, write, Some(0xcafe), true, &[a.sge(0, LONG)])
        .unwrap();
    succeed(&a, 2);
    assert_eq!(succeed(&b, 2).imm, Some(0xcafe));
    a.post(3, SendOp::Read { remote }, &[a.sge(0, LONG)])
        .unwrap();
    succeed(&a, 3);
    let add = SendOp::FetchAdd {
        remote: RemoteAddr {
            to: remote.to.next_multiple_of(8),
            ..remote
        },
        add: 1,
    };
    a.post(4, add, &[a.sge(0, SHORT)]).unwrap();
    succeed(&a, 4);
    let mut local = a.sge(0, SHORT);
    local.lkey ^= 1;
    a.post(5, SendOp::Send, &[local]).unwrap();
    a.expect(5, Status::LocalProtectionError);
}

/// Messages of two lanes of a process, whose engines start one after the other, and the answers.
fn exchange_of_lanes(directory: &Path) {
    std::env::set_var(VARIABLE, capture(directory, 1));
    let instance = instance();
    let first = engine(&instance, 1);
    let send = |engines, lane: u64| {
        let (a, b) = pair_of(engines, LONG, Access::all());
        b.receive(lane, &[b.sge(0, LONG)]).unwrap();
        a.post(lane, SendOp::Send, &[a.sge(0, SHORT)]).unwrap();
        succeed(&a, lane);
        succeed(&b, lane);
    };
    send([first.clone(), engine(&instance, 2)], 1);
    let lane = first.start_lane(parts(&instance, 3)).unwrap();
    send([lane, engine(&instance, 4)], 2);
    send([first, engine(&instance, 5)], 3);
}

/// Fields of a capture's messages, one line for each message.
fn fields(directory: &Path, slot: u8, names: &[&str]) -> Vec<String> {
    let names: Vec<_> = names
        .iter()
        .map(|name| format!("urdma_channel.{name}"))
        .collect();
    let names = names.iter().flat_map(|name| ["-e", name]);
    let format = ["-T", "fields", "-E", "separator= "];
    let arguments: Vec<_> = format.into_iter().chain(names).collect();
    tshark::read(directory, &capture(directory, slot), &arguments).unwrap()
}

/// The field of the only message of a capture that has it.
fn field(directory: &Path, slot: u8, name: &str) -> String {
    let mut found = fields(directory, slot, &[name]);
    found.retain(|value| !value.is_empty());
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.swap_remove(0)
}

/// Runs a test of this file in a process that writes its captures to a directory.
fn run_again(test: &str, directory: &Path) {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("capture::{test}")])
        .env(DIRECTORY, directory)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{output}");
}

#[test]
fn capture_shows_the_messages_of_a_channel() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        exchange(Path::new(&directory));
        return;
    }
    let scratch = Scratch::new("capture").unwrap();
    let directory = scratch.path();
    run_again("capture_shows_the_messages_of_a_channel", directory);
    for slot in [1, 2] {
        let bad = format!("!urdma_channel or {MALFORMED}");
        let broken = tshark::read(directory, &capture(directory, slot), &["-Y", &bad]).unwrap();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }
    let names = [
        "kind",
        "flags.last",
        "msn",
        "immediate",
        "payload_length",
        "read.size",
    ];
    let requests = [
        "1 1 1 0x0000feed 8 ",
        "12 1 2 0x0000cafe 4096 ",
        "4 1 1   4096",
        "6 1 2   ",
        "8 1 1   ",
    ];
    assert_eq!(fields(directory, 1, &names), requests);
    assert_eq!(fields(directory, 2, &names), ["5 1   4096 ", "7 1 1   "]);
    let sink = field(directory, 1, "read.sink_stag");
    assert_eq!(field(directory, 2, "stag"), sink);
    let target = field(directory, 1, "stag");
    assert_eq!(field(directory, 1, "read.source_stag"), target);
    // Both directions are of the same queue pairs, and have a connection id each.
    let ends = ["source_qpn", "destination_qpn", "id"];
    let back = ["destination_qpn", "source_qpn", "id"];
    let [ends, back] = [(1, ends), (2, back)].map(|(slot, names)| fields(directory, slot, &names));
    assert!(ends.iter().all(|of| *of == ends[0]), "{ends:?}");
    assert!(back.iter().all(|of| *of == back[0]), "{back:?}");
    let [(ends, id), (back, id_back)] = [&ends, &back].map(|of| of[0].rsplit_once(' ').unwrap());
    assert!(
        ends == back && id != id_back,
        "{ends} {id}, {back} {id_back}"
    );
    let columns = ["-T", "fields", "-e", "_ws.col.Info"];
    let summaries = tshark::read(directory, &capture(directory, 1), &columns).unwrap();
    assert!(
        summaries[0].ends_with(", message 1, immediate 0xfeed, 8 octets, last"),
        "{summaries:?}"
    );
}

#[test]
fn engines_of_a_process_share_a_capture() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        exchange_of_lanes(Path::new(&directory));
        return;
    }
    let scratch = Scratch::new("capture-lanes").unwrap();
    let directory = scratch.path();
    run_again("engines_of_a_process_share_a_capture", directory);
    let bad = format!("!urdma_channel or {MALFORMED}");
    let broken = tshark::read(directory, &capture(directory, 1), &["-Y", &bad]).unwrap();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let ports = ["-T", "fields", "-e", "udp.srcport"];
    let sends = ["-Y", "urdma_channel.kind == 1"];
    let arguments: Vec<_> = sends.into_iter().chain(ports).collect();
    let senders = tshark::read(directory, &capture(directory, 1), &arguments).unwrap();
    assert_eq!(senders, ["21505", "21507", "21505"]);
}
