//! Wire formats: TRP ([`trp`], [`ext`], [`train`]), DDP ([`ddp`]) and RDMAP ([`rdmap`],
//! [`terminate`]), and the DATAGRAM packet ([`datagram`]).
//!
//! Each layout is a set of named field positions, and a plain struct that can only hold valid
//! values. `parse` checks the length once and validates; `encode` fails only if the buffer is too
//! short. Receivers parse in one of two ways:
//!
//! ```text
//! Segment::parse(head, datagram_len)                  everything at once
//! TrpHeader::parse(head, datagram_len)                packet type, connection id
//!   then Segment::parse_after(&trp, head, datagram_len) the segment; its errors cause a Terminate
//! ```
//!
//! `head` is a private copy of the first octets of the datagram ([`HEAD_LEN_MAX`], or all of them
//! if fewer). No octet beyond it is read here.

pub mod datagram;
pub mod ddp;
mod error;
pub mod ext;
pub mod rdmap;
mod reset;
mod segment;
pub mod terminate;
pub mod train;
pub mod trp;

pub use datagram::DatagramHeader;
pub use ddp::{Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader};
pub use error::{EncodeError, ParseError};
pub use ext::{
    Extensions, RnrTimer, Sack, Timestamp, SACK_BITS_MAX, SACK_WORD_BITS, SHARED_QUEUE_LEN,
};
pub use rdmap::{
    AtomicOperation, AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest,
};
pub use reset::ResetReason;
pub use segment::{encode, encode_segment, Segment, SegmentKind};
pub use terminate::{Terminate, TerminateCause};
pub use train::{Piece, Train, TrainWriter, SEGMENT_HEAD_LEN};
pub use trp::{connection_id, ConnectionId, Flags, PacketType, TrpHeader, WINDOW_UNIT_PACKETS};

/// The octets of a datagram that [`Segment::parse`] may need: the longest TRP header, DDP header
/// and RDMAP header; the table of a train is among them, the segments behind it are copied one by
/// one.
pub const HEAD_LEN_MAX: usize = 192;

/// Octets before the payload of a tagged segment without extensions: TRP 16, DDP 14.
pub const TAGGED_OVERHEAD: usize = trp::HEADER_LEN + ddp::TAGGED_LEN;

/// Octets before the payload of an untagged segment without extensions: TRP 16, DDP 18.
pub const UNTAGGED_OVERHEAD: usize = trp::HEADER_LEN + ddp::UNTAGGED_LEN;

// The longest head: all extensions, an untagged header and the longest RDMAP header (Atomic
// Request, or Terminate).
const _: () = assert!(
    trp::HEADER_LEN + 4 * trp::EXTENSION_WORDS_MAX + ddp::UNTAGGED_LEN + rdmap::ATOMIC_REQUEST_LEN
        <= HEAD_LEN_MAX
        && trp::HEADER_LEN + 4 * trp::EXTENSION_WORDS_MAX + train::TABLE_LEN <= HEAD_LEN_MAX
        && terminate::LEN_MAX <= rdmap::ATOMIC_REQUEST_LEN
);

/// The first `N` octets at `at`, if they are there.
#[inline]
fn chunk<const N: usize>(octets: &[u8], at: usize) -> Result<&[u8; N], ParseError> {
    // R15-3: a length is checked where octets are read.
    octets
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .ok_or(ParseError::Truncated)
}

/// Room for `N` octets at `at`.
#[inline]
fn chunk_mut<const N: usize>(octets: &mut [u8], at: usize) -> Result<&mut [u8; N], EncodeError> {
    octets
        .get_mut(at..)
        .and_then(<[u8]>::first_chunk_mut)
        .ok_or(EncodeError::NoRoom)
}

#[inline]
fn be16<const N: usize>(octets: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([octets[at], octets[at + 1]])
}

#[inline]
fn be24<const N: usize>(octets: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, octets[at], octets[at + 1], octets[at + 2]])
}

#[inline]
fn be32<const N: usize>(octets: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
}

#[inline]
fn be64<const N: usize>(octets: &[u8; N], at: usize) -> u64 {
    (u64::from(be32(octets, at)) << 32) | u64::from(be32(octets, at + 4))
}

#[inline]
fn put<const N: usize, const M: usize>(octets: &mut [u8; N], at: usize, value: [u8; M]) {
    octets[at..at + M].copy_from_slice(&value);
}

#[inline]
fn put24<const N: usize>(octets: &mut [u8; N], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(octets, at, [a, b, c]);
}
