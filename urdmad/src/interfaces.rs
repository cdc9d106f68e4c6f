//! The addresses of the host's network interfaces at the moment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use nix::net::if_::InterfaceFlags;

/// Maximum number of addresses of an instance without configured ones: as many as a configuration
/// may name.
const ADDRESSES_MAX: usize = urdma_underlay::MAX_ADDRESSES - 1;

/// An address of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub netdev: String,
    /// The address.
    pub ip: IpAddr,
    /// The interface is up.
    pub is_up: bool,
}

/// All addresses, IPv4 first and otherwise in the order of the interfaces, as the kernel lists
/// them; empty if it does not.
pub fn list() -> Vec<InterfaceAddress> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|address| address.ip().into());
        let v6 = storage.as_sockaddr_in6().map(|address| address.ip().into());
        Some(InterfaceAddress {
            netdev: interface.interface_name,
            ip: v4.or(v6)?,
            is_up: interface.flags.contains(InterfaceFlags::IFF_UP),
        })
    };
    interfaces.filter_map(address).collect()
}

/// The addresses of an instance without configured ones: 127.0.0.1, so that GID 1 is the same
/// everywhere, then those of interfaces that are up, then ::1. Link-local addresses are meaningless
/// without their interface, which verbs do not name. Beyond the limit the last ones are left out.
pub fn default_addresses(host: &[InterfaceAddress]) -> Vec<IpAddr> {
    let (v4, v6) = (
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    );
    let up = || {
        host.iter()
            .filter(|address| address.is_up)
            .map(|address| address.ip)
    };
    let has_v6_loopback = up().any(|ip| ip == v6);
    let mut addresses = vec![v4];
    for ip in up().filter(|ip| is_global(*ip)) {
        if !addresses.contains(&ip) {
            addresses.push(ip);
        }
    }
    addresses.truncate(ADDRESSES_MAX - usize::from(has_v6_loopback));
    if has_v6_loopback {
        addresses.push(v6);
    }
    addresses
}

/// Whether other hosts, or other programs of this one, can reach this host by it.
fn is_global(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(is_link_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}

/// The interface that has the address; all of 127.0.0.0/8 belongs to the loopback interface.
pub fn netdev_of(host: &[InterfaceAddress], ip: IpAddr) -> Option<String> {
    let found = host.iter().find(|address| address.ip == ip);
    found
        .map(|address| address.netdev.clone())
        .or_else(|| ip.is_loopback().then(|| "lo".to_owned()))
}

/// Whether an interface belongs to no device but is the kernel's own (veth, bridge, macvlan).
pub fn is_virtual(netdev: &str) -> bool {
    let link = std::fs::read_link(Path::new("/sys/class/net").join(netdev));
    link.is_ok_and(|target| {
        let mut parts = target.components();
        parts.any(|part| part.as_os_str() == "virtual")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(netdev: &str, ip: &str, is_up: bool) -> InterfaceAddress {
        InterfaceAddress {
            netdev: netdev.to_owned(),
            ip: ip.parse().unwrap(),
            is_up,
        }
    }

    fn texts(host: &[InterfaceAddress]) -> Vec<String> {
        let addresses = default_addresses(host);
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn host_without_interfaces_has_loopback() {
        assert_eq!(texts(&[]), ["127.0.0.1"]);
    }

    #[test]
    fn addresses_that_others_can_name_follow_loopback() {
        let host = [
            address("lo", "127.0.0.1", true),
            address("lo", "10.9.9.9", true),
            address("eth0", "192.0.2.2", true),
            address("eth1", "192.0.2.3", false),
            address("br0", "192.0.2.2", true),
            address("lo", "::1", true),
            address("eth0", "fd00::2", true),
            address("eth0", "fe80::1", true),
        ];
        let expected = ["127.0.0.1", "10.9.9.9", "192.0.2.2", "fd00::2", "::1"];
        assert_eq!(texts(&host), expected);
        assert_eq!(netdev_of(&host, host[6].ip).as_deref(), Some("eth0"));
        assert_eq!(
            netdev_of(&[], "127.0.0.2".parse().unwrap()).as_deref(),
            Some("lo")
        );
        assert_eq!(netdev_of(&host, "192.0.2.9".parse().unwrap()), None);
    }

    #[test]
    fn loopback_is_virtual_and_an_unknown_interface_is_not() {
        assert!(is_virtual("lo"));
        assert!(!is_virtual("no-such-netdev"));
    }

    #[test]
    fn host_with_many_addresses_gives_the_first() {
        let mut host: Vec<_> = (0..100)
            .map(|n| address("eth0", &format!("192.0.2.{n}"), true))
            .collect();
        assert_eq!(default_addresses(&host).len(), ADDRESSES_MAX);
        host.push(address("lo", "::1", true));
        let texts = texts(&host);
        assert_eq!(texts.len(), ADDRESSES_MAX);
        assert_eq!(
            (texts[1].as_str(), texts[14].as_str()),
            ("192.0.2.0", "::1")
        );
    }
}
