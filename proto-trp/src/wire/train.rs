//! TRAIN: short segments with consecutive sequence numbers in one packet (doc/spec/trp.md, section
//! 4.4).
//!
//! TRP header and extensions are followed by a table of segment lengths, then by the segments. The
//! table is in the part of the packet that is copied before it is parsed, so the positions of the
//! segments are validated once, on a private copy.

use super::error::{EncodeError, ParseError};
use super::octets::chunk_mut;
use super::train_table::IMMEDIATE;
use super::trp::{TrpHeader, HEADER_LEN};
use super::{ddp, rdmap};

pub use super::train_table::{Piece, Train, SEGMENTS_MAX, TABLE_LEN};

/// Octets before the first segment of a train without extensions.
pub const OVERHEAD: usize = HEADER_LEN + TABLE_LEN;
/// Octets of a segment that its parser may need: the longest DDP and RDMAP headers.
pub const SEGMENT_HEAD_LEN: usize = ddp::UNTAGGED_LEN + rdmap::ATOMIC_REQUEST_LEN;

impl Train {
    /// Parses the table of a packet whose TRP header was read from the same `head`; `datagram_len`
    /// is the length of all of it.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the table is incomplete, [`ParseError::Train`] when there is
    /// no segment, one is shorter than any DDP header, or they do not end where the packet does.
    #[inline(never)]
    pub fn parse(trp: &TrpHeader, head: &[u8], datagram_len: usize) -> Result<Self, ParseError> {
        Self::parse_at(trp.len(), head, datagram_len)
    }
}

/// A train that is being written: the segments first, header and table when their number is known.
#[derive(Debug)]
pub struct TrainWriter {
    entries: [u16; SEGMENTS_MAX],
    count: usize,
    end: usize,
}

impl Default for TrainWriter {
    fn default() -> Self {
        Self {
            entries: [0; SEGMENTS_MAX],
            count: 0,
            end: OVERHEAD,
        }
    }
}

impl TrainWriter {
    /// Segments so far.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Where the next segment is to be written.
    #[inline]
    pub fn end(&self) -> usize {
        self.end
    }

    /// A segment of `len` octets was written there. It is left out if the table is full.
    #[inline]
    pub fn push(&mut self, len: usize, has_immediate: bool) {
        let Some(entry) = self.entries.get_mut(self.count) else {
            return;
        };
        *entry = u16::try_from(len).unwrap_or(0) | if has_immediate { IMMEDIATE } else { 0 };
        self.count += 1;
        self.end += len;
    }

    /// Writes header and table and returns the length of the packet; the header has no extensions.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn finish(&self, trp: &TrpHeader, buf: &mut [u8]) -> Result<usize, EncodeError> {
        trp.encode(buf)?;
        let table: &mut [u8; TABLE_LEN] = chunk_mut(buf, HEADER_LEN)?;
        for (octets, entry) in table.chunks_exact_mut(2).zip(self.entries) {
            octets.copy_from_slice(&entry.to_be_bytes());
        }
        Ok(self.end)
    }
}
