//! The addresses that a configuration names. Errors are sentences without a subject.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Checks the addresses of an instance.
///
/// # Errors
/// Why it cannot have them.
pub(super) fn check(addresses: &[IpAddr]) -> Result<(), String> {
    if !(1..=urdma_underlay::MAX_ADDRESSES - 1).contains(&addresses.len()) {
        return Err(format!(
            "must list 1 to {} addresses",
            urdma_underlay::MAX_ADDRESSES - 1
        ));
    }
    for (index, address) in addresses.iter().enumerate() {
        let canonical = address.to_canonical();
        if canonical != *address {
            return Err(format!("{address} is an IPv4 address: write {canonical}"));
        }
        let is_of_many = address.is_multicast() || *address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if address.is_unspecified() || is_of_many {
            return Err(format!(
                "{address} is not the address of one host: name one of this host's own"
            ));
        }
        if let Some(instead) = instead_of(*address) {
            return Err(format!("{address} is {instead}"));
        }
        if addresses[..index].contains(address) {
            return Err(format!("{address} is there twice"));
        }
    }
    Ok(())
}

/// What an address that no host is reached by is, and what to write instead.
fn instead_of(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) if v4.octets()[0] >= 240 => Some(
            "reserved (240.0.0.0/4), and routers and other hosts drop its packets: name an address \
             of this host, or a private one such as 10.0.0.1",
        ),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(
            "a link-local address, which is ambiguous without its interface: name a global address \
             of this host, or a unique local one such as fd00::1",
        ),
        _ => None,
    }
}

/// Where metrics are served.
///
/// # Errors
/// Why they are not served there.
pub(super) fn of_metrics(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let Some(address) = address.filter(|address| address.port() != 0) else {
        return Err(format!(
            "\"{text}\" must be an address with a port other than 0, such as \"127.0.0.1:9464\" \
             or \"[::1]:9464\""
        ));
    };
    if !address.ip().is_loopback() {
        return Err(
            "must be an address of the loopback interface, such as \"127.0.0.1:9464\": metrics \
             are served without a password"
                .to_owned(),
        );
    }
    Ok(address)
}
