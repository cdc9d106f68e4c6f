//! Raw frames of a network interface, as a host on the link sends and sees them.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sched::{setns, CloneFlags};

use crate::Failure;

/// The directory in which `ip netns` keeps namespaces.
const NAMESPACES: &str = "/run/netns";

/// A raw socket on an interface of a network namespace.
#[derive(Debug)]
pub struct RawLink(OwnedFd);

impl RawLink {
    /// Opens the interface `netdev` in the network namespace `namespace`, which may differ from the
    /// caller's.
    ///
    /// # Errors
    /// There is no such namespace or interface, or the caller is not root.
    pub fn open(namespace: &str, netdev: &str) -> Result<Self, Failure> {
        let (path, netdev) = (Path::new(NAMESPACES).join(namespace), netdev.to_owned());
        // In a thread of its own, because a thread stays in the namespace that it enters.
        let opened = std::thread::spawn(move || open_in(&path, &netdev)).join();
        opened
            .map_err(|_| Failure::new("the thread that opens a raw socket panicked"))?
            .map(Self)
            .map_err(Failure::from)
    }

    /// Sends a frame, from its Ethernet header on.
    ///
    /// # Errors
    /// As `send(2)`.
    pub fn send(&self, frame: &[u8]) -> Result<(), Failure> {
        // SAFETY: `frame` is readable for its length.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(())
    }

    /// The next frame that arrives before `until`, truncated to the length of `buffer`.
    pub fn receive<'a>(&self, buffer: &'a mut [u8], until: Instant) -> Option<&'a [u8]> {
        let left = until.saturating_duration_since(Instant::now());
        let wait = left + Duration::from_millis(1);
        let mut ready = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        if poll(&mut ready, timeout) != Ok(1) {
            return None;
        }
        let (at, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: `buffer` is writable for its length.
        let received = unsafe { libc::recv(self.0.as_raw_fd(), at.cast(), len, 0) };
        buffer.get(..usize::try_from(received).ok()?)
    }
}

/// A packet socket in the namespace at `path`, which the calling thread enters.
fn open_in(path: &Path, netdev: &str) -> io::Result<OwnedFd> {
    setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
    let index = if_nametoindex(netdev)?;
    let protocol = u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) touches no memory.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `socket` is a new descriptor without another owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all octets 0 are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    address.sll_protocol = protocol;
    address.sll_ifindex = i32::try_from(index).unwrap_or(0);
    let octets = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: `address` is a sockaddr_ll of this length.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), octets) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
