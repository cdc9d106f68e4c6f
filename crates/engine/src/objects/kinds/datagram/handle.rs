//! Address handles: a destination and the path to it.

use crate::paths::path::NextHop;
use crate::types::{Gid, Pd};

/// An address handle; made by [`crate::Engine::create_ah`].
#[derive(Debug)]
pub struct AddressHandle {
    pub(crate) pd: Pd,
    pub(crate) source: Gid,
    pub(crate) gid_index: u8,
    pub(crate) destination: Gid,
    pub(crate) traffic_class: u8,
    pub(crate) target: HandleTarget,
}

impl AddressHandle {
    /// Its protection domain.
    pub(crate) fn pd(&self) -> Pd {
        self.pd
    }

    /// Index of the own GID from which it sends.
    pub(crate) fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// The path to its host; none to a group.
    pub(crate) fn next_hop(&self) -> Option<NextHop> {
        match self.target {
            HandleTarget::Host(hop) => Some(hop),
            HandleTarget::Group => None,
        }
    }
}

/// The destination of an address handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandleTarget {
    /// One host.
    Host(NextHop),
    /// All members of a multicast group: urdmad copies.
    Group,
}
