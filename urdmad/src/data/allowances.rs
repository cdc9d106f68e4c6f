//! How many of slot 0's frames each slot may have, and how long one that is behind is waited for.

use urdma_arena::{Arena, SlotId, MAX_SLOTS, SMALL_CAPACITY};

use super::doorbells::Doorbells;

/// Frames that a slot is to have room for, two bursts, or a quarter of its share if that is less.
const ROOM_WANTED: u32 = 64;
/// How long a slot that is behind is waited for: its process may wait for a processor, or have stopped.
const PATIENCE_NS: u64 = 10_000_000;

/// How many frames each slot may be given in this burst, looked up once a burst: a process that has stopped must not get all frames of slot 0
/// into its ring, or nobody else would receive anything. One that is only behind is waited for, since what is dropped here is sent again for a
/// round trip or more; what comes meanwhile stays with the port.
#[derive(Debug, Default)]
pub(crate) struct Allowances {
    known: Doorbells,
    shares: Vec<Share>,
    waited_for: Option<Wait>,
}

/// What a slot may have.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    room: Room,
    /// It was waited for in vain, and what it has no room for is dropped until half of its share is free.
    is_given_up: bool,
}

/// Frames of each class.
#[derive(Debug, Default, Clone, Copy)]
struct Room {
    small: u32,
    large: u32,
}

/// A slot that has little room for frames for datagrams of `octets`.
#[derive(Debug)]
struct Wait {
    slot: SlotId,
    octets: usize,
    since_ns: Option<u64>,
}

impl Allowances {
    /// A new burst.
    pub(crate) fn forget(&mut self) {
        self.known = Doorbells::default();
    }

    /// Whether `slot` may get one more frame for a datagram of `octets`.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arena, slot: SlotId, octets: usize) -> bool {
        if self.shares.is_empty() {
            self.shares = vec![Share::default(); usize::from(MAX_SLOTS)];
        }
        let Some(share) = self.shares.get_mut(usize::from(slot.index())) else {
            return false;
        };
        let whole = Room::of_all(arena).of(octets);
        if self.known.note(slot) {
            share.room = Room::left(arena, slot);
            share.is_given_up &= share.room.of(octets) < whole / 2;
        }
        let left = share.room.of_mut(octets);
        let may = *left > 0;
        *left = left.saturating_sub(1);
        if *left < wanted(whole) && !share.is_given_up && self.waited_for.is_none() {
            self.waited_for = Some(Wait {
                slot,
                octets,
                since_ns: None,
            });
        }
        may
    }

    /// Whether a slot is behind and waited for, so that nobody is to be given anything for the moment.
    #[inline]
    pub(crate) fn waits(&mut self, arena: &Arena, now_ns: u64) -> bool {
        let Some(wait) = &mut self.waited_for else {
            return false;
        };
        let is_dead = !arena.is_alive(wait.slot);
        let room = Room::left(arena, wait.slot).of(wait.octets);
        if is_dead || room >= wanted(Room::of_all(arena).of(wait.octets)) {
            self.waited_for = None;
            return false;
        }
        let since_ns = *wait.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < PATIENCE_NS {
            return true;
        }
        if let Some(share) = self.shares.get_mut(usize::from(wait.slot.index())) {
            share.is_given_up = true;
        }
        self.waited_for = None;
        false
    }

    /// Whether it was so at the last look.
    pub(crate) fn was_waiting(&self) -> bool {
        self.waited_for.is_some()
    }
}

/// Room that a slot whose share is `whole` is to have.
fn wanted(whole: u32) -> u32 {
    ROOM_WANTED.min(whole / 4)
}

impl Room {
    /// Three quarters of slot 0's frames: what a slot may have.
    fn of_all(arena: &Arena) -> Self {
        let config = arena.layout().config();
        let share = |frames: u32| frames - frames / 4;
        Self {
            small: share(config.small_frames),
            large: share(config.large_frames),
        }
    }

    /// The same less what the slot has not taken yet.
    fn left(arena: &Arena, slot: SlotId) -> Self {
        let backlog = arena.status(slot).map_or(0, |status| status.backlog);
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        let whole = Self::of_all(arena);
        Self {
            small: whole.small.saturating_sub(backlog),
            large: whole.large.saturating_sub(backlog),
        }
    }

    /// Frames for datagrams of `octets`.
    fn of(mut self, octets: usize) -> u32 {
        *self.of_mut(octets)
    }

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
        /// Takes nothing by itself.
        process: Endpoint,
        allowances: Allowances,
    }

    impl Rig {
        fn new() -> Self {
            let arena = Arena::create(&ArenaConfig {
                slots: 4,
                small_frames: 64,
                large_frames: 16,
                ..ArenaConfig::default()
            })
            .unwrap();
            Self {
                daemon: Endpoint::attach(&arena, SlotId::DAEMON).unwrap(),
                process: Endpoint::attach(&arena, SlotId::new(1).unwrap()).unwrap(),
                allowances: Allowances::default(),
                arena,
            }
        }

        /// Offers the process so many datagrams in one burst; how many it was given.
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

        /// The process takes so many datagrams.
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

    // What it had no room for at this moment was lost.
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
}
