//! The events of a stream, with the buffers of its user.

use urdma_stream::Event as Told;
use urdma_stream::{Failure, Outcome, RecvId, SendId};

use crate::ffi::memory::Buffer;
use crate::registrations::Posted;

/// What the user learns (exs_event_t).
#[derive(Debug)]
pub enum Event {
    /// A send is complete.
    Sent {
        /// Which.
        id: SendId,
        /// Its buffer.
        buffer: Buffer,
        /// How many octets were transferred.
        octets: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// A receive is complete.
    Received {
        /// Which.
        id: RecvId,
        /// Its buffer, which holds the octets at its beginning.
        buffer: Buffer,
        /// How many octets were received.
        octets: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// Both halves are finished. What each end has sent is received, and no octets are left in the
    /// ring of this one.
    Closed,
    /// The stream has failed. All operations have been completed by events before this one, and
    /// the peer can write into none of their buffers.
    Failed(Failure),
}

impl From<Told<Posted>> for Event {
    #[inline]
    fn from(told: Told<Posted>) -> Self {
        match told {
            Told::Sent {
                id,
                memory,
                octets,
                outcome,
            } => Self::Sent {
                id,
                buffer: memory.buffer,
                octets,
                outcome,
            },
            Told::Received {
                id,
                memory,
                octets,
                outcome,
            } => Self::Received {
                id,
                buffer: memory.buffer,
                octets,
                outcome,
            },
            Told::Closed => Self::Closed,
        }
    }
}
