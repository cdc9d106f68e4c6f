//! The TRP header (doc/spec/trp.md, section 4) and connection ids (section 5).

use super::error::{EncodeError, ParseError};
use super::octets::{be16, be24, be32, chunk, chunk_mut, put};
use super::train_table::Train;
use urdma_types::{Psn, Qpn};

/// The protocol version, high nibble of the first octet.
pub const VERSION: u8 = 1;
/// Length of the fixed header.
pub const HEADER_LEN: usize = 16;
/// The most extension octets a packet may have, in words of 4 octets.
pub const EXTENSION_WORDS_MAX: usize = 25;
/// Packets that one unit of the window field stands for.
pub const WINDOW_UNIT_PACKETS: u32 = 256;

/// Positions of the fields.
pub mod field {
    /// Version in the high nibble, type in the low one.
    pub const VERSION_TYPE: usize = 0;
    /// Flags.
    pub const FLAGS: usize = 1;
    /// Destination QP index, 2 octets.
    pub const DESTINATION_INDEX: usize = 2;
    /// Connection id, 4 octets.
    pub const CONNECTION_ID: usize = 4;
    /// Receive window in units of 256 packets.
    pub const WINDOW: usize = 8;
    /// Packet sequence number, 3 octets.
    pub const PSN: usize = 9;
    /// Length of the extensions in words of 4 octets.
    pub const EXTENSION_WORDS: usize = 12;
    /// Cumulative acknowledgement, 3 octets.
    pub const ACK: usize = 13;
}

/// Type of a TRP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// Exactly one DDP segment.
    Data = 0,
    /// Acknowledgement without a segment.
    Ack = 1,
    /// Receiver not ready: the PSN field names the packet refused.
    Rnr = 2,
    /// The receiver has no such connection.
    Reset = 3,
    /// The sender has destroyed its queue pair.
    Fin = 4,
    /// Answer to [`PacketType::Fin`].
    FinAck = 5,
    /// Keep-alive: requests an acknowledgement.
    Probe = 6,
    /// Connection management; the crate `cm` defines octets 2 and up.
    Cm = 7,
    /// A message of an unreliable datagram queue pair; [`super::datagram`] defines octets 1 and up.
    Datagram = 8,
    /// UDATA: exactly one DDP segment, of a connection without acknowledgement and
    /// retransmission (UC).
    UnreliableData = 9,
    /// Several DDP segments, as if each were in a packet of its own; see [`super::train`].
    Train = 10,
}

impl PacketType {
    /// The type with this number.
    #[inline]
    pub const fn from_nibble(nibble: u8) -> Option<Self> {
        Some(match nibble {
            0 => PacketType::Data,
            1 => PacketType::Ack,
            2 => PacketType::Rnr,
            3 => PacketType::Reset,
            4 => PacketType::Fin,
            5 => PacketType::FinAck,
            6 => PacketType::Probe,
            7 => PacketType::Cm,
            8 => PacketType::Datagram,
            9 => PacketType::UnreliableData,
            10 => PacketType::Train,
            _ => return None,
        })
    }

    /// First octet of a packet of this type: version and type.
    #[inline]
    pub const fn first_octet(self) -> u8 {
        VERSION << 4 | self as u8
    }

    /// The type of a packet that begins with `first`.
    ///
    /// # Errors
    /// [`ParseError::Version`] and [`ParseError::PacketType`].
    #[inline]
    pub const fn of(first: u8) -> Result<Self, ParseError> {
        // R4-1
        //# A receiver MUST drop packets of other versions and SHOULD count them.
        if first >> 4 != VERSION {
            return Err(ParseError::Version);
        }
        match Self::from_nibble(first & 0x0f) {
            Some(kind) => Ok(kind),
            // R4.1-1
            //# A receiver MUST drop packets of these types and counts them.
            None => Err(ParseError::PacketType),
        }
    }

    /// Whether packets of this type carry exactly one segment.
    #[inline]
    pub const fn has_segment(self) -> bool {
        matches!(self, PacketType::Data | PacketType::UnreliableData)
    }

