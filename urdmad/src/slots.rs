//! Assignment of slots to processes.

use urdma_types::SlotId;

use crate::fair;

/// Identifies a control connection for the life of urdmad.
pub type Token = u64;

/// A shared instance keeps one slot of sixteen for the owner and root.
const KEPT_ONE_OF: usize = 16;
/// An instance with fewer slots keeps none.
const NONE_KEPT_BELOW: usize = 4;

/// The limits on the slots of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLimits {
    owner: u32,
    /// Of one user.
    per_user: usize,
    /// Of all users other than the owner and root.
    members: usize,
}

impl SlotLimits {
    /// The limits for `processes` slots of an instance of `owner`: `configured` for every user. If
    /// the instance is shared with other users, a sixteenth of the slots is kept for the owner and
    /// root.
    pub fn new(processes: u16, owner: u32, configured: Option<u16>, is_shared: bool) -> Self {
        let all = usize::from(processes);
        let kept = if is_shared && all >= NONE_KEPT_BELOW {
            all.div_ceil(KEPT_ONE_OF)
        } else {
            0
        };
        Self {
            owner,
            per_user: configured.map_or(usize::MAX, usize::from),
            members: all - kept,
        }
    }

    /// Whether `uid` may have one more slot, beside those of `users`, of `total`.
    fn admit(
        &self,
        uid: u32,
        users: impl Iterator<Item = u32> + Clone,
        total: usize,
    ) -> Result<(), NoSlot> {
        let is_member = |uid| uid != 0 && uid != self.owner;
        let of_user = users.clone().filter(|user| *user == uid).count();
        if of_user >= self.per_user {
            return Err(NoSlot::Quota {
                uid,
                limit: self.per_user,
            });
        }
        let left = total - users.clone().count();
        if left == 0 {
            return Err(NoSlot::AllTaken(total));
        }
        if !is_member(uid) {
            return Ok(());
        }
        let of_members = users.filter(|user| is_member(*user)).count();
        let free = left.min(self.members.saturating_sub(of_members));
        match free {
            0 => Err(NoSlot::Kept(self.members)),
            _ if fair::may_take(of_user, free) => Ok(()),
            _ => Err(NoSlot::Share { uid, of_user, free }),
        }
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
    /// Those that are free are kept for other users.
    #[error(
        "user {uid} has {of_user} slots, and the {free} that are free are kept for other users"
    )]
    Share {
        /// The user.
        uid: u32,
        /// Its slots.
        of_user: usize,
        /// Those that it might have.
        free: usize,
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
        let total = self.total();
        self.limits.admit(owner.uid, users, total)?;
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

    /// What a user that has `of_user` slots is told while `free` are left.
    fn share(uid: u32, of_user: usize, free: usize) -> NoSlot {
        NoSlot::Share { uid, of_user, free }
    }

    #[test]
    fn members_leave_slots_to_one_another_and_to_owner_and_root() {
        let mut slots = slots(253, None, true);
        assert_eq!(take_all(&mut slots, 7), (119, share(7, 119, 118)));
        assert_eq!(take_all(&mut slots, 8), (59, share(8, 59, 59)));
        assert_eq!(take_all(&mut slots, 9), (30, share(9, 30, 29)));
        for (uid, taken) in (10..).zip([15, 7, 4, 2]) {
            assert_eq!(take_all(&mut slots, uid).0, taken);
        }
        assert_eq!(take_all(&mut slots, 14), (1, NoSlot::Kept(237)));
        assert_eq!(take_all(&mut slots, 15), (0, NoSlot::Kept(237)));
        slots.assign(owner(0, OWNER)).unwrap();
        assert_eq!(take_all(&mut slots, 0), (15, NoSlot::AllTaken(253)));
    }

    #[test]
    fn slots_of_the_owner_are_not_free_for_members() {
        let mut slots = slots(253, None, true);
        for token in 0..153 {
            slots.assign(owner(token, OWNER)).unwrap();
        }
        assert_eq!(take_all(&mut slots, 7), (50, share(7, 50, 50)));
    }

    #[test]
    fn owner_without_a_group_gets_every_slot() {
        let mut slots = slots(253, None, false);
        assert_eq!(take_all(&mut slots, OWNER), (253, NoSlot::AllTaken(253)));
    }

    #[test]
    fn configured_limit_holds_for_all_users_beside_the_share_of_members() {
        let mut few = slots(253, Some(50), true);
        let refused = NoSlot::Quota { uid: 7, limit: 50 };
        assert_eq!(take_all(&mut few, 7), (50, refused));
        assert_eq!(take_all(&mut few, OWNER).0, 50);
        let mut many = slots(253, Some(200), true);
        assert_eq!(take_all(&mut many, 7), (119, share(7, 119, 118)));
        assert_eq!(take_all(&mut many, OWNER), (134, NoSlot::AllTaken(253)));
    }

    #[test]
    fn few_slots_are_not_kept_but_shared() {
        let mut three = slots(3, None, true);
        assert_eq!(take_all(&mut three, 7), (2, share(7, 2, 1)));
        assert_eq!(take_all(&mut three, 8), (1, NoSlot::AllTaken(3)));
        let mut four = slots(4, None, true);
        assert_eq!(take_all(&mut four, 7), (2, share(7, 2, 1)));
        assert_eq!(take_all(&mut four, 8), (1, NoSlot::Kept(3)));
        assert_eq!(take_all(&mut four, OWNER), (1, NoSlot::AllTaken(4)));
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
