//! Members of the multicast groups.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use nix::sys::resource::{getrlimit, Resource};
use urdma_ipc::status::GroupStatus;
use urdma_ipc::{Refusal, RefusalKind, GROUPS_PER_PROCESS_MAX};
use urdma_types::{Ip16, SlotId};

use crate::fair;

/// Memberships of the processes of all users other than the owner and root.
const OF_MEMBERS_MAX: usize = 4096;
/// They take this part of the limit of open files at most: a port of kind `udp` has a socket for
/// each group.
const PART_OF_FILES: u64 = 8;
/// Words with a bit for each slot.
const WORDS: usize = 4;

/// A set of slots.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SlotSet([u64; WORDS]);

impl SlotSet {
    /// Adds a slot; false if it was in the set.
    pub fn insert(&mut self, slot: u8) -> bool {
        let word = &mut self.0[usize::from(slot / 64)];
        let before = *word;
        *word |= 1 << (slot % 64);
        before != *word
    }

    /// Removes a slot; false if it was not in the set.
    pub fn remove(&mut self, slot: u8) -> bool {
        let word = &mut self.0[usize::from(slot / 64)];
        let before = *word;
        *word &= !(1 << (slot % 64));
        before != *word
    }

    /// Whether a slot is in the set.
    pub fn contains(self, slot: SlotId) -> bool {
        let slot = slot.number();
        self.0[usize::from(slot / 64)] >> (slot % 64) & 1 == 1
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// The slots in order.
    pub fn iter(self) -> impl Iterator<Item = SlotId> {
        let has = move |slot: &u8| self.0[usize::from(slot / 64)] >> (slot % 64) & 1 == 1;
        (0..=u8::MAX).filter(has).filter_map(SlotId::new)
    }
}

/// The groups of a process.
#[derive(Debug)]
struct Joined {
    /// Its user, unless that is the owner or root.
    member: Option<u32>,
    groups: HashSet<Ip16>,
}

/// The groups of an instance.
#[derive(Debug)]
pub struct Groups {
    of_members_max: usize,
    /// By the group's address as a GID; no set is empty.
    members: HashMap<Ip16, SlotSet>,
    joined: BTreeMap<u8, Joined>,
    /// The memberships of each user other than the owner and root, and of all these.
    of_member: HashMap<u32, usize>,
    of_members: usize,
    /// Those that have had their first member or lost their last one since the port was told.
    changed: HashSet<Ip16>,
}

impl Default for Groups {
    fn default() -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(limit, _)| limit);
        let part = usize::try_from(limit / PART_OF_FILES).unwrap_or(usize::MAX);
        Self::within(part.min(OF_MEMBERS_MAX))
    }
}

impl Groups {
    fn within(of_members_max: usize) -> Self {
        Self {
            of_members_max,
            members: HashMap::new(),
            joined: BTreeMap::new(),
            of_member: HashMap::new(),
            of_members: 0,
            changed: HashSet::new(),
        }
    }

