//! Messages of a channel, the transport inside a host (doc/spec/channel.md, section 7): the head
//! that each begins with, and the conversion from and to segments.
//!
//! The head is little-endian and is written and read as four words; the RDMAP headers after it are
//! those of the network.

use super::ddp::{Msn, Stag, TaggedOffset, UntaggedHeader};
use super::error::{EncodeError, ParseError};
use super::rdmap::Opcode;
use super::segment::{single_kind, Segment, SegmentKind};
use super::trp::{ConnectionId, Flags};

/// Length of the head, in octets.
pub const MESSAGE_HEAD_LEN: usize = 32;
/// Octets of a message that its cell can hold, head included.
pub const CELL_LEN: usize = 112;
/// Octets of payload that a cell can hold behind the head.
pub const CELL_PAYLOAD_LEN: usize = CELL_LEN - MESSAGE_HEAD_LEN;
/// Maximum payload of one message, in octets.
pub const MESSAGE_PAYLOAD_MAX: u32 = 65_536;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageKind {
    /// Part of a Send.
    Send = 1,
    /// Part of an RDMA Write.
    Write = 2,
    /// Immediate Data, which completes the Write before it.
    Immediate = 3,
    /// An RDMA Read Request.
    ReadRequest = 4,
    /// Part of an RDMA Read Response.
    ReadResponse = 5,
    /// An Atomic Request.
    AtomicRequest = 6,
    /// An Atomic Response.
    AtomicResponse = 7,
    /// An RDMAP Terminate.
    Terminate = 8,
    /// Refuses a message for which no receive request is posted.
    NotReady = 9,
    /// Refuses a message that no queue pair takes.
    Reset = 10,
    /// The sender's queue pair is destroyed.
    Fin = 11,
    /// A whole Write, and the Immediate Data that completes it.
    WriteImmediate = 12,
    /// A packet of TRP.
    Packet = 16,
}

impl MessageKind {
    /// The kind with this number.
    #[inline]
    pub const fn from_octet(octet: u8) -> Option<Self> {
        Some(match octet {
            1 => MessageKind::Send,
            2 => MessageKind::Write,
            3 => MessageKind::Immediate,
            4 => MessageKind::ReadRequest,
            5 => MessageKind::ReadResponse,
            6 => MessageKind::AtomicRequest,
            7 => MessageKind::AtomicResponse,
            8 => MessageKind::Terminate,
            9 => MessageKind::NotReady,
            10 => MessageKind::Reset,
            11 => MessageKind::Fin,
            12 => MessageKind::WriteImmediate,
            16 => MessageKind::Packet,
            _ => return None,
        })
    }

    /// Whether it is a message of a work request: a request, or the response to one.
    #[inline]
    pub const fn is_of_work_request(self) -> bool {
        (self as u8) <= MessageKind::AtomicResponse as u8
            || matches!(self, MessageKind::WriteImmediate)
    }

    /// Whether it is the response to a request of its receiver.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            MessageKind::ReadResponse | MessageKind::AtomicResponse
        )
    }

    /// Whether it belongs to a connection.
    #[inline]
    pub const fn is_of_connection(self) -> bool {
        (self as u8) <= MessageKind::WriteImmediate as u8
    }
}

/// Flags of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MessageFlags(u8);

impl MessageFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The last segment of its message.
    pub const LAST: Self = Self(0x01);
    /// Solicited event.
    pub const SOLICITED: Self = Self(0x02);
    /// The head has immediate data, or Immediate Data completes a Write.
    pub const HAS_IMMEDIATE: Self = Self(0x04);
    /// The head has an STag to invalidate.
    pub const INVALIDATE: Self = Self(0x08);
    /// Alternates each time that the sender takes back requests.
    pub const EPOCH: Self = Self(0x10);
    /// Of an unreliable connection.
    pub const UNRELIABLE: Self = Self(0x20);
    /// Requests begin with this message; what the sender began before it is void.
    pub const START: Self = Self(0x40);

    /// The flags of an octet; `None` if one is unknown.
    #[inline]
    pub const fn from_octet(octet: u8) -> Option<Self> {
        if octet & 0x80 == 0 {
            Some(Self(octet))
        } else {
            None
        }
    }

    /// The octet of the head.
    #[inline]
    pub const fn octet(self) -> u8 {
        self.0
    }

    /// The flags that are in both sets.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The flags that are not in `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether every flag of `other` is set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags if `condition` holds, else none.
    #[inline]
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        Self(self.0 * condition as u8)
    }
}

