//! Assignment of slots to processes.

use std::collections::HashMap;

use urdma_types::SlotId;

/// Identifies a control connection for the life of urdmad.
pub type Token = u64;

/// A shared instance keeps one of so many slots for the owner and root.
const KEPT_ONE_OF: usize = 16;
/// An instance with fewer slots keeps none.
const NONE_KEPT_BELOW: usize = 4;

/// The limits on the slots of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    owner: u32,
    /// Of one user, whoever it is.
    per_user: usize,
    /// Of one user other than the owner and root.
    per_member: usize,
    /// Of all users other than the owner and root.
    members: usize,
}

impl SlotLimits {
    /// The limits for `processes` slots of an instance of `owner`: `configured` for every user. If
    /// the instance is shared with other users, a sixteenth of the slots is kept for the owner and
    /// root, and without a configured limit one other user gets three quarters of the rest.
    pub fn new(processes: u16, owner: u32, configured: Option<u16>, is_shared: bool) -> Self {
        let all = usize::from(processes);
        let per_user = configured.map_or(usize::MAX, usize::from);
        let kept = if is_shared && all >= NONE_KEPT_BELOW {
            all.div_ceil(KEPT_ONE_OF)
        } else {
            0
        };
        let members = all - kept;
        let share = members - members / 4;
        Self {
            owner,
            per_user,
            per_member: match configured {
                None if is_shared => share,
                _ => per_user,
            },
            members,
        }
    }

    fn admit(&self, uid: u32, users: impl Iterator<Item = u32> + Clone) -> Result<(), NoSlot> {
        let is_member = |uid| uid != 0 && uid != self.owner;
        let limit = if is_member(uid) {
            self.per_member
        } else {
            self.per_user
        };
        if users.clone().filter(|user| *user == uid).count() >= limit {
            return Err(NoSlot::Quota { uid, limit });
        }
        if is_member(uid) && users.filter(|user| is_member(*user)).count() >= self.members {
            return Err(NoSlot::Kept(self.members));
        }
        Ok(())
    }
}

/// The slots of an instance, 1 and up.
#[derive(Debug)]
pub struct Slots {
    limits: SlotLimits,
    /// By slot number minus 1.
    owners: Vec<Option<Owner>>,
    /// Where the search for a free slot starts, so that a number is not reused soon.
    next: usize,
}

/// The owner of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The control connection.
    pub token: Token,
    /// User id, from the kernel.
    pub uid: u32,
}

/// Why there is no slot for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSlot {
    /// All are assigned.
    #[error(
        "all {0} slots of this instance are taken: end a program or raise \"slots\" in the \
        configuration"
    )]
    AllTaken(usize),
    /// The user has reached the limit.
    #[error("user {uid} has {limit} slots already, as many as quota.slots_per_user allows")]
    Quota {
        /// The user.
        uid: u32,
        /// The limit.
        limit: usize,
    },
    /// The rest is kept for the owner and root.
    #[error(
        "all {0} slots for users other than the owner and root are taken: end a program or raise \
        \"slots\" in the configuration"
    )]
    Kept(usize),
}

impl Slots {
    /// `processes` free slots.
    pub fn new(processes: u16, limits: SlotLimits) -> Self {
        Self {
            limits,
            owners: vec![None; usize::from(processes)],
            next: 0,
        }
    }

    /// The maximum number of attached processes.
    pub fn total(&self) -> usize {
        self.owners.len()
    }

    /// Assigns a slot to a connection.
    ///
    /// # Errors
    /// None is free, or the quota is used up.
    pub fn assign(&mut self, owner: Owner) -> Result<SlotId, NoSlot> {
        let users = self.owners.iter().flatten().map(|owner| owner.uid);
        self.limits.admit(owner.uid, users)?;
        let total = self.total();
        let free = (0..total)
            .map(|offset| (self.next + offset) % total)
            .find(|index| self.owners[*index].is_none());
        let slot = free.and_then(|index| Some((index, slot_at(index)?)));
        let (index, slot) = slot.ok_or(NoSlot::AllTaken(total))?;
        self.owners[index] = Some(owner);
        self.next = (index + 1) % total;
        Ok(slot)
    }

    /// Frees a slot.
    pub fn release(&mut self, slot: SlotId) {
        if let Some(owner) = usize::from(slot.number())
            .checked_sub(1)
            .and_then(|index| self.owners.get_mut(index))
        {
            *owner = None;
        }
    }

