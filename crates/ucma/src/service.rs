//! The kind of service of an id.

use urdma_types::PortSpace;

use crate::abi::{QPT_XRC_RECV, QPT_XRC_SEND};
use crate::driver::Errno;

/// The kind of service of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Queue pairs of a reliable connection.
    Connection,
    /// No connection: the id resolves the destination of datagrams.
    Datagram,
    /// The sending queue pair of an extended reliable connection; the id can only connect.
    XrcInitiator,
    /// The receiving queue pair of an extended reliable connection; the id can only listen
    /// and accept.
    XrcTarget,
}

impl Service {
    /// The service of an id created in `space`. In `RDMA_PS_IB` the queue pair type determines it,
    /// and only the types of extended reliable connections are supported, since messages carry the
    /// port space and no type.
    ///
    /// # Errors
    /// EINVAL for any other combination.
    pub(crate) fn of(space: PortSpace, qp_type: u8) -> Result<Self, Errno> {
        match (space, qp_type) {
            (PortSpace::TCP, _) => Ok(Self::Connection),
            (PortSpace::UDP | PortSpace::IPOIB, _) => Ok(Self::Datagram),
            (PortSpace::IB, QPT_XRC_SEND) => Ok(Self::XrcInitiator),
            (PortSpace::IB, QPT_XRC_RECV) => Ok(Self::XrcTarget),
            _ => Err(libc::EINVAL),
        }
    }
}