impl std::ops::BitOr for MessageFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitXor for MessageFlags {
    type Output = Self;

    #[inline]
    fn bitxor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

/// Why the head of a message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageError {
    /// The message ends within its head.
    Truncated,
    /// A kind that does not exist.
    Kind,
    /// A flag that does not exist.
    Flags,
    /// Octets after the head both in the cell and in a frame.
    Divided,
}

impl std::fmt::Display for MessageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MessageError::Truncated => "message ends within its head",
            MessageError::Kind => "unknown kind of message",
            MessageError::Flags => "unknown flag of a message",
            MessageError::Divided => "message is divided between cell and frame",
        })
    }
}

impl std::error::Error for MessageError {}

/// The two queue pairs of a connection's messages, as the first word of a head has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageEnds(u64);

impl MessageEnds {
    /// The destination and the source, as indices.
    #[inline]
    pub(crate) const fn new(destination: u16, source: u16) -> Self {
        Self((destination as u64) << 16 | (source as u64) << 32)
    }
}

/// The head of a message that names a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// What the message is.
    pub kind: MessageKind,
    /// Its flags.
    pub flags: MessageFlags,
    /// Index of the destination queue pair.
    pub destination: u16,
    /// Index of the source queue pair.
    pub source: u16,
    /// Connection id of the sender's stream, or of the receiver's (section 7).
    pub connection_id: ConnectionId,
    /// STag of a tagged message, message number of an untagged one.
    pub number: u32,
    /// Tagged offset, or message offset.
    pub offset: u64,
    /// Immediate data, or the STag to invalidate.
    pub ulp: u32,
    /// Number of the shared receive queue (XRC), or 0; of [`MessageKind::WriteImmediate`] the
    /// message number of its Immediate Data.
    pub shared_queue: u32,
}

impl MessageHead {
    /// Reads the head at the start of `octets`.
    ///
    /// # Errors
    /// See [`MessageError`].
    #[inline]
    pub const fn parse(octets: &[u8]) -> Result<Self, MessageError> {
        match octets.first_chunk::<MESSAGE_HEAD_LEN>() {
            Some(octets) => Self::decode(octets),
            None => Err(MessageError::Truncated),
        }
    }

    /// Reads a head.
    ///
    /// # Errors
    /// [`MessageError::Kind`], [`MessageError::Flags`].
    #[inline]
    pub const fn decode(octets: &[u8; MESSAGE_HEAD_LEN]) -> Result<Self, MessageError> {
        let (words, _) = octets.as_chunks::<8>();
        let address = u64::from_le_bytes(words[0]).to_le_bytes();
        let Some(kind) = MessageKind::from_octet(address[0]) else {
            return Err(MessageError::Kind);
        };
        let Some(flags) = MessageFlags::from_octet(address[1]) else {
            return Err(MessageError::Flags);
        };
        let [a, b, c, d, e, f, g, h] = words[1];
        let [i, j, k, l, m, n, o, p] = words[3];
        Ok(Self {
            kind,
            flags,
            destination: u16::from_le_bytes([address[2], address[3]]),
            source: u16::from_le_bytes([address[4], address[5]]),
            connection_id: ConnectionId::from_u32(u32::from_le_bytes([a, b, c, d])),
            number: u32::from_le_bytes([e, f, g, h]),
            offset: u64::from_le_bytes(words[2]),
            ulp: u32::from_le_bytes([i, j, k, l]),
            shared_queue: u32::from_le_bytes([m, n, o, p]),
        })
    }

