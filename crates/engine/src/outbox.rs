//! Datagrams on their way into the rings of other slots.
//!
//! Short datagrams to the same process share a frame: a stream of short messages then costs both
//! ends one frame, one entry of the ring and one look at the doorbell for many of them. A frame
//! leaves when the next datagram does not fit or goes elsewhere, and at the end of the call that
//! wrote into it.
//!
//! A single short datagram needs no frame: it is written to a private buffer and copied into a
//! short ring of the receiver, if that has room.
//!
//! A frame that found the receiver's ring full is sent again before anything else goes to that
//! receiver, so that no datagram overtakes it.

use urdma_arena::{
    Endpoint, Meta, Referred, SendError, ShortOctets, TxFrame, SHORT_CAPACITY, SMALL_CAPACITY,
};
use urdma_types::SlotId;

use super::cma;
use super::note::Note;
use super::packet_path::Refused;

/// Distance in octets behind the datagram being written at which lines are prefetched from the
/// receiver's cache: three short datagrams.
const AHEAD: usize = 384;
/// Room in a frame below which it takes no further datagram.
const ROOM_MIN: usize = 192;

/// A frame that is being filled.
#[derive(Debug)]
struct Open {
    to: SlotId,
    frame: TxFrame,
    /// Datagrams in it.
    count: u32,
    /// Octets of the first.
    first: usize,
    /// At least one is of a connection that fails when the receiver does not exist.
    is_reliable: bool,
    /// Where the datagram that is being written begins.
    at: usize,
    /// Where the last one ends.
    end: usize,
}

impl Open {
    /// Begins a further datagram of up to `room` octets, if it fits.
    #[inline]
    fn fits(&mut self, to: SlotId, room: usize) -> bool {
        if self.count == 0 {
            return self.to == to && room <= self.frame.capacity();
        }
        match self.frame.next_at(self.end) {
            Some(at)
                if self.to == to
                    && room <= SMALL_CAPACITY
                    && at + room <= self.frame.capacity() =>
            {
                self.at = at;
                self.frame.prefetch(at + AHEAD);
                true
            }
            _ => false,
        }
    }
}

/// A frame that is to be sent.
#[derive(Debug)]
struct Filled {
    to: SlotId,
    frame: TxFrame,
    first: usize,
    is_reliable: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    open: Option<Open>,
    /// The short datagram that is being written, and where it goes.
    short: Option<SlotId>,
    octets: ShortOctets,
    /// The receiver of a short datagram, which may sleep.
    bell: Option<SlotId>,
    /// Frames that found a ring full: at most one for each receiver.
    stuck: Vec<Filled>,
    /// Total of frames that found a ring full.
    pub(super) ring_full: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            open: None,
            short: None,
            octets: [0; SHORT_CAPACITY],
            bell: None,
            stuck: Vec::new(),
            ring_full: 0,
        }
    }
}

impl Outbox {
    /// Whether a frame waits for room in a ring.
    #[inline]
    pub(super) fn is_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    #[inline]
    fn may_be_short(&self, endpoint: &mut Endpoint, to: SlotId) -> bool {
        self.open.is_none() && !self.is_stuck() && endpoint.may_send_short(to)
    }

    /// Room for a datagram of up to `room` octets to `to`; [`Outbox::add`] sends what was written
    /// there. `is_alone` says that one queue pair alone sends in this call, and no batch: a short
    /// datagram then needs no frame.
    ///
    /// # Errors
    /// [`Refused`].
    #[inline]
    pub(super) fn begin(
        &mut self,
        endpoint: &mut Endpoint,
        notes: &mut Vec<Note>,
        to: SlotId,
        room: usize,
        is_alone: bool,
    ) -> Result<&mut [u8], Refused> {
        self.short = None;
        if is_alone && room <= SHORT_CAPACITY && self.may_be_short(endpoint, to) {
            self.short = Some(to);
            return Ok(&mut self.octets);
        }
        let fits = self.open.as_mut().is_some_and(|open| open.fits(to, room));
        if !fits {
            self.publish(endpoint, notes);
            if self.is_stuck() && !self.retry(endpoint, notes, to) {
                return Err(Refused::Full);
            }
            let frame = endpoint.alloc(room).ok_or(Refused::NoFrame)?;
            self.open = Some(Open {
                to,
                frame,
                count: 0,
                first: 0,
                is_reliable: false,
                at: 0,
                end: 0,
            });
        }
        match &mut self.open {
            Some(open) => Ok(&mut open.frame.data_mut()[open.at..]),
            None => Err(Refused::NoFrame),
        }
    }

