//! The counters of the port in sysfs, as monitors read them.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::process::wait_until;
use urdma_harness::programs::{self, Job};
use urdma_tests::{alone, ports, print_of, run_all, stream, OneHost};

const COUNTERS: &str = "/sys/class/infiniband/urdma0/ports/1/counters";
const SIZE_OCTETS: u32 = 65_536;
const ITERATIONS: u32 = 2000;
const LIMIT: Duration = Duration::from_secs(30);

/// The counters of the port, as a program reads them that `urdma run` has not started: from the
/// files, without the stand-in.
fn read_all(host: &Instance) -> BTreeMap<String, u64> {
    let port: PathBuf = host.run_dir().join("sysfs/class/infiniband/urdma0/ports/1");
    let mut values = BTreeMap::new();
    for directory in ["counters", "hw_counters"] {
        for entry in fs::read_dir(port.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&port).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            values.insert(
                name.to_str().unwrap().to_owned(),
                text.trim().parse().unwrap(),
            );
        }
    }
    values
}

/// Two readings of which no counter of the second is lower.
fn expect_no_step_back(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) {
    for (name, value) in before {
        assert!(
            after[name] >= *value,
            "{name}: {value}, then {}",
            after[name]
        );
    }
}

/// How much `name` has grown while `job` ran.
fn growth(host: &Instance, job: &Job, names: &[&str]) -> Vec<u64> {
    let before = read_all(host);
    run_all(std::slice::from_ref(job), host, host, LeasePolicy::Never);
    let after = read_all(host);
    expect_no_step_back(&before, &after);
    names
        .iter()
        .map(|name| after[*name] - before[*name])
        .collect()
}

#[test]
fn unmodified_programs_list_and_read_counters() {
    let _alone = alone();
    let one = OneHost::up();
    let listed = print_of(&one.host, &["ls", COUNTERS]);
    for name in [
        "port_xmit_data",
        "port_rcv_packets",
        "symbol_error",
        "VL15_dropped",
    ] {
        assert!(listed.lines().any(|line| line == name), "{listed}");
    }
    // What nothing counts has no file.
    assert!(!listed.contains("port_xmit_wait"), "{listed}");
    let file = format!("{COUNTERS}/port_xmit_data");
    let script = format!("import sys; print(int(open('{file}').read()))");
    let read = |argv: &[&str]| print_of(&one.host, argv).trim().parse::<u64>().unwrap();
    assert_eq!(read(&["cat", &file]), 0);
    let job = programs::perftest(
        "ib_write_bw",
        SIZE_OCTETS,
        false,
        ports(),
        one.host.address(),
    );
    run_all(&[job], &one.host, &one.host, LeasePolicy::Never);
    let sent = u64::from(ITERATIONS) * u64::from(SIZE_OCTETS) / 4;
    let by_cat = read(&["cat", &file]);
    assert!(by_cat >= sent, "{by_cat} of {sent}");
    assert_eq!(read(&["python3", "-c", &script]), by_cat);
    one.down();
}

#[test]
fn rdma_statistic_shows_hardware_counters() {
    let _alone = alone();
    let one = OneHost::up();
    let text = print_of(
        &one.host,
        &["rdma", "statistic", "show", "link", "urdma0/1", "-j"],
    );
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found[0]["ifname"], "urdma0");
    let counters = found[0].as_object().unwrap();
    let values = read_all(&one.host);
    for (file, value) in values
        .iter()
        .filter(|(file, _)| !file.ends_with("lifespan"))
    {
        if let Some(name) = file.strip_prefix("hw_counters/") {
            assert_eq!(counters[name], *value, "{text}");
        }
    }
    assert!(!counters.contains_key("lifespan"), "{text}");
    one.down();
}

#[test]
fn counters_have_what_every_kind_of_operation_moves() {
    let _alone = alone();
    let one = OneHost::up();
    let host = &one.host;
    let data = ["counters/port_xmit_data", "counters/port_rcv_data"];
    let octets = u64::from(ITERATIONS) * u64::from(SIZE_OCTETS);
    for tool in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
        for flags in [&[][..], &["-q", "3"]] {
            let job = programs::perftest(tool, SIZE_OCTETS, false, ports(), host.address());
            let grown = growth(host, &job.with(flags), &data);
            let is_all = grown.iter().all(|grown| *grown >= octets / 4);
            assert!(is_all, "{tool} {flags:?}: {grown:?}");
        }
    }
    let packets = [
        "counters/unicast_xmit_packets",
        "counters/unicast_rcv_packets",
        "hw_counters/sent_pkts",
        "counters/multicast_xmit_packets",
    ];
    let job = programs::pingpong("ibv_ud_pingpong", false, ports(), host.address());
    let grown = growth(host, &job, &packets);
    assert!(grown[..3].iter().all(|count| *count >= 2000), "{grown:?}");
    assert_eq!(grown[3], 0);
    let grown = growth(host, &programs::mckey(host.address(), "", ""), &packets);
    assert!(grown[3] > 0, "{grown:?}");
    one.down();
}

// A stopped process does not answer, and a killed one has stored its totals only now and then.
#[test]
fn counters_never_go_back() {
    let _alone = alone();
    let one = OneHost::up();
    let host = &one.host;
    let (server, client) = stream(host, host, LeasePolicy::Never, one.scratch.path());
    let mut last = read_all(host);
    let mut read = || {
        let now = read_all(host);
        expect_no_step_back(&last, &now);
        last = now;
        last["counters/port_xmit_data"]
    };
    wait_until("octets are counted", LIMIT, || read() > 1 << 20).unwrap();
    client.signal(Signal::SIGSTOP).unwrap();
    let stopped = read();
    assert!(read() >= stopped);
    client.signal(Signal::SIGKILL).unwrap();
    server.signal(Signal::SIGKILL).unwrap();
    drop((client, server));
    assert!(read() >= stopped);
    assert!(read() >= stopped);
    one.down();
}
