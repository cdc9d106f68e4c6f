//! `struct sockaddr_in` and `sockaddr_in6` in commands and answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::abi::{SockaddrIn6, SockaddrStorage};
use crate::driver::Errno;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// `AF_IB`, for the answers to QUERY with GIDs.
const AF_IB: u16 = 27;

/// Reads an address; `None` when the family is unspecified.
pub(crate) fn parse(octets: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    let family = u16::from_ne_bytes([octets[0], octets[1]]);
    let port = u16::from_be_bytes([octets[2], octets[3]]);
    match family {
        0 => Ok(None),
        AF_INET => {
            let ip = Ipv4Addr::new(octets[4], octets[5], octets[6], octets[7]);
            Ok(Some(SocketAddrV4::new(ip, port).into()))
        }
        AF_INET6 => {
            let flow_info = u32::from_be_bytes([octets[4], octets[5], octets[6], octets[7]]);
            let mut ip = [0; 16];
            ip.copy_from_slice(&octets[8..24]);
            let scope = u32::from_ne_bytes([octets[24], octets[25], octets[26], octets[27]]);
            Ok(Some(
                SocketAddrV6::new(Ipv6Addr::from(ip), port, flow_info, scope).into(),
            ))
        }
        _ => Err(libc::EAFNOSUPPORT),
    }
}

/// Reads a group's address; returns it with the address size of its family.
pub(crate) fn group(octets: &[u8]) -> Result<(IpAddr, u16), Errno> {
    let addr = parse(octets)?.ok_or(libc::EINVAL)?;
    Ok((addr.ip().to_canonical(), size_of(Some(addr))))
}

/// Octets of an address of this family, as `rdma_addr_size` returns it.
pub(crate) fn size_of(addr: Option<SocketAddr>) -> u16 {
    match addr {
        Some(SocketAddr::V4(_)) => 16,
        Some(SocketAddr::V6(_)) => 28,
        None => 0,
    }
}

/// Writes an address, all zero for none.
pub(crate) fn to_in6(addr: Option<SocketAddr>) -> SockaddrIn6 {
    let mut octets = [0; 28];
    match addr {
        Some(SocketAddr::V4(v4)) => {
            octets[0..2].copy_from_slice(&AF_INET.to_ne_bytes());
            octets[2..4].copy_from_slice(&v4.port().to_be_bytes());
            octets[4..8].copy_from_slice(&v4.ip().octets());
        }
        Some(SocketAddr::V6(v6)) => {
            octets[0..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            octets[2..4].copy_from_slice(&v6.port().to_be_bytes());
            octets[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            octets[8..24].copy_from_slice(&v6.ip().octets());
            octets[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
        None => {}
    }
    SockaddrIn6 { octets }
}

/// As [`to_in6`], in a `sockaddr_storage`.
pub(crate) fn to_storage(addr: Option<SocketAddr>) -> SockaddrStorage {
    let mut octets = [0; 128];
    octets[..28].copy_from_slice(&to_in6(addr).octets);
    SockaddrStorage { octets }
}

/// A `sockaddr_ib` with a GID and the service of an rdma_cm port; returns it and its size.
pub(crate) fn to_ib(gid: [u8; 16], port_space: u16, port: u16) -> (SockaddrStorage, u16) {
    let mut octets = [0; 128];
    octets[0..2].copy_from_slice(&AF_IB.to_ne_bytes());
    octets[2..4].copy_from_slice(&0xffff_u16.to_be_bytes());
    octets[8..24].copy_from_slice(&gid);
    let service = 0x0000_0000_0100_0000_u64 | u64::from(port_space) << 16 | u64::from(port);
    octets[24..32].copy_from_slice(&service.to_be_bytes());
    (SockaddrStorage { octets }, 48)
}

/// The address as connection management compares it: an IPv4-mapped address is the IPv4 address.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Whether both addresses have the same family.
pub(crate) fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockaddr_written_reads_back() {
        for text in ["10.1.2.3:7471", "[2001:db8::5]:80", "[::]:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(parse(&to_storage(Some(addr)).octets), Ok(Some(addr)));
        }
        assert_eq!(parse(&to_in6(None).octets), Ok(None));
    }

    #[test]
    fn group_of_each_family_has_its_size() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (text, size) in [("239.1.2.3", 16), ("ff02::9", 28)] {
            let octets = to_storage(Some(SocketAddr::new(ip(text), 0))).octets;
            assert_eq!(group(&octets), Ok((ip(text), size)));
        }
        assert_eq!(group(&[0; 28]), Err(libc::EINVAL));
    }

    #[test]
    fn sockaddr_of_other_family_is_refused() {
        let mut octets = [0; 28];
        octets[0] = 27;
        assert_eq!(parse(&octets), Err(libc::EAFNOSUPPORT));
    }
}
