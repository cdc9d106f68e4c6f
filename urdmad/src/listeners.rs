//! The bound CM ports of all processes.
//!
//! The data thread looks a port up for each connection request while the control thread changes
//! the table, so that a look-up and a change take a time that does not grow with the bindings:
//! ports are found by number, the bindings of a port that only differ in their owner are one entry,
//! and a bitmap has the free ephemeral ports.

mod free;

use std::collections::BTreeMap;
use std::net::IpAddr;

use urdma_ipc::status::ListenerStatus;
use urdma_ipc::{CmPort, PortSharing, PortTable, Refusal, RefusalKind};
use urdma_types::SlotId;

use crate::fair;
use free::{is_ephemeral, FreePorts, EPHEMERAL};

/// Bindings of all users other than the owner and root.
const BINDINGS_OF_MEMBERS: usize = 65_536;
/// Ephemeral ports of each table that are kept for the owner and root, a sixteenth.
const KEPT_EPHEMERAL: usize = EPHEMERAL / 16;
/// Bindings that are listed of each kind: a status with more is longer than a packet.
const LISTED_MAX: usize = 2048;
/// Bindings of a slot that are released at once.
const RELEASED_AT_ONCE: usize = 64;

/// Identifies a bound port: the slot, and the process' number for the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BindingId {
    /// The process' slot, urdmad's for the kernel module's listeners.
    pub slot: SlotId,
    /// Unique among the slot's.
    pub number: u32,
}

/// The limits of a process that binds a port.
#[derive(Debug, Clone, Copy)]
pub struct Binder {
    /// The process' user, unless that is the owner or root.
    pub member: Option<u32>,
    /// Ports that the process may have.
    pub quota: u32,
}

/// A binding, by its id.
#[derive(Debug, Clone, Copy)]
struct Binding {
    kind: BindingKind,
    /// Its place in the order in which ports were bound.
    age: u64,
    member: Option<u32>,
}

/// All by which bindings of others differ from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BindingKind {
    at: CmPort,
    /// Present while it is listened on.
    backlog: Option<u32>,
}

impl BindingKind {
    /// The error for `wanted`, of the same port, beside this binding: the rules and errors of the
    /// kernel's `cma_check_port`.
    fn refuses(&self, wanted: &CmPort) -> Option<Refusal> {
        let held = &self.at;
        if held.sharing.reuse_addr && wanted.sharing.reuse_addr {
            return None;
        }
        let both_af_only = held.sharing.af_only && wanted.sharing.af_only;
        if both_af_only && held.addr.is_ipv4() != wanted.addr.is_ipv4() {
            return None;
        }
        let kind = if held.addr.is_unspecified() || wanted.addr.is_unspecified() {
            RefusalKind::AddressNotAvailable
        } else if held.addr == wanted.addr {
            RefusalKind::AddressInUse
        } else {
            return None;
        };
        let message = format!(
            "{} port {} is taken by {} port {}",
            wanted.addr, wanted.port, held.addr, held.port
        );
        Some(Refusal::new(kind, message))
    }

    /// Whether this binding covers requests for `address`.
    fn covers(&self, address: IpAddr) -> bool {
        let any = self.at.addr;
        let of_family = any.is_ipv4() == address.is_ipv4();
        let takes_family = of_family || (any.is_ipv6() && !self.at.sharing.af_only);
        any == address || (any.is_unspecified() && takes_family)
    }
}

/// Bindings of one kind, by their age. Two that are listened on are never of one kind.
#[derive(Debug)]
struct Group {
    kind: BindingKind,
    ids: BTreeMap<u64, BindingId>,
}

impl Group {
    /// The newest binding other than `own`.
    fn newest_but(&self, own: Option<BindingId>) -> Option<u64> {
        let newest = self.ids.iter().rev();
        newest
            .map(|(age, id)| (*age, *id))
            .find_map(|(age, id)| (Some(id) != own).then_some(age))
    }
}

