//! Address handles: a destination and the path to it.

use super::super::path::NextHop;
use super::super::types::{Gid, Pd};

/// An address handle; made by [`crate::Engine::create_ah`].
#[derive(Debug)]
pub struct AddressHandle {
    pub(super) pd: Pd,
    pub(super) source: Gid,
    pub(super) gid_index: u8,
    pub(super) destination: Gid,
    pub(super) traffic_class: u8,
    pub(super) target: HandleTarget,
}

/// The destination of an address handle.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandleTarget {
    /// One host.
    Host(NextHop),
    /// All members of a multicast group: urdmad copies.
    Group,
}
