//! The kernel's end of a TAP port.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use urdma_underlay::MacAddr;

/// Sets another Ethernet address for the kernel's end: net_tap creates it with the port's, and a
/// bridge would then keep the port's frames.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn set_kernel_mac(netdev: &str, port: MacAddr) -> io::Result<()> {
    let mut mac = port.0;
    mac[5] ^= 0x80;
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: all fields of an ifreq are integers, for which zeros are values.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last octet stays 0: a name has at most 15.
    let name = &mut request.ifr_name[..libc::IFNAMSIZ - 1];
    for (to, from) in name.iter_mut().zip(netdev.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: any bits of the union are a hardware address, and only that is written.
    let address = unsafe { &mut request.ifr_ifru.ifru_hwaddr };
    address.sa_family = libc::ARPHRD_ETHER;
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: the request is an ifreq, which SIOCSIFHWADDR reads.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFHWADDR, &raw const request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
