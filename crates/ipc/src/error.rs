//! Errors of clients and refusals by urdmad; each message states the reason and the remedy.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::trust::Untrusted;
use crate::PROTOCOL_VERSION;

/// The error of a client's call.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The run directory exists or is that of the default instance, but no urdmad answers.
    #[error("no urdmad runs for instance \"{instance}\" ({}): start one with \
        `urdma up{}`", dir.display(), instance_option(instance))]
    NoDaemon {
        /// The instance.
        instance: String,
        /// Its run directory.
        dir: PathBuf,
    },
    /// The caller may not open the control socket.
    #[error("no permission to use {}: become a member of group \"{group}\" or start an instance of \
        your own with `urdma up`", path.display())]
    PermissionDenied {
        /// The control socket.
        path: PathBuf,
        /// The group that may open it.
        group: String,
    },
    /// The run directory, or the urdmad in it, belongs to another user.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The instance does not exist, but others do.
    #[error("there is no instance \"{instance}\"; running: {}: name one of them or start it with \
        `urdma up --instance {instance}`", existing.join(", "))]
    UnknownInstance {
        /// The requested instance.
        instance: String,
        /// Instances that exist.
        existing: Vec<String>,
    },
    /// urdmad has another version of the control protocol.
    #[error(
        "urdmad is of another version than this urdma (control protocol {theirs}, not \
        {PROTOCOL_VERSION}): restart it by `urdma down` and `urdma up` of this version, or give \
        each version an instance of its own"
    )]
    VersionMismatch {
        /// urdmad's version.
        theirs: u32,
        /// urdmad's process; 0 if it is in a process namespace that cannot be seen from here.
        pid: i32,
    },
    /// urdmad refused the request.
    #[error("{0}")]
    Refused(Refusal),
    /// urdmad has closed the connection.
    #[error("urdmad has ended: start it again with `urdma up`")]
    Gone,
    /// urdmad did not answer in time.
    #[error("urdmad does not answer: see its log, then run `urdma down` and `urdma up`")]
    Timeout,
    /// A packet that violates the protocol arrived.
    #[error("unexpected message from urdmad ({0}): install the same urdma on both sides")]
    Malformed(String),
    /// A system call failed.
    #[error("cannot communicate with urdmad: {0}")]
    Io(#[from] io::Error),
}

impl ControlError {
    /// The errno that verbs callers get, positive.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::NoDaemon { .. } | Self::UnknownInstance { .. } | Self::Gone => Errno::ENODEV,
            Self::PermissionDenied { .. } | Self::Untrusted(_) => Errno::EACCES,
            Self::VersionMismatch { .. } => Errno::EPROTONOSUPPORT,
            Self::Refused(refusal) => return refusal.errno(),
            Self::Timeout => Errno::ETIMEDOUT,
            Self::Malformed(_) => Errno::EPROTO,
            Self::Io(error) => return error.raw_os_error().unwrap_or(Errno::EIO as i32),
        };
        errno as i32
    }
}

impl From<Errno> for ControlError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ECONNRESET | Errno::EPIPE => Self::Gone,
            other => Self::Io(other.into()),
        }
    }
}

/// A refusal by urdmad: a kind for programs, and a message for users.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of refusal.
    pub kind: RefusalKind,
    /// The reason and the remedy.
    pub message: String,
}

impl Refusal {
    /// A refusal of `kind` with `message`.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The errno that verbs callers get, positive.
    pub fn errno(&self) -> i32 {
        let errno = match self.kind {
            RefusalKind::VersionMismatch { .. } => Errno::EPROTONOSUPPORT,
            RefusalKind::NoFreeSlot => Errno::EMFILE,
            RefusalKind::QuotaExceeded => Errno::EDQUOT,
            RefusalKind::NotAttached => Errno::ENOTCONN,
            RefusalKind::AlreadyAttached => Errno::EISCONN,
            RefusalKind::PermissionDenied => Errno::EPERM,
            RefusalKind::AddressInUse => Errno::EADDRINUSE,
            RefusalKind::AddressNotAvailable => Errno::EADDRNOTAVAIL,
            RefusalKind::NotFound => Errno::ENOENT,
            RefusalKind::Invalid => Errno::EINVAL,
            RefusalKind::Internal => Errno::EIO,
        };
        errno as i32
    }
}

/// Kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Another version of the control protocol.
    VersionMismatch {
        /// urdmad's version.
        theirs: u32,
    },
    /// All slots are taken.
    NoFreeSlot,
    /// A quota of the configuration is reached.
    QuotaExceeded,
    /// The request needs a slot.
    NotAttached,
    /// The connection has a slot already.
    AlreadyAttached,
    /// The caller lacks the permission.
    PermissionDenied,
    /// EADDRINUSE
    AddressInUse,
    /// EADDRNOTAVAIL
    AddressNotAvailable,
    /// The named object does not exist.
    NotFound,
    /// The request is invalid.
    Invalid,
    /// urdmad or a system call failed.
    Internal,
}

fn instance_option(instance: &str) -> String {
    if instance == crate::paths::DEFAULT_INSTANCE {
        String::new()
    } else {
        format!(" --instance {instance}")
    }
}
