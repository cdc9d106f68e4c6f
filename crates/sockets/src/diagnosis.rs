//! Which code makes system calls on sockets without the C library, where this library does not see
//! them (`urdma run --sockets-diagnose`, [adr/0022](../../../doc/adr/0022-raw-system-calls.md)).
//!
//! [`dispatch`] has a handler of SIGSYS called for each system call from outside the C library;
//! [`calls`] are those that use descriptors, [`modules`] what code is at an address.

use self::unavailable::Unavailable;
use crate::{diagnosed, process};

#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod dispatch;
#[cfg(target_arch = "x86_64")]
mod modules;
mod unavailable;

/// The library is loaded: begins the diagnosis if the program is started for it.
pub(crate) fn begin() {
    if process::variable(c"URDMA_SOCKETS_DIAGNOSE") != Some(b"1") {
        return;
    }
    match start() {
        Ok(()) => diagnosed::begin(),
        Err(reason) => eprintln!("urdma: --sockets-diagnose has no effect: {reason}"),
    }
}

#[cfg(target_arch = "x86_64")]
fn start() -> Result<(), Unavailable> {
    dispatch::start()
}

#[cfg(not(target_arch = "x86_64"))]
fn start() -> Result<(), Unavailable> {
    Err(Unavailable::Processor)
}

/// A new thread begins, or the only one of a forked child.
pub(crate) fn begin_thread() {
    #[cfg(target_arch = "x86_64")]
    if diagnosed::is_on() {
        // It has succeeded in another thread.
        let _ = dispatch::begin_thread();
    }
}
