//! The table of a train: the lengths of its segments.

use super::ddp;
use super::error::ParseError;
use super::octets::chunk;

/// Segments of a train at most: the entries of the table.
pub const SEGMENTS_MAX: usize = 16;
/// Octets of the table.
pub const TABLE_LEN: usize = 2 * SEGMENTS_MAX;
/// The bit of an entry that stands for the flag IMM of its segment; the others are the length.
pub(super) const IMMEDIATE: u16 = 0x8000;

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
    /// Parses the table that begins at `at` in `head`, the first octets of a packet of
    /// `datagram_len` octets.
    ///
    /// # Errors
    /// Those of [`Train::parse`].
    #[inline]
    pub(super) fn parse_at(
        at: usize,
        head: &[u8],
        datagram_len: usize,
    ) -> Result<Self, ParseError> {
        let table: &[u8; TABLE_LEN] = chunk(head, at)?;
        let first = at + TABLE_LEN;
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
        //# **Errors.** A train whose table is cut short, names no segment or one of less than 14
        //# octets, has a nonzero octet after the first entry of 0, or whose lengths do not add up
        //# to the packet MUST be dropped as a whole, before any segment takes effect, and is
        //# counted.
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
