//! Errors: those of the user's calls, those of the peer, and how a stream fails.

use thiserror::Error;

/// A call of the user that is refused; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// As many sends or receives are queued as the configuration permits: ENOBUFS.
    #[error("the queue is full")]
    QueueFull,
    /// The buffer has no octets, or its end has no address: EINVAL.
    #[error("the buffer is empty or exceeds the address space")]
    BadBuffer,
    /// This half of the stream was finished before, by this end or the peer: EPIPE.
    #[error("this half of the stream is finished")]
    Finished,
    /// The stream has failed: ECONNRESET.
    #[error("the stream has failed")]
    Failed,
    /// No send or receive has this number, or it is complete: ENOENT.
    #[error("no such operation is in progress")]
    NoSuchOperation,
}

/// Two ends that cannot make a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SetupError {
    /// The peer's greeting is none.
    #[error("the greeting is malformed")]
    Malformed,
    /// The peer has another version of the protocol.
    #[error("the peer has version {0} of the protocol")]
    Version(u8),
    /// One end has octets, the other messages.
    #[error("one end is SOCK_STREAM, the other SOCK_SEQPACKET")]
    Kind,
    /// One end sends only directly and the other sends no adverts, or the converse.
    #[error("one end is direct only, the other indirect only")]
    Choice,
    /// A limit of the configuration or of the greeting is too small to work with.
    #[error("a limit is too small")]
    Limit,
}

/// What a peer did that no correct peer does. The stream fails; nothing outside of the peer's own
/// buffers was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// A control message has an unknown type, another length than its type has, or a reserved bit.
    #[error("a malformed control message")]
    Malformed,
    /// An immediate of an unknown kind.
    #[error("an unknown kind of immediate")]
    UnknownImmediate,
    /// More messages than this end has receive slots for.
    #[error("more messages than receive slots")]
    SlotOverrun,
    /// The peer returns more receive slots than were used.
    #[error("more credits returned than were used")]
    CreditBeyondSlots,
    /// The peer frees octets of the ring that were not written, or takes some back.
    #[error("credits beyond the ring")]
    CreditBeyondRing,
    /// More adverts than this end has room for.
    #[error("more adverts than permitted")]
    TooManyAdverts,
    /// An advert out of turn.
    #[error("an advert out of sequence")]
    AdvertSequence,
    /// An advert of an indirect phase, or of a phase that the receiver cannot have reached.
    #[error("an advert of a wrong phase")]
    AdvertPhase,
    /// An advert for a position before an earlier one or beyond what can follow.
    #[error("an advert of an impossible position")]
    AdvertEstimate,
    /// An advert of an empty buffer, or of one whose end has no address.
    #[error("an advert beyond its buffer")]
    AdvertBuffer,
    /// A direct transfer for which no advert is outstanding in the present phase.
    #[error("a direct transfer without an advert of this phase")]
    UnexpectedDirect,
    /// A direct transfer longer than what its advert offers.
    #[error("a direct transfer beyond its buffer")]
    DirectOverflow,
    /// An indirect transfer to an end without a ring.
    #[error("an indirect transfer without a ring")]
    UnexpectedIndirect,
    /// An indirect transfer beyond the free octets of the ring.
    #[error("an indirect transfer beyond the ring")]
    RingOverflow,
    /// A length that the write of the immediate contradicts, or 0 for a stream of octets.
    #[error("an immediate with a false length")]
    FalseLength,
    /// The answer to a withdrawal that was not asked for.
    #[error("a withdrawal answered that was not asked for")]
    UnexpectedWithdrawn,
    /// A withdrawal before the last was answered, or of adverts that were never sent.
    #[error("a withdrawal out of turn")]
    UnexpectedWithdraw,
    /// A pause before the last was answered, or of another position than the data has reached.
    #[error("a pause out of turn")]
    UnexpectedPause,
    /// The answer to a pause that was not made.
    #[error("a pause answered that was not made")]
    UnexpectedResume,
    /// A wish for a ring before the last was answered, of no octets, or of an end without a ring.
    #[error("a ring asked for out of turn")]
    UnexpectedWant,
    /// A ring that was not asked for, or of another number than the next.
    #[error("a ring that was not asked for")]
    UnexpectedRing,
    /// A ring whose end has no address.
    #[error("a ring beyond its buffer")]
    RingBuffer,
    /// A ring taken that was not offered.
    #[error("a ring taken that was not offered")]
    UnexpectedTaken,
    /// Data, or the end once more, after the end of the stream.
    #[error("data after the end of the stream")]
    AfterFinish,
    /// The end of the stream is not where the data ends.
    #[error("the end of the stream is not where its data ends")]
    FalseFinish,
}

/// Why a stream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The peer violates the protocol.
    #[error("the peer violates the protocol: {0}")]
    Peer(PeerError),
    /// The peer has aborted the stream, with this code.
    #[error("the peer aborted the stream with code {0}")]
    Reset(u32),
    /// This end has aborted the stream, with this code.
    #[error("the stream was aborted with code {0}")]
    Aborted(u32),
    /// The connection ended while the stream was open.
    #[error("the connection ended")]
    Disconnected,
}

/// The code of an abort after a violation of the protocol.
pub const ABORT_PROTOCOL: u32 = 1;
