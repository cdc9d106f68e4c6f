//! What urdmad has given up once it runs, with each kind of port.
#![allow(clippy::unwrap_used)]

use std::fs;

use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::{Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::namespace::Namespaces;
use urdma_tests::bridges::{up, up_behind_bridges, ADDRESSES};
use urdma_tests::{alone, check, sockets, OneHost};

const NET_ADMIN: u64 = 1 << 12;
const BPF: u64 = 1 << 39;

/// The lines of `/proc/PID/task/TID/status` of each thread of an instance's urdmad.
fn threads(host: &Instance) -> Vec<String> {
    let pid = host.status().unwrap()["pid"].as_u64().unwrap();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap())
        .collect()
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap().trim()
}

/// Checks that every thread is filtered and has these capabilities and no others.
fn expect_confined(host: &Instance, threads_min: usize, capabilities: u64) {
    let threads = threads(host);
    assert!(threads.len() >= threads_min, "{}", threads.len());
    for status in threads {
        for (name, expected) in [("NoNewPrivs", 1), ("Seccomp", 2)] {
            assert_eq!(field(&status, name), expected.to_string(), "{status}");
        }
        for (name, expected) in [
            ("CapEff", capabilities),
            ("CapPrm", capabilities),
            ("CapInh", 0),
            ("CapBnd", 0),
            ("CapAmb", 0),
        ] {
            let set = u64::from_str_radix(field(&status, name), 16).unwrap();
            assert_eq!(set, expected, "{name} of {status}");
        }
    }
}

#[test]
fn without_a_port_urdmad_has_no_capability() {
    let _alone = alone();
    let one = OneHost::up();
    expect_confined(&one.host, 2, 0);
    one.down();
}

#[test]
fn sandbox_that_is_off_leaves_everything() {
    let _alone = alone();
    let one = OneHost::up_with(&["127.0.0.1"], "sandbox = \"off\"\n");
    for status in threads(&one.host) {
        assert_eq!(field(&status, "Seccomp"), "0");
        assert_eq!(field(&status, "CapEff"), field(&status, "CapPrm"));
        assert_ne!(field(&status, "CapEff"), "0000000000000000");
    }
    one.down();
}

#[test]
fn memif_port_needs_no_capability_with_or_without_leases() {
    let _alone = alone();
    let _pages = Hugepages::reserve(512).unwrap();
    let scratch = Scratch::new("test").unwrap();
    for (queues, policy) in [
        (Queues::Forwarded, LeasePolicy::Never),
        (Queues::Leased(1), LeasePolicy::Require),
    ] {
        let hosts = TwoHosts::up(scratch.path(), queues, 1500).unwrap();
        for host in [&hosts.a, &hosts.b] {
            // The control and the data thread, and those of DPDK.
            expect_confined(host, 4, 0);
        }
        check("mix", &hosts.a, &hosts.b, policy, scratch.path());
        hosts.down().unwrap();
    }
}

#[test]
fn tap_port_needs_no_capability() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = Namespaces::new().unwrap();
    for host in up_behind_bridges(&spaces, &scratch) {
        expect_confined(&host, 4, 0);
        host.down().unwrap();
    }
}

#[test]
fn udp_port_needs_no_capability() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = sockets::spaces(1500);
    let hosts = sockets::ADDRESSES.map(|[address, _]| address);
    let hosts = [0, 1].map(|end| {
        let (name, port) = (["a", "b"][end], "[port]\nkind = \"udp\"\n");
        let space = spaces.name(end);
        Instance::up_in(space, scratch.path(), name, hosts[end], port).unwrap()
    });
    for host in &hosts {
        // Control, data, and the one that watches the sockets.
        expect_confined(host, 3, 0);
    }
    let [a, b] = hosts;
    check("mix", &a, &b, LeasePolicy::Never, scratch.path());
    for host in [a, b] {
        host.down().unwrap();
    }
}

#[test]
fn af_xdp_port_keeps_the_network_interface_and_its_program() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = Namespaces::new().unwrap();
    for (end, address) in ADDRESSES.iter().enumerate() {
        let address = format!("{address}/24");
        let netdev = spaces.netdev(end);
        spaces
            .ip(end, &["addr", "add", &address, "dev", netdev])
            .unwrap();
    }
    let hosts = up(&spaces, &scratch, |end| {
        format!(
            "[port]\nkind = \"af_xdp\"\nnetdev = \"{}\"\n",
            spaces.netdev(end)
        )
    });
    for host in hosts {
        expect_confined(&host, 3, NET_ADMIN | BPF);
        host.down().unwrap();
    }
    // The program in the kernel was removed.
    let link = spaces.ip(0, &["link", "show", spaces.netdev(0)]).unwrap();
    assert!(!link.contains("xdp"), "{link}");
}
