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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use proto_trp::wire::Meta;
    use urdma_types::Ip16;

    use super::*;
    use crate::engine::Engine;
    use crate::objects::note::Note;
    use crate::rig::{instance, parts};

    /// A message of urdmad: a REQ of the process in `slot` of the host with the address `source`.
    fn request(slot: u8, source: Ipv4Addr) -> Vec<u8> {
        let head = PacketHead::of(Meta {
            remote_ip: Ip16::mapped(source),
            ..Meta::default()
        });
        let mut cell = vec![0; MESSAGE_HEAD_LEN + 88];
        head.encode(cell.first_chunk_mut().unwrap());
        let octets = &mut cell[MESSAGE_HEAD_LEN..];
        octets[..4].copy_from_slice(&[0x17, 1, 0, 88]);
        octets[20] = slot;
        // The address in the body, which begins at 24.
        octets[48..64].copy_from_slice(&Ip16::mapped(source).0);
        cell
    }

    #[test]
    fn channel_for_the_answer_is_offered_before_the_request_is_delivered() {
        let instance = instance();
        let start = |slot| Engine::start_without_thread(parts(&instance, slot)).unwrap();
        let [server, client, _other] = [1, 2, 3].map(start);
        let notes_of = |slot, source: [u8; 4]| {
            let none: [u8; 0] = [];
            // SAFETY: it has no octets.
            let body = unsafe { PacketBody::new(none.as_ptr(), 0, 0) };
            let cell = request(slot, source.into());
            let mut shard = server.shard.lock();
            let taken = shard.take_packet(&server.info, SlotId::DAEMON, &cell, (0, &body));
            assert_eq!(taken.unwrap(), 1);
            let kind = |note: &Note| match note {
                Note::Offer(slot, _) => slot.number(),
                Note::Cm(..) => u8::MAX,
                other => panic!("{other:?}"),
            };
            let kinds: Vec<u8> = shard.process.notes.iter().map(kind).collect();
            drop(shard);
            server.deliver_notes();
            kinds
        };
        assert_eq!(notes_of(2, [127, 0, 0, 1]), [2, u8::MAX]);
        let own = server.info.slot;
        assert!(client.shard.lock().channels.has(own));
        assert_eq!(notes_of(2, [127, 0, 0, 1]), [u8::MAX], "it is open");
        assert_eq!(notes_of(3, [10, 0, 0, 1]), [u8::MAX], "another host");
        assert_eq!(notes_of(9, [127, 0, 0, 1]), [u8::MAX], "no process");
    }
}