    /// Whether packets of this type carry the id of the stream that the receiver sends.
    ///
    /// Those acknowledge it; the other types but RESET, which may carry either, carry the id of the
    /// sender's own stream.
    #[inline]
    pub const fn carries_acknowledged_stream(self) -> bool {
        matches!(self, PacketType::Ack | PacketType::Rnr | PacketType::FinAck)
    }
}

/// Flags of a TRP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// AR: the sender requests an immediate acknowledgement.
    pub const ACK_REQUESTED: Flags = Flags(0x01);
    /// IMM: the field that DDP reserves for the ULP in an untagged header holds the immediate data
    /// of a Send; Immediate Data follows a Write.
    pub const IMMEDIATE: Flags = Flags(0x02);
    /// ECE: packets of the acknowledged stream arrived with the ECN codepoint CE.
    pub const ECN_ECHO: Flags = Flags(0x04);
    /// EP: the requests of this packet are of an odd epoch; each received RNR
    /// starts a new one.
    pub const EPOCH: Flags = Flags(0x08);
    /// TR: the sender accepts trains.
    pub const TRAINS: Flags = Flags(0x10);

    /// The flags of an octet as received; bits that version 1 does not define are dropped.
    #[inline]
    pub const fn from_octet(octet: u8) -> Self {
        // R4.2-3
        //# **Receiver.** A receiver MUST ignore the reserved bits.
        Flags(octet & 0x1f)
    }

    /// The octet on the wire.
    #[inline]
    pub const fn octet(self) -> u8 {
        self.0
    }

    /// Both sets of flags.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Flags) -> Self {
        Flags(self.0 | other.0)
    }

    /// The flags that are in both sets.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Flags) -> Self {
        Flags(self.0 & other.0)
    }

    /// The flags that are not in `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Flags) -> Self {
        Flags(self.0 & !other.0)
    }

    /// Whether every flag of `other` is set.
    #[inline]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitXor for Flags {
    type Output = Flags;

    #[inline]
    fn bitxor(self, other: Flags) -> Flags {
        Flags(self.0 ^ other.0)
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;

    #[inline]
    fn bitor(self, other: Flags) -> Flags {
        self.union(other)
    }
}

/// Id of one direction of a connection; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(u32);

impl ConnectionId {
    /// The id as received. 0 is valid here: no stream has it, so it matches none.
    #[inline]
    pub const fn from_u32(value: u32) -> Self {
        Self(value)
    }

    /// The number on the wire.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        self.0
    }
}

/// The id of the stream from `sender` to `receiver` that begins with `initial_psn`
/// (doc/spec/trp.md, section 5).
///
/// Two rounds of the finalizer of splitmix64, so that each of the 72 bits of input reaches each bit
/// of the result.
#[inline]
pub const fn connection_id(sender: Qpn, receiver: Qpn, initial_psn: Psn) -> ConnectionId {
    // R5-1
    //# **Format.** Both ends MUST compute the id as follows:
    let ends = (sender.to_u32() as u64) << 24 | receiver.to_u32() as u64;
    let mixed = mix64(mix64(ends) ^ initial_psn.to_u32() as u64);
    let [a, b, c, d, ..] = mixed.to_be_bytes();
    match u32::from_be_bytes([a, b, c, d]) {
        0 => ConnectionId(1),
        id => ConnectionId(id),
    }
}

