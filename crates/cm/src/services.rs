//! The slots in which listeners have answered before.
//!
//! The first REQ to a service goes to slot 0, which looks up the listener. Once the listener has
//! answered, further REQs go to its slot. Until then only [`ASKED_MAX`] REQs are sent in a retry
//! period and the others are held: slot 0 and the listener have room for few, and a REQ that is
//! lost costs a retry period.
//!
//! This program alone chooses the addresses, so that a cheap hash of them suffices.

use std::collections::hash_map::Entry;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustc_hash::{FxBuildHasher, FxHashMap};
use urdma_types::{SlotId, Time};

use crate::conn::{ConnId, Service};

/// REQs to a service whose slot is not known that are sent in a retry period.
const ASKED_MAX: u32 = 32;
/// Services whose listener has not answered that are remembered.
const UNANSWERED_MAX: usize = 256;
/// Sets of services whose slot is known.
const SETS: usize = 32;
/// Services of a set.
const SET_MAX: usize = 8;

/// A service of which no listener has answered.
#[derive(Debug)]
struct Asked {
    /// When the period began.
    since: Time,
    /// REQs that were sent in it.
    sent: u32,
    /// Connections whose REQ is held.
    held: Vec<ConnId>,
}

/// The slots of the services that were used last. A hash gives each service its set, in which the
/// one that was used least recently gives way to another one.
#[derive(Debug, Default)]
struct Known {
    /// Each in the order of use, the last one first. There are none before the first service.
    sets: Vec<Vec<(Service, SlotId)>>,
}

impl Known {
    fn set(&mut self, service: &Service) -> Option<&mut Vec<(Service, SlotId)>> {
        let [last, ..] = FxBuildHasher.hash_one(service).to_le_bytes();
        self.sets.get_mut(usize::from(last) % SETS)
    }

    /// The slot of a service, which is used now.
    fn get(&mut self, service: &Service) -> Option<SlotId> {
        let set = self.set(service)?;
        let at = set.iter().position(|(one, _)| one == service)?;
        set[..=at].rotate_right(1);
        Some(set[0].1)
    }

    fn insert(&mut self, service: Service, slot: SlotId) {
        self.remove(&service);
        if self.sets.is_empty() {
            self.sets.resize_with(SETS, Vec::new);
        }
        if let Some(set) = self.set(&service) {
            set.truncate(SET_MAX - 1);
            set.insert(0, (service, slot));
        }
    }

    fn remove(&mut self, service: &Service) {
        if let Some(set) = self.set(service) {
            set.retain(|(one, _)| one != service);
        }
    }
}

/// What becomes of a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// It is sent to this slot.
    Send(SlotId),
    /// It is held until a listener answers or a retry period is over.
    Hold,
}

/// The services to which this process connects.
#[derive(Debug, Default)]
pub(crate) struct Services {
    known: Known,
    asked: FxHashMap<Service, Asked>,
}

impl Services {
    /// Decides where the REQ of a new connection goes.
    pub(crate) fn dispatch(
        &mut self,
        now: Time,
        retry: Duration,
        service: Service,
        conn: ConnId,
    ) -> Dispatch {
        if let Some(slot) = self.known.get(&service) {
            return Dispatch::Send(slot);
        }
        if self.asked.len() >= UNANSWERED_MAX && !self.asked.contains_key(&service) {
            // They are asked again. Connections that are held send when their timer expires.
            self.asked.clear();
        }
        let asked = self.asked.entry(service).or_insert(Asked {
            since: now,
            sent: 0,
            held: Vec::new(),
        });
        if now >= asked.since.plus(retry) {
            (asked.since, asked.sent) = (now, 0);
            asked.held.clear();
        }
        if asked.sent < ASKED_MAX {
            asked.sent += 1;
            return Dispatch::Send(SlotId::DAEMON);
        }
        asked.held.push(conn);
        Dispatch::Hold
    }

    /// A listener has answered from `slot`; gives the connections whose REQ was held for it.
    pub(crate) fn learn(&mut self, service: Service, slot: SlotId) -> Vec<ConnId> {
        self.known.insert(service, slot);
        let asked = self.asked.remove(&service);
        asked.map_or_else(Vec::new, |asked| asked.held)
    }

    /// The process of a slot is gone.
    pub(crate) fn forget_slot(&mut self, ip: IpAddr, gone: SlotId) {
        for set in &mut self.known.sets {
            set.retain(|((addr, _), slot)| addr.ip() != ip || *slot != gone);
        }
    }

    /// There is no listener in the slot that was known.
    pub(crate) fn forget(&mut self, service: Service) {
        self.known.remove(&service);
    }
}

/// The addresses and ports to which this process has established connections, with their number.
#[derive(Debug, Default)]
pub(crate) struct Served {
    counts: FxHashMap<SocketAddr, u32>,
}

impl Served {
    pub(crate) fn add(&mut self, dst: SocketAddr) {
        *self.counts.entry(dst).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, dst: SocketAddr) {
        if let Entry::Occupied(mut count) = self.counts.entry(dst) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(crate) fn contains(&self, dst: SocketAddr) -> bool {
        self.counts.contains_key(&dst)
    }
}

#[cfg(test)]
mod tests {
    use urdma_types::PortSpace;

    use super::*;

    const RETRY: Duration = Duration::from_secs(1);

    fn service(n: u16) -> Service {
        (SocketAddr::from(([192, 0, 2, 1], n)), PortSpace::TCP)
    }

    fn slot(n: u16) -> SlotId {
        SlotId::new(n.to_le_bytes()[0] / 2 + 1).unwrap_or_default()
    }

    impl Services {
        fn sent_to(&mut self, n: u16) -> Dispatch {
            self.dispatch(Time::ZERO, RETRY, service(n), ConnId(1))
        }

        fn connect(&mut self, n: u16) {
            self.sent_to(n);
            self.learn(service(n), slot(n));
        }
    }

    #[test]
    fn services_that_are_used_stay_known_and_the_others_are_bounded() {
        let mut services = Services::default();
        for n in 0..4 {
            services.connect(n);
        }
        for n in 4..10_000 {
            services.connect(n);
            for used in 0..4 {
                assert_eq!(services.sent_to(used), Dispatch::Send(slot(used)));
            }
        }
        let known = services.known.sets.iter().map(Vec::len).sum::<usize>();
        assert!(known <= SETS * SET_MAX);
        assert!(services.asked.is_empty());
        services.forget(service(0));
        services.forget_slot(service(1).0.ip(), slot(1));
        for gone in 0..2 {
            assert_eq!(services.sent_to(gone), Dispatch::Send(SlotId::DAEMON));
        }
        assert_eq!(services.sent_to(2), Dispatch::Send(slot(2)));
    }

    #[test]
    fn services_that_do_not_answer_are_bounded() {
        let mut services = Services::default();
        for n in 0..10_000 {
            services.sent_to(n);
            assert!(services.asked.len() <= UNANSWERED_MAX);
        }
    }
}
