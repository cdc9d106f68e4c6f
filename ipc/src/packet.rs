//! Packets of a SOCK_SEQPACKET socket: octets and file descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{open, OFlag};
use nix::sys::socket::{
    accept4, bind, connect, getsockopt, listen, recv, recvmsg, sendmsg, setsockopt, socket,
    sockopt, AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag,
    SockType, UnixAddr, UnixCredentials,
};
use nix::sys::stat::Mode;
use serde::de::DeserializeOwned;
use serde::Serialize;

/// Largest packet that either side sends, octets.
pub const PACKET_OCTETS_MAX: usize = 192 * 1024;
/// `sun_path` with its terminating zero.
const SOCKET_PATH_OCTETS_MAX: usize = 107;
const SEND_BUFFER_OCTETS: usize = 208 * 1024;

/// One received packet.
#[derive(Debug)]
pub struct Packet {
    /// Its octets.
    pub octets: Vec<u8>,
    /// The file descriptors that came along, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

impl Packet {
    /// The JSON message in it.
    ///
    /// # Errors
    /// It is none, or not one of `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.octets)
    }
}

/// One end of a connected control socket; sending and receiving are atomic per packet, so threads may share it.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Connects to the listener at `path`, which may be longer than a socket's address.
    ///
    /// # Errors
    /// As connect(2).
    pub fn connect(path: &Path) -> Result<Self, Errno> {
        let fd = new_socket(SockFlag::empty())?;
        with_short_path(path, |address| connect(fd.as_raw_fd(), address))?;
        Ok(Self(fd))
    }

    /// Sends `message` as JSON, with `fds`.
    ///
    /// # Errors
    /// As sendmsg(2); EMSGSIZE if it is too long.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send_flags(message, fds, MsgFlags::MSG_NOSIGNAL)
    }

    /// Like [`Self::send`], but never waits for the receiver.
    ///
    /// # Errors
    /// EAGAIN if the receiver has not taken what was sent before.
    pub fn try_send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send_flags(
            message,
            fds,
            MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        )
    }

    fn send_flags<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
        flags: MsgFlags,
    ) -> Result<(), Errno> {
        let octets = serde_json::to_vec(message).map_err(|_| Errno::EINVAL)?;
        if octets.len() > PACKET_OCTETS_MAX {
            return Err(Errno::EMSGSIZE);
        }
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
        loop {
            let sent = sendmsg::<()>(
                self.0.as_raw_fd(),
                &[IoSlice::new(&octets)],
                control,
                flags,
                None,
            );
            match sent {
                Err(Errno::EINTR) => {}
                other => return other.map(|_| ()),
            }
        }
    }

    /// Waits for a packet. `None` when the other side has closed.
    ///
    /// # Errors
    /// As recvmsg(2); EMSGSIZE if the packet is longer than `octets_max`.
    pub fn recv(&self, octets_max: usize) -> Result<Option<Packet>, Errno> {
        self.recv_flags(octets_max, MsgFlags::empty())
    }

    /// Like [`Self::recv`], but does not wait.
    ///
    /// # Errors
    /// EAGAIN if there is no packet.
    pub fn try_recv(&self, octets_max: usize) -> Result<Option<Packet>, Errno> {
        self.recv_flags(octets_max, MsgFlags::MSG_DONTWAIT)
    }

    fn recv_flags(&self, octets_max: usize, flags: MsgFlags) -> Result<Option<Packet>, Errno> {
        // Most packets are short, and a buffer for the longest takes 50 pages.
        let waiting = self.wait_for_packet(flags)?;
        let mut octets = vec![0; waiting.min(octets_max)];
        let mut space = nix::cmsg_space!([RawFd; 4]);
        let (length, truncated, fds) = loop {
            let mut parts = [IoSliceMut::new(&mut octets)];
            let received = recvmsg::<()>(
                self.0.as_raw_fd(),
                &mut parts,
                Some(&mut space),
                flags | MsgFlags::MSG_CMSG_CLOEXEC,
            );
            match received {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
                Ok(received) => {
                    let fds = owned_fds(received.cmsgs()?);
                    let truncated = received.flags.contains(MsgFlags::MSG_TRUNC);
                    break (received.bytes, truncated, fds);
                }
            }
        };
        if truncated {
            return Err(Errno::EMSGSIZE);
        }
        if length == 0 {
            return Ok(None);
        }
        octets.truncate(length);
        Ok(Some(Packet { octets, fds }))
    }

    /// The length of the next packet, which stays; 0 when the other side has closed.
    fn wait_for_packet(&self, flags: MsgFlags) -> Result<usize, Errno> {
        let peek = flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        loop {
            match recv(self.0.as_raw_fd(), &mut [], peek) {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }

    /// Who is at the other end, as the kernel says.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn peer(&self) -> Result<UnixCredentials, Errno> {
        getsockopt(&self.0, sockopt::PeerCredentials)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listening control socket.
#[derive(Debug)]
pub struct PacketListener(OwnedFd);

impl PacketListener {
    /// Binds to `path`, which must not exist, and listens.
    ///
    /// # Errors
    /// As bind(2) and listen(2).
    pub fn bind(path: &Path) -> Result<Self, Errno> {
        let fd = new_socket(SockFlag::SOCK_NONBLOCK)?;
        with_short_path(path, |address| bind(fd.as_raw_fd(), address))?;
        listen(&fd, Backlog::new(128)?)?;
        Ok(Self(fd))
    }

    /// Accepts a connection that waits.
    ///
    /// # Errors
    /// EAGAIN if there is none; else as accept(2).
    pub fn accept(&self) -> Result<PacketSocket, Errno> {
        let fd = accept4(self.0.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: accept4 has just made this descriptor; nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        grow_send_buffer(&fd);
        Ok(PacketSocket(fd))
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn new_socket(flags: SockFlag) -> Result<OwnedFd, Errno> {
    let fd = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        flags | SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    grow_send_buffer(&fd);
    Ok(fd)
}

/// Makes room for the largest packet; where the system allows less, a long status fails with EMSGSIZE.
fn grow_send_buffer(fd: &OwnedFd) {
    let _ = setsockopt(fd, sockopt::SndBuf, &SEND_BUFFER_OCTETS);
}

/// Calls `action` with the address of `path`; one that is too long goes through its directory's descriptor.
fn with_short_path(
    path: &Path,
    action: impl FnOnce(&UnixAddr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if path.as_os_str().len() <= SOCKET_PATH_OCTETS_MAX {
        return action(&UnixAddr::new(path)?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::EINVAL);
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(parent, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(name);
    action(&UnixAddr::new(&short)?)
}

fn owned_fds(messages: impl Iterator<Item = ControlMessageOwned>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in messages {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has just made these descriptors for this packet; nobody else knows them.
            fds.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    fds
}
