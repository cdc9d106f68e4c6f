//! Flight recordings: taking those of processes, and passing them to clients that may read them.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use urdma_ipc::message::FromDaemon;
use urdma_ipc::{Answer, RecordingInfo, Refusal, RefusalKind};

use super::state::Control;
use crate::descriptors::is_region;
use crate::slots::Token;

/// Descriptors of recordings that a client may leave unread.
const UNREAD_MAX: usize = 16;

impl Control {
    /// A process gives its recording, once. A client whose descriptors are others is disconnected.
    pub(super) fn take_recording(&mut self, token: Token, fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let taken = match (client.slot(), <[OwnedFd; 1]>::try_from(fds)) {
            (Some(slot), Ok([memory])) if is_region(&memory) => {
                let info = RecordingInfo {
                    slot: slot.number(),
                    pid: client.peer.pid(),
                    uid: client.peer.uid(),
                    program: client.program.clone().unwrap_or_default(),
                    ..RecordingInfo::default()
                };
                self.recordings.add(token, info, memory)
            }
            (_, Ok(other)) => {
                client.rejected.extend(other);
                false
            }
            (_, Err(others)) => {
                client.rejected.extend(others);
                false
            }
        };
        if !taken {
            tracing::warn!("process {}: not a recording", client.peer.pid());
            client.is_broken = true;
        }
    }

    /// The recordings that a client may read: of all users, if it is the owner's or root's.
    pub(super) fn readable_recordings(&mut self, token: Token) -> Result<Answer, Refusal> {
        let uid = self.member(token)?;
        let list = self.recordings.list(uid, Instant::now());
        Ok(Answer::Recordings(list))
    }

    /// Passes a recording to a client.
    pub(super) fn send_recording(&mut self, token: Token, id: u64, number: u64) {
        let refusal = match self.member(token) {
            Ok(uid) => {
                let (Some(memory), Some(client)) = (
                    self.recordings.memory(number, uid),
                    self.clients.get_mut(&token),
                ) else {
                    let message = format!("there is no recording {number} (any more)");
                    return self.answer(
                        token,
                        id,
                        Err(Refusal::new(RefusalKind::NotFound, message)),
                    );
                };
                if client.unread() < UNREAD_MAX {
                    let result = Ok(Answer::Recording);
                    client.send(&FromDaemon::Answer { id, result }, &[memory.as_fd()]);
                    return;
                }
                let message = "read the answers to earlier requests first";
                Refusal::new(RefusalKind::QuotaExceeded, message)
            }
            Err(refusal) => refusal,
        };
        self.answer(token, id, Err(refusal));
    }
}
