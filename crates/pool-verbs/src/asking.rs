//! Private data of connections between pools that exchange messages, all in network order.
//!
//! - the asking pool: `upq1` (4 octets), the address (16, IPv4 mapped) and port (2) at which it
//!   listens, its terms (14), key (4), address (8) and length (8) of its memory: 56 octets, as many
//!   as a request may have over InfiniBand;
//! - the accepting pool: what a node has (`described`), and its terms (14);
//! - the accepting pool refuses: `upr1` (4), the number of a [`Refused`] (4).
//!
//! Terms: Receives that are posted (2), the length of their buffers (4), and the name of the
//! connection: random number of the pool (4), place (2), generation (2). A node that exchanges no
//! messages has octets of 0 there, or none.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use urdma_node_table::Region;
use urdma_pool::ConnectionName;

use crate::described::{self, decode_region, encode_region};

const ASKS: [u8; 4] = *b"upq1";
const REFUSES: [u8; 4] = *b"upr1";
/// Octets of a node's description: magic and region.
const DESCRIBED: usize = 24;

/// What a pool tells of its end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Receives that it has posted.
    pub(crate) share: u16,
    /// The length of their buffers.
    pub(crate) buffer_octets: u32,
    pub(crate) name: ConnectionName,
}

impl Terms {
    fn encode(&self) -> Vec<u8> {
        [
            &self.share.to_be_bytes()[..],
            &self.buffer_octets.to_be_bytes(),
            &self.name.epoch.to_be_bytes(),
            &self.name.slot.to_be_bytes(),
            &self.name.generation.to_be_bytes(),
        ]
        .concat()
    }

    fn decode(octets: &[u8]) -> Option<(Self, &[u8])> {
        let (share, rest) = octets.split_first_chunk()?;
        let (buffer_octets, rest) = rest.split_first_chunk()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (slot, rest) = rest.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let terms = Self {
            share: u16::from_be_bytes(*share),
            buffer_octets: u32::from_be_bytes(*buffer_octets),
            name: ConnectionName {
                epoch: u32::from_be_bytes(*epoch),
                slot: u16::from_be_bytes(*slot),
                generation: u16::from_be_bytes(*generation),
            },
        };
        Some((terms, rest))
    }
}

/// A request of a pool to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asking {
    /// Where it listens.
    pub(crate) at: SocketAddr,
    pub(crate) terms: Terms,
    pub(crate) memory: Region,
}

impl Asking {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let ip = match self.at.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        [
            &ASKS[..],
            &ip.octets(),
            &self.at.port().to_be_bytes(),
            &self.terms.encode(),
            &encode_region(&self.memory),
        ]
        .concat()
    }

    pub(crate) fn decode(octets: &[u8]) -> Option<Self> {
        let rest = octets.strip_prefix(&ASKS)?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk()?;
        let (terms, rest) = Terms::decode(rest)?;
        let (memory, _) = decode_region(rest)?;
        let ip = Ipv6Addr::from(*ip).to_canonical();
        Some(Self {
            at: SocketAddr::new(ip, u16::from_be_bytes(*port)),
            terms,
            memory,
        })
    }
}

/// What a pool accepts with.
pub(crate) fn encode_acceptance(memory: &Region, terms: &Terms) -> Vec<u8> {
    [described::encode(memory), terms.encode()].concat()
}

/// The memory and the terms of a pool or node that has accepted.
pub(crate) fn decode_acceptance(octets: &[u8]) -> Option<(Region, Terms)> {
    let memory = described::decode(octets)?;
    let terms = octets.get(DESCRIBED..).and_then(Terms::decode);
    Some((memory, terms.map_or(Terms::default(), |(terms, _)| terms)))
}

/// Why a pool refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It connects itself, or has no place now: the other end asks again.
    Later,
    /// The request is none of a pool with messages, or has other buffers, or names an address at
    /// which its pool is not.
    Never,
}

impl Refused {
    pub(crate) fn encode(self) -> Vec<u8> {
        let number: u32 = match self {
            Self::Later => 1,
            Self::Never => 2,
        };
        [&REFUSES[..], &number.to_be_bytes()].concat()
    }

    /// Whether the private data of a refusal says that the other end may ask again.
    pub(crate) fn is_later(octets: &[u8]) -> bool {
        octets.starts_with(&Self::Later.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Region = Region {
        rkey: 1,
        addr: 2,
        len_octets: 3,
    };
    const TERMS: Terms = Terms {
        share: 32,
        buffer_octets: 4096,
        name: ConnectionName {
            epoch: 4,
            slot: 5,
            generation: 6,
        },
    };

    #[test]
    fn request_survives_the_wire_in_56_octets() {
        for at in ["10.0.0.1:7", "[fd00::1]:7"] {
            let asking = Asking {
                at: at.parse().unwrap(),
                terms: TERMS,
                memory: MEMORY,
            };
            let octets = asking.encode();
            assert_eq!(octets.len(), 56);
            assert_eq!(Asking::decode(&octets), Some(asking));
            assert_eq!(Asking::decode(&octets[..55]), None);
            assert_eq!(Asking::decode(&[]), None);
        }
    }

    #[test]
    fn node_without_messages_has_no_share() {
        let octets = encode_acceptance(&MEMORY, &TERMS);
        assert_eq!(decode_acceptance(&octets), Some((MEMORY, TERMS)));
        let mut node = described::encode(&MEMORY);
        let nothing = Some((MEMORY, Terms::default()));
        assert_eq!(decode_acceptance(&node), nothing);
        node.resize(56, 0);
        assert_eq!(decode_acceptance(&node), nothing);
        assert_eq!(decode_acceptance(&octets[1..]), None);
    }

    #[test]
    fn refusal_says_whether_to_ask_again() {
        let mut octets = Refused::Later.encode();
        octets.resize(56, 0);
        assert!(Refused::is_later(&octets));
        assert!(!Refused::is_later(&Refused::Never.encode()));
        assert!(!Refused::is_later(&[]));
    }
}
