//! The parameters of a port, validated.

#![allow(unsafe_code)]

use std::ffi::{c_char, CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use urdma_abi::port::PortParams;

use crate::error::OpenError;

/// The parameters of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// DPDK's arguments for the device.
    pub(crate) device: String,
    /// The network interface that the device shares with the kernel.
    pub(crate) shared_netdev: Option<String>,
    pub(crate) file_prefix: String,
    pub(crate) run_dir: PathBuf,
    /// File for DPDK's messages.
    pub(crate) log: Option<PathBuf>,
    /// Hugepages to take, MB; `None`: as much as is needed.
    pub(crate) hugepages_mb: Option<u32>,
    /// Largest IP packet, octets.
    pub(crate) mtu: u16,
    /// Queue pairs that are to be lent.
    pub(crate) lease_queues: u16,
}

impl Params {
    /// Copies parameters.
    ///
    /// # Safety
    /// The strings are null or valid.
    pub(crate) unsafe fn new(params: &PortParams) -> Result<Self, OpenError> {
        let text = |pointer: *const c_char| {
            // SAFETY: null or a string, as the caller guarantees.
            let text = (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) });
            text.map(|text| OsStr::from_bytes(text.to_bytes()).to_owned())
        };
        let needed = |pointer| text(pointer).ok_or(OpenError::Parameter);
        let owned = |text: OsString| text.to_string_lossy().into_owned();
        Ok(Self {
            device: owned(needed(params.device)?),
            shared_netdev: text(params.shared_netdev).map(owned),
            file_prefix: owned(needed(params.file_prefix)?),
            run_dir: needed(params.run_dir)?.into(),
            log: text(params.log).map(PathBuf::from),
            hugepages_mb: (params.hugepages_mb != 0).then_some(params.hugepages_mb),
            mtu: params.mtu,
            lease_queues: params.lease_queues,
        })
    }
}
