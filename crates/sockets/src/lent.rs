//! What forked children have of this process: sockets and epoll sets from before a fork get no
//! rings while another process may use them.
//!
//! The child has the write end of a pipe, which closes when the child, and what it forks, have
//! ended or executed another program; this process looks at the read end. A child that hands an
//! inherited descriptor on writes an octet: then the descriptors stay lent.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use urdma_abi::spared::Mark;

use crate::own::{Own, Spin};
use crate::real;

/// Forks of processes above a child that it can tell of a descriptor that it hands on.
const DEPTH_MAX: usize = 16;

/// A fork whose child may have descriptors.
struct Lend {
    /// How many forks there were, this one among them.
    number: u64,
    /// `None` if there was no descriptor for it.
    pipe: Option<Own>,
    /// A child has handed a descriptor on.
    is_kept: bool,
}

static LENDS: Spin<Vec<Lend>> = Spin::new(Vec::new());
/// Forks at which there were sockets or sets.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// The number of the last fork in [`LENDS`]; 0 without one.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The write end of a fork that is about to happen.
static NEXT_PIPE: AtomicI32 = AtomicI32::new(-1);
/// Write ends of the forks from which this process comes.
static INHERITED: [AtomicI32; DEPTH_MAX] = [const { AtomicI32::new(-1) }; DEPTH_MAX];

/// How many forks there were: what has its descriptor from now on is of this process alone.
pub(crate) fn forks() -> u64 {
    FORKS.load(SeqCst)
}

/// Whether another process may have a descriptor that was made after the first `forks` forks.
pub(crate) fn is_lent(forks: u64) -> bool {
    if forks >= LATEST.load(SeqCst) {
        return false;
    }
    look();
    forks < LATEST.load(SeqCst)
}

/// Looks whether the last children have ended: the others are of earlier forks.
#[cold]
fn look() {
    LENDS.try_with(|lends| {
        while lends.last_mut().is_some_and(|lend| !lend.is_held()) {
            lends.pop();
        }
        LATEST.store(lends.last().map_or(0, |lend| lend.number), SeqCst);
    });
}

impl Lend {
    fn is_held(&mut self) -> bool {
        let Some(pipe) = self.pipe.as_ref().filter(|_| !self.is_kept) else {
            return true;
        };
        let mut list = libc::pollfd {
            fd: pipe.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let before = real::errno();
        // SAFETY: a list of one entry.
        unsafe { real::poll(&raw mut list, 1, 0) };
        real::set_errno(before);
        self.is_kept = list.revents & libc::POLLIN != 0;
        self.is_kept || list.revents == 0
    }
}

/// A fork is about to happen. From now on nothing that there is is offered.
pub(crate) fn before_fork() {
    let ends = pipe();
    if let Some((_, write_end)) = &ends {
        NEXT_PIPE.store(*write_end, SeqCst);
    }
    LENDS.with(|lends| {
        let number = FORKS.fetch_add(1, SeqCst) + 1;
        LATEST.store(number, SeqCst);
        lends.retain_mut(Lend::is_held);
        lends.push(Lend {
            number,
            pipe: ends.map(|(read_end, _)| read_end),
            is_kept: false,
        });
    });
}

/// The read end, and the write end, which is not one of the descriptors that a child closes.
fn pipe() -> Option<(Own, c_int)> {
    let mut fds = [0; 2];
    // SAFETY: an array of two.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return None;
    }
    let [from, to] = fds;
    // SAFETY: open until the end of this function.
    let read_end = Own::copy(unsafe { BorrowedFd::borrow_raw(from) });
    let write_end = crate::own::high_copy(to);
    close(from);
    close(to);
    if let (None, Some(write_end)) = (&read_end, write_end) {
        close(write_end);
    }
    Some((read_end?, write_end?))
}

/// The last thing before a fork.
pub(crate) fn lock() {
    LENDS.lock();
}

/// A fork has happened, and this is the parent.
pub(crate) fn after_fork() {
    LENDS.unlock();
    let write_end = NEXT_PIPE.swap(-1, SeqCst);
    if write_end >= 0 {
        close(write_end);
    }
}

/// A fork has happened, and this is the child. Nothing is allocated or freed; the read ends were
/// closed with all descriptors of this library.
pub(crate) fn in_child() {
    LENDS.unlock();
    LENDS.with(|lends| std::mem::forget(std::mem::take(lends)));
    LATEST.store(0, SeqCst);
    let write_end = NEXT_PIPE.swap(-1, SeqCst);
    if write_end < 0 {
        return;
    }
    // The program does not close it.
    std::mem::forget(Mark::new(write_end));
    let free = INHERITED.iter().find(|pipe| pipe.load(SeqCst) < 0);
    match free {
        Some(free) => free.store(write_end, SeqCst),
        None => tell(write_end),
    }
}

/// This process hands inherited descriptors on: they stay lent.
#[cold]
pub(crate) fn keep() {
    let before = real::errno();
    let pipes = INHERITED.iter().map(|pipe| pipe.load(SeqCst));
    pipes.filter(|pipe| *pipe >= 0).for_each(tell);
    real::set_errno(before);
}

/// Whether this process is a child that may have descriptors of its parent's.
pub(crate) fn is_child() -> bool {
    INHERITED[0].load(SeqCst) >= 0
}

fn tell(pipe: c_int) {
    // SAFETY: one octet. A pipe that is full has been written to.
    unsafe { libc::syscall(libc::SYS_write, pipe, [0_u8].as_ptr(), 1_usize) };
}

fn close(fd: c_int) {
    // SAFETY: a descriptor of this module.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}
