//! What the kinds of ports need after the start.

use caps::{Capability, CapsHashSet};

use crate::config::{Config, PortKind};

/// The kinds of ports by what urdmad needs for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// No port, or one in memory.
    Nothing,
    /// The far end of a network interface of the kernel.
    Tap,
    /// UDP sockets, some of which are made when they are needed.
    Udp,
    /// A network interface with a BPF program.
    AfXdp,
    /// A driver of DPDK that urdmad does not know.
    Driver,
}

impl Needs {
    /// Those of the configured port.
    pub(super) fn of(config: &Config) -> Self {
        match config.port.as_ref().map(|port| &port.kind) {
            None | Some(PortKind::Memif { .. }) => Self::Nothing,
            Some(PortKind::Tap { .. }) => Self::Tap,
            Some(PortKind::Udp) => Self::Udp,
            Some(PortKind::AfXdp { .. }) => Self::AfXdp,
            Some(PortKind::Device { .. }) => Self::Driver,
        }
    }

    /// The capabilities that the port needs after its start.
    pub(super) fn capabilities(self) -> CapsHashSet {
        let needed: &[Capability] = match self {
            // The interface of a TAP ends with its descriptor.
            Self::Nothing | Self::Tap | Self::Udp => &[],
            // Marks neighbours as used; removes the BPF program at the end.
            Self::AfXdp => &[Capability::CAP_NET_ADMIN, Capability::CAP_BPF],
            // Flow rules, raw queues, memory for DMA, I/O ports.
            Self::Driver => &[
                Capability::CAP_NET_ADMIN,
                Capability::CAP_NET_RAW,
                Capability::CAP_IPC_LOCK,
                Capability::CAP_SYS_RAWIO,
            ],
        };
        needed.iter().copied().collect()
    }
}
