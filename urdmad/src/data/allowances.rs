//! Limits on slot 0's frames in each slot's ring, and on the time that slot 0 waits for a slow
//! slot.

use urdma_arena::{Arena, MAX_SLOTS, SMALL_CAPACITY};
use urdma_types::SlotId;

use super::doorbells::Doorbells;

/// Frames for which a slot should have room: two bursts, or a quarter of its share if that is less.
const ROOM_WANTED: u32 = 64;
/// How long slot 0 waits for a slot that is behind: its process may be waiting for a CPU, or be
/// stopped.
const PATIENCE_NS: u64 = 10_000_000;

/// In the reserve, a slot may hold one frame for each this many free frames.
const FREE_PER_FRAME: u32 = 8;

/// The number of frames that each slot may be given in this burst, looked up once per burst.
/// Stopped processes must not collect all frames of slot 0 in their rings, or no other process
/// could receive.
///
/// All slots together share three quarters of the frames. The rest is a reserve: while three
/// quarters are held, a slot may hold a fraction of the frames that are still free, so that slots
/// that hold many get none and a slot that consumes its frames goes on receiving.
///
/// Slot 0 waits for a slot that is only behind, since a packet dropped here costs a retransmission
/// of a round trip or more; meanwhile packets stay with the port.
#[derive(Debug, Default)]
pub(crate) struct Allowances {
    known: Doorbells,
    shares: Vec<Share>,
    /// Frames that all slots hold.
    held: Room,
    /// The slots whose holdings were looked up in this burst.
    is_held_known: bool,
    waited_for: Option<Wait>,
}

/// The holdings of a slot.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    /// Entries in its ring, of slot 0 and of others.
    backlog: u32,
    /// Frames of slot 0 that the slot was given and has not consumed; an upper bound.
    held: Room,
    /// Those of them that were given since the end of its ring was at `mark`.
    held_since: Room,
    mark: u64,
    /// The ring's length when the wait for the slot timed out: datagrams without room are dropped
    /// until the slot has consumed half of that.
    given_up_at: Option<u32>,
}

/// Frames of each class.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Room {
    small: u32,
    large: u32,
}

/// A slot with little room for frames for datagrams of `octets`.
#[derive(Debug)]
struct Wait {
    slot: SlotId,
    octets: usize,
    since_ns: Option<u64>,
}

impl Allowances {
    /// Begins a burst.
    pub(crate) fn forget(&mut self) {
        self.known = Doorbells::default();
        self.is_held_known = false;
    }

    /// Whether `slot` may get one more frame for a datagram of `octets`.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arena, slot: SlotId, octets: usize) -> bool {
        if self.known.note(slot) {
            self.look(arena, slot);
        }
        let shared = shared(Room::of_all(arena).of(octets));
        if self.held.of(octets) >= shared && !self.is_held_known {
            self.look_at_all(arena);
        }
        let (limit, left) = self.left(arena, slot, octets);
        let Some(share) = self.shares.get_mut(usize::from(slot.number())) else {
            return false;
        };
        if left > 0 {
            share.backlog += 1;
            *share.held.of_mut(octets) += 1;
            *share.held_since.of_mut(octets) += 1;
            *self.held.of_mut(octets) += 1;
        }
        let is_short_of_room = is_short(limit, left.saturating_sub(1));
        if is_short_of_room && share.given_up_at.is_none() && self.waited_for.is_none() {
            self.waited_for = Some(Wait {
                slot,
                octets,
                since_ns: None,
            });
        }
        left > 0
    }

    /// Whether a slot is behind and waited for, so that no datagram is to be delivered for the
    /// moment.
    #[inline]
    pub(crate) fn waits(&mut self, arena: &Arena, now_ns: u64) -> bool {
        let Some(Wait { slot, octets, .. }) = self.waited_for else {
            return false;
        };
        self.look(arena, slot);
        let (limit, left) = self.left(arena, slot, octets);
        if !arena.is_alive(slot) || !is_short(limit, left) {
            self.waited_for = None;
            return false;
        }
        if let Some(wait) = &mut self.waited_for {
            let since_ns = *wait.since_ns.get_or_insert(now_ns);
            if now_ns.saturating_sub(since_ns) < PATIENCE_NS {
                return true;
            }
        }
        if let Some(share) = self.shares.get_mut(usize::from(slot.number())) {
            share.given_up_at = Some(share.backlog);
        }
        self.waited_for = None;
        false
    }

    /// The result of the last [`Self::waits`].
    pub(crate) fn was_waiting(&self) -> bool {
        self.waited_for.is_some()
    }

    /// The frames for datagrams of `octets` that a slot may hold now, and how many more that is
    /// than it holds.
    #[inline]
    fn left(&self, arena: &Arena, slot: SlotId, octets: usize) -> (u32, u32) {
        let Some(share) = self.shares.get(usize::from(slot.number())) else {
            return (0, 0);
        };
        let all = Room::of_all(arena).of(octets);
        let held = self.held.of(octets);
        if held < shared(all) {
            let limit = shared(all);
            return (limit, limit.saturating_sub(share.backlog));
        }
        let limit = all.saturating_sub(held).div_ceil(FREE_PER_FRAME);
        (limit, limit.saturating_sub(share.held.of(octets)))
    }

    /// Looks up the frames that a slot has not consumed.
    fn look(&mut self, arena: &Arena, slot: SlotId) {
        if self.shares.is_empty() {
            self.shares = vec![Share::default(); usize::from(MAX_SLOTS)];
        }
        let Some(share) = self.shares.get_mut(usize::from(slot.number())) else {
            return;
        };
        let before = share.held;
        share.look(arena, slot);
        self.held.replace(before, share.held);
    }

    #[cold]
    fn look_at_all(&mut self, arena: &Arena) {
        for slot in (0..u8::MAX).filter_map(SlotId::new) {
            let share = self.shares.get(usize::from(slot.number()));
            if share.is_some_and(|share| share.held != Room::default()) {
                self.look(arena, slot);
            }
        }
        self.is_held_known = true;
    }
}

