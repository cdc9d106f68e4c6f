//! Neighbour resolution: by urdmad on a port that the kernel does not see, by the kernel on one
//! that it uses too, and not at all where the kernel routes datagrams.

use std::io;
use std::net::IpAddr;

use urdma_underlay::{LocalInterface, NeighbourResolution, Timing};

use super::kernel_neighbours::KernelNeighbours;
use crate::port::{has_route, Resolver};

/// The neighbours of a port.
#[derive(Debug)]
pub(crate) enum Neighbours {
    /// Resolved by urdmad.
    Own(urdma_underlay::Neighbours),
    /// Resolved by the kernel.
    Kernel(KernelNeighbours),
    /// Not resolved: the kernel routes datagrams from here.
    Routed(LocalInterface),
}

impl Neighbours {
    /// The neighbours of a port at `local`, as its resolver says.
    pub(crate) fn new(local: LocalInterface, resolver: Resolver<'_>) -> io::Result<Self> {
        match resolver {
            Resolver::DataThread => {}
            Resolver::Kernel(netdev) => {
                return KernelNeighbours::new(netdev, local).map(Self::Kernel);
            }
            Resolver::Routes => return Ok(Self::Routed(local)),
        }
        let mut own = urdma_underlay::Neighbours::new(local, Timing::default());
        own.announce();
        Ok(Self::Own(own))
    }

    /// A counter of changes of neighbours' Ethernet addresses.
    #[inline]
    pub(crate) const fn changes(&self) -> u64 {
        match self {
            Self::Own(own) => own.changes(),
            Self::Kernel(kernel) => kernel.changes(),
            Self::Routed(_) => 0,
        }
    }

    /// Whether the table has an entry for `address`: resolved, pending or failed.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        match self {
            Self::Own(own) => own.has(address),
            Self::Kernel(kernel) => kernel.has(address),
            // Nothing is stored for an address.
            Self::Routed(_) => true,
        }
    }

    /// The Ethernet address for `address`; starts resolution if it is unknown.
    pub(crate) fn resolve(&mut self, now_ns: u64, address: IpAddr) -> NeighbourResolution {
        match self {
            Self::Own(own) => own.resolve(now_ns, address),
            Self::Kernel(kernel) => kernel.resolve(now_ns, address),
            Self::Routed(local) => route(local, address.to_canonical()),
        }
    }

    /// Processes an ARP or neighbour discovery frame from the port.
    pub(crate) fn handle_frame(&mut self, now_ns: u64, frame: &[u8]) {
        if let Self::Own(own) = self {
            own.handle_frame(now_ns, frame);
        }
    }

    /// Handles timers; writes the next frame to send and returns its length, if there is one.
    pub(crate) fn poll_transmit(&mut self, now_ns: u64, frame: &mut [u8]) -> Option<usize> {
        match self {
            Self::Own(own) => own.poll_transmit(now_ns, frame),
            Self::Kernel(kernel) => {
                kernel.poll(now_ns);
                None
            }
            Self::Routed(_) => None,
        }
    }

    /// When [`Self::poll_transmit`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        match self {
            Self::Own(own) => own.next_deadline(),
            Self::Kernel(kernel) => kernel.next_deadline(),
            Self::Routed(_) => None,
        }
    }
}

/// Whether the kernel has a route to an address. The Ethernet address has no meaning.
fn route(local: &LocalInterface, address: IpAddr) -> NeighbourResolution {
    let is_host = !(address.is_unspecified() || address.is_multicast());
    if is_host && has_route(address) {
        NeighbourResolution::Known(local.mac())
    } else {
        NeighbourResolution::Unreachable
    }
}
