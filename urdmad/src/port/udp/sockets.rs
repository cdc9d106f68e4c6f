//! Making the sockets of a port.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use libc::c_int;
use nix::errno::Errno;
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};

use super::sys;

/// Octets of a socket's buffers, of which the kernel grants as much as `net.core.rmem_max` and
/// `net.core.wmem_max` allow.
const BUFFER_OCTETS: c_int = 4 << 20;

/// An address of the instance, and the network interface that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalAddress {
    pub(super) ip: IpAddr,
    /// The interface's index; 0 if it is not known.
    pub(super) interface: u32,
}

impl LocalAddress {
    /// A port of this address.
    pub(super) fn with_port(self, port: u16) -> SocketAddr {
        self.to_remote(self.ip, port)
    }

    /// A port of a host or group that is reached from this address.
    pub(super) fn to_remote(self, remote: IpAddr, port: u16) -> SocketAddr {
        match remote {
            IpAddr::V4(_) => SocketAddr::new(remote, port),
            IpAddr::V6(v6) => {
                let is_on_link = v6.is_unicast_link_local() || v6.is_multicast();
                let scope = if is_on_link { self.interface } else { 0 };
                SocketAddrV6::new(v6, port, 0, scope).into()
            }
        }
    }
}

/// A UDP socket for the IP version of `ip`.
///
/// # Errors
/// As socket(2).
pub(super) fn new_socket(ip: IpAddr) -> Result<OwnedFd, Errno> {
    let family = match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Datagram, flags, None)
}

/// Whether the kernel has a route to a host.
pub(crate) fn has_route(host: IpAddr) -> bool {
    /// The discard service: connect(2) of a datagram socket sends nothing.
    const ANY_PORT: u16 = 9;
    let connected =
        new_socket(host).and_then(|socket| sys::connect(&socket, SocketAddr::new(host, ANY_PORT)));
    connected.is_ok()
}

/// A socket that receives at a port of `at`, and may send from it.
///
/// # Errors
/// The port is in use, the address is none of this host's, or as socket(2).
pub(super) fn receiver(at: LocalAddress, port: u16) -> Result<OwnedFd, Errno> {
    let socket = new_socket(at.ip)?;
    prepare_to_receive(&socket, at.ip)?;
    prepare_to_send(&socket, at)?;
    sys::bind(&socket, at.with_port(port))?;
    Ok(socket)
}

/// A socket that receives datagrams to a group on the interface of `at`.
///
/// # Errors
/// As of [`receiver`]; the interface has no multicast.
pub(super) fn member(group: IpAddr, at: LocalAddress, port: u16) -> Result<OwnedFd, Errno> {
    let socket = new_socket(group)?;
    prepare_to_receive(&socket, group)?;
    // Several instances of a host may be members.
    sys::set(&socket, (libc::SOL_SOCKET, libc::SO_REUSEADDR), 1)?;
    sys::bind(&socket, at.to_remote(group, port))?;
    let interface = at.interface.to_ne_bytes();
    match (group, at.ip) {
        (IpAddr::V4(group), IpAddr::V4(address)) => {
            // struct ip_mreqn
            let (address, interface) = (address.octets(), interface);
            let membership = [group.octets(), address, interface].concat();
            let option = (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP);
            sys::set_octets(&socket, option, &membership)?;
        }
        (IpAddr::V6(group), IpAddr::V6(_)) => {
            // struct ipv6_mreq
            let membership = [&group.octets()[..], &interface].concat();
            let option = (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP);
            sys::set_octets(&socket, option, &membership)?;
        }
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    Ok(socket)
}

/// A socket that only sends, from a port of `from`.
///
/// # Errors
/// As of [`receiver`].
pub(super) fn sender(from: LocalAddress, port: u16) -> Result<OwnedFd, Errno> {
    let socket = new_socket(from.ip)?;
    sys::drop_all_that_arrives(&socket)?;
    prepare_to_send(&socket, from)?;
    sys::bind(&socket, from.with_port(port))?;
    Ok(socket)
}

fn prepare_to_receive(socket: &OwnedFd, ip: IpAddr) -> Result<(), Errno> {
    let traffic_class = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
        IpAddr::V6(_) => {
            sys::set(socket, (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), 1)?;
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
        }
    };
    sys::set(socket, traffic_class, 1)?;
    // Linux before 5.0 has none: then each datagram is a message.
    let _ = sys::set(socket, (libc::SOL_UDP, libc::UDP_GRO), 1);
    grow(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
    Ok(())
}

/// Has a socket send unfragmented, and report errors. What the network says of a path's MTU is
/// reported and not obeyed: the message is not authenticated, and any host can send it.
fn prepare_to_send(socket: &OwnedFd, from: LocalAddress) -> Result<(), Errno> {
    grow(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    match from.ip {
        IpAddr::V4(v4) => {
            let (level, probe) = (libc::IPPROTO_IP, libc::IP_PMTUDISC_PROBE);
            // R3-6
            //# IP datagrams MUST NOT be fragmented: IPv4 sets DF.
            sys::set(socket, (level, libc::IP_MTU_DISCOVER), probe)?;
            sys::set(socket, (level, libc::IP_RECVERR), 1)?;
            sys::set_octets(socket, (level, libc::IP_MULTICAST_IF), &v4.octets())
        }
        IpAddr::V6(_) => {
            let (level, probe) = (libc::IPPROTO_IPV6, libc::IPV6_PMTUDISC_PROBE);
            sys::set(socket, (level, libc::IPV6_V6ONLY), 1)?;
            sys::set(socket, (level, libc::IPV6_MTU_DISCOVER), probe)?;
            sys::set(socket, (level, libc::IPV6_RECVERR), 1)?;
            let interface = c_int::try_from(from.interface).unwrap_or(0);
            sys::set(socket, (level, libc::IPV6_MULTICAST_IF), interface)
        }
    }
}

/// Enlarges a buffer, beyond the system's limit if this process may. The default is enough to work.
fn grow(socket: &OwnedFd, beyond_limit: c_int, within_limit: c_int) {
    if sys::set(socket, (libc::SOL_SOCKET, beyond_limit), BUFFER_OCTETS).is_err() {
        let _ = sys::set(socket, (libc::SOL_SOCKET, within_limit), BUFFER_OCTETS);
    }
}
