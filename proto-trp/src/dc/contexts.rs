//! The contexts of a target: a table whose places, connections included, are used again, and the
//! orders in which the target looks for one. No operation depends on the number of contexts but for
//! the heap of deadlines, which takes its logarithm, and the end of a process.

use super::ends::DcSource;
use super::fault::{Fault, Faults};
use super::lists::{Links, List};
use super::timers::Timers;
use crate::conn::Connection;
use crate::wire::ConnectionId;
use std::collections::hash_map::{Entry, HashMap};
use std::net::IpAddr;
use urdma_types::{Psn, SlotId, Time};

/// The state of one connection of an initiator.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) conn: Connection,
    pub(super) epoch: u64,
    pub(super) received: ConnectionId,
    pub(super) sent: ConnectionId,
    /// When the last packet of the initiator arrived.
    pub(super) heard: Time,
    /// The silence after which the context ends.
    pub(super) lease_ns: u64,
    /// Requests may have had an effect that the initiator does not know of until it confirms the
    /// packets before this one.
    pub(super) pinned: Option<Psn>,
    /// The address to which the initiator sent its last packet: its index in the driver's table.
    pub(super) local: u8,
}

/// What keeps a context from being evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It exchanges packets.
    Exchange,
    /// The initiator's confirmation.
    Confirmation,
    /// It may be evicted.
    Nothing,
}

impl Context {
    // R17.4-2
    //# A context MUST NOT be evicted while it is pinned, a response is not acknowledged, or a
    //# message has arrived in part.
    fn need(&self, faults: Faults) -> Need {
        match (self.conn.is_quiescent(), self.pinned) {
            (true, Some(_)) if faults.has(Fault::EvictPinned) => Need::Nothing,
            (false, _) => Need::Exchange,
            (true, Some(_)) => Need::Confirmation,
            (true, None) => Need::Nothing,
        }
    }

    pub(super) fn lease_end(&self) -> Time {
        self.heard.plus_ns(self.lease_ns)
    }

    fn deadline(&self) -> Time {
        let deadline = self.conn.next_deadline().unwrap_or(Time::NEVER);
        deadline.earlier(self.lease_end())
    }
}

/// A place of the table that is in use.
#[derive(Debug)]
struct Place {
    source: DcSource,
    context: Context,
    /// What it is filed by.
    need: Need,
}

/// Contexts in the order in which they came to need what they need now or, if later, in which their
/// last packets arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Idle {
    evictable: List,
    unconfirmed: List,
}

impl Idle {
    fn list(&mut self, need: Need) -> Option<&mut List> {
        match need {
            Need::Exchange => None,
            Need::Confirmation => Some(&mut self.unconfirmed),
            Need::Nothing => Some(&mut self.evictable),
        }
    }

    fn file(&mut self, links: &mut Links, place: u32, before: Need, need: Need) {
        if let Some(list) = self.list(before) {
            list.remove(links, place);
        }
        if let Some(list) = self.list(need) {
            list.push(links, place);
        }
    }
}

/// The contexts of the initiators at one address.
#[derive(Clone, Copy, Debug, Default)]
struct AtAddress {
    contexts: usize,
    idle: Idle,
}

/// The contexts, by place. A place is valid until its context is removed.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    places: Vec<Option<Place>>,
    free: Vec<u32>,
    by_source: HashMap<DcSource, u32>,
    /// By the ids of both streams. If two contexts of an address share an id, it finds the younger
    /// one; the other one ends by its lease.
    by_id: HashMap<(IpAddr, ConnectionId), u32>,
    at_address: HashMap<IpAddr, AtAddress>,
    idle: Idle,
    idle_links: Links,
    /// Of the lists of each address.
    address_links: Links,
    /// May have something to send.
    ready: List,
    ready_links: Links,
    /// For each context a time that is not later than its deadline.
    timers: Timers,
    pub(super) faults: Faults,
}

impl Contexts {
    /// Contexts that exist.
    pub(super) fn len(&self) -> usize {
        self.by_source.len()
    }

    /// Contexts of the initiators at an address.
    pub(super) fn at_address(&self, address: IpAddr) -> usize {
        self.at_address.get(&address).map_or(0, |at| at.contexts)
    }

    /// The context of an initiator.
    pub(super) fn find(&self, source: &DcSource) -> Option<u32> {
        self.by_source.get(source).copied()
    }

    /// The context of which a stream has this id.
    pub(super) fn find_by_id(&self, address: IpAddr, id: ConnectionId) -> Option<u32> {
        self.by_id.get(&(address, id)).copied()
    }

