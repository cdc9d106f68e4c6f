//! Why a port cannot be used.

use std::net::IpAddr;

use nix::errno::Errno;
use thiserror::Error;
use urdma_abi::library::LoadError;

/// Why a port cannot be opened.
#[derive(Debug, Error)]
pub enum PortError {
    /// The library that drives DPDK cannot be loaded.
    #[error(
        "a port of kind \"{kind}\" needs DPDK: {error}{}",
        match error {
            LoadError::OtherVersion(_) => " than urdmad: install both from one build",
            _ => "; install the package urdma-dpdk, or use kind = \"udp\"",
        }
    )]
    Library {
        /// The kind of port.
        kind: &'static str,
        /// What the dynamic linker says.
        error: LoadError,
    },
    /// DPDK does not open it; its driver says why.
    #[error("{0}")]
    Driver(String),
    /// DPDK does not open it, and what the driver says has a cause.
    #[error("{cause} ({reason})")]
    Caused {
        /// What is in the way.
        cause: String,
        /// What the driver says.
        reason: String,
    },
    /// The driver has opened nothing.
    #[error("there is no port")]
    None,
    /// No path and no name of a device has one.
    #[error("a name in the configuration contains a zero octet")]
    ZeroOctet,
    /// An address of the instance is not one of the host.
    #[error(
        "{0} is not an address of this host: assign it to a network interface (ip addr add {0}/24 \
         dev NETDEV), or name one that \"ip addr\" lists in the key \"address\""
    )]
    NoAddress(IpAddr),
    /// The interface sends no packets of this length.
    #[error(
        "{netdev}, which has {ip}, has an MTU of {limit}: set port.mtu = {limit} on all hosts of \
         the link, or ip link set dev {netdev} mtu {mtu}"
    )]
    Mtu {
        /// The interface.
        netdev: String,
        /// Its address.
        ip: IpAddr,
        /// Its MTU.
        limit: u32,
        /// That of the configuration.
        mtu: u16,
    },
    /// The process may have no more sockets.
    #[error(
        "{0} sockets are needed, one for each slot and address, and this process may have fewer: \
         raise the limit of open files (ulimit -n), or set fewer \"slots\" or addresses in the \
         configuration"
    )]
    Descriptors(usize),
    /// The process may have no sockets of this kind.
    #[error(
        "this process may not have UDP sockets ({}): allow AF_INET and AF_INET6 where urdmad is \
         confined (a seccomp profile, RestrictAddressFamilies= of systemd)", .0.desc()
    )]
    NotPermitted(Errno),
    /// There is no socket for another reason.
    #[error("no UDP socket: {}", .0.desc())]
    Socket(Errno),
    /// Another program has the UDP port.
    #[error(
        "UDP port {port} of {ip} is in use: end the program that has it, perhaps another instance \
         (ss -ulpn \"sport = :{port}\" shows it), or give this instance an address of its own"
    )]
    InUse {
        /// The address.
        ip: IpAddr,
        /// The UDP port.
        port: u16,
    },
    /// The address is the host's, and cannot be used yet, or no more.
    #[error(
        "{0} cannot be used: it is not assigned to an interface, or still checked for duplicates \
         (ip addr show tentative)"
    )]
    Unusable(IpAddr),
}

impl PortError {
    /// A port that is not opened for this reason, which may have a cause.
    pub(super) fn refused(cause: Option<String>, reason: String) -> Self {
        match cause {
            Some(cause) => Self::Caused { cause, reason },
            None => Self::Driver(reason),
        }
    }

    /// No socket, of the `total` that are needed.
    pub(super) fn no_socket(errno: Errno, total: usize) -> Self {
        match errno {
            Errno::EMFILE | Errno::ENFILE => Self::Descriptors(total),
            Errno::EPERM | Errno::EACCES | Errno::EAFNOSUPPORT => Self::NotPermitted(errno),
            errno => Self::Socket(errno),
        }
    }

    /// No socket at this address, of the `total` that are needed.
    pub(super) fn not_bound(errno: Errno, ip: IpAddr, port: u16, total: usize) -> Self {
        match errno {
            Errno::EADDRINUSE => Self::InUse { ip, port },
            Errno::EADDRNOTAVAIL => Self::Unusable(ip),
            errno => Self::no_socket(errno, total),
        }
    }
}

/// Why a queue is not lent, or not taken back.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QueueError {
    /// There is none that could be lent.
    #[error("the instance has no port with queue pairs to lease")]
    None,
    /// The driver refuses, and says why.
    #[error("{0}")]
    Driver(String),
}
