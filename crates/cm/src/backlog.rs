//! The places of a listener for requests that its application has not received.

use std::collections::HashMap;
use std::net::IpAddr;

use urdma_types::SlotId;

use crate::conn::Conn;

/// What shares one part of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A host, by the address from which its requests come.
    Host(IpAddr),
    /// A process that connects from the listener's own address.
    Process(SlotId),
}

impl Source {
    /// The source of a passive connection's request.
    pub(crate) fn of(conn: &Conn) -> Self {
        if conn.req.src.ip() == conn.req.dst.ip() {
            Self::Process(conn.peer.slot)
        } else {
            Self::Host(conn.peer.ip)
        }
    }
}

/// The waiting requests of one listener.
///
/// A backlog of n has 2n places. A source takes one as long as it has fewer than are free: n if
/// there is no other, 2n / (k + 1) if k take all that they can, which leaves as many for the next.
#[derive(Debug)]
pub(crate) struct Backlog {
    places: u32,
    waiting: u32,
    of: HashMap<Source, u32>,
}

impl Backlog {
    pub(crate) fn new(backlog: u32) -> Self {
        Self {
            places: backlog.max(1).saturating_mul(2),
            waiting: 0,
            of: HashMap::new(),
        }
    }

    /// Takes a place; false if the source has no further one.
    pub(crate) fn take(&mut self, source: Source) -> bool {
        let own = self.of.get(&source).copied().unwrap_or(0);
        if own >= self.places - self.waiting {
            return false;
        }
        self.waiting += 1;
        self.of.insert(source, own + 1);
        true
    }

    /// Returns a place that the source has taken.
    pub(crate) fn release(&mut self, source: Source) {
        let Some(own) = self.of.get_mut(&source) else {
            return;
        };
        *own -= 1;
        if *own == 0 {
            self.of.remove(&source);
        }
        self.waiting -= 1;
    }
}
