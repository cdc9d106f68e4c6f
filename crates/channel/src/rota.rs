//! Which of many channels a poll looks at: those on which something came a moment ago, and of those
//! on which something came lately, and of the rest, a few in turn. A look at an idle channel is a
//! few cache misses, so a poll that has found something seldom looks at the latter.

/// Members of each class but the first that one poll looks at.
const IN_TURN: usize = 2;
/// Polls in a row that look at the first class only, since something came there.
const BUSY_POLLS: u8 = 7;
/// Empty looks at a member after which it leaves the first class, and the second.
const LOOKS_TO_COOL: [u32; 2] = [64, 1024];

#[derive(Debug)]
struct Member<T> {
    id: T,
    /// Looks in a row in which nothing came.
    empty_looks: u32,
}

/// See the module. A poll calls [`Rota::polled`] with 0, 1 and so on until it gives none, and
/// [`Rota::note`] after each.
#[derive(Debug)]
pub struct Rota<T> {
    /// By class.
    members: Vec<Member<T>>,
    /// Where the second class and the third begin.
    begins: [usize; 2],
    /// The next of these classes to be looked at.
    turns: [usize; 2],
    /// The place of the member that was looked at last.
    at: usize,
    /// Whether something came in this poll.
    came: bool,
    /// Polls in a row that looked at the first class only.
    busy_polls: u8,
}

impl<T> Default for Rota<T> {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            begins: [0; 2],
            turns: [0; 2],
            at: 0,
            came: false,
            busy_polls: 0,
        }
    }
}

impl<T: Copy + PartialEq> Rota<T> {
    /// Adds a member, on which nothing came yet.
    pub fn insert(&mut self, id: T) {
        self.members.push(Member { id, empty_looks: 0 });
    }

    /// Removes a member.
    pub fn remove(&mut self, id: T) {
        let Some(mut at) = self.members.iter().position(|member| member.id == id) else {
            return;
        };
        // Down to the last class, and out.
        for begin in &mut self.begins {
            if at < *begin {
                *begin -= 1;
                self.members.swap(at, *begin);
                at = *begin;
            }
        }
        self.members.swap_remove(at);
    }

    /// The `at`th member of all.
    #[inline]
    pub fn get(&self, at: usize) -> Option<T> {
        self.members.get(at).map(|member| member.id)
    }

    /// The number of members on which something came a moment ago.
    #[inline]
    pub fn busy(&self) -> usize {
        self.begins[0]
    }

