//! Signals, whose handlers must not run while a thread has the lock of a direction: a handler may
//! use the same connection, or not return.
//!
//! The kernel calls [`on_signal`] for every handler that the program installs. In an attempt, and
//! wherever else the thread holds [`Masked`], it puts the signal off ([`urdma_abi::handlers`]), so
//! that an attempt needs no system call; at other times it calls the handler.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{compiler_fence, AtomicU32, Ordering};

use libc::{sigaction, siginfo_t};
use urdma_abi::cancel::Disabled;
use urdma_abi::handlers::Handlers;
use urdma_abi::signals::{change_mask, Set, ALL};

use crate::local::{Here, Local};
use crate::{diagnosed, real};

/// The program's handlers.
pub(crate) static HANDLERS: Handlers = Handlers::new(on_signal, install);

/// sigaction(2), but for what the diagnosis needs of signals.
unsafe fn install(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    // SAFETY: null or the caller's.
    let mut action = unsafe { new.as_ref() }.copied();
    if let Some(action) = action.as_mut() {
        diagnosed::keep_unblocked(&mut action.sa_mask);
    }
    let new = match &action {
        Some(action) if !diagnosed::is_own(signal) => std::ptr::from_ref(action),
        _ => std::ptr::null(),
    };
    // SAFETY: null or an action of ours, and the caller's place for the old one.
    unsafe { real::sigaction(signal, new, old) }
}

/// What may have left calls without their end: handlers that have not returned, and threads that
/// were cancelled.
static CALL_LEAVERS: AtomicU32 = AtomicU32::new(0);

/// A thread is about to be cancelled.
pub(crate) fn note_cancelled() {
    CALL_LEAVERS.fetch_add(1, Ordering::SeqCst);
}

/// Whether calls that were in progress may have been left without their end.
pub(crate) fn has_left_calls() -> bool {
    CALL_LEAVERS.load(Ordering::SeqCst) != 0 || HANDLERS.has_direct()
}

/// None; those whose time has a limit, which each handler ends (signal(7)); all, which a handler
/// ends that was installed without `SA_RESTART`.
const NONE: u32 = 0;
const LIMITED: u32 = 1;
const EACH: u32 = 2;

/// Nothing moves over this change, which the thread's handlers see.
#[inline]
fn set_depth(local: &Local, depth: u32) {
    compiler_fence(Ordering::SeqCst);
    local.depth.store(depth, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Runs the handlers of signals that were put off. They may reach cancellation points, with the
/// frames of the call below them.
#[cold]
fn deliver(local: &Local) {
    let _uncancelled = Disabled::new();
    local.put_off.deliver();
}

/// Handlers are put off in this thread while it lives.
pub(crate) struct Held(Here);

/// No handler runs in this thread while it lives.
pub(crate) struct Masked {
    /// The signals that were blocked before, if this has blocked all.
    before: Option<Set>,
    /// Dropped last.
    held: Held,
}

impl Masked {
    pub(crate) fn new() -> Self {
        Self::begin(HANDLERS.has_direct())
    }

    /// Nor does a signal interrupt a sleep.
    pub(crate) fn sleeping() -> Self {
        Self::begin(true)
    }

    /// Whether a handler runs when this is dropped that was put off.
    pub(crate) fn has_put_off(&self) -> bool {
        self.held.0.local().put_off.has_any()
    }

    #[inline]
    fn begin(does_block: bool) -> Self {
        let held = Held::begin();
        let before = does_block.then(|| change_mask(libc::SIG_BLOCK, ALL));
        Self { before, held }
    }
}

impl Drop for Masked {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            change_mask(libc::SIG_SETMASK, before);
        }
    }
}

impl Held {
    /// [`Masked`], or `None` if that needs a system call.
    #[inline]
    pub(crate) fn at_once() -> Option<Self> {
        (!HANDLERS.has_direct()).then(Self::begin)
    }

    #[inline]
    fn begin() -> Self {
        let here = Here::new();
        let local = here.local();
        set_depth(local, local.depth.load(Ordering::Relaxed) + 1);
        Self(here)
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        let local = self.0.local();
        let depth = local.depth.load(Ordering::Relaxed) - 1;
        set_depth(local, depth);
        if depth == 0 && local.put_off.has_any() {
            deliver(local);
        }
    }
}

