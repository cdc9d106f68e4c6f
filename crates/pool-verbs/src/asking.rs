//! Private data of connections between pools that exchange messages, all in network order.
//!
//! - the asking pool: `upq1` (4 octets), the address (16, IPv4 mapped) and port (2) at which it
//!   listens, its terms (14), key (4), address (8) and length (8) of its memory: 56 octets, as many
//!   as a request may have over InfiniBand;
//! - the accepting pool: what a node has (`described`), and its terms (14);
//! - the accepting pool refuses: `upr1` (4), the number of a [`Refused`] (4).
//!
//! Over initiators, there are questions and answers in place of requests:
//!
//! - the asking pool: `upq2` (4), the address (16) and port (2) at which it listens, the length of
//!   its buffers (4), its pool terms (18), number (4) and access key (8) of its target, key (4),
//!   address (8) and length (8) of its memory: 76 octets;
//! - the other one: what the answer of a node has, with the access key (`described`), the length of
//!   its buffers (4), and its pool terms (18).
//!
//! One that asks with other private data is answered as by a node, which has no pool terms.
//!
//! Pool terms: random number of the pool (4), number of the exchange (4), token (8), share (2).
//!
//! Terms: Receives that are posted (2), the length of their buffers (4), and the name of the
//! connection: random number of the pool (4), place (2), generation (2). A node that exchanges no
//! messages has octets of 0 there, or none.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use urdma_node_table::{Region, Target};
use urdma_pool::{ConnectionName, PoolTerms};

use crate::described::{self, decode_region, encode_region};

const ASKS: [u8; 4] = *b"upq1";
const REFUSES: [u8; 4] = *b"upr1";
/// Of a question.
const QUESTION: [u8; 4] = *b"upq2";
/// Octets of a node's description: magic and region.
const DESCRIBED: usize = 24;
/// With an access key.
const DESCRIBED_WITH_KEY: usize = 32;

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

fn encode_address(at: SocketAddr) -> Vec<u8> {
    let ip = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    [&ip.octets()[..], &at.port().to_be_bytes()].concat()
}

fn decode_address(octets: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (ip, rest) = octets.split_first_chunk::<16>()?;
    let (port, rest) = rest.split_first_chunk()?;
    let ip = Ipv6Addr::from(*ip).to_canonical();
    Some((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest))
}

/// The length of buffers, and pool terms.
fn encode_pool(buffer_octets: u32, terms: &PoolTerms) -> Vec<u8> {
    [
        &buffer_octets.to_be_bytes()[..],
        &terms.epoch.to_be_bytes(),
        &terms.number.to_be_bytes(),
        &terms.token.to_be_bytes(),
        &terms.share.to_be_bytes(),
    ]
    .concat()
}

fn decode_pool(octets: &[u8]) -> Option<(u32, PoolTerms, &[u8])> {
    let (buffer_octets, rest) = octets.split_first_chunk()?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (token, rest) = rest.split_first_chunk()?;
    let (share, rest) = rest.split_first_chunk()?;
    let terms = PoolTerms {
        epoch: u32::from_be_bytes(*epoch),
        number: u32::from_be_bytes(*number),
        token: u64::from_be_bytes(*token),
        share: u16::from_be_bytes(*share),
    };
    Some((u32::from_be_bytes(*buffer_octets), terms, rest))
}

/// A question of a pool over initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Where it listens.
    pub(crate) at: SocketAddr,
    /// The length of its buffers.
    pub(crate) buffer_octets: u32,
    pub(crate) terms: PoolTerms,
    /// Its target and its memory.
    pub(crate) target: Target,
}

impl Question {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [
            &QUESTION[..],
            &encode_address(self.at),
            &encode_pool(self.buffer_octets, &self.terms),
            &self.target.number().to_be_bytes(),
            &self.target.access_key().to_be_bytes(),
            &encode_region(&self.target.region()),
        ]
        .concat()
    }

    /// Whether private data is that of a pool, and not of one that asks for a target only.
    pub(crate) fn is_meant(octets: &[u8]) -> bool {
        octets.starts_with(&QUESTION)
    }

    pub(crate) fn decode(octets: &[u8]) -> Option<Self> {
        let rest = octets.strip_prefix(&QUESTION)?;
        let (at, rest) = decode_address(rest)?;
        let (buffer_octets, terms, rest) = decode_pool(rest)?;
        let (number, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (region, _) = decode_region(rest)?;
        let number = u32::from_be_bytes(*number);
        let target = Target::new(number, u64::from_be_bytes(*key), region)?;
        Some(Self {
            at,
            buffer_octets,
            terms,
            target,
        })
    }
}

/// What a pool over initiators answers.
pub(crate) fn encode_answer(target: &Target, buffer_octets: u32, terms: &PoolTerms) -> Vec<u8> {
    let described = described::encode_with_key(&target.region(), target.access_key());
    [described, encode_pool(buffer_octets, terms)].concat()
}

/// The length of the buffers and the terms of a pool that has answered; none of a node.
pub(crate) fn decode_answer(octets: &[u8]) -> Option<(u32, PoolTerms)> {
    let pool = octets.get(DESCRIBED_WITH_KEY..).and_then(decode_pool);
    pool.map(|(buffer_octets, terms, _)| (buffer_octets, terms))
}

impl Asking {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [
            &ASKS[..],
            &encode_address(self.at),
            &self.terms.encode(),
            &encode_region(&self.memory),
        ]
        .concat()
    }

    pub(crate) fn decode(octets: &[u8]) -> Option<Self> {
        let rest = octets.strip_prefix(&ASKS)?;
        let (at, rest) = decode_address(rest)?;
        let (terms, rest) = Terms::decode(rest)?;
        let (memory, _) = decode_region(rest)?;
        Some(Self { at, terms, memory })
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
    fn question_and_answer_survive_the_wire() {
        let terms = PoolTerms {
            epoch: 1,
            number: 2,
            token: 3,
            share: 4,
        };
        let target = Target::new(5, 6, MEMORY).unwrap();
        for at in ["10.0.0.1:7", "[fd00::1]:7"] {
            let question = Question {
                at: at.parse().unwrap(),
                buffer_octets: 4096,
                terms,
                target,
            };
            let octets = question.encode();
            assert_eq!(octets.len(), 76);
            assert_eq!(Question::decode(&octets), Some(question));
            assert_eq!(Question::decode(&octets[..75]), None);
            assert_eq!(Asking::decode(&octets), None);
        }
        let answer = encode_answer(&target, 4096, &terms);
        assert_eq!(described::decode_with_key(&answer), Some((MEMORY, 6)));
        assert_eq!(decode_answer(&answer), Some((4096, terms)));
        assert_eq!(decode_answer(&answer[..53]), None);
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
