//! The keys of the table `[port]` that only some kinds of ports have.

use std::path::PathBuf;

use serde::Deserialize;

/// The end of a net_memif.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Server,
    Client,
}

/// The keys that the configuration has, until a kind takes them.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) role: Option<Role>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) netdev: Option<String>,
    pub(crate) device: Option<String>,
}

/// What is wrong with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// The kind needs the key.
    Missing(&'static str),
    /// The value of the key, and what it must be.
    Wrong(&'static str, &'static str),
}

impl Keys {
    /// The name of an interface of the kernel.
    pub(super) fn take_netdev(&mut self) -> Result<String, KeyError> {
        let name = self.netdev.take().ok_or(KeyError::Missing("netdev"))?;
        if !(1..=15).contains(&name.len()) || name.contains('/') || !is_plain_argument(&name) {
            return Err(KeyError::Wrong(
                "netdev",
                "is no name of a network interface",
            ));
        }
        Ok(name)
    }
}

/// Whether `text` may be a value in DPDK's device arguments.
pub(super) fn is_plain_argument(text: &str) -> bool {
    !text.is_empty() && !text.contains([',', '=', ' ', '\n'])
}
