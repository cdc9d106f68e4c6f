//! Lengths of the headers of a packet together.

use super::{ddp, rdmap, terminate, train, trp};

/// The octets of a datagram that [`super::Segment::parse`] may need: the longest TRP header, DDP
/// header and RDMAP header; the table of a train is among them, the segments behind it are copied
/// one by one.
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