    /// The places of the contexts of a process: that with a slot of the host with an address.
    pub(super) fn of_slot(&self, address: IpAddr, slot: SlotId) -> impl Iterator<Item = u32> + '_ {
        let is_of =
            move |source: &DcSource| (source.address, source.initiator.slot()) == (address, slot);
        let all = self.by_source.iter();
        all.filter(move |(source, _)| is_of(source))
            .map(|(_, place)| *place)
    }

    /// The initiator of the context in a place.
    pub(super) fn source(&self, place: u32) -> Option<DcSource> {
        let place = self.places.get(place as usize)?.as_ref()?;
        Some(place.source)
    }

    /// The context in a place. [`Self::file`] follows a change of it.
    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Context> {
        let place = self.places.get_mut(place as usize)?.as_mut()?;
        Some(&mut place.context)
    }

    /// Sets the address from which the packets of a context are sent.
    pub(super) fn set_local(&mut self, place: u32, local: u8) {
        if let Some(context) = self.get_mut(place) {
            context.local = local;
        }
    }

    /// The context that has been evictable for the longest time, of an address if one is given.
    pub(super) fn victim(&self, address: Option<IpAddr>) -> Option<u32> {
        self.idle(address)?.evictable.first()
    }

    /// The context that has needed nothing but a confirmation for the longest time, of an address
    /// if one is given.
    pub(super) fn unconfirmed(&self, address: Option<IpAddr>) -> Option<u32> {
        self.idle(address)?.unconfirmed.first()
    }

    fn idle(&self, address: Option<IpAddr>) -> Option<&Idle> {
        match address {
            Some(address) => self.at_address.get(&address).map(|at| &at.idle),
            None => Some(&self.idle),
        }
    }

    /// Adds the context of an initiator that has none.
    pub(super) fn add(&mut self, source: DcSource, context: Context) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.idle_links.grow();
            self.address_links.grow();
            self.ready_links.grow();
            self.timers.grow();
            // A target has fewer contexts than there are queue pair numbers.
            u32::try_from(self.places.len() - 1).unwrap_or(0)
        });
        self.by_source.insert(source, place);
        for id in [context.sent, context.received] {
            self.by_id.insert((source.address, id), place);
        }
        self.at_address.entry(source.address).or_default().contexts += 1;
        self.places[place as usize] = Some(Place {
            source,
            context,
            need: Need::Exchange,
        });
        self.file(place);
        place
    }

    /// Removes a context, which must be in its place.
    pub(super) fn remove(&mut self, place: u32) -> Option<Context> {
        let Place {
            source,
            context,
            need,
        } = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        self.by_source.remove(&source);
        for id in [context.sent, context.received] {
            let key = (source.address, id);
            if self.by_id.get(&key) == Some(&place) {
                self.by_id.remove(&key);
            }
        }
        self.idle
            .file(&mut self.idle_links, place, need, Need::Exchange);
        self.ready.remove(&mut self.ready_links, place);
        self.timers.remove(place);
        if let Entry::Occupied(mut at) = self.at_address.entry(source.address) {
            let of_address = at.get_mut();
            let links = &mut self.address_links;
            of_address.idle.file(links, place, need, Need::Exchange);
            of_address.contexts -= 1;
            if of_address.contexts == 0 {
                at.remove();
            }
        }
        Some(context)
    }

    /// A packet of the initiator has arrived: the context is the most recently used one.
    pub(super) fn touch(&mut self, place: u32) {
        self.refile(place, true);
    }

    /// Enters what the context needs and its deadline, after it may have changed.
    pub(super) fn file(&mut self, place: u32) {
        self.refile(place, false);
    }

    fn refile(&mut self, place: u32, is_used: bool) {
        let Some(Some(entry)) = self.places.get_mut(place as usize) else {
            return;
        };
        let deadline = entry.context.deadline();
        if self.timers.of(place).is_none_or(|filed| deadline < filed) {
            self.timers.set(place, deadline);
        }
        let need = entry.context.need(self.faults);
        let before = std::mem::replace(&mut entry.need, need);
        if need == before && !is_used {
            return;
        }
        let of_address = self.at_address.entry(entry.source.address).or_default();
        let links = &mut self.address_links;
        of_address.idle.file(links, place, before, need);
        self.idle.file(&mut self.idle_links, place, before, need);
    }

    /// The context may have something to send.
    pub(super) fn set_ready(&mut self, place: u32) {
        self.ready.push(&mut self.ready_links, place);
    }

    /// The context that has waited for the longest time to send.
    pub(super) fn first_ready(&self) -> Option<u32> {
        self.ready.first()
    }

    /// The context has nothing to send.
    pub(super) fn clear_ready(&mut self, place: u32) {
        self.ready.remove(&mut self.ready_links, place);
    }

    /// Adds the contexts whose deadlines have passed to `due`. Each of them has no deadline until
    /// it is filed again.
    pub(super) fn take_due(&mut self, now: Time, due: &mut Vec<u32>) {
        while let Some((_, place)) = self.timers.first().filter(|(time, _)| *time <= now) {
            let entry = self.places[place as usize].as_ref();
            match entry.map(|entry| entry.context.deadline()) {
                Some(deadline) if deadline > now => self.timers.set(place, deadline),
                _ => {
                    self.timers.remove(place);
                    due.push(place);
                }
            }
        }
    }

    /// When [`Self::take_due`] is to be called: not later than the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| time)
    }
}
