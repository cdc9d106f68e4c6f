//! A hierarchical timing wheel: one timer per queue pair index, every operation O(1).
//!
//! There are four levels of 64 places. A place of level 0 is one tick of 2^13 ns (8.192 us), a
//! place of level n is 64 places of level n-1. The last level reaches 137 s; a later timer waits
//! there and is inserted again. A timer that moves to a later time stays where it is: when its
//! place comes, the caller says when it is really due ([`Wheel::expired`] only names candidates).
//! The common case, a deadline that is pushed back with every packet, therefore costs one
//! comparison.

use proto_trp::conn::Time;

use super::index_table::FirstIndex;

const TICK_SHIFT: u32 = 13;
const LEVELS: usize = 4;
const PLACES_SHIFT: u32 = 6;
const PLACES: usize = 1 << PLACES_SHIFT;
/// Shift of the last level.
const LAST_SHIFT: u32 = 18;
const _: () = assert!(LAST_SHIFT as usize == (LEVELS - 1) * PLACES_SHIFT as usize);
const NONE: u32 = u32::MAX;
/// Value of [`Node::place`] of a timer that is not in the wheel.
const NOWHERE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    previous: u32,
    /// `level * 64 + place`.
    place: u16,
    due_tick: u64,
}

const IDLE: Node = Node {
    next: NONE,
    previous: NONE,
    place: NOWHERE,
    due_tick: u64::MAX,
};

/// The timers of one shard.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// A timer's number is the place of its queue pair's index.
    first: FirstIndex,
    nodes: Vec<Node>,
    heads: [u32; LEVELS * PLACES],
    /// One bit per place that is not empty.
    occupied: [u64; LEVELS],
    /// All ticks up to this one have been looked at.
    tick: u64,
    /// A timer was set to an earlier time than it had.
    moved: bool,
}

/// The place of a position within its level: the low bits.
#[inline]
fn place_in_level(position: u64) -> usize {
    usize::try_from(position & (PLACES as u64 - 1)).unwrap_or(0)
}

const fn tick_of(time: Time) -> u64 {
    // Rounded up: a timer never fires early.
    time.as_ns().div_ceil(1 << TICK_SHIFT)
}

impl Wheel {
    /// An empty wheel for indices that begin with `first`, whose time begins at `now`.
    pub(crate) fn new(first: FirstIndex, now: Time) -> Self {
        Self {
            first,
            nodes: Vec::new(),
            heads: [NONE; LEVELS * PLACES],
            occupied: [0; LEVELS],
            tick: now.as_ns() >> TICK_SHIFT,
            moved: false,
        }
    }

    /// Makes room for the timers of `count` indices.
    pub(crate) fn reserve(&mut self, count: usize) {
        if count > self.nodes.len() {
            self.nodes.resize(count, IDLE);
        }
    }

    /// Sets the timer of `index` to `deadline`; `None` leaves it to run out without effect.
    #[inline]
    pub(crate) fn set(&mut self, index: u16, deadline: Option<Time>) {
        let Some(deadline) = deadline else { return };
        let due_tick = tick_of(deadline);
        let number = self.first.place(index);
        let node = &self.nodes[usize::from(number)];
        if due_tick < node.due_tick {
            self.moved = true;
            self.insert(number, due_tick);
        }
    }

    /// Whether some timer was set to an earlier time than it had since this was last asked.
    #[inline]
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Takes the timer of `index` out.
    pub(crate) fn cancel(&mut self, index: u16) {
        self.unlink(u32::from(self.first.place(index)));
    }

    #[cold]
    fn insert(&mut self, number: u16, due_tick: u64) {
        let at = u32::from(number);
        self.unlink(at);
        let place = self.place_for(due_tick);
        let head = self.heads[place];
        self.nodes[usize::from(number)] = Node {
            next: head,
            previous: NONE,
            // A place is below LEVELS * PLACES.
            place: u16::try_from(place).unwrap_or(NOWHERE),
            due_tick,
        };
        if head != NONE {
            self.nodes[head as usize].previous = at;
        }
        self.heads[place] = at;
        self.occupied[place >> PLACES_SHIFT] |= 1 << (place & (PLACES - 1));
    }

