//! The kernel module's requests, and the outputs of connection management for it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use urdma_cm::wire::ReqRoute;
use urdma_cm::Peer;
use urdma_ipc::message::{QpOutcome, QpTarget, QPS_AT_ONCE};
use urdma_ipc::{Event, PortTable};
use urdma_kernel::abi::CmMessage;
use urdma_types::{Qpn, RawQpn, SlotId, Time};

use super::state::Control;
use crate::client::Client;
use crate::data::command::{Command, NotTaken};
use crate::data::DaemonDatagram;
use crate::kernel_cm::Output;
use crate::listeners::RequestTarget;
use crate::slots::Token;

/// What is told when all outputs that there are have been handled.
#[derive(Default)]
struct Told {
    /// To the module.
    kernel: Vec<CmMessage>,
    /// To the owners of queue pairs.
    to_set: Vec<(RawQpn, QpTarget)>,
    /// To the process of a listener and that of a request.
    askers: Vec<(u32, (IpAddr, SlotId))>,
}

impl Told {
    fn is_empty(&self) -> bool {
        self.kernel.is_empty() && self.to_set.is_empty() && self.askers.is_empty()
    }
}

impl Control {
    /// Takes the requests of the kernel module, of which poll(2) has reported that there are some.
    pub(super) fn take_from_kernel(&mut self) {
        let now = self.now();
        for message in self.kernel.receive() {
            self.kernel.cm.take(now, &message, &self.shared);
        }
    }

    /// Handles the datagrams and timers of connection management for the kernel module, and all
    /// that follows from them and from the module's requests.
    pub(super) fn serve_kernel(&mut self) {
        let now = self.now();
        for (from, datagram) in self.shared.take_cm_datagrams() {
            self.kernel.cm.handle_datagram(now, from, &datagram);
        }
        let clients = &self.clients;
        let is_dying = |qpn| {
            let owner = clients.values().find(|client| is_owner(client, qpn));
            owner.is_none_or(Client::is_dying)
        };
        self.kernel.cm.handle_timeout(now, is_dying);
        loop {
            let told = self.handle_outputs(now);
            if told.is_empty() {
                return;
            }
            self.tell_batch(now, told);
        }
    }

    /// Handles the outputs that there are; gives what is to be told, which may lead to others.
    fn handle_outputs(&mut self, now: Time) -> Told {
        let mut told = Told::default();
        while let Some(output) = self.kernel.cm.next_output(now) {
            match output {
                Output::Kernel(message) => told.kernel.push(*message),
                Output::Requested(pid, asker) => told.askers.push((pid, asker)),
                Output::SetQp(qpn, target) => told.to_set.push((qpn, target)),
                Output::EndQp(qpn) => {
                    // After it is set, if that is still to be told.
                    self.set_qps(now, std::mem::take(&mut told.to_set));
                    // The queue pair of a process that has ended has ended with it.
                    let event = Event::EndQp { qpn: qpn.to_u32() };
                    self.tell_owner(qpn, event);
                }
                Output::Send(to, datagram) => self.send_cm(now, to, &datagram),
            }
        }
        told
    }

    /// Tells the module by one system call, and each process by one message.
    fn tell_batch(&mut self, now: Time, told: Told) {
        self.tell_kernel(now, &told.kernel);
        self.set_qps(now, told.to_set);
        if !told.askers.is_empty() {
            // The kernel takes the request to the program first. The channel is not needed before
            // the program has accepted.
            std::thread::yield_now();
        }
        for (pid, asker) in told.askers {
            self.introduce_to(pid, &[asker]);
        }
    }

    /// Has the owners of queue pairs set them.
    fn set_qps(&mut self, now: Time, to_set: Vec<(RawQpn, QpTarget)>) {
        let mut of_slots: BTreeMap<Option<SlotId>, Vec<(RawQpn, QpTarget)>> = BTreeMap::new();
        for (qpn, target) in to_set {
            let slot = qpn.to_qpn().map(Qpn::slot);
            of_slots.entry(slot).or_default().push((qpn, target));
        }
        for to_set in of_slots.values().flat_map(|all| all.chunks(QPS_AT_ONCE)) {
            let targets = to_set.iter().map(|(_, target)| *target).collect();
            let is_told = to_set
                .first()
                .is_some_and(|(qpn, _)| self.tell_owner(*qpn, Event::SetQps(targets)));
            if !is_told {
                for (qpn, _) in to_set {
                    self.kernel.cm.qp_is_set(now, *qpn, false);
                }
            }
        }
    }

    /// Introduces the process, which has attached, to all that wait for its answer.
    pub(super) fn introduce_askers(&mut self, pid: u32) {
        let askers = self.kernel.cm.askers(pid);
        self.introduce_to(pid, &askers);
    }

