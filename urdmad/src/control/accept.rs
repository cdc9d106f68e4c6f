//! New conversations: accepted, or refused with the reason.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::Uid;
use urdma_ipc::message::FromDaemon;
use urdma_ipc::packet::{PacketListener, PacketSocket};
use urdma_ipc::{Refusal, RefusalKind};

use super::places::Places;
use super::Control;
use crate::client::Client;
use crate::config::Quota;

/// Conversations that are accepted before those that there are have their turn.
const ACCEPTS_AT_ONCE: usize = 64;
/// How long no conversation is accepted when that fails.
const PAUSE: Duration = Duration::from_millis(100);

/// The listening socket, and a descriptor that is closed to accept a conversation when no other is
/// left: then it can be refused, while a connection that only waits would keep poll(2) from
/// sleeping.
pub(super) struct Door<'a> {
    listener: &'a PacketListener,
    spare: Option<OwnedFd>,
    places: Places,
    /// Nothing is accepted before.
    opens_at: Option<Instant>,
}

impl<'a> Door<'a> {
    pub(super) fn new(listener: &'a PacketListener, quota: &Quota) -> Self {
        let mut door = Self {
            listener,
            spare: None,
            places: Places::new(quota, Uid::effective().as_raw()),
            opens_at: None,
        };
        door.keep_spare();
        door
    }

    /// What to wait for.
    pub(super) fn events(&self, now: Instant) -> PollFlags {
        match self.opens_at(now) {
            Some(_) => PollFlags::empty(),
            None => PollFlags::POLLIN,
        }
    }

    /// When to look again, if nothing is accepted until then.
    pub(super) fn opens_at(&self, now: Instant) -> Option<Instant> {
        self.opens_at.filter(|opens_at| now < *opens_at)
    }

    fn keep_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = self.listener.as_fd().try_clone_to_owned().ok();
        }
    }

    /// Accepts one that cannot be kept. When even that fails, or none waits, nothing is accepted
    /// for a while.
    fn accept_surplus(&mut self) -> Option<PacketSocket> {
        self.spare = None;
        let accepted = self.listener.accept();
        if accepted.is_err() {
            self.opens_at = Some(Instant::now() + PAUSE);
            self.keep_spare();
        }
        accepted.ok()
    }
}

impl AsFd for Door<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Control {
    /// Accepts what waits.
    pub(super) fn accept_from(&mut self, door: &mut Door<'_>) {
        door.opens_at = None;
        for _ in 0..ACCEPTS_AT_ONCE {
            match door.listener.accept() {
                Ok(socket) => self.admit(socket, &door.places),
                Err(Errno::EAGAIN) => return,
                Err(errno) => {
                    tracing::warn!("cannot accept a connection: {errno}");
                    let Some(socket) = door.accept_surplus() else {
                        return;
                    };
                    refuse(&socket, no_descriptor_left(errno));
                    drop(socket);
                    door.keep_spare();
                }
            }
        }
    }

    fn admit(&mut self, socket: PacketSocket, places: &Places) {
        let Ok(peer) = socket.peer() else { return };
        let users = self.clients.values().map(|client| client.peer.uid());
        if let Err(refusal) = places.admit(peer.uid(), users) {
            tracing::warn!("process {}: {refusal}", peer.pid());
            return refuse(&socket, refusal);
        }
        let token = self.next_token;
        self.next_token += 1;
        self.clients.insert(token, Client::new(socket, peer));
    }
}

/// Says why a conversation ends before it has begun; it ends when the socket is dropped.
fn refuse(socket: &PacketSocket, refusal: Refusal) {
    // A peer that is gone already needs no reason.
    let _ = socket.try_send(&FromDaemon::Refused(refusal), &[]);
}

fn no_descriptor_left(errno: Errno) -> Refusal {
    let message = format!(
        "urdmad cannot accept another program ({}): end programs, or start it with a higher limit of open files",
        errno.desc()
    );
    Refusal::new(RefusalKind::Internal, message)
}
