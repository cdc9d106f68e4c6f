//! Address handles: a destination and the way there.

use super::super::path::NextHop;
use super::super::types::{EngineError, Gid, Pd};
use super::super::Engine;
use proto_trp::wire::datagram::is_group;

/// An address handle; made by [`Engine::create_ah`].
#[derive(Debug)]
pub struct AddressHandle {
    pub(super) pd: Pd,
    pub(super) source: Gid,
    pub(super) gid_index: u8,
    pub(super) destination: Gid,
    pub(super) traffic_class: u8,
    pub(super) target: HandleTarget,
}

/// How datagrams get to where a handle points.
#[derive(Clone, Copy, Debug)]
pub(super) enum HandleTarget {
    /// One host.
    Host(NextHop),
    /// All members of a multicast group: urdmad copies.
    Group,
}

impl Engine {
    /// How `destination` is reached; may ask urdmad, so not under the engine's lock.
    pub(super) fn resolve_target(&self, destination: Gid) -> Result<HandleTarget, EngineError> {
        if is_group(&destination.0) {
            Ok(HandleTarget::Group)
        } else {
            self.find_next_hop(destination).map(HandleTarget::Host)
        }
    }
}
