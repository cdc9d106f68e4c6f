//! The ring of the peer, into which this end writes, and when it asks for one of another length.
//!
//! A ring that is full keeps the path idle if it holds less than a round trip does: its octets are
//! then returned as soon as an answer can take. It is doubled. If octets are returned later, path
//! or peer is the bottleneck, and a longer ring would only be filled as well. A ring of which
//! little is used for long is halved.

use crate::error::PeerError;
use crate::fault::{Fault, Faults};
use crate::types::{Buffer, Clock, RingNo, Seq};

/// A full ring is doubled if its octets are returned within this many times the least time.
const PROMPT: u64 = 2;
/// A ring is nearly full if an eighth is free; about as much is free when the peer says
/// that its octets are.
const NEARLY: u64 = 8;
/// A ring of which at most a quarter was used is halved; of what is used, up to an eighth
/// is free and not said to be ...
const LITTLE: u64 = 4;
/// ... when this many times its length was sent.
const LONG: u64 = 64;

/// A ring of another length, of which the peer is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    None,
    /// WANT is to be sent, with this number of octets.
    Due(u64),
    /// It was sent.
    Said(u64),
    /// The peer has answered with a ring, which is taken when no transfer is in progress.
    Granted(Buffer),
}

/// A transfer that has nearly filled the ring: where it ends, and when it was posted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Probe {
    end: u64,
    at_ns: u64,
}

/// The ring of the peer. Octets are counted from the beginning of the stream, over all rings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerRing {
    faults: Faults,
    number: RingNo,
    buffer: Buffer,
    first_octets: u64,
    /// How many octets were written before this ring was taken.
    from: u64,
    written: u64,
    /// Where the next octet goes in the ring.
    at: u64,
    emptied: u64,
    wish: Wish,
    /// The peer has refused a longer one than this.
    is_longest: bool,
    probe: Option<Probe>,
    /// Octets of a send have waited for room since the probe was posted.
    is_short: bool,
    /// The most octets in use since a position of the stream.
    most_used: u64,
    since: Seq,
}

impl PeerRing {
    pub(crate) fn new(buffer: Buffer, faults: Faults) -> Self {
        Self {
            faults,
            number: RingNo(0),
            buffer,
            first_octets: buffer.len_octets,
            from: 0,
            written: 0,
            at: 0,
            emptied: 0,
            wish: Wish::None,
            is_longest: false,
            probe: None,
            is_short: false,
            most_used: 0,
            since: Seq(0),
        }
    }

    fn used(&self) -> u64 {
        self.written - self.emptied.max(self.from)
    }

    /// Free octets (b_s).
    pub(crate) fn free(&self) -> u64 {
        self.buffer.len_octets - self.used()
    }

    /// The free octets up to the end of the ring.
    pub(crate) fn contiguous(&self) -> u64 {
        self.free().min(self.buffer.len_octets - self.at)
    }

    /// Takes `octets` that are free: the position of the first.
    #[inline]
    pub(crate) fn take(&mut self, octets: u64) -> u64 {
        let position = self.written;
        self.written += octets;
        self.at += octets;
        if self.at >= self.buffer.len_octets {
            self.at -= self.buffer.len_octets;
        }
        self.most_used = self.most_used.max(self.used());
        position
    }

    /// Address and key of the place of the next octet.
    pub(crate) fn next_place(&self) -> (u64, u32) {
        (self.buffer.addr + self.at, self.buffer.rkey)
    }

    /// Where a position is of which the octets are not yet free again: address, key, and the octets
    /// up to the end of the ring.
    pub(crate) fn place(&self, position: u64) -> (u64, u32, u64) {
        let back = self.written - position;
        let at = match self.at.checked_sub(back) {
            Some(at) => at,
            None => self.at + self.buffer.len_octets - back,
        };
        let to_end = self.buffer.len_octets - at;
        (self.buffer.addr + at, self.buffer.rkey, to_end)
    }

    /// A transfer whose last octet is at `end` is posted.
    #[inline]
    pub(crate) fn posted(&mut self, end: u64, clock: &mut impl Clock) {
        if self.probe.is_none() && self.free() <= self.buffer.len_octets / NEARLY {
            let at_ns = clock.now_ns();
            self.probe = Some(Probe { end, at_ns });
            self.is_short = false;
        }
    }

