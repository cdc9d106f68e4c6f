//! Deliberate faults, which tests put into one end to show that the checker finds them.

/// One deviation from the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A discarded advert of a later phase does not advance the sender's phase.
    NoPhaseAdvance,
    /// An advert for a position that was sent already is used.
    NoPositionCheck,
    /// An advert of an earlier phase is used.
    NoPhaseCheck,
    /// The position of an advert is checked in direct phases, too.
    PositionInDirect,
    /// Adverts are sent while the ring holds octets.
    AdvertOverRing,
    /// Adverts are sent while older ones are stale.
    AdvertOverStale,
    /// Adverts are sent for a receive while an older one has none.
    AdvertOutOfOrder,
    /// The estimate is kept as printed: a copy to a receive without advert leaves it behind.
    PrintedEstimate,
    /// Octets of the ring are credited when they arrive, not when they are copied.
    EarlyRingCredit,
    /// A transfer that is cut carries its immediate with the first piece.
    ImmediateFirst,
    /// A piece does not end at the end of the ring.
    NoWrap,
    /// Adverts that arrive during a pause, sent before it was known, are kept.
    PauseKeepsAdverts,
    /// A second transfer to a MSG_WAITALL advert begins at the start of its buffer again.
    WaitallRestart,
    /// A canceled receive is returned while its advert is outstanding.
    CancelAtOnce,
    /// A withdrawal is answered before the transfer in progress has ended.
    WithdrawnEarly,
    /// The end of the stream is announced when the last send begins.
    FinishEarly,
    /// Messages are sent without credit.
    NoCredit,
    /// A new ring is taken while a transfer is in progress.
    TakenInTransfer,
    /// A new ring is written into before TAKEN is sent.
    RingUsedUntold,
    /// Places in a new ring are counted from the beginning of the stream.
    RingPlaceKept,
    /// The old ring is returned when TAKEN arrives, not when it is empty.
    OldRingReturned,
    /// A copy does not end where the old ring ends.
    CopyAcrossRings,
    /// Another ring is offered while an old one holds octets.
    RingOverOld,
    /// A short send is written although others wait.
    LoneOverOthers,
    /// A short transfer beyond the end of the ring is copied at once.
    LonePastEnd,
    /// A short transfer is copied at once although the peer is to be told that the ring is empty.
    LoneUntold,
    /// After a control message nothing is looked at that was not due before.
    ControlsUnseen,
    /// The same after copies out of the ring.
    CopiesUnseen,
}

urdma_types::faults!(pub(crate) Faults of Fault);
