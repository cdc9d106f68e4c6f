//! The DATAGRAM packet (doc/spec/trp.md, section 12): one message of an unreliable datagram queue
//! pair.

use super::error::{EncodeError, ParseError};
use super::octets::{be16, be24, be32, chunk, chunk_mut, put, put24};
use super::trp::PacketType;

/// Octets before the message.
pub const HEADER_LEN: usize = 48;

/// Longest message in octets: the largest MTU of verbs.
pub const MESSAGE_MAX: usize = 4096;

/// Positions of the fields.
pub mod field {
    /// Version in the high nibble, type in the low one.
    pub const VERSION_TYPE: usize = 0;
    /// Flags.
    pub const FLAGS: usize = 1;
    /// Destination QP index, 2 octets; 0 when a multicast group is addressed.
    pub const DESTINATION_INDEX: usize = 2;
    /// `Q_Key` that the receiver must have, 4 octets.
    pub const QKEY: usize = 4;
    /// Traffic class.
    pub const TRAFFIC_CLASS: usize = 8;
    /// QP number of the sender, 3 octets.
    pub const SOURCE_QPN: usize = 9;
    /// Immediate data, 4 octets; 0 without the flag.
    pub const IMMEDIATE: usize = 12;
    /// GID of the sender, 16 octets.
    pub const SOURCE_GID: usize = 16;
    /// GID of the receiver or of the multicast group, 16 octets.
    pub const DESTINATION_GID: usize = 32;
}

/// IMM: there is immediate data.
const FLAG_IMMEDIATE: u8 = 0x02;
/// SE: the receiver may raise a solicited event.
const FLAG_SOLICITED: u8 = 0x08;

/// The header of a DATAGRAM packet; the message follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Index of the destination queue pair in the process that the UDP port names; 0 when a
    /// multicast group is addressed.
    pub destination_index: u16,
    /// `Q_Key` that the receiver must have.
    pub qkey: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// QP number of the sender, 24 bits.
    pub source_qpn: u32,
    /// Immediate data in host order.
    pub imm: Option<u32>,
    /// The sender asks for a solicited event.
    pub solicited: bool,
    /// GID of the sender.
    pub source_gid: [u8; 16],
    /// GID of the receiver or of the multicast group.
    pub destination_gid: [u8; 16],
}

impl DatagramHeader {
    /// Parses and validates the header.
    ///
    /// `head` holds the first octets of the datagram, `datagram_len` is the length of all of it.
    ///
    /// # Errors
    /// Too short, of another version or type, or too long.
    pub fn parse(head: &[u8], datagram_len: usize) -> Result<Self, ParseError> {
        let octets: &[u8; HEADER_LEN] = chunk(head, 0)?;
        if PacketType::of(octets[field::VERSION_TYPE])? != PacketType::Datagram {
            return Err(ParseError::PacketType);
        }
        if datagram_len < HEADER_LEN {
            return Err(ParseError::Truncated);
        }
        if datagram_len > HEADER_LEN + MESSAGE_MAX {
            return Err(ParseError::Trailing);
        }
        let flags = octets[field::FLAGS];
        Ok(Self {
            destination_index: be16(octets, field::DESTINATION_INDEX),
            qkey: be32(octets, field::QKEY),
            traffic_class: octets[field::TRAFFIC_CLASS],
            source_qpn: be24(octets, field::SOURCE_QPN),
            imm: (flags & FLAG_IMMEDIATE != 0).then(|| be32(octets, field::IMMEDIATE)),
            solicited: flags & FLAG_SOLICITED != 0,
            source_gid: *chunk(octets, field::SOURCE_GID)?,
            destination_gid: *chunk(octets, field::DESTINATION_GID)?,
        })
    }

    /// Writes the header to the first [`HEADER_LEN`] octets of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        let octets: &mut [u8; HEADER_LEN] = chunk_mut(buf, 0)?;
        let immediate = if self.imm.is_some() {
            FLAG_IMMEDIATE
        } else {
            0
        };
        let solicited = if self.solicited { FLAG_SOLICITED } else { 0 };
        octets[field::VERSION_TYPE] = PacketType::Datagram.first_octet();
        octets[field::FLAGS] = immediate | solicited;
        put(
            octets,
            field::DESTINATION_INDEX,
            self.destination_index.to_be_bytes(),
        );
        put(octets, field::QKEY, self.qkey.to_be_bytes());
        octets[field::TRAFFIC_CLASS] = self.traffic_class;
        put24(octets, field::SOURCE_QPN, self.source_qpn);
        let imm = self.imm.unwrap_or(0);
        put(octets, field::IMMEDIATE, imm.to_be_bytes());
        put(octets, field::SOURCE_GID, self.source_gid);
        put(octets, field::DESTINATION_GID, self.destination_gid);
        Ok(HEADER_LEN)
    }
}

/// The multicast group that a datagram is addressed to, if it is one for a group: for
/// forwarders, which do not know queue pairs.
pub fn group_of(datagram: &[u8], datagram_len: usize) -> Option<[u8; 16]> {
    let header = DatagramHeader::parse(datagram, datagram_len).ok()?;
    is_group(&header.destination_gid).then_some(header.destination_gid)
}

/// Whether a GID names a multicast group: an IPv6 multicast address, or an IPv4-mapped one.
pub fn is_group(gid: &[u8; 16]) -> bool {
    std::net::Ipv6Addr::from(*gid).to_canonical().is_multicast()
}
