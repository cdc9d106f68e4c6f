//! The handler of SIGSEGV of a library that repairs some faults of the process. All others reach
//! the program: its own handler, with the mask, the stack and the flags that it has asked for, or
//! the default action.
//!
//! The stand-in has it ([`FAULTS_SYMBOL`]) and hooks the functions that install handlers, so that
//! the program may do so at any time ([`crate::handlers`]). In a process without the stand-in the
//! provider has it, and a handler that the program installs later replaces it.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::{sigaction, sighandler_t, siginfo_t, ucontext_t};

use crate::signals::{bit, change_mask, Handler, Install, Set};

/// Repairs a fault of the calling thread: whether its instruction can be executed again (not 0).
/// The argument is the kernel's, of a fault. Called in a handler of signals.
pub type RepairFn = unsafe extern "C" fn(info: *const siginfo_t) -> c_int;

/// Name of the function of the stand-in by which the provider has faults repaired.
pub const FAULTS_SYMBOL: &std::ffi::CStr = c"urdma_repair_faults";

/// Type of the function named [`FAULTS_SYMBOL`]. Returns 0 if the stand-in is not active.
pub type RepairFaultsFn = unsafe extern "C" fn(repair: RepairFn) -> c_int;

const SIGNAL: c_int = libc::SIGSEGV;

/// The handler, and what the program has installed.
#[derive(Debug)]
pub struct Faults {
    /// What the kernel calls.
    wrapper: Handler,
    real: Install,
    /// [`RepairFn`]; 0 while there is none, and the kernel has the program's action.
    repair: AtomicUsize,
    /// The process in which `begin` was called. A child of vfork(2) has this memory, but not the
    /// actions of its parent.
    process: AtomicI32,
    /// The program's action.
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Faults {
    /// Without faults to repair. `wrapper` is the library's function, which calls
    /// [`Faults::handle`].
    #[must_use]
    pub const fn new(wrapper: Handler, real: Install) -> Self {
        Self {
            wrapper,
            real,
            repair: AtomicUsize::new(0),
            process: AtomicI32::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// Has faults of this process repaired from now on.
    pub fn begin(&self, repair: RepairFn) {
        if let Some(action) = self.current().filter(|action| !self.is_ours(action)) {
            self.keep(&action);
        }
        self.repair
            .store(repair as *const () as usize, Ordering::Release);
        self.process.store(process(), Ordering::Release);
        self.put_before();
    }

    /// The kernel's action.
    fn current(&self) -> Option<sigaction> {
        // SAFETY: zeroes are a valid sigaction.
        let mut action: sigaction = unsafe { zeroed() };
        // SAFETY: a place for the action.
        let failed = unsafe { (self.real)(SIGNAL, null(), &raw mut action) };
        (failed == 0).then_some(action)
    }

    fn is_ours(&self, action: &sigaction) -> bool {
        action.sa_sigaction == self.wrapper as *const () as sighandler_t
    }

    /// The action is the program's.
    fn keep(&self, action: &sigaction) {
        // SAFETY: the kernel's set is at the beginning of the C library's.
        let mask = unsafe { (&raw const action.sa_mask).cast::<Set>().read() };
        self.mask.store(mask, Ordering::Relaxed);
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Release);
    }

    /// The program's action.
    fn kept(&self) -> sigaction {
        // SAFETY: zeroes are a valid sigaction.
        let mut action: sigaction = unsafe { zeroed() };
        action.sa_sigaction = self.handler.load(Ordering::Acquire);
        action.sa_flags = self.flags.load(Ordering::Relaxed);
        let mask = self.mask.load(Ordering::Relaxed);
        // SAFETY: as in `keep`.
        unsafe { (&raw mut action.sa_mask).cast::<Set>().write(mask) };
        action
    }

    /// Has the kernel call the wrapper, on the stack that the program has asked for: without a
    /// handler, a stack that has no room is to end the process.
    fn put_before(&self) -> c_int {
        // SAFETY: zeroes are a valid sigaction.
        let mut action: sigaction = unsafe { zeroed() };
        let of_program = self.flags.load(Ordering::Relaxed);
        action.sa_sigaction = self.wrapper as *const () as sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | of_program & (libc::SA_ONSTACK | libc::SA_RESTART);
        // SAFETY: a valid action.
        unsafe { (self.real)(SIGNAL, &raw const action, null_mut()) }
    }

    /// Whether the calling process repairs faults.
    fn has_begun(&self) -> bool {
        self.process.load(Ordering::Acquire) == process()
    }

    /// sigaction(2) of SIGSEGV by the program.
    ///
    /// # Safety
    /// As sigaction(2).
    pub unsafe fn install(&self, new: *const sigaction, old: *mut sigaction) -> c_int {
        let before = self.kept();
        if !self.has_begun() {
            // SAFETY: the arguments of the caller.
            let failed = unsafe { (self.real)(SIGNAL, new, old) };
            // SAFETY: null, or filled by the call.
            let old = unsafe { old.as_mut() };
            // A child has the wrapper from its parent.
            if let Some(old) = old.filter(|old| failed == 0 && self.is_ours(old)) {
                *old = before;
            }
            return failed;
        }
        // SAFETY: null or the caller's.
        if let Some(new) = unsafe { new.as_ref() } {
            self.keep(new);
            let failed = self.put_before();
            if failed != 0 {
                self.keep(&before);
                return failed;
            }
        }
        // SAFETY: null or the caller's.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = before;
        }
        0
    }

    /// As [`crate::handlers::Handlers::has_installed`], for SIGSEGV.
    pub fn has_installed(&self, old: sighandler_t) -> sighandler_t {
        let before = self.handler.load(Ordering::Acquire);
        let current = self.current().filter(|action| !self.is_ours(action));
        if let Some(action) = current.filter(|_| self.has_begun()) {
            self.keep(&action);
            self.put_before();
        }
        match old == self.wrapper as *const () as sighandler_t {
            true => before,
            false => old,
        }
    }

    /// What the wrapper does.
    ///
    /// # Safety
    /// The arguments of the handler, which returns then.
    pub unsafe fn handle(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let repair = self.repair.load(Ordering::Acquire);
        // SAFETY: the kernel's. Signals that processes send have another code.
        let is_fault = unsafe { (*info).si_code } > 0;
        // A forked child does not call into the provider.
        if is_fault && self.has_begun() {
            // SAFETY: `begin` has stored a function of this type, before it has stored the process.
            let repair = unsafe { std::mem::transmute::<usize, RepairFn>(repair) };
            // SAFETY: the kernel's, of a fault.
            if unsafe { repair(info) } != 0 {
                return;
            }
        }
        let action = self.kept();
        match action.sa_sigaction {
            libc::SIG_IGN if !is_fault => {}
            // The kernel does not leave out a fault that is ignored.
            libc::SIG_DFL | libc::SIG_IGN => self.end(info),
            // SAFETY: the arguments of the handler.
            _ => unsafe { self.call(&action, signal, info, context) },
        }
    }

    /// Has the default action taken when the handler returns: the signal waits for that, with its
    /// information. If it cannot be queued, the fault comes again.
    #[cold]
    fn end(&self, info: *mut siginfo_t) {
        // SAFETY: zeroes are a valid sigaction, with SIG_DFL.
        let default: sigaction = unsafe { zeroed() };
        // SAFETY: a valid action.
        unsafe { (self.real)(SIGNAL, &raw const default, null_mut()) };
        // SAFETY: numbers, and what the kernel has given the handler.
        unsafe {
            let (process, thread) = (process(), libc::syscall(libc::SYS_gettid));
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, SIGNAL, info);
        }
    }

