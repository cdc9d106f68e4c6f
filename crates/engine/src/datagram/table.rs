//! All datagram queue pairs by index, the multicast groups that they are attached to, and what befalls them all.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::sync::Arc;

use proto_trp::conn::{Event, Host};
use urdma_types::Qpn;

use super::super::index_table::{FirstIndex, IndexTable};
use super::super::memory::QpHost;
use super::super::mr::MrTable;
use super::super::packet_path::NEVER;
use super::super::qp::{PolledTable, Qp};
use super::super::shard::{attach, check_sizes, detach, purge, Note, Shard, SHARED_IN_USE_MAX};
use super::super::types::{Access, EngineError, Gid, QpCaps, QpConfig, LIMITS};
use super::pair::{DatagramEntry, DatagramModify, DatagramState, Queues};

/// Datagram queue pairs by index; a place is empty where a connection has the index, or nobody.
pub(in super::super) struct DatagramTable {
    entries: IndexTable<DatagramEntry>,
    /// Indices of the queue pairs that are attached to each group.
    groups: HashMap<Gid, Vec<u16>>,
    /// Address handles.
    pub(super) handle_count: u32,
    /// Longest message in octets.
    pub(in super::super) path_mtu_octets: u32,
}

impl DatagramTable {
    /// No queue pairs; their indices begin with `first`.
    pub(in super::super) fn new(first: FirstIndex) -> Self {
        Self {
            entries: IndexTable::new(first),
            groups: HashMap::new(),
            handle_count: 0,
            path_mtu_octets: 0,
        }
    }

    pub(super) fn get(&mut self, index: u16) -> Option<&mut DatagramEntry> {
        self.entries.get_mut(index)
    }

    /// The entry of a queue pair that exists.
    pub(super) fn entry(&mut self, qp: &Qp) -> Option<&mut DatagramEntry> {
        self.get(qp.number().index())
            .filter(|entry| std::ptr::eq(&*entry.qp, qp))
    }

    /// Whether there is a queue pair that does not receive yet.
    pub(in super::super) fn is_before_rtr(&self, index: u16) -> bool {
        let entry = self.entries.get(index);
        entry.is_some_and(|entry| matches!(entry.state, DatagramState::Reset | DatagramState::Init))
    }

    /// Attaches a queue pair to a group; gives whether it is the first of this process.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such queue pair; [`EngineError::NoMemory`]: one group or one queue pair too many.
    pub(super) fn attach(&mut self, qp: &Qp, group: Gid) -> Result<bool, EngineError> {
        let index = qp.number().index();
        self.entry(qp).ok_or(EngineError::Invalid)?;
        let count = self.groups.len();
        let members = match self.groups.entry(group) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if count >= LIMITS.max_mcast_grp as usize => {
                return Err(EngineError::NoMemory)
            }
            Entry::Vacant(new) => new.insert(Vec::new()),
        };
        if members.contains(&index) {
            return Ok(false);
        }
        if members.len() >= LIMITS.max_mcast_qp_attach as usize {
            return Err(EngineError::NoMemory);
        }
        members.push(index);
        let is_first = members.len() == 1;
        if let Some(entry) = self.get(index) {
            entry.group_count += 1;
        }
        Ok(is_first)
    }

    /// Undoes [`Self::attach`]; gives whether it was the last of this process.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it is not attached.
    pub(super) fn detach(&mut self, qp: &Qp, group: Gid) -> Result<bool, EngineError> {
        let index = qp.number().index();
        self.entry(qp).ok_or(EngineError::Invalid)?;
        let members = self.groups.get_mut(&group).ok_or(EngineError::Invalid)?;
        let place = members.iter().position(|member| *member == index);
        members.swap_remove(place.ok_or(EngineError::Invalid)?);
        let is_last = members.is_empty();
        if is_last {
            self.groups.remove(&group);
        }
        if let Some(entry) = self.get(index) {
            entry.group_count -= 1;
        }
        Ok(is_last)
    }

    /// The `place`th queue pair that is attached to a group.
    pub(super) fn member(&self, group: Gid, place: usize) -> Option<u16> {
        self.groups.get(&group)?.get(place).copied()
    }
}