/// One step of splitmix64: the increment and the finalizer.
#[inline]
const fn mix64(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The fixed header of every TRP packet but those of connection management and DATAGRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrpHeader {
    /// Type of the packet.
    pub kind: PacketType,
    /// Flags.
    pub flags: Flags,
    /// Index of the destination queue pair in the process that the UDP port names; 0 in a RESET.
    pub destination_index: u16,
    /// Which stream the packet belongs to.
    pub connection_id: ConnectionId,
    /// Receive window in units of [`WINDOW_UNIT_PACKETS`], from `ack` on; 1..=255. In a RESET its
    /// reason.
    pub window: u8,
    /// Sequence number of a DATA packet, or of the first segment of a TRAIN; for the other types
    /// see the specification.
    pub psn: Psn,
    /// Cumulative acknowledgement: the next sequence number expected.
    pub ack: Psn,
    /// Length of the extensions in words of 4 octets, at most [`EXTENSION_WORDS_MAX`].
    pub extension_words: u8,
}

/// The position of a field of `len` octets at `at` in its word of 8 octets, in bits from the end.
const fn shift(at: usize, len: usize) -> usize {
    8 * (8 - at % 8 - len)
}

impl TrpHeader {
    /// Parses and validates the header, the length of the extensions, that a packet without a
    /// segment ends there, and the table of a train.
    ///
    /// `head` holds the first octets of the datagram, `datagram_len` is the length of all of it.
    ///
    /// # Errors
    /// Those that make the datagram an invalid TRP packet: none has a
    /// [`ParseError::terminate_cause`].
    #[inline]
    pub fn parse(head: &[u8], datagram_len: usize) -> Result<Self, ParseError> {
        let octets: &[u8; HEADER_LEN] = chunk(head, 0)?;
        let kind = PacketType::of(octets[field::VERSION_TYPE])?;
        let header = Self {
            kind,
            flags: Flags::from_octet(octets[field::FLAGS]),
            destination_index: be16(octets, field::DESTINATION_INDEX),
            connection_id: ConnectionId(be32(octets, field::CONNECTION_ID)),
            window: octets[field::WINDOW],
            psn: Psn::new(be24(octets, field::PSN)),
            ack: Psn::new(be24(octets, field::ACK)),
            extension_words: octets[field::EXTENSION_WORDS],
        };
        if usize::from(header.extension_words) > EXTENSION_WORDS_MAX {
            return Err(ParseError::Extension);
        }
        if datagram_len < header.len() || head.len() < header.len() {
            return Err(ParseError::Truncated);
        }
        if kind == PacketType::Data {
            if header.window == 0 {
                return Err(ParseError::Window);
            }
        } else {
            header.check_other_types(head, datagram_len)?;
        }
        Ok(header)
    }

    #[inline]
    fn check_other_types(&self, head: &[u8], datagram_len: usize) -> Result<(), ParseError> {
        if self.kind == PacketType::Cm {
            Err(ParseError::ConnectionManagement)
        } else if self.kind == PacketType::Datagram {
            Err(ParseError::PacketType)
        } else if self.window == 0 && self.kind != PacketType::Reset {
            Err(ParseError::Window)
        } else if self.kind == PacketType::Train {
            self.check_train(head, datagram_len)
        } else if datagram_len != self.len() && !self.kind.has_segment() {
            Err(ParseError::Trailing)
        } else {
            Ok(())
        }
    }

    /// Checks the table of a train. Not inlined: that makes each packet of another type cost more
    /// instructions (perf/tests/instructions.rs).
    #[inline(never)]
    fn check_train(&self, head: &[u8], datagram_len: usize) -> Result<(), ParseError> {
        Train::parse_at(self.len(), head, datagram_len).map(|_| ())
    }

    /// Length of the header with its extensions in octets.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        HEADER_LEN + 4 * self.extension_words as usize
    }

    /// The octets of the extensions in the `head` that this header was parsed from.
    #[inline]
    pub fn extension_octets<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        head.get(HEADER_LEN..self.len()).unwrap_or(&[])
    }

    /// The receive window in packets.
    #[inline]
    pub const fn window_packets(&self) -> u32 {
        self.window as u32 * WINDOW_UNIT_PACKETS
    }

    /// Writes the fixed header to the first 16 octets of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        let octets: &mut [u8; HEADER_LEN] = chunk_mut(buf, 0)?;
        // Two words: single octets and groups of three take more instructions.
        let first = u64::from(self.kind.first_octet()) << shift(field::VERSION_TYPE, 1)
            // R4.2-2: no other bit is ever set.
            | u64::from(self.flags.octet()) << shift(field::FLAGS, 1)
            | u64::from(self.destination_index) << shift(field::DESTINATION_INDEX, 2)
            | u64::from(self.connection_id.0) << shift(field::CONNECTION_ID, 4);
        let second = u64::from(self.window) << shift(field::WINDOW, 1)
            | u64::from(self.psn.to_u32()) << shift(field::PSN, 3)
            | u64::from(self.extension_words) << shift(field::EXTENSION_WORDS, 1)
            | u64::from(self.ack.to_u32()) << shift(field::ACK, 3);
        put(octets, 0, first.to_be_bytes());
        put(octets, 8, second.to_be_bytes());
        Ok(HEADER_LEN)
    }
}