    /// The room of the datagram that was begun.
    #[cold]
    pub(super) fn begun(&mut self) -> &[u8] {
        match &mut self.open {
            _ if self.short.is_some() => &self.octets,
            Some(open) => &open.frame.data_mut()[open.at..],
            None => &[],
        }
    }

    /// Completes the datagram that was begun, of `len` octets. One with metadata, which is for slot
    /// 0, and one with payload by reference share no frame.
    #[inline]
    pub(super) fn add(
        &mut self,
        endpoint: &mut Endpoint,
        notes: &mut Vec<Note>,
        len: usize,
        is_unreliable: bool,
        (meta, referred): (Option<Meta>, Option<Referred>),
    ) {
        if let Some(to) = self.short.take() {
            return self.send_short(endpoint, notes, to, len, is_unreliable);
        }
        let Some(open) = &mut self.open else { return };
        let mut len = len;
        if let Some(referred) = referred {
            // What is short goes into an open frame, so this is the first in its own.
            open.frame.refer(referred);
            len -= cma::octets_saved(referred);
        }
        if open.count == 0 {
            open.first = len;
        } else {
            open.frame.add_follower(len);
        }
        open.count += 1;
        open.is_reliable |= !is_unreliable;
        open.end = open.at + len;
        if let Some(meta) = &meta {
            open.frame.set_meta(meta);
        }
        if meta.is_some() || referred.is_some() || open.end + ROOM_MIN > SMALL_CAPACITY {
            self.publish(endpoint, notes);
        }
    }

    #[inline]
    fn send_short(
        &mut self,
        endpoint: &mut Endpoint,
        notes: &mut Vec<Note>,
        to: SlotId,
        len: usize,
        is_unreliable: bool,
    ) {
        match endpoint.send_short(to, &self.octets, len) {
            Ok(()) => {
                debug_assert!(self.bell.is_none_or(|other| other == to), "not alone");
                self.bell = Some(to);
            }
            Err(_) if is_unreliable => {}
            // There was room, so the receiver does not exist.
            Err(_) => notes.push(Note::SlotDead(to)),
        }
    }

    /// Sends what was written.
    #[inline]
    pub(super) fn publish(&mut self, endpoint: &mut Endpoint, notes: &mut Vec<Note>) {
        if let Some(to) = self.bell.take() {
            endpoint.ring_doorbell(to);
        }
        let Some(Open {
            to,
            frame,
            count,
            first,
            is_reliable,
            ..
        }) = self.open.take()
        else {
            return;
        };
        // A frame in which nothing was written is freed.
        if count == 0 {
            return;
        }
        let filled = Filled {
            to,
            frame,
            first,
            is_reliable,
        };
        self.send(endpoint, notes, filled);
    }

    #[inline]
    fn send(&mut self, endpoint: &mut Endpoint, notes: &mut Vec<Note>, filled: Filled) {
        if let Err((frame, error)) = endpoint.send(filled.to, filled.frame, filled.first) {
            self.keep(notes, Filled { frame, ..filled }, error);
        }
    }

    /// Sends the frames that found a ring full again.
    #[cold]
    pub(super) fn retry_all(&mut self, endpoint: &mut Endpoint, notes: &mut Vec<Note>) {
        for filled in std::mem::take(&mut self.stuck) {
            self.send(endpoint, notes, filled);
        }
    }

    /// Sends the frames that wait for `to` again; false when one still waits.
    #[cold]
    fn retry(&mut self, endpoint: &mut Endpoint, notes: &mut Vec<Note>, to: SlotId) -> bool {
        self.retry_all(endpoint, notes);
        self.stuck.iter().all(|waiting| waiting.to != to)
    }

    #[cold]
    fn keep(&mut self, notes: &mut Vec<Note>, filled: Filled, error: SendError) {
        match error {
            SendError::Full => {
                self.ring_full += 1;
                self.stuck.push(filled);
            }
            // Packets that the ended process sent last may still be in the ring, so the connection
            // does not fail here.
            SendError::Dead if filled.is_reliable => notes.push(Note::SlotDead(filled.to)),
            SendError::Dead => {}
        }
    }

    /// Drops what is kept for the process in `slot`, which has ended.
    pub(super) fn forget(&mut self, slot: SlotId) {
        self.stuck.retain(|waiting| waiting.to != slot);
        self.open.take_if(|open| open.to == slot);
    }
}
