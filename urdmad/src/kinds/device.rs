//! Any device by DPDK's arguments: `net_...,key=value` or a PCI address.

use std::path::Path;

use caps::Capability;
use libc::c_long;
use urdma_abi::port::kind;

use super::{Internet, KeyError, Keys, Kind, Named, Needs};

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
    const DPDK: Option<u32> = Some(kind::DEVICE);

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
    fn device(&self) -> Option<(u32, &Path)> {
        Some((kind::DEVICE, Path::new(&self.device)))
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
