//! Where datagrams come from.

use proto_trp::wire::Meta;
use urdma_types::SlotId;

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
}