/// What the kernel calls for every handler that the program has installed.
unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let here = Here::new();
    let local = here.local();
    let is_masked = local.depth.load(Ordering::Relaxed) > 0;
    // SAFETY: the arguments of the handler.
    if is_masked && unsafe { local.put_off.put_off(signal, info, context) } {
        return;
    }
    let ended = if HANDLERS.does_restart(signal) {
        LIMITED
    } else {
        EACH
    };
    local.ended.fetch_max(ended, Ordering::Relaxed);
    CALL_LEAVERS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the arguments of the handler.
    unsafe { HANDLERS.call(signal, info, context) };
    CALL_LEAVERS.fetch_sub(1, Ordering::SeqCst);
    // A call of the handler has begun anew.
    local.ended.fetch_max(ended, Ordering::Relaxed);
}

/// A call begins that may sleep.
pub(crate) fn begin_call() {
    Here::new().local().ended.store(NONE, Ordering::Relaxed);
}

/// Whether a handler has run since [`begin_call`] that ends the call, so that it does not begin to
/// sleep: any, if its time `is_limited`, or else one that was installed without `SA_RESTART`.
pub(crate) fn has_ended_call(is_limited: bool) -> bool {
    let least = if is_limited { LIMITED } else { EACH };
    Here::new().local().ended.load(Ordering::Relaxed) >= least
}

/// Whether the sleep of a call, which returned `result`, was ended by such a handler. One that the
/// kernel calls itself is not seen here, and may be one.
pub(crate) fn is_interrupted(result: c_int, is_limited: bool) -> bool {
    let is_ended = || has_ended_call(is_limited) || HANDLERS.has_direct();
    result < 0 && real::errno() == libc::EINTR && is_ended()
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use urdma_abi::signals::bit;

    use super::*;

    static CALLS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

    extern "C" fn first(_: c_int) {
        CALLS[0].fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn second(_: c_int) {
        CALLS[1].fetch_add(1, Ordering::SeqCst);
    }

    fn installed(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
        // SAFETY: zeroes are a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = flags;
        // SAFETY: a valid action.
        let failed = unsafe { HANDLERS.install(signal, &raw const action, null_mut()) };
        assert_eq!(failed, 0);
    }

    fn raise(signal: c_int) {
        // SAFETY: the thread lives.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    fn calls(of: usize) -> u32 {
        CALLS[of].load(Ordering::SeqCst)
    }

    fn blocked() -> Set {
        let mut set: Set = 0;
        // SAFETY: the set that is in force is only asked for; both have that size.
        let failed = unsafe {
            let (none, size) = (null::<Set>(), size_of::<Set>());
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                none,
                &raw mut set,
                size,
            )
        };
        assert_eq!(failed, 0);
        set
    }

    #[test]
    fn handler_runs_when_the_last_lock_is_released() {
        let signal = libc::SIGUSR1;
        installed(signal, first, 0);
        let before = blocked();
        begin_call();
        let outer = Masked::new();
        let inner = Masked::new();
        // No system call is made for it.
        assert_eq!(blocked(), before);
        raise(signal);
        assert_eq!(calls(0), 0);
        drop(inner);
        assert_eq!(calls(0), 0);
        assert!(!has_ended_call(true));
        drop(outer);
        assert_eq!(calls(0), 1);
        assert!(has_ended_call(false) && has_ended_call(true));
        assert_eq!(blocked(), before);
        raise(signal);
        assert_eq!(calls(0), 2);
    }

    #[test]
    fn handler_with_sa_restart_ends_calls_with_a_limit_of_time() {
        let signal = libc::SIGUSR2;
        installed(signal, second, libc::SA_RESTART);
        begin_call();
        raise(signal);
        assert_eq!(calls(1), 1);
        assert!(!has_ended_call(false) && has_ended_call(true));
    }

    extern "C" fn calls_itself(_: c_int) {
        begin_call();
    }

    #[test]
    fn handler_that_makes_a_call_of_its_own_ends_that_of_its_thread() {
        let signal = libc::SIGURG;
        installed(signal, calls_itself, 0);
        begin_call();
        raise(signal);
        assert!(has_ended_call(false));
    }

    #[test]
    fn no_signal_arrives_in_a_sleep_that_nothing_may_interrupt() {
        let before = blocked();
        let masked = Masked::sleeping();
        let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
        assert_eq!(blocked() & ALL, ALL & !never);
        drop(masked);
        assert_eq!(blocked(), before);
    }
}