    /// Writes the head.
    #[inline]
    pub fn encode(&self, octets: &mut [u8; MESSAGE_HEAD_LEN]) {
        self.encode_between(MessageEnds::new(self.destination, self.source), octets);
    }

    /// Writes the head, with these queue pairs in place of its own.
    #[inline]
    pub(crate) fn encode_between(&self, ends: MessageEnds, octets: &mut [u8; MESSAGE_HEAD_LEN]) {
        let address = u64::from(self.kind as u8) | u64::from(self.flags.octet()) << 8 | ends.0;
        let stream = u64::from(self.connection_id.to_u32()) | u64::from(self.number) << 32;
        let ulp = u64::from(self.ulp) | u64::from(self.shared_queue) << 32;
        let (words, _) = octets.as_chunks_mut::<8>();
        words[0] = address.to_le_bytes();
        words[1] = stream.to_le_bytes();
        words[2] = self.offset.to_le_bytes();
        words[3] = ulp.to_le_bytes();
    }

    /// Gives the head of a Send, which was encoded without immediate data, some.
    pub(crate) fn add_immediate(octets: &mut [u8; MESSAGE_HEAD_LEN], imm: u32) {
        octets[1] |= MessageFlags::HAS_IMMEDIATE.octet();
        octets[24..28].copy_from_slice(&imm.to_le_bytes());
    }

    /// Adds Immediate Data, message `number` of queue 0, to the head of a whole Write.
    pub(crate) fn complete_write(
        octets: &mut [u8; MESSAGE_HEAD_LEN],
        imm: u32,
        number: u32,
        solicited: bool,
    ) {
        Self::add_immediate(octets, imm);
        octets[0] = MessageKind::WriteImmediate as u8;
        octets[1] |= MessageFlags::SOLICITED.when(solicited).octet();
        octets[28..].copy_from_slice(&number.to_le_bytes());
    }

    /// The message as a segment. `body` holds what follows the head in the cell, and the payload,
    /// which begins behind the head, has `payload_len` octets.
    ///
    /// # Errors
    /// See [`ParseError`]; [`ParseError::Opcode`] for a kind that is no segment.
    #[inline]
    pub fn segment(&self, body: &[u8], payload_len: usize) -> Result<Segment, ParseError> {
        let stag = Stag(self.number);
        let offset = TaggedOffset(self.offset);
        let solicited = self.flags.contains(MessageFlags::SOLICITED);
        let last = self.flags.contains(MessageFlags::LAST);
        let has_immediate = self.flags.contains(MessageFlags::HAS_IMMEDIATE);
        let opcode = match self.kind {
            MessageKind::Send => Opcode::Send,
            MessageKind::Write | MessageKind::WriteImmediate => Opcode::Write,
            MessageKind::ReadResponse => Opcode::ReadResponse,
            MessageKind::ReadRequest => Opcode::ReadRequest,
            MessageKind::AtomicRequest => Opcode::AtomicRequest,
            MessageKind::AtomicResponse => Opcode::AtomicResponse,
            MessageKind::Terminate => Opcode::Terminate,
            MessageKind::Immediate if solicited => Opcode::ImmediateSolicited,
            MessageKind::Immediate => Opcode::Immediate,
            _ => return Err(ParseError::Opcode),
        };
        let (kind, payload_len) = match opcode {
            Opcode::Write => (SegmentKind::Write { stag, offset }, payload_len),
            Opcode::ReadResponse => (SegmentKind::ReadResponse { stag, offset }, payload_len),
            Opcode::Send => {
                let invalidates = self.flags.contains(MessageFlags::INVALIDATE);
                let kind = SegmentKind::Send {
                    msn: Msn(self.number),
                    offset: self.message_offset()?,
                    solicited,
                    invalidate: invalidates.then_some(Stag(self.ulp)),
                    immediate: (has_immediate && !invalidates).then_some(self.ulp),
                };
                (kind, payload_len)
            }
            _ => {
                let header = UntaggedHeader {
                    last,
                    rdmap_control: opcode.control(),
                    ulp: 0,
                    queue_number: 0,
                    msn: Msn(self.number),
                    message_offset: self.message_offset()?,
                };
                (single_kind(opcode, &header, body, payload_len)?, 0)
            }
        };
        Ok(Segment {
            flags: if has_immediate {
                Flags::IMMEDIATE
            } else {
                Flags::NONE
            },
            kind,
            last,
            payload_offset: MESSAGE_HEAD_LEN,
            payload_len,
        })
    }

