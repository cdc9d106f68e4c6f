//! Hosts in two network namespaces, joined by a veth pair in the kernel: AF_XDP and TAP, forwarded
//! by urdmad.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy, Scratch};
use urdma_harness::namespace::Namespaces;
use urdma_harness::programs::{self, Job};
use urdma_harness::scheduler::WithoutAutogroups;
use urdma_tests::bridges::{up, up_behind_bridges, ADDRESSES, KERNEL_ADDRESSES};
use urdma_tests::{
    alone, check, expect_all_taken_back, expect_peer_given_up, expect_stream_ended,
    host_without_configured_addresses, mix_while, ports, print_of, run_all, stream, HOST_ADDRESSES,
};

/// Enough operations for two interruptions of the link.
const OPERATIONS: u32 = 20_000;

/// The programs; those that exchange GID and QPN by TCP do so at `tcp`.
fn jobs(tcp: &str, rdma: &str) -> Vec<Job> {
    let first = ports();
    vec![
        programs::perftest("ib_send_lat", 64, false, first, tcp),
        programs::perftest("ib_write_bw", 65_536, false, first + 1, tcp),
        programs::perftest("ib_read_lat", 64, false, first + 2, tcp),
        programs::rc_pingpong(false, first + 3, tcp),
        programs::rping(first + 4, rdma),
    ]
}

#[test]
fn instance_without_configured_addresses_has_those_of_its_host() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = Namespaces::new().unwrap();
    let host = host_without_configured_addresses(&spaces, &scratch);
    let info = print_of(&host, &["ibv_devinfo", "-v"]);
    let gids: Vec<&str> = info
        .lines()
        .filter_map(|line| line.split_once("GID[")?.1.split_whitespace().nth(1))
        .collect();
    let v4 = format!("::ffff:{},", HOST_ADDRESSES[0]);
    let v6 = format!("{},", HOST_ADDRESSES[1]);
    assert_eq!(gids[1..], ["::ffff:127.0.0.1,", &v4, &v6, "::1,"], "{info}");
    let netdevs = host
        .run_dir()
        .join("sysfs/class/infiniband/urdma0/ports/1/gid_attrs/ndevs");
    for (index, netdev) in [(1, "lo"), (2, spaces.netdev(0)), (3, spaces.netdev(0))] {
        let named = std::fs::read_to_string(netdevs.join(index.to_string())).unwrap();
        assert_eq!(named.trim_end(), netdev);
    }
    let mut jobs = jobs(HOST_ADDRESSES[0], HOST_ADDRESSES[0]);
    let first = ports();
    jobs.push(programs::rping(first, HOST_ADDRESSES[1]));
    jobs.push(programs::ucmatose(first + 1, HOST_ADDRESSES[0]));
    jobs.push(programs::perftest(
        "ib_write_lat",
        64,
        true,
        first + 2,
        HOST_ADDRESSES[0],
    ));
    run_all(&jobs, &host, &host, LeasePolicy::Never);
    host.down().unwrap();
}

fn counter(host: &Instance, name: &str) -> u64 {
    let status = host.status().unwrap();
    let value = status["counters"]["data"][name].as_u64();
    value.unwrap_or_else(|| panic!("no counter {name}: {status}"))
}

/// Runs all programs and checks that they used the ports and left no channel open.
fn run_over(hosts: [Instance; 2], tcp: &str) {
    let [a, b] = &hosts;
    run_all(&jobs(tcp, ADDRESSES[0]), a, b, LeasePolicy::Never);
    for host in &hosts {
        assert!(counter(host, "tx_packets") > 2000 && counter(host, "rx_packets") > 2000);
        expect_all_taken_back(host);
    }
    for host in hosts {
        host.down().unwrap();
    }
}

#[test]
fn af_xdp_ports_share_interface_address_and_neighbours_with_the_kernel() {
    let _alone = alone();
    let _without_autogroups = WithoutAutogroups::set();
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
    run_over(hosts, ADDRESSES[0]);
    let link = spaces.ip(0, &["link", "show", spaces.netdev(0)]).unwrap();
    assert!(!link.contains("xdp"), "urdma down left a program: {link}");
}

#[test]
fn tap_ports_behind_bridges_reach_one_another() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = Namespaces::new().unwrap();
    let hosts = up_behind_bridges(&spaces, &scratch);
    run_over(hosts, KERNEL_ADDRESSES[0]);
}

#[test]
fn link_that_is_cut_for_a_while_or_for_too_long_and_comes_back() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = Namespaces::new().unwrap();
    let hosts = up_behind_bridges(&spaces, &scratch);
    let [a, b] = &hosts;
    let set_link = |state: &str| {
        let netdev = spaces.netdev(0);
        spaces.ip(0, &["link", "set", netdev, state]).unwrap();
    };
    // The queue pairs wait for half a minute; the link is interrupted twice for a second.
    mix_while((a, b), scratch.path(), OPERATIONS, |_, _| {
        for _ in 0..2 {
            set_link("down");
            std::thread::sleep(Duration::from_secs(1));
            set_link("up");
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let (serving, asking) = stream(a, b, LeasePolicy::Never, scratch.path());
    set_link("down");
    expect_peer_given_up(asking);
    set_link("up");
    expect_stream_ended(serving);
    check("mix", a, b, LeasePolicy::Never, scratch.path());
    for host in hosts {
        host.down().unwrap();
    }
}
