//! Packets of a SOCK_SEQPACKET socket: octets and file descriptors.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{open, OFlag};
use nix::libc;
use nix::sys::socket::{
    accept4, bind, connect, getsockopt, listen, recv, sendmsg, setsockopt, socket, sockopt,
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials,
};
use nix::sys::stat::Mode;
use serde::de::DeserializeOwned;
use serde::Serialize;

/// Largest packet that either side sends, octets.
pub const PACKET_OCTETS_MAX: usize = 192 * 1024;
/// `sun_path` with its terminating zero.
const SOCKET_PATH_OCTETS_MAX: usize = 107;
const SEND_BUFFER_OCTETS: usize = 208 * 1024;
/// Room for the descriptors of one packet: a `cmsghdr` and four of them.
const CONTROL_WORDS: usize = 4;

/// One received packet.
#[derive(Debug)]
pub struct Packet {
    /// Its octets.
    pub octets: Vec<u8>,
    /// The file descriptors that came along, close-on-exec; none if they were not wanted.
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

/// One end of a connected control socket; sending and receiving are atomic per packet, so threads
/// may share it.
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
    /// As recvmsg(2); EMSGSIZE if the packet is longer than `octets_max`; EMFILE if it had more
    /// descriptors than four, or than this process may open.
    pub fn recv(&self, octets_max: usize) -> Result<Option<Packet>, Errno> {
        self.recv_flags(octets_max, MsgFlags::empty(), &mut [0; CONTROL_WORDS])
    }

    /// Like [`Self::recv`], but does not wait, and leaves the packet's descriptors with the kernel,
    /// which closes them.
    ///
    /// # Errors
    /// EAGAIN if there is no packet; else as recvmsg(2), and EMSGSIZE as there.
    pub fn try_recv(&self, octets_max: usize) -> Result<Option<Packet>, Errno> {
        self.recv_flags(octets_max, MsgFlags::MSG_DONTWAIT, &mut [])
    }

    fn recv_flags(
        &self,
        octets_max: usize,
        flags: MsgFlags,
        control: &mut [u64],
    ) -> Result<Option<Packet>, Errno> {
        // Most packets are short, and a buffer for the longest takes 50 pages.
        let waiting = self.wait_for_packet(flags)?;
        let mut octets = vec![0; waiting.min(octets_max)];
        let wants_fds = !control.is_empty();
        let received = past_reset(|| recvmsg(self.0.as_fd(), &mut octets, control, flags))?;
        if received.flags.contains(MsgFlags::MSG_TRUNC) {
            return Err(Errno::EMSGSIZE);
        }
        if wants_fds && received.flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(Errno::EMFILE);
        }
        if received.length_octets == 0 {
            return Ok(None);
        }
        octets.truncate(received.length_octets);
        Ok(Some(Packet {
            octets,
            fds: received.fds,
        }))
    }

    /// The length of the next packet, which stays; 0 when the other side has closed.
    fn wait_for_packet(&self, flags: MsgFlags) -> Result<usize, Errno> {
        let peek = flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        past_reset(|| recv(self.0.as_raw_fd(), &mut [], peek))
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
        // SAFETY: accept4 has just created this descriptor; no other code has it.
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

/// Makes room for the largest packet; where the system allows less, a long status fails with
/// EMSGSIZE.
fn grow_send_buffer(fd: &OwnedFd) {
    let _ = setsockopt(fd, sockopt::SndBuf, &SEND_BUFFER_OCTETS);
}

/// Calls `action` with the address of `path`; one that is too long goes through its directory's
/// descriptor.
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

/// Receives, whatever signals come. When the other side has closed without reading all, any call
/// says so, once; what it has sent before can still be received.
fn past_reset<T>(mut receive: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut was_reset = false;
    loop {
        match receive() {
            Err(Errno::EINTR) => {}
            Err(Errno::ECONNRESET) if !was_reset => was_reset = true,
            other => return other,
        }
    }
}

/// What recvmsg(2) gave.
struct Received {
    length_octets: usize,
    flags: MsgFlags,
    fds: Vec<OwnedFd>,
}

/// Calls recvmsg(2). Every descriptor that the kernel has made is owned, also when it could not
/// make all.
fn recvmsg(
    socket: BorrowedFd<'_>,
    octets: &mut [u8],
    control: &mut [u64],
    flags: MsgFlags,
) -> Result<Received, Errno> {
    let mut part = libc::iovec {
        iov_base: octets.as_mut_ptr().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(control);
    let flags = (flags | MsgFlags::MSG_CMSG_CLOEXEC).bits();
    // SAFETY: the message names two buffers that are writable for the lengths that it says.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    Ok(Received {
        length_octets: usize::try_from(Errno::result(length)?).unwrap_or(0),
        flags: MsgFlags::from_bits_retain(message.msg_flags),
        // SAFETY: the kernel has filled in the message, and its control buffer, aligned for it,
        // still is there.
        fds: unsafe { owned_fds(&message) },
    })
}

