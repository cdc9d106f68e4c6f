//! Asks the kind that has a queue pair which is not a connection.

use proto_trp::conn::{Datagram, Time};
use urdma_types::SlotId;

use super::kind::Kind;
use crate::objects::kinds::handled::Handled;
use crate::objects::kinds::with_kinds;
use crate::paths::origin::Origin;
use crate::paths::packet_body::PacketBody;
use crate::shard::Shard;

macro_rules! dispatch {
    ($($name:ident: $table:path,)+) => {
        impl Shard {
            /// Gives a queue pair that was in the ready list one turn.
            pub(crate) fn give_turn_of_kind(&mut self, index: u16, now: Time) {
                $(if self.qps.kinds.$name.has(index) {
                    return <$table as Kind>::give_turn(self, index, now);
                })+
            }

            /// Handles the timers of a queue pair that have expired.
            pub(crate) fn handle_timeout_of_kind(&mut self, index: u16, now: Time) {
                $(if self.qps.kinds.$name.has(index) {
                    return <$table as Kind>::handle_timeout(self, index, now);
                })+
            }

            /// Tells all of them that the process that had a slot of this host has ended.
            pub(crate) fn slot_gone_of_kinds(&mut self, now: Time, slot: SlotId) {
                $(<$table as Kind>::slot_gone(self, now, slot);)+
            }

            /// Processes a packet for the queue pair with an index.
            pub(crate) fn handle_of_kind(
                &mut self,
                index: u16,
                now: Time,
                from: (&Origin, SlotId),
                datagram: &Datagram<'_, PacketBody<'_>>,
            ) -> Handled {
                $(if self.qps.kinds.$name.has(index) {
                    return <$table as Kind>::handle(self, index, now, from, datagram);
                })+
                Handled::NoQueuePair
            }

            /// Processes a RESET, which names a stream.
            pub(crate) fn handle_reset_of_kind(
                &mut self,
                now: Time,
                from: (&Origin, SlotId),
                datagram: &Datagram<'_, PacketBody<'_>>,
            ) -> Handled {
                $(match <$table as Kind>::handle_reset(self, now, from, datagram) {
                    Handled::NoQueuePair => {}
                    handled => return handled,
                })+
                Handled::NoQueuePair
            }
        }
    };
}

with_kinds!(dispatch);
