//! Signals of a thread of the application that runs the engine in a call in which it
//! sleeps. They are blocked while the thread has locks, since a handler may leave the call with
//! siglongjmp(3), and while it would not notice that a handler has run.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use urdma_abi::signals::{bit, change_mask, Set, ALL, SET_OCTETS};
use urdma_abi::spared::Spared;

/// What the delivery of blocked signals means for a call that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// There was none.
    Nothing,
    /// The call goes on.
    Restarts,
    /// The call fails with EINTR.
    Interrupts,
}

/// Signals are blocked in this thread while it lives.
pub(crate) struct Blocked {
    before: Set,
    of_this_thread: PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks all signals that can be blocked.
    pub(crate) fn new() -> Self {
        Self {
            before: change_mask(libc::SIG_BLOCK, ALL),
            of_this_thread: PhantomData,
        }
    }

    /// The signals that the caller had blocked.
    pub(crate) fn before(&self) -> u64 {
        self.before
    }

    /// Runs `sleep` with the signals of the caller.
    pub(crate) fn unblocked<T>(&self, sleep: impl FnOnce() -> T) -> T {
        let during = change_mask(libc::SIG_SETMASK, self.before);
        let slept = sleep();
        change_mask(libc::SIG_SETMASK, during);
        slept
    }

    /// Delivers the signals that have come meanwhile.
    pub(crate) fn deliver(&self) -> Delivered {
        let pending = pending() & !self.before;
        if pending == 0 {
            return Delivered::Nothing;
        }
        let interrupts = (1..=64)
            .filter(|signal| pending & bit(*signal) != 0)
            .any(interrupts_calls);
        self.unblocked(|| ());
        if interrupts {
            Delivered::Interrupts
        } else {
            Delivered::Restarts
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        change_mask(libc::SIG_SETMASK, self.before);
    }
}

/// A descriptor that is readable while a thread has blocked signals pending: for a sleep in a call
/// on descriptors, in which they stay blocked.
#[derive(Debug, Default)]
pub(crate) struct SignalFile(Mutex<Option<Watched>>);

#[derive(Debug)]
struct Watched {
    file: Spared,
    signals: Set,
}

impl SignalFile {
    /// The descriptor, for the signals that the calling thread has not blocked but by `blocked`.
    /// None if the system refuses it.
    pub(crate) fn of(&self, blocked: &Blocked) -> Option<RawFd> {
        let signals = !blocked.before;
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *watched {
            Some(watched) if watched.signals == signals => {}
            Some(watched) => {
                watch(watched.file.as_raw_fd(), signals)?;
                watched.signals = signals;
            }
            none => {
                let fd = watch(-1, signals)?;
                // SAFETY: the call has just opened it.
                let file = unsafe { OwnedFd::from_raw_fd(fd) }.into();
                *none = Some(Watched { file, signals });
            }
        }
        watched.as_ref().map(|watched| watched.file.as_raw_fd())
    }
}

/// Has a descriptor, or a new one for -1, be readable while these signals are pending.
fn watch(fd: RawFd, signals: Set) -> Option<RawFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    let signals = &raw const signals;
    // SAFETY: the set has the size that is named.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, fd, signals, SET_OCTETS, flags) };
    RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)
}

fn pending() -> Set {
    let mut set: Set = 0;
    // SAFETY: the set has the size that is named.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, SET_OCTETS) };
    set
}

/// Whether the signal has a handler after which system calls are not restarted.
fn interrupts_calls(signal: i32) -> bool {
    // SAFETY: zeroes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` is writable, and nothing is changed.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } != 0;
    let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    !failed && has_handler && action.sa_flags & libc::SA_RESTART == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn handle(_: i32) {}

    /// Sends itself a signal while signals are blocked.
    fn delivered(signal: i32, flags: i32) -> Delivered {
        // SAFETY: zeroes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as extern "C" fn(i32) as usize;
        action.sa_flags = flags;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        let blocked = Blocked::new();
        // SAFETY: the thread lives.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
        let delivered = blocked.deliver();
        assert_eq!(blocked.deliver(), Delivered::Nothing);
        delivered
    }

    #[test]
    fn handler_interrupts_a_call_unless_it_restarts_calls() {
        assert_eq!(delivered(libc::SIGUSR1, 0), Delivered::Interrupts);
        assert_eq!(
            delivered(libc::SIGUSR2, libc::SA_RESTART),
            Delivered::Restarts
        );
        assert_eq!(Blocked::new().deliver(), Delivered::Nothing);
    }
}
