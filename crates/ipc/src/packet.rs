//! Packets of a SOCK_SEQPACKET socket: octets and file descriptors.

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{open, OFlag};
use nix::libc;
use nix::sys::socket::{
    accept4, bind, connect, getsockopt, listen, recv, sendmsg, setsockopt, shutdown, socket,
    sockopt, AddressFamily, Backlog, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType,
    UnixAddr, UnixCredentials,
};
use nix::sys::stat::Mode;
use nix::sys::time::{TimeSpec, TimeVal};
use serde::de::DeserializeOwned;
use serde::Serialize;
use urdma_abi::spared::raised;

/// Maximum length of a packet, octets.
pub const PACKET_OCTETS_MAX: usize = 192 * 1024;
/// Size of `sun_path`, including the terminating zero octet.
const SOCKET_PATH_OCTETS_MAX: usize = 107;
const SEND_BUFFER_OCTETS: usize = 208 * 1024;
/// Words of the control buffer of one packet: a `cmsghdr` and four descriptors.
const CONTROL_WORDS: usize = 4;

/// One received packet; `Octets` holds what it says.
#[derive(Debug)]
pub struct Packet<Octets = Vec<u8>> {
    /// The octets.
    pub octets: Octets,
    /// The file descriptors in the packet, close-on-exec; none if `lacks_fds`.
    pub fds: Vec<OwnedFd>,
    /// Whether it had more than four descriptors, or more than this process may open.
    pub lacks_fds: bool,
}

impl<Octets: AsRef<[u8]>> Packet<Octets> {
    /// Parses the packet as a JSON message.
    ///
    /// # Errors
    /// The packet is not valid JSON, or not a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.octets.as_ref())
    }
}

/// Why there is no packet, with the descriptors of a refused one that were opened.
#[derive(Debug, thiserror::Error)]
#[error("{}", errno.desc())]
pub struct NotReceived {
    /// The error.
    pub errno: Errno,
    /// The caller decides which thread closes them.
    pub fds: Vec<OwnedFd>,
}

impl From<Errno> for NotReceived {
    fn from(errno: Errno) -> Self {
        let fds = Vec::new();
        Self { errno, fds }
    }
}

/// One end of a connected control socket. Sending and receiving are atomic per packet, so threads
/// may share it.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Connects to the listener at `path`, which may be longer than `sun_path`; by a descriptor
    /// with a high number ([`raised`]).
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(path: &Path) -> Result<Self, Errno> {
        let fd = raised(new_socket(SockFlag::empty())?);
        with_short_path(path, |address| connect(fd.as_raw_fd(), address))?;
        Ok(Self(fd))
    }

    /// Sends `message` as JSON, with `fds`.
    ///
    /// # Errors
    /// Those of sendmsg(2); EMSGSIZE if it is too long.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.send_flags(message, fds, MsgFlags::MSG_NOSIGNAL)
    }

    /// As [`Self::send`], but does not block.
    ///
    /// # Errors
    /// EAGAIN if the socket buffer is full.
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

    /// Limits the waits of [`Self::recv`] from now on, to a millisecond at least.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn limit_waits(&self, limit: Duration) -> Result<(), Errno> {
        // Zero would be no limit.
        let limit = TimeSpec::from(limit.max(Duration::from_millis(1)));
        let limit = TimeVal::new(limit.tv_sec(), limit.tv_nsec() / 1000);
        setsockopt(&self.0, sockopt::ReceiveTimeout, &limit)
    }

    /// Waits for a packet, and writes it to `room`; `None` if the other side has closed the
    /// connection.
    ///
    /// # Errors
    /// EAGAIN at the end of the limit ([`Self::limit_waits`]); EINTR; EMSGSIZE if the packet is
    /// longer than `room`; else those of recvmsg(2).
    pub fn recv<'a>(&self, room: &'a mut [u8]) -> Result<Option<Packet<&'a [u8]>>, Errno> {
        let mut control = [0; CONTROL_WORDS];
        let flags = MsgFlags::empty();
        let received = past_reset(|| recvmsg(self.0.as_fd(), room, &mut control, flags))?;
        if received.flags.contains(MsgFlags::MSG_TRUNC) {
            return Err(Errno::EMSGSIZE);
        }
        if received.length_octets == 0 {
            return Ok(None);
        }
        let mut fds = received.fds;
        let lacks_fds = received.flags.contains(MsgFlags::MSG_CTRUNC);
        if lacks_fds {
            fds.clear();
        }
        Ok(Some(Packet {
            octets: &room[..received.length_octets],
            fds,
            lacks_fds,
        }))
    }

    /// As [`Self::recv`], but does not block, and leaves a packet that it refuses in the queue: the
    /// last close(2) of a descriptor may block as long as its sender chooses (a socket that
    /// lingers, a file of a FUSE file system), so the caller decides which thread closes the
    /// socket with what is queued, and the descriptors of the refused packet that are open already.
    ///
    /// # Errors
    /// EAGAIN if there is no packet; EMSGSIZE if it is longer than `octets_max`; EMFILE if it has
    /// more than four descriptors, or more than this process may open; EBADMSG if it has
    /// descriptors and no octets; else those of recvmsg(2).
    pub fn try_recv(&self, octets_max: usize) -> Result<Option<Packet>, NotReceived> {
        let mut control = [0; CONTROL_WORDS];
        let flags = MsgFlags::MSG_DONTWAIT;
        let peek = flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        let waiting = receive_at_once(|| recvmsg(self.0.as_fd(), &mut [], &mut control, peek))?;
        let (len, fds) = (waiting.length_octets, waiting.fds);
        if waiting.flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(NotReceived {
                errno: Errno::EMFILE,
                fds,
            });
        }
        if len > octets_max {
            return Err(NotReceived {
                errno: Errno::EMSGSIZE,
                fds,
            });
        }
        if len == 0 {
            return match fds.is_empty() {
                true => Ok(None),
                false => Err(NotReceived {
                    errno: Errno::EBADMSG,
                    fds,
                }),
            };
        }
        let mut octets = vec![0; len];
        // Without a control buffer the kernel closes the descriptors of the packet itself, of which
        // `fds` are copies, so this is the last close of none.
        match receive_at_once(|| recv(self.0.as_raw_fd(), &mut octets, flags)) {
            Ok(_) => Ok(Some(Packet {
                octets,
                fds,
                lacks_fds: false,
            })),
            Err(errno) => Err(NotReceived { errno, fds }),
        }
    }

    /// Ends the connection, while the socket stays open: the other side receives what was sent to
    /// it, and then the end.
    pub fn end(&self) {
        // An error means that the other side has ended it already.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }

    /// The credentials of the other end, from the kernel.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn peer(&self) -> Result<UnixCredentials, Errno> {
        getsockopt(&self.0, sockopt::PeerCredentials)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.0
    }
}

