//! Closing of sockets without lingering: the kernel closes the files of a thread that ends without
//! that. So a thread with a descriptor table of its own, in which the sockets are, ends.
//!
//! That thread ends when all files of its table are closed, and a file of a FUSE file system may
//! hold that up. One thread therefore has a table without any other files for as long as urdmad
//! runs, and receives the sockets; the tables of those that end are copies of that one.

#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{channel, sync_channel, Sender};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    recvmsg, sendmsg, socketpair, AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags,
    SockFlag, SockType,
};

/// Sockets that end together.
pub(super) const GROUP_MAX: usize = 63;
/// With the end of a pipe.
const FDS_MAX: usize = GROUP_MAX + 1;
/// After how long a thread is tried again that could not be started.
const RETRY: Duration = Duration::from_millis(10);
/// The first descriptor that is no standard one.
const FIRST: libc::c_uint = 3;

/// What closes sockets.
#[derive(Debug)]
pub(super) struct Ending(Option<Apart>);

/// The connection to the thread with a table of its own.
#[derive(Debug)]
struct Apart {
    socket: OwnedFd,
    /// Says of each packet that its sender has no copies of the descriptors any more.
    given: Sender<()>,
}

impl Ending {
    /// Starts that thread. Without one, as on Linux before 5.9, sockets are closed all the same.
    pub(super) fn start() -> Self {
        Self(start_apart().ok().flatten())
    }

    /// Closes sockets, and `held` with them, of which no copy is left then. A kernel that cannot
    /// copy the descriptor table has the caller linger.
    pub(super) fn close(&self, held: OwnedFd, sockets: Vec<OwnedFd>) {
        // In its new table a descriptor has the lower number the earlier it comes, and the kernel
        // releases those with lower numbers last.
        let fds: Vec<OwnedFd> = std::iter::once(held).chain(sockets).collect();
        let apart = self.0.as_ref();
        match apart.filter(|apart| send(&apart.socket, &fds).is_ok()) {
            Some(apart) => {
                drop(fds);
                // That thread ends after this one.
                let _ = apart.given.send(());
            }
            None => close_by_end(fds),
        }
    }
}

fn start_apart() -> Result<Option<Apart>, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (socket, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let (started, is_started) = sync_channel(1);
    let (given, are_given) = channel();
    let number = there.as_raw_fd();
    let run = move || {
        let is_apart = keep_only(number);
        let _ = started.send(is_apart);
        if is_apart {
            // SAFETY: the only owner of this number in the table of this thread.
            let there = unsafe { OwnedFd::from_raw_fd(number) };
            // This thread has no other files, so it must not log, for example.
            while let Ok(fds) = receive(&there) {
                if fds.is_empty() || are_given.recv().is_err() {
                    return;
                }
                close_by_end(fds);
            }
        }
    };
    let spawned = thread::Builder::new().name("urdmad-apart".to_owned());
    spawned.spawn(run).map_err(|_| Errno::EAGAIN)?;
    // Until then the number has to stay open.
    let is_apart = is_started.recv().unwrap_or(false);
    drop(there);
    Ok(is_apart.then_some(Apart { socket, given }))
}

/// Gives the calling thread a descriptor table of its own, with nothing but the standard
/// descriptors and `number`; whether that succeeded.
fn keep_only(number: RawFd) -> bool {
    let Ok(number) = libc::c_uint::try_from(number) else {
        return false;
    };
    let below = number > FIRST;
    copy_descriptor_table()
        && (!below || close_range(FIRST, number - 1, 0))
        && close_range(number + 1, libc::c_uint::MAX, 0)
}

/// Gives the calling thread a descriptor table of its own, with copies of all descriptors; whether
/// that succeeded.
fn copy_descriptor_table() -> bool {
    const BEYOND_ALL: libc::c_uint = libc::c_uint::MAX;
    close_range(BEYOND_ALL, BEYOND_ALL, libc::CLOSE_RANGE_UNSHARE)
}

/// Linux 5.9.
fn close_range(first: libc::c_uint, last: libc::c_uint, flags: libc::c_uint) -> bool {
    // SAFETY: the call takes three integers and touches no memory. What it closes are copies in the
    // table of the calling thread, which uses none of them.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}

/// Closes files in a thread that ends, which is started as soon as possible.
fn close_by_end(fds: Vec<OwnedFd>) {
    let (is_copied, closed) = loop {
        let (copied, is_copied) = sync_channel::<()>(1);
        let (closed, are_closed) = sync_channel::<()>(0);
        let end = move || {
            let has_copies = copy_descriptor_table();
            drop(copied);
            if has_copies {
                let _ = are_closed.recv();
            }
        };
        let spawned = thread::Builder::new().name("urdmad-end".to_owned());
        match spawned.spawn(end) {
            Ok(_) => break (is_copied, closed),
            Err(_) => thread::sleep(RETRY),
        }
    };
    let _ = is_copied.recv();
    drop(fds);
    drop(closed);
}

fn send(apart: &OwnedFd, fds: &[OwnedFd]) -> Result<(), Errno> {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let octets = [IoSlice::new(&[0])];
    sendmsg::<()>(
        apart.as_raw_fd(),
        &octets,
        &rights,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .map(|_| ())
}

/// The descriptors of the next packet; none at the end.
fn receive(there: &OwnedFd) -> Result<Vec<OwnedFd>, Errno> {
    let mut control = nix::cmsg_space!([RawFd; FDS_MAX]);
    let mut octet = [0];
    let mut octets = [IoSliceMut::new(&mut octet)];
    let (number, flags) = (there.as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
    let message = loop {
        match recvmsg::<()>(number, &mut octets, Some(&mut control), flags) {
            Err(Errno::EINTR) => {}
            message => break message?,
        }
    };
    let mut fds = Vec::new();
    for rights in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = rights {
            // SAFETY: new descriptors of this thread's table, which have no other owner.
            fds.extend(
                numbers
                    .into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    Ok(fds)
}
