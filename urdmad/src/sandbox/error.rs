//! Why the process keeps what it could give up.

use std::io;

use nix::errno::Errno;
use thiserror::Error;

/// A restriction that is not in force.
#[derive(Debug, Error)]
pub(super) enum SandboxError {
    /// The capabilities of this process are not known.
    #[error(transparent)]
    Capabilities(#[from] caps::errors::CapsError),
    /// The signal cannot be handled by which threads are interrupted.
    #[error("cannot handle a signal: {}", .0.desc())]
    Signal(Errno),
    /// /proc does not tell which threads there are.
    #[error("cannot list threads: {0}")]
    Threads(io::Error),
    /// So many have kept more than they need.
    #[error("{0} threads do not answer")]
    Silent(usize),
    /// New privileges cannot be excluded.
    #[error("no_new_privs: {}", .0.desc())]
    NewPrivileges(Errno),
    /// The rules make no filter.
    #[error(transparent)]
    Rules(#[from] seccompiler::BackendError),
    /// This thread has a filter that the others do not have.
    #[error("thread {0} has another filter")]
    OtherFilter(i64),
    /// The kernel refuses the filter.
    #[error(transparent)]
    Refused(#[from] seccompiler::Error),
}
