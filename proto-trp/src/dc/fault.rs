//! Deliberate faults, which tests put into both ends to show that the checker finds them.

/// One deviation from the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A context begins with an epoch that is not above the floor.
    NoFloor,
    /// The floor is not raised when a context begins.
    FloorNotRaised,
    /// A packet with an effect does not pin its context.
    NoPin,
    /// A pinned context is evicted.
    EvictPinned,
    /// Any packet of the initiator confirms all before it.
    AllConfirmed,
    /// A wrong token is accepted.
    NoToken,
    /// A context ends before its initiator gives up.
    ShortLease,
    /// The bound of all contexts is not kept.
    NoBound,
    /// The bound of an address is not kept.
    NoAddressBound,
    /// Requests are repeated at a target that has begun anew.
    RepeatAfterRestart,
}

urdma_types::faults!(pub(super) Faults of Fault);