/// A listening control socket.
#[derive(Debug)]
pub struct PacketListener(OwnedFd);

impl PacketListener {
    /// Binds to `path`, which must not exist, and listens.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn bind(path: &Path) -> Result<Self, Errno> {
        let fd = new_socket(SockFlag::SOCK_NONBLOCK)?;
        with_short_path(path, |address| bind(fd.as_raw_fd(), address))?;
        listen(&fd, Backlog::new(128)?)?;
        Ok(Self(fd))
    }

    /// Accepts a pending connection.
    ///
    /// # Errors
    /// EAGAIN if there is none; else those of accept(2).
    pub fn accept(&self) -> Result<PacketSocket, Errno> {
        let fd = accept4(self.0.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: accept4 has just created this descriptor, which has no other owner.
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

/// Enlarges the send buffer to the largest packet. If the system's limit is lower, a long status
/// fails with EMSGSIZE.
fn grow_send_buffer(fd: &OwnedFd) {
    let _ = setsockopt(fd, sockopt::SndBuf, &SEND_BUFFER_OCTETS);
}

/// Calls `action` with the address of `path`. A path that is too long is replaced by one through
/// `/proc/self/fd` and a descriptor of its directory.
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

/// Receives, and repeats the call once after ECONNRESET: if the other side has closed without
/// reading all packets, one call fails, but packets it sent before can be received.
fn past_reset<T>(mut receive: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match receive() {
        Err(Errno::ECONNRESET) => receive(),
        other => other,
    }
}

/// Receives without blocking, past signals and a reset.
fn receive_at_once<T>(mut receive: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    past_reset(|| loop {
        match receive() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    })
}

/// The result of recvmsg(2).
struct Received {
    length_octets: usize,
    flags: MsgFlags,
    fds: Vec<OwnedFd>,
}

/// Calls recvmsg(2). The result owns all descriptors that the kernel has created, also if it has
/// not created all.
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
    // SAFETY: the message points to two buffers, which are writable for the stated lengths.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    Ok(Received {
        length_octets: usize::try_from(Errno::result(length)?).unwrap_or(0),
        flags: MsgFlags::from_bits_retain(message.msg_flags),
        // SAFETY: the kernel has written the message, and its control buffer is aligned and live.
        fds: unsafe { owned_fds(&message) },
    })
}

