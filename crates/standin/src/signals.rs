//! Handlers of signals in threads that are in the provider's waits.
//!
//! In such a wait the thread makes turns, which hold locks, and sleeps in between. A handler may
//! leave a call by siglongjmp(3), so none may run in a turn, and one that has run has to end the
//! sleep with EINTR, also if it ran before the thread was asleep. To block signals for the turns
//! costs two system calls a wait. Instead, the kernel calls [`on_signal`] for every handler that
//! the program installs ([`HANDLERS`]), which knows where the thread is:
//!
//! - **In a turn** it blocks signals in the thread, sends itself the signal again, which waits, and
//!   returns. The thread unblocks signals at its next sleep, or at the end of the wait.
//! - **About to sleep or asleep** it calls the handler, and then sets the time that the system call
//!   is to sleep, which is in this thread's [`Place`], to zero. If the kernel has read it already,
//!   the thread is asleep, and the signal ends the sleep.
//! - **Elsewhere** it calls the handler.
//!
//! A handler that the program installs by a system call of its own is not seen: it may run in a
//! turn.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{compiler_fence, AtomicI64, AtomicU32, AtomicU8, Ordering};

use libc::{siginfo_t, timespec};

use urdma_abi::faults::Faults;
use urdma_abi::handlers::{Handlers, PutOff};
use urdma_abi::signals::SET_OCTETS;

use crate::real;

/// A sleep without a limit, in seconds.
const FOREVER_S: i64 = 1 << 31;

/// The thread is in no wait.
const ELSEWHERE: u8 = 0;
/// It makes a turn.
const TURN: u8 = 1;
/// It is about to sleep, asleep, or has slept.
const SLEEP: u8 = 2;

/// The program's handlers.
pub(crate) static HANDLERS: Handlers =
    Handlers::new(on_signal, real::sigaction).with_faults(&FAULTS);
/// That of SIGSEGV, and the faults that the provider repairs.
pub(crate) static FAULTS: Faults = Faults::new(on_fault, real::sigaction);
/// What the kernel can do: one of the three that follow.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
/// Handlers are put off.
const PUT_OFF: u8 = 1;
/// The provider has to block signals.
const BLOCK: u8 = 2;

/// Where a thread is. Only the thread itself uses it, and its handlers.
struct Place {
    phase: AtomicU8,
    /// Handlers that have run since the thread was about to sleep.
    handled: AtomicU32,
    put_off: PutOff,
    /// How long the thread is to sleep.
    time: Time,
}

/// `struct timespec`, which a handler may change.
#[repr(C)]
struct Time {
    seconds: AtomicI64,
    nanoseconds: AtomicI64,
}

impl Time {
    fn set(&self, seconds: i64, nanoseconds: i64) {
        self.seconds.store(seconds, Ordering::Relaxed);
        self.nanoseconds.store(nanoseconds, Ordering::Relaxed);
    }
}

thread_local! {
    static PLACE: Place = const {
        Place {
            phase: AtomicU8::new(ELSEWHERE),
            handled: AtomicU32::new(0),
            put_off: PutOff::new(),
            time: Time {
                seconds: AtomicI64::new(0),
                nanoseconds: AtomicI64::new(0),
            },
        }
    };
}