/// The target of a connection request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestTarget {
    /// A listener of this slot.
    Listening(SlotId),
    /// A bound port without a listener. Its process will most likely listen soon: programs such as
    /// qperf tell the other end their port before they listen.
    Bound,
    /// No bound port.
    Unbound,
}

/// The bound ports of an instance.
#[derive(Debug, Default)]
pub struct Listeners {
    by_id: BTreeMap<BindingId, Binding>,
    /// The groups of a port: as many as the instance has addresses, at a few kinds each.
    by_port: BTreeMap<(PortTable, u16), Vec<Group>>,
    free: BTreeMap<PortTable, FreePorts>,
    of_slot: BTreeMap<SlotId, usize>,
    of_member: BTreeMap<u32, usize>,
    /// Those of a table to ephemeral ports.
    ephemeral_of_member: BTreeMap<(PortTable, u32), usize>,
    of_members: usize,
    bound_ever: u64,
}

impl Listeners {
    /// Reserves a port, or an ephemeral one for 0; returns the port.
    ///
    /// # Errors
    /// AddressInUse, AddressNotAvailable, QuotaExceeded; Invalid if the process uses the number for
    /// another port.
    pub fn bind(&mut self, id: BindingId, wanted: CmPort, by: Binder) -> Result<u16, Refusal> {
        self.check_quotas(id.slot, by)?;
        if self.by_id.contains_key(&id) {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!("this process has a CM port {} already", id.number),
            ));
        }
        let at = self.place(wanted, by.member)?;
        let kind = BindingKind { at, backlog: None };
        let binding = Binding {
            kind,
            age: self.bound_ever,
            member: by.member,
        };
        self.bound_ever += 1;
        self.by_id.insert(id, binding);
        *self.of_slot.entry(id.slot).or_default() += 1;
        if let Some(uid) = by.member {
            *self.of_member.entry(uid).or_default() += 1;
            self.of_members += 1;
            if is_ephemeral(at.port) {
                let of_table = self.ephemeral_of_member.entry((at.space, uid));
                *of_table.or_default() += 1;
            }
        }
        self.insert(id, &binding);
        Ok(at.port)
    }

    /// Changes which others may share a port that is not listened on.
    ///
    /// # Errors
    /// NotFound.
    pub fn share(&mut self, id: BindingId, sharing: PortSharing) -> Result<(), Refusal> {
        let mut kind = self.binding(id)?.kind;
        if kind.backlog.is_none() {
            kind.at.sharing = sharing;
            self.change(id, kind);
        }
        Ok(())
    }

    /// Listens on a port. No other binding may match the same requests, whatever its owner and
    /// others share (the kernel's `rdma_listen`), and none may be added later.
    ///
    /// # Errors
    /// AddressInUse, AddressNotAvailable, NotFound.
    pub fn listen(&mut self, id: BindingId, backlog: u32) -> Result<(), Refusal> {
        let mut alone = self.binding(id)?.kind.at;
        alone.sharing.reuse_addr = false;
        self.refuse_taken(&alone, Some(id))?;
        let kind = BindingKind {
            at: alone,
            backlog: Some(backlog),
        };
        self.change(id, kind);
        Ok(())
    }

    /// Releases a port.
    ///
    /// # Errors
    /// NotFound.
    pub fn release(&mut self, id: BindingId) -> Result<(), Refusal> {
        let binding = self.binding(id)?;
        self.by_id.remove(&id);
        self.remove(id, &binding);
        count_one_less(&mut self.of_slot, id.slot);
        if let Some(uid) = binding.member {
            count_one_less(&mut self.of_member, uid);
            self.of_members -= 1;
            let at = binding.kind.at;
            if is_ephemeral(at.port) {
                count_one_less(&mut self.ephemeral_of_member, (at.space, uid));
            }
        }
        Ok(())
    }

    /// Releases some ports of a dead slot; whether it may have more. The data thread looks ports up
    /// in between.
    pub fn release_some(&mut self, slot: SlotId) -> bool {
        let first = BindingId { slot, number: 0 };
        let of_slot = self.by_id.range(first..).map(|(id, _)| *id);
        let of_slot = of_slot.take_while(|id| id.slot == slot);
        let some: Vec<_> = of_slot.take(RELEASED_AT_ONCE).collect();
        for id in &some {
            // Found above, so the release succeeds.
            let _ = self.release(*id);
        }
        some.len() == RELEASED_AT_ONCE
    }

    /// The target of a request for `address` and `port`: a listener of the exact address first,
    /// then a wildcard of the same family, then any.
    pub fn find(&self, space: PortTable, address: IpAddr, port: u16) -> RequestTarget {
        let at_port = || {
            let groups = self.by_port.get(&(space, port)).into_iter().flatten();
            groups.filter(|group| group.kind.covers(address))
        };
        let distance = |group: &&Group| {
            let at = &group.kind.at;
            let of_other_family = at.addr.is_ipv4() != address.is_ipv4();
            (at.addr != address, of_other_family)
        };
        let listening = at_port().filter(|group| group.kind.backlog.is_some());
        match listening
            .min_by_key(distance)
            .and_then(|group| group.ids.values().next())
        {
            Some(id) => RequestTarget::Listening(id.slot),
            None if at_port().next().is_some() => RequestTarget::Bound,
            None => RequestTarget::Unbound,
        }
    }

    /// The ports that are listened on, then those that are only bound: the first of each, more than
    /// a packet has room for.
    pub fn status(&self) -> (Vec<ListenerStatus>, Vec<ListenerStatus>) {
        let list = |is_listening: bool| {
            let ports = self.by_port.values();
            let bindings = ports.flat_map(move |groups| {
                let groups = groups
                    .iter()
                    .filter(move |group| group.kind.backlog.is_some() == is_listening);
                let mut groups: Vec<_> = groups.collect();
                groups.sort_by_key(|group| group.kind.at.addr);
                groups.into_iter().flat_map(|group| {
                    let BindingKind { at, backlog } = group.kind;
                    group.ids.values().map(move |id| ListenerStatus {
                        space: at.space,
                        address: at.addr,
                        port: at.port,
                        slot: id.slot.number(),
                        backlog: backlog.unwrap_or(0),
                    })
                })
            });
            bindings.take(LISTED_MAX).collect()
        };
        (list(true), list(false))
    }

    fn check_quotas(&self, slot: SlotId, by: Binder) -> Result<(), Refusal> {
        let refuse = |message| Err(Refusal::new(RefusalKind::QuotaExceeded, message));
        let taken = self.of_slot.get(&slot).copied().unwrap_or(0);
        if taken >= usize::try_from(by.quota).unwrap_or(usize::MAX) {
            return refuse(format!(
                "this process has {taken} CM ports already, as many as cm_ports_per_process allows"
            ));
        }
        let Some(uid) = by.member else {
            return Ok(());
        };
        let taken = self.of_member.get(&uid).copied().unwrap_or(0);
        let free = BINDINGS_OF_MEMBERS - self.of_members;
        if free == 0 {
            return refuse(format!(
                "{} CM ports are bound, and the rest is kept for root and the instance's owner",
                self.of_members
            ));
        }
        if !fair::may_take(taken, free) {
            return refuse(format!(
                "user {uid} has {taken} CM ports, and the {free} that can be bound are kept for \
                 other users"
            ));
        }
        Ok(())
    }

    fn binding(&self, id: BindingId) -> Result<Binding, Refusal> {
        self.by_id.get(&id).copied().ok_or_else(|| {
            Refusal::new(
                RefusalKind::NotFound,
                format!("this process has bound no CM port {}", id.number),
            )
        })
    }

    /// Puts a binding into the group of its kind.
    fn insert(&mut self, id: BindingId, binding: &Binding) {
        let BindingKind { at, .. } = binding.kind;
        let groups = self.by_port.entry((at.space, at.port)).or_default();
        if groups.is_empty() {
            self.free.entry(at.space).or_default().take(at.port);
        }
        let group = match groups.iter().position(|group| group.kind == binding.kind) {
            Some(index) => &mut groups[index],
            None => {
                let (kind, ids) = (binding.kind, BTreeMap::new());
                groups.push(Group { kind, ids });
                let last = groups.len() - 1;
                &mut groups[last]
            }
        };
        group.ids.insert(binding.age, id);
    }

    /// Takes a binding out of the group of its kind.
    fn remove(&mut self, id: BindingId, binding: &Binding) {
        let BindingKind { at, .. } = binding.kind;
        let Some(groups) = self.by_port.get_mut(&(at.space, at.port)) else {
            return;
        };
        if let Some(index) = groups.iter().position(|group| group.kind == binding.kind) {
            let was = groups[index].ids.remove(&binding.age);
            debug_assert_eq!(was, Some(id));
            if groups[index].ids.is_empty() {
                groups.swap_remove(index);
            }
        }
        if groups.is_empty() {
            self.by_port.remove(&(at.space, at.port));
            self.free.entry(at.space).or_default().give_back(at.port);
        }
    }

    fn change(&mut self, id: BindingId, kind: BindingKind) {
        let Some(binding) = self.by_id.get_mut(&id) else {
            return;
        };
        let before = *binding;
        binding.kind = kind;
        let after = *binding;
        self.remove(id, &before);
        self.insert(id, &after);
    }

    /// Refuses a port that conflicts with a binding other than `own`, with the error of the newest,
    /// as the kernel does.
    fn refuse_taken(&self, wanted: &CmPort, own: Option<BindingId>) -> Result<(), Refusal> {
        let groups = self.by_port.get(&(wanted.space, wanted.port));
        let conflicts = groups.into_iter().flatten().filter_map(|group| {
            let newest = group.newest_but(own)?;
            Some((newest, group.kind.refuses(wanted)?))
        });
        let newest = conflicts.max_by_key(|(age, _)| *age);
        newest.map_or(Ok(()), |(_, refusal)| Err(refusal))
    }

    /// The address and port that a process gets. A port that is bound by whatever other id is not
    /// free, as in the kernel's `cma_alloc_any_port`.
    fn place(&mut self, wanted: CmPort, member: Option<u32>) -> Result<CmPort, Refusal> {
        if wanted.port != 0 {
            self.refuse_taken(&wanted, None)?;
        }
        if let Some(uid) = member.filter(|_| wanted.port == 0 || is_ephemeral(wanted.port)) {
            self.check_share_of_ephemeral(uid, wanted.space)?;
        }
        let mut at = wanted;
        if wanted.port == 0 {
            let free = self.free.entry(wanted.space).or_default();
            at.port = free.next().ok_or_else(|| {
                let message = "every ephemeral CM port is taken";
                Refusal::new(RefusalKind::AddressNotAvailable, message)
            })?;
        }
        Ok(at)
    }

    /// Refuses a member an ephemeral port if those that are free are kept for others. A port that
    /// is shared counts too: it stays taken when the others release it.
    fn check_share_of_ephemeral(&mut self, uid: u32, space: PortTable) -> Result<(), Refusal> {
        let free = self.free.entry(space).or_default().count();
        let free = free.saturating_sub(KEPT_EPHEMERAL);
        if free == 0 {
            return Err(Refusal::new(
                RefusalKind::AddressNotAvailable,
                "every ephemeral CM port is taken, but for those that are kept for root and the \
                 owner of the instance",
            ));
        }
        let taken = self.ephemeral_of_member.get(&(space, uid));
        let taken = taken.copied().unwrap_or(0);
        if fair::may_take(taken, free) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalKind::QuotaExceeded,
            format!(
                "user {uid} has {taken} ephemeral CM ports, and the {free} that are free are kept \
                 for other users"
            ),
        ))
    }
}

fn count_one_less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
