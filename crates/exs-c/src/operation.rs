//! Operations that are posted, and their events.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use urdma_exs::Memory;

use crate::queue::Place;

/// What an operation is, as `exs_evt_type` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Recv,
    Sendfile,
    Accept,
    Connect,
}

/// Memory of the application that is registered.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) memory: Memory,
    /// The address of the first octet.
    pub(crate) start: usize,
    pub(crate) may_send: bool,
    pub(crate) may_receive: bool,
}

/// What an event says beyond how its operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Details {
    Transfer {
        /// The address of the buffer, as it was posted.
        buffer: usize,
        /// The octets transferred.
        length: usize,
        mhandle: usize,
    },
    Accept {
        /// The new socket.
        number: RawFd,
        peer: Option<SocketAddr>,
        /// The addresses at which the application wants the peer's address and its length; 0: none.
        wanted_at: [usize; 2],
    },
    Connect,
}

/// The event of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) errno: i32,
    pub(crate) number: RawFd,
    pub(crate) ahandle: usize,
    pub(crate) details: Details,
}

/// An operation in progress.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The event, but for how the operation ends.
    pub(crate) event: Event,
    /// Memory that cannot be deregistered before the end.
    pub(crate) memory: Option<Arc<Registered>>,
    pub(crate) place: Place<Event>,
}

impl Operation {
    /// The operation has ended with this errno.
    pub(crate) fn end(self, errno: i32) {
        let event = Event {
            errno,
            ..self.event
        };
        // Who has the event may deregister the memory.
        drop(self.memory);
        self.place.put(event);
    }

    /// A transfer has ended with this errno after `octets` octets.
    pub(crate) fn end_transfer(mut self, errno: i32, octets: u64) {
        if let Details::Transfer { length, .. } = &mut self.event.details {
            *length = usize::try_from(octets).unwrap_or(usize::MAX);
        }
        self.end(errno);
    }
}
