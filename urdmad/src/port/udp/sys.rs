//! System calls on UDP sockets: options, batches of datagrams, the error queue.

#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use arrayvec::ArrayVec;
use libc::{c_int, c_void, socklen_t};
use nix::errno::Errno;

/// Messages of one call.
pub(super) const BATCH: usize = 8;

/// Room for the control messages of one message: at most three are enabled or sent.
const CONTROL_OCTETS: usize = 128;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_OCTETS]);

impl Control {
    const EMPTY: Self = Self([0; CONTROL_OCTETS]);
}

/// An address in the kernel's layout.
#[derive(Clone, Copy)]
pub(super) enum RawAddress {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl RawAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: zeros are a valid sockaddr_in.
                let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                raw.sin_family = family(libc::AF_INET);
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                Self::V4(raw)
            }
            SocketAddr::V6(v6) => {
                // SAFETY: zeros are a valid sockaddr_in6.
                let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
                raw.sin6_family = family(libc::AF_INET6);
                raw.sin6_port = v6.port().to_be();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_scope_id = v6.scope_id();
                Self::V6(raw)
            }
        }
    }

    fn as_ptr(&self) -> *const c_void {
        match self {
            Self::V4(raw) => (&raw const *raw).cast(),
            Self::V6(raw) => (&raw const *raw).cast(),
        }
    }

    fn octets(&self) -> socklen_t {
        match self {
            Self::V4(_) => octets_of::<libc::sockaddr_in>(),
            Self::V6(_) => octets_of::<libc::sockaddr_in6>(),
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // of small constants
const fn family(family: c_int) -> libc::sa_family_t {
    family as libc::sa_family_t
}

#[allow(clippy::cast_possible_truncation)] // of small types
const fn octets_of<T>() -> socklen_t {
    size_of::<T>() as socklen_t
}

/// Room for an address of either version that the kernel writes.
type AnyAddress = libc::sockaddr_in6;

fn parse_address(raw: &AnyAddress) -> Option<SocketAddr> {
    match c_int::from(raw.sin6_family) {
        libc::AF_INET => {
            // SAFETY: both are plain integers, and a sockaddr_in is the shorter.
            let raw: libc::sockaddr_in = unsafe { std::mem::transmute_copy(raw) };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Sets an option whose value is an integer.
pub(super) fn set(
    socket: &OwnedFd,
    (level, name): (c_int, c_int),
    value: c_int,
) -> Result<(), Errno> {
    set_octets(socket, (level, name), &value.to_ne_bytes())
}

/// Sets an option by its octets.
pub(super) fn set_octets(
    socket: &OwnedFd,
    (level, name): (c_int, c_int),
    value: &[u8],
) -> Result<(), Errno> {
    let length = socklen_t::try_from(value.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel reads `length` octets of the value.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            length,
        )
    };
    Errno::result(result).map(|_| ())
}

/// Has the kernel drop whatever arrives at a socket that only sends.
pub(super) fn drop_all_that_arrives(socket: &OwnedFd) -> Result<(), Errno> {
    #[allow(clippy::cast_possible_truncation)] // of small constants
    let mut step = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut step,
    };
    // SAFETY: the kernel copies the program, which has one instruction.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            octets_of::<libc::sock_fprog>(),
        )
    };
    Errno::result(result).map(|_| ())
}

/// Binds a socket.
pub(super) fn bind(socket: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    let raw = RawAddress::new(address);
    // SAFETY: the address has this length.
    let result = unsafe { libc::bind(socket.as_raw_fd(), raw.as_ptr().cast(), raw.octets()) };
    Errno::result(result).map(|_| ())
}

/// Sets the destination of a socket: fails if there is no route.
pub(super) fn connect(socket: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    let raw = RawAddress::new(address);
    // SAFETY: the address has this length.
    let result = unsafe { libc::connect(socket.as_raw_fd(), raw.as_ptr().cast(), raw.octets()) };
    Errno::result(result).map(|_| ())
}

/// Packets that found the receive buffer of a socket full.
pub(super) fn overflows(socket: &OwnedFd) -> u64 {
    const DROPS: usize = 8; // SK_MEMINFO_DROPS
    const SO_MEMINFO: c_int = 55;
    let mut values = [0_u32; DROPS + 1];
    let mut length = octets_of::<[u32; DROPS + 1]>();
    // SAFETY: the kernel writes at most `length` octets of integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return 0;
    }
    u64::from(values[DROPS])
}

