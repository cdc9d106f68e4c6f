//! Nodes: what is looked up, and what is found.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;

use urdma_types::{absorb, mix};

use crate::number::number;

/// Target numbers are queue pair numbers.
const NUMBER_MAX: u32 = (1 << 24) - 1;

/// Names a node: its address and port if that is IPv4, else a digest of them.
///
/// The digest is not a cryptographic one: a service that registers nodes has to refuse a node whose
/// key another node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeKey(NonZeroU64);

impl NodeKey {
    /// What tells digests from IPv4 addresses, and keys from none.
    const DIGEST: u64 = 1 << 63;
    const IPV4: u64 = 1 << 62;

    /// The key of the node that listens at an address.
    pub fn new(address: SocketAddr) -> Self {
        let port = u64::from(address.port());
        match address.ip().to_canonical() {
            IpAddr::V4(host) => {
                Self::from_bits(Self::IPV4, u64::from(u32::from(host)) << 16 | port)
            }
            IpAddr::V6(host) => {
                let host = host.octets();
                let (network, interface) = host.split_at(8);
                let digest = [network, interface]
                    .into_iter()
                    .fold(port, |digest, half| absorb(digest, mix(number(half))));
                Self::from_bits(Self::DIGEST, digest)
            }
        }
    }

    fn from_bits(kind: u64, bits: u64) -> Self {
        Self(NonZeroU64::new(kind | bits).expect("the kind is not 0"))
    }

    /// The key in an entry; none in an empty one.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }

    pub(crate) fn word(self) -> u64 {
        self.0.get()
    }
}

/// The memory that a node offers: 20 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Its key.
    pub rkey: u32,
    /// Its first address.
    pub addr: u64,
    /// Its length.
    pub len_octets: u64,
}

/// The DC target of a node, 12 octets, and the memory that it gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    number: u32,
    access_key: u64,
    region: Region,
}

impl Target {
    /// A target; none if the number has more than 24 bits.
    pub fn new(number: u32, access_key: u64, region: Region) -> Option<Self> {
        (number <= NUMBER_MAX).then_some(Self {
            number,
            access_key,
            region,
        })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its access key.
    pub fn access_key(&self) -> u64 {
        self.access_key
    }

    /// Its memory.
    pub fn region(&self) -> Region {
        self.region
    }
}

/// What the table has of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// Its target.
    pub target: Target,
    /// Another one after each registration and each update of the node, until 65,536 changes of
    /// the table have passed: a client whose request failed sees whether what it used is still
    /// current.
    pub generation: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: &str) -> NodeKey {
        NodeKey::new(address.parse().unwrap())
    }

    #[test]
    fn key_differs_for_each_address_and_port_and_is_one_for_mapped_ipv4() {
        let keys = [
            "192.0.2.1:1",
            "192.0.2.1:2",
            "192.0.2.2:1",
            "[2001:db8::1]:1",
            "[2001:db8::1]:2",
            "[2001:db8::2]:1",
            "[2001:db8:1::1]:1",
            "0.0.0.0:0",
            "[::]:0",
        ]
        .map(key);
        for (index, one) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(one), "{one:?} twice");
        }
        assert_eq!(key("[::ffff:192.0.2.1]:1"), keys[0]);
    }

    #[test]
    fn target_number_beyond_24_bits_is_refused() {
        let region = Region {
            rkey: 1,
            addr: 2,
            len_octets: 3,
        };
        assert!(Target::new(0xff_ffff, 1, region).is_some());
        assert!(Target::new(0x100_0000, 1, region).is_none());
    }
}
