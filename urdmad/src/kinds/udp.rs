//! UDP sockets of the kernel, at the instance's addresses, without DPDK.

use std::ffi::CStr;

use super::{Internet, KeyError, Keys, Kind, Named, Needs};

/// Has no keys of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp;

impl Named for Udp {
    const NAME: &'static str = "udp";
    const DRIVER: Option<&'static CStr> = None;

    fn take(_: &mut Keys) -> Result<Self, KeyError> {
        Ok(Self)
    }
}

impl Kind for Udp {
    /// Some sockets are made when they are needed.
    fn needs(&self) -> Needs {
        Needs {
            internet: Internet::Both,
            ..Needs::NOTHING
        }
    }

    /// The kernel does.
    fn computes_checksums(&self) -> bool {
        false
    }

    fn shares_addresses(&self) -> bool {
        true
    }
}
