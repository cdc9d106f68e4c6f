//! Connection management beside the engine: what the engine tells it. The provider implements this
//! by `urdma-ucma`.

use std::net::IpAddr;

use proto_trp::conn::Time;
use urdma_types::{Psn, Qpn, RawQpn, SlotId};

/// Connection management of a process, as the engine sees it.
///
/// The engine calls it without a lock of its own, except that datagrams and ends arrive in order,
/// one at a time.
pub trait ConnectionManagement: Send + Sync + 'static {
    /// A datagram of connection management has arrived from a host; from one of this host's
    /// addresses if this host has sent it.
    fn handle_datagram(&self, from: IpAddr, datagram: &[u8]);

    /// A queue pair of this process has reached RTR: a handshake may be waiting for that.
    fn qp_ready(&self, qpn: Qpn);

    /// The first message has arrived on a queue pair of this process.
    fn qp_data(&self, qpn: Qpn);

    /// The other end of a queue pair of this process is gone.
    fn qp_gone(&self, qpn: Qpn);

    /// The process of this host that had a slot is gone. If the slot `has_next`, a process that
    /// came after it, an attempt to connect to the earlier one ends by itself.
    fn slot_gone(&self, slot: SlotId, has_next: &dyn Fn() -> bool);

    /// urdmad has ended.
    fn device_removed(&self);

    /// Whether it has met a peer with this queue pair number and first PSN.
    fn has_peer(&self, qpn: RawQpn, psn: Psn) -> bool;

    /// When [`ConnectionManagement::handle_timeout`] must be called next, in the time of
    /// [`crate::Engine::now`].
    fn next_deadline(&self) -> Option<Time>;

    /// Runs all timers that have expired.
    fn handle_timeout(&self);

    /// Whether no application uses it, so that it has no timer either.
    fn is_unused(&self) -> bool;
}
