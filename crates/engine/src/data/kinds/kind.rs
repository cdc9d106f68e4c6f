//! What the path of data asks of a kind of queue pair.

use proto_trp::conn::{Datagram, Time};
use urdma_types::SlotId;

use crate::objects::kinds::handled::Handled;
use crate::paths::origin::Origin;
use crate::paths::packet_body::PacketBody;
use crate::shard::Shard;

/// The table of a kind. Each call is about a queue pair that it has, or about all of them.
pub(super) trait Kind {
    /// Gives a queue pair that was in the ready list one turn.
    fn give_turn(shard: &mut Shard, index: u16, now: Time);

    /// Handles the timers of a queue pair that have expired.
    fn handle_timeout(_: &mut Shard, _index: u16, _: Time) {}

    /// Tells the queue pairs that the process that had a slot of this host has ended.
    fn slot_gone(_: &mut Shard, _: Time, _: SlotId) {}

    /// Processes a packet for a queue pair, from this place and slot.
    fn handle(
        _: &mut Shard,
        _index: u16,
        _: Time,
        _: (&Origin, SlotId),
        _: &Datagram<'_, PacketBody<'_>>,
    ) -> Handled {
        Handled::NoQueuePair
    }

    /// Processes a RESET, which names a stream.
    fn handle_reset(
        _: &mut Shard,
        _: Time,
        _: (&Origin, SlotId),
        _: &Datagram<'_, PacketBody<'_>>,
    ) -> Handled {
        Handled::NoQueuePair
    }
}
