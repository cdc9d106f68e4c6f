//! The kinds of ports: all that urdmad knows of each one, beside how packets go through it
//! (`port`).
//!
//! A kind is a file with a type that implements [`Kind`], and a line in the list below.
//!
//! | file | what it holds |
//! |---|---|
//! | `af_xdp`, `device`, `memif`, `tap`, `udp` | a kind each |
//! | `error` | why one cannot be used |
//! | `keys` | the keys of the configuration that kinds take |
//! | `needs` | what a kind needs after the start, for the sandbox |
//! | `missing` | capabilities that opening a port needs and the process lacks |

mod af_xdp;
mod device;
mod error;
mod keys;
mod memif;
mod missing;
mod needs;
mod tap;
mod udp;

use std::ffi::CStr;

use serde::Deserialize;
use urdma_underlay::MacAddr;

pub use self::af_xdp::AfXdp;
pub use self::device::Device;
pub use self::error::KindError;
pub(crate) use self::keys::{KeyError, Keys, Role};
pub use self::memif::Memif;
pub(crate) use self::needs::{Internet, Needs};
pub use self::tap::Tap;
pub use self::udp::Udp;

/// What is known of a kind without a configuration.
pub(crate) trait Named: Sized {
    /// Its name in the configuration.
    const NAME: &'static str;
    /// Its driver of DPDK, such as `net_tap`, or an empty name if only the device has one; `None`:
    /// it is not of DPDK.
    const DRIVER: Option<&'static CStr>;

    /// A port of this kind, with the keys that it takes.
    fn take(keys: &mut Keys) -> Result<Self, KeyError>;
}

/// What a configured port has of its kind.
pub(crate) trait Kind {
    /// DPDK's arguments for its device, which has this IP MTU and, if it is virtual, this address;
    /// `None`: it is not of DPDK.
    ///
    /// # Errors
    /// What the device needs cannot be had.
    fn arguments(&self, _mtu: u16, _mac: MacAddr) -> Result<Option<String>, KindError> {
        Ok(None)
    }

    /// What has to be done once DPDK has opened the device, whose address this is.
    ///
    /// # Errors
    /// It cannot be done; the port is closed.
    fn opened(&self, _mac: MacAddr) -> Result<(), KindError> {
        Ok(())
    }

    /// What urdmad needs for it after the start.
    fn needs(&self) -> Needs;

    /// The IP MTU without one in the configuration.
    fn mtu(&self) -> u16 {
        1500
    }

    /// Whether urdmad computes UDP checksums without a word in the configuration.
    fn computes_checksums(&self) -> bool {
        true
    }

    /// Whether it sends from the addresses that the kernel has, as the host itself does.
    fn shares_addresses(&self) -> bool {
        false
    }

    /// The interface of the kernel that it shares, and which resolves its neighbours.
    fn shared_netdev(&self) -> Option<&str> {
        None
    }

    /// Why it could not be opened, and what to do, where the driver reports no more than an errno;
    /// `None` if there is nothing to add to that.
    fn cause(&self) -> Option<String> {
        None
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// A port of one of the kinds.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum PortKind {
            $($(#[$doc])* $name($name),)+
        }

        /// A kind as the configuration names it.
        #[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum KindName {
            None,
            $($name,)+
        }

        impl PortKind {
            /// The kinds of DPDK by name, with their drivers.
            pub(crate) fn of_dpdk() -> impl Iterator<Item = (&'static str, &'static CStr)> {
                let all = [$((<$name as Named>::NAME, <$name as Named>::DRIVER),)+];
                all.into_iter().filter_map(|(name, driver)| Some((name, driver?)))
            }

            /// Whether it is a kind of DPDK.
            pub(crate) fn is_of_dpdk(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as Named>::DRIVER.is_some(),)+
                }
            }

            /// A port with the keys that it takes; `None` without a port.
            ///
            /// # Errors
            /// A key is missing or has a wrong value.
            pub(crate) fn take(name: KindName, keys: &mut Keys) -> Result<Option<Self>, KeyError> {
                Ok(match name {
                    KindName::None => None,
                    $(KindName::$name => Some(Self::$name(<$name as Named>::take(keys)?)),)+
                })
            }

            /// The kind's name in the configuration.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => <$name as Named>::NAME,)+
                }
            }

            /// What is of its kind.
            pub(crate) fn get(&self) -> &dyn Kind {
                match self {
                    $(Self::$name(kind) => kind,)+
                }
            }
        }
    };
}

kinds! {
    /// net_memif to another instance of this machine.
    Memif,
    /// net_tap: a new network interface of the kernel, with this instance at its far end.
    Tap,
    /// net_af_xdp on an existing network interface.
    AfXdp,
    /// UDP sockets of the kernel, at the instance's addresses.
    Udp,
    /// Any device by DPDK's arguments.
    Device,
}
