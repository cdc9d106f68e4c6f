//! The reader's half of a region.

#![allow(unsafe_code)]

use urdma_waiting::Bells;

use crate::bits::low32;
use crate::cell::CellOctets;
use crate::layout::CELL_DATA;
use crate::region::PeerRegion;
use crate::sync::Ordering;

/// The part of a message that lies in a frame. Its content stays until the message is settled,
/// unless its writer is hostile: copy, then validate the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    at: usize,
    octets: usize,
}

impl Payload {
    /// Octets, at least 1 and at most those of a frame.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.octets
    }
}

/// What the reader finds at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Empty,
    /// A cell that no writer of this version writes. The reader stays there: the channel has ended.
    Corrupt,
    /// A message.
    Message {
        /// Octets that were copied from its cell, at most [`CELL_DATA`].
        len: usize,
        /// The rest of it.
        payload: Option<Payload>,
        /// Low 24 bits of the writer's `settled` when it wrote the message.
        count: u32,
    },
}

/// The counts of a region, unvalidated: low 32 bits of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Messages of the reader's region that the writer has settled.
    pub settled: u32,
    /// Messages that the writer had written when it stored `settled`.
    pub written: u32,
}

/// The reader's half.
#[derive(Debug)]
pub struct Incoming {
    region: PeerRegion,
    position: u64,
}

impl Incoming {
    /// Reads a new region from its first message on.
    pub fn new(region: PeerRegion) -> Self {
        Self::starting_at(region, 0)
    }

    /// For tests of what happens when positions exceed 32 bits.
    #[doc(hidden)]
    pub fn starting_at(region: PeerRegion, position: u64) -> Self {
        Self { region, position }
    }

    /// Messages taken so far.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.position
    }

    /// Whether a message waits, or a corrupt cell.
    #[inline]
    pub fn has_message(&self) -> bool {
        self.region.0.cell(self.position).holds(self.position)
    }

    /// Takes the next message: copies what its cell holds to `out`. What lies behind its length
    /// there is undefined.
    #[inline]
    pub fn next(&mut self, out: &mut CellOctets) -> Next {
        let region = &self.region.0;
        let Some(found) = region.cell(self.position).read(self.position, out) else {
            return Next::Empty;
        };
        // C4-2
        //# The reader copies the cell and validates the copy: at most 112 octets in the cell; a
        //# frame number that exists; at most as many octets as the frame has.
        let len = usize::from(found.len);
        if len > CELL_DATA {
            return Next::Corrupt;
        }
        let mut payload = None;
        if found.frame != 0 {
            let frame = region.layout().frame(u32::from(found.frame) - 1);
            let octets = found.frame_octets as usize;
            match frame {
                Some((at, room)) if (1..=room).contains(&octets) => {
                    payload = Some(Payload { at, octets });
                }
                _ => return Next::Corrupt,
            }
        }
        self.position += 1;
        Next::Message {
            len,
            payload,
            count: found.count,
        }
    }

    /// The peer's counts, by one load.
    #[inline]
    pub fn counts(&self) -> Counts {
        let word = self.region.0.counts().load(Ordering::Acquire);
        Counts {
            settled: low32(word >> 32),
            written: low32(word),
        }
    }

    /// Whether all messages up to the low 32 bits of a position have been taken.
    #[inline]
    pub fn has_reached(&self, written: u32) -> bool {
        written.wrapping_sub(low32(self.position)) as i32 <= 0
    }

    /// Whether `settled` has reached the count at which the peer wants to be woken.
    #[inline]
    pub fn wants_to_know(&self, settled: u64) -> bool {
        let wake_at = self.region.0.wake_at().load(Ordering::Relaxed);
        low32(settled).wrapping_sub(wake_at) as i32 >= 0
    }

    /// Has the next sleep end when the peer rings its bell.
    #[inline]
    pub fn listen(&self, bells: &mut Bells) {
        bells.add(self.region.0.bell());
    }

    /// The address of a payload of this half, readable for its length while the half lives. Read
    /// each octet once.
    ///
    /// # Panics
    /// When the payload is not within this region, so of another half.
    #[inline]
    pub fn payload_ptr(&self, payload: Payload) -> *const u8 {
        let region = &self.region.0;
        let end = payload.at + payload.octets;
        assert!(end <= region.layout().total(), "a payload of another half");
        region.at(payload.at).as_ptr()
    }

    /// Copies octets of a payload, from offset `skip` on; false, without a copy, when they are not
    /// all within it.
    ///
    /// # Panics
    /// As [`Incoming::payload_ptr`].
    #[inline]
    #[must_use]
    pub fn copy_payload(&self, payload: Payload, skip: usize, out: &mut [u8]) -> bool {
        // SAFETY: a slice may be written over its whole length.
        unsafe { self.copy_payload_to(payload, skip, out.as_mut_ptr(), out.len()) }
    }

    /// As [`Incoming::copy_payload`], for memory that need not be a slice.
    ///
    /// # Safety
    /// `out` must be valid for writes of `octets` octets.
    #[inline]
    #[must_use]
    pub unsafe fn copy_payload_to(
        &self,
        payload: Payload,
        skip: usize,
        out: *mut u8,
        octets: usize,
    ) -> bool {
        let end = skip.checked_add(octets);
        let is_within = end.is_some_and(|end| end <= payload.octets);
        if is_within {
            let from = self.payload_ptr(payload).wrapping_add(skip);
            // C4-3: one pass.
            // SAFETY: the source is within the mapping, and nothing depends on its content; the
            // destination is writable by the caller's promise, and cannot be in a region that is
            // mapped read-only.
            unsafe { std::ptr::copy_nonoverlapping(from, out, octets) };
        }
        is_within
    }
}
