//! net_tap: a new network interface of the kernel, with this instance at its far end.

use std::path::Path;

use caps::Capability;
use nix::net::if_::if_nametoindex;
use urdma_abi::port::kind;

use super::missing::missing_capabilities;
use super::{Internet, KeyError, Keys, Kind, Named, Needs};

/// A new interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tap {
    /// Its name.
    pub netdev: String,
}

impl Named for Tap {
    const NAME: &'static str = "tap";
    const DPDK: Option<u32> = Some(kind::TAP);

    fn take(keys: &mut Keys) -> Result<Self, KeyError> {
        let netdev = keys.take_netdev()?;
        Ok(Self { netdev })
    }
}

impl Kind for Tap {
    fn device(&self) -> Option<(u32, &Path)> {
        Some((kind::TAP, Path::new(&self.netdev)))
    }

    /// The interface ends with its descriptor.
    fn needs(&self) -> Needs {
        Needs {
            internet: Internet::V4,
            ..Needs::NOTHING
        }
    }

    fn cause(&self) -> Option<String> {
        let missing = missing_capabilities(Self::NAME, &[Capability::CAP_NET_ADMIN]);
        missing.or_else(|| taken(&self.netdev))
    }
}

/// Whether the name of a new interface is in use.
fn taken(netdev: &str) -> Option<String> {
    if_nametoindex(netdev).ok()?;
    Some(format!(
        "there is a network interface \"{netdev}\" already: choose another name for port.netdev"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_an_interface_that_exists_is_explained() {
        assert!(taken("lo").unwrap().contains("\"lo\" already"));
        assert_eq!(taken("no-such-netdev"), None);
    }
}
