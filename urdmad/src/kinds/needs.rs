//! What the sandbox leaves for a kind of port.

use caps::Capability;
use libc::c_long;

/// The sockets of the Internet that a port makes after the start, all of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Internet {
    /// None.
    No,
    /// Those of IPv4, also for ioctl(2) on network interfaces.
    V4,
    /// Those of IPv4 and IPv6.
    Both,
}

/// What urdmad needs for a port after the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Capabilities.
    pub(crate) capabilities: &'static [Capability],
    /// System calls beside those that urdmad always makes.
    pub(crate) calls: &'static [c_long],
    /// Sockets.
    pub(crate) internet: Internet,
}

impl Needs {
    /// No port, or one in memory.
    pub(crate) const NOTHING: Self = Self {
        capabilities: &[],
        calls: &[],
        internet: Internet::No,
    };
}
