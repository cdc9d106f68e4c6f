//! Assignment of slots to processes.

use std::collections::HashMap;

use urdma_types::SlotId;

/// Identifies a control connection for the life of urdmad.
pub type Token = u64;

/// The slots of an instance, 1 and up.
#[derive(Debug)]
pub struct Slots {
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
        limit: u16,
    },
}

impl Slots {
    /// `processes` free slots.
    pub fn new(processes: u16) -> Self {
        Self {
            owners: vec![None; usize::from(processes)],
            next: 0,
        }
    }

    /// The maximum number of attached processes.
    pub fn total(&self) -> usize {
        self.owners.len()
    }

    /// Assigns a slot to a connection of `uid`, whose limit is `limit`.
    ///
    /// # Errors
    /// None is free, or the quota is used up.
    pub fn assign(&mut self, owner: Owner, limit: u16) -> Result<SlotId, NoSlot> {
        let of_user = self
            .owners
            .iter()
            .flatten()
            .filter(|o| o.uid == owner.uid)
            .count();
        if of_user >= usize::from(limit) {
            return Err(NoSlot::Quota {
                uid: owner.uid,
                limit,
            });
        }
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

    #[test]
    fn assign_when_all_are_taken_is_refused() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.assign(owner(1, 0), 9).unwrap().number(), 1);
        assert_eq!(slots.assign(owner(2, 0), 9).unwrap().number(), 2);
        assert_eq!(slots.assign(owner(3, 0), 9), Err(NoSlot::AllTaken(2)));
    }

    #[test]
    fn assign_beyond_the_users_quota_is_refused_for_him_only() {
        let mut slots = Slots::new(9);
        slots.assign(owner(1, 1000), 1).unwrap();
        assert!(matches!(
            slots.assign(owner(2, 1000), 1),
            Err(NoSlot::Quota { uid: 1000, .. })
        ));
        assert!(slots.assign(owner(3, 1001), 1).is_ok());
    }

    #[test]
    fn slot_released_is_used_again_last() {
        let mut slots = Slots::new(3);
        let first = slots.assign(owner(1, 0), 9).unwrap();
        assert!(!slots.is_free(first));
        slots.release(first);
        assert!(slots.is_free(first));
        let order: Vec<u8> = (0..3)
            .map(|t| slots.assign(owner(t, 0), 9).unwrap().number())
            .collect();
        assert_eq!(order, [2, 3, 1]);
    }
}