    /// Whether no connection has the slot; false for slot 0, which is urdmad's.
    pub fn is_free(&self, slot: SlotId) -> bool {
        let index = usize::from(slot.number()).checked_sub(1);
        index.is_some_and(|index| matches!(self.owners.get(index), Some(None)))
    }

    /// The slots in use, by connection.
    pub fn by_token(&self) -> HashMap<Token, SlotId> {
        self.owners
            .iter()
            .enumerate()
            .filter_map(|(index, owner)| Some((owner.as_ref()?.token, slot_at(index)?)))
            .collect()
    }
}

fn slot_at(index: usize) -> Option<SlotId> {
    SlotId::new(u8::try_from(index + 1).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(token: Token, uid: u32) -> Owner {
        Owner { token, uid }
    }

    const OWNER: u32 = 1000;

    fn slots(processes: u16, configured: Option<u16>, is_shared: bool) -> Slots {
        let limits = SlotLimits::new(processes, OWNER, configured, is_shared);
        Slots::new(processes, limits)
    }

    /// The slots that `uid` gets, and why it gets no more.
    fn take_all(slots: &mut Slots, uid: u32) -> (usize, NoSlot) {
        let mut taken = 0;
        loop {
            match slots.assign(owner(taken as u64, uid)) {
                Ok(_) => taken += 1,
                Err(reason) => return (taken, reason),
            }
        }
    }

    #[test]
    fn assign_when_all_are_taken_is_refused() {
        let mut slots = slots(2, None, false);
        assert_eq!(slots.assign(owner(1, 0)).unwrap().number(), 1);
        assert_eq!(slots.assign(owner(2, 0)).unwrap().number(), 2);
        assert_eq!(slots.assign(owner(3, 0)), Err(NoSlot::AllTaken(2)));
    }

    #[test]
    fn assign_beyond_the_users_quota_is_refused_for_him_only() {
        let mut slots = slots(9, Some(1), false);
        slots.assign(owner(1, 1000)).unwrap();
        assert!(matches!(
            slots.assign(owner(2, 1000)),
            Err(NoSlot::Quota { uid: 1000, .. })
        ));
        assert!(slots.assign(owner(3, 1001)).is_ok());
    }

    #[test]
    fn members_leave_slots_to_one_another_and_to_owner_and_root() {
        let mut slots = slots(253, None, true);
        let refused = NoSlot::Quota { uid: 7, limit: 178 };
        assert_eq!(take_all(&mut slots, 7), (178, refused));
        assert_eq!(take_all(&mut slots, 8), (59, NoSlot::Kept(237)));
        assert_eq!(take_all(&mut slots, 9), (0, NoSlot::Kept(237)));
        slots.assign(owner(0, OWNER)).unwrap();
        assert_eq!(take_all(&mut slots, 0), (15, NoSlot::AllTaken(253)));
    }

    #[test]
    fn owner_without_a_group_gets_every_slot() {
        let mut slots = slots(253, None, false);
        assert_eq!(take_all(&mut slots, OWNER), (253, NoSlot::AllTaken(253)));
    }

    #[test]
    fn configured_limit_replaces_the_share_of_members() {
        let mut slots = slots(253, Some(200), true);
        assert_eq!(take_all(&mut slots, 7).0, 200);
        assert_eq!(take_all(&mut slots, 8), (37, NoSlot::Kept(237)));
        assert_eq!(take_all(&mut slots, OWNER), (16, NoSlot::AllTaken(253)));
    }

    #[test]
    fn few_slots_are_not_kept_but_shared() {
        let mut three = slots(3, None, true);
        assert_eq!(take_all(&mut three, 7).0, 3);
        let mut four = slots(4, None, true);
        assert_eq!(take_all(&mut four, 7).0, 3);
        assert_eq!(take_all(&mut four, 8), (0, NoSlot::Kept(3)));
    }

    #[test]
    fn slot_released_is_used_again_last() {
        let mut slots = slots(3, None, false);
        let first = slots.assign(owner(1, 0)).unwrap();
        assert!(!slots.is_free(first));
        slots.release(first);
        assert!(slots.is_free(first));
        let order: Vec<u8> = (0..3)
            .map(|t| slots.assign(owner(t, 0)).unwrap().number())
            .collect();
        assert_eq!(order, [2, 3, 1]);
    }
}
