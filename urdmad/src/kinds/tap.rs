//! net_tap: a new network interface of the kernel, with this instance at its far end.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;

use caps::Capability;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use urdma_underlay::MacAddr;

use super::missing::missing_capabilities;
use super::{Internet, KeyError, Keys, Kind, KindError, Named, Needs};

/// A new interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tap {
    /// Its name.
    pub netdev: String,
}

impl Named for Tap {
    const NAME: &'static str = "tap";
    const DRIVER: Option<&'static CStr> = Some(c"net_tap");

    fn take(keys: &mut Keys) -> Result<Self, KeyError> {
        let netdev = keys.take_netdev()?;
        Ok(Self { netdev })
    }
}

impl Kind for Tap {
    fn arguments(&self, _: u16, mac: MacAddr) -> Result<Option<String>, KindError> {
        Ok(Some(format!("net_tap0,iface={},mac={mac}", self.netdev)))
    }

    fn opened(&self, mac: MacAddr) -> Result<(), KindError> {
        set_kernel_mac(&self.netdev, mac).map_err(|error| KindError::Address {
            netdev: self.netdev.clone(),
            error,
        })
    }

    /// The interface ends with its descriptor.
    fn needs(&self) -> Needs {
        Needs {
            internet: Internet::V4,
            ..Needs::NOTHING
        }
    }

    fn cause(&self) -> Option<String> {
        let missing = missing_capabilities(Self::NAME, &[Capability::CAP_NET_ADMIN]);
        missing.or_else(|| taken(&self.netdev))
    }
}

/// Whether the name of a new interface is in use.
fn taken(netdev: &str) -> Option<String> {
    if_nametoindex(netdev).ok()?;
    Some(format!(
        "there is a network interface \"{netdev}\" already: choose another name for port.netdev"
    ))
}

/// Sets another Ethernet address for the kernel's end: net_tap creates it with the port's, and a
/// bridge would then keep the port's frames.
///
/// # Errors
/// The kernel refuses.
fn set_kernel_mac(netdev: &str, port: MacAddr) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_an_interface_that_exists_is_explained() {
        assert!(taken("lo").unwrap().contains("\"lo\" already"));
        assert_eq!(taken("no-such-netdev"), None);
    }
}
