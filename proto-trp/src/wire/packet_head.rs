//! The head of a PACKET message: a packet of TRP that travels between a process and urdmad, or
//! between two processes of a host (doc/spec/channel.md, section 7).
//!
//! The packet follows the head in the cell if there is room for it, and is in a frame otherwise. A
//! frame may have several packets of one length, of which the last may be shorter.

use urdma_types::Ip16;

use super::message::{MessageKind, MESSAGE_HEAD_LEN};

/// Metadata of a packet that enters or leaves the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The other host's address; IPv4 as `::ffff:a.b.c.d`.
    pub remote_ip: Ip16,
    /// UDP source port, host order.
    pub src_port: u16,
    /// UDP destination port, host order.
    pub dst_port: u16,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// The source address, or the destination of a received packet: index of its GID on this host;
    /// 255 for a group.
    pub gid_index: u8,
}

/// The head of a PACKET message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketHead {
    /// Where the packet comes from or goes to.
    pub meta: Meta,
    /// It came from another host by a queue of the port that its sender leases.
    pub is_passed_on: bool,
    /// Length of each of several packets but the last; 0 if there is one packet.
    pub packet_octets: u16,
}

/// Least length of the packets of a message of several: what one message costs its reader is
/// bounded.
pub const PACKET_OCTETS_MIN: u16 = 256;

/// Where the packets of a message are: offset and length of each.
#[derive(Clone, Debug)]
pub struct Packets {
    at: usize,
    end: usize,
    each: usize,
    /// There is one packet, of no octets.
    is_empty: bool,
}

impl Iterator for Packets {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        let (at, left) = (self.at, self.end - self.at);
        if left == 0 {
            return std::mem::take(&mut self.is_empty).then_some((0, 0));
        }
        let len = left.min(self.each);
        self.at += len;
        Some((at, len))
    }
}

impl PacketHead {
    /// The head of one packet from or to another host.
    #[inline]
    pub const fn of(meta: Meta) -> Self {
        Self {
            meta,
            is_passed_on: false,
            packet_octets: 0,
        }
    }

    /// Where the packets are in the `octets` of a message.
    #[inline]
    pub fn packets(&self, octets: usize) -> Packets {
        Packets {
            at: 0,
            end: octets,
            is_empty: octets == 0,
            each: match self.packet_octets {
                0 => octets,
                each => usize::from(each),
            },
        }
    }

    /// Writes the head.
    #[inline]
    pub fn encode(&self, octets: &mut [u8; MESSAGE_HEAD_LEN]) {
        let Meta {
            remote_ip,
            src_port,
            dst_port,
            ecn,
            gid_index,
        } = self.meta;
        let first = u64::from(MessageKind::Packet as u8)
            | u64::from(self.is_passed_on) << 8
            | u64::from(src_port) << 16
            | u64::from(dst_port) << 32
            | u64::from(ecn) << 48
            | u64::from(gid_index) << 56;
        octets[..8].copy_from_slice(&first.to_le_bytes());
        octets[8..16].copy_from_slice(&u64::from(self.packet_octets).to_le_bytes());
        octets[16..].copy_from_slice(&remote_ip.0);
    }

    /// Reads the head at the start of `octets`; `None` if it is not that of a packet.
    #[inline]
    pub fn parse(octets: &[u8]) -> Option<Self> {
        let octets = octets.first_chunk::<MESSAGE_HEAD_LEN>()?;
        let [kind, flags, s0, s1, d0, d1, ecn, gid_index, ..] = *octets;
        if kind != MessageKind::Packet as u8 || flags > 1 {
            return None;
        }
        let packet_octets = u16::from_le_bytes([octets[8], octets[9]]);
        // C7.1-4
        //# All but the last have the length in the head, which MUST be at least 256; the last one
        //# has what is left, and is not longer.
        if packet_octets != 0 && packet_octets < PACKET_OCTETS_MIN {
            return None;
        }
        let mut remote_ip = Ip16::UNSPECIFIED;
        remote_ip.0.copy_from_slice(&octets[16..]);
        Some(Self {
            meta: Meta {
                remote_ip,
                src_port: u16::from_le_bytes([s0, s1]),
                dst_port: u16::from_le_bytes([d0, d1]),
                ecn: ecn & 3,
                gid_index,
            },
            is_passed_on: flags != 0,
            packet_octets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_is_read_as_it_was_written() {
        let head = PacketHead {
            meta: Meta {
                remote_ip: Ip16([9; 16]),
                src_port: 0xc102,
                dst_port: 0x5403,
                ecn: 2,
                gid_index: 255,
            },
            is_passed_on: true,
            packet_octets: 0x0102,
        };
        let mut octets = [0xff; MESSAGE_HEAD_LEN];
        head.encode(&mut octets);
        assert_eq!(octets[..8], [16, 1, 0x02, 0xc1, 0x03, 0x54, 2, 255]);
        assert_eq!(octets[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(PacketHead::parse(&octets), Some(head));
        assert_eq!(PacketHead::parse(&octets[1..]), None);
        octets[0] = 1;
        assert_eq!(PacketHead::parse(&octets), None, "a SEND");
        octets[..2].copy_from_slice(&[16, 2]);
        assert_eq!(PacketHead::parse(&octets), None, "an unknown flag");
        octets[1] = 0;
        octets[8..10].copy_from_slice(&(PACKET_OCTETS_MIN - 1).to_le_bytes());
        assert_eq!(PacketHead::parse(&octets), None, "packets too short");
    }

    #[test]
    fn packets_of_a_message_are_of_one_length_but_the_last() {
        let packets = |packet_octets, octets| {
            let head = PacketHead {
                packet_octets,
                ..PacketHead::default()
            };
            head.packets(octets).collect::<Vec<_>>()
        };
        assert_eq!(packets(0, 700), [(0, 700)]);
        assert_eq!(packets(700, 700), [(0, 700)]);
        assert_eq!(packets(300, 700), [(0, 300), (300, 300), (600, 100)]);
        assert_eq!(packets(300, 600), [(0, 300), (300, 300)]);
        assert_eq!(packets(300, 100), [(0, 100)]);
        assert_eq!(packets(0, 0), [(0, 0)]);
    }
}
