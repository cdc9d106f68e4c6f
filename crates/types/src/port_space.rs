//! Port spaces of rdma_cm.

/// A port space, `enum rdma_ucm_port_space` of `rdma/rdma_user_cm.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// Reliable connected services (`RDMA_PS_TCP`).
    pub const TCP: Self = Self(0x0106);
    /// Datagram services (`RDMA_PS_UDP`).
    pub const UDP: Self = Self(0x0111);
    /// Datagram services of IPoIB (`RDMA_PS_IPOIB`).
    pub const IPOIB: Self = Self(0x0002);
    /// Extended reliable connections (`RDMA_PS_IB`): the active side is the initiator, the passive
    /// side the target.
    pub const IB: Self = Self(0x013f);

    /// Whether services in this port space are datagram services: REQ and REP resolve the peer's
    /// queue pair, and no connection follows.
    pub fn is_datagram(self) -> bool {
        matches!(self, Self::UDP | Self::IPOIB)
    }
}
