//! The device's identity: node GUID and GID table.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use urdma_types::Ip16;

use urdma_ipc::GidEntry;

use crate::interfaces;

/// The device's identity.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// EUI-64.
    pub node_guid: u64,
    /// In order of the GID indices.
    pub gids: Vec<GidEntry>,
    /// The instance's addresses.
    pub addresses: Vec<IpAddr>,
}

impl Identity {
    /// The identity of the instance in `run_dir`, with `addresses`, or with those of the host if
    /// there are none. The GUID is the same at every start and differs between instances.
    pub fn new(run_dir: &Path, addresses: Option<&[IpAddr]>) -> Self {
        let machine_id = fs::read("/etc/machine-id").unwrap_or_default();
        let host = interfaces::list();
        // Addresses that come and go do not change the GUID.
        let lasting = addresses.unwrap_or(&[IpAddr::V4(Ipv4Addr::LOCALHOST)]);
        let node_guid = guid_from(&machine_id, run_dir, lasting);
        let addresses = match addresses {
            Some(addresses) => addresses.to_owned(),
            None => interfaces::default_addresses(&host),
        };
        let first_netdev = addresses
            .iter()
            .find_map(|ip| interfaces::netdev_of(&host, *ip));
        let mut gids = vec![GidEntry {
            gid: link_local_gid(node_guid),
            netdev: first_netdev,
        }];
        gids.extend(addresses.iter().map(|address| GidEntry {
            gid: Ip16::new(*address).0,
            netdev: interfaces::netdev_of(&host, *address),
        }));
        Self {
            node_guid,
            gids,
            addresses,
        }
    }

    /// Every address that is this host's, the link-local one of GID 0 included.
    pub fn all_addresses(&self) -> Vec<IpAddr> {
        self.gids
            .iter()
            .map(|entry| Ip16(entry.gid).to_ip())
            .collect()
    }

    /// Whether `address` is this host's.
    pub fn owns(&self, address: IpAddr) -> bool {
        self.has_gid(Ip16::new(address))
    }

    /// As [`Identity::owns`], of an address as frames have it.
    #[inline]
    pub fn has_gid(&self, address: Ip16) -> bool {
        self.gids.iter().any(|entry| entry.gid == address.0)
    }

    /// The index of the GID of an address; that of GID 0 if it is none of this host's.
    pub fn gid_index(&self, address: IpAddr) -> u8 {
        let gid = Ip16::new(address).0;
        let index = self.gids.iter().position(|entry| entry.gid == gid);
        index
            .and_then(|index| u8::try_from(index).ok())
            .unwrap_or(0)
    }

    /// The GID of an RNIC: the Ethernet address from which the node GUID was made.
    pub fn ethernet_gid(&self) -> [u8; 16] {
        let [a, b, c, _, _, d, e, f] = self.node_guid.to_be_bytes();
        let mut gid = [0; 16];
        gid[..6].copy_from_slice(&[a, b, c, d, e, f]);
        gid
    }

    /// The node GUID as sysfs prints it.
    pub fn node_guid_text(&self) -> String {
        colon_groups(&self.node_guid.to_be_bytes())
    }
}

/// Octets in groups of two, as sysfs prints GUIDs and GIDs.
pub(crate) fn colon_groups(octets: &[u8]) -> String {
    let groups: Vec<String> = octets
        .chunks(2)
        .map(|pair| pair.iter().map(|octet| format!("{octet:02x}")).collect())
        .collect();
    groups.join(":")
}

/// FNV-1a, 64 bits, over some strings and their ends.
pub(crate) fn fnv1a<'a>(strings: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for string in strings {
        for octet in string.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// A hash of what distinguishes instances, marked as locally administered and as made from 48 bits.
fn guid_from(machine_id: &[u8], run_dir: &Path, addresses: &[IpAddr]) -> u64 {
    let addresses: Vec<[u8; 16]> = addresses
        .iter()
        .map(|address| Ip16::new(*address).0)
        .collect();
    let fixed = [machine_id, run_dir.as_os_str().as_encoded_bytes()];
    let hash = fnv1a(
        fixed
            .into_iter()
            .chain(addresses.iter().map(<[u8; 16]>::as_slice)),
    );
    let [_, a, b, c, d, e, ..] = hash.to_be_bytes();
    u64::from_be_bytes([0x02, a, b, 0xff, 0xfe, c, d, e])
}

/// fe80::/64 and the EUI-64 with its universal/local bit inverted (RFC 4291, appendix A).
fn link_local_gid(node_guid: u64) -> [u8; 16] {
    let interface_id = node_guid ^ 0x0200_0000_0000_0000;
    Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(interface_id)).octets()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_stable_and_differs_between_instances() {
        let address = ["127.0.0.1".parse().unwrap()];
        let a = Identity::new(Path::new("/run/urdma/a"), Some(&address));
        assert_eq!(a, Identity::new(Path::new("/run/urdma/a"), Some(&address)));
        let b = Identity::new(Path::new("/run/urdma/b"), Some(&address));
        assert_ne!(a.node_guid, b.node_guid);
        assert_eq!(a.node_guid >> 56, 0x02);
    }

    #[test]
    fn gid_table_begins_with_the_link_local_gid() {
        let identity = Identity::new(Path::new("/x"), Some(&["127.0.0.2".parse().unwrap()]));
        let first = Ipv6Addr::from(identity.gids[0].gid);
        assert!(first.is_unicast_link_local(), "{first}");
        assert_eq!(first.to_bits() as u64, identity.node_guid ^ (2 << 56));
        assert_eq!(
            identity.gids[1].gid,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2]
        );
        assert_eq!(identity.gids[1].netdev.as_deref(), Some("lo"));
        assert!(identity.owns("127.0.0.2".parse().unwrap()));
        assert!(identity.owns(first.into()));
        assert!(!identity.owns("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn addresses_of_the_host_do_not_change_the_guid() {
        let loopback = ["127.0.0.1".parse().unwrap()];
        let host = Identity::new(Path::new("/x"), None);
        let told = Identity::new(Path::new("/x"), Some(&loopback));
        assert_eq!(host.node_guid, told.node_guid);
        assert_eq!(host.gids[..2], told.gids[..]);
    }

    #[test]
    fn ethernet_gid_is_the_guid_without_its_middle() {
        let mut identity = Identity::new(Path::new("/x"), None);
        identity.node_guid = 0x0201_02ff_fe03_0405;
        let gid = identity.ethernet_gid();
        assert_eq!(gid[..6], [2, 1, 2, 3, 4, 5]);
        assert_eq!(gid[6..], [0; 10]);
    }

    #[test]
    fn colon_groups_print_as_sysfs_does() {
        assert_eq!(
            colon_groups(&0x0200_00ff_fe00_0001u64.to_be_bytes()),
            "0200:00ff:fe00:0001"
        );
    }
}
