//! Functions that this library does not do on rings: the descriptor, or all of them, move to TCP
//! before, and the next function of the name gets the call as it is.
//!
//! Some are variadic, and vfork(2) must not return from a frame that is gone. Each hook therefore
//! saves the registers of arguments, calls its function in Rust, which gives the address of the
//! next function, restores them and jumps there.

use std::ffi::{c_int, c_long, c_void, CStr};
use std::sync::atomic::AtomicPtr;

use urdma_abi::next::lookup;

use super::descriptors::settle_cork;
use super::{polls, selects};
use crate::reasons::Reason;
use crate::{leave, limits, process, real};

/// The registers of integer arguments, in the order in which a hook has saved them.
#[repr(C)]
struct Arguments([usize; 6]);

impl Arguments {
    fn int(&self, index: usize) -> c_int {
        // The upper half of the register has no meaning.
        c_int::from_ne_bytes(std::array::from_fn(|at| self.0[index].to_ne_bytes()[at]))
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! hook {
    ($name:ident, $before:ident) => {
        #[unsafe(naked)]
        #[allow(non_snake_case)] // the names are the C library's
        #[cfg_attr(not(test), no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov [rsp + 48], rax",
                "movups [rsp + 64], xmm0",
                "movups [rsp + 80], xmm1",
                "movups [rsp + 96], xmm2",
                "movups [rsp + 112], xmm3",
                "movups [rsp + 128], xmm4",
                "movups [rsp + 144], xmm5",
                "movups [rsp + 160], xmm6",
                "movups [rsp + 176], xmm7",
                "mov rdi, rsp",
                "call {before}",
                "mov r11, rax",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "mov rax, [rsp + 48]",
                "movups xmm0, [rsp + 64]",
                "movups xmm1, [rsp + 80]",
                "movups xmm2, [rsp + 96]",
                "movups xmm3, [rsp + 112]",
                "movups xmm4, [rsp + 128]",
                "movups xmm5, [rsp + 144]",
                "movups xmm6, [rsp + 160]",
                "movups xmm7, [rsp + 176]",
                "leave",
                "jmp r11",
                before = sym $before,
            )
        }
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! hook {
    ($name:ident, $before:ident) => {
        #[unsafe(naked)]
        #[allow(non_snake_case)] // the names are the C library's
        #[cfg_attr(not(test), no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub sp, sp, #208",
                "stp x0, x1, [sp]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "stp x8, x30, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "mov x0, sp",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp]",
                "ldp x2, x3, [sp, #16]",
                "ldp x4, x5, [sp, #32]",
                "ldp x6, x7, [sp, #48]",
                "ldp x8, x30, [sp, #64]",
                "ldp q0, q1, [sp, #80]",
                "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "add sp, sp, #208",
                "br x16",
                before = sym $before,
            )
        }
    };
}

/// What a call gets whose next function does not exist.
extern "C" fn missing() -> c_long {
    real::set_errno(libc::ENOSYS);
    -1
}

fn next(cell: &AtomicPtr<c_void>, name: &CStr) -> *const c_void {
    let found = lookup(cell, name);
    if found.is_null() {
        missing as extern "C" fn() -> c_long as *const c_void
    } else {
        found
    }
}

/// Declares hooks: the function that runs before, and the names.
macro_rules! before {
    ($($prepare:path: $($name:ident $rust:ident)*;)*) => {
        $($(
            extern "C" fn $rust(arguments: &Arguments) -> *const c_void {
                static CELL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("not a C string"),
                };
                $prepare(arguments);
                next(&CELL, NAME)
            }
            hook!($name, $rust);
        )*)*
    };
}

before! {
    all: clone before_clone _Fork before_fork_alone;
    surviving: vfork before_vfork posix_spawn before_posix_spawn
        posix_spawnp before_posix_spawnp system before_system popen before_popen;
    all_by_exec: execve before_execve execv before_execv execvp before_execvp
        execvpe before_execvpe execl before_execl execlp before_execlp execle before_execle
        execveat before_execveat fexecve before_fexecve;
    second: posix_spawn_file_actions_adddup2 before_adddup2;
    all_for_good: io_uring_queue_init before_io_uring
        io_uring_queue_init_params before_io_uring_params;
    duplicated: dup before_dup;
    shut_down: shutdown before_shutdown;
    first: fdopen before_fdopen recvmmsg before_recvmmsg
        preadv2 before_preadv2 pwritev2 before_pwritev2
        preadv64v2 before_preadv64v2 pwritev64v2 before_pwritev64v2
        sockatmark before_sockatmark dprintf before_dprintf vdprintf before_vdprintf
        __dprintf_chk before_dprintf_chk __vdprintf_chk before_vdprintf_chk;
    first_two: tee before_tee;
    spliced: splice before_splice;
    by_number: syscall before_syscall;
}

