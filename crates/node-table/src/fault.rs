//! Deliberate faults, which tests put into a table or a client to show that the checker finds them.

/// One deviation from the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A client compares the versions of the first and the last word only.
    EndsCompared,
    /// An update of a bucket keeps its version.
    VersionKept,
    /// The versions of a table begin at 1, whatever the memory had before.
    VersionsRestart,
    /// A table leaves what the memory has behind its last bucket.
    RestKept,
    /// A client takes a header for valid whose digest is another one.
    HeaderUndigested,
    /// A client ignores the epoch of a bucket.
    EpochIgnored,
    /// A displaced entry is removed before it is written to its new place.
    SourceFirst,
    /// A displaced entry remains where it was.
    SourceKept,
    /// An entry is written to its other bucket before its hint is set.
    HintLate,
    /// A displaced entry leaves no hint in its home.
    HintMissing,
    /// The hint of two entries is cleared with the first of them.
    HintUncounted,
    /// Hints are never cleared.
    HintKept,
    /// A client that found nothing in both buckets does not read the first again.
    HomeNotReread,
    /// A client that began with the other bucket and found nothing does not read the home.
    GuessTrusted,
    /// A client reads without end while a bucket is torn.
    ReadsUncounted,
    /// An update keeps the generation of the entry.
    GenerationKept,
}

urdma_types::faults!(pub(crate) Faults of Fault);
