//! Private data between a metadata service, nodes that register and clients, all in network order.
//!
//! - a node: `umn1` (4 octets), its address (16, IPv4 mapped) and port (2), the number (4) and the
//!   access key (8) of its target, key (4), address (8) and length (8) of its memory;
//! - a client: `umc1` (4);
//! - the service accepts: `umt1` (4), key (4), address (8) and length (8) of the table;
//! - the service refuses: `umr1` (4), the number of a [`Refusal`] (4).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use thiserror::Error;
use urdma_node_table::{Region, Target};

use crate::described::{decode_region, encode_region};

/// The most services of a node, and of a client.
pub(crate) const SERVICES_MAX: usize = 2;
pub(crate) const TOO_MANY_SERVICES: &str = "there are at most two metadata services";

const NODE: [u8; 4] = *b"umn1";
const CLIENT: [u8; 4] = *b"umc1";
const TABLE: [u8; 4] = *b"umt1";
const REFUSAL: [u8; 4] = *b"umr1";

/// Why a metadata service refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// EPROTO.
    #[error("it is no metadata service, or one of another version")]
    Protocol,
    /// EINVAL.
    #[error(
        "no client could use the node: its address names no host or no port, or its target or its \
         memory is impossible"
    )]
    Node,
    /// EACCES.
    #[error("the node is at another address than its connection comes from")]
    Host,
    /// EADDRINUSE.
    #[error("another node has the address, or the same number as its digest")]
    Taken,
    /// ENOSPC.
    #[error("the table is full: start the service with a higher --nodes-max")]
    Nodes,
    /// EUSERS.
    #[error("it has as many clients as it takes: start it with a higher --clients-max")]
    Clients,
}

impl Refusal {
    const ALL: [Self; 6] = [
        Self::Protocol,
        Self::Node,
        Self::Host,
        Self::Taken,
        Self::Nodes,
        Self::Clients,
    ];

    /// The number of the error that a call returns.
    pub fn errno(self) -> i32 {
        match self {
            Self::Protocol => libc::EPROTO,
            Self::Node => libc::EINVAL,
            Self::Host => libc::EACCES,
            Self::Taken => libc::EADDRINUSE,
            Self::Nodes => libc::ENOSPC,
            Self::Clients => libc::EUSERS,
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Protocol => 1,
            Self::Node => 2,
            Self::Host => 3,
            Self::Taken => 4,
            Self::Nodes => 5,
            Self::Clients => 6,
        }
    }

    pub(crate) fn encode(self) -> [u8; 8] {
        let mut octets = [0; 8];
        octets[0..4].copy_from_slice(&REFUSAL);
        octets[4..8].copy_from_slice(&self.number().to_be_bytes());
        octets
    }

    /// The reason in the private data of a refusal. A metadata service always gives one.
    pub(crate) fn decode(octets: &[u8]) -> Self {
        let number = octets
            .strip_prefix(&REFUSAL)
            .and_then(|rest| rest.first_chunk());
        let number = number.map(|number| u32::from_be_bytes(*number));
        let found = Self::ALL
            .into_iter()
            .find(|refusal| Some(refusal.number()) == number);
        found.unwrap_or(Self::Protocol)
    }
}

/// Who connects to a metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    Node(SocketAddr, Target),
    Client,
}

/// The 16 octets of an address.
fn octets_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A number at the beginning, and what follows it.
fn split<const N: usize>(octets: &[u8]) -> Result<(&[u8; N], &[u8]), Refusal> {
    octets.split_first_chunk().ok_or(Refusal::Protocol)
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self::Node(at, target) = self else {
            return CLIENT.to_vec();
        };
        [
            &NODE[..],
            &octets_of(at.ip()),
            &at.port().to_be_bytes(),
            &target.number().to_be_bytes(),
            &target.access_key().to_be_bytes(),
            &encode_region(&target.region()),
        ]
        .concat()
    }

    pub(crate) fn decode(octets: &[u8]) -> Result<Self, Refusal> {
        if octets.starts_with(&CLIENT) {
            return Ok(Self::Client);
        }
        let rest = octets.strip_prefix(&NODE).ok_or(Refusal::Protocol)?;
        let (ip, rest) = split::<16>(rest)?;
        let (port, rest) = split(rest)?;
        let (number, rest) = split(rest)?;
        let (key, rest) = split(rest)?;
        let (region, _) = decode_region(rest).ok_or(Refusal::Protocol)?;
        let ip = Ipv6Addr::from(*ip).to_canonical();
        let port = u16::from_be_bytes(*port);
        let number = u32::from_be_bytes(*number);
        let target = Target::new(number, u64::from_be_bytes(*key), region);
        let wraps = region.addr.checked_add(region.len_octets).is_none();
        match target {
            Some(target) if port != 0 && !ip.is_unspecified() && !ip.is_multicast() && !wraps => {
                Ok(Self::Node(SocketAddr::new(ip, port), target))
            }
            _ => Err(Refusal::Node),
        }
    }
}

/// What the service accepts with.
pub(crate) fn encode_table(region: &Region) -> Vec<u8> {
    [&TABLE[..], &encode_region(region)].concat()
}

/// The region of the table.
pub(crate) fn decode_table(octets: &[u8]) -> Option<Region> {
    let (region, _) = decode_region(octets.strip_prefix(&TABLE)?)?;
    Some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(at: &str, region: Region) -> Hello {
        let target = Target::new(0x01_0203, 0x0405_0607_0809_0a0b, region).unwrap();
        Hello::Node(at.parse().unwrap(), target)
    }

    #[test]
    fn hello_survives_the_wire_and_others_are_refused() {
        let region = Region {
            rkey: 0x0c0d_0e0f,
            addr: 4096,
            len_octets: 64,
        };
        for at in ["192.0.2.1:7", "[2001:db8::1]:65535"] {
            let hello = node(at, region);
            let mut octets = hello.encode();
            // What librdmacm leaves of private data for a program.
            assert!(octets.len() <= 56);
            for len in 0..octets.len() {
                assert_eq!(Hello::decode(&octets[..len]), Err(Refusal::Protocol));
            }
            octets.resize(56, 0);
            assert_eq!(Hello::decode(&octets), Ok(hello));
        }
        assert_eq!(Hello::decode(&Hello::Client.encode()), Ok(Hello::Client));
        for at in ["0.0.0.0:7", "[::]:7", "224.0.0.1:7", "192.0.2.1:0"] {
            let octets = node(at, region).encode();
            assert_eq!(Hello::decode(&octets), Err(Refusal::Node), "{at}");
        }
        let addr = u64::MAX - 62;
        let wraps = node("192.0.2.1:7", Region { addr, ..region }).encode();
        assert_eq!(Hello::decode(&wraps), Err(Refusal::Node));
        let mut beyond = node("192.0.2.1:7", region).encode();
        beyond[22] = 1;
        assert_eq!(Hello::decode(&beyond), Err(Refusal::Node));
    }

    #[test]
    fn refusals_survive_the_wire_and_have_an_errno_of_their_own() {
        let mut errnos = Vec::new();
        for refusal in Refusal::ALL {
            let mut octets = refusal.encode().to_vec();
            octets.resize(148, 0);
            assert_eq!(Refusal::decode(&octets), refusal);
            assert!(!errnos.contains(&refusal.errno()));
            errnos.push(refusal.errno());
        }
        assert_eq!(Refusal::decode(&[]), Refusal::Protocol);
        assert_eq!(Refusal::decode(b"umr1\0\0\0\x07"), Refusal::Protocol);
    }
}
