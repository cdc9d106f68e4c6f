//! What forked children have of this process: sockets and epoll sets from before a fork get no
//! rings while another process may use them.
//!
//! The child has the write end of a pipe, which closes when the child, and what it forks, have
//! ended or executed another program; this process looks at the read end. A child that hands an
//! inherited descriptor on writes an octet: then the descriptors stay lent.
//!
//! A socket that this process alone had at the fork is in the [`Share`] of both beside: it is the
//! child's when this process has closed it, and this process's when the child has.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

use urdma_abi::signals::{bit, change_mask, Set, ALL};
use urdma_abi::spared::Mark;

use crate::own::{Own, Spin};
use crate::real;
use crate::shares::{Share, Side};

/// The number of a fork that happens: what is made meanwhile, its child may have too.
const HAPPENS: u64 = u64::MAX;

/// How often a close looks whether no fork happens.
const GIVE_BACK_TRIES: u32 = 1000;

/// Forks of processes above a child that it can tell of a descriptor that it hands on.
const DEPTH_MAX: usize = 16;

/// A fork whose child may have descriptors.
struct Lend {
    /// Which one of this process's it is, from 1 on.
    id: u64,
    /// How many forks there were, this one among them; [`HAPPENS`] until it is known.
    number: u64,
    /// `None` if there was no descriptor for it.
    pipe: Option<Own>,
    /// That for the child, until the fork has happened; -1 without one.
    write_end: c_int,
    /// `None` without a socket or memory.
    share: Option<Share>,
}

static LENDS: Spin<Vec<Lend>> = Spin::new(Vec::new());
/// Forks that have happened.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// The number of the last fork in [`LENDS`]; 0 without one.
static LATEST: AtomicU64 = AtomicU64::new(0);
/// The number of the last fork whose child has handed a descriptor on; 0 without one.
static KEPT: AtomicU64 = AtomicU64::new(0);
/// Forks that happen now.
static BEGUN: AtomicU32 = AtomicU32::new(0);
/// Whether this process has ever begun to make a socket or a set.
static IS_USED: AtomicBool = AtomicBool::new(false);
/// Ids of lends that were given.
static IDS: AtomicU64 = AtomicU64::new(0);
/// What this process shares with the one that has forked it.
static OF_PARENT: Spin<Option<Share>> = Spin::new(None);
/// Write ends of the forks from which this process comes.
static INHERITED: [AtomicI32; DEPTH_MAX] = [const { AtomicI32::new(-1) }; DEPTH_MAX];

thread_local! {
    /// The lend of the fork that this thread is about to do; 0 without one. Other threads may fork
    /// at the same time.
    static NEXT: Cell<u64> = const { Cell::new(0) };
    /// The signals that this thread had blocked before its fork.
    static MASK: Cell<Set> = const { Cell::new(0) };
}

/// How many forks there were: what has its descriptor from now on is of this process alone. A
/// socket or a set is about to be made.
pub(crate) fn forks() -> u64 {
    if !IS_USED.load(SeqCst) && !IS_USED.swap(true, SeqCst) {
        // A fork that has begun may not have a pipe: what is made before its end stays lent.
        let begun = u64::from(BEGUN.load(SeqCst));
        if begun != 0 {
            KEPT.fetch_max(FORKS.load(SeqCst) + begun, SeqCst);
        }
    }
    FORKS.load(SeqCst)
}

/// Whether this process has ever begun to make a socket or a set.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn is_used() -> bool {
    IS_USED.load(SeqCst)
}

/// Whether another process may have a descriptor that was made after the first `forks` forks.
pub(crate) fn is_lent(fd: c_int, forks: u64) -> bool {
    let is_lent = forks < LATEST.load(SeqCst) && look(fd, forks);
    is_lent || forks < KEPT.load(SeqCst)
}

