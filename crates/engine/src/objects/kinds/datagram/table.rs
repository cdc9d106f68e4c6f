//! All datagram queue pairs by index, and the multicast groups that they are attached to.

use std::collections::hash_map::Entry;
use std::collections::HashMap;

use proto_trp::conn::Time;

use super::pair::{DatagramEntry, Queues};
use crate::objects::index_table::{FirstIndex, IndexTable};
use crate::objects::process::Process;
use crate::objects::qp::Qp;
use crate::objects::qp_host::QpHost;
use crate::types::{Access, EngineError, Gid, Info, LIMITS};

/// Datagram queue pairs by index; a place is empty where a connection has the index, or no queue
/// pair.
pub(crate) struct DatagramTable {
    pub(crate) entries: IndexTable<DatagramEntry>,
    /// Indices of the queue pairs that are attached to each group.
    groups: HashMap<Gid, Vec<u16>>,
    /// Address handles.
    pub(crate) handle_count: u32,
    /// Longest message in octets.
    pub(crate) path_mtu_octets: u32,
}

impl DatagramTable {
    /// No queue pairs; their indices begin with `first`.
    pub(crate) fn new(first: FirstIndex) -> Self {
        Self {
            entries: IndexTable::new(first),
            groups: HashMap::new(),
            handle_count: 0,
            path_mtu_octets: 0,
        }
    }

    /// Takes what it needs of the instance.
    pub(crate) fn begin(&mut self, info: &Info) {
        self.path_mtu_octets = info.path_mtu_octets();
    }

    /// Whether a queue pair has the index.
    pub(crate) fn has(&self, index: u16) -> bool {
        self.entries.get(index).is_some()
    }

    pub(crate) fn get(&mut self, index: u16) -> Option<&mut DatagramEntry> {
        self.entries.get_mut(index)
    }

    /// The entry of a queue pair that exists.
    pub(crate) fn entry(&mut self, qp: &Qp) -> Option<&mut DatagramEntry> {
        self.get(qp.number().index())
            .filter(|entry| std::ptr::eq(&*entry.qp, qp))
    }

    /// Fails every queue pair: urdmad has ended.
    pub(crate) fn fail_all(&mut self, _: Time, process: &mut Process) {
        for entry in self.entries.iter_mut() {
            let (mut queues, mut host) = split(entry, process);
            queues.fail(&mut host);
        }
    }

    /// Attaches a queue pair to a group; gives whether it is the first of this process.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such queue pair; [`EngineError::NoMemory`]: one group or one
    /// queue pair too many.
    pub(crate) fn attach(&mut self, qp: &Qp, group: Gid) -> Result<bool, EngineError> {
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
    pub(crate) fn detach(&mut self, qp: &Qp, group: Gid) -> Result<bool, EngineError> {
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
    pub(crate) fn member(&self, group: Gid, place: usize) -> Option<u16> {
        self.groups.get(&group)?.get(place).copied()
    }
}

/// The queues of a queue pair, and its host.
pub(crate) fn split<'a>(
    entry: &'a mut DatagramEntry,
    process: &'a mut Process,
) -> (Queues<'a>, QpHost<'a>) {
    let (queues, counts, qp) = entry.parts();
    let host = QpHost {
        delivery: None,
        regions: &mut process.regions,
        access: Access::empty(),
        qp,
        remote_qpn: 0,
        counts,
        notes: &mut process.notes,
    };
    (queues, host)
}
