//! The arena as a way out: datagrams into the ring of another slot of this host.

use urdma_arena::{Endpoint, Meta};
use urdma_types::SlotId;

use super::capture::Capture;
use super::cma::{Cma, NEVER, REFER_FROM};
use super::note::Note;
use super::outbox::Outbox;
use super::packet_path::{Refused, TransmitPath, Written};

/// The way of one queue pair to a slot.
pub(super) struct ArenaPath<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) outbox: &'a mut Outbox,
    pub(super) capture: &'a mut Option<Box<Capture>>,
    pub(super) cma: &'a Cma,
    pub(super) from: SlotId,
    pub(super) to: SlotId,
    /// The headers that slot 0 is to write.
    pub(super) meta: Option<&'a Meta>,
    /// One queue pair alone sends in this call, and no batch.
    pub(super) is_alone: bool,
}

impl TransmitPath for ArenaPath<'_> {
    #[inline]
    fn begin(&mut self, notes: &mut Vec<Note>, octets: usize) -> Result<&mut [u8], Refused> {
        self.outbox
            .begin(self.endpoint, notes, self.to, octets, self.is_alone)
    }

    #[inline]
    fn refer_from(&self, octets: usize, may_refer: impl FnOnce() -> bool) -> usize {
        let is_possible =
            octets >= REFER_FROM && self.meta.is_none() && self.capture.is_none() && may_refer();
        if is_possible {
            self.cma.refer_from(self.endpoint, self.to)
        } else {
            NEVER
        }
    }

    #[inline]
    fn commit(&mut self, notes: &mut Vec<Note>, written: Written) {
        if let Some(capture) = self.capture {
            capture.add(self.from, self.to, &self.outbox.begun()[..written.len]);
        }
        let meta = self.meta.map(|meta| Meta {
            ecn: written.ecn(),
            ..*meta
        });
        self.outbox.add(
            self.endpoint,
            notes,
            written.len,
            written.is_unreliable,
            (meta, written.referred),
        );
    }

    /// The next datagram to the slot takes the room.
    #[inline]
    fn discard(&mut self) {}
}
