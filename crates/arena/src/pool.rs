//! A slot's private lists of one class of its frames. None of it is in shared memory, so no other
//! process can corrupt it.

use std::collections::VecDeque;

/// Outstanding frames that an allocation checks at most.
const LOOKS_MAX: usize = 16;

/// Frame numbers `first..first + count` of one slot.
#[derive(Debug)]
pub(crate) struct Pool {
    first: u16,
    count: u16,
    /// Frames from here on were never used and have no memory yet.
    fresh: u16,
    /// Known to be FREE, the most recently used last.
    warm: Vec<u16>,
    /// Allocated and not yet seen FREE again, oldest first.
    out: VecDeque<u16>,
    /// Likewise, but an allocation has found them still held; the least recently checked first.
    /// Frames that a stopped receiver holds stay here, so that allocations find the others at once.
    stuck: VecDeque<u16>,
}

/// An allocated frame number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Used before.
    Used(u16),
    /// Never used before; now this many frames of the class were.
    Fresh(u16, u16),
}

impl Pool {
    /// `used` of the frames were used by an earlier owner; `is_free` says which of them are FREE
    /// now.
    pub(crate) fn new(
        first: u16,
        count: u16,
        used: u16,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Self {
        let used = used.min(count);
        let mut pool = Self {
            first,
            count,
            fresh: used,
            warm: Vec::with_capacity(usize::from(count)),
            out: VecDeque::with_capacity(usize::from(count)),
            stuck: VecDeque::with_capacity(usize::from(count)),
        };
        for k in (first..first + used).rev() {
            if is_free(k) {
                pool.warm.push(k);
            } else {
                pool.out.push_back(k);
            }
        }
        pool
    }

    /// Takes a FREE frame: a warm one, else the oldest outstanding if it is FREE by now, else a
    /// fresh one, else an outstanding one that turns out to be FREE.
    #[inline]
    pub(crate) fn take(&mut self, mut is_free: impl FnMut(u16) -> bool) -> Option<Taken> {
        if let Some(k) = self.warm.pop() {
            self.out.push_back(k);
            return Some(Taken::Used(k));
        }
        if let Some(&k) = self.out.front() {
            if is_free(k) {
                self.out.pop_front();
                self.out.push_back(k);
                return Some(Taken::Used(k));
            }
        }
        if self.fresh < self.count {
            let k = self.first + self.fresh;
            self.fresh += 1;
            self.out.push_back(k);
            return Some(Taken::Fresh(k, self.fresh));
        }
        self.search(is_free)
    }

    #[cold]
    fn search(&mut self, mut is_free: impl FnMut(u16) -> bool) -> Option<Taken> {
        for _ in 0..self.out.len().min(LOOKS_MAX) {
            let k = self.out.pop_front()?;
            if is_free(k) {
                self.out.push_back(k);
                return Some(Taken::Used(k));
            }
            self.stuck.push_back(k);
        }
        for _ in 0..self.stuck.len().min(LOOKS_MAX) {
            let k = self.stuck.pop_front()?;
            if is_free(k) {
                self.out.push_back(k);
                return Some(Taken::Used(k));
            }
            self.stuck.push_back(k);
        }
        None
    }

    /// For an idle moment: if the oldest outstanding frame, never the newest, is FREE, makes it
    /// warm and returns it.
    #[inline]
    pub(crate) fn tidy(&mut self, mut is_free: impl FnMut(u16) -> bool) -> Option<u16> {
        if self.out.len() < 2 {
            return self.tidy_stuck(is_free);
        }
        let &k = self.out.front()?;
        if !is_free(k) {
            return None;
        }
        self.out.pop_front();
        self.warm.push(k);
        Some(k)
    }

    /// The same for the held frame that was checked least recently.
    #[inline]
    fn tidy_stuck(&mut self, mut is_free: impl FnMut(u16) -> bool) -> Option<u16> {
        let k = self.stuck.pop_front()?;
        if !is_free(k) {
            self.stuck.push_back(k);
            return None;
        }
        self.warm.push(k);
        Some(k)
    }

    /// Frames not known to be FREE.
    pub(crate) fn outstanding(&self) -> usize {
        self.out.len() + self.stuck.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn pool_takes_each_frame_once_and_then_is_exhausted() {
        let mut pool = Pool::new(10, 8, 0, |_| true);
        let mut seen = HashSet::new();
        for expected in 1..=8 {
            match pool.take(|_| false) {
                Some(Taken::Fresh(k, used)) => {
                    assert!(seen.insert(k) && (10..18).contains(&k));
                    assert_eq!(used, expected);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pool.take(|_| false), None);
        assert_eq!(pool.outstanding(), 8);
    }

    #[test]
    fn pool_with_a_frozen_receiver_goes_on_with_the_other_frames() {
        let mut pool = Pool::new(0, 8, 0, |_| true);
        let mut taken = 0;
        for _ in 0..1000 {
            // Frames 0..4 are never returned.
            taken += usize::from(pool.take(|k| k >= 4).is_some());
        }
        assert_eq!(taken, 1000);
    }

    #[test]
    fn pool_with_a_frozen_receiver_that_has_most_frames_finds_the_others_at_once() {
        const HELD: u16 = 384;
        let mut pool = Pool::new(0, 512, 0, |_| true);
        for _ in 0..512 {
            assert!(pool.take(|_| false).is_some());
        }
        // Held frames are checked once.
        let failures = |pool: &mut Pool, takes: usize| {
            let failed = (0..takes).filter(|_| pool.take(|k| k >= HELD).is_none());
            failed.count()
        };
        assert!(failures(&mut pool, 100) <= usize::from(HELD) / LOOKS_MAX);
        assert_eq!(failures(&mut pool, 10_000), 0);
        // They are returned.
        let taken = (0..512).filter_map(|_| pool.take(|k| k < HELD));
        assert!(taken.count() > 0);
    }

    #[test]
    fn pool_idle_reclaims_the_oldest_but_not_the_newest() {
        let mut pool = Pool::new(0, 8, 0, |_| true);
        let _ = pool.take(|_| false);
        assert_eq!(pool.tidy(|_| true), None);
        let _ = pool.take(|_| false);
        assert_eq!(pool.tidy(|_| true), Some(0));
        assert_eq!(pool.take(|_| false), Some(Taken::Used(0)));
    }

    #[test]
    fn pool_of_a_new_owner_skips_what_others_still_hold() {
        let mut pool = Pool::new(0, 4, 2, |k| k != 1);
        assert_eq!(pool.take(|_| false), Some(Taken::Used(0)));
        assert_eq!(pool.take(|_| false), Some(Taken::Fresh(2, 3)));
        assert_eq!(pool.take(|_| false), Some(Taken::Fresh(3, 4)));
        assert_eq!(pool.take(|_| false), None);
        assert_eq!(pool.take(|k| k == 1), Some(Taken::Used(1)));
    }
}
