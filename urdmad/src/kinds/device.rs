//! Any device by DPDK's arguments: `net_...,key=value` or a PCI address.

use std::ffi::CStr;

use caps::Capability;
use libc::c_long;
use urdma_underlay::MacAddr;

use super::{Internet, KeyError, Keys, Kind, KindError, Named, Needs};

/// Calls of drivers, which older processors have.
#[cfg(target_arch = "x86_64")]
const CALLS: &[c_long] = &[libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const CALLS: &[c_long] = &[];

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// DPDK's arguments.
    pub device: String,
}

impl Named for Device {
    const NAME: &'static str = "device";
    const DRIVER: Option<&'static CStr> = Some(c"");

    fn take(keys: &mut Keys) -> Result<Self, KeyError> {
        let device = keys.device.take().ok_or(KeyError::Missing("device"))?;
        if device.trim().is_empty() {
            let message = "must be what DPDK calls the device: a PCI address such as \
                           \"0000:03:00.0\", or \"net_...\" with arguments";
            return Err(KeyError::Wrong("device", message));
        }
        Ok(Self { device })
    }
}

impl Kind for Device {
    fn arguments(&self, _: u16, _: MacAddr) -> Result<Option<String>, KindError> {
        Ok(Some(self.device.clone()))
    }

    /// Flow rules, raw queues, memory for DMA, I/O ports: its driver is not known.
    fn needs(&self) -> Needs {
        Needs {
            capabilities: &[
                Capability::CAP_NET_ADMIN,
                Capability::CAP_NET_RAW,
                Capability::CAP_IPC_LOCK,
                Capability::CAP_SYS_RAWIO,
            ],
            calls: CALLS,
            internet: Internet::V4,
        }
    }
}
