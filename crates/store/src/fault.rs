//! Deliberate faults, which tests put into a client to show that the checker finds them.

/// One deviation from the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A new key is committed at once, without a tentative slot.
    CommittedAtOnce,
    /// A tentative slot is committed without reading the buckets again.
    NotReadAgain,
    /// Other tentative slots of the key do not prevent a commit.
    TentativeIgnored,
    /// A get takes a tentative slot for a committed one.
    TentativeRead,
    /// A new key is committed though a committed slot has it.
    NotWithdrawn,
    /// The block of another incarnation is taken.
    IncarnationIgnored,
    /// A block is used again under the same incarnation.
    IncarnationKept,
    /// A block whose digest is wrong is taken.
    DigestIgnored,
    /// A slot with the same fingerprint is taken for the key's.
    KeyIgnored,
    /// The result of a commit is ignored.
    CommitUnchecked,
    /// The result of a replacement is ignored.
    ReplacementUnchecked,
    /// The block that was replaced is not used again.
    ReplacedKept,
    /// The block of another client's tentative slot is taken with the slot.
    KilledTaken,
    /// A block is free as soon as its slot is about to be replaced.
    FreedEarly,
    /// Only the first bucket is read.
    OneBucket,
    /// Tentative slots of clients that have ended stay.
    TentativeKept,
    /// A client that gives up leaves its tentative slot.
    AbandonedKept,
}

urdma_types::faults!(pub(crate) Faults of Fault);
