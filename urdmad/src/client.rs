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

use crate::groups::SlotSet;
use crate::process;
use crate::slots::Token;

/// A connection and the resources of its process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: Arc<PacketSocket>,
    /// The peer's credentials, from the kernel.
    pub(crate) peer: UnixCredentials,
    /// The program name that the client states in its hello.
    pub(crate) program: Option<String>,
    pub(crate) attached: Option<Attachment>,
    pub(crate) report: Option<ProcessReport>,
    /// The slots whose processes it has offered a channel to.
    pub(crate) offered: SlotSet,
    /// It has started the active capture, which ends with it.
    pub(crate) is_capturing: bool,
    /// It is to be disconnected once its requests are handled.
    pub(crate) is_broken: bool,
}

/// A slot in use.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) slot: SlotId,
    pub(crate) since: Instant,
    /// A pidfd, readable when the process is dead even if a child keeps the socket open; none for a
    /// process in a PID namespace that is not visible.
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
            offered: SlotSet::default(),
            is_capturing: false,
            is_broken: false,
        }
    }

    /// The slot, if it has one.
    pub(crate) fn slot(&self) -> Option<SlotId> {
        self.attached.as_ref().map(|attached| attached.slot)
    }

    /// Records the slot of the process.
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

    /// The descriptor that reports the process' death.
    pub(crate) fn death(&self) -> Option<BorrowedFd<'_>> {
        self.attached.as_ref()?.death.as_ref().map(AsFd::as_fd)
    }

    /// Whether the process is about to end: it answers nothing more, though its descriptors are
    /// still open. A process that is not visible counts as living.
    pub(crate) fn is_dying(&self) -> bool {
        process::is_dying(self.peer.pid())
    }

    /// Sends a message; a client that does not read it is broken.
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

/// A status request that waits for reports of processes.
#[derive(Debug)]
pub(crate) struct PendingStatus {
    pub(crate) token: Token,
    pub(crate) id: u64,
    pub(crate) missing: HashSet<Token>,
    pub(crate) deadline: Instant,
}
