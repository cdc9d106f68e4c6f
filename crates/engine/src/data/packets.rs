//! Packets of TRP that came over channels: from other hosts, through urdmad, and the datagrams and
//! the connection management of processes of this host.

#![allow(unsafe_code)]

use proto_trp::wire::message::MESSAGE_HEAD_LEN;
use proto_trp::wire::{MessageError, PacketHead};
use urdma_types::SlotId;

use crate::clock;
use crate::paths::origin::Origin;
use crate::paths::packet_body::PacketBody;
use crate::shard::Shard;
use crate::types::Info;

impl Shard {
    /// Takes the packets in a frame; gives their number.
    #[inline]
    fn take_frame(
        &mut self,
        info: &Info,
        head: &PacketHead,
        body: &PacketBody<'_>,
        origin: &Origin,
    ) -> usize {
        let now = clock::now();
        let packets = head.packets(body.len());
        let mut packets = packets.map(|(at, len)| (body.part(at, len), head.meta));
        let mut taken = 0;
        let mut next = packets.next();
        while let Some((packet, meta)) = next {
            taken += self.dispatch(info, &packet, origin);
            next = match origin {
                Origin::Remote(_) | Origin::Leased(_) => {
                    let predicted = self.take_predicted(now, &meta, &mut packets);
                    taken += predicted.0;
                    predicted.1
                }
                Origin::Local(_) => packets.next(),
            };
        }
        taken
    }

    /// Takes the packets of a message of a channel; gives their number (trains count for several).
    #[inline]
    pub(super) fn take_packet(
        &mut self,
        info: &Info,
        from: SlotId,
        cell: &[u8],
        (frame_octets, body): (usize, &PacketBody<'_>),
    ) -> Result<usize, MessageError> {
        let head = PacketHead::parse(cell).ok_or(MessageError::Flags)?;
        let in_cell = &cell[MESSAGE_HEAD_LEN..];
        if frame_octets > 0 && !in_cell.is_empty() {
            return Err(MessageError::Divided);
        }
        let origin = if from == SlotId::DAEMON {
            Origin::Remote(head.meta)
        } else {
            Origin::Local(from)
        };
        Ok(if frame_octets > 0 {
            self.take_frame(info, &head, body, &origin)
        } else {
            // SAFETY: the cell's copy is borrowed.
            let body = unsafe { PacketBody::new(in_cell.as_ptr(), in_cell.len(), in_cell.len()) };
            self.handle(info, in_cell, &body, &origin)
        })
    }
}