    /// The offset in a message of queue 0.
    #[inline]
    pub(crate) fn message_offset(&self) -> Result<u32, ParseError> {
        u32::try_from(self.offset).map_err(|_| ParseError::MessageOffset)
    }

    /// This head, with everything that says what the message is from a segment.
    #[must_use]
    pub fn of_segment(self, segment: &SegmentKind, last: bool) -> Self {
        let mut flags = self.flags | MessageFlags::LAST.when(last);
        let mut head = self;
        (head.offset, head.ulp) = (0, 0);
        match *segment {
            SegmentKind::Write { stag, offset } => {
                head.kind = MessageKind::Write;
                (head.number, head.offset) = (stag.0, offset.0);
            }
            SegmentKind::ReadResponse { stag, offset } => {
                head.kind = MessageKind::ReadResponse;
                (head.number, head.offset) = (stag.0, offset.0);
            }
            SegmentKind::Send {
                msn,
                offset,
                solicited,
                invalidate,
                immediate,
            } => {
                head.kind = MessageKind::Send;
                (head.number, head.offset) = (msn.0, u64::from(offset));
                head.ulp = invalidate.map(|stag| stag.0).or(immediate).unwrap_or(0);
                flags = flags
                    | MessageFlags::SOLICITED.when(solicited)
                    | MessageFlags::INVALIDATE.when(invalidate.is_some())
                    | MessageFlags::HAS_IMMEDIATE.when(immediate.is_some());
            }
            SegmentKind::Immediate { msn, solicited, .. } => {
                (head.kind, head.number) = (MessageKind::Immediate, msn.0);
                flags = flags | MessageFlags::SOLICITED.when(solicited);
            }
            SegmentKind::ReadRequest { msn, .. } => {
                (head.kind, head.number) = (MessageKind::ReadRequest, msn.0);
            }
            SegmentKind::AtomicRequest { msn, .. } => {
                (head.kind, head.number) = (MessageKind::AtomicRequest, msn.0);
            }
            SegmentKind::AtomicResponse { msn, .. } => {
                (head.kind, head.number) = (MessageKind::AtomicResponse, msn.0);
            }
            SegmentKind::Terminate { msn, .. } => {
                (head.kind, head.number) = (MessageKind::Terminate, msn.0);
            }
            SegmentKind::Absent => {}
        }
        head.flags = flags;
        head
    }
}

