//! The interface of the ucma to its process: packets, time, urdmad, and QP states.

use std::net::IpAddr;

use urdma_cm::Peer;
use urdma_trace::Recorder;
use urdma_types::{PortSpace, RawQpn, SlotId, Time};

use crate::handle::CmId;

/// A port that an id requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRequest {
    /// Port space.
    pub space: PortSpace,
    /// Local address; unspecified for any.
    pub ip: IpAddr,
    /// The port; 0 for any free one.
    pub port: u16,
    /// Which other ids may share the port.
    pub sharing: Sharing,
}

/// The options of an id that determine which other ids may share its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub reuse_addr: bool,
    /// `RDMA_OPTION_ID_AFONLY`.
    pub af_only: bool,
}

/// An errno, positive.
pub type Errno = i32;

/// The device as applications see it through connection management.
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
    /// Path MTU, encoded as `ibv_mtu`, 1..=5.
    pub path_mtu: u8,
}

/// The functions that [`crate::Ucma`] calls; the process implements them by its engine.
///
/// Locks: `bind_port`, `share_port`, `listen`, `release_port` and `device` may be called while the
/// ucma's lock is held, so they must not call into [`crate::Ucma`] and must not wait for a thread
/// that does. `transmit`, `event_taken`, `no_event`, `kick`, `qp_is_ready` and `resolve` are called
/// without the lock. No thread may call into [`crate::Ucma`] while it holds a lock that one of
/// these functions takes.
pub trait Driver: Send + Sync + 'static {
    /// The time of a monotonic clock.
    fn now(&self) -> Time;

    /// An unpredictable number.
    fn entropy(&self) -> u64;

    /// The device.
    fn device(&self) -> Device;

    /// Records what happens to connections; by default nothing does.
    fn recorder(&self) -> Recorder {
        Recorder::default()
    }

    /// Sends one datagram (at most [`urdma_cm::wire::MAX_MESSAGE`] octets) to a slot of a host. The
    /// host may be this one, and the slot may be 0. Returns false if there is no room for it at the
    /// moment. Delivery is not guaranteed.
    fn transmit(&self, to: Peer, datagram: &[u8]) -> bool;

    /// The application has taken an event. While it finds one each time, it does not wait.
    fn event_taken(&self) {}

    /// The application has looked for an event and there is none: takes what has arrived meanwhile.
    /// An application that looks again and again without a wait may have the only processor.
    fn no_event(&self) {}

    /// [`crate::Ucma::next_deadline`] has moved to an earlier time: a thread that sleeps until the
    /// deadline must read it again.
    fn kick(&self);

    /// Whether a QP of this process is in RTR or a later state. Also true for an unknown QPN and
    /// for a datagram QP, so that no connection waits for them: an application that connects its
    /// queue pairs itself may name one that it uses for nothing else (UCX does).
    fn qp_is_ready(&self, qpn: RawQpn) -> bool;

    /// Reserves a port of the instance for an id; returns it.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL, or the error of the request to urdmad.
    fn bind_port(&self, id: CmId, wanted: &PortRequest) -> Result<u16, Errno>;

    /// Changes which other ids may share an id's port.
    ///
    /// # Errors
    /// The error of the request to urdmad.
    fn share_port(&self, id: CmId, sharing: Sharing) -> Result<(), Errno>;

    /// Makes urdmad forward REQs for an id's port to this process.
    ///
    /// # Errors
    /// As [`Driver::bind_port`], while the port is shared.
    fn listen(&self, id: CmId, backlog: u32) -> Result<(), Errno>;

    /// Releases an id's port, and stops listening on it.
    fn release_port(&self, id: CmId);

    /// The instance's source address for `ip`. May block for seconds.
    ///
    /// # Errors
    /// EHOSTUNREACH if the address cannot be resolved.
    fn resolve(&self, ip: IpAddr) -> Result<IpAddr, Errno>;
}
