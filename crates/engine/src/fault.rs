//! Deliberate faults, which tests put into the engine to show that the checker finds them.

/// One deviation from the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A queue that is armed does not look at what has come before.
    ArmUnseen,
    /// A request that finds its queue flushed since the look at its state stays there.
    BehindFlush,
    /// Completions are removed from their queue after its lock was released.
    PopUnlocked,
    /// A completion goes to the poll while older ones wait in the queue.
    Overtaking,
    /// A poll of the engine counts its completions without the lock of their queue.
    CountUnlocked,
}

/// Whether the engine has the fault: never, but in tests.
#[inline(always)]
pub(crate) fn has(fault: Fault) -> bool {
    #[cfg(test)]
    return crate::check::fault() == Some(fault);
    #[cfg(not(test))]
    {
        let _ = fault;
        false
    }
}