/// The descriptors that came with a message.
///
/// # Safety
/// The message is as recvmsg(2) left it, and this is called once.
unsafe fn owned_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: our caller vouches for the message.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header in the control buffer.
    while let Some(control) = unsafe { header.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the arithmetic of a macro.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = control.cmsg_len.saturating_sub(before) / size_of::<RawFd>();
            // SAFETY: the header is in the control buffer.
            let data: *const RawFd = unsafe { libc::CMSG_DATA(header) }.cast();
            for index in 0..count {
                // SAFETY: the header says that so many descriptors follow it, which the kernel has
                // put there.
                let fd = unsafe { data.add(index).read_unaligned() };
                // SAFETY: the kernel has just made the descriptor for this message; nothing else
                // knows it.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: message and header as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, PipeReader, Read};

    fn pair() -> (PacketSocket, PacketSocket) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let kind = SockType::SeqPacket;
        let (one, other) =
            nix::sys::socket::socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
        (PacketSocket(one), PacketSocket(other))
    }

    /// Sends "hello" with copies of a pipe's end; gives the other end.
    fn send_pipe(socket: &PacketSocket, copies: usize) -> PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        socket
            .send(&"hello", &vec![writer.as_fd(); copies])
            .unwrap();
        reader
    }

    /// Whether the other end of the pipe is open nowhere.
    fn is_closed(mut pipe: PipeReader) -> bool {
        let flags = nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&pipe, flags).unwrap();
        match pipe.read(&mut [0]) {
            Ok(length) => length == 0,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }

    #[test]
    fn descriptors_that_fit_come_with_their_packet() {
        let (one, other) = pair();
        let pipe = send_pipe(&one, 4);
        let packet = other.recv(64).unwrap().unwrap();
        assert_eq!(packet.parse::<String>().unwrap(), "hello");
        assert_eq!(packet.fds.len(), 4);
        drop(packet);
        assert!(is_closed(pipe));
    }

    // The first four stayed open for ever.
    #[test]
    fn packet_with_too_many_descriptors_leaves_none() {
        let (one, other) = pair();
        let pipe = send_pipe(&one, 9);
        assert_eq!(other.recv(64).unwrap_err(), Errno::EMFILE);
        assert!(is_closed(pipe));
    }

    #[test]
    fn descriptors_that_are_not_wanted_are_closed_and_their_packet_counts() {
        let (one, other) = pair();
        for copies in [1, 4, 9] {
            let pipe = send_pipe(&one, copies);
            let packet = other.try_recv(64).unwrap().unwrap();
            assert_eq!(packet.parse::<String>().unwrap(), "hello");
            assert!(packet.fds.is_empty() && is_closed(pipe));
        }
    }

    #[test]
    fn last_words_of_a_peer_that_has_not_read_all_are_received() {
        let (one, other) = pair();
        other.send(&"unread", &[]).unwrap();
        one.send(&"farewell", &[]).unwrap();
        drop(one);
        let packet = other.recv(64).unwrap().unwrap();
        assert_eq!(packet.parse::<String>().unwrap(), "farewell");
        assert!(other.recv(64).unwrap().is_none());
    }
}
