//! TRAIN: short segments with consecutive sequence numbers in one packet (doc/spec/trp.md, section
//! 4.4).
//!
//! TRP header and extensions are followed by a table of segment lengths, then by the segments. The
//! table is in the part of the packet that is copied before it is parsed, so the positions of the
//! segments are validated once, on a private copy.

use super::error::{EncodeError, ParseError};
use super::trp::{TrpHeader, HEADER_LEN};
use super::{chunk, chunk_mut, ddp, rdmap};

/// Segments of a train at most: the entries of the table.
pub const SEGMENTS_MAX: usize = 16;
/// Octets of the table.
pub const TABLE_LEN: usize = 2 * SEGMENTS_MAX;
/// Octets before the first segment of a train without extensions.
pub const OVERHEAD: usize = HEADER_LEN + TABLE_LEN;
/// Octets of a segment that its parser may need: the longest DDP and RDMAP headers.
pub const SEGMENT_HEAD_LEN: usize = ddp::UNTAGGED_LEN + rdmap::ATOMIC_REQUEST_LEN;
/// The bit of an entry that stands for the flag IMM of its segment; the others are the length.
const IMMEDIATE: u16 = 0x8000;

/// One segment of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the packet it begins.
    pub at: usize,
    /// Its octets.
    pub len: usize,
    /// It has the flag IMM.
    pub has_immediate: bool,
}

/// The validated table of a train: the packet holds exactly these segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    entries: [u16; SEGMENTS_MAX],
    count: usize,
    first: usize,
}

impl Train {
    /// Parses the table of a packet whose TRP header was read from the same `head`; `datagram_len`
    /// is the length of all of it.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the table is incomplete, [`ParseError::Train`] when there is
    /// no segment, one is shorter than any DDP header, or they do not end where the packet does.
    #[inline(never)]
    pub fn parse(trp: &TrpHeader, head: &[u8], datagram_len: usize) -> Result<Self, ParseError> {
        let table: &[u8; TABLE_LEN] = chunk(head, trp.len())?;
        let first = trp.len() + TABLE_LEN;
        let (mut entries, mut count, mut end) = ([0; SEGMENTS_MAX], 0, first);
        for (entry, octets) in entries.iter_mut().zip(table.chunks_exact(2)) {
            *entry = u16::from_be_bytes([octets[0], octets[1]]);
            if *entry == 0 {
                break;
            }
            let len = usize::from(*entry & !IMMEDIATE);
            if len < ddp::TAGGED_LEN {
                return Err(ParseError::Train);
            }
            end += len;
            count += 1;
        }
        let is_rest_empty = table[2 * count..].iter().all(|&octet| octet == 0);
        // R4.4-5
        if count == 0 || !is_rest_empty || end != datagram_len {
            return Err(ParseError::Train);
        }
        Ok(Self {
            entries,
            count,
            first,
        })
    }

    /// The segments in the order of their sequence numbers.
    #[inline]
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = Piece> + '_ {
        let mut at = self.first;
        self.entries[..self.count].iter().map(move |entry| {
            let len = usize::from(entry & !IMMEDIATE);
            let piece = Piece {
                at,
                len,
                has_immediate: entry & IMMEDIATE != 0,
            };
            at += len;
            piece
        })
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