impl Share {
    fn look(&mut self, arena: &Arena, slot: SlotId) {
        let status = arena.status(slot).filter(|status| status.alive);
        let (head, backlog) = status.map_or((0, 0), |status| (status.head, status.backlog));
        self.backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        let has_passed_mark = head.wrapping_sub(self.mark).cast_signed() >= 0;
        if has_passed_mark || self.backlog == 0 {
            self.held = std::mem::take(&mut self.held_since);
            self.mark = head.wrapping_add(backlog);
        }
        self.held.small = self.held.small.min(self.backlog);
        self.held.large = self.held.large.min(self.backlog);
        if self
            .given_up_at
            .is_some_and(|before| self.backlog <= before / 2)
        {
            self.given_up_at = None;
        }
    }
}

/// Whether `left` is less than the room that a slot with this `limit` should have.
fn is_short(limit: u32, left: u32) -> bool {
    limit > 0 && left < ROOM_WANTED.min(limit / 4).max(1)
}

/// The shared part of slot 0's `all` frames, without the reserve.
fn shared(all: u32) -> u32 {
    all - all / 4
}

impl Room {
    /// Slot 0's frames.
    #[inline]
    fn of_all(arena: &Arena) -> Self {
        let config = arena.layout().config();
        Self {
            small: config.small_frames,
            large: config.large_frames,
        }
    }

    /// Updates a sum of which one part changes from `before` to `after`.
    fn replace(&mut self, before: Self, after: Self) {
        self.small = self.small + after.small - before.small;
        self.large = self.large + after.large - before.large;
    }

    /// Frames for datagrams of `octets`.
    #[inline]
    fn of(mut self, octets: usize) -> u32 {
        *self.of_mut(octets)
    }