    /// Makes a slot a member, if it is none. `member` is the user of its process, unless that is
    /// the owner or root.
    ///
    /// # Errors
    /// Invalid: no multicast group; QuotaExceeded.
    pub fn join(
        &mut self,
        slot: SlotId,
        group: IpAddr,
        member: Option<u32>,
    ) -> Result<(), Refusal> {
        if !group.to_canonical().is_multicast() {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!("{group} is no multicast group"),
            ));
        }
        let gid = Ip16::new(group);
        let known = self.joined.get(&slot.number());
        if known.is_some_and(|joined| joined.groups.contains(&gid)) {
            return Ok(());
        }
        self.check_quotas(known.map_or(0, |joined| joined.groups.len()), member)?;
        let joined = self.joined.entry(slot.number());
        let joined = joined.or_insert_with(|| Joined {
            member,
            groups: HashSet::new(),
        });
        joined.groups.insert(gid);
        if let Some(uid) = joined.member {
            *self.of_member.entry(uid).or_default() += 1;
            self.of_members += 1;
        }
        let members = self.members.entry(gid).or_default();
        if members.is_empty() {
            toggle(&mut self.changed, gid);
        }
        members.insert(slot.number());
        Ok(())
    }

    fn check_quotas(&self, of_process: usize, member: Option<u32>) -> Result<(), Refusal> {
        let refuse = |message| Err(Refusal::new(RefusalKind::QuotaExceeded, message));
        if of_process >= GROUPS_PER_PROCESS_MAX as usize {
            return refuse(format!("this process is in {of_process} groups already"));
        }
        let Some(uid) = member else {
            return Ok(());
        };
        let own = self.of_member.get(&uid).copied().unwrap_or(0);
        let free = self.of_members_max - self.of_members;
        if !fair::may_take(own, free) {
            return refuse(format!(
                "the processes of user {uid} have {own} memberships of groups, and the {free} that \
                 are free are kept for other users"
            ));
        }
        Ok(())
    }

    /// Ends a membership.
    ///
    /// # Errors
    /// NotFound: there is none.
    pub fn leave(&mut self, slot: SlotId, group: IpAddr) -> Result<(), Refusal> {
        let gid = Ip16::new(group);
        let joined = self.joined.get_mut(&slot.number());
        let Some(joined) = joined.filter(|joined| joined.groups.contains(&gid)) else {
            return Err(Refusal::new(
                RefusalKind::NotFound,
                format!("this process is not in group {group}"),
            ));
        };
        joined.groups.remove(&gid);
        let member = joined.member;
        self.remove(slot, member, gid);
        Ok(())
    }

    /// Ends all memberships of a slot whose process has ended.
    pub fn leave_all(&mut self, slot: SlotId) {
        let Some(joined) = self.joined.remove(&slot.number()) else {
            return;
        };
        for gid in joined.groups {
            self.remove(slot, joined.member, gid);
        }
    }

    /// Whether [`Self::take_changes`] would have some.
    pub fn have_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The groups that have members now and had none when this was called last, or the reverse, and
    /// whether they have.
    pub fn take_changes(&mut self) -> Vec<(IpAddr, bool)> {
        let changed = self.changed.drain();
        let with_members = changed.map(|gid| (gid.to_ip(), self.members.contains_key(&gid)));
        with_members.collect()
    }

    /// `slot`, of a process of `member`, is in a group no more.
    fn remove(&mut self, slot: SlotId, member: Option<u32>, group: Ip16) {
        if let Some(uid) = member {
            self.of_members -= 1;
            if let Some(own) = self.of_member.get_mut(&uid) {
                *own -= 1;
                if *own == 0 {
                    self.of_member.remove(&uid);
                }
            }
        }
        if let Some(members) = self.members.get_mut(&group) {
            members.remove(slot.number());
            if members.is_empty() {
                self.members.remove(&group);
                toggle(&mut self.changed, group);
            }
        }
    }

    /// The members of the group with this GID.
    pub fn members(&self, group: Ip16) -> SlotSet {
        self.members.get(&group).copied().unwrap_or_default()
    }

    /// All groups in order.
    pub fn status(&self) -> Vec<GroupStatus> {
        let mut groups: Vec<GroupStatus> = self
            .members
            .iter()
            .map(|(gid, members)| GroupStatus {
                group: gid.to_ip(),
                slots: members.iter().map(|slot| slot.number()).collect(),
            })
            .collect();
        groups.sort_by_key(|group| group.group);
        groups
    }
}

