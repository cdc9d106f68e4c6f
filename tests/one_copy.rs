//! Long messages inside a host: in one copy if the kernel lets the receiver read the sender's
//! memory, in two if it does not or if the feature is off.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;
use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::pair;
use urdma_harness::process::{wait_until, Process};
use urdma_harness::programs::Ready;
use urdma_tests::{alone, ports, OneHost, NOTICE};

/// Makes the program unable to read processes with more rights, which can read it.
const WITHOUT_PTRACE: [&str; 3] = [
    "setpriv",
    "--bounding-set=-sys_ptrace,-chown",
    "--inh-caps=-sys_ptrace,-chown",
];

/// One end of an endless exchange of 64 KB messages; it checks what it receives.
fn end(host: &Instance, port: u16, setting: &str, wrapper: &[&str], peer: &[&str]) -> Process {
    let port = port.to_string();
    let messages = [
        "ibv_rc_pingpong",
        "-g",
        "1",
        "-c",
        "-s",
        "65536",
        "-n",
        "1000000000",
        "-p",
        &port,
    ];
    let argv = [wrapper, &messages, peer].concat();
    let mut command: Command = host.run(LeasePolicy::Never, &argv).unwrap();
    Process::start(command.env("URDMA_CMA", setting)).unwrap()
}

/// The reports of both ends, the server's first, once `is_shown` holds for them; the server runs in
/// `wrapper`.
fn reports(
    settings: [&str; 2],
    wrapper: &[&str],
    is_shown: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = end(&one.host, port, settings[0], wrapper, &[]);
    let is_ready = || pair::is_ready(Ready::Tcp(port), &one.host);
    wait_until("listening", NOTICE, is_ready).unwrap();
    let client = end(&one.host, port, settings[1], &[], &["127.0.0.1"]);
    let mut seen = Vec::new();
    wait_until("the reports", NOTICE, || {
        let status = one.host.status().unwrap();
        seen = status["slots"]
            .as_array()
            .unwrap()
            .iter()
            .map(|slot| slot["report"].clone())
            .collect();
        seen.len() == 2 && is_shown(&seen)
    })
    .unwrap();
    drop((server, client));
    one.down();
    seen
}

fn counter(report: &Value, name: &str) -> u64 {
    report["counters"][name].as_u64().unwrap_or(0)
}

fn talks(report: &Value) -> bool {
    counter(report, "datagrams_received") > 1000
}

fn reads(report: &Value) -> bool {
    counter(report, "payloads_far") > 100
}

#[test]
fn processes_of_one_user_read_long_messages_where_they_lie() {
    let reports = reports(["try", "try"], &[], |reports| reports.iter().all(reads));
    for report in reports {
        assert_eq!(counter(&report, "payloads_unreadable"), 0);
        assert_eq!(report["copies_twice_from"], Value::Array(Vec::new()));
    }
}

#[test]
fn either_end_can_switch_it_off() {
    for settings in [["never", "try"], ["try", "never"]] {
        let reports = reports(settings, &[], |reports| reports.iter().all(talks));
        for report in reports {
            assert_eq!(counter(&report, "payloads_far"), 0, "{settings:?}");
        }
    }
}

#[test]
fn who_may_not_read_its_peer_copies_and_says_so() {
    let reports = reports(["try", "try"], &WITHOUT_PTRACE, |reports| {
        talks(&reports[0]) && reads(&reports[1])
    });
    assert_eq!(counter(&reports[0], "payloads_far"), 0);
    assert_eq!(reports[0]["copies_twice_from"].as_array().unwrap().len(), 1);
    assert_eq!(reports[1]["copies_twice_from"], Value::Array(Vec::new()));
}
