//! The socket to urdmad as an engine has it. It is closed in forked children, and used only while
//! its descriptor is still the socket that was opened.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::Once;

use urdma_abi::spared::{identity, Mark};
use urdma_ipc::ControlClient;

use crate::types::LANES_MAX;

/// Engines of one process at most, one per instance, each with its lanes; sockets beyond that stay
/// open in children.
const SOCKETS_MAX: usize = 16 * (1 + LANES_MAX);

/// How many forks lie between this process and the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between this process and the one that loaded the library.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Sockets that a forked child must close, so that urdmad sees the end of the parent.
static SOCKETS: [SocketEntry; SOCKETS_MAX] = [const { SocketEntry::EMPTY }; SOCKETS_MAX];

/// A socket: its descriptor, -1 for none, and what the kernel has behind that.
struct SocketEntry {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl SocketEntry {
    #[allow(clippy::declare_interior_mutable_const)] // the initial value of a static
    const EMPTY: Self = Self {
        fd: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
    };
    /// Being filled in.
    const CLAIMED: RawFd = -2;

    /// Claims a free place for a socket.
    fn take(fd: RawFd, (device, inode): (u64, u64)) -> Option<&'static Self> {
        let claim = |place: &&Self| {
            let claimed =
                place
                    .fd
                    .compare_exchange(-1, Self::CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        };
        let place = SOCKETS.iter().find(claim)?;
        place.device.store(device, Ordering::Relaxed);
        place.inode.store(inode, Ordering::Relaxed);
        place.fd.store(fd, Ordering::Release);
        Some(place)
    }

    /// In a forked child: closes its copy of the socket, unless the program has put something else
    /// in its place.
    fn close_copy(&self) {
        let fd = self.fd.swap(-1, Ordering::Acquire);
        let socket = (
            self.device.load(Ordering::Relaxed),
            self.inode.load(Ordering::Relaxed),
        );
        if fd >= 0 && identity(fd) == Some(socket) {
            // The C library's close is a cancellation point.
            // SAFETY: the descriptor is the child's copy of a socket that is not used in a child:
            // every call refuses in a fork.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

extern "C" fn in_forked_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    SOCKETS.iter().for_each(SocketEntry::close_copy);
}

/// Registers the handler that counts forks, once.
pub(crate) fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded, and does only
        // what may be done in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    });
}

/// An engine's control socket.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    client: ManuallyDrop<ControlClient>,
    mark: ManuallyDrop<Mark>,
    socket: Option<(u64, u64)>,
    place: Option<&'static SocketEntry>,
    forks: u32,
    /// The message about the closed socket has been printed.
    is_reported: AtomicBool,
}

impl std::fmt::Debug for SocketEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SocketEntry").field(&self.fd).finish()
    }
}

impl ControlSocket {
    /// Takes over the client.
    pub(crate) fn new(client: ControlClient) -> Self {
        let fd = client.as_fd().as_raw_fd();
        let socket = identity(fd);
        Self {
            client: ManuallyDrop::new(client),
            mark: ManuallyDrop::new(Mark::new(fd)),
            socket,
            place: socket.and_then(|socket| SocketEntry::take(fd, socket)),
            forks: forks(),
            is_reported: AtomicBool::new(false),
        }
    }

    /// The client; None, after a message on standard error, when the program has closed the socket:
    /// the descriptor may then be another file of the program.
    pub(super) fn client(&self) -> Option<&ControlClient> {
        if self.is_intact() {
            return Some(&self.client);
        }
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            let fd = self.client.as_fd().as_raw_fd();
            eprintln!(
                "urdma: the program has closed descriptor {fd}, its connection to urdmad: the \
                 device is lost; close only what you have opened"
            );
        }
        None
    }

    fn is_intact(&self) -> bool {
        self.forks == forks() && identity(self.client.as_fd().as_raw_fd()) == self.socket
    }
}

impl Drop for ControlSocket {
    /// A socket that was closed already, by the program or in this forked child, is not closed
    /// again: its number may have been given to something else.
    fn drop(&mut self) {
        if !self.is_intact() {
            return;
        }
        if let Some(place) = self.place {
            place.fd.store(-1, Ordering::Release);
        }
        // SAFETY: dropped once, here, and before the client, whose descriptor it marks.
        unsafe { ManuallyDrop::drop(&mut self.mark) };
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.client) };
    }
}