    /// Octets of a send wait for room.
    pub(crate) fn wait(&mut self) {
        self.is_short = true;
    }

    /// The peer has emptied `emptied` octets in all; `least_ns` is the least time of an answer.
    pub(crate) fn handle_emptied(
        &mut self,
        emptied: u64,
        clock: &mut impl Clock,
        least_ns: u64,
    ) -> Result<(), PeerError> {
        if emptied < self.emptied || emptied > self.written {
            return Err(PeerError::CreditBeyondRing);
        }
        self.emptied = emptied;
        if let Some(probe) = self.probe.filter(|probe| probe.end <= emptied) {
            self.probe = None;
            let is_prompt = clock.now_ns().saturating_sub(probe.at_ns) / PROMPT <= least_ns;
            if self.is_short && is_prompt && !self.is_longest {
                self.wish(self.buffer.len_octets.saturating_mul(2));
            }
        }
        Ok(())
    }

    /// The stream has reached a position: whether a ring of half the length would do.
    #[inline]
    pub(crate) fn reached(&mut self, position: Seq) {
        if !self.is_judged_at(position) {
            return;
        }
        let octets = self.buffer.len_octets;
        let half = (octets / 2).max(self.first_octets);
        if self.most_used.saturating_mul(LITTLE) <= octets && half < octets {
            self.wish(half);
        }
        self.most_used = self.used();
        self.since = position;
    }

    /// Whether enough is sent at a position that a shorter ring may be wished.
    pub(crate) fn is_judged_at(&self, position: Seq) -> bool {
        position.0 - self.since.0 >= self.buffer.len_octets.saturating_mul(LONG)
    }

    /// Asks for a ring of `octets` octets, unless an answer is awaited.
    pub(crate) fn wish(&mut self, octets: u64) {
        if self.wish == Wish::None && self.buffer.len_octets > 0 {
            self.wish = Wish::Due(octets);
        }
    }

    /// Whether a message about rings is due, or can be once the transfer in progress has ended.
    pub(crate) fn owes_message(&self) -> bool {
        matches!(self.wish, Wish::Due(_) | Wish::Granted(_))
    }

    pub(crate) fn want_due(&self) -> Option<u64> {
        match self.wish {
            Wish::Due(octets) => Some(octets),
            _ => None,
        }
    }

    pub(crate) fn want_said(&mut self) {
        if let Wish::Due(octets) = self.wish {
            self.wish = Wish::Said(octets);
        }
    }

    /// The peer answers; a ring without octets is a refusal.
    pub(crate) fn handle_ring(&mut self, number: RingNo, ring: Buffer) -> Result<(), PeerError> {
        let Wish::Said(wanted) = self.wish else {
            return Err(PeerError::UnexpectedRing);
        };
        if number != self.number.next() {
            return Err(PeerError::UnexpectedRing);
        }
        if !ring.is_addressable() {
            return Err(PeerError::RingBuffer);
        }
        if ring.len_octets == 0 {
            self.is_longest |= wanted > self.buffer.len_octets;
            self.wish = Wish::None;
            return Ok(());
        }
        self.wish = Wish::Granted(ring);
        if self.faults.has(Fault::RingUsedUntold) {
            self.change(ring);
        }
        Ok(())
    }

    /// The number of the ring that can be taken.
    pub(crate) fn taken_due(&self) -> Option<RingNo> {
        matches!(self.wish, Wish::Granted(_)).then(|| self.number.next())
    }

    /// The peer is told that the next transfer is into the ring that it has granted.
    pub(crate) fn taken_said(&mut self, position: Seq) {
        if let Wish::Granted(ring) = self.wish {
            self.wish = Wish::None;
            self.number = self.number.next();
            if !self.faults.has(Fault::RingUsedUntold) {
                self.change(ring);
            }
            self.is_longest = false;
            self.probe = None;
            (self.most_used, self.since) = (0, position);
        }
    }

    fn change(&mut self, ring: Buffer) {
        self.buffer = ring;
        self.from = self.written;
        self.at = match self.faults.has(Fault::RingPlaceKept) {
            true => self.written % ring.len_octets,
            false => 0,
        };
    }

    /// The length of the ring.
    #[cfg(test)]
    pub(crate) fn len_octets(&self) -> u64 {
        self.buffer.len_octets
    }
}
