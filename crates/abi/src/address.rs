//! Socket addresses of C programs.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The address that a program points to.
///
/// # Errors
/// EFAULT for a null pointer, EINVAL for a length that is too short for the family, EAFNOSUPPORT
/// for families other than those of IPv4 and IPv6.
///
/// # Safety
/// There are `len` octets, or the pointer is null.
pub unsafe fn read(at: *const libc::sockaddr, len: libc::socklen_t) -> Result<SocketAddr, c_int> {
    if at.is_null() {
        return Err(libc::EFAULT);
    }
    let octets = usize::try_from(len).unwrap_or(0);
    if octets < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: there are as many octets. C programs may have them at any address.
    let family = unsafe { (&raw const (*at).sa_family).read_unaligned() };
    match c_int::from(family) {
        libc::AF_INET if octets >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: there are as many octets. C programs may have them at any address.
            let raw = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 if octets >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: there are as many octets. C programs may have them at any address.
            let raw = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            let port = u16::from_be(raw.sin6_port);
            let (ip, flow) = (raw.sin6_addr.s6_addr.into(), raw.sin6_flowinfo);
            Ok(SocketAddrV6::new(ip, port, flow, raw.sin6_scope_id).into())
        }
        libc::AF_INET | libc::AF_INET6 => Err(libc::EINVAL),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The octets of an address of C, at an odd place.
    fn placed<T>(raw: &T) -> Vec<u8> {
        let from = (&raw const *raw).cast::<u8>();
        // SAFETY: the structures of C below have no padding.
        let octets = unsafe { std::slice::from_raw_parts(from, size_of::<T>()) };
        [&[0], octets].concat()
    }

    fn read_placed(octets: &[u8], len: usize) -> Result<SocketAddr, c_int> {
        let at = octets[1..].as_ptr().cast();
        // SAFETY: the tests name no more octets than there are.
        unsafe { read(at, libc::socklen_t::try_from(len).unwrap()) }
    }

    #[test]
    fn addresses_of_both_versions_are_read_and_others_refused() {
        let mut v4 = libc::sockaddr_in {
            sin_family: libc::AF_INET.try_into().unwrap(),
            sin_port: 80_u16.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_be_bytes([127, 0, 0, 2]).to_be(),
            },
            sin_zero: [0; 8],
        };
        let octets = placed(&v4);
        assert_eq!(
            read_placed(&octets, 16),
            Ok("127.0.0.2:80".parse().unwrap())
        );
        assert_eq!(read_placed(&octets, 15), Err(libc::EINVAL));
        assert_eq!(read_placed(&octets, 1), Err(libc::EINVAL));
        v4.sin_family = libc::AF_UNIX.try_into().unwrap();
        assert_eq!(read_placed(&placed(&v4), 16), Err(libc::EAFNOSUPPORT));
        let v6 = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6.try_into().unwrap(),
            sin6_port: 81_u16.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr {
                s6_addr: std::net::Ipv6Addr::LOCALHOST.octets(),
            },
            sin6_scope_id: 0,
        };
        let octets = placed(&v6);
        assert_eq!(read_placed(&octets, 28), Ok("[::1]:81".parse().unwrap()));
        assert_eq!(read_placed(&octets, 27), Err(libc::EINVAL));
        // SAFETY: a null pointer is refused.
        assert_eq!(unsafe { read(std::ptr::null(), 16) }, Err(libc::EFAULT));
    }
}