fn all(_: &Arguments) {
    process::note_child();
    leave::retire_all(Reason::Clone);
}

/// The child executes a program, or ends.
fn surviving(_: &Arguments) {
    process::note_child();
    leave::retire_surviving();
}

fn all_by_exec(_: &Arguments) {
    leave::retire_all(Reason::Exec);
}

fn all_for_good(_: &Arguments) {
    process::turn_off();
    leave::retire_all(Reason::IoUring);
}

fn duplicated(arguments: &Arguments) {
    leave::retire(arguments.int(0), Reason::Dup);
}

fn shut_down(arguments: &Arguments) {
    leave::retire(arguments.int(0), Reason::Shutdown);
}

fn first(arguments: &Arguments) {
    leave::retire(arguments.int(0), Reason::OtherCall);
}

fn second(arguments: &Arguments) {
    leave::retire(arguments.int(1), Reason::Inherited);
}

fn first_two(arguments: &Arguments) {
    leave::retire(arguments.int(0), Reason::Splice);
    leave::retire(arguments.int(1), Reason::Splice);
}

fn spliced(arguments: &Arguments) {
    leave::retire(arguments.int(0), Reason::Splice);
    leave::retire(arguments.int(2), Reason::Splice);
}

/// System calls by syscall(2).
fn by_number(arguments: &Arguments) {
    let fd = arguments.int(1);
    match arguments.0[0] as c_long {
        libc::SYS_close => leave::before_close(fd),
        libc::SYS_close_range if arguments.int(3) == 0 => {
            leave::before_close_range(fd.cast_unsigned(), arguments.int(2).cast_unsigned());
        }
        libc::SYS_io_uring_setup => all_for_good(arguments),
        libc::SYS_execve | libc::SYS_execveat => all_by_exec(arguments),
        libc::SYS_clone | libc::SYS_clone3 => all(arguments),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => all(arguments),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => surviving(arguments),
        libc::SYS_rt_sigaction => crate::signals::HANDLERS.note_direct(),
        libc::SYS_setsockopt => {
            limits::note(arguments.int(2), arguments.int(3));
            settle_cork(fd, arguments.int(2), arguments.int(3));
        }
        libc::SYS_getsockopt => settle_cork(fd, arguments.int(2), arguments.int(3)),
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_sendto
        | libc::SYS_recvfrom
        | libc::SYS_sendmsg
        | libc::SYS_recvmsg
        | libc::SYS_sendmmsg
        | libc::SYS_recvmmsg
        | libc::SYS_shutdown
        | libc::SYS_dup
        | libc::SYS_dup3 => leave::retire(fd, Reason::Syscall),
        libc::SYS_sendfile | libc::SYS_splice | libc::SYS_tee => {
            for index in 1..4 {
                leave::retire(arguments.int(index), Reason::Syscall);
            }
        }
        libc::SYS_epoll_ctl => {
            leave::retire(fd, Reason::Syscall);
            leave::retire(arguments.int(3), Reason::Syscall);
        }
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => leave::retire(fd, Reason::Syscall),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => leave::retire(fd, Reason::Syscall),
        libc::SYS_ppoll => listed(arguments),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => listed(arguments),
        libc::SYS_pselect6 => named(arguments),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => named(arguments),
        _ => {}
    }
}

/// poll and ppoll by number.
fn listed(arguments: &Arguments) {
    let list = arguments.0[1] as *const libc::pollfd;
    // SAFETY: the list of the caller.
    unsafe { polls::retire_list(list, arguments.0[2], Reason::Syscall) };
}

/// select and pselect6 by number.
fn named(arguments: &Arguments) {
    let set = |index: usize| arguments.0[index] as *mut libc::fd_set;
    // SAFETY: the sets of the caller.
    unsafe { selects::retire_sets(arguments.int(1), [set(2), set(3), set(4)], Reason::Syscall) };
}
