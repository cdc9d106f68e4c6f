//! Why a port of a kind cannot be used.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

/// Why a port of a kind cannot be used.
#[derive(Debug, Error)]
pub enum KindError {
    /// The directory of a socket cannot be opened.
    #[error("cannot open {}: {}", .directory.display(), .errno.desc())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The kernel does not give its end of a port an address.
    #[error("cannot set the address of {netdev}: {error}")]
    Address {
        /// The interface.
        netdev: String,
        /// Why.
        error: io::Error,
    },
}