    /// Calls the program's handler as the kernel would.
    ///
    /// # Safety
    /// The arguments of the handler.
    unsafe fn call(
        &self,
        action: &sigaction,
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
    ) {
        if action.sa_flags & libc::SA_RESETHAND != 0 {
            self.handler.store(libc::SIG_DFL, Ordering::Release);
        }
        let own = match action.sa_flags & libc::SA_NODEFER {
            0 => bit(SIGNAL),
            _ => 0,
        };
        // SAFETY: the kernel's context, which has the mask of the interrupted code; the kernel's
        // sets are at the beginning of the C library's.
        let mask = unsafe {
            let interrupted = &raw const (*context.cast::<ucontext_t>()).uc_sigmask;
            interrupted.cast::<Set>().read() | (&raw const action.sa_mask).cast::<Set>().read()
        };
        // The kernel restores the mask when the handler returns.
        change_mask(libc::SIG_SETMASK, mask | own);
        // SAFETY: the program has given it as the handler of this signal. One without `SA_SIGINFO`
        // has the first parameter only, and ignores the others.
        unsafe {
            let handler = std::mem::transmute::<usize, Handler>(action.sa_sigaction);
            handler(signal, info, context);
        }
    }
}

fn process() -> libc::pid_t {
    // SAFETY: no precondition.
    unsafe { libc::getpid() }
}

/// Has the stand-in repair faults; false if this process has none, or one that is not active.
#[must_use]
pub fn repair_in_standin(repair: RepairFn) -> bool {
    // SAFETY: the symbol is a C string. RTLD_DEFAULT finds preloaded libraries first.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, FAULTS_SYMBOL.as_ptr()) };
    if symbol.is_null() {
        return false;
    }
    // SAFETY: the stand-in exports this name, with this type.
    let begin = unsafe { std::mem::transmute::<*mut c_void, RepairFaultsFn>(symbol) };
    // SAFETY: `repair` is a function.
    unsafe { begin(repair) != 0 }
}