/// The same, and the forks whose children have ended are forgotten.
#[cold]
fn look(fd: c_int, forks: u64) -> bool {
    let is_lent = LENDS.try_with(|lends| {
        let mut at = lends.len();
        while at > 0 && lends[at - 1].number > forks {
            at -= 1;
            if lends[at].is_given_back(fd) {
                continue;
            }
            if lends[at].is_held() {
                return true;
            }
            lends.remove(at);
        }
        LATEST.store(lends.last().map_or(0, |lend| lend.number), SeqCst);
        false
    });
    is_lent.unwrap_or(true)
}

/// Whether the process that has forked this one has closed an inherited socket.
pub(crate) fn is_left(fd: c_int) -> bool {
    let is_left = |share: &mut Option<Share>| {
        let share = share.as_ref();
        share.is_some_and(|share| share.is_of(fd, Side::Child))
    };
    OF_PARENT.try_with(is_left).unwrap_or(false)
}

/// Whether an inherited socket may be this process's later.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn may_be_left(fd: c_int) -> bool {
    let may_be = |share: &mut Option<Share>| {
        let share = share.as_ref();
        share.is_some_and(|share| share.is_lent(fd, Side::Child))
    };
    OF_PARENT.try_with(may_be).unwrap_or(false)
}

/// The only descriptor of a socket that was made after the first `forks` forks is about to be
/// closed, and no call on it is in progress. Without effect if another thread forks for long, or
/// this one, whose handler of a signal closes the socket.
pub(crate) fn give_back(fd: c_int, forks: u64) {
    if forks >= LATEST.load(SeqCst) {
        return;
    }
    let is_done = || {
        let done = LENDS.try_with(|lends| {
            let lends = lends.iter().filter(|lend| lend.number > forks);
            let shares = lends.filter_map(|lend| lend.share.as_ref());
            shares.for_each(|share| share.give_back(fd, Side::Parent));
        });
        done.is_some()
    };
    for _ in 0..GIVE_BACK_TRIES {
        if is_done() {
            return;
        }
        std::thread::yield_now();
    }
}

/// The same of an inherited socket.
pub(crate) fn give_back_inherited(fd: c_int) {
    OF_PARENT.try_with(|share| {
        if let Some(share) = share {
            share.give_back(fd, Side::Child);
        }
    });
}

/// The lend that has an id.
fn lend_of(lends: &mut [Lend], id: u64) -> Option<&mut Lend> {
    lends.iter_mut().find(|lend| lend.id == id)
}

impl Lend {
    /// The fork has happened.
    fn close_write_end(&mut self) {
        let write_end = std::mem::replace(&mut self.write_end, -1);
        if write_end >= 0 {
            close(write_end);
        }
    }

    /// Whether the child has closed a socket.
    fn is_given_back(&self, fd: c_int) -> bool {
        let share = self.share.as_ref();
        share.is_some_and(|share| share.is_of(fd, Side::Parent))
    }

    /// Whether the child, or what it has forked, may have descriptors. That it hands one on is
    /// noted apart: a lend takes a descriptor and memory.
    fn is_held(&self) -> bool {
        let has_told = match &self.pipe {
            Some(pipe) => {
                let events = poll(pipe.as_raw_fd());
                if events & libc::POLLIN == 0 {
                    return events == 0;
                }
                true
            }
            None => true,
        };
        if has_told && self.number != HAPPENS {
            KEPT.fetch_max(self.number, SeqCst);
        }
        self.number == HAPPENS
    }
}

/// The events that poll(2) reports of the read end of a pipe.
fn poll(pipe: c_int) -> libc::c_short {
    let mut list = libc::pollfd {
        fd: pipe,
        events: libc::POLLIN,
        revents: 0,
    };
    let before = real::errno();
    // SAFETY: a list of one entry.
    unsafe { real::poll(&raw mut list, 1, 0) };
    real::set_errno(before);
    list.revents
}

/// A fork begins. Until its end no handler of a signal runs in this thread: it might fork.
pub(crate) fn begin_fork() {
    // The diagnosis needs SIGSYS.
    let signals = ALL & !bit(libc::SIGSYS);
    MASK.set(change_mask(libc::SIG_BLOCK, signals));
    BEGUN.fetch_add(1, SeqCst);
}

