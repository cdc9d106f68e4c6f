//! Closing of sockets without lingering: the kernel closes the files of a thread that ends without
//! that. So a thread with a descriptor table of its own, in which the sockets are, ends.
//!
//! That thread ends when all files of its table are closed, and a file of a FUSE file system may
//! hold that up. One thread therefore has a table without any other files for as long as urdmad
//! runs, and receives the sockets; the tables of those that end are copies of that one. It waits
//! for none of them: each group of sockets has a pipe whose write end is closed with it. Its
//! descriptors do not count as those of urdmad, which may have none left.

#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    recv, recvmsg, sendmsg, socketpair, AddressFamily, ControlMessage, ControlMessageOwned,
    MsgFlags, SockFlag, SockType,
};
use nix::unistd::{dup3, pipe2};

/// Sockets that end together.
pub(super) const GROUP_MAX: usize = 63;
/// After how long is tried again what the kernel has refused.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_MS: u16 = 10;
/// The first descriptor that is no standard one.
const FIRST: libc::c_uint = 3;

/// A number that the caller gives sockets that end together.
pub(super) type GroupId = u64;

/// What closes sockets.
#[derive(Debug)]
pub(super) struct Ending(Option<Apart>);

/// The connection to the thread with a table of its own, which writes the numbers of groups that
/// are closed to the socket.
#[derive(Debug)]
struct Apart {
    socket: OwnedFd,
    /// Says of each packet that its sender has no copies of the descriptors any more.
    given: Sender<()>,
}

/// How far sockets are closed.
#[derive(Debug)]
pub(super) enum Outcome {
    Closed,
    /// [`Ending::ended`] returns the number of the group when they are.
    Closing,
    /// The kernel does not take them for the time being.
    NotTaken(Vec<OwnedFd>),
}

impl Ending {
    /// Starts that thread. Without one, as on Linux before 5.9, the caller closes sockets, and
    /// lingers.
    pub(super) fn start() -> Self {
        Self(start_apart().ok().flatten())
    }

    /// Has up to [`GROUP_MAX`] sockets closed. This takes no further descriptor of the caller.
    pub(super) fn close(&self, group: GroupId, sockets: Vec<OwnedFd>) -> Outcome {
        let Some(apart) = &self.0 else {
            return Outcome::Closed;
        };
        // That thread may wait for room for a report, and must not be waited for.
        if send(&apart.socket, group, &sockets, MsgFlags::MSG_DONTWAIT).is_err() {
            return Outcome::NotTaken(sockets);
        }
        drop(sockets);
        // That thread ends after this one.
        let _ = apart.given.send(());
        Outcome::Closing
    }

    /// Readable when groups are closed.
    pub(super) fn closed(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|apart| apart.socket.as_fd())
    }

    /// The groups that have been closed since the last call.
    pub(super) fn take_closed(&self) -> Vec<GroupId> {
        let Some(apart) = &self.0 else {
            return Vec::new();
        };
        let next = || {
            let mut octets = [0; size_of::<GroupId>()];
            let received = recv(
                apart.socket.as_raw_fd(),
                &mut octets,
                MsgFlags::MSG_DONTWAIT,
            );
            received.ok().filter(|octets| *octets > 0)?;
            Some(GroupId::from_ne_bytes(octets))
        };
        std::iter::from_fn(next).collect()
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
            let closing = Closing {
                there,
                are_given,
                waiting: None,
                ends: Vec::new(),
            };
            closing.run();
        }
    };
    let spawned = thread::Builder::new().name("urdmad-apart".to_owned());
    spawned.spawn(run).map_err(|_| Errno::EAGAIN)?;
    // Until then the number has to stay open.
    let is_apart = is_started.recv().unwrap_or(false);
    drop(there);
    Ok(is_apart.then_some(Apart { socket, given }))
}

