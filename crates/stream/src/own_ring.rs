//! The ring of this end, into which the peer writes, and its replacement by one of another length.
//!
//! Octets are counted from the beginning of the stream, over all rings. The peer says, between two
//! transfers, that it has taken a new ring (TAKEN). What it wrote before is copied out of the old
//! one first, so there are two rings at most.

use crate::error::PeerError;
use crate::fault::{Fault, Faults};
use crate::types::{Buffer, RingNo};

/// An answer to the peer's wish for a ring of another length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    /// The peer has none.
    None,
    /// It wishes a ring of this size, octets.
    Wanted(u64),
    /// RING is to be sent; without octets it refuses.
    Made(Buffer),
    /// RING was sent: the size of the ring, octets.
    Said(u64),
}

/// A ring into which the peer no longer writes, and which holds octets.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Old {
    number: RingNo,
    len_octets: u64,
}

/// Octets of the oldest ring that are next to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) ring: RingNo,
    pub(crate) offset: u64,
    pub(crate) len_octets: u64,
}

/// The rings of this end, and the counts of the octets in them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OwnRing {
    faults: Faults,
    number: RingNo,
    len_octets: u64,
    /// The greatest length.
    max_octets: u64,
    /// How many octets were written before the peer took this ring.
    from: u64,
    written: u64,
    copied: u64,
    /// Where the next octet to be copied is, in the oldest ring.
    at: u64,
    /// What the peer was last told of `copied`.
    announced: u64,
    old: Option<Old>,
    offer: Offer,
}

impl OwnRing {
    pub(crate) fn new(len_octets: u64, max_octets: u64, faults: Faults) -> Self {
        Self {
            faults,
            number: RingNo(0),
            len_octets,
            max_octets: max_octets.max(len_octets),
            from: 0,
            written: 0,
            copied: 0,
            at: 0,
            announced: 0,
            old: None,
            offer: Offer::None,
        }
    }

    /// Octets that are in the rings (b_r).
    pub(crate) fn held(&self) -> u64 {
        self.written - self.copied
    }

    /// An indirect transfer has been placed.
    pub(crate) fn handle_written(&mut self, octets: u64) -> Result<(), PeerError> {
        if self.len_octets == 0 {
            return Err(PeerError::UnexpectedIndirect);
        }
        // The peer knows only of the octets that it was told to be free.
        let known = self.len_octets - (self.written - self.announced.max(self.from));
        if octets > known {
            return Err(PeerError::RingOverflow);
        }
        self.written += octets;
        Ok(())
    }

    /// Whether octets that are now written can be copied at once: the rings hold no others, they
    /// are in one part, and the peer need not be told that they are free.
    pub(crate) fn is_passed_by(&self, octets: u64) -> bool {
        if self.held() > 0 {
            return false;
        }
        // There is no older ring then.
        let is_whole = octets <= self.len_octets - self.at || self.faults.has(Fault::LonePastEnd);
        is_whole && (!self.owes_update_after(octets) || self.faults.has(Fault::LoneUntold))
    }

    /// Octets by which the ring is passed are written and copied: where they are.
    #[inline]
    pub(crate) fn pass(&mut self, octets: u64) -> Place {
        let place = Place {
            ring: self.number,
            offset: self.at,
            len_octets: octets,
        };
        self.written += octets;
        self.copy(octets);
        place
    }

    /// What is next to be copied; nothing if the rings are empty.
    #[inline]
    pub(crate) fn first(&self) -> Option<Place> {
        let held = self.held();
        if held == 0 {
            return None;
        }
        if let Some(old) = self.old {
            return Some(self.first_of(old));
        }
        Some(Place {
            ring: self.number,
            offset: self.at,
            len_octets: held.min(self.len_octets - self.at),
        })
    }

    /// The same while the older ring holds octets.
    #[cold]
    fn first_of(&self, old: Old) -> Place {
        let held = match self.faults.has(Fault::CopyAcrossRings) {
            true => self.held(),
            false => self.from - self.copied,
        };
        Place {
            ring: old.number,
            offset: self.at,
            len_octets: held.min(old.len_octets - self.at),
        }
    }

