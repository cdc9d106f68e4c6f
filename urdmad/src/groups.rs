//! Members of the multicast groups.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use urdma_ipc::status::GroupStatus;
use urdma_ipc::{Refusal, RefusalKind, GROUPS_PER_PROCESS_MAX};
use urdma_types::{Ip16, SlotId};

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

    /// Removes a slot.
    pub fn remove(&mut self, slot: u8) {
        self.0[usize::from(slot / 64)] &= !(1 << (slot % 64));
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

/// The groups of an instance.
#[derive(Debug, Default)]
pub struct Groups {
    /// By the group's address as a GID.
    members: HashMap<Ip16, SlotSet>,
    joined: BTreeMap<u8, HashSet<Ip16>>,
}

impl Groups {
    /// Makes a slot a member, if it is none.
    ///
    /// # Errors
    /// Invalid: no multicast group; QuotaExceeded.
    pub fn join(&mut self, slot: SlotId, group: IpAddr) -> Result<(), Refusal> {
        if !group.to_canonical().is_multicast() {
            return Err(Refusal::new(
                RefusalKind::Invalid,
                format!("{group} is no multicast group"),
            ));
        }
        let gid = Ip16::new(group);
        let joined = self.joined.entry(slot.number()).or_default();
        if joined.len() >= GROUPS_PER_PROCESS_MAX as usize && !joined.contains(&gid) {
            return Err(Refusal::new(
                RefusalKind::QuotaExceeded,
                format!("this process is in {} groups already", joined.len()),
            ));
        }
        joined.insert(gid);
        self.members.entry(gid).or_default().insert(slot.number());
        Ok(())
    }

    /// Ends a membership.
    ///
    /// # Errors
    /// NotFound: there is none.
    pub fn leave(&mut self, slot: SlotId, group: IpAddr) -> Result<(), Refusal> {
        let gid = Ip16::new(group);
        let was_member = self
            .joined
            .get_mut(&slot.number())
            .is_some_and(|joined| joined.remove(&gid));
        if !was_member {
            return Err(Refusal::new(
                RefusalKind::NotFound,
                format!("this process is not in group {group}"),
            ));
        }
        self.remove(slot, gid);
        Ok(())
    }

    /// Ends all memberships of a slot whose process has ended; whether there were any.
    pub fn leave_all(&mut self, slot: SlotId) -> bool {
        let joined = self.joined.remove(&slot.number()).unwrap_or_default();
        for gid in &joined {
            self.remove(slot, *gid);
        }
        !joined.is_empty()
    }

    /// The groups that have members.
    pub fn all(&self) -> Vec<IpAddr> {
        self.members.keys().map(|gid| gid.to_ip()).collect()
    }

    fn remove(&mut self, slot: SlotId, group: Ip16) {
        if let Some(members) = self.members.get_mut(&group) {
            members.remove(slot.number());
            if members.is_empty() {
                self.members.remove(&group);
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

#[cfg(test)]
mod tests {
    use super::*;

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
            groups.join(slot(number), group).unwrap();
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
        let group = |number: u32| IpAddr::from((0xef00_0000 + number).to_be_bytes());
        for number in 0..GROUPS_PER_PROCESS_MAX {
            groups.join(slot(1), group(number)).unwrap();
        }
        let kind = |outcome: Result<(), Refusal>| outcome.map_err(|refusal| refusal.kind);
        assert_eq!(
            kind(groups.join(slot(1), group(GROUPS_PER_PROCESS_MAX))),
            Err(RefusalKind::QuotaExceeded)
        );
        // A repeated join costs nothing, and another process has a limit of its own.
        assert_eq!(kind(groups.join(slot(1), group(0))), Ok(()));
        assert_eq!(kind(groups.join(slot(2), group(9999))), Ok(()));
        let host = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(kind(groups.join(slot(1), host)), Err(RefusalKind::Invalid));
    }
}
