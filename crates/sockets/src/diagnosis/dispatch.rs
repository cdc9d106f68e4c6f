//! The kernel sends SIGSYS for each system call from outside the C library (Syscall User Dispatch,
//! Linux 5.11). The handler looks at the call, switches that off and has the instruction executed
//! again, with the processor's trap flag; the SIGTRAP behind it switches it on again. So a call
//! does what it does without diagnosis, also if it sleeps and signals interrupt it.
//!
//! The kernel ends a process that blocks either signal when it would get it: no mask has them.

use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::io;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, Ordering::Relaxed};
use std::sync::OnceLock;

use libc::{greg_t, siginfo_t, ucontext_t};
use urdma_abi::next::lookup;
use urdma_abi::signals::{bit, change_mask, Handler, Set};

use super::calls::{self, word, Found, Registers};
use super::modules::{self, Line};
use super::unavailable::Unavailable;
use crate::real;

/// `linux/prctl.h`.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_ON: usize = 1;
/// `si_code` of a SIGSYS, of `asm-generic/siginfo.h`.
const SYS_USER_DISPATCH: c_int = 2;
/// `SYSCALL_DISPATCH_FILTER_ALLOW` and `_BLOCK`.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
/// The trap flag of the flags register.
const TRAP_FLAG: greg_t = 0x100;
/// Octets of the instruction `syscall`.
const INSTRUCTION_OCTETS: greg_t = 2;
const OWN: Set = bit(libc::SIGSYS) | bit(libc::SIGTRAP);
/// Numbers of system calls are less than this.
const NUMBERS_BITS: u32 = 12;

thread_local! {
    /// Whether the kernel sends SIGSYS, which reads it.
    static SELECTOR: AtomicU8 = const { AtomicU8::new(ALLOW) };
}

/// Where the code of the C library is.
static TEXT: OnceLock<(usize, usize)> = OnceLock::new();
/// What was reported.
static REPORTED: Reported<512> = Reported::new();

/// Begins in the calling thread.
pub(super) fn start() -> Result<(), Unavailable> {
    let within = |name| {
        let function = lookup(&AtomicPtr::new(null_mut()), name).addr();
        modules::find(function, &mut Line::new())
    };
    let text = within(c"gnu_get_libc_version").ok_or(Unavailable::OtherLibrary)?;
    if within(c"pthread_create") != Some(text) {
        return Err(Unavailable::OldLibrary);
    }
    let _ = TEXT.set(text);
    install(libc::SIGSYS, on_call);
    install(libc::SIGTRAP, on_trap);
    begin_thread().map_err(Unavailable::Kernel)
}

fn install(signal: c_int, handler: Handler) {
    // SAFETY: zeroes are an action without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a handler that is installed with `SA_SIGINFO`.
    unsafe { real::sigaction(signal, &raw const action, null_mut()) };
}

