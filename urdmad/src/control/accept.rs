//! New connections of clients: accepted, or refused with the reason.

use nix::errno::Errno;
use urdma_ipc::message::FromDaemon;
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{Refusal, RefusalKind};

use super::acceptor::Acceptor;
use super::places::Places;
use super::state::Control;
use crate::client::Client;

/// Connections accepted in one turn of the control loop.
const ACCEPTS_AT_ONCE: usize = 64;

impl Control {
    /// Accepts the connections of the backlog.
    pub(super) fn accept_from(&mut self, acceptor: &mut Acceptor<'_>) {
        if self.closer.is_behind(acceptor.is_short) {
            return acceptor.wait_for_closing();
        }
        acceptor.open();
        for _ in 0..ACCEPTS_AT_ONCE {
            match acceptor.accept() {
                Ok(socket) => self.admit(socket, &acceptor.places),
                Err(Errno::EAGAIN) => return,
                Err(errno) => {
                    tracing::warn!("cannot accept a connection: {errno}");
                    let Some(socket) = acceptor.accept_surplus() else {
                        return;
                    };
                    self.refuse(socket, no_descriptor_left(errno));
                    // The spare descriptor is free again when the closing thread has closed it.
                    return acceptor.wait_for_closing();
                }
            }
        }
    }

    fn admit(&mut self, socket: PacketSocket, places: &Places) {
        let Ok(peer) = socket.peer() else {
            return self.closer.close_refused(socket);
        };
        let leaving = self.closer.users();
        let users = self.clients.values().map(|client| client.peer.uid());
        if let Err(refusal) = places.admit(peer.uid(), users.chain(leaving.iter().copied())) {
            tracing::warn!("process {}: {refusal}", peer.pid());
            return self.refuse(socket, refusal);
        }
        let token = self.next_token;
        self.next_token += 1;
        self.clients.insert(token, Client::new(socket, peer));
    }

    /// Sends the reason of a refusal, and ends the connection.
    fn refuse(&self, socket: PacketSocket, refusal: Refusal) {
        // An error means that the peer has closed the connection already.
        let _ = socket.try_send(&FromDaemon::Refused(refusal), &[]);
        self.closer.close_refused(socket);
    }
}

fn no_descriptor_left(errno: Errno) -> Refusal {
    let message = format!(
        "urdmad cannot accept another program ({}): end programs, or start it with a higher limit \
         of open files",
        errno.desc()
    );
    Refusal::new(RefusalKind::Internal, message)
}
