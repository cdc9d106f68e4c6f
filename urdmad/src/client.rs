//! One control connection.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use nix::sys::socket::UnixCredentials;
use urdma_ipc::message::FromDaemon;
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{Event, ProcessReport};
use urdma_types::SlotId;

use crate::process;
use crate::slots::Token;

/// A connection and what its process has.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: Arc<PacketSocket>,
    /// Who it is, as the kernel says.
    pub(crate) peer: UnixCredentials,
    /// What it calls itself; nothing before it has greeted.
    pub(crate) program: Option<String>,
    pub(crate) attached: Option<Attachment>,
    pub(crate) report: Option<ProcessReport>,
    /// It has started the capture that runs, which ends with it.
    pub(crate) is_capturing: bool,
    /// It is to be dropped once its requests are handled.
    pub(crate) is_broken: bool,
}

/// A slot in use.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) slot: SlotId,
    pub(crate) since: Instant,
    /// Readable when the process is dead, even if a child of it keeps the socket open; nothing if it is in a PID namespace that we cannot
    /// see into.
    death: Option<OwnedFd>,
}

impl Client {
    pub(crate) fn new(socket: PacketSocket, peer: UnixCredentials) -> Self {
        Self {
            socket: Arc::new(socket),
            peer,
            program: None,
            attached: None,
            report: None,
            is_capturing: false,
            is_broken: false,
        }
    }

    /// The slot, if it has one.
    pub(crate) fn slot(&self) -> Option<SlotId> {
        self.attached.as_ref().map(|attached| attached.slot)
    }

    /// The process now has `slot`.
    pub(crate) fn attach(&mut self, slot: SlotId) {
        let death = match pidfd_open(self.peer.pid()) {
            Ok(death) => Some(death),
            Err(error) => {
                tracing::debug!("process {}: no pidfd: {error}", self.peer.pid());
                None
            }
        };
        self.attached = Some(Attachment {
            slot,
            since: Instant::now(),
            death,
        });
    }

    /// What to wait on for the process' death.
    pub(crate) fn death(&self) -> Option<BorrowedFd<'_>> {
        self.attached.as_ref()?.death.as_ref().map(AsFd::as_fd)
    }

    /// Whether its process is about to end: then it answers nothing more, though its descriptors are still open. One that we cannot see into is
    /// taken to live.
    pub(crate) fn is_dying(&self) -> bool {
        process::is_dying(self.peer.pid())
    }

    /// Sends a message; who does not take it is broken.
    pub(crate) fn send(&mut self, message: &FromDaemon, fds: &[BorrowedFd<'_>]) {
        if let Err(errno) = self.socket.try_send(message, fds) {
            tracing::debug!("process {}: cannot send: {errno}", self.peer.pid());
            self.is_broken = true;
        }
    }

    /// Sends an event.
    pub(crate) fn tell(&mut self, event: Event) {
        self.send(&FromDaemon::Event(event), &[]);
    }
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    if pid <= 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A status that waits for what the processes report.
#[derive(Debug)]
pub(crate) struct PendingStatus {
    pub(crate) token: Token,
    pub(crate) id: u64,
    pub(crate) missing: HashSet<Token>,
    pub(crate) deadline: Instant,
}
