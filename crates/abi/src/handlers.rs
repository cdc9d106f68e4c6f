//! The handlers of signals that a program installs, called by a preloaded library: it puts them off
//! while a thread holds its locks ([`PutOff`]), and calls the program's at other times.
//!
//! The kernel gets the library's function in place of each handler; the program that asks for its
//! handler gets its own. Two preloaded libraries may stand one before the other: the first is the
//! program of the second.
//!
//! Handlers of SIGSEGV are in [`crate::faults`].

use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::{sigaction, sighandler_t, siginfo_t, ucontext_t};

use crate::faults::Faults;
use crate::next::{errno, set_errno};
use crate::signals::{bit, change_mask, Handler, Install, ALL};

/// Signals, as the kernel numbers them.
const SIGNALS: usize = 64;

/// What a program has installed, for the signals of [`ALL`].
#[derive(Debug)]
pub struct Handlers {
    /// What the kernel calls in place of each of them.
    wrapper: Handler,
    real: Install,
    /// By the number of the signal; 0 for none.
    handlers: [AtomicUsize; SIGNALS + 1],
    /// The signals whose handler the program has installed with `SA_SIGINFO`.
    with_info: AtomicU64,
    /// Those whose handler it has installed with `SA_RESTART`.
    restarting: AtomicU64,
    /// Those whose handler is removed when it is called (`SA_RESETHAND`).
    one_shot: AtomicU64,
    has_direct: AtomicBool,
    /// What has the handlers of SIGSEGV, if the library repairs faults.
    faults: Option<&'static Faults>,
}

impl Handlers {
    /// Without handlers. `wrapper` is the library's function, which calls [`Handlers::call`].
    #[must_use]
    pub const fn new(wrapper: Handler, real: Install) -> Self {
        Self {
            wrapper,
            real,
            handlers: [const { AtomicUsize::new(0) }; SIGNALS + 1],
            with_info: AtomicU64::new(0),
            restarting: AtomicU64::new(0),
            one_shot: AtomicU64::new(0),
            has_direct: AtomicBool::new(false),
            faults: None,
        }
    }

    /// With handlers of SIGSEGV.
    #[must_use]
    pub const fn with_faults(self, faults: &'static Faults) -> Self {
        Self {
            faults: Some(faults),
            ..self
        }
    }

