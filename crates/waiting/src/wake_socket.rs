//! The descriptor by which peers wake a thread that sleeps in a call on descriptors.
//!
//! A process has one socket of NETLINK_USERSOCK, and each of its peers has a socket that is
//! connected to it. A peer wakes the process by a message. Neither can keep the other waiting:
//! the sender does not block, and a socket that is full is readable, so it wakes too. What a peer
//! does to its own socket concerns no other peer.
//!
//! Other kinds of descriptors do not have these properties. Whether a write to an eventfd or a pipe
//! blocks depends on a flag that all holders share, and the mutex of a pipe is held during copies.
//! A message to a socket of AF_UNIX may carry descriptors, whose closing blocks the receiver.
//!
//! Any process in the network namespace can send to the socket. The process therefore drops what
//! does not consist of the secret that peers read in its page, and has the kernel drop it from the
//! first such message on, by a filter. To compile the filter takes the kernel longer than all else
//! of the socket, and a process that no stranger sends to does without.

#![allow(unsafe_code)]

#[cfg(not(loom))]
#[allow(clippy::cast_possible_truncation)] // constants and sizes of a few octets
mod system {
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
    use std::sync::atomic::{AtomicBool, Ordering};

    use urdma_abi::spared::raised;

    const NETLINK_USERSOCK: libc::c_int = 2;

    /// The socket of this process.
    #[derive(Debug)]
    pub struct WakeSocket {
        socket: OwnedFd,
        port: u32,
        secret: u64,
        own: Waker,
        /// Whether the filter is attached, or is being attached.
        is_filtered: AtomicBool,
    }

    impl WakeSocket {
        /// Creates the socket of this process.
        ///
        /// # Errors
        /// What a system call says: a sandbox may refuse sockets of this family.
        pub fn create() -> io::Result<Self> {
            let socket = raised(new_socket(libc::SOCK_NONBLOCK)?);
            let mut secret = [0; 8];
            // SAFETY: the buffer is writable.
            check(unsafe { libc::getrandom(secret.as_mut_ptr().cast(), secret.len(), 0) })?;
            let port = bind(&socket)?;
            let own = Waker(raised(connect(port)?));
            let secret = u64::from_ne_bytes(secret);
            Ok(Self {
                socket,
                port,
                secret,
                own,
                is_filtered: AtomicBool::new(false),
            })
        }

        /// A socket for a peer.
        ///
        /// # Errors
        /// What a system call says.
        pub fn for_peer(&self) -> io::Result<OwnedFd> {
            connect(self.port).map(raised)
        }

        /// What a peer has to send.
        pub(crate) fn secret(&self) -> u64 {
            self.secret
        }

        /// Wakes the thread of this process.
        pub(crate) fn wake(&self) {
            self.own.wake(self.secret);
        }

        /// Takes a message of a peer, and drops those of others before it. The socket may have
        /// more, and is readable then.
        pub fn take(&self) {
            while let Some(is_of_peer) = self.receive() {
                if is_of_peer || !self.drops_others() {
                    return;
                }
            }
        }

        /// Takes a message, if there is one; whether it is the secret.
        fn receive(&self) -> Option<bool> {
            let mut octets = [0_u8; 8];
            let (fd, at, flags) = (
                self.socket.as_raw_fd(),
                octets.as_mut_ptr().cast(),
                libc::MSG_TRUNC,
            );
            // SAFETY: the buffer is writable. The socket does not block, and no error matters.
            let length = unsafe { libc::recv(fd, at, octets.len(), flags) };
            let length = usize::try_from(length).ok()?;
            Some(length == octets.len() && octets == self.secret.to_ne_bytes())
        }

        /// Attaches the filter unless it is; false if the kernel has no memory for it now, so that
        /// the messages of others may never end.
        #[cold]
        fn drops_others(&self) -> bool {
            if self.is_filtered.swap(true, Ordering::Relaxed) {
                return true;
            }
            let attached = drop_all_but(&self.socket, self.secret.to_ne_bytes());
            self.is_filtered.store(attached.is_ok(), Ordering::Relaxed);
            attached.is_ok()
        }

        /// The descriptor that is readable after a wake-up.
        pub fn descriptor(&self) -> RawFd {
            self.socket.as_raw_fd()
        }

        /// All descriptors, which must stay open.
        pub fn descriptors(&self) -> [RawFd; 2] {
            [self.socket.as_raw_fd(), self.own.descriptor()]
        }
    }

