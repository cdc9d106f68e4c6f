//! Whose packets are sent next: deficit round robin over the slots, in octets.
//!
//! A slot sends in a turn until its allowance is used up. Its last message may be longer than what
//! is left of it; the slot then owes the rest, by which its next turn is shorter. So no message has
//! to be looked at before it is taken. A round that the port interrupts, since it is full, goes on
//! with the slot that is next.

use proto_trp::wire::packet_head::PACKET_OCTETS_MIN;
use urdma_channel::{Rota, LARGE_FRAME, SLOTS};
use urdma_types::SlotId;

use super::wire::BURST;

/// What each packet counts beside its octets, for the work that it takes.
const PACKET_COST: usize = 256;
/// The allowance of a turn: the cost of the most costly message, so that debts are shorter.
const ALLOWANCE: usize =
    LARGE_FRAME + LARGE_FRAME.div_ceil(PACKET_OCTETS_MIN as usize) * PACKET_COST;
/// Packets after which a turn ends, though some of the allowance is left.
const PACKETS_MAX: usize = 2 * BURST;

/// What is left of a slot's turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// Of the allowance; below zero, what the slot owes.
    left: i64,
    packets: usize,
    packets_max: usize,
}

impl Turn {
    /// A turn of a slot beside which no other one sends.
    #[inline]
    pub(super) const fn alone() -> Self {
        Self {
            left: i64::MAX,
            packets: 0,
            packets_max: BURST,
        }
    }

    /// Whether the slot may send another message.
    #[inline]
    pub(super) const fn goes_on(&self) -> bool {
        self.left > 0 && self.packets < self.packets_max
    }

    /// Notes that the slot has sent a message of `packets` packets and octets.
    #[inline]
    pub(super) const fn charge(&mut self, packets: usize, octets: usize) {
        self.packets += packets;
        self.left -= (octets + packets * PACKET_COST) as i64;
    }

    /// The packets that the slot has sent in this turn.
    #[inline]
    pub(super) const fn packets(&self) -> usize {
        self.packets
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Turns {
    /// Slots that have had their turn in this round.
    served: usize,
    /// What each slot owes.
    debts: Box<[i64]>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            served: 0,
            debts: vec![0; SLOTS].into(),
        }
    }
}

impl Turns {
    /// Begins a round, or goes on with one that a full port has interrupted unless it was at its
    /// end.
    #[inline]
    pub(super) fn resume(&mut self, slots: &mut Rota<SlotId>) {
        if self.served > 0 && slots.polled(self.served).is_none() {
            self.served = 0;
        }
    }

    /// The slot whose turn it is; `None` at the end of a round.
    #[inline]
    pub(super) fn next(&mut self, slots: &mut Rota<SlotId>) -> Option<SlotId> {
        let slot = slots.polled(self.served);
        self.served = if slot.is_some() { self.served + 1 } else { 0 };
        slot
    }

    /// Begins a slot's turn.
    #[inline]
    pub(super) fn begin(&self, slots: &Rota<SlotId>, slot: SlotId) -> Turn {
        if slots.busy() <= 1 {
            return Turn::alone();
        }
        Turn {
            left: ALLOWANCE as i64 - self.debts[slot.as_usize()],
            packets: 0,
            packets_max: PACKETS_MAX,
        }
    }

    /// Ends a slot's turn. What is left of the allowance lapses.
    #[inline]
    pub(super) fn end(&mut self, slot: SlotId, turn: &Turn) {
        self.debts[slot.as_usize()] = (-turn.left).max(0);
    }

