//! Identifiers and units of a stream.

/// What tells the time. A stream asks only when something depends on it: a read of a clock takes
/// about as long as a third of what it does for a short message.
pub trait Clock {
    /// Nanoseconds since a moment of the driver's choice. They do not go back. A time that is late
    /// costs throughput only.
    fn now_ns(&mut self) -> u64;
}

/// A clock that stands still.
impl Clock for u64 {
    fn now_ns(&mut self) -> u64 {
        *self
    }
}

/// A position in a stream: how many octets precede it. It does not wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The position `octets` further on.
    pub(crate) fn after(self, octets: u64) -> Self {
        Self(self.0.saturating_add(octets))
    }
}

/// A phase of transfers: direct if even, indirect if odd. Both ends count phases from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase(pub u64);

impl Phase {
    /// Whether the transfers of the phase go into advertised buffers.
    pub fn is_direct(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// The phase that follows.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// The number of an advert. The adverts of one receiver are numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdvertNo(pub u64);

/// The number of a ring. The rings of one end are numbered from 0, which is that of the greeting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingNo(pub u64);

impl RingNo {
    /// The ring that replaces it.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// A send that the user has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// A receive that the user has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecvId(pub u64);

/// Registered memory into which the peer may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Address of the first octet, as the peer's RDMA Writes name it.
    pub addr: u64,
    /// Length.
    pub len_octets: u64,
    /// The key of the memory region.
    pub rkey: u32,
}

impl Buffer {
    /// Whether the last octet has an address.
    pub(crate) fn is_addressable(self) -> bool {
        self.addr.checked_add(self.len_octets).is_some()
    }
}

/// The most sends that one RDMA Write carries.
pub const GATHER_MAX: usize = 16;

/// Octets of one send in an RDMA Write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The send.
    pub send: SendId,
    /// Where they begin in its buffer.
    pub offset: u64,
    /// How many.
    pub len_octets: u32,
}

/// What an RDMA Write carries: octets of one send, or of several, whole but for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    first: SendId,
    offset: u64,
    first_octets: u32,
    /// Of the others: how many sends were posted since that of the first part, and octets. They are
    /// few and short, and this is copied with each RDMA Write.
    sends: [u8; GATHER_MAX - 1],
    octets: [u16; GATHER_MAX - 1],
    others: u8,
}

impl Parts {
    /// Octets of one send; a transfer has fewer than 2^30.
    pub(crate) fn one(send: SendId, offset: u64, len_octets: u64) -> Self {
        Self {
            first: send,
            offset,
            first_octets: u32::try_from(len_octets).expect("a transfer has 30 bits"),
            sends: [0; GATHER_MAX - 1],
            octets: [0; GATHER_MAX - 1],
            others: 0,
        }
    }

    /// Adds the whole of a later send; whether there was room.
    pub(crate) fn push(&mut self, send: SendId, len_octets: u64) -> bool {
        let numbers = (
            u8::try_from(send.0 - self.first.0),
            u16::try_from(len_octets),
        );
        let at = usize::from(self.others);
        let ((Ok(sends), Ok(octets)), true) = (numbers, at < self.sends.len()) else {
            return false;
        };
        (self.sends[at], self.octets[at]) = (sends, octets);
        self.others += 1;
        true
    }

    /// The piece of `len_octets` octets after `written`: of a part of one send, or all.
    pub(crate) fn piece(&self, written: u64, len_octets: u64) -> Self {
        match self.others {
            0 => Self::one(self.first, self.offset + written, len_octets),
            _ => *self,
        }
    }

    /// How many; at least one.
    pub(crate) fn count(&self) -> usize {
        usize::from(self.others) + 1
    }

    /// The parts, in their order. Sends that were canceled may be missing between two of them.
    pub fn iter(&self) -> impl Iterator<Item = Part> + '_ {
        std::iter::once(self.first()).chain(self.others())
    }

    /// The first part.
    pub fn first(&self) -> Part {
        Part {
            send: self.first,
            offset: self.offset,
            len_octets: self.first_octets,
        }
    }

    /// The parts behind the first.
    pub fn others(&self) -> impl Iterator<Item = Part> + '_ {
        let others = usize::from(self.others);
        let others = self.sends[..others].iter().zip(&self.octets[..others]);
        others.map(|(&sends, &octets)| Part {
            send: SendId(self.first.0 + u64::from(sends)),
            offset: 0,
            len_octets: u32::from(octets),
        })
    }
}

/// What a stream carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// SOCK_STREAM: octets without boundaries.
    #[default]
    Octets,
    /// SOCK_SEQPACKET: messages, each of which satisfies one receive. Every transfer is direct.
    Messages,
}

/// How an end chooses between direct and indirect transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Per transfer: direct when an advert for the next octet is at hand, else indirect.
    #[default]
    Dynamic,
    /// Direct only: this end's sends wait for adverts, and it offers its peer no ring.
    Direct,
    /// Indirect only: this end sends no adverts and uses none.
    Indirect,
}

/// How a send or a receive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Done,
    /// The user canceled it, after the octets that the event counts.
    Canceled,
    /// The peer has finished its half of the stream (receives only).
    EndOfStream,
    /// The peer receives no more (sends only): EPIPE.
    PeerStopped,
    /// The message is longer than the receive that was next (sends of messages only): EMSGSIZE.
    TooLong,
    /// The stream has failed.
    Failed(crate::error::Failure),
}

/// What the user learns from a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<M> {
    /// A send is complete: its memory is the user's again.
    Sent {
        /// Which.
        id: SendId,
        /// What it was posted with.
        memory: M,
        /// How many of its octets were transferred.
        octets: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// A receive is complete: its memory is the user's again, and the peer does not write into it.
    Received {
        /// Which.
        id: RecvId,
        /// What it was posted with.
        memory: M,
        /// How many octets its buffer holds.
        octets: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// Both halves are finished, and no octets are left in the ring.
    Closed,
}
