//! Hosts in two network namespaces, joined by a veth pair, with ports on UDP sockets.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::os::unix::fs::chown;
use std::path::Path;

use urdma_harness::instance::{Instance, Place, Scratch, TwoHosts};
use urdma_harness::namespace::Namespaces;

/// The hosts' addresses, which are the kernel's too.
pub const ADDRESSES: [[&str; 2]; 2] = [["10.77.0.1", "fd77::1"], ["10.77.0.2", "fd77::2"]];
/// Debian's `nobody`.
pub const NOBODY: u32 = 65_534;

/// Two namespaces whose interfaces have [`ADDRESSES`] and this MTU, and drop packets that come by
/// another way than answers would go.
pub fn spaces(mtu: u16) -> Namespaces {
    let spaces = Namespaces::new().unwrap();
    for (end, [v4, v6]) in ADDRESSES.iter().enumerate() {
        let netdev = spaces.netdev(end);
        spaces
            .ip(end, &["link", "set", netdev, "mtu", &mtu.to_string()])
            .unwrap();
        assign(&spaces, end, v4);
        assign(&spaces, end, v6);
        set_strict_reverse_path(&spaces, end);
    }
    spaces
}

/// Gives a host's interface an address.
pub fn assign(spaces: &Namespaces, end: usize, ip: &str) {
    change_address(spaces, end, "add", ip);
}

/// Takes an address from a host's interface.
pub fn unassign(spaces: &Namespaces, end: usize, ip: &str) {
    change_address(spaces, end, "del", ip);
}

fn change_address(spaces: &Namespaces, end: usize, change: &str, ip: &str) {
    let (length, option) = if ip.contains(':') {
        (64, &["nodad"][..])
    } else {
        (24, &[][..])
    };
    let address = format!("{ip}/{length}");
    let words = ["addr", change, &address, "dev", spaces.netdev(end)];
    let options = if change == "add" { option } else { &[] };
    spaces.ip(end, &[&words[..], options].concat()).unwrap();
}

fn set_strict_reverse_path(spaces: &Namespaces, end: usize) {
    let set = format!(
        "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter && \
         echo 1 > /proc/sys/net/ipv4/conf/{}/rp_filter",
        spaces.netdev(end)
    );
    spaces.run(end, &["sh", "-c", &set]).unwrap();
}

/// A host of a user without privileges in namespace 0 or 1, below a directory that becomes the
/// user's; `extra` are further keys of the port.
///
/// # Errors
/// The message of `urdma up`.
pub fn host(
    spaces: &Namespaces,
    (end, name): (usize, &str),
    scratch: &Path,
    addresses: &[&str],
    extra: &str,
) -> Result<Instance, urdma_harness::Failure> {
    chown(scratch, Some(NOBODY), Some(NOBODY))?;
    let place = Place {
        namespace: Some(spaces.name(end).to_owned()),
        user: Some(NOBODY),
    };
    let port = format!("[port]\nkind = \"udp\"\n{extra}");
    Instance::up_at_place(place, scratch, name, addresses, &port)
}

/// Both hosts, of a user without privileges.
pub fn up(spaces: &Namespaces, scratch: &Scratch, mtu: u16) -> TwoHosts {
    let [a, b] = [0, 1].map(|end| {
        let extra = format!("mtu = {mtu}\n");
        let place = (end, ["a", "b"][end]);
        host(spaces, place, scratch.path(), &ADDRESSES[end], &extra).unwrap()
    });
    TwoHosts { a, b }
}
