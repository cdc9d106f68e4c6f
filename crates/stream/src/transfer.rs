//! Sends and the transfers that carry them.

use crate::types::{Event, Outcome, Parts, SendId};

/// One RDMA Write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The octets that it carries, in this order.
    pub parts: Parts,
    /// How many; 0 for an empty message.
    pub len_octets: u32,
    /// The peer's address of the first octet.
    pub addr: u64,
    /// The key of the peer's memory.
    pub rkey: u32,
    /// Immediate data, in the last piece of a transfer. The peer may be told of it only after the
    /// octets of this piece and of those before it are placed, as an RDMA Write with Immediate on a
    /// reliable connection guarantees.
    pub immediate: Option<u32>,
}

/// The RDMA Write, with immediate data, that is a short send as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lone {
    /// The peer's address of the first octet.
    pub addr: u64,
    /// The key of the peer's memory.
    pub rkey: u32,
    /// Immediate data, as that of a [`Piece`].
    pub immediate: u32,
}

/// A queued send.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Send<M> {
    pub(crate) id: SendId,
    pub(crate) memory: M,
    pub(crate) len_octets: u64,
    /// Octets that transfers have taken.
    pub(crate) taken: u64,
    /// The number of the last piece posted that carries octets of it; pieces are numbered from 1.
    pub(crate) last_piece: u64,
    /// How it ends, once no more of it is sent.
    pub(crate) ended: Option<Outcome>,
}

impl<M> Send<M> {
    pub(crate) fn left(&self) -> u64 {
        self.len_octets - self.taken
    }

    /// It ends: as it was told to, or else so.
    pub(crate) fn end(self, otherwise: Outcome) -> Event<M> {
        Event::Sent {
            id: self.id,
            memory: self.memory,
            octets: self.taken,
            outcome: self.ended.unwrap_or(otherwise),
        }
    }
}

/// A transfer of which pieces are still to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transfer {
    /// What it carries; several sends only if one piece carries all.
    pub(crate) parts: Parts,
    pub(crate) len_octets: u64,
    pub(crate) written: u64,
    pub(crate) to: Target,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// A buffer, from this address.
    Direct { addr: u64, rkey: u32 },
    /// The ring, from this count of octets since the beginning of the stream.
    Ring { position: u64 },
}

/// What may join short sends that wait for others to be carried with them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gathering {
    /// How many sends; 0: none wait, or they wait no more.
    pub(crate) sends: usize,
    /// The octets that the transfer has room for.
    pub(crate) room: u64,
}

impl Gathering {
    pub(crate) const NONE: Self = Self { sends: 0, room: 0 };

    /// A send of this length has joined them.
    #[inline]
    pub(crate) fn add(&mut self, len_octets: u64) {
        self.room = self.room.saturating_sub(len_octets);
        self.sends = match self.room {
            0 => 0,
            _ => self.sends - 1,
        };
    }
}
