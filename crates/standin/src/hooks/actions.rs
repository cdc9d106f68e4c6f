//! The functions that install handlers of signals, and the one by which the provider has faults
//! repaired: see [`crate::signals`].

use std::ffi::c_int;

use urdma_abi::faults::RepairFn;

use crate::active::is_active;
use crate::real;
use crate::signals::{FAULTS, HANDLERS};

urdma_abi::handler_hooks! { real, HANDLERS, is_active() }

/// The provider repairs faults from now on.
#[cfg_attr(not(test), no_mangle)]
unsafe extern "C" fn urdma_repair_faults(repair: RepairFn) -> c_int {
    let is_active = is_active();
    if is_active {
        FAULTS.begin(repair);
    }
    c_int::from(is_active)
}