/// The descriptors in a message.
///
/// # Safety
/// The message is the result of recvmsg(2), and the function is called once for it.
unsafe fn owned_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: guaranteed by the caller.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a header in the control buffer.
    while let Some(control) = unsafe { header.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the function only computes a length.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = control.cmsg_len.saturating_sub(before) / size_of::<RawFd>();
            // SAFETY: the header is in the control buffer.
            let data: *const RawFd = unsafe { libc::CMSG_DATA(header) }.cast();
            for index in 0..count {
                // SAFETY: the header states how many descriptors follow it.
                let fd = unsafe { data.add(index).read_unaligned() };
                // SAFETY: the kernel has just created the descriptor for this message, so it has no
                // other owner.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: a message with a control buffer, and a header in it.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{fcntl, FcntlArg};
    use std::io::{ErrorKind, PipeReader, Read};

    fn pair() -> (PacketSocket, PacketSocket) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let kind = SockType::SeqPacket;
        let (one, other) =
            nix::sys::socket::socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
        (PacketSocket(one), PacketSocket(other))
    }

    /// Sends "hello" with copies of one end of a pipe; returns the other end.
    fn send_pipe(socket: &PacketSocket, copies: usize) -> PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        socket
            .send(&"hello", &vec![writer.as_fd(); copies])
            .unwrap();
        reader
    }

    /// Whether no process has the other end of the pipe open.
    fn is_closed(mut pipe: PipeReader) -> bool {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
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
        let mut room = [0; 64];
        let packet = other.recv(&mut room).unwrap().unwrap();
        assert_eq!(packet.parse::<String>().unwrap(), "hello");
        assert_eq!(packet.fds.len(), 4);
        drop(packet);
        assert!(is_closed(pipe));
    }

    // An earlier version leaked the first four descriptors.
    #[test]
    fn packet_with_too_many_descriptors_leaves_none() {
        let (one, other) = pair();
        let pipe = send_pipe(&one, 9);
        let mut room = [0; 64];
        let packet = other.recv(&mut room).unwrap().unwrap();
        assert_eq!(packet.parse::<String>().unwrap(), "hello");
        assert!(packet.fds.is_empty() && packet.lacks_fds);
        assert!(is_closed(pipe));
    }

    #[test]
    fn packet_that_is_refused_stays_in_the_queue_with_its_descriptors() {
        for (copies, octets_max, open, errno) in [
            (253, 64, 4, Errno::EMFILE),
            (5, 64, 4, Errno::EMFILE),
            (3, 6, 3, Errno::EMSGSIZE),
        ] {
            let (one, other) = pair();
            let mut pipe = send_pipe(&one, copies);
            let refused = other.try_recv(octets_max).unwrap_err();
            assert_eq!((refused.errno, refused.fds.len()), (errno, open));
            drop(refused);
            fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
            let error = pipe.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            drop(other);
            assert!(is_closed(pipe));
        }
    }

    #[test]
    fn packet_that_is_taken_comes_with_its_descriptors_once() {
        let (one, other) = pair();
        for copies in [1, 4] {
            let pipe = send_pipe(&one, copies);
            let packet = other.try_recv(64).unwrap().unwrap();
            assert_eq!(packet.parse::<String>().unwrap(), "hello");
            assert_eq!(packet.fds.len(), copies);
            drop(packet);
            assert!(is_closed(pipe));
        }
        assert_eq!(other.try_recv(64).unwrap_err().errno, Errno::EAGAIN);
    }

    #[test]
    fn connection_that_is_ended_gives_what_was_sent_and_then_its_end() {
        let (one, other) = pair();
        one.send(&"farewell", &[]).unwrap();
        one.end();
        let mut room = [0; 64];
        let packet = other.recv(&mut room).unwrap().unwrap();
        assert_eq!(packet.parse::<String>().unwrap(), "farewell");
        assert!(other.recv(&mut room).unwrap().is_none());
        assert_eq!(other.send(&"late", &[]), Err(Errno::EPIPE));
    }

    #[test]
    fn last_words_of_a_peer_that_has_not_read_all_are_received() {
        let (one, other) = pair();
        other.send(&"unread", &[]).unwrap();
        one.send(&"farewell", &[]).unwrap();
        drop(one);
        let mut room = [0; 64];
        let packet = other.recv(&mut room).unwrap().unwrap();
        assert_eq!(packet.parse::<String>().unwrap(), "farewell");
        assert!(other.recv(&mut room).unwrap().is_none());
    }
}