    fn check(result: isize) -> io::Result<isize> {
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(result)
    }

    fn new_socket(flags: libc::c_int) -> io::Result<OwnedFd> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_USERSOCK) };
        check(fd as isize)?;
        // SAFETY: the call has just opened it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// An address; the kernel chooses port 0.
    fn address(port: u32) -> libc::sockaddr_nl {
        // SAFETY: all zeroes is a valid address.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_pid = port;
        address
    }

    const ADDRESS_OCTETS: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

    /// Gives the socket a port.
    fn bind(socket: &OwnedFd) -> io::Result<u32> {
        let (fd, mut own) = (socket.as_raw_fd(), address(0));
        // SAFETY: an address of this length.
        let bound = unsafe { libc::bind(fd, (&raw const own).cast(), ADDRESS_OCTETS) };
        check(bound as isize)?;
        let mut length = ADDRESS_OCTETS;
        // SAFETY: an address of this length; writable.
        let named = unsafe { libc::getsockname(fd, (&raw mut own).cast(), &raw mut length) };
        check(named as isize)?;
        Ok(own.nl_pid)
    }

    fn connect(port: u32) -> io::Result<OwnedFd> {
        let (socket, to) = (new_socket(0)?, address(port));
        let fd = socket.as_raw_fd();
        // SAFETY: an address of this length.
        let connected = unsafe { libc::connect(fd, (&raw const to).cast(), ADDRESS_OCTETS) };
        check(connected as isize)?;
        Ok(socket)
    }

    /// Attaches a filter.
    fn drop_all_but(socket: &OwnedFd, octets: [u8; 8]) -> io::Result<()> {
        const LOAD_LENGTH: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
        const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let [high, low] = [&octets[..4], &octets[4..]].map(|half| {
            half.iter()
                .fold(0, |word, octet| word << 8 | u32::from(*octet))
        });
        let step = |code, if_not, k| libc::sock_filter {
            code,
            jt: 0,
            jf: if_not,
            k,
        };
        let mut steps = [
            step(LOAD_LENGTH, 0, 0),
            step(JUMP_IF_EQUAL, 5, 8),
            step(LOAD, 0, 0),
            step(JUMP_IF_EQUAL, 3, high),
            step(LOAD, 0, 4),
            step(JUMP_IF_EQUAL, 1, low),
            step(RETURN, 0, 8),
            step(RETURN, 0, 0),
        ];
        let program = libc::sock_fprog {
            len: steps.len() as libc::c_ushort,
            filter: steps.as_mut_ptr(),
        };
        // SAFETY: the kernel copies the program, which has this length.
        let attached = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        check(attached as isize).map(|_| ())
    }

    /// What wakes a process.
    #[derive(Debug)]
    pub struct Waker(OwnedFd);

    impl Waker {
        /// Of a descriptor from its process; `None` if that is of another kind, so that sending
        /// might block.
        pub fn new(fd: OwnedFd) -> Option<Self> {
            Self::accepts(&fd).then_some(Self(fd))
        }

        /// Whether [`Waker::new`] accepts the descriptor.
        pub fn accepts(fd: &OwnedFd) -> bool {
            option(fd, libc::SO_DOMAIN) == Some(libc::AF_NETLINK)
                && option(fd, libc::SO_PROTOCOL) == Some(NETLINK_USERSOCK)
        }

        /// The descriptor, which must stay open.
        pub fn descriptor(&self) -> RawFd {
            self.0.as_raw_fd()
        }

        #[cold]
        pub(crate) fn wake(&self, secret: u64) {
            let octets = secret.to_ne_bytes();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let fd = self.descriptor();
            // The C library's function is a cancellation point, and the stand-in hooks it.
            // SAFETY: the octets are readable; no address is named. A socket that is full is
            // readable, so no error matters.
            unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    fd,
                    octets.as_ptr(),
                    octets.len(),
                    flags,
                    std::ptr::null::<libc::sockaddr>(),
                    0,
                )
            };
        }
    }

    /// Descriptors that this process may have open (RLIMIT_NOFILE).
    pub fn descriptors_max() -> usize {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the limit is writable.
        let failed = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        if failed != 0 {
            return usize::MAX;
        }
        usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
    }

    fn option(fd: &OwnedFd, name: libc::c_int) -> Option<libc::c_int> {
        let mut value = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value has the length that is named.
        let failed = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                (&raw mut value).cast(),
                &raw mut length,
            )
        };
        (failed == 0).then_some(value)
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used)]
    mod tests {
        use super::*;

        fn is_readable(socket: &WakeSocket) -> bool {
            let mut waiting = libc::pollfd {
                fd: socket.descriptor(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one valid pollfd.
            unsafe { libc::poll(&raw mut waiting, 1, 0) == 1 }
        }

        #[test]
        fn peer_wakes_until_its_message_is_taken() {
            let socket = WakeSocket::create().unwrap();
            let waker = Waker::new(socket.for_peer().unwrap()).unwrap();
            assert!(!is_readable(&socket));
            waker.wake(socket.secret());
            assert!(is_readable(&socket));
            socket.take();
            assert!(!is_readable(&socket));
            socket.wake();
            assert!(is_readable(&socket));
        }

        fn send_others(socket: &WakeSocket, waker: &Waker) {
            for secret in [0, socket.secret() ^ 1, socket.secret() ^ 1 << 63] {
                waker.wake(secret);
            }
            // The second one begins with the secret.
            let long = [socket.secret().to_ne_bytes(); 2].concat();
            for octets in [[0_u8; 64].as_slice(), &long, &long[..4]] {
                let (at, len) = (octets.as_ptr().cast(), octets.len());
                // SAFETY: the octets are readable.
                unsafe { libc::send(waker.descriptor(), at, len, 0) };
            }
        }

        #[test]
        fn messages_without_the_secret_are_dropped_and_then_wake_no_more() {
            let socket = WakeSocket::create().unwrap();
            let waker = Waker::new(socket.for_peer().unwrap()).unwrap();
            send_others(&socket, &waker);
            socket.take();
            for _ in 0..2 {
                assert!(!is_readable(&socket));
                send_others(&socket, &waker);
            }
            waker.wake(socket.secret());
            assert!(is_readable(&socket));
            socket.take();
            assert!(!is_readable(&socket));
        }

        #[test]
        fn peer_wakes_behind_messages_without_the_secret() {
            let socket = WakeSocket::create().unwrap();
            let waker = Waker::new(socket.for_peer().unwrap()).unwrap();
            send_others(&socket, &waker);
            waker.wake(socket.secret());
            waker.wake(socket.secret());
            socket.take();
            assert!(is_readable(&socket));
            socket.take();
            assert!(!is_readable(&socket));
        }

        #[test]
        fn sender_does_not_wait_for_a_process_that_takes_nothing() {
            let socket = WakeSocket::create().unwrap();
            let waker = Waker::new(socket.for_peer().unwrap()).unwrap();
            for _ in 0..100_000 {
                waker.wake(socket.secret());
            }
            assert!(is_readable(&socket));
        }

        #[test]
        fn other_sockets_are_no_wakers() {
            let (pair, _) = std::os::unix::net::UnixDatagram::pair().unwrap();
            assert!(Waker::new(pair.into()).is_none());
            assert!(Waker::new(std::fs::File::open("/dev/null").unwrap().into()).is_none());
        }
    }
}

#[cfg(loom)]
mod system {
    //! A model: a number of messages.

    use loom::sync::Arc;

    use crate::futex::{self, Waiter};
    use crate::sync::{AtomicU32, Ordering};

    /// The socket of a process.
    #[derive(Debug)]
    pub struct WakeSocket(Arc<AtomicU32>);

    impl Default for WakeSocket {
        fn default() -> Self {
            Self(Arc::new(AtomicU32::new(0)))
        }
    }

    impl WakeSocket {
        pub(crate) fn for_peer(&self) -> Waker {
            Waker(self.0.clone())
        }

        pub(crate) fn wake(&self) {
            self.for_peer().wake(0);
        }

        /// Sleeps until it is readable.
        pub fn wait(&self) {
            futex::wait(&[Waiter::new(&self.0, 0)], None);
        }

        /// Takes a message.
        pub fn take(&self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// What wakes a process.
    #[derive(Debug)]
    pub struct Waker(Arc<AtomicU32>);

    impl Waker {
        pub(crate) fn wake(&self, _secret: u64) {
            self.0.fetch_add(1, Ordering::Release);
            futex::wake(&self.0);
        }
    }
}

#[cfg(not(loom))]
pub use system::descriptors_max;
pub use system::{WakeSocket, Waker};