    /// The place for a tick: the lowest level whose span, counted from now, holds it.
    fn place_for(&self, due_tick: u64) -> usize {
        let due = due_tick.max(self.tick + 1);
        for level in 0..LEVELS {
            let shift = PLACES_SHIFT * u32::try_from(level).unwrap_or(0);
            let ahead = (due >> shift) - (self.tick >> shift);
            if ahead < PLACES as u64 && (level == 0 || ahead > 0) {
                return level * PLACES + place_in_level(due >> shift);
            }
        }
        let shift = LAST_SHIFT;
        let last = place_in_level((self.tick >> shift) + PLACES as u64 - 1);
        (LEVELS - 1) * PLACES + last
    }

    fn unlink(&mut self, at: u32) {
        let node = std::mem::replace(&mut self.nodes[at as usize], IDLE);
        if node.place == NOWHERE {
            return;
        }
        let place = usize::from(node.place);
        if node.previous == NONE {
            self.heads[place] = node.next;
        } else {
            self.nodes[node.previous as usize].next = node.next;
        }
        if node.next != NONE {
            self.nodes[node.next as usize].previous = node.previous;
        }
        if self.heads[place] == NONE {
            self.occupied[place >> PLACES_SHIFT] &= !(1 << (place & (PLACES - 1)));
        }
    }

