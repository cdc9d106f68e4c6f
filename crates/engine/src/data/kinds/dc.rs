//! Initiators and targets on the path of data.

use proto_trp::conn::{Datagram, Time};
use proto_trp::dc::{DcArrival, DcPlan};
use proto_trp::wire::{Meta, PacketHead};
use urdma_types::SlotId;

use super::kind::Kind;
use crate::data::packet_room::{self, NoRoom};
use crate::objects::kinds::dc::{DcTable, THIS_HOST};
use crate::objects::kinds::handled::Handled;
use crate::paths::origin::Origin;
use crate::paths::packet_body::PacketBody;
use crate::paths::packet_path::{Turn, Written, TURN};
use crate::paths::path::metadata;
use crate::shard::queue_pairs::QueuePairs;
use crate::shard::Shard;

impl Kind for DcTable {
    fn give_turn(shard: &mut Shard, index: u16, now: Time) {
        shard.qps.kinds.dc.unqueue(index);
        shard.give_dc_turn(index, now);
    }

    fn handle_timeout(shard: &mut Shard, index: u16, now: Time) {
        let process = &mut shard.process;
        shard.qps.kinds.dc.handle_timeout(index, now, process);
        settle(&mut shard.qps, index);
    }

    fn slot_gone(shard: &mut Shard, now: Time, slot: SlotId) {
        for index in shard.qps.kinds.dc.indices() {
            let process = &mut shard.process;
            shard.qps.kinds.dc.slot_gone(index, now, slot, process);
            settle(&mut shard.qps, index);
        }
    }

    fn handle(
        shard: &mut Shard,
        index: u16,
        now: Time,
        from: (&Origin, SlotId),
        datagram: &Datagram<'_, PacketBody<'_>>,
    ) -> Handled {
        let arrival = arrival(from);
        let (qps, process) = (&mut shard.qps, &mut shard.process);
        let handled = qps.kinds.dc.handle(index, now, &arrival, datagram, process);
        if !matches!(handled, Handled::NoQueuePair) {
            settle(qps, index);
        }
        handled
    }

    fn handle_reset(
        shard: &mut Shard,
        now: Time,
        from: (&Origin, SlotId),
        datagram: &Datagram<'_, PacketBody<'_>>,
    ) -> Handled {
        let arrival = arrival(from);
        let (qps, process) = (&mut shard.qps, &mut shard.process);
        match qps.kinds.dc.handle_reset(now, &arrival, datagram, process) {
            Some(index) => {
                settle(qps, index);
                Handled::Done
            }
            None => Handled::NoQueuePair,
        }
    }
}

/// Where a packet came from.
fn arrival((origin, sender): (&Origin, SlotId)) -> DcArrival {
    let meta = origin.meta();
    DcArrival {
        address: meta.map_or(THIS_HOST, |meta| meta.remote_ip.to_ip()),
        sender,
        local: meta.map_or(0, |meta| meta.gid_index),
    }
}

/// Sets the timer of a queue pair that has processed something, and puts it into the ready list.
fn settle(qps: &mut QueuePairs, index: u16) {
    qps.wheel.set(index, qps.kinds.dc.next_deadline(index));
    if qps.kinds.dc.queue(index) {
        qps.ready.push_back(index);
    }
}

impl Shard {
    /// Gives an initiator or a target one turn and publishes what it sent.
    pub(crate) fn transmit_dc(&mut self, index: u16, now: Time) {
        self.give_dc_turn(index, now);
        self.publish();
    }

    /// Gives an initiator or a target one turn.
    fn give_dc_turn(&mut self, index: u16, now: Time) {
        if self.is_dead {
            return;
        }
        let turn = self.take_dc_turn(index, now);
        if turn == Turn::Done {
            let deadline = self.qps.kinds.dc.next_deadline(index);
            self.qps.wheel.set(index, deadline);
        } else {
            self.is_blocked |= turn != Turn::More;
            settle(&mut self.qps, index);
        }
    }

    fn take_dc_turn(&mut self, index: u16, now: Time) -> Turn {
        for _ in 0..TURN {
            let process = &mut self.process;
            let Some(plan) = self.qps.kinds.dc.plan(index, now, process) else {
                return Turn::Done;
            };
            let to = if plan.address == THIS_HOST {
                plan.peer.slot()
            } else {
                SlotId::DAEMON
            };
            match self.make_room(to, plan.room) {
                Ok(()) => self.send_dc(index, now, to, &plan),
                Err(NoRoom::Full) => {
                    self.counters.channel_full += 1;
                    return Turn::Blocked;
                }
                Err(NoRoom::Dead) if plan.address == THIS_HOST => {
                    let process = &mut self.process;
                    self.qps.kinds.dc.slot_gone(index, now, to, process);
                }
                Err(NoRoom::Dead | NoRoom::NoChannel) => {
                    // Lost, as in any network.
                    let mut lost = vec![0; plan.room];
                    let process = &mut self.process;
                    let _ = self
                        .qps
                        .kinds
                        .dc
                        .write(index, now, &plan, &mut lost, process);
                }
            }
        }
        Turn::More
    }

    /// Sends the packet of a plan, for which there is room.
    fn send_dc(&mut self, index: u16, now: Time, to: SlotId, plan: &DcPlan) {
        let (Some(channel), Some(number)) =
            (self.channels.get_mut(to), self.qps.kinds.dc.number(index))
        else {
            return;
        };
        let Some(room) = packet_room::room(channel, plan.room) else {
            return;
        };
        let process = &mut self.process;
        let Some(transmit) = self.qps.kinds.dc.write(index, now, plan, room, process) else {
            return;
        };
        if let Some(capture) = &mut self.capture {
            capture.add(self.slot, to, &[&room[..transmit.len]]);
        }
        let written = Written {
            len: transmit.len,
            is_ecn_capable: transmit.ecn_capable,
        };
        let head = PacketHead::of(Meta {
            ecn: written.ecn(),
            ..metadata(plan.address, (number, plan.local), plan.peer.slot())
        });
        packet_room::publish(channel, plan.room, &head, written.len);
        self.channels.note_doorbell(to);
        self.counters.sent += 1;
    }
}