/// Writes the RDMAP header that follows the head in messages without payload; returns its length.
///
/// # Errors
/// [`EncodeError::NoRoom`].
pub fn encode_message_body(segment: &SegmentKind, buf: &mut [u8]) -> Result<usize, EncodeError> {
    match segment {
        SegmentKind::ReadRequest { request, .. } => request.encode(buf),
        SegmentKind::AtomicRequest { request, .. } => request.encode(buf),
        SegmentKind::AtomicResponse { response, .. } => response.encode(buf),
        SegmentKind::Immediate { data, .. } => data.encode(buf),
        SegmentKind::Terminate { terminate, .. } => terminate.encode(buf),
        SegmentKind::Absent
        | SegmentKind::Write { .. }
        | SegmentKind::ReadResponse { .. }
        | SegmentKind::Send { .. } => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rdmap::{
        AtomicOperation, AtomicRequest, AtomicResponse, ImmediateData, ReadRequest,
    };
    use super::super::terminate::{Terminate, TerminateCause};
    use super::*;

    fn head() -> MessageHead {
        MessageHead {
            kind: MessageKind::Send,
            flags: MessageFlags::EPOCH,
            destination: 0x0203,
            source: 0x0405,
            connection_id: ConnectionId::from_u32(0xdead_beef),
            number: 7,
            offset: 0x0102_0304_0506_0708,
            ulp: 0xfeed_f00d,
            shared_queue: 9,
        }
    }

    #[test]
    fn message_head_is_laid_out_as_specified() {
        let mut octets = [0xff; MESSAGE_HEAD_LEN];
        head().encode(&mut octets);
        let expected = [
            1, 0x10, 3, 2, 5, 4, 0, 0, 0xef, 0xbe, 0xad, 0xde, 7, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1,
            0x0d, 0xf0, 0xed, 0xfe, 9, 0, 0, 0,
        ];
        assert_eq!(octets, expected);
        assert_eq!(MessageHead::decode(&octets), Ok(head()));
        let short = MessageHead::parse(&octets[..31]);
        assert_eq!(short, Err(MessageError::Truncated));
    }

    #[test]
    fn message_head_with_unknown_kind_or_flag_is_refused() {
        let mut octets = [0; MESSAGE_HEAD_LEN];
        head().encode(&mut octets);
        for kind in 0..=255 {
            octets[0] = kind;
            let known = (1..=12).contains(&kind) || kind == 16;
            assert_eq!(MessageHead::decode(&octets).is_ok(), known, "{kind}");
            if let Ok(head) = MessageHead::decode(&octets) {
                assert_eq!(head.kind as u8, kind);
            }
        }
        (octets[0], octets[1]) = (1, 0x80);
        assert_eq!(MessageHead::decode(&octets), Err(MessageError::Flags));
    }

    #[test]
    fn message_of_every_segment_gives_the_segment_again() {
        let msn = Msn(5);
        let stag = Stag(0x1122_3344);
        let offset = TaggedOffset(1 << 40);
        let terminate = Terminate::new(TerminateCause::BOUNDS);
        let request = AtomicRequest {
            request_id: 3,
            stag,
            offset,
            operation: AtomicOperation::FetchAdd { add: 1, mask: 0 },
        };
        let response = AtomicResponse {
            request_id: 3,
            original: 4,
        };
        let read = ReadRequest {
            sink_stag: stag,
            sink_offset: offset,
            len_octets: 8,
            source_stag: stag,
            source_offset: offset,
        };
        let data = ImmediateData {
            immediate: 1,
            write_len_octets: 2,
        };
        let send = |solicited, invalidate, immediate| SegmentKind::Send {
            msn,
            offset: 77,
            solicited,
            invalidate,
            immediate,
        };
        let kinds = [
            send(false, None, None),
            send(true, Some(stag), None),
            send(true, None, Some(6)),
            SegmentKind::Write { stag, offset },
            SegmentKind::ReadResponse { stag, offset },
            SegmentKind::ReadRequest { msn, request: read },
            SegmentKind::AtomicRequest { msn, request },
            SegmentKind::AtomicResponse { msn, response },
            SegmentKind::Immediate {
                msn,
                solicited: true,
                data,
            },
            SegmentKind::Terminate { msn, terminate },
        ];
        for kind in kinds {
            let mut body = [0; CELL_PAYLOAD_LEN];
            let head = head().of_segment(&kind, true);
            let len = encode_message_body(&kind, &mut body).unwrap();
            let segment = head.segment(&body[..len], len).unwrap();
            assert_eq!((segment.kind, segment.last), (kind, true));
            assert!(head.flags.contains(MessageFlags::EPOCH));
            let too_long = head.segment(&body[..len], 81);
            let is_fixed = len > 0 && !matches!(kind, SegmentKind::Terminate { .. });
            assert_eq!(too_long.is_err(), is_fixed, "{kind:?}");
        }
        let far = MessageHead {
            offset: 1 << 32,
            ..head()
        };
        assert_eq!(far.segment(&[], 0), Err(ParseError::MessageOffset));
    }
}
