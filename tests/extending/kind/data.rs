//! Queue pairs that take packets and drop them, on the path of data.

use proto_trp::conn::{Datagram, Time};
use urdma_types::SlotId;

use super::kind::Kind;
use crate::objects::kinds::handled::Handled;
use crate::objects::kinds::sink::SinkTable;
use crate::paths::origin::Origin;
use crate::paths::packet_body::PacketBody;
use crate::shard::Shard;

impl Kind for SinkTable {
    fn give_turn(_: &mut Shard, _: u16, _: Time) {}

    fn handle(
        shard: &mut Shard,
        index: u16,
        _: Time,
        _: (&Origin, SlotId),
        _: &Datagram<'_, PacketBody<'_>>,
    ) -> Handled {
        if let Some(taken) = shard.qps.kinds.sinks.taken.get_mut(index) {
            *taken += 1;
        }
        Handled::Done
    }
}
