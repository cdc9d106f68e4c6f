//! Waiting for a process that is behind: its process may be waiting for a CPU, or be stopped.
//!
//! A packet dropped here costs a retransmission of a round trip or more. So while a slot lacks room
//! for some bursts, nothing is taken from the port, whose rings hold what arrives; but not for
//! longer than [`PATIENCE_NS`], after which the packets that the slot has no room for are dropped
//! until its process has taken half of what it has.

use urdma_types::SlotId;

use super::channels::Channels;
use crate::groups::SlotSet;

/// Packets for which a slot should have room: two bursts, or a quarter of its channel if that is
/// less.
const ROOM_WANTED: u64 = 64;
/// How long a slot that is behind is waited for.
const PATIENCE_NS: u64 = 10_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    waited_for: Option<Wait>,
    /// Slots that were waited for in vain.
    given_up: SlotSet,
    /// The slot that was given the last packets, and the octets of the longest of them.
    given: Option<(SlotId, usize)>,
}

/// A slot with little room for packets of `octets`.
#[derive(Debug)]
struct Wait {
    slot: SlotId,
    octets: usize,
    since_ns: Option<u64>,
}

fn is_short((left, limit): (u64, u64)) -> bool {
    left < ROOM_WANTED.min(limit / 4)
}

impl Patience {
    /// Notes that a slot was given a packet of `octets`. Its room is judged with the next packet
    /// for another slot, or before the next burst: it has room for two.
    #[inline]
    pub(crate) fn note(&mut self, channels: &mut Channels, slot: SlotId, octets: usize) {
        match &mut self.given {
            Some((last, longest)) if *last == slot => *longest = octets.max(*longest),
            given => {
                if let Some((last, longest)) = given.replace((slot, octets)) {
                    self.judge(channels, last, longest);
                }
            }
        }
    }

    /// Judges the room of a slot that was given packets of up to `octets`.
    fn judge(&mut self, channels: &mut Channels, slot: SlotId, octets: usize) {
        if self.waited_for.is_some() {
            return;
        }
        let Some(room) = channels.room(slot, octets) else {
            return;
        };
        if self.given_up.contains(slot) {
            let (left, limit) = room;
            if left >= limit / 2 {
                self.given_up.remove(slot.number());
            }
        } else if is_short(room) {
            self.waited_for = Some(Wait {
                slot,
                octets,
                since_ns: None,
            });
        }
    }

    /// Whether a slot is behind and waited for, so that no packet is to be delivered for the
    /// moment.
    #[inline]
    pub(crate) fn waits(&mut self, channels: &mut Channels, now_ns: u64) -> bool {
        if let Some((slot, octets)) = self.given.take() {
            self.judge(channels, slot, octets);
        }
        let Some(wait) = &mut self.waited_for else {
            return false;
        };
        let room = channels.room(wait.slot, wait.octets);
        if room.is_none_or(|room| !is_short(room)) {
            self.waited_for = None;
            return false;
        }
        let since_ns = *wait.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < PATIENCE_NS {
            return true;
        }
        self.given_up.insert(wait.slot.number());
        self.waited_for = None;
        false
    }

    /// The slot that is waited for.
    pub(crate) fn waited_for(&self) -> Option<SlotId> {
        self.waited_for.as_ref().map(|wait| wait.slot)
    }

    /// The process of a slot has ended.
    pub(crate) fn forget(&mut self, slot: SlotId) {
        self.given_up.remove(slot.number());
        self.waited_for.take_if(|wait| wait.slot == slot);
        self.given.take_if(|(given, _)| *given == slot);
    }
}
