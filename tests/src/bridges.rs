//! Hosts in two network namespaces, joined by a veth pair.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use urdma_harness::instance::{Instance, Scratch};
use urdma_harness::namespace::Namespaces;

/// The instances' addresses.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// The kernel's addresses if they are not the instances'.
pub const KERNEL_ADDRESSES: [&str; 2] = ["10.77.0.101", "10.77.0.102"];

/// Hosts `a` and `b` with these ports, each in its namespace.
pub fn up(spaces: &Namespaces, scratch: &Scratch, port: impl Fn(usize) -> String) -> [Instance; 2] {
    [0, 1].map(|end| {
        let name = ["a", "b"][end];
        let (space, port) = (spaces.name(end), port(end));
        Instance::up_in(space, scratch.path(), name, ADDRESSES[end], &port).unwrap()
    })
}

/// Hosts whose TAP ports are in bridges with the ends of the veth pair.
pub fn up_behind_bridges(spaces: &Namespaces, scratch: &Scratch) -> [Instance; 2] {
    let hosts = up(spaces, scratch, |_| {
        "[port]\nkind = \"tap\"\nnetdev = \"tap0\"\n".to_owned()
    });
    for (end, address) in KERNEL_ADDRESSES.iter().enumerate() {
        bridge(spaces, end, Some(&format!("{address}/24")));
    }
    hosts
}

/// Joins the TAP port of a host and its end of the veth pair by a bridge, which has this address of
/// the kernel.
pub fn bridge(spaces: &Namespaces, end: usize, address: Option<&str>) {
    let netdev = spaces.netdev(end);
    for arguments in [
        &["link", "add", "br0", "type", "bridge"][..],
        &["link", "set", netdev, "master", "br0"],
        &["link", "set", "tap0", "master", "br0"],
    ] {
        spaces.ip(end, arguments).unwrap();
    }
    if let Some(address) = address {
        let add = ["addr", "add", address, "dev", "br0"];
        spaces.ip(end, &add).unwrap();
    }
    for netdev in ["tap0", "br0"] {
        spaces.ip(end, &["link", "set", netdev, "up"]).unwrap();
    }
}
