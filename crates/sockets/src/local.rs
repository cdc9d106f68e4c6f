//! What this library keeps for each thread.
//!
//! On x86-64 the code of a library asks the dynamic linker where its thread locals are, for more
//! than a dozen instructions each time, unless the library is loaded with the program, as one that
//! is preloaded is: then they are at a fixed distance from the thread pointer (the model
//! initial-exec of ELF). The compiler takes that model by an unstable option only, so the place is
//! declared in assembly.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use urdma_abi::handlers::PutOff;

/// Only the thread itself uses it, and its handlers. It begins with zeroes.
#[repr(C)]
pub(crate) struct Local {
    /// How many [`Masked`](crate::signals::Masked) the thread holds.
    pub(crate) depth: AtomicU32,
    /// The calls that handlers have ended with EINTR which have run since
    /// [`begin_call`](crate::signals::begin_call).
    pub(crate) ended: AtomicU32,
    pub(crate) put_off: PutOff,
    /// The number of the thread; 0 without one.
    pub(crate) thread: Cell<u64>,
    /// The thread has called vfork(2) or the like: it may be the child's.
    pub(crate) may_be_childs: Cell<bool>,
}

/// The place of the calling thread. It stays in the thread.
#[derive(Clone, Copy)]
pub(crate) struct Here(NonNull<Local>);

impl Here {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(place())
    }

    #[inline(always)]
    pub(crate) fn local(&self) -> &Local {
        // SAFETY: the place has no destructor and lives as long as its thread, which is this one,
        // since `Here` is not `Send`.
        unsafe { self.0.as_ref() }
    }
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.urdma_sockets_local, \"awT\", @nobits",
    ".balign 8",
    ".globl urdma_sockets_local",
    ".hidden urdma_sockets_local",
    ".type urdma_sockets_local, @tls_object",
    ".size urdma_sockets_local, {octets}",
    "urdma_sockets_local: .zero {octets}",
    ".popsection",
    octets = const size_of::<Local>(),
);
#[cfg(target_arch = "x86_64")]
const _: () = assert!(align_of::<Local>() == 8);

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn place() -> NonNull<Local> {
    let place: *mut Local;
    // SAFETY: the place of above, whose distance from the thread pointer the dynamic linker has
    // written when it has loaded the library. The thread pointer is the first word at itself.
    unsafe {
        std::arch::asm!(
            "mov {place}, qword ptr [rip + urdma_sockets_local@GOTTPOFF]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(pure, nomem, nostack)
        );
    }
    // SAFETY: memory of the thread is not at 0.
    unsafe { NonNull::new_unchecked(place) }
}

/// Elsewhere the dynamic linker's way is short.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn place() -> NonNull<Local> {
    thread_local! {
        static LOCAL: Local = const {
            Local {
                depth: AtomicU32::new(0),
                ended: AtomicU32::new(0),
                put_off: PutOff::new(),
                thread: Cell::new(0),
                may_be_childs: Cell::new(false),
            }
        };
    }
    LOCAL.with(|local| NonNull::from(local))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_place_that_begins_with_zeroes() {
        let number = |thread| {
            let here = Here::new();
            let before = here.local().thread.replace(thread);
            (before, Here::new().local().thread.get())
        };
        assert_eq!(number(7).1, 7);
        let other = std::thread::spawn(move || number(8)).join().unwrap();
        assert_eq!(other, (0, 8));
        assert_eq!(number(0).0, 7);
    }
}
