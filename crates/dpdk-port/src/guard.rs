//! Functions of DPDK that the library replaces for its drivers, which call them through the dynamic
//! linker: it finds those here first. `crates/dpdk-sys/shim/guard.c` has the reason and the code;
//! these exist because only functions of Rust are visible outside of a library that Rust links.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

type Callback = unsafe extern "C" fn(argument: *mut c_void);
type Ended = unsafe extern "C" fn(handle: *mut c_void, argument: *mut c_void);

extern "C" {
    fn urdma_guard_register(
        handle: *const c_void,
        callback: Option<Callback>,
        argument: *mut c_void,
    ) -> c_int;
    fn urdma_guard_unregister(
        handle: *const c_void,
        callback: Option<Callback>,
        argument: *mut c_void,
    ) -> c_int;
    fn urdma_guard_unregister_pending(
        handle: *const c_void,
        callback: Option<Callback>,
        argument: *mut c_void,
        ended: Option<Ended>,
    ) -> c_int;
}

/// As DPDK's (rte_interrupts.h).
#[no_mangle]
unsafe extern "C" fn rte_intr_callback_register(
    handle: *const c_void,
    callback: Option<Callback>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments are those of DPDK's function, which this one's are too.
    unsafe { urdma_guard_register(handle, callback, argument) }
}

/// As DPDK's (rte_interrupts.h).
#[no_mangle]
unsafe extern "C" fn rte_intr_callback_unregister(
    handle: *const c_void,
    callback: Option<Callback>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments are those of DPDK's function, which this one's are too.
    unsafe { urdma_guard_unregister(handle, callback, argument) }
}

/// As DPDK's (rte_interrupts.h).
#[no_mangle]
unsafe extern "C" fn rte_intr_callback_unregister_pending(
    handle: *const c_void,
    callback: Option<Callback>,
    argument: *mut c_void,
    ended: Option<Ended>,
) -> c_int {
    // SAFETY: the caller's arguments are those of DPDK's function, which this one's are too.
    unsafe { urdma_guard_unregister_pending(handle, callback, argument, ended) }
}