    #[inline]
    fn of_mut(&mut self, octets: usize) -> &mut u32 {
        if octets <= SMALL_CAPACITY {
            &mut self.small
        } else {
            &mut self.large
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urdma_arena::{ArenaConfig, Endpoint};

    const OCTETS: usize = 5000;

    struct Rig {
        arena: Arena,
        daemon: Endpoint,
        /// Consumes nothing unless told to.
        process: Endpoint,
        allowances: Allowances,
        others: Vec<Endpoint>,
    }

    impl Rig {
        fn new() -> Self {
            Self::with_large_frames(16)
        }

        fn with_large_frames(large_frames: u32) -> Self {
            let arena = Arena::create(&ArenaConfig {
                slots: 12,
                small_frames: 128,
                large_frames,
                ..ArenaConfig::default()
            })
            .unwrap();
            Self {
                daemon: Endpoint::attach(&arena, SlotId::DAEMON).unwrap(),
                process: Endpoint::attach(&arena, SlotId::new(1).unwrap()).unwrap(),
                allowances: Allowances::default(),
                others: (2..12)
                    .map(|slot| Endpoint::attach(&arena, SlotId::new(slot).unwrap()).unwrap())
                    .collect(),
                arena,
            }
        }

        /// Offers a slot datagrams of `octets` in bursts; returns how many it was given.
        fn flood(&mut self, slot: SlotId, datagrams: usize, octets: usize) -> usize {
            let mut given = 0;
            for _ in 0..datagrams {
                self.allowances.forget();
                if self.allowances.take(&self.arena, slot, octets) {
                    let Some(frame) = self.daemon.alloc(octets) else {
                        continue;
                    };
                    self.daemon.send_quiet(slot, frame, octets).unwrap();
                    given += 1;
                }
            }
            given
        }

        /// Offers the process datagrams in one burst; returns how many it was given.
        fn offer(&mut self, datagrams: usize) -> usize {
            self.allowances.forget();
            let slot = self.process.slot();
            let mut given = 0;
            for _ in 0..datagrams {
                if self.allowances.take(&self.arena, slot, OCTETS) {
                    let frame = self.daemon.alloc(OCTETS).unwrap();
                    self.daemon.send_quiet(slot, frame, OCTETS).unwrap();
                    given += 1;
                }
            }
            given
        }

        fn waits(&mut self, now_ns: u64) -> bool {
            self.allowances.waits(&self.arena, now_ns)
        }

        /// The process consumes this many datagrams.
        fn take(&mut self, datagrams: usize) {
            for _ in 0..datagrams {
                let frame = self.process.recv().unwrap();
                self.process.release(frame);
            }
        }
    }

    #[test]
    fn slot_that_takes_nothing_gets_three_quarters_of_the_frames_at_most() {
        let mut rig = Rig::new();
        let given: usize = (0..10).map(|_| rig.offer(7)).sum();
        assert_eq!(given, 12);
        let other = SlotId::new(2).unwrap();
        assert!(rig.allowances.take(&rig.arena, other, OCTETS));
        assert!(rig.daemon.alloc(OCTETS).is_some());
    }

    // The datagrams that had no room at this moment were lost.
    #[test]
    fn slot_that_is_behind_is_waited_for_until_it_has_room() {
        let mut rig = Rig::new();
        assert_eq!(rig.offer(9), 9);
        assert!(!rig.waits(0));
        assert_eq!(rig.offer(1), 1);
        assert!(rig.waits(0) && rig.waits(PATIENCE_NS - 1));
        rig.take(1);
        assert!(!rig.waits(PATIENCE_NS - 1));
        assert_eq!(rig.offer(1), 1);
        assert!(rig.waits(PATIENCE_NS) && rig.waits(2 * PATIENCE_NS - 1));
    }

    #[test]
    fn slot_that_has_stopped_is_waited_for_once_and_again_when_half_of_its_share_is_free() {
        let mut rig = Rig::new();
        rig.offer(12);
        assert!(rig.waits(0));
        assert!(!rig.waits(PATIENCE_NS));
        assert_eq!(rig.offer(1), 0);
        assert!(!rig.waits(PATIENCE_NS));
        rig.take(3);
        assert_eq!(rig.offer(2), 2);
        assert!(!rig.waits(PATIENCE_NS));
        rig.take(5);
        assert_eq!(rig.offer(5), 5);
        assert!(rig.waits(2 * PATIENCE_NS));
    }

    #[test]
    fn slots_that_take_nothing_leave_frames_for_one_that_does() {
        for octets in [100, OCTETS] {
            let mut rig = Rig::with_large_frames(128);
            let stopped: Vec<SlotId> = rig.others[..9].iter().map(Endpoint::slot).collect();
            for slot in &stopped {
                rig.flood(*slot, 1000, octets);
            }
            let mut living = rig.others.pop().unwrap();
            // The first allocations find out which frames are held.
            for _ in 0..20 {
                rig.flood(living.slot(), 1, octets);
                if let Some(frame) = living.recv() {
                    living.release(frame);
                }
            }
            for _ in 0..100 {
                assert_eq!(rig.flood(living.slot(), 1, octets), 1, "{octets}");
                let frame = living.recv().unwrap();
                living.release(frame);
                for slot in &stopped {
                    rig.flood(*slot, 10, octets);
                }
            }
        }
    }
}
