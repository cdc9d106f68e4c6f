//! What the ucma needs of the process around it: packets, time, urdmad, and QP states.

use std::net::IpAddr;

use urdma_cm::Peer;
use urdma_types::{PortSpace, RawQpn, SlotId};

use crate::handle::CmId;

/// A port that an id asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRequest {
    /// Port space.
    pub space: PortSpace,
    /// Local address; unspecified for any.
    pub ip: IpAddr,
    /// The port; 0 for any free one.
    pub port: u16,
    /// Which others may have it too.
    pub sharing: Sharing,
}

/// The options of an id that say which others may have the same port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub reuse_addr: bool,
    /// `RDMA_OPTION_ID_AFONLY`.
    pub af_only: bool,
}

/// An errno, positive.
pub type Errno = i32;

/// The device as connection management shows it to applications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// This process's slot.
    pub slot: SlotId,
    /// Node GUID, its octets in network order.
    pub node_guid: [u8; 8],
    /// The instance's addresses.
    pub addresses: Vec<IpAddr>,
    /// The GID table in order of index.
    pub gids: Vec<[u8; 16]>,
    /// Path MTU as `ibv_mtu` has it, 1..=5.
    pub path_mtu: u8,
}

/// The surroundings of [`crate::Ucma`], implemented by the engine.
///
/// Locks: `bind_port`, `share_port`, `listen`, `release_port` and `device` may be called while the
/// ucma's lock is held, so they must not call into [`crate::Ucma`] and must not wait for somebody
/// who does. `transmit`, `kick`, `qp_is_ready` and `resolve` are called without it. In turn nobody
/// may call into [`crate::Ucma`] while he holds a lock that one of these takes.
pub trait Driver: Send + Sync + 'static {
    /// Monotonic time in nanoseconds.
    fn now(&self) -> u64;

    /// An unpredictable number.
    fn entropy(&self) -> u64;

    /// The device.
    fn device(&self) -> Device;

    /// Sends one datagram (at most [`urdma_cm::wire::MAX_MESSAGE`] octets) to a slot of a host, which may
    /// be this host and may be slot 0. May lose it.
    fn transmit(&self, to: Peer, datagram: &[u8]);

    /// [`crate::Ucma::next_deadline`] has moved to an earlier time: whoever sleeps until then must
    /// look again.
    fn kick(&self);

    /// Whether a QP of this process is in RTR or beyond. Also true for a QPN that is not known, so
    /// that nobody waits for it.
    fn qp_is_ready(&self, qpn: RawQpn) -> bool;

    /// Reserves a port of the instance for an id; returns it.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, or what the conversation with urdmad gave.
    fn bind_port(&self, id: CmId, wanted: &PortRequest) -> Result<u16, Errno>;

    /// Changes who may have an id's port too.
    ///
    /// # Errors
    /// What the conversation with urdmad gave.
    fn share_port(&self, id: CmId, sharing: Sharing) -> Result<(), Errno>;

    /// Makes urdmad send REQs for an id's port to this process.
    ///
    /// # Errors
    /// As [`Driver::bind_port`], while others have the port too.
    fn listen(&self, id: CmId, backlog: u32) -> Result<(), Errno>;

    /// Gives an id's port back, and stops listening there.
    fn release_port(&self, id: CmId);

    /// The instance's address to reach `ip` from. May take seconds.
    ///
    /// # Errors
    /// EHOSTUNREACH if nobody answers for the address.
    fn resolve(&self, ip: IpAddr) -> Result<IpAddr, Errno>;
}
