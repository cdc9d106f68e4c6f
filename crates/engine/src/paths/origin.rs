//! Where datagrams come from.

use proto_trp::wire::Meta;
use urdma_types::{slot_of_source_port, udp_port, SlotId};

/// Where a datagram came from.
pub(crate) enum Origin {
    /// A process of this host.
    Local(SlotId),
    /// Another host, through urdmad.
    Remote(Meta),
    /// Another host, through the leased queue.
    Leased(Meta),
}

impl Origin {
    /// The metadata of a datagram from another host.
    #[inline]
    pub(crate) fn meta(&self) -> Option<&Meta> {
        match self {
            Self::Local(_) => None,
            Self::Remote(meta) | Self::Leased(meta) => Some(meta),
        }
    }

    /// The slot that sent it; `None` if its source port is that of no slot.
    #[cold]
    pub(crate) fn sender(&self) -> Option<SlotId> {
        match self {
            Self::Local(slot) => Some(*slot),
            Self::Remote(meta) | Self::Leased(meta) => match meta.src_port {
                port if port == udp_port(SlotId::DAEMON) => Some(SlotId::DAEMON),
                port => slot_of_source_port(port),
            },
        }
    }
}
