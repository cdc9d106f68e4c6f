//! The layers under TRP on a port: Ethernet, IPv4 or IPv6, UDP, and neighbour resolution.
//!
//! - [`Template`] writes the headers of a [`Route`] in front of a datagram in its frame.
//! - [`parse`] checks a received frame and finds the datagram in it; [`parse_verified`] does so if
//!   the kernel has verified its checksums. [`Checker`] does so for a stream of frames, as
//!   [`Verification`] says.
//! - [`Neighbours`] is ARP and IPv6 neighbour discovery, sans I/O, for ports that the kernel does
//!   not see.
//!
//! Times are monotonic nanoseconds that the caller passes in. Nothing here reads a clock, and the
//! functions for single packets ([`Template::write`], [`parse`]) never allocate.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod addr;
mod checksum;
mod frame;
mod neighbours;
mod receive;
mod solicit;

pub use addr::{IpVersion, LocalInterface, MacAddr, TooManyAddresses, MAX_ADDRESSES};
pub use checksum::internet_checksum;
pub use frame::{
    header_octets, max_datagram, Checksum, Ecn, Headers, Oversize, Route, RouteError, Template,
    UdpPorts, ETHERNET_OCTETS, IPV4_OCTETS, IPV6_OCTETS, MAX_HEADER_OCTETS, UDP_OCTETS,
};
pub use neighbours::{NeighbourResolution, Neighbours, Timing, MAX_NEIGHBOURS};
pub use receive::{parse, parse_verified, Checker, Dropped, Received, Verification, NO_INDEX};
pub use solicit::MAX_SOLICITATION_OCTETS;
