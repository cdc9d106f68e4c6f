//! The slots in which listeners have answered before.
//!
//! The first REQ to a service goes to slot 0, which looks up the listener. Once the listener has
//! answered, further REQs go to its slot. Until then only [`ASKED_MAX`] REQs are sent in a retry
//! period and the others are held: slot 0 and the listener have room for few, and a REQ that is
//! lost costs a retry period.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use urdma_types::{SlotId, Time};

use crate::conn::{ConnId, Service};

/// REQs to a service whose slot is not known that are sent in a retry period.
const ASKED_MAX: u32 = 32;
/// Services that are remembered.
const KNOWN_MAX: usize = 1024;

/// What is known about a service.
#[derive(Debug)]
enum Known {
    /// The listener is in this slot.
    Slot(SlotId),
    /// No listener has answered.
    Asked {
        /// When the period began.
        since: Time,
        /// REQs that were sent in it.
        sent: u32,
        /// Connections whose REQ is held.
        held: Vec<ConnId>,
    },
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
    known: HashMap<Service, Known>,
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
        if !self.known.contains_key(&service) && self.known.len() >= KNOWN_MAX {
            // They are learnt again. Connections that are held send when their timer expires.
            self.known.clear();
        }
        let known = self.known.entry(service).or_insert(Known::Asked {
            since: now,
            sent: 0,
            held: Vec::new(),
        });
        match known {
            Known::Slot(slot) => Dispatch::Send(*slot),
            Known::Asked { since, sent, held } => {
                if now >= since.plus(retry) {
                    (*since, *sent) = (now, 0);
                    held.clear();
                }
                if *sent < ASKED_MAX {
                    *sent += 1;
                    return Dispatch::Send(SlotId::DAEMON);
                }
                held.push(conn);
                Dispatch::Hold
            }
        }
    }

    /// A listener has answered from `slot`; gives the connections whose REQ was held for it.
    pub(crate) fn learn(&mut self, service: Service, slot: SlotId) -> Vec<ConnId> {
        match self.known.insert(service, Known::Slot(slot)) {
            Some(Known::Asked { held, .. }) => held,
            Some(Known::Slot(_)) | None => Vec::new(),
        }
    }

    /// The process of a slot is gone.
    pub(crate) fn forget_slot(&mut self, ip: IpAddr, gone: SlotId) {
        self.known.retain(|(addr, _), known| {
            !(addr.ip() == ip && matches!(known, Known::Slot(slot) if *slot == gone))
        });
    }

    /// There is no listener in the slot that was known.
    pub(crate) fn forget(&mut self, service: Service) {
        if let Some(Known::Slot(_)) = self.known.get(&service) {
            self.known.remove(&service);
        }
    }
}

/// The addresses and ports to which this process has established connections, with their number.
#[derive(Debug, Default)]
pub(crate) struct Served {
    counts: HashMap<SocketAddr, u32>,
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