    /// All members.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.members.iter().map(|member| member.id)
    }

    /// The `at`th member that a poll looks at; `None` when it has looked at all.
    #[inline]
    pub fn polled(&mut self, at: usize) -> Option<T> {
        if at < self.begins[0] {
            self.at = at;
            return self.get(at);
        }
        if self.begins[0] == self.members.len() {
            return None;
        }
        self.other(at)
    }

    /// As [`Rota::polled`], of another class than the first.
    fn other(&mut self, at: usize) -> Option<T> {
        let place = if self.is_busy(at) {
            None
        } else {
            self.in_turn(at - self.begins[0])
        };
        let Some(place) = place else {
            self.came = false;
            return None;
        };
        self.at = place;
        self.get(place)
    }

    /// Whether the poll ends with the first class, the members of which are those before `at`.
    fn is_busy(&mut self, at: usize) -> bool {
        let is_busy = self.came && at == self.begins[0] && self.busy_polls < BUSY_POLLS;
        self.busy_polls = if is_busy { self.busy_polls + 1 } else { 0 };
        is_busy
    }

    /// The place of the `at`th member that a poll looks at beside the first class.
    fn in_turn(&mut self, at: usize) -> Option<usize> {
        let [second, third] = self.begins;
        let of_second = (third - second).min(IN_TURN);
        let (turn, begin, end) = if at < of_second {
            (&mut self.turns[0], second, third)
        } else {
            (&mut self.turns[1], third, self.members.len())
        };
        if at >= of_second + (self.members.len() - third).min(IN_TURN) {
            return None;
        }
        if !(begin..end).contains(turn) {
            *turn = begin;
        }
        *turn += 1;
        Some(*turn - 1)
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
            self.came = true;
            member.empty_looks = 0;
            if at >= self.begins[0] {
                self.rise(at);
            }
        } else if at < self.begins[1] {
            member.empty_looks += 1;
            let class = usize::from(at >= self.begins[0]);
            if member.empty_looks >= LOOKS_TO_COOL[class] {
                self.sink(at, class);
            }
        }
    }

    /// Moves a member to the first class.
    #[cold]
    fn rise(&mut self, mut at: usize) {
        for begin in self.begins.iter_mut().rev() {
            if at >= *begin {
                self.members.swap(at, *begin);
                at = *begin;
                *begin += 1;
            }
        }
    }

    /// Moves a member of a class to the next.
    #[cold]
    fn sink(&mut self, at: usize, class: usize) {
        self.members[at].empty_looks = 0;
        self.begins[class] -= 1;
        self.members.swap(at, self.begins[class]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More polls than it takes until all that cool down together have left a class.
    const COOLS: usize = LOOKS_TO_COOL[0] as usize + 20;

    fn poll(rota: &mut Rota<u32>, came: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut ids = Vec::new();
        while let Some(id) = rota.polled(ids.len()) {
            rota.note(id, came(id));
            ids.push(id);
        }
        ids
    }

    /// Polls until all of these were looked at, at most so often.
    fn looks_at_all(rota: &mut Rota<u32>, ids: &[u32], polls: usize) -> bool {
        let mut left = ids.to_vec();
        for _ in 0..polls {
            let seen = poll(rota, |_| false);
            left.retain(|id| !seen.contains(id));
        }
        left.is_empty()
    }

    #[test]
    fn members_are_looked_at_less_often_the_longer_nothing_comes() {
        let mut rota = Rota::default();
        (0..100).for_each(|id| rota.insert(id));
        let all: Vec<u32> = (0..100).collect();
        assert!(looks_at_all(&mut rota, &all, 50));
        for round in 0..3 {
            while rota.begins != [8, 8] {
                poll(&mut rota, |id| id < 8);
            }
            let mut first = poll(&mut rota, |_| false);
            assert_eq!(first.len(), 8 + IN_TURN);
            first.truncate(8);
            first.sort_unstable();
            assert_eq!(first, (0..8).collect::<Vec<_>>());
            (0..COOLS).for_each(|_| drop(poll(&mut rota, |_| false)));
            assert_eq!(rota.begins, [0, 8]);
            assert_eq!(poll(&mut rota, |_| false).len(), 2 * IN_TURN);
            assert!(looks_at_all(&mut rota, &[0, 1, 2, 3, 4, 5, 6, 7], 4));
            assert!(looks_at_all(&mut rota, &all, 50));
            if round == 1 {
                let polls = (LOOKS_TO_COOL[1] as usize + 20) * 8 / IN_TURN;
                (0..polls).for_each(|_| drop(poll(&mut rota, |_| false)));
                assert_eq!(rota.begins, [0, 0]);
                assert_eq!(poll(&mut rota, |_| false).len(), IN_TURN);
            }
        }
    }

    #[test]
    fn poll_that_finds_something_seldom_looks_at_idle_members() {
        let mut rota = Rota::default();
        (0..9).for_each(|id| rota.insert(id));
        while rota.begins != [1, 1] {
            poll(&mut rota, |id| id == 5);
        }
        let polls: Vec<usize> = (0..24)
            .map(|_| poll(&mut rota, |id| id == 5).len())
            .collect();
        let long = polls.iter().filter(|looks| **looks == 1 + IN_TURN);
        assert_eq!(long.count(), 3, "{polls:?}");
        assert!((0..8).all(|_| poll(&mut rota, |_| false).len() == 1 + IN_TURN));
    }

    #[test]
    fn members_that_are_removed_are_looked_at_no_more() {
        let mut rota = Rota::default();
        (0..30).for_each(|id| rota.insert(id));
        while rota.begins != [20, 20] {
            poll(&mut rota, |id| id < 20);
        }
        // Ten go on, ten cool down.
        (0..COOLS).for_each(|_| drop(poll(&mut rota, |id| id < 10)));
        assert_eq!(rota.begins, [10, 20]);
        for id in (0..30).step_by(2) {
            rota.remove(id);
            rota.remove(id);
        }
        let mut left: Vec<u32> = rota.iter().collect();
        left.sort_unstable();
        assert_eq!(left, (0..30).filter(|id| id % 2 == 1).collect::<Vec<_>>());
        assert_eq!(rota.begins, [5, 10]);
        assert!((0..10).all(|_| poll(&mut rota, |_| false).iter().all(|id| id % 2 == 1)));
    }
}
