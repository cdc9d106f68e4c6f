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

impl AddressHandle {
    /// Its protection domain.
    pub(in super::super) fn pd(&self) -> Pd {
        self.pd
    }

    /// Index of the own GID from which it sends.
    pub(in super::super) fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// The path to its host; none to a group.
    pub(in super::super) fn next_hop(&self) -> Option<NextHop> {
        match self.target {
            HandleTarget::Host(hop) => Some(hop),
            HandleTarget::Group => None,
        }
    }
}

/// The destination of an address handle.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandleTarget {
    /// One host.
    Host(NextHop),
    /// All members of a multicast group: urdmad copies.
    Group,
}