/// The thread with a table of its own. It has no other files, so it must not log, for example.
struct Closing {
    there: OwnedFd,
    are_given: Receiver<()>,
    /// A group that no pipe was left for.
    waiting: Option<(GroupId, Vec<OwnedFd>)>,
    /// The end of a pipe for each group, whose other end is closed with its sockets.
    ends: Vec<(GroupId, OwnedFd)>,
}

impl Closing {
    fn run(mut self) {
        while self.wait() {
            if let Some((group, sockets)) = self.waiting.take() {
                self.close(group, sockets);
            }
        }
    }

    /// Waits for a group to close, and reports those that are closed. False at the end.
    fn wait(&mut self) -> bool {
        // One group waits at most; others stay in the socket.
        let (events, timeout) = match self.waiting {
            None => (PollFlags::POLLIN, PollTimeout::NONE),
            Some(_) => (PollFlags::empty(), PollTimeout::from(RETRY_MS)),
        };
        let mut fds = vec![PollFd::new(self.there.as_fd(), events)];
        let ends = self.ends.iter();
        fds.extend(ends.map(|(_, end)| PollFd::new(end.as_fd(), PollFlags::empty())));
        // Only the kernel's lack of memory is an error.
        let _ = poll(&mut fds, timeout);
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        let mut of_ends = ready[1..].iter();
        let is_closed = |_: &mut (GroupId, OwnedFd)| of_ends.next() == Some(&true);
        for (group, _) in self.ends.extract_if(.., is_closed) {
            if send(&self.there, group, &[], MsgFlags::empty()).is_err() {
                return false;
            }
        }
        if !ready[0] {
            return true;
        }
        match receive(&self.there) {
            Ok(None) => return false,
            Ok(group) => self.waiting = group,
            // Only the kernel's lack of memory is an error.
            Err(_) => return true,
        }
        self.are_given.recv().is_ok()
    }

    fn close(&mut self, group: GroupId, mut sockets: Vec<OwnedFd>) {
        match pipe_below(&mut sockets) {
            Ok((end, held)) => {
                close_by_end(held, sockets);
                self.ends.push((group, end));
            }
            Err(_) => self.waiting = Some((group, sockets)),
        }
    }
}

/// The ends of a pipe for reading and writing. That for writing has a lower number than `sockets`,
/// since the kernel releases the files of a thread that ends in the order of falling numbers.
fn pipe_below(sockets: &mut [OwnedFd]) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (end, mut held) = pipe2(OFlag::O_CLOEXEC)?;
    let lowest = sockets.iter_mut().min_by_key(|socket| socket.as_raw_fd());
    if let Some(lowest) = lowest.filter(|lowest| lowest.as_raw_fd() < held.as_raw_fd()) {
        let copy = lowest.try_clone().map_err(|_| Errno::EMFILE)?;
        dup3(&held, lowest, OFlag::O_CLOEXEC)?;
        held = std::mem::replace(lowest, copy);
    }
    Ok((end, held))
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

/// Closes sockets, and then `held`, in a thread that ends, which is started as soon as possible.
fn close_by_end(held: OwnedFd, sockets: Vec<OwnedFd>) {
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
    drop((sockets, held));
    drop(closed);
}

fn send(to: &OwnedFd, group: GroupId, fds: &[OwnedFd], flags: MsgFlags) -> Result<(), Errno> {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let octets = group.to_ne_bytes();
    let octets = [IoSlice::new(&octets)];
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(to.as_raw_fd(), &octets, control, flags, None).map(|_| ())
}

/// The next group; none at the end.
fn receive(there: &OwnedFd) -> Result<Option<(GroupId, Vec<OwnedFd>)>, Errno> {
    let mut control = nix::cmsg_space!([RawFd; GROUP_MAX]);
    let mut octets = [0; size_of::<GroupId>()];
    let mut parts = [IoSliceMut::new(&mut octets)];
    let (number, flags) = (there.as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
    let message = loop {
        match recvmsg::<()>(number, &mut parts, Some(&mut control), flags) {
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
    let is_end = message.bytes == 0;
    Ok((!is_end).then_some((GroupId::from_ne_bytes(octets), fds)))
}
