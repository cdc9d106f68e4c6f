//! What kind of service an id is for.

use urdma_types::PortSpace;

use crate::abi::{QPT_XRC_RECV, QPT_XRC_SEND};
use crate::driver::Errno;

/// What an id connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// Queue pairs of a reliable connection.
    Connection,
    /// Nothing: it tells where datagrams go.
    Datagram,
    /// The queue pair of an extended reliable connection that sends; it can only ask for a connection.
    XrcInitiator,
    /// The one that receives; it can only be asked for a connection.
    XrcTarget,
}

impl Service {
    /// The service of an id that is made in `space`. In `RDMA_PS_IB` the queue pair's type decides, and only those of extended
    /// connections are known there: the wire says the port space and no type.
    ///
    /// # Errors
    /// EINVAL: there is none.
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
