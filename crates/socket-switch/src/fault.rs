//! Deliberate faults, which tests put into both ends to show that the checker finds them.

/// One deviation from the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Octets of the ring are taken while octets before them are in TCP.
    RingBeforeTcp,
    /// That TCP is drained is remembered when the direction returns to TCP.
    DrainedForGood,
    /// Octets are handed back without the lock of the readers.
    HandBackUnlocked,
    /// A transfer to TCP that a killed thread has left is not settled.
    NoRecovery,
    /// The record of a transfer to TCP is written after the transfer.
    LateRecord,
    /// Recovery assumes that the transfer did not happen.
    RecoveryRestarts,
    /// A direction returns to TCP while its ring holds octets.
    TcpBeforeEmpty,
    /// A demotion looks at the modes before it refuses rings.
    RefuseLate,
    /// A demotion changes the mode of the incoming direction without the lock of its writers.
    DemoteUnlocked,
    /// The mode of a direction is changed before its count is stored.
    ModeBeforeCount,
    /// A direction whose end was sent is upgraded.
    UpgradeAfterEnd,
    /// An agent leaves the locks of killed threads as they are.
    LocksKept,
    /// The next owner of the lock of a killed thread wakes none.
    SilentRecovery,
    /// The lock of a thread that lives is taken.
    StolenLock,
    /// The lock of a thread that was killed is waited for.
    LockOfTheDead,
    /// A reader sleeps without a last look at the ring.
    SleepUnseen,
    /// A sender waits for room without a last look at the tail.
    WaitAsSeen,
    /// A sender does not wake readers.
    NoWakeReader,
    /// A reader does not wake senders.
    NoWakeWriter,
    /// The end of TCP is reported without another look at the ring.
    EndBeforeRing,
    /// The end is sent while octets are in the ring.
    EndOverRing,
    /// Demotion leaves the incoming direction as it is.
    OneDirection,
    /// An end that is asked for the octets of its ring does nothing.
    DeafAgent,
    /// The end of a peer that left octets unread is reported as an end of stream.
    UnreadIsEnd,
    /// A close that leaves octets of the ring unread ends the stream.
    CloseIsEnd,
    /// A look at the stream joins octets of TCP and of the ring that do not follow one another.
    PeekOverGap,
    /// A thread that takes octets of TCP before those of the ring does not wake others.
    SilentTake,
    /// Octets that are in the short ring are looked for in the long one.
    LongBeforeHead,
    /// A sender whose ring becomes longer does not wake others that wait for room.
    SilentGrowth,
    /// A sender that waits for room does not learn that the peer is gone.
    WaitForTheGone,
    /// A send at once does not look whether the direction is its ring's.
    ModeUnseenAtOnce,
    /// A receive at once does not look whether TCP is drained.
    TcpUnseenAtOnce,
}

/// Whether the calls have the fault: never, but in tests.
pub(crate) fn has(fault: Fault) -> bool {
    #[cfg(test)]
    return ONLY.get() == Some(fault);
    #[cfg(not(test))]
    {
        let _ = fault;
        false
    }
}

#[cfg(test)]
thread_local! {
    /// The fault of the calls that this thread runs.
    pub(crate) static ONLY: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}
