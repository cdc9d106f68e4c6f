//! Which of many channels a poll looks at: those on which something came lately, and a few of the
//! others in turn.

/// Members beyond the lively ones that one poll looks at.
const OTHERS_PER_POLL: usize = 2;
/// Empty polls after which a member is one of the others.
const POLLS_TO_COOL: u32 = 4096;

#[derive(Debug)]
struct Member<T> {
    id: T,
    /// Polls in a row in which nothing came.
    empty_polls: u32,
}

/// See the module. A poll is a loop over `0..to_poll()` with [`Rota::polled`] and [`Rota::note`].
#[derive(Debug)]
pub struct Rota<T> {
    /// First those on which something came lately.
    members: Vec<Member<T>>,
    /// How many these are.
    lively: usize,
    /// The next of the others to be looked at.
    turn: usize,
    /// The place of the member that was looked at last.
    at: usize,
}

impl<T> Default for Rota<T> {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            lively: 0,
            turn: 0,
            at: 0,
        }
    }
}

impl<T: Copy + PartialEq> Rota<T> {
    /// Adds a member.
    pub fn insert(&mut self, id: T) {
        self.members.push(Member {
            id,
            empty_polls: POLLS_TO_COOL,
        });
    }

    /// Removes a member.
    pub fn remove(&mut self, id: T) {
        let Some(at) = self.members.iter().position(|member| member.id == id) else {
            return;
        };
        let last_lively = self.lively.wrapping_sub(1);
        if at < self.lively {
            self.members.swap(at, last_lively);
            self.lively = last_lively;
            self.members.swap_remove(last_lively);
        } else {
            self.members.swap_remove(at);
        }
    }

    /// The `at`th member of all.
    #[inline]
    pub fn get(&self, at: usize) -> Option<T> {
        self.members.get(at).map(|member| member.id)
    }

    /// All members.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.members.iter().map(|member| member.id)
    }

    /// How many members a poll looks at.
    #[inline]
    pub fn to_poll(&self) -> usize {
        let others = self.members.len() - self.lively;
        self.lively + others.min(OTHERS_PER_POLL)
    }

    /// The `at`th member that a poll looks at.
    #[inline]
    pub fn polled(&mut self, at: usize) -> Option<T> {
        self.at = at;
        if at >= self.lively {
            if self.turn < self.lively || self.turn >= self.members.len() {
                self.turn = self.lively;
            }
            self.at = self.turn;
            self.turn += 1;
        }
        self.get(self.at)
    }

    /// Notes whether something came from the member that [`Rota::polled`] gave last.
    #[inline]
    pub fn note(&mut self, id: T, came: bool) {
        let at = self.at;
        // Others may have been removed meanwhile.
        let Some(member) = self.members.get_mut(at).filter(|member| member.id == id) else {
            return;
        };
        if came {
            member.empty_polls = 0;
            if at >= self.lively {
                self.members.swap(at, self.lively);
                self.lively += 1;
            }
        } else if at < self.lively {
            member.empty_polls += 1;
            if member.empty_polls >= POLLS_TO_COOL {
                self.lively -= 1;
                self.members.swap(at, self.lively);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(rota: &mut Rota<u32>, came: impl Fn(u32) -> bool) -> Vec<u32> {
        let ids = (0..rota.to_poll()).filter_map(|at| {
            let id = rota.polled(at)?;
            rota.note(id, came(id));
            Some(id)
        });
        ids.collect()
    }

    #[test]
    fn lively_members_are_in_every_poll_and_the_others_in_turn() {
        let mut rota = Rota::default();
        (0..100).for_each(|id| rota.insert(id));
        let mut seen = Vec::new();
        while !seen.contains(&50) {
            seen = poll(&mut rota, |id| id == 50);
            assert_eq!(seen.len(), OTHERS_PER_POLL);
        }
        for _ in 0..10 {
            assert_eq!(poll(&mut rota, |_| false)[0], 50);
        }
        let mut all: Vec<u32> = (0..100 / OTHERS_PER_POLL + 1)
            .flat_map(|_| poll(&mut rota, |_| false))
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 100);
        (0..POLLS_TO_COOL).for_each(|_| drop(poll(&mut rota, |_| false)));
        assert_eq!(rota.to_poll(), OTHERS_PER_POLL);
    }

    #[test]
    fn members_that_are_removed_are_looked_at_no_more() {
        let mut rota = Rota::default();
        (0..20).for_each(|id| rota.insert(id));
        (0..100).for_each(|_| drop(poll(&mut rota, |id| id < 10)));
        for id in (0..20).step_by(2) {
            rota.remove(id);
            rota.remove(id);
        }
        let mut left: Vec<u32> = rota.iter().collect();
        left.sort_unstable();
        assert_eq!(left, (0..20).filter(|id| id % 2 == 1).collect::<Vec<_>>());
        assert_eq!(rota.to_poll(), 5 + OTHERS_PER_POLL);
        assert!((0..10).all(|_| poll(&mut rota, |_| false).iter().all(|id| id % 2 == 1)));
    }
}