/// The MTU of a network interface.
pub(super) fn interface_mtu(socket: &OwnedFd, netdev: &str) -> Result<u32, Errno> {
    // SAFETY: all fields of an ifreq are integers, for which zeros are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last octet stays 0: a name has at most 15.
    let name = &mut request.ifr_name[..libc::IFNAMSIZ - 1];
    for (to, from) in name.iter_mut().zip(netdev.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: the request is an ifreq, which SIOCGIFMTU reads and writes.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    Errno::result(result)?;
    // SAFETY: the call has written the MTU.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| Errno::EINVAL)
}

/// Datagrams of one size, the last of which may be shorter, that the kernel sends by one call.
pub(super) struct Message<'a> {
    pub(super) to: &'a RawAddress,
    /// The octets of all datagrams.
    pub(super) parts: &'a [IoSlice<'a>],
    /// Octets of a datagram; 0 if there is only one.
    pub(super) segment: u16,
    /// ECN bits.
    pub(super) ecn: u8,
}

/// Sends at most [`BATCH`] messages; gives the number of those that were sent.
pub(super) fn send(socket: &OwnedFd, messages: &[Message<'_>]) -> Result<usize, Errno> {
    // SAFETY: zeros are valid headers.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    let mut controls = [Control::EMPTY; BATCH];
    let mut count = 0;
    for ((header, control), message) in headers.iter_mut().zip(&mut controls).zip(messages) {
        let header = &mut header.msg_hdr;
        header.msg_name = message.to.as_ptr().cast_mut();
        header.msg_namelen = message.to.octets();
        header.msg_iov = message.parts.as_ptr().cast_mut().cast();
        header.msg_iovlen = message.parts.len() as _;
        let traffic_class = match message.to {
            RawAddress::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            RawAddress::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        let mut used = 0;
        if message.ecn != 0 {
            let value = c_int::from(message.ecn).to_ne_bytes();
            used = put(control, used, traffic_class, &value);
        }
        if message.segment != 0 {
            let kind = (libc::SOL_UDP, libc::UDP_SEGMENT);
            used = put(control, used, kind, &message.segment.to_ne_bytes());
        }
        if used > 0 {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = used as _;
        }
        count += 1;
    }
    // SAFETY: the headers name addresses, octets and control messages that outlive the call, which
    // only reads them.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
        )
    };
    let sent = Errno::result(sent)?;
    Ok(usize::try_from(sent).unwrap_or(0))
}

/// Appends a control message; gives the octets in use then.
fn put(control: &mut Control, used: usize, (level, kind): (c_int, c_int), value: &[u8]) -> usize {
    let octets = u32::try_from(value.len()).unwrap_or(0);
    // SAFETY: the two macros only compute lengths.
    let (length, space) = unsafe { (libc::CMSG_LEN(octets), libc::CMSG_SPACE(octets)) };
    let header = libc::cmsghdr {
        cmsg_len: length as _,
        cmsg_level: level,
        cmsg_type: kind,
    };
    let header_octets = length as usize - value.len();
    let end = used + space as usize;
    let room = &mut control.0[used..end];
    // SAFETY: the room is longer than a header, and aligned as one.
    unsafe { room.as_mut_ptr().cast::<libc::cmsghdr>().write(header) };
    room[header_octets..header_octets + value.len()].copy_from_slice(value);
    end
}

/// Datagrams of one source that arrived together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) from: SocketAddr,
    /// Octets of all datagrams.
    pub(super) octets: usize,
    /// Octets of a datagram; the last may be shorter.
    pub(super) segment: usize,
    /// ECN bits of all.
    pub(super) ecn: u8,
}

