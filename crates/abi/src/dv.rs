//! The functions of the provider that `liburdmadv.so` calls, and the structures of
//! `infiniband/urdmadv.h`.
//!
//! `liburdmadv.so` looks them up in the provider whose functions a context has
//! (doc/adr/0021-urdmadv.md). Pointers to structures of libibverbs are untyped, since this crate
//! does not know them. Later versions only append fields, and masks say which are valid.

use std::ffi::{c_char, c_void, CStr};

/// The name of a function of type [`CreateQp`].
pub const CREATE_QP: &CStr = c"urdma_dv_create_qp";
/// The name of a function of type [`QpEx`].
pub const QP_EX: &CStr = c"urdma_dv_qp_ex";
/// The name of a function of type [`LastError`].
pub const LAST_ERROR: &CStr = c"urdma_dv_last_error";

/// `urdmadv_create_qp`: a context, `struct ibv_qp_init_attr_ex`, and what is in addition or null;
/// null with errno on failure.
pub type CreateQp =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *const DvInitAttr) -> *mut c_void;
/// `urdmadv_qp_ex_from_ibv_qp_ex`: the structure of an initiator, null for another queue pair.
pub type QpEx = unsafe extern "C" fn(*mut c_void) -> *mut DvQpEx;
/// The sentence that says why the last call of this thread was refused; null: errno says it.
pub type LastError = extern "C" fn() -> *const c_char;

/// Bits of [`DvInitAttr::comp_mask`] (`enum urdmadv_qp_init_attr_mask`).
pub mod init {
    /// `create_flags` is valid.
    pub const CREATE_FLAGS: u64 = 1 << 0;
    /// `dc` is valid.
    pub const DC: u64 = 1 << 1;
}

/// Bits of [`DvInitAttr::create_flags`] (`enum urdmadv_qp_create_flags`): hints of mlx5dv, which
/// change nothing.
pub const CREATE_HINTS: u32 = 1 << 3 | 1 << 4;

/// Values of [`DcInitAttr::dc_type`] (`enum urdmadv_dc_type`).
pub mod dc_type {
    /// A target.
    pub const DCT: u32 = 1;
    /// An initiator.
    pub const DCI: u32 = 2;
}

/// `struct urdmadv_qp_init_attr`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DvInitAttr {
    /// Bits of [`init`].
    pub comp_mask: u64,
    /// [`CREATE_HINTS`].
    pub create_flags: u32,
    /// `dc_init_attr`
    pub dc: DcInitAttr,
}

/// `struct urdmadv_dc_init_attr`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DcInitAttr {
    /// One of [`dc_type`].
    pub dc_type: u32,
    /// The access key of a target.
    pub dct_access_key: u64,
}

/// `struct urdmadv_qp_ex`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DvQpEx {
    /// Calls after `wr_set_dc_addr` that there are: none.
    pub comp_mask: u64,
    /// Names the target of the request that is being built: an address handle, number and key.
    pub wr_set_dc_addr: unsafe extern "C" fn(*mut DvQpEx, *mut c_void, u32, u64),
}
