//! The addresses that a configuration names.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use thiserror::Error;

/// The most addresses of an instance: the data path keeps one for others.
const ADDRESSES_MAX: usize = urdma_underlay::MAX_ADDRESSES - 1;

/// Why an instance cannot have addresses; the key precedes the message.
#[derive(Debug, Error)]
pub(super) enum AddressError {
    /// There are none, or too many.
    #[error("must list 1 to {ADDRESSES_MAX} addresses")]
    Number,
    /// It is written as one of IPv6.
    #[error("{written} is an IPv4 address: write {canonical}")]
    Mapped {
        /// It as it is written.
        written: IpAddr,
        /// It as one of IPv4.
        canonical: IpAddr,
    },
    /// It is unspecified, a group or a broadcast.
    #[error("{0} is not the address of one host: name one of this host's own")]
    NotOfOneHost(IpAddr),
    /// No host is reached by it.
    #[error("{0} is {1}")]
    Unusable(IpAddr, &'static str),
    /// It is there twice.
    #[error("{0} is there twice")]
    Twice(IpAddr),
}

/// Why metrics are not served at an address.
#[derive(Debug, Error)]
pub(super) enum MetricsError {
    /// It is none, or has no port.
    #[error(
        "\"{0}\" must be an address with a port other than 0, such as \"127.0.0.1:9464\" or \
         \"[::1]:9464\""
    )]
    Syntax(String),
    /// Other hosts could read them.
    #[error(
        "must be an address of the loopback interface, such as \"127.0.0.1:9464\": metrics are \
         served without a password"
    )]
    NotLoopback,
}

/// Checks the addresses of an instance.
///
/// # Errors
/// It cannot have them.
pub(super) fn check(addresses: &[IpAddr]) -> Result<(), AddressError> {
    if !(1..=ADDRESSES_MAX).contains(&addresses.len()) {
        return Err(AddressError::Number);
    }
    for (index, address) in addresses.iter().enumerate() {
        let canonical = address.to_canonical();
        if canonical != *address {
            return Err(AddressError::Mapped {
                written: *address,
                canonical,
            });
        }
        let is_of_many = address.is_multicast() || *address == IpAddr::V4(Ipv4Addr::BROADCAST);
        if address.is_unspecified() || is_of_many {
            return Err(AddressError::NotOfOneHost(*address));
        }
        if let Some(instead) = instead_of(*address) {
            return Err(AddressError::Unusable(*address, instead));
        }
        if addresses[..index].contains(address) {
            return Err(AddressError::Twice(*address));
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
/// They are not served there.
pub(super) fn of_metrics(text: &str) -> Result<SocketAddr, MetricsError> {
    let address: Option<SocketAddr> = text.parse().ok();
    let Some(address) = address.filter(|address| address.port() != 0) else {
        return Err(MetricsError::Syntax(text.to_owned()));
    };
    if !address.ip().is_loopback() {
        return Err(MetricsError::NotLoopback);
    }
    Ok(address)
}