/// A fork has ended, in the parent or in the child.
pub(crate) fn end_fork() {
    change_mask(libc::SIG_SETMASK, MASK.get());
}

/// A fork is about to happen. From now on nothing that there is is offered. `len`: one more than
/// the highest descriptor of a socket.
pub(crate) fn before_fork(len: usize) {
    let share = Share::new(len);
    let id = IDS.fetch_add(1, SeqCst) + 1;
    NEXT.set(id);
    LENDS.with(|lends| {
        LATEST.store(HAPPENS, SeqCst);
        lends.retain(Lend::is_held);
        // A child of another thread knows the write end, and closes it: see `in_child`.
        let (pipe, write_end) = pipe().unzip();
        let write_end = write_end.unwrap_or(-1);
        lends.push(Lend {
            id,
            number: HAPPENS,
            pipe,
            write_end,
            share,
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

/// The last thing before a fork, whose child may be left these sockets: descriptors, and how many
/// forks there were when they were made. What an earlier child has beside this process, this one
/// has too.
pub(crate) fn lock(sockets: impl Iterator<Item = (c_int, u64)>) {
    LENDS.with(|lends| {
        let id = NEXT.get();
        // Which of two forks is which is not known.
        let is_known = BEGUN.load(SeqCst) == 1;
        let mut next = lend_of(lends, id).filter(|_| is_known);
        let mut share = next.as_mut().and_then(|lend| lend.share.take());
        let earlier = || lends.iter().filter(|lend| lend.id != id);
        if let Some(share) = &mut share {
            let kept = KEPT.load(SeqCst);
            for (fd, forks) in sockets.filter(|(_, forks)| *forks >= kept) {
                let mut lent = earlier().filter(|lend| lend.number > forks);
                if lent.all(|lend| lend.is_given_back(fd)) {
                    share.lend(fd);
                }
            }
        }
        let shares = earlier().filter_map(|lend| lend.share.as_ref());
        shares.for_each(Share::lend_on);
        if let Some(next) = lend_of(lends, id).filter(|_| share.is_some()) {
            next.share = share;
        }
    });
    LENDS.lock();
}

/// A fork has happened, and this is the parent.
pub(crate) fn after_fork() {
    LENDS.unlock();
    LENDS.with(|lends| {
        if let Some(lend) = lend_of(lends, NEXT.replace(0)) {
            lend.close_write_end();
            lend.share.iter().for_each(Share::keep_from_children);
        }
        let number = FORKS.fetch_add(1, SeqCst) + 1;
        // Which of several forks has happened is not known.
        if BEGUN.fetch_sub(1, SeqCst) == 1 {
            let begun = lends.iter_mut().filter(|lend| lend.number == HAPPENS);
            begun.for_each(|lend| lend.number = number);
            LATEST.store(lends.last().map_or(0, |lend| lend.number), SeqCst);
        }
    });
}

/// A fork has happened, and this is the child. Nothing is allocated or freed; the read ends were
/// closed with all descriptors of this library.
pub(crate) fn in_child() {
    LENDS.unlock();
    let (write_end, share) = LENDS.with(|lends| {
        let own = lend_of(lends, NEXT.replace(0));
        let own = own.map(|lend| {
            (
                std::mem::replace(&mut lend.write_end, -1),
                lend.share.take(),
            )
        });
        lends.iter_mut().for_each(Lend::close_write_end);
        std::mem::forget(std::mem::take(lends));
        own.unwrap_or((-1, None))
    });
    if let Some(share) = &share {
        share.keep_from_children();
    }
    OF_PARENT.unlock();
    // That of the parent with its own parent is not mapped here.
    OF_PARENT.with(|of_parent| std::mem::forget(std::mem::replace(of_parent, share)));
    for of_parent in [&LATEST, &KEPT] {
        of_parent.store(0, SeqCst);
    }
    BEGUN.store(0, SeqCst);
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

#[cfg(test)]
pub(crate) mod tests;
