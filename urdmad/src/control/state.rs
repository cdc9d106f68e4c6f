//! The state of the control thread, and what each part of it does with clients: finding them,
//! answering, ending their connections.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use nix::unistd::Uid;
use urdma_channel::OwnDirectory;
use urdma_ipc::fault::Faults;
use urdma_ipc::message::FromDaemon;
use urdma_ipc::status::Counters;
use urdma_ipc::{Answer, Event, Refusal, RefusalKind};
use urdma_types::SlotId;

use super::attaches::Attaches;
use super::reaping::Reaping;
use super::sockets::Offers;
use super::spare::Spare;
use super::statuses::Statuses;
use crate::client::Client;
use crate::closing::Closer;
use crate::config::Config;
use crate::counter_files::CounterFiles;
use crate::data::command::{Command, DataHandle};
use crate::identity::Identity;
use crate::kernel::KernelDevice;
use crate::lease::Leases;
use crate::recordings::Recordings;
use crate::shared::Shared;
use crate::slots::{Slots, Token};
use crate::sockets::Sockets;
use crate::tally::Counting;

/// The answer to a request.
pub(super) type Outcome = Result<Answer, Refusal>;

/// A request is refused.
pub(super) fn refuse<T>(kind: RefusalKind, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(kind, message))
}

/// State of the control thread.
pub(crate) struct Control {
    pub(crate) config: Config,
    pub(crate) instance: String,
    pub(crate) run_dir: std::path::PathBuf,
    pub(crate) identity: Arc<Identity>,
    /// Which slots have a process, and its descriptor for the processes.
    pub(crate) directory: (OwnDirectory, OwnedFd),
    /// The descriptor of the data thread's page for the processes.
    pub(crate) page: OwnedFd,
    pub(crate) shared: Arc<Shared>,
    pub(crate) data: DataHandle,
    /// The region of the next process.
    pub(crate) spare: Spare,
    pub(crate) slots: Slots,
    pub(crate) leases: Leases,
    /// The kernel module's device that this instance serves.
    pub(crate) kernel: KernelDevice,
    /// The impairments that the data thread applies to the port's frames.
    pub(crate) faults: Faults,
    /// Name and Ethernet address of the port's device.
    pub(crate) device: Option<(String, String)>,
    pub(crate) clients: BTreeMap<Token, Client>,
    pub(crate) next_token: Token,
    pub(crate) recordings: Recordings,
    pub(crate) closer: Closer,
    /// TCP connections over rings.
    pub(crate) sockets: Sockets,
    pub(crate) attaches: Attaches,
    pub(crate) reaping: Reaping,
    pub(crate) statuses: Statuses,
    pub(crate) counters: Counters,
    /// The counters of the port as files, if they can be offered.
    pub(crate) counter_files: Option<CounterFiles>,
    pub(crate) counting: Counting,
    pub(crate) ready_at: Instant,
    pub(crate) is_ending: bool,
}

impl Control {
    /// Has a port that receives from no other groups told which ones have members here, if that has
    /// changed.
    pub(super) fn groups_changed(&self) -> Answer {
        let have_changed = self.shared.groups().have_changed();
        if have_changed && self.data.send(Command::GroupsChanged).is_err() {
            tracing::warn!("the data thread does not know the members of groups");
        }
        Answer::Done
    }

    /// For the offers of sockets.
    pub(super) fn offers(&mut self) -> Offers<'_> {
        Offers {
            clients: &mut self.clients,
            sockets: &mut self.sockets,
            closer: &self.closer,
        }
    }

    /// Sends an answer.
    pub(super) fn answer(&mut self, token: Token, id: u64, result: Outcome) {
        if let Some(client) = self.clients.get_mut(&token) {
            client.send(&FromDaemon::Answer { id, result }, &[]);
        }
    }

    /// Ends the connection of a client, and has closed what it has sent.
    pub(super) fn close(&self, client: Client) {
        let (uid, socket) = (client.peer.uid(), client.socket);
        self.closer.close(uid, socket, client.rejected);
    }

    /// Sends an event to every attached process.
    pub(crate) fn tell_all(&mut self, event: &Event) {
        let attached = self.clients.values_mut();
        for client in attached.filter(|client| client.attached.is_some()) {
            client.tell(event.clone());
        }
    }

    /// A client that exists.
    pub(super) fn client(&mut self, token: Token) -> Result<&mut Client, Refusal> {
        self.clients
            .get_mut(&token)
            .ok_or_else(|| Refusal::new(RefusalKind::Internal, "no such connection"))
    }

    /// The user of a client, unless that is the owner or root.
    pub(super) fn member(&mut self, token: Token) -> Result<Option<u32>, Refusal> {
        let uid = self.client(token)?.peer.uid();
        let is_member = uid != 0 && uid != Uid::effective().as_raw();
        Ok(is_member.then_some(uid))
    }

    /// The slot of a client that is attached.
    pub(super) fn slot_of(&self, token: Token) -> Result<SlotId, Refusal> {
        match self.clients.get(&token).and_then(|client| client.slot()) {
            Some(slot) => Ok(slot),
            None => refuse(
                RefusalKind::NotAttached,
                "this connection has no slot: attach first",
            ),
        }
    }

    /// Refuses clients of users other than the owner and root, which may not stop urdmad or see
    /// other users' packets.
    pub(super) fn may_control(&mut self, token: Token) -> Result<(), Refusal> {
        if self.member(token)?.is_none() {
            return Ok(());
        }
        refuse(
            RefusalKind::PermissionDenied,
            format!(
                "only root and the owner of this instance (user {}) may do this",
                Uid::effective()
            ),
        )
    }
}
