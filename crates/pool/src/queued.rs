//! A request that is not complete.

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
