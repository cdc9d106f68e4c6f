//! The functions of the unwinder that Rust's library calls. They load libgcc_s with the first call,
//! thus with the first panic: a shared library that links this crate does not need libgcc_s when it
//! is loaded, which costs each process of its programs 0.1 to 0.2 ms.
//!
//! The process has one unwinder as before, the one that glibc loads to cancel a thread. Each
//! function jumps to the one of the same name, so that the unwinder finds the registers and the
//! frame of the caller. A program that can no longer open libgcc_s (it has changed its root
//! directory) is ended by a panic, which would otherwise fail the call.
//!
//! A static copy (libgcc_eh) costs as little: 62 page faults and 42 system calls of a program that
//! loads a small library, where libgcc_s takes 70 and 56. It is not linked: the process aborts when
//! a thread is cancelled in a frame of Rust, since glibc unwinds by its own libgcc_s, and Debian
//! 12's copy needs glibc 2.35, later than the tarball's 2.28.
//!
//! The symbols are hidden: other libraries do not see them. The crate has no items; a library links
//! it by `use urdma_unwind as _`.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ffi::{c_void, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

const LIBRARY: &CStr = c"libgcc_s.so.1";

/// Declares the functions: their names by number, and code of each, which jumps to `through` with
/// the number.
macro_rules! functions {
    ($count:literal: $($number:literal $name:ident,)*) => {
        const NAMES: [&CStr; $count] = [$({
            let name = concat!(stringify!($name), "\0").as_bytes();
            match CStr::from_bytes_with_nul(name) {
                Ok(name) => name,
                Err(_) => panic!("not a C string"),
            }
        }),*];

        global_asm!(
            ".pushsection .text.urdma_unwind, \"ax\", @progbits",
            $(concat!(
                ".globl ", stringify!($name), "\n.hidden ", stringify!($name),
                "\n.type ", stringify!($name), ", @function\n", stringify!($name),
                ":\n", code!($number), "\n.size ", stringify!($name), ", . - ", stringify!($name),
            ),)*
            through!(),
            ".popsection",
            find = sym find,
        );
    };
}

/// What a function does.
#[cfg(target_arch = "x86_64")]
macro_rules! code {
    ($number:literal) => {
        concat!("mov eax, ", $number, "\njmp 77f")
    };
}

/// Calls [`find`] and jumps to what it returns, with the arguments, the stack and the return
/// address of the caller. No function has more than three arguments.
#[cfg(target_arch = "x86_64")]
macro_rules! through {
    () => {
        "77:
        push rdi
        push rsi
        push rdx
        mov rdi, rax
        call {find}
        pop rdx
        pop rsi
        pop rdi
        jmp rax"
    };
}

/// What a function does.
#[cfg(target_arch = "aarch64")]
macro_rules! code {
    ($number:literal) => {
        concat!("mov x16, ", $number, "\nb 77f")
    };
}

/// As on x86-64.
#[cfg(target_arch = "aarch64")]
macro_rules! through {
    () => {
        "77:
        stp x29, x30, [sp, -48]!
        stp x0, x1, [sp, 16]
        str x2, [sp, 32]
        mov x29, sp
        mov x0, x16
        bl {find}
        mov x16, x0
        ldr x2, [sp, 32]
        ldp x0, x1, [sp, 16]
        ldp x29, x30, [sp], 48
        br x16"
    };
}

functions! { 14:
    0 _Unwind_RaiseException,
    1 _Unwind_Resume,
    2 _Unwind_DeleteException,
    3 _Unwind_Backtrace,
    4 _Unwind_FindEnclosingFunction,
    5 _Unwind_GetCFA,
    6 _Unwind_GetDataRelBase,
    7 _Unwind_GetIP,
    8 _Unwind_GetIPInfo,
    9 _Unwind_GetLanguageSpecificData,
    10 _Unwind_GetRegionStart,
    11 _Unwind_GetTextRelBase,
    12 _Unwind_SetGR,
    13 _Unwind_SetIP,
}

/// Their addresses; null if not looked up yet.
static FOUND: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

/// The address of the function with this number. Ends the process if there is none.
extern "C" fn find(number: usize) -> *mut c_void {
    let known = FOUND[number].load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a C string. The handle is kept: the unwinder stays loaded.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let function = if library.is_null() {
        library
    } else {
        // SAFETY: a handle and a C string.
        unsafe { libc::dlsym(library, NAMES[number].as_ptr()) }
    };
    if function.is_null() {
        let sentence = b"urdma: a panic cannot be unwound: libgcc_s.so.1 cannot be loaded\n";
        // SAFETY: the octets are readable.
        unsafe { libc::write(2, sentence.as_ptr().cast(), sentence.len()) };
        std::process::abort();
    }
    FOUND[number].store(function, Ordering::Release);
    function
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::backtrace::{Backtrace, BacktraceStatus};
    use std::panic::catch_unwind;

    #[test]
    fn panic_drops_values_and_is_caught() {
        struct Dropped<'a>(&'a AtomicPtr<c_void>);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                self.0.store(std::ptr::null_mut(), Ordering::Relaxed);
            }
        }
        let cell = AtomicPtr::new(std::ptr::without_provenance_mut(1));
        let caught = catch_unwind(|| {
            let _dropped = Dropped(&cell);
            panic!("of the test");
        });
        let text = caught.expect_err("the closure panics");
        assert_eq!(text.downcast_ref(), Some(&"of the test"));
        assert!(cell.into_inner().is_null());
        // The functions of this crate were called, not those of a library that the test links.
        for number in [0, 1, 9, 12, 13] {
            let name = NAMES[number];
            assert!(!FOUND[number].load(Ordering::Relaxed).is_null(), "{name:?}");
        }
    }

    #[test]
    fn backtrace_has_the_functions() {
        let trace = Backtrace::force_capture();
        assert_eq!(trace.status(), BacktraceStatus::Captured);
        assert!(trace.to_string().contains("backtrace_has_the_functions"));
    }

    #[test]
    fn every_function_is_in_the_library() {
        for number in 0..NAMES.len() {
            assert!(!find(number).is_null());
        }
    }
}
