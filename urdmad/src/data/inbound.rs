//! Frames from the port: checked, then into the ring of the slot that their UDP port names.

use proto_trp::wire::datagram::group_of;
use urdma_arena::{Endpoint, Meta, SendError, SlotId};
use urdma_cm::wire::ReqRoute;
use urdma_underlay::Received;

use super::allowances::Allowances;
use super::doorbells::Doorbells;
use super::limit::RateLimit;
use super::own::{self, Answer};
use crate::identity::Identity;
use crate::shared::Shared;

/// What handling a received frame needs.
pub(crate) struct Inbound<'a> {
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) allowances: &'a mut Allowances,
    pub(crate) shared: &'a Shared,
    pub(crate) identity: &'a Identity,
    pub(crate) doorbells: &'a mut Doorbells,
    pub(crate) resets: &'a mut RateLimit,
    pub(crate) now_ns: u64,
}

impl Inbound<'_> {
    /// Whether a slot has to catch up before anybody is given more.
    #[inline]
    pub(crate) fn waits(&mut self) -> bool {
        self.allowances.waits(&self.endpoint.arena(), self.now_ns)
    }

    /// Hands a datagram to its slot; gives what is to be answered.
    #[inline]
    pub(crate) fn deliver(&mut self, received: &Received, datagram: &[u8]) -> Option<Answer> {
        let counters = &self.shared.counters;
        let Some(slot) = own::arena_slot_of_port(received.destination_port) else {
            counters.drop_rx_not_our_port.bump();
            return None;
        };
        if slot == SlotId::DAEMON {
            return self.for_daemon(received, datagram);
        }
        match self.put(slot, &metadata(received), datagram) {
            Ok(()) => counters.to_processes.bump(),
            Err(Undelivered::NoFrame) => counters.drop_rx_no_frame.bump(),
            Err(Undelivered::Behind) => counters.drop_rx_slot_behind.bump(),
            Err(Undelivered::Full) => counters.drop_rx_ring_full.bump(),
            Err(Undelivered::Unattached) => {
                counters.drop_rx_unattached_slot.bump();
                return self.reset(received, slot, datagram);
            }
        }
        None
    }

    /// Only connection management is for slot 0, and what it copies to the members of a group.
    #[cold]
    fn for_daemon(&mut self, received: &Received, datagram: &[u8]) -> Option<Answer> {
        let counters = &self.shared.counters;
        if let Some(group) = group_of(datagram, datagram.len()) {
            if group == received.destination {
                self.copy_to_members(&group, &metadata(received), datagram);
            } else {
                counters.drop_not_for_daemon.bump();
            }
            return None;
        }
        let remote = urdma_underlay::from_octets(received.source);
        let Some(request) = ReqRoute::parse(datagram) else {
            if !self.shared.give_cm_datagram(remote, datagram) {
                counters.drop_not_for_daemon.bump();
            }
            return None;
        };
        if !self.identity.owns(request.dst.ip()) {
            counters.drop_not_for_daemon.bump();
            return None;
        }
        own::dispatch(self.shared, &request, |slot| match slot {
            SlotId::DAEMON => self.shared.give_cm_datagram(remote, datagram),
            slot => self.put(slot, &metadata(received), datagram).is_ok(),
        })
    }

    /// Gives every member of a group on this host a copy.
    #[inline(never)]
    pub(crate) fn copy_to_members(&mut self, group: &[u8; 16], meta: &Meta, datagram: &[u8]) {
        let counters = &self.shared.counters;
        counters.group_datagrams.bump();
        let members = self.shared.groups().members(group);
        for slot in members.iter() {
            match self.put(slot, meta, datagram) {
                Ok(()) => counters.group_copies.bump(),
                // It is ending, and its membership with it.
                Err(Undelivered::Unattached) => {}
                Err(_) => counters.drop_group_copies.bump(),
            }
        }
    }

    #[cold]
    fn reset(&mut self, received: &Received, slot: SlotId, datagram: &[u8]) -> Option<Answer> {
        let remote = urdma_underlay::from_octets(received.source);
        let arena = self.endpoint.arena();
        let answer = Answer::reset(datagram, remote, received.source_port, (&arena, slot))?;
        if !self.resets.allows(self.now_ns) {
            self.shared.counters.drop_reset_limit.bump();
            return None;
        }
        self.shared.counters.resets_sent.bump();
        Some(answer)
    }

    #[inline]
    fn put(&mut self, slot: SlotId, meta: &Meta, datagram: &[u8]) -> Result<(), Undelivered> {
        let arena = self.endpoint.arena();
        if !self.allowances.take(&arena, slot, datagram.len()) {
            return Err(if arena.is_alive(slot) {
                Undelivered::Behind
            } else {
                Undelivered::Unattached
            });
        }
        let mut frame = self
            .endpoint
            .alloc(datagram.len())
            .ok_or(Undelivered::NoFrame)?;
        frame.data_mut()[..datagram.len()].copy_from_slice(datagram);
        frame.set_meta(meta);
        match self.endpoint.send_quiet(slot, frame, datagram.len()) {
            Ok(()) => {
                self.doorbells.note(slot);
                Ok(())
            }
            Err((_, SendError::Full)) => Err(Undelivered::Full),
            Err((_, SendError::Dead)) => Err(Undelivered::Unattached),
        }
    }
}

/// Where a datagram from the port came from, as metadata of a frame.
#[inline]
fn metadata(received: &Received) -> Meta {
    Meta {
        remote_ip: received.source,
        src_port: received.source_port,
        dst_port: received.destination_port,
        ecn: received.ecn.bits(),
    }
}

/// Why a datagram did not get into its slot's ring.
enum Undelivered {
    NoFrame,
    /// The slot has too much that it has not taken.
    Behind,
    Full,
    Unattached,
}