    /// Whether [`Wheel::expired`] has something to do at `now`.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now.as_ns() >> TICK_SHIFT > self.tick && self.occupied.iter().any(|&places| places != 0)
    }

    /// Takes one timer whose time has come by `now` out of the wheel, and gives its index; `None`
    /// when there is no more.
    pub(crate) fn expired(&mut self, now: Time) -> Option<u16> {
        let target = now.as_ns() >> TICK_SHIFT;
        loop {
            let place = place_in_level(self.tick);
            let head = self.heads[place];
            if head != NONE {
                self.unlink(head);
                let number = u16::try_from(head).ok()?;
                return Some(self.first.index(number));
            }
            if self.tick >= target {
                return None;
            }
            self.advance(target);
        }
    }

    /// Goes to the next tick at which something happens, at most to `target`.
    fn advance(&mut self, target: u64) {
        let next = self.next_tick().unwrap_or(u64::MAX).min(target);
        let next = next.max(self.tick + 1);
        let before = self.tick;
        self.tick = next;
        for level in (1..LEVELS).rev() {
            let shift = PLACES_SHIFT * u32::try_from(level).unwrap_or(0);
            if before >> shift != next >> shift {
                self.cascade(level, place_in_level(next >> shift));
            }
        }
    }

    /// Moves the timers of a place that has become the current one of its level down.
    fn cascade(&mut self, level: usize, place: usize) {
        let place = level * PLACES + place;
        while self.heads[place] != NONE {
            let at = self.heads[place];
            let due_tick = self.nodes[at as usize].due_tick;
            self.unlink(at);
            if let Ok(number) = u16::try_from(at) {
                if due_tick <= self.tick {
                    self.insert_now(number, due_tick);
                } else {
                    self.insert(number, due_tick);
                }
            }
        }
    }

    /// Puts a timer into the current place of level 0.
    fn insert_now(&mut self, number: u16, due_tick: u64) {
        let tick = self.tick;
        // `place_for` never gives the current place, so pretend to be one tick earlier.
        self.tick = tick - 1;
        self.insert(number, tick);
        self.tick = tick;
        self.nodes[usize::from(number)].due_tick = due_tick;
    }

    /// When to look again at the latest; `None` when no timer is set.
    pub(crate) fn next_look(&self) -> Option<Time> {
        let tick = self.next_tick()?;
        Some(Time::from_ns(tick << TICK_SHIFT))
    }

    /// The first tick at which a place of level 0 is due or one of a higher level cascades.
    fn next_tick(&self) -> Option<u64> {
        let mut least: Option<u64> = None;
        for (level, &places) in self.occupied.iter().enumerate() {
            if places == 0 {
                continue;
            }
            let shift = PLACES_SHIFT * u32::try_from(level).unwrap_or(0);
            let current = self.tick >> shift;
            let from = place_in_level(current + u64::from(level > 0));
            let ahead =
                u64::from((places >> from | places << ((PLACES - from) & 63)).trailing_zeros());
            let tick = (current + ahead + u64::from(level > 0)) << shift;
            let tick = tick.max(self.tick);
            least = Some(least.map_or(tick, |l| l.min(tick)));
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 1 << TICK_SHIFT;

    fn at(ticks: u64) -> Time {
        Time::from_ns(ticks * TICK_NS)
    }

    fn wheel(now: u64, timers: usize) -> Wheel {
        let mut wheel = Wheel::new(FirstIndex::default(), at(now));
        wheel.reserve(timers);
        wheel
    }

    #[test]
    fn timer_at_every_distance_fires_at_its_tick_and_not_before() {
        for now in [0, 1, 63, 64, 4095, 4096, 262_143, 1_000_003] {
            for distance in [
                1, 2, 62, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262_144, 300_000, 16_000_000,
            ] {
                let mut wheel = wheel(now, 3);
                wheel.set(2, Some(at(now + distance)));
                assert_eq!(
                    wheel.expired(at(now + distance - 1)),
                    None,
                    "{now} {distance}"
                );
                assert_eq!(
                    wheel.expired(at(now + distance)),
                    Some(2),
                    "{now} {distance}"
                );
                assert_eq!(wheel.expired(at(now + distance + 1)), None);
                assert_eq!(wheel.next_look(), None);
            }
        }
    }

    #[test]
    fn timer_stepped_by_next_look_fires_in_order() {
        let mut wheel = wheel(77, 64);
        let mut expected = Vec::new();
        let mut seed = 1u64;
        for index in 0..64u16 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let due = 78 + (seed >> 33) % 500_000;
            wheel.set(index, Some(at(due)));
            expected.push((due, index));
        }
        expected.sort_unstable();
        let mut fired = Vec::new();
        while let Some(look) = wheel.next_look() {
            while let Some(index) = wheel.expired(look) {
                fired.push((look.as_ns() / TICK_NS, index));
            }
        }
        fired.sort_unstable();
        assert_eq!(fired, expected);
    }

    #[test]
    fn timer_moved_earlier_fires_once_and_later_is_ignored() {
        let mut wheel = wheel(10, 1);
        wheel.set(0, Some(at(500)));
        wheel.set(0, Some(at(900)));
        wheel.set(0, Some(at(20)));
        assert_eq!(wheel.expired(at(19)), None);
        assert_eq!(wheel.expired(at(1000)), Some(0));
        assert_eq!(wheel.expired(at(2000)), None);
    }

    #[test]
    fn timer_cancelled_or_in_the_past_behaves() {
        let mut wheel = wheel(100, 2);
        wheel.set(0, Some(at(150)));
        wheel.cancel(0);
        wheel.set(1, Some(at(5)));
        assert_eq!(wheel.expired(at(101)), Some(1));
        assert_eq!(wheel.expired(at(10_000)), None);
    }

    #[test]
    fn timer_beyond_the_last_level_waits_and_is_looked_at_again() {
        let far = 20_000_000;
        let mut wheel = wheel(0, 1);
        wheel.set(0, Some(at(far)));
        let mut looks = 0;
        while let Some(look) = wheel.next_look() {
            looks += 1;
            assert!(looks < 1000);
            if wheel.expired(look).is_some() {
                assert_eq!(look, at(far));
                return;
            }
        }
        panic!("the timer was lost");
    }
}
