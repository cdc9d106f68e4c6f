//! net_af_xdp on an existing network interface.

use std::ffi::CStr;

use caps::Capability;
use urdma_underlay::MacAddr;

use super::missing::missing_capabilities;
use super::{Internet, KeyError, Keys, Kind, KindError, Named, Needs};

/// An interface of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfXdp {
    /// Its name.
    pub netdev: String,
}

impl Named for AfXdp {
    const NAME: &'static str = "af_xdp";
    const DRIVER: Option<&'static CStr> = Some(c"net_af_xdp");

    fn take(keys: &mut Keys) -> Result<Self, KeyError> {
        let netdev = keys.take_netdev()?;
        Ok(Self { netdev })
    }
}

impl Kind for AfXdp {
    fn arguments(&self, _: u16, _: MacAddr) -> Result<Option<String>, KindError> {
        Ok(Some(format!("net_af_xdp0,iface={}", self.netdev)))
    }

    /// It marks neighbours as used, and removes the BPF program at the end.
    fn needs(&self) -> Needs {
        Needs {
            capabilities: &[Capability::CAP_NET_ADMIN, Capability::CAP_BPF],
            calls: &[libc::SYS_bpf],
            internet: Internet::V4,
        }
    }

    fn shared_netdev(&self) -> Option<&str> {
        Some(&self.netdev)
    }

    fn cause(&self) -> Option<String> {
        use Capability::{CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW};
        missing_capabilities(Self::NAME, &[CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF])
    }
}