    /// Has the process, if it has a slot, and those of this host that wait for its answer open the
    /// channels for their connections, while it decides.
    fn introduce_to(&mut self, pid: u32, askers: &[(IpAddr, SlotId)]) {
        let is_it = |client: &&Client| client.pid() == Some(pid);
        let Some(slot) = self.clients.values().filter(is_it).find_map(Client::slot) else {
            return;
        };
        for &(ip, asker) in askers {
            if self.identity.owns(ip) {
                self.introduce(slot, asker);
            }
        }
    }

    /// Tells the module, which has just begun to be served, which processes have slots.
    pub(super) fn tell_kernel_slots(&self) {
        for client in self.clients.values() {
            if let Some(slot) = client.slot() {
                self.kernel.give_slot(slot, client.pid());
            }
        }
    }

    /// When [`Control::serve_kernel`] must be called at the latest.
    pub(super) fn kernel_deadline(&self) -> Option<Instant> {
        let deadline = self.kernel.cm.next_deadline()?;
        Some(self.ready_at + Duration::from_nanos(deadline.as_ns()))
    }

    /// The device is gone, with its listeners and connections.
    pub(super) fn kernel_device_is_gone(&mut self) {
        self.kernel.cm.clear(self.now(), &self.shared);
        self.kernel.device_is_gone(Instant::now());
    }

    /// A process has set queue pairs, or failed to.
    pub(super) fn qps_are_set(&mut self, token: Token, outcomes: &[QpOutcome]) {
        let now = self.now();
        for outcome in outcomes {
            let (Some(client), Some(qpn)) = (self.clients.get(&token), RawQpn::new(outcome.qpn))
            else {
                continue;
            };
            if is_owner(client, qpn) {
                self.kernel.cm.qp_is_set(now, qpn, outcome.succeeded);
            }
        }
    }

    fn now(&self) -> Time {
        Time::ZERO.plus(self.ready_at.elapsed())
    }

    fn tell_kernel(&mut self, now: Time, messages: &[CmMessage]) {
        let mut rest = messages;
        while let Some((first, others)) = rest.split_first() {
            let taken = match self.kernel.agent() {
                Some(agent) => agent.send(rest),
                None => Err(std::io::Error::from_raw_os_error(libc::ENODEV)),
            };
            match taken {
                Ok(taken) => rest = rest.get(taken.max(1)..).unwrap_or_default(),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    self.kernel.cm.not_taken(now, first, errno);
                    rest = others;
                }
            }
        }
    }

    /// Sends an event to the process that owns a queue pair; false if there is none.
    fn tell_owner(&mut self, qpn: RawQpn, event: Event) -> bool {
        let mut clients = self.clients.values_mut();
        let owner = clients.find(|client| is_owner(client, qpn));
        owner.map(|client| client.tell(event)).is_some()
    }

    /// Sends a datagram: one for slot 0 of this host is handled here, others go by the data thread.
    fn send_cm(&mut self, now: Time, to: Peer, datagram: &[u8]) {
        let is_own = self.identity.owns(to.ip);
        let mut slot = to.slot;
        if is_own && slot == SlotId::DAEMON {
            match ReqRoute::parse(datagram).map(|route| self.request_target(&route)) {
                // The engine knows the requests that it has, even if their listener is closed, and
                // refuses others.
                None | Some(RequestTarget::Listening(SlotId::DAEMON) | RequestTarget::Unbound) => {
                    return self.kernel.cm.handle_datagram(now, to.ip, datagram);
                }
                Some(RequestTarget::Listening(listener)) => slot = listener,
                // The retransmission finds the listener.
                Some(RequestTarget::Bound) => return,
            }
        }
        if let Some(answer) = DaemonDatagram::of_cm(&self.identity, to.ip, slot, datagram) {
            // CM retransmits what is dropped.
            if self.data.send(Command::Send(Box::new(answer))) == Err(NotTaken::Full) {
                self.shared.counters.drop_cm_commands_full.bump();
            }
        }
    }

    fn request_target(&self, route: &ReqRoute) -> RequestTarget {
        PortTable::of(route.port_space).map_or(RequestTarget::Unbound, |space| {
            let listeners = self.shared.listeners();
            listeners.find(space, route.dst.ip(), route.dst.port())
        })
    }
}

/// Whether the client's slot is that of the queue pair's number.
fn is_owner(client: &Client, qpn: RawQpn) -> bool {
    let slot = qpn.to_qpn().map(Qpn::slot);
    slot.is_some() && client.slot() == slot
}

#[cfg(test)]
mod tests;
