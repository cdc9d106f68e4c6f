//! The functions that `liburdmadv.so` calls ([`urdma_abi::dv`]).

use std::ffi::{c_char, c_void, CStr};
use std::ptr::{addr_of, null, null_mut};

use rdma_core_sys::verbs::{ibv_qp, ibv_qp_init_attr_ex};

use super::context::Context;
use super::errno::VerbsError;
use super::qp::structure::QueuePair;
use super::qp::transitions::Service;
use super::qp::{calls, dc};
use super::{ffi, reason};
use urdma_abi::dv::{CreateQp, DvInitAttr, DvQpEx, LastError, QpEx};

/// `urdmadv_create_qp`
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_dv_create_qp(
    context: *mut c_void,
    attr: *mut c_void,
    dv: *const DvInitAttr,
) -> *mut c_void {
    let made: *mut ibv_qp = ffi::pointer(|| {
        reason::forget();
        // SAFETY: the application passes an open context of this plugin and its attributes.
        let (owner, attr, dv) = unsafe {
            (
                Context::from_ptr(context.cast()),
                attr.cast::<ibv_qp_init_attr_ex>()
                    .as_mut()
                    .ok_or(VerbsError::Invalid)?,
                dv.as_ref().copied().unwrap_or_default(),
            )
        };
        let role = dc::role_of(attr, &dv)?;
        if role.is_some() {
            owner.refuse_on_rnic().map_err(|error| {
                let reason = c"a device of iWARP has no dynamically connected transport";
                reason::refused(error, reason)
            })?;
        } else {
            calls::check_extended(attr)?;
        }
        calls::create_extended((owner, context.cast()), attr, role)
    });
    made.cast()
}

/// `urdmadv_qp_ex_from_ibv_qp_ex`
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_dv_qp_ex(qp: *mut c_void) -> *mut DvQpEx {
    // SAFETY: the application passes a queue pair of this plugin with extended calls.
    let object = unsafe { QueuePair::from_ptr(qp.cast()) };
    match object.service {
        Service::DcInitiator => addr_of!(object.dv).cast_mut(),
        _ => null_mut(),
    }
}

/// The sentence for `urdmadv_last_error`.
#[no_mangle]
pub(crate) extern "C" fn urdma_dv_last_error() -> *const c_char {
    reason::last().map_or(null(), CStr::as_ptr)
}

const _: (CreateQp, QpEx, LastError) = (urdma_dv_create_qp, urdma_dv_qp_ex, urdma_dv_last_error);

#[cfg(test)]
mod tests {
    use urdma_abi::dv::{CREATE_QP, LAST_ERROR, QP_EX};

    #[test]
    fn functions_have_the_names_under_which_they_are_looked_up() {
        let names = [CREATE_QP, QP_EX, LAST_ERROR].map(|name| name.to_str());
        let functions = [
            "urdma_dv_create_qp",
            "urdma_dv_qp_ex",
            "urdma_dv_last_error",
        ];
        assert_eq!(names, functions.map(Ok));
    }
}