    /// Forgets what a slot owes whose process has ended.
    pub(super) fn forget(&mut self, slot: SlotId) {
        self.debts[slot.as_usize()] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> Vec<SlotId> {
        SlotId::all().skip(1).take(count).collect()
    }

    /// Slots that have all sent a moment ago.
    fn busy(ids: &[SlotId]) -> (Turns, Rota<SlotId>) {
        let (mut turns, mut rota) = (Turns::default(), Rota::default());
        ids.iter().for_each(|id| rota.insert(*id));
        while rota.busy() < ids.len() {
            while let Some(slot) = turns.next(&mut rota) {
                rota.note(slot, true);
            }
        }
        (turns, rota)
    }

    /// The octets that each of several senders sends in some rounds. `messages` has, for each, the
    /// packets of a message and the octets of a packet.
    fn octets_sent(messages: &[(usize, usize)], rounds: usize) -> Vec<usize> {
        let ids = slots(messages.len());
        let (mut turns, mut rota) = busy(&ids);
        let mut sent = vec![0; ids.len()];
        for _ in 0..rounds {
            while let Some(slot) = turns.next(&mut rota) {
                let which = ids.iter().position(|id| *id == slot).unwrap();
                let (packets, each) = messages[which];
                let mut turn = turns.begin(&rota, slot);
                assert!(turn.goes_on(), "a turn without a message");
                while turn.goes_on() {
                    turn.charge(packets, packets * each);
                    sent[which] += packets * each;
                }
                turns.end(slot, &turn);
                rota.note(slot, true);
            }
        }
        sent
    }

    #[test]
    fn slots_share_the_port_by_octets() {
        // Datagrams of 8192 octets, beside messages of 43 packets, and of single ones.
        let sent = octets_sent(&[(1, 8_192), (43, 1_500), (7, 9_000), (1, 4_096)], 1_000);
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most * 4 <= least * 5, "{sent:?}");
        // With packets of one length the shares are equal, whatever the messages.
        let sent = octets_sent(&[(1, 9_000), (7, 9_000)], 1_000);
        assert!(sent[0].abs_diff(sent[1]) * 100 <= sent[0], "{sent:?}");
    }

    #[test]
    fn no_message_takes_more_than_a_turn_and_short_packets_are_bounded() {
        let most = LARGE_FRAME / usize::from(PACKET_OCTETS_MIN);
        let ids = slots(2);
        let (turns, rota) = busy(&ids);
        let mut turn = turns.begin(&rota, ids[0]);
        turn.charge(most, LARGE_FRAME);
        assert!(turn.left >= 0);
        let mut turn = turns.begin(&rota, ids[0]);
        while turn.goes_on() {
            turn.charge(1, 40);
        }
        assert_eq!(turn.packets(), PACKETS_MAX);
    }

    #[test]
    fn round_goes_on_where_the_port_was_full() {
        let ids = slots(3);
        let (mut turns, mut rota) = busy(&ids);
        // The port is full after each turn: the loop of a round ends, and begins again.
        let mut order = Vec::new();
        while order.len() < 6 {
            turns.resume(&mut rota);
            let slot = turns.next(&mut rota).unwrap();
            rota.note(slot, true);
            order.push(slot);
        }
        assert_eq!(order[..3], order[3..]);
        let mut first = order[..3].to_vec();
        first.sort_unstable_by_key(|slot| slot.number());
        assert_eq!(first, ids);
    }

    #[test]
    fn slot_alone_owes_nothing_and_a_new_process_inherits_no_debt() {
        let ids = slots(2);
        let (mut turns, rota) = busy(&ids[..1]);
        let mut turn = turns.begin(&rota, ids[0]);
        while turn.goes_on() {
            turn.charge(43, LARGE_FRAME);
        }
        turns.end(ids[0], &turn);
        assert_eq!((turn.packets(), turns.debts[ids[0].as_usize()]), (43, 0));
        let (mut turns, rota) = busy(&ids);
        let mut turn = turns.begin(&rota, ids[0]);
        while turn.goes_on() {
            turn.charge(43, LARGE_FRAME);
        }
        turns.end(ids[0], &turn);
        assert!(turns.debts[ids[0].as_usize()] > 0);
        turns.forget(ids[0]);
        assert_eq!(turns.begin(&rota, ids[0]).left, ALLOWANCE as i64);
    }
}
