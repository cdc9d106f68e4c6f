//! The parameters of a port, validated.

#![allow(unsafe_code)]

use std::ffi::{c_char, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use urdma_abi::port::{kind, PortParams};
use urdma_underlay::MacAddr;

use crate::error::OpenError;

/// The parameters of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) kind: Kind,
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
    /// Ethernet address of a virtual device.
    pub(crate) mac: MacAddr,
}

/// Kinds of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// net_memif.
    Memif { is_server: bool, socket: PathBuf },
    /// net_tap.
    Tap { netdev: String },
    /// net_af_xdp.
    AfXdp { netdev: String },
    /// Any device by DPDK's arguments.
    Device { device: String },
}

impl Kind {
    /// A kind by its number.
    pub(crate) fn new(number: u32, device: &OsStr) -> Result<Self, OpenError> {
        let text = || device.to_string_lossy().into_owned();
        match number {
            kind::MEMIF_SERVER | kind::MEMIF_CLIENT => Ok(Self::Memif {
                is_server: number == kind::MEMIF_SERVER,
                socket: device.into(),
            }),
            kind::TAP => Ok(Self::Tap { netdev: text() }),
            kind::AF_XDP => Ok(Self::AfXdp { netdev: text() }),
            kind::DEVICE => Ok(Self::Device { device: text() }),
            _ => Err(OpenError::Kind(number)),
        }
    }
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
        Ok(Self {
            kind: Kind::new(params.kind, &needed(params.device)?)?,
            file_prefix: needed(params.file_prefix)?.to_string_lossy().into_owned(),
            run_dir: needed(params.run_dir)?.into(),
            log: text(params.log).map(PathBuf::from),
            hugepages_mb: (params.hugepages_mb != 0).then_some(params.hugepages_mb),
            mtu: params.mtu,
            lease_queues: params.lease_queues,
            mac: MacAddr(params.mac),
        })
    }
}