/// Begins in the calling thread; neither a thread nor a child inherits it.
pub(super) fn begin_thread() -> io::Result<()> {
    let Some((begin, end)) = TEXT.get() else {
        return Ok(());
    };
    change_mask(libc::SIG_UNBLOCK, OWN);
    SELECTOR.with(|selector| {
        let (octets, at) = (end - begin, selector.as_ptr());
        let (option, on) = (PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON);
        // SAFETY: the kernel reads the selector as long as the thread lives.
        let rc = unsafe { libc::prctl(option, on, *begin, octets, at) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        selector.store(BLOCK, Relaxed);
        Ok(())
    })
}

fn choose(choice: u8) {
    SELECTOR.with(|selector| selector.store(choice, Relaxed));
}

/// SIGSYS: a system call from outside the C library, or one that a filter of the program's
/// (seccomp) does not permit.
unsafe extern "C-unwind" fn on_call(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's argument of a handler with `SA_SIGINFO`.
    if unsafe { (*info).si_code } != SYS_USER_DISPATCH {
        return act_by_default(signal);
    }
    choose(ALLOW);
    let errno = real::errno();
    // SAFETY: the kernel's argument of a handler with `SA_SIGINFO`.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    let registers = Registers::of(context);
    report(&registers);
    let values = &mut context.uc_mcontext.gregs;
    let again = |values: &mut [greg_t; 23]| {
        values[libc::REG_RIP as usize] -= INSTRUCTION_OCTETS;
    };
    match registers.number {
        libc::SYS_rt_sigprocmask => {
            change_mask_of(context, &registers);
            choose(BLOCK);
        }
        libc::SYS_rt_sigreturn => {
            again(values);
            let interrupted = word(values[libc::REG_RSP as usize]) as *mut ucontext_t;
            // SAFETY: the kernel takes the registers from there next.
            let values = unsafe { &mut (*interrupted).uc_mcontext.gregs };
            values[libc::REG_EFL as usize] |= TRAP_FLAG;
        }
        // The new thread may have no memory of its own (TLS): neither is diagnosed any more.
        libc::SYS_clone | libc::SYS_clone3 => again(values),
        _ => {
            again(values);
            values[libc::REG_EFL as usize] |= TRAP_FLAG;
        }
    }
    real::set_errno(errno);
}

/// SIGTRAP: the system call is done, unless the program itself has trapped.
unsafe extern "C-unwind" fn on_trap(signal: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's argument of a handler with `SA_SIGINFO`.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    let flags = &mut context.uc_mcontext.gregs[libc::REG_EFL as usize];
    if *flags & TRAP_FLAG != 0 {
        *flags &= !TRAP_FLAG;
        return choose(BLOCK);
    }
    act_by_default(signal);
}

/// The default action is taken when the handler of a signal returns.
fn act_by_default(signal: c_int) {
    // SAFETY: zeroes are the default action.
    unsafe {
        let default: libc::sigaction = zeroed();
        real::sigaction(signal, &raw const default, null_mut());
        libc::raise(signal);
    }
}

/// Does rt_sigprocmask(2) for the interrupted code.
fn change_mask_of(context: &mut ucontext_t, registers: &Registers) {
    let [how, new, old, octets, ..] = registers.arguments;
    // SAFETY: the arguments of the program, which the kernel checks.
    let rc = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, octets) };
    let result = if rc < 0 {
        -greg_t::from(real::errno())
    } else {
        0
    };
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
    if rc < 0 {
        return;
    }
    let old = old as *mut Set;
    if !old.is_null() {
        // SAFETY: the kernel has written there. This handler has blocked SIGSYS.
        unsafe { old.write_unaligned(old.read_unaligned() & !OWN) };
    }
    let mask = change_mask(libc::SIG_BLOCK, 0) & !OWN;
    let place = (&raw mut context.uc_sigmask).cast::<Set>();
    // SAFETY: the kernel's set has these octets, and the C library's more.
    unsafe { place.write_unaligned(mask) };
}

/// Reports a call on a socket that has or may get rings, once for each kind of call of a module.
fn report(registers: &Registers) {
    let Some((name, found)) = calls::look(registers) else {
        return;
    };
    let number = registers.number.cast_unsigned() & ((1 << NUMBERS_BITS) - 1);
    let key = |address: usize| (address as u64) << NUMBERS_BITS | number;
    if !REPORTED.add(key(registers.address)) {
        return;
    }
    let mut line = Line::new();
    line.push(b"urdma: ");
    let Some((first, _)) = modules::find(registers.address, &mut line) else {
        return;
    };
    // The first page of a module has no system call of its own that would have this key.
    if !REPORTED.add(key(first)) {
        return;
    }
    let (fd, what) = match found {
        Found::WithRings(fd) => (fd, "it has rings"),
        Found::Candidate(fd) => (fd, "it may get rings"),
        Found::Set(fd) => (fd, "sockets of the epoll set may have rings"),
    };
    let at = modules::in_file(registers.address);
    // The line takes what it has room for.
    let _ = write!(
        line,
        "+{at:#x} calls {name}(2) on descriptor {fd} without the C library: {what}"
    );
    line.end();
    // SAFETY: the octets of the line.
    unsafe {
        libc::syscall(
            libc::SYS_write,
            2,
            line.octets().as_ptr(),
            line.octets().len(),
        )
    };
}

/// Keys that are not 0, as far as there is room.
struct Reported<const ROOM: usize>([AtomicU64; ROOM]);

impl<const ROOM: usize> Reported<ROOM> {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; ROOM])
    }

    /// Adds a key; false if it is there, or there is no room.
    fn add(&self, key: u64) -> bool {
        for place in &self.0 {
            match place.compare_exchange(0, key, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(other) if other == key => return false,
                Err(_) => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_new_once_and_as_long_as_there_is_room() {
        let reported = Reported::<2>::new();
        assert_eq!(
            [5, 5, 6, 7, 6].map(|key| reported.add(key)),
            [true, false, true, false, false]
        );
    }
}
