//! Descriptors of this library: they have high numbers, so that those of the program are what it
//! expects; the stand-in keeps the program from closing them; a forked child closes its copies.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Release, SeqCst};

use urdma_abi::spared::{Mark, Spared};

use crate::real;
use crate::signals::Masked;

/// The least numbers that are tried.
const FROM: [usize; 3] = [600, 64, 3];

static ALL: Spin<Vec<RawFd>> = Spin::new(Vec::new());

/// A lock that a forked child can release. No handler of a signal runs in the thread that has it:
/// the handler might fork.
#[derive(Debug)]
pub(crate) struct Spin<T> {
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used with the lock only.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            is_locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Uses the value, unless another thread does.
    pub(crate) fn try_with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _masked = Masked::new();
        if self.is_locked.swap(true, SeqCst) {
            return None;
        }
        // SAFETY: this thread has the lock.
        let result = use_it(unsafe { &mut *self.value.get() });
        self.unlock();
        Some(result)
    }

    /// Uses the value.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        let _masked = Masked::new();
        self.lock();
        // SAFETY: this thread has the lock.
        let result = use_it(unsafe { &mut *self.value.get() });
        self.unlock();
        result
    }

    /// Locks; for a fork, in which signals are blocked.
    pub(crate) fn lock(&self) {
        while self.is_locked.swap(true, SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Releases what this thread has locked, or the thread that has forked.
    pub(crate) fn unlock(&self) {
        self.is_locked.store(false, Release);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Own(Spared);

impl Own {
    /// A copy of a descriptor.
    pub(crate) fn copy(fd: BorrowedFd<'_>) -> Option<Self> {
        // SAFETY: a new descriptor.
        let copy = unsafe { OwnedFd::from_raw_fd(high_copy(fd.as_raw_fd())?) };
        enlist(copy.as_raw_fd());
        Some(Self(Spared::from(copy)))
    }

    /// An eventfd that does not wait.
    pub(crate) fn bell() -> Option<Self> {
        // SAFETY: the call takes integers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: a new descriptor.
        let low = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
        use std::os::fd::AsFd;
        Self::copy(low.as_fd())
    }
}

impl AsRawFd for Own {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // Before its number can be another file's.
        strike(self.0.as_raw_fd());
    }
}

/// Marks a descriptor of this library that another part of it has opened.
pub(crate) struct Marked(RawFd, Option<Mark>);

impl Marked {
    pub(crate) fn new(fd: RawFd) -> Self {
        enlist(fd);
        Self(fd, Some(Mark::new(fd)))
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        strike(self.0);
        drop(self.1.take());
    }
}

/// A copy of a descriptor with a high number.
pub(crate) fn high_copy(fd: c_int) -> Option<c_int> {
    FROM.into_iter().find_map(|from| {
        let from = from as *mut c_void;
        // SAFETY: the command takes an int.
        let copy = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, from) };
        (copy >= 0).then_some(copy)
    })
}

fn enlist(fd: RawFd) {
    ALL.with(|all| all.push(fd));
}

fn strike(fd: RawFd) {
    ALL.with(|all| all.retain(|known| *known != fd));
}

/// A fork is about to happen.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn before_fork() {
    ALL.lock();
}

/// It has happened.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn after_fork() {
    ALL.unlock();
}

/// It has happened, and this is the child.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn in_child() {
    ALL.unlock();
    // No allocation, which a child must not do: the list keeps its memory.
    ALL.with(|all| {
        for fd in all.drain(..) {
            close(fd);
        }
    });
}

fn close(fd: c_int) {
    // SAFETY: a copy of a descriptor of this library, which the child does not use.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}