/// What a queue pair may do to this process, beside its queues.
pub(super) fn split<'a>(
    entry: &'a mut DatagramEntry,
    regions: &'a mut MrTable,
    notes: &'a mut Vec<Note>,
) -> (Queues<'a>, QpHost<'a>) {
    let (queues, counts, qp) = entry.parts();
    let host = QpHost {
        delivery: None,
        regions,
        access: Access::empty(),
        qp,
        remote_qpn: 0,
        counts,
        notes,
        refer_from: NEVER,
        referred: None,
    };
    (queues, host)
}

fn caps_of(config: &QpConfig) -> QpCaps {
    QpCaps {
        max_send_wr: config.max_send_wr,
        max_recv_wr: match &config.srq {
            Some(_) => SHARED_IN_USE_MAX,
            None => config.max_recv_wr,
        },
        max_send_sge: config.max_send_sge.max(1),
        max_recv_sge: config.max_recv_sge.max(1),
        max_inline: config.max_inline,
    }
}

impl Shard {
    /// The queues of a datagram queue pair that exists, and its host.
    pub(super) fn datagram_host(&mut self, qp: &Qp) -> Option<(Queues<'_>, QpHost<'_>)> {
        let entry = self.datagrams.entry(qp)?;
        Some(split(entry, &mut self.regions, &mut self.notes))
    }

    pub(super) fn create_datagram_qp(
        &mut self,
        config: &QpConfig,
        polled: &PolledTable,
    ) -> Result<Arc<Qp>, EngineError> {
        check_sizes(config)?;
        self.in_domain(config.pd, |shard| shard.add_datagram_qp(config, polled))
    }

    fn add_datagram_qp(
        &mut self,
        config: &QpConfig,
        polled: &PolledTable,
    ) -> Result<Arc<Qp>, EngineError> {
        let caps = caps_of(config);
        let index = self.take_index()?;
        if let Err(error) = attach(config, caps) {
            self.give_index(index);
            return Err(error);
        }
        let qp = Qp::new(Qpn::new(self.slot, index), caps, config);
        let entry = DatagramEntry::new(Arc::clone(&qp), config.hears_itself);
        polled.get(index).reset(&entry.counts);
        self.datagrams.entries.put(index, entry);
        self.qp_count += 1;
        Ok(qp)
    }

    pub(super) fn remove_datagram_qp(&mut self, qp: &Qp) -> Result<(), EngineError> {
        let index = qp.number().index();
        let entry = self.datagrams.entry(qp).ok_or(EngineError::Invalid)?;
        if entry.group_count > 0 {
            return Err(EngineError::Busy);
        }
        let routes = std::mem::take(&mut entry.routes);
        if let Some(lease) = &mut self.lease {
            for route in routes.into_values().flatten() {
                lease.close_route(route);
            }
        }
        self.datagrams.entries.take(index);
        purge(qp);
        detach(qp);
        self.pds.release(qp.pd());
        self.give_index(index);
        self.qp_count -= 1;
        Ok(())
    }

    pub(super) fn modify_datagram_qp(
        &mut self,
        qp: &Qp,
        change: &DatagramModify,
        polled: &PolledTable,
    ) -> Result<(), EngineError> {
        let entry = self.datagrams.entry(qp).ok_or(EngineError::Invalid)?;
        entry.change(change)?;
        match change.state {
            Some(DatagramState::Reset) => {
                entry.clear();
                purge(qp);
                polled.get(qp.number().index()).reset(&entry.counts);
            }
            Some(DatagramState::Error) => {
                let (mut queues, mut host) = split(entry, &mut self.regions, &mut self.notes);
                queues.fail(&mut host);
            }
            Some(DatagramState::Sqd) => {
                let (_, mut host) = split(entry, &mut self.regions, &mut self.notes);
                host.event(Event::SqDrained);
            }
            _ => {}
        }
        Ok(())
    }

    /// urdmad is gone: every datagram queue pair fails.
    pub(in super::super) fn fail_datagrams(&mut self) {
        for entry in self.datagrams.entries.iter_mut() {
            let (mut queues, mut host) = split(entry, &mut self.regions, &mut self.notes);
            queues.fail(&mut host);
        }
    }
}
