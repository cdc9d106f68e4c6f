//! A request that is not complete, and the messages that a Send is divided into.

use crate::types::Request;

/// A request that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) request: Request,
    /// The key of the node's region.
    pub(crate) rkey: u32,
    /// Of all elements.
    pub(crate) len_octets: u32,
    /// How many elements it has.
    pub(crate) pieces: usize,
}

/// What a message has of a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// All of it.
    Whole,
    /// The first or a further segment, which is followed by others.
    Part,
    /// The last of several.
    Last,
}

/// The offset at which the last segment of a Send begins, if none has more than `most` octets.
pub(crate) fn last_offset(len_octets: u32, most: u32) -> u32 {
    len_octets.saturating_sub(1) / most * most
}