    /// Octets are copied.
    #[inline]
    pub(crate) fn copy(&mut self, octets: u64) {
        self.copied += octets;
        self.at += octets;
        let len_octets = match self.old {
            None => self.len_octets,
            Some(old) => self.copied_of(old),
        };
        if self.at >= len_octets {
            self.at -= len_octets;
        }
    }

    /// Octets of the older ring are copied; the length of the ring that is next.
    #[cold]
    fn copied_of(&mut self, old: Old) -> u64 {
        if self.copied < self.from {
            return old.len_octets;
        }
        self.old = None;
        self.at = self.copied - self.from;
        self.len_octets
    }

    /// The octets that the rings hold are dropped.
    pub(crate) fn clear(&mut self) {
        self.copy(self.held());
    }

    /// The oldest ring that holds octets or into which the peer writes.
    pub(crate) fn oldest(&self) -> RingNo {
        let old = self
            .old
            .filter(|_| !self.faults.has(Fault::OldRingReturned));
        old.map_or(self.number, |old| old.number)
    }

    /// The count of octets copied, for a control message that is now sent.
    pub(crate) fn announce(&mut self) -> u64 {
        let early = self.faults.has(Fault::EarlyRingCredit);
        self.announced = if early { self.written } else { self.copied };
        self.announced
    }

    /// Whether enough is free for the peer to be told.
    pub(crate) fn owes_update(&self) -> bool {
        self.owes_update_after(0)
    }

    /// The same, once so many more octets have been copied.
    fn owes_update_after(&self, octets: u64) -> bool {
        let news = (self.copied + octets).saturating_sub(self.announced);
        news > 0 && news >= self.len_octets / 8
    }

    /// The peer wishes a ring of `octets` octets.
    pub(crate) fn handle_want(&mut self, octets: u64) -> Result<(), PeerError> {
        if self.offer != Offer::None || octets == 0 || self.len_octets == 0 {
            return Err(PeerError::UnexpectedWant);
        }
        let octets = octets.min(self.max_octets);
        self.offer = match octets == self.len_octets {
            true => Offer::Made(Buffer::default()),
            false => Offer::Wanted(octets),
        };
        Ok(())
    }

    /// The length of the ring that the driver is to make.
    pub(crate) fn wanted(&self) -> Option<u64> {
        let Offer::Wanted(octets) = self.offer else {
            return None;
        };
        let may = self.old.is_none() || self.faults.has(Fault::RingOverOld);
        may.then_some(octets)
    }

    /// The driver has made it, or cannot.
    pub(crate) fn offer(&mut self, ring: Option<Buffer>) {
        if self.wanted().is_some() {
            self.offer = Offer::Made(ring.unwrap_or_default());
        }
    }

    /// The answer that is to be sent.
    pub(crate) fn ring_due(&self) -> Option<(RingNo, Buffer)> {
        match self.offer {
            Offer::Made(buffer) => Some((self.number.next(), buffer)),
            _ => None,
        }
    }

    pub(crate) fn ring_said(&mut self) {
        if let Offer::Made(buffer) = self.offer {
            self.offer = match buffer.len_octets {
                0 => Offer::None,
                octets => Offer::Said(octets),
            };
        }
    }

    /// What the peer writes from now on is in the ring that was offered.
    pub(crate) fn handle_taken(&mut self, number: RingNo) -> Result<(), PeerError> {
        let Offer::Said(len_octets) = self.offer else {
            return Err(PeerError::UnexpectedTaken);
        };
        if number != self.number.next() {
            return Err(PeerError::UnexpectedTaken);
        }
        let old = Old {
            number: self.number,
            len_octets: self.len_octets,
        };
        self.old = (self.held() > 0).then_some(old);
        if self.old.is_none() {
            self.at = 0;
        }
        self.offer = Offer::None;
        (self.number, self.len_octets, self.from) = (number, len_octets, self.written);
        Ok(())
    }
}
