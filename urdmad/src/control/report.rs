//! Status: collecting the reports of the processes, then answering.

use std::collections::HashSet;
use std::time::Instant;

use urdma_ipc::packet::PACKET_OCTETS_MAX;
use urdma_ipc::status::{FaultStatus, PortStatus, SlotStatus};
use urdma_ipc::{Answer, Event, ProcessReport, Status};

use super::state::Control;
use super::statuses::Asked;
use crate::client::Client;
use crate::data::command::Reported;
use crate::log;
use crate::slots::Token;

/// Statuses that a client may wait for.
const STATUSES_AT_ONCE_MAX: usize = 4;
/// Maximum length of a status, so that its answer fits a packet.
const STATUS_OCTETS_MAX: usize = PACKET_OCTETS_MAX - 256;

impl Control {
    /// Takes a request for the status. A client that waits for too many is disconnected.
    pub(super) fn ask_for_status(&mut self, token: Token, id: u64) {
        let is_at_limit = self.statuses.of_client(token) == STATUSES_AT_ONCE_MAX;
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        client.is_broken |= is_at_limit;
        let uid = client.peer.uid();
        self.statuses.ask(Asked { token, uid, id });
    }

    /// The report of a process.
    pub(super) fn take_report(&mut self, token: Token, mut report: ProcessReport) {
        self.counters.report_counters_unknown += report.keep_known() as u64;
        if let Some(client) = self.clients.get_mut(&token) {
            client.report = client.attached.is_some().then_some(report);
        }
        self.statuses.has_reported(token);
    }

    /// Answers the requests of a round that is over, and begins the next.
    pub(super) fn serve_statuses(&mut self, now: Instant) {
        self.answer_statuses(now);
        if let Some(asked) = self.statuses.next(now) {
            self.ask_for_reports(now, asked);
            // No process may have been asked.
            self.answer_statuses(now);
        }
    }

    fn ask_for_reports(&mut self, now: Instant, asked: Vec<Asked>) {
        let mut missing = HashSet::new();
        for (token, client) in &mut self.clients {
            let is_asking = asked.iter().any(|asked| asked.token == *token);
            if client.attached.is_some() && !is_asking {
                client.tell(Event::ReportWanted);
                missing.insert(*token);
            }
        }
        let port = self.config.port.as_ref().map(|_| self.data.report());
        let port = port.and_then(Result::ok);
        self.statuses.begin(now, asked, missing, port);
    }

    fn answer_statuses(&mut self, now: Instant) {
        let Some(round) = self.statuses.take_over(now) else {
            return;
        };
        let mut status = self.status(&round.missing, round.port);
        if !status.fit(STATUS_OCTETS_MAX) {
            tracing::warn!("the status is too long: ports or reports are left out");
        }
        for asked in round.asked {
            let status = Box::new(status.clone());
            self.answer(asked.token, asked.id, Ok(Answer::Status(status)));
        }
    }

    /// The state of the instance. Earlier reports of the processes in `silent` are left out as out
    /// of date.
    fn status(&self, silent: &HashSet<Token>, port: Option<Reported>) -> Status {
        let (listeners, bound) = self.shared.listeners().status();
        let mut counters = self.counters.clone();
        counters.data = self.shared.counters.snapshot();
        counters.log_lines_lost = log::lines_lost();
        let mut slots: Vec<SlotStatus> = self
            .clients
            .iter()
            .filter_map(|(token, client)| {
                let mut slot = self.slot_status(client)?;
                slot.report = slot.report.filter(|_| !silent.contains(token));
                Some(slot)
            })
            .collect();
        slots.sort_by_key(|slot| slot.slot);
        let (port, faults) = self.port_status(port).unzip();
        Status {
            instance: self.instance.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.ready_at.elapsed().as_secs(),
            run_dir: self.run_dir.clone(),
            node_guid: self.identity.node_guid_text(),
            personality: self.config.personality,
            addresses: self.identity.addresses.clone(),
            slots_total: self.config.slots,
            slots,
            listeners,
            bound,
            groups: self.shared.groups().status(),
            port,
            faults,
            counters,
            leases: self.leases.status(),
            lease_steering: self.leases.steering(),
            no_leases_because: self.leases.impossible_because().map(ToString::to_string),
            kernel: self.kernel.status(),
            capture: self.shared.capture_file(),
            sockets: self.sockets.status(|token| {
                let client = self.clients.get(&token)?;
                Some((client.peer.pid(), client.program.clone()?))
            }),
        }
    }

    fn slot_status(&self, client: &Client) -> Option<SlotStatus> {
        let attached = client.attached.as_ref()?;
        let slot = attached.slot;
        Some(SlotStatus {
            slot: slot.number(),
            pid: client.peer.pid(),
            uid: client.peer.uid(),
            program: client.program.clone().unwrap_or_default(),
            attached_s: attached.since.elapsed().as_secs(),
            lease_queue: self.leases.queue_of(slot),
            report: client.report.clone(),
        })
    }

    fn port_status(&self, reported: Option<Reported>) -> Option<(PortStatus, FaultStatus)> {
        let port = self.config.port.as_ref()?;
        let (device, mac) = self.device.clone()?;
        let (report, faults) = reported.unwrap_or_default();
        let status = PortStatus {
            kind: port.kind.name().to_owned(),
            device,
            mac,
            mtu: port.mtu,
            link_up: report.link_up,
            queues: port.lease_queues + 1,
            hardware: report.hardware,
            mbufs: report.pools,
            notes: [report.notes, self.shared.notes()].concat(),
        };
        Some((status, faults))
    }
}
