//! Packets that a process sends to other hosts: the source that they name is checked.
//!
//! The process may change a frame at any time. What was checked is therefore what is sent: it is
//! copied, and written over what was copied from the frame later.

use proto_trp::wire::datagram::{DatagramHeader, HEADER_LEN};
use proto_trp::wire::packet_head::Packets;
use proto_trp::wire::{Meta, PacketHead, PacketType};
use urdma_types::{slot_of_source_port, Qpn, SlotId};

use super::channels::Octets;

/// The packets of a message of a process.
#[derive(Debug, Clone)]
pub(super) struct FromProcess<'a> {
    slot: SlotId,
    pub(super) meta: Meta,
    packets: Packets,
    octets: Octets<'a>,
    /// The UDP source port is of that slot.
    has_port: bool,
}

impl<'a> FromProcess<'a> {
    #[inline]
    pub(super) fn new(slot: SlotId, head: &PacketHead, octets: Octets<'a>) -> Self {
        Self {
            slot,
            meta: head.meta,
            packets: head.packets(octets.len()),
            octets,
            has_port: slot_of_source_port(head.meta.src_port) == Some(slot),
        }
    }

    /// Whether the source of each is in the slot that it comes from.
    pub(super) fn are_own(&self) -> bool {
        let mut packets = self.clone();
        std::iter::from_fn(|| packets.next()).all(|packet| packet.is_some())
    }

    /// The next of them; the inner None if the source that it names is not in the slot that it
    /// comes from.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Option<Checked<'a>>> {
        let (at, len) = self.packets.next()?;
        let octets = self.octets.part(at, len);
        Some(if self.has_port {
            Checked::new(self.slot, octets)
        } else {
            None
        })
    }
}

/// A packet whose source was checked.
#[derive(Debug)]
pub(super) struct Checked<'a> {
    octets: Octets<'a>,
    seen: Seen,
}

/// What of a packet was checked.
#[derive(Debug)]
enum Seen {
    /// Nothing: it has no octets.
    Nothing,
    /// Version and type; the queue pair is known by connection id and port.
    Type(u8),
    /// The header of a datagram, which names the source.
    Header([u8; HEADER_LEN]),
}

impl<'a> Checked<'a> {
    #[inline]
    fn new(slot: SlotId, octets: Octets<'a>) -> Option<Self> {
        let mut first = [0];
        let seen = if !octets.copy_to(&mut first) {
            Seen::Nothing
        } else if PacketType::of(first[0]) == Ok(PacketType::Datagram) {
            Seen::Header(datagram_from(slot, &octets)?)
        } else {
            Seen::Type(first[0])
        };
        Some(Self { octets, seen })
    }

    /// Its length.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.octets.len()
    }

    /// Writes it to `out`, which is as long.
    #[inline]
    pub(super) fn write(&self, out: &mut [u8]) {
        let is_copied = self.octets.copy_to(out);
        debug_assert!(is_copied, "a room of the length of the packet");
        match &self.seen {
            Seen::Nothing => {}
            Seen::Type(first) => out[0] = *first,
            Seen::Header(header) => out[..HEADER_LEN].copy_from_slice(header),
        }
    }
}

/// The header of a datagram whose source is in `slot`.
#[cold]
fn datagram_from(slot: SlotId, octets: &Octets<'_>) -> Option<[u8; HEADER_LEN]> {
    let mut header = [0; HEADER_LEN];
    if !octets.copy_to(&mut header) {
        return None;
    }
    let parsed = DatagramHeader::parse(&header, octets.len()).ok()?;
    // C7.1-2
    //# The source QPN of a DATAGRAM from a process MUST be of the slot of that process, or the
    //# packet has no effect.
    let is_own = Qpn::from_u32(parsed.source_qpn).map(Qpn::slot) == Some(slot);
    is_own.then_some(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use urdma_types::source_port;

    const SLOT: SlotId = SlotId::DAEMON;

    fn checked(octets: &[u8]) -> Option<Checked<'_>> {
        let meta = Meta {
            src_port: source_port(Qpn::new(SLOT, 1)),
            ..Meta::default()
        };
        let mut packets = FromProcess::new(SLOT, &PacketHead::of(meta), Octets::Copy(octets));
        packets.next().unwrap()
    }

    fn datagram(source: Qpn) -> Vec<u8> {
        let mut octets = vec![0; HEADER_LEN + 5];
        let header = DatagramHeader {
            destination_index: 1,
            qkey: 1,
            traffic_class: 0,
            source_qpn: source.to_u32(),
            imm: None,
            solicited: false,
            source_gid: [0; 16],
            destination_gid: [0; 16],
        };
        header.encode(&mut octets).unwrap();
        octets
    }

    // A process changed the type, or the source, after the check.
    #[test]
    fn what_was_checked_is_sent() {
        let own = datagram(Qpn::new(SLOT, 1));
        let other = SlotId::new(9).unwrap();
        let forged = datagram(Qpn::new(other, 1));
        assert!(checked(&forged).is_none());
        let mut data = forged.clone();
        data[0] = PacketType::Data.first_octet();
        for before in [&own, &data] {
            let mut packet = checked(before).unwrap();
            packet.octets = Octets::Copy(&forged);
            let mut sent = vec![0; packet.len()];
            packet.write(&mut sent);
            assert!(checked(&sent).is_some());
        }
    }
}