    fn faults_of(&self, signal: c_int) -> Option<&'static Faults> {
        self.faults.filter(|_| signal == libc::SIGSEGV)
    }

    /// Whether the kernel calls a handler of the program itself ([`Handlers::note_direct`]), which
    /// is not put off: the library has to block signals.
    #[inline]
    pub fn has_direct(&self) -> bool {
        self.has_direct.load(Ordering::Relaxed)
    }

    /// The program installs a handler by a system call of its own.
    pub fn note_direct(&self) {
        self.has_direct.store(true, Ordering::Relaxed);
    }

    fn wrapper(&self) -> sighandler_t {
        self.wrapper as *const () as sighandler_t
    }

    /// The place of the program's handler, if signals of this number are put off.
    fn cell_of(&self, signal: c_int) -> Option<&AtomicUsize> {
        let number = usize::try_from(signal).ok()?;
        let cell = self.handlers.get(number).filter(|_| number > 0)?;
        (ALL & bit(signal) != 0).then_some(cell)
    }

    /// Calls the program's handler.
    ///
    /// # Safety
    /// The arguments of the handler, which the kernel has given.
    pub unsafe fn call(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let Some(cell) = self.cell_of(signal) else {
            return;
        };
        let is_one_shot = is_in(&self.one_shot, signal);
        let handler = if is_one_shot {
            self.remove(signal);
            cell.swap(0, Ordering::AcqRel)
        } else {
            cell.load(Ordering::Acquire)
        };
        if handler == 0 {
            if is_one_shot {
                // Another thread has called it, and this signal gets the default action.
                // SAFETY: the calling thread.
                unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
            }
            return;
        }
        // SAFETY: the program has given it as the handler of this signal. One without `SA_SIGINFO`
        // has the first parameter only, and ignores the others.
        unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    }

    /// The default action is taken from now on.
    fn remove(&self, signal: c_int) {
        // SAFETY: zeroes are a valid sigaction, with SIG_DFL.
        let default: sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a valid action.
        unsafe { (self.real)(signal, &raw const default, null_mut()) };
    }

    /// Whether the program's handler was installed with `SA_RESTART`.
    pub fn does_restart(&self, signal: c_int) -> bool {
        is_in(&self.restarting, signal)
    }

    /// sigaction(2), with the wrapper in place of a handler.
    ///
    /// # Safety
    /// As sigaction(2).
    pub unsafe fn install(
        &self,
        signal: c_int,
        new: *const sigaction,
        old: *mut sigaction,
    ) -> c_int {
        if let Some(faults) = self.faults_of(signal) {
            // SAFETY: the arguments of the caller.
            return unsafe { faults.install(new, old) };
        }
        let Some(cell) = self.cell_of(signal) else {
            // SAFETY: the arguments of the caller.
            return unsafe { (self.real)(signal, new, old) };
        };
        let mut known = cell.load(Ordering::Acquire);
        let flags = self.flags(signal);
        // SAFETY: null or the caller's.
        let mut wrapped = unsafe { new.as_ref() }.copied();
        if let Some(action) = wrapped.as_mut().filter(|new| is_handler(new.sa_sigaction)) {
            // Before the kernel has the wrapper, which may call it at once.
            known = cell.swap(action.sa_sigaction, Ordering::AcqRel);
            self.set_flags(signal, action.sa_flags);
            action.sa_sigaction = self.wrapper();
            action.sa_flags = (action.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
        }
        let new = wrapped.as_ref().map_or(null(), from_ref);
        // SAFETY: null or an action of ours, and the caller's place for the old one.
        let failed = unsafe { (self.real)(signal, new, old) };
        if failed == 0 {
            // SAFETY: null or filled by the call.
            unsafe { self.show(old, known, flags) };
        } else {
            cell.store(known, Ordering::Release);
            self.set_flags(signal, flags);
        }
        failed
    }

    fn sets(&self) -> [(&AtomicU64, c_int); 3] {
        [
            (&self.with_info, libc::SA_SIGINFO),
            (&self.restarting, libc::SA_RESTART),
            (&self.one_shot, libc::SA_RESETHAND),
        ]
    }

    /// The flags of [`Handlers::sets`] with which the program has installed its handler.
    fn flags(&self, signal: c_int) -> c_int {
        let of = |(set, flag)| if is_in(set, signal) { flag } else { 0 };
        self.sets().map(of).iter().sum()
    }

    fn set_flags(&self, signal: c_int, flags: c_int) {
        for (set, flag) in self.sets() {
            match flags & flag {
                0 => set.fetch_and(!bit(signal), Ordering::Relaxed),
                _ => set.fetch_or(bit(signal), Ordering::Relaxed),
            };
        }
    }

    /// Has an old action show the handler of the program, and the flags that it has given.
    ///
    /// # Safety
    /// `old` is null or valid.
    unsafe fn show(&self, old: *mut sigaction, handler: usize, flags: c_int) {
        // SAFETY: the caller guarantees it.
        if let Some(old) = unsafe { old.as_mut() } {
            if old.sa_sigaction == self.wrapper() {
                old.sa_sigaction = handler;
                old.sa_flags = old.sa_flags & !libc::SA_SIGINFO | flags;
            }
        }
    }

    /// A function of the family of signal(2) has installed a handler for `signal` and has returned
    /// `old`: puts the wrapper in its place, and returns the handler that the program had before.
    pub fn has_installed(&self, signal: c_int, old: sighandler_t) -> sighandler_t {
        if let Some(faults) = self.faults_of(signal).filter(|_| old != libc::SIG_ERR) {
            return faults.has_installed(old);
        }
        let Some(cell) = self.cell_of(signal).filter(|_| old != libc::SIG_ERR) else {
            return old;
        };
        let known = cell.load(Ordering::Acquire);
        // SAFETY: zeroes are a valid sigaction, which the call fills.
        unsafe {
            let mut action: sigaction = std::mem::zeroed();
            let failed = (self.real)(signal, null(), &raw mut action) != 0;
            let has_handler = !failed && is_handler(action.sa_sigaction);
            if has_handler && action.sa_sigaction != self.wrapper() {
                self.install(signal, &raw const action, null_mut());
            }
        }
        match old == self.wrapper() {
            true => known,
            false => old,
        }
    }
}

fn is_in(set: &AtomicU64, signal: c_int) -> bool {
    set.load(Ordering::Relaxed) & bit(signal) != 0
}

/// Whether an action is a function of the program.
fn is_handler(handler: sighandler_t) -> bool {
    const HOLD: sighandler_t = 2;
    ![libc::SIG_DFL, libc::SIG_IGN, libc::SIG_ERR, HOLD].contains(&handler)
}

