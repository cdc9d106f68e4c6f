//! All initiators and targets by index, and initiators by the ids of their streams.

use std::collections::{BTreeSet, HashMap};

use proto_trp::conn::{Datagram, Time, Transmit};
use proto_trp::dc::{DcArrival, DcPlan};
use proto_trp::wire::{ConnectionId, TrpHeader};
use urdma_types::{Qpn, SlotId};

use super::entry::DcEntry;
use crate::objects::index_table::{FirstIndex, IndexTable};
use crate::objects::kinds::handled::Handled;
use crate::objects::process::Process;
use crate::objects::qp::Qp;
use crate::paths::packet_body::PacketBody;
use crate::types::Info;

/// The initiators and targets of a process; a place is empty where no such queue pair has the
/// index.
pub(crate) struct DcTable {
    entries: IndexTable<DcEntry>,
    /// The indices of targets.
    targets: BTreeSet<u16>,
    by_id: HashMap<ConnectionId, u16>,
    /// Largest datagram.
    pub(crate) max_datagram_octets: u32,
}

impl DcTable {
    /// No queue pairs; their indices begin with `first`.
    pub(crate) fn new(first: FirstIndex) -> Self {
        Self {
            entries: IndexTable::new(first),
            targets: BTreeSet::new(),
            by_id: HashMap::new(),
            max_datagram_octets: 0,
        }
    }

    /// Takes what it needs of the instance.
    pub(crate) fn begin(&mut self, info: &Info) {
        self.max_datagram_octets = info.max_datagram_octets();
    }

    /// Whether a queue pair has the index.
    pub(crate) fn has(&self, index: u16) -> bool {
        self.entries.get(index).is_some()
    }

    /// Adds the entry of a new queue pair.
    pub(crate) fn put(&mut self, index: u16, entry: DcEntry) {
        if entry.is_target() {
            self.targets.insert(index);
        }
        self.entries.put(index, entry);
    }

    /// The entry of a queue pair that exists.
    pub(crate) fn entry(&mut self, qp: &Qp) -> Option<&mut DcEntry> {
        let entry = self.entries.get_mut(qp.number().index())?;
        std::ptr::eq(&*entry.qp, qp).then_some(entry)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, qp: &Qp) -> Option<Box<DcEntry>> {
        let ids = self.entry(qp)?.ids;
        for id in ids.into_iter().flatten() {
            self.by_id.remove(&id);
        }
        let index = qp.number().index();
        self.targets.remove(&index);
        self.entries.take(index)
    }

    /// Processes a packet for the queue pair with an index.
    pub(crate) fn handle(
        &mut self,
        index: u16,
        now: Time,
        arrival: &DcArrival,
        datagram: &Datagram<'_, PacketBody<'_>>,
        process: &mut Process,
    ) -> Handled {
        let Some(entry) = self.entries.get_mut(index) else {
            return Handled::NoQueuePair;
        };
        entry.handle(now, arrival, datagram, process)
    }

    /// Processes a RESET; gives the queue pair that it has to do with: an initiator, or a target
    /// that has ended a context by it.
    #[cold]
    pub(crate) fn handle_reset(
        &mut self,
        now: Time,
        arrival: &DcArrival,
        datagram: &Datagram<'_, PacketBody<'_>>,
        process: &mut Process,
    ) -> Option<u16> {
        let header = TrpHeader::parse(datagram.head, datagram.len).ok()?;
        if let Some(&index) = self.by_id.get(&header.connection_id) {
            let entry = self.entries.get_mut(index)?;
            // A RESET is not answered.
            let _ = entry.handle(now, arrival, datagram, process);
            return Some(index);
        }
        // A target has streams under ids of its peers, and looks them up.
        self.targets.iter().copied().find(|&index| {
            let entry = self.entries.get_mut(index);
            entry.is_some_and(|entry| entry.takes_reset(now, arrival, datagram, process))
        })
    }

    /// The indices of all.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u16> + use<> {
        self.entries.indices()
    }

    /// Tells a queue pair that the process that had a slot of this host has ended.
    #[cold]
    pub(crate) fn slot_gone(&mut self, index: u16, now: Time, slot: SlotId, process: &mut Process) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.slot_gone(now, slot, process);
        }
    }

    /// Handles the timers of a queue pair that have expired.
    pub(crate) fn handle_timeout(&mut self, index: u16, now: Time, process: &mut Process) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.handle_timeout(now, process);
        }
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub(crate) fn next_deadline(&self, index: u16) -> Option<Time> {
        self.entries.get(index)?.next_deadline()
    }

    /// Notes that a queue pair is in the ready list; false if it was, or does not exist.
    pub(crate) fn queue(&mut self, index: u16) -> bool {
        let entry = self.entries.get_mut(index);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.is_queued, true))
    }

    /// Notes that a queue pair was taken from the ready list.
    pub(crate) fn unqueue(&mut self, index: u16) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.is_queued = false;
        }
    }

    /// What the queue pair would send next.
    pub(crate) fn plan(&mut self, index: u16, now: Time, process: &mut Process) -> Option<DcPlan> {
        let entry = self.entries.get_mut(index)?;
        let plan = entry.plan(now, process);
        let ids = entry.stream_ids();
        if ids != entry.ids {
            let before = std::mem::replace(&mut entry.ids, ids);
            for id in before.into_iter().flatten() {
                self.by_id.remove(&id);
            }
            for id in ids.into_iter().flatten() {
                self.by_id.insert(id, index);
            }
        }
        plan
    }

    /// Writes the packet of a plan that was just made; `None`: there is nothing to send after all.
    pub(crate) fn write(
        &mut self,
        index: u16,
        now: Time,
        plan: &DcPlan,
        buf: &mut [u8],
        process: &mut Process,
    ) -> Option<Transmit> {
        let entry = self.entries.get_mut(index)?;
        entry.write(now, plan, buf, process)
    }

    /// The number of the queue pair with an index.
    pub(crate) fn number(&self, index: u16) -> Option<Qpn> {
        self.entries.get(index).map(|entry| entry.qp.number())
    }

    /// The targets in RTR, and the contexts that they have.
    pub(crate) fn count_targets(&self) -> (usize, usize) {
        let entries = self.entries.iter();
        let contexts = entries.filter_map(DcEntry::contexts);
        contexts.fold((0, 0), |(targets, all), contexts| {
            (targets + 1, all + contexts)
        })
    }

    /// Fails every queue pair: urdmad has ended.
    pub(crate) fn fail_all(&mut self, now: Time, process: &mut Process) {
        for entry in self.entries.iter_mut() {
            entry.fail(now, process);
        }
    }
}