/// Receives what has arrived, a message into each buffer; messages that make no sense leave `None`.
pub(super) fn receive(
    socket: &OwnedFd,
    buffers: &mut [IoSliceMut<'_>],
    arrived: &mut ArrayVec<Option<Arrived>, BATCH>,
) -> Result<(), Errno> {
    // SAFETY: zeros are valid headers and addresses.
    let (mut headers, mut names): ([libc::mmsghdr; BATCH], [AnyAddress; BATCH]) =
        unsafe { std::mem::zeroed() };
    let mut controls = [Control::EMPTY; BATCH];
    let places = headers.iter_mut().zip(&mut names).zip(&mut controls);
    let mut count = 0;
    for (((header, name), control), buffer) in places.zip(buffers) {
        let header = &mut header.msg_hdr;
        header.msg_name = (&raw mut *name).cast();
        header.msg_namelen = octets_of::<AnyAddress>();
        header.msg_iov = (&raw mut *buffer).cast();
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = CONTROL_OCTETS as _;
        count += 1;
    }
    // SAFETY: the headers name memory that the kernel may write, exclusively borrowed until the
    // call returns.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    let received = usize::try_from(Errno::result(received)?).unwrap_or(0);
    for (header, name) in headers.iter().zip(&names).take(received) {
        arrived.push(arrival(header, name));
    }
    Ok(())
}

fn arrival(header: &libc::mmsghdr, name: &AnyAddress) -> Option<Arrived> {
    let octets = usize::try_from(header.msg_len).ok()?;
    if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
        return None;
    }
    let mut arrived = Arrived {
        from: parse_address(name)?,
        octets,
        segment: octets,
        ecn: 0,
    };
    each_control(&header.msg_hdr, |level, kind, value| match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            // An octet, or an integer in this machine's order, of which all but 8 bits are 0.
            arrived.ecn = value.iter().fold(0, |bits, octet| bits | octet) & 3;
        }
        (libc::SOL_UDP, libc::UDP_GRO) => {
            let size = value.first_chunk().map(|size| c_int::from_ne_bytes(*size));
            let size = size.and_then(|size| usize::try_from(size).ok());
            arrived.segment = size.filter(|size| *size > 0).unwrap_or(octets);
        }
        _ => {}
    });
    Some(arrived)
}

/// Passes level, type and value of each control message.
fn each_control(header: &libc::msghdr, mut sink: impl FnMut(c_int, c_int, &[u8])) {
    // SAFETY: the kernel has written well-formed control messages of `msg_controllen` octets to
    // `msg_control`, which is still borrowed.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = at.as_ref() {
            let length = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let value = std::slice::from_raw_parts(libc::CMSG_DATA(at), length);
            sink(control.cmsg_level, control.cmsg_type, value);
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
}

/// What the network reported about datagrams that were sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reported {
    /// Where they were sent.
    pub(super) to: IpAddr,
    pub(super) errno: Errno,
    /// The MTU of the path, if that was too short.
    pub(super) mtu: u32,
}

/// Takes the next report from the error queue of a socket.
pub(super) fn take_report(socket: &OwnedFd) -> Option<Reported> {
    // SAFETY: zeros are valid headers and addresses.
    let (mut header, mut name): (libc::msghdr, AnyAddress) = unsafe { std::mem::zeroed() };
    let mut control = Control::EMPTY;
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = octets_of::<AnyAddress>();
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_OCTETS as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header names memory that the kernel may write.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    Errno::result(received).ok()?;
    let mut found = None;
    each_control(&header, |level, kind, value| match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
            // sock_extended_err: errno, then four octets, then the MTU.
            let word = |at: usize| {
                value
                    .get(at..)?
                    .first_chunk()
                    .map(|w| u32::from_ne_bytes(*w))
            };
            found = word(0).zip(word(8));
        }
        _ => {}
    });
    let (errno, mtu) = found?;
    Some(Reported {
        to: parse_address(&name)?.ip().to_canonical(),
        errno: Errno::from_raw(i32::try_from(errno).unwrap_or(0)),
        mtu,
    })
}