/// A change back to what the port knows is none.
fn toggle(changed: &mut HashSet<Ip16>, group: Ip16) {
    if !changed.remove(&group) {
        changed.insert(group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of joins of processes of `uid`, with slots from `first` on, until one is refused
    /// for the quota of the user.
    fn join_all(groups: &mut Groups, uid: u32, first: u8) -> usize {
        let all = (0..GROUPS_PER_PROCESS_MAX * 20).map(|number| {
            let process = u8::try_from(number / GROUPS_PER_PROCESS_MAX).unwrap();
            (slot(first + process), group(uid << 16 | number))
        });
        let joins = all.map(|(slot, group)| groups.join(slot, group, Some(uid)));
        joins.take_while(Result::is_ok).count()
    }

    fn group(number: u32) -> IpAddr {
        IpAddr::from((0xef00_0000 + number).to_be_bytes())
    }

    fn slot(number: u8) -> SlotId {
        SlotId::new(number).unwrap()
    }

    fn members(groups: &Groups, group: &str) -> Vec<u8> {
        let gid = Ip16::new(group.parse().unwrap());
        groups
            .members(gid)
            .iter()
            .map(|slot| slot.number())
            .collect()
    }

    #[test]
    fn members_join_and_leave_and_the_dead_leave_all() {
        let mut groups = Groups::default();
        let (four, six) = ("239.1.2.3".parse().unwrap(), "ff02::5".parse().unwrap());
        for (number, group) in [(1, four), (1, four), (253, four), (64, four), (1, six)] {
            groups.join(slot(number), group, None).unwrap();
        }
        assert_eq!(members(&groups, "239.1.2.3"), [1, 64, 253]);
        assert_eq!(members(&groups, "::ffff:239.1.2.3"), [1, 64, 253]);
        assert_eq!(groups.status().len(), 2);
        groups.leave(slot(64), four).unwrap();
        assert!(groups.leave(slot(64), four).is_err());
        groups.leave_all(slot(1));
        assert_eq!(members(&groups, "239.1.2.3"), [253]);
        assert_eq!(members(&groups, "ff02::5"), [0; 0]);
        groups.leave_all(slot(253));
        assert!(groups.status().is_empty());
    }

    #[test]
    fn groups_beyond_the_limit_and_hosts_are_refused() {
        let mut groups = Groups::default();
        for number in 0..GROUPS_PER_PROCESS_MAX {
            groups.join(slot(1), group(number), None).unwrap();
        }
        let kind = |outcome: Result<(), Refusal>| outcome.map_err(|refusal| refusal.kind);
        assert_eq!(
            kind(groups.join(slot(1), group(GROUPS_PER_PROCESS_MAX), None)),
            Err(RefusalKind::QuotaExceeded)
        );
        // A repeated join costs nothing, and another process has a limit of its own.
        assert_eq!(kind(groups.join(slot(1), group(0), None)), Ok(()));
        assert_eq!(kind(groups.join(slot(2), group(9999), None)), Ok(()));
        let host = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(
            kind(groups.join(slot(1), host, None)),
            Err(RefusalKind::Invalid)
        );
    }
    #[test]
    fn users_leave_groups_to_one_another_and_the_end_of_a_process_gives_its_own_back() {
        let mut groups = Groups::within(512);
        assert_eq!(join_all(&mut groups, 7, 10), 256);
        assert_eq!(join_all(&mut groups, 8, 40), 128);
        assert_eq!(join_all(&mut groups, 9, 80), 64);
        let refused = groups.join(slot(11), group(1), Some(7)).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::QuotaExceeded);
        // The owner and root have no limit but that of a process.
        groups.join(slot(1), group(1), None).unwrap();
        groups.leave(slot(40), group(8 << 16)).unwrap();
        groups.leave_all(slot(10));
        groups.leave_all(slot(80));
        assert_eq!(groups.of_members, 127);
        assert_eq!(groups.of_member, HashMap::from([(8, 127)]));
    }

    #[test]
    fn port_is_told_of_first_members_and_last_ones_only() {
        let mut groups = Groups::default();
        for number in [1, 2] {
            groups.join(slot(number), group(1), Some(7)).unwrap();
        }
        assert_eq!(groups.take_changes(), [(group(1), true)]);
        groups.leave(slot(1), group(1)).unwrap();
        assert!(!groups.have_changed());
        // One that was left and joined in between is no change.
        groups.leave(slot(2), group(1)).unwrap();
        groups.join(slot(2), group(1), Some(7)).unwrap();
        groups.join(slot(2), group(2), Some(7)).unwrap();
        groups.leave_all(slot(2));
        assert_eq!(groups.take_changes(), [(group(1), false)]);
        assert!(groups.take_changes().is_empty());
    }
}