impl Place {
    /// Nothing moves over this change, which the thread's handlers see.
    fn enter(&self, phase: u8) {
        compiler_fence(Ordering::SeqCst);
        self.phase.store(phase, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

/// A wait of the provider begins in this thread; false if the provider has to block signals.
pub(crate) fn begin_turns() -> bool {
    let mode = match MODE.load(Ordering::Relaxed) {
        UNKNOWN => decide(),
        mode => mode,
    };
    if mode == PUT_OFF {
        PLACE.with(|place| place.enter(TURN));
    }
    mode == PUT_OFF
}

/// The kernel has to read the time of every sleep when it begins: epoll_wait(2) gets its time in a
/// register, and epoll_pwait2(2) is new in Linux 5.11.
#[cold]
fn decide() -> u8 {
    // SAFETY: no descriptor; the call fails with EBADF, or with ENOSYS.
    let result = unsafe {
        let nothing = std::ptr::null::<c_void>();
        libc::syscall(
            libc::SYS_epoll_pwait2,
            -1,
            nothing,
            1,
            nothing,
            nothing,
            SET_OCTETS,
        )
    };
    let is_known = result >= 0 || real::errno() != libc::ENOSYS;
    let mode = if is_known { PUT_OFF } else { BLOCK };
    MODE.store(mode, Ordering::Relaxed);
    mode
}

/// The wait has ended.
pub(crate) fn end_turns() {
    PLACE.with(|place| {
        place.enter(ELSEWHERE);
        place.put_off.deliver();
    });
}

/// Whether the thread is in a turn in which handlers are put off.
pub(crate) fn is_in_turn() -> bool {
    PLACE.with(|place| place.phase.load(Ordering::Relaxed) == TURN)
}

/// Sleeps in a turn: `call` is the system call, which gets the time, and returns -1 with errno
/// EINTR if a handler has run and nothing was found.
pub(crate) fn sleep(time: Option<timespec>, call: impl FnOnce(*mut timespec) -> c_long) -> c_long {
    PLACE.with(|place| {
        match time {
            Some(time) => place.time.set(time.tv_sec, time.tv_nsec),
            None => place.time.set(FOREVER_S, 0),
        }
        place.handled.store(0, Ordering::Relaxed);
        place.enter(SLEEP);
        place.put_off.deliver();
        let result = call((&raw const place.time).cast_mut().cast());
        place.enter(TURN);
        if result == 0 && place.handled.load(Ordering::Relaxed) > 0 {
            real::set_errno(libc::EINTR);
            return -1;
        }
        result
    })
}

/// What the kernel calls for every handler that the program has installed.
unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    PLACE.with(|place| {
        let phase = place.phase.load(Ordering::Relaxed);
        // SAFETY: the arguments of the handler.
        if phase == TURN && unsafe { place.put_off.put_off(signal, info, context) } {
            return;
        }
        // SAFETY: the arguments of the handler.
        unsafe { HANDLERS.call(signal, info, context) };
        if phase == SLEEP {
            place.handled.fetch_add(1, Ordering::Relaxed);
            place.time.set(0, 0);
        }
        // The handler may have been in a wait of its own.
        place.enter(phase);
    });
}

unsafe extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the arguments of the handler.
    unsafe { FAULTS.handle(signal, info, context) };
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use libc::{sigaction, sighandler_t};

    use super::*;

    /// Counts the calls of a handler, one for each test, since tests run in threads of one process.
    static CALLS: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];