/// Declares the hooks of the functions that install handlers, for the [`Handlers`] of a library:
/// they are used while `$is_active`, and the next functions, in the module `$real`, otherwise.
#[macro_export]
macro_rules! handler_hooks {
    ($real:ident, $handlers:path, $is_active:expr) => {
        #[cfg_attr(not(test), no_mangle)]
        unsafe extern "C-unwind" fn sigaction(
            signal: std::ffi::c_int,
            new: *const libc::sigaction,
            old: *mut libc::sigaction,
        ) -> std::ffi::c_int {
            if $is_active {
                // SAFETY: the arguments of the caller.
                return unsafe { $handlers.install(signal, new, old) };
            }
            // SAFETY: the arguments of the caller.
            unsafe { $real::sigaction(signal, new, old) }
        }

        /// Another name of sigaction.
        #[cfg_attr(not(test), no_mangle)]
        unsafe extern "C-unwind" fn __sigaction(
            signal: std::ffi::c_int,
            new: *const libc::sigaction,
            old: *mut libc::sigaction,
        ) -> std::ffi::c_int {
            // SAFETY: the arguments of the caller.
            unsafe { sigaction(signal, new, old) }
        }

        $crate::handler_hooks! { @like_signal signal, $real, $handlers, $is_active }
        $crate::handler_hooks! { @like_signal bsd_signal, $real, $handlers, $is_active }
        $crate::handler_hooks! { @like_signal sysv_signal, $real, $handlers, $is_active }
        $crate::handler_hooks! { @like_signal __sysv_signal, $real, $handlers, $is_active }
        $crate::handler_hooks! { @like_signal ssignal, $real, $handlers, $is_active }
        $crate::handler_hooks! { @like_signal sigset, $real, $handlers, $is_active }
    };
    (@like_signal $name:ident, $real:ident, $handlers:path, $is_active:expr) => {
        #[cfg_attr(not(test), no_mangle)]
        unsafe extern "C-unwind" fn $name(
            signal: std::ffi::c_int,
            handler: libc::sighandler_t,
        ) -> libc::sighandler_t {
            // SAFETY: the arguments of the caller.
            let old = unsafe { $real::$name(signal, handler) };
            if $is_active {
                $handlers.has_installed(signal, old)
            } else {
                old
            }
        }
    };
}

/// The signals of a thread that are put off. Only the thread itself uses it, and its handlers.
#[derive(Debug)]
pub struct PutOff {
    /// Signals were put off, and are blocked.
    has: AtomicBool,
    /// The signals that were blocked before.
    before: AtomicU64,
}

impl PutOff {
    /// No signal was put off.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            has: AtomicBool::new(false),
            before: AtomicU64::new(0),
        }
    }

    /// Puts a signal off, whose handler the kernel has called; whether it could. It waits at the
    /// thread, whose signals are blocked from the return of the handler to [`PutOff::deliver`].
    /// errno stays what it is.
    ///
    /// # Safety
    /// The arguments of the handler, which returns then.
    pub unsafe fn put_off(
        &self,
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
    ) -> bool {
        let errno_before = errno();
        // The kernel has blocked this signal for the handler. It is not to come again before the
        // handler has returned.
        let mask = change_mask(libc::SIG_BLOCK, ALL);
        // SAFETY: numbers, and what the kernel has given the handler.
        let failed = unsafe {
            let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info)
        };
        if failed != 0 {
            change_mask(libc::SIG_SETMASK, mask);
            set_errno(errno_before);
            return false;
        }
        // SAFETY: the kernel's context, which it restores when the handler returns; the kernel's
        // set is at the beginning of the C library's.
        unsafe {
            let mask = &raw mut (*context.cast::<ucontext_t>()).uc_sigmask;
            let mask = mask.cast::<u64>();
            if !self.has.swap(true, Ordering::Relaxed) {
                self.before.store(mask.read(), Ordering::Relaxed);
            }
            mask.write(mask.read() | ALL);
        }
        true
    }

    /// Whether signals were put off.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has.load(Ordering::Relaxed)
    }

    /// Has the signals delivered that were put off.
    #[inline]
    pub fn deliver(&self) {
        // Signals are blocked while there are any: no handler runs between load and store.
        if self.has_any() {
            self.has.store(false, Ordering::Relaxed);
            change_mask(libc::SIG_SETMASK, self.before.load(Ordering::Relaxed));
        }
    }
}

impl Default for PutOff {
    fn default() -> Self {
        Self::new()
    }
}