    extern "C" fn first(_: c_int) {
        CALLS[0].fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn second(_: c_int) {
        CALLS[1].fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn once(_: c_int) {
        CALLS[3].fetch_add(1, Ordering::SeqCst);
    }

    extern "C" fn with_info(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel's.
        let value = unsafe { (*info).si_value().sival_ptr as usize };
        CALLS[2].fetch_add(u32::try_from(value).unwrap(), Ordering::SeqCst);
    }

    fn calls(of: usize) -> u32 {
        CALLS[of].load(Ordering::SeqCst)
    }

    fn action(handler: *const (), flags: c_int) -> sigaction {
        // SAFETY: zeroes are a valid sigaction.
        let mut action: sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as sighandler_t;
        action.sa_flags = flags;
        action
    }

    fn installed(signal: c_int, handler: *const (), flags: c_int) {
        let action = action(handler, flags);
        // SAFETY: a valid action.
        let failed = unsafe { HANDLERS.install(signal, &raw const action, null_mut()) };
        assert_eq!(failed, 0);
    }

    fn current(signal: c_int) -> sigaction {
        let mut now = action(null(), 0);
        // SAFETY: a valid place.
        assert_eq!(unsafe { HANDLERS.install(signal, null(), &raw mut now) }, 0);
        now
    }

    fn raise(signal: c_int) {
        // SAFETY: the thread lives.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    /// Sleeps in ppoll(2) without a limit if `time` is none. No descriptor ends it.
    fn sleep_in_ppoll(time: *mut timespec) -> c_long {
        let (nothing, none) = (null::<c_void>(), 0);
        // SAFETY: an empty list.
        unsafe { libc::syscall(libc::SYS_ppoll, nothing, none, time, nothing, SET_OCTETS) }
    }

    #[test]
    fn program_sees_the_handlers_that_it_has_installed() {
        let signal = libc::SIGUSR1;
        installed(signal, first as *const (), libc::SA_RESTART);
        let shown = current(signal);
        assert_eq!(shown.sa_sigaction, first as *const () as usize);
        assert_eq!(shown.sa_flags & libc::SA_SIGINFO, 0);
        assert_ne!(shown.sa_flags & libc::SA_RESTART, 0);
        raise(signal);
        assert_eq!(calls(0), 1);
        let mut old = action(null(), 0);
        let next = action(libc::SIG_IGN as *const (), 0);
        // SAFETY: valid actions.
        let failed = unsafe { HANDLERS.install(signal, &raw const next, &raw mut old) };
        assert_eq!(failed, 0);
        assert_eq!(old.sa_sigaction, first as *const () as usize);
        assert_eq!(current(signal).sa_sigaction, libc::SIG_IGN);
        // SAFETY: the handler counts.
        let before = unsafe { real::signal(signal, first as *const () as sighandler_t) };
        assert_eq!(HANDLERS.has_installed(signal, before), libc::SIG_IGN);
        // SAFETY: the signal's default action needs no handler.
        let before = unsafe { real::signal(signal, libc::SIG_DFL) };
        assert_eq!(
            HANDLERS.has_installed(signal, before),
            first as *const () as usize
        );
    }

    #[test]
    fn handler_runs_in_a_sleep_or_after_the_wait_but_in_no_turn() {
        let signal = libc::SIGUSR2;
        installed(signal, second as *const (), 0);
        assert!(begin_turns());
        raise(signal);
        raise(signal);
        assert_eq!(calls(1), 0);
        // It was put off, and ends the sleep before it begins.
        assert_eq!(sleep(None, sleep_in_ppoll), -1);
        assert_eq!((calls(1), real::errno()), (1, libc::EINTR));
        assert!(is_in_turn());
        // It comes after the thread has looked, and before it is asleep.
        let late = |time: *mut timespec| {
            raise(signal);
            sleep_in_ppoll(time)
        };
        assert_eq!(sleep(None, late), -1);
        assert_eq!((calls(1), real::errno()), (2, libc::EINTR));
        // A sleep that nothing ends lasts as long as it is to.
        let time = timespec {
            tv_sec: 0,
            tv_nsec: 1,
        };
        assert_eq!(sleep(Some(time), sleep_in_ppoll), 0);
        raise(signal);
        assert_eq!(calls(1), 2);
        end_turns();
        assert_eq!(calls(1), 3);
        raise(signal);
        assert_eq!(calls(1), 4);
    }

    #[test]
    fn handler_that_is_to_be_removed_runs_once_after_the_turn() {
        let signal = libc::SIGWINCH;
        let flags = libc::SA_RESETHAND | libc::SA_NODEFER;
        installed(signal, once as *const (), flags);
        let shown = current(signal);
        assert_eq!(shown.sa_sigaction, once as *const () as usize);
        assert_eq!(shown.sa_flags & (flags | libc::SA_SIGINFO), flags);
        assert!(begin_turns());
        raise(signal);
        assert_eq!(calls(3), 0);
        end_turns();
        assert_eq!(calls(3), 1);
        assert_eq!(current(signal).sa_sigaction, libc::SIG_DFL);
        // The default action is to ignore it.
        raise(signal);
        assert_eq!(calls(3), 1);
    }

    #[test]
    fn signals_that_are_put_off_keep_their_values() {
        let signal = libc::SIGRTMIN();
        installed(signal, with_info as *const (), libc::SA_SIGINFO);
        assert!(begin_turns());
        for value in [1_usize, 20, 300] {
            let value = libc::sigval {
                sival_ptr: value as *mut c_void,
            };
            // SAFETY: the thread lives.
            let failed = unsafe { libc::pthread_sigqueue(libc::pthread_self(), signal, value) };
            assert_eq!(failed, 0);
        }
        assert_eq!(calls(2), 0);
        end_turns();
        assert_eq!(calls(2), 321);
    }
}
