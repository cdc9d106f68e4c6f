//! The hot path: TRP, DDP and RDMAP headers of one datagram in one go.

use super::ddp::{
    Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset, UntaggedHeader, CONTROL_TAGGED,
};
use super::error::{EncodeError, ParseError};
use super::ext::Extensions;
use super::rdmap::{self, AtomicRequest, AtomicResponse, ImmediateData, Opcode, ReadRequest};
use super::size::{TAGGED_OVERHEAD, UNTAGGED_OVERHEAD};
use super::terminate::Terminate;
use super::trp::{Flags, PacketType, TrpHeader};

/// What a DDP segment is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// The packet has no segment: every TRP type but DATA, UDATA and TRAIN.
    Absent,
    /// Part of an RDMA Write.
    Write {
        /// Memory to write to.
        stag: Stag,
        /// Where the payload of this segment goes.
        offset: TaggedOffset,
    },
    /// Part of an RDMA Read Response.
    ReadResponse {
        /// The sink STag of the request.
        stag: Stag,
        /// Where the payload of this segment goes.
        offset: TaggedOffset,
    },
    /// Part of a Send of any kind.
    Send {
        /// Number of the message in queue 0.
        msn: Msn,
        /// Where in the message the payload of this segment goes.
        offset: u32,
        /// Whether the sender requests a solicited event.
        solicited: bool,
        /// The receiver's STag to invalidate; excludes `immediate`.
        invalidate: Option<Stag>,
        /// Immediate data of verbs (flag IMM).
        immediate: Option<u32>,
    },
    /// An RDMA Read Request.
    ReadRequest {
        /// Number of the message in queue 1.
        msn: Msn,
        /// The request.
        request: ReadRequest,
    },
    /// A Terminate.
    Terminate {
        /// Number of the message in queue 2, always 1.
        msn: Msn,
        /// The error.
        terminate: Terminate,
    },
    /// Immediate Data, which completes the RDMA Write before it.
    Immediate {
        /// Number of the message in queue 0.
        msn: Msn,
        /// Whether the sender requests a solicited event.
        solicited: bool,
        /// The immediate and the length of the write.
        data: ImmediateData,
    },
    /// An Atomic Request.
    AtomicRequest {
        /// Number of the message in queue 1.
        msn: Msn,
        /// The request.
        request: AtomicRequest,
    },
    /// An Atomic Response.
    AtomicResponse {
        /// Number of the message in queue 3.
        msn: Msn,
        /// The response.
        response: AtomicResponse,
    },
}

impl SegmentKind {
    /// The opcode; `None` when there is no segment.
    #[inline]
    pub const fn opcode(&self) -> Option<Opcode> {
        Some(match self {
            SegmentKind::Absent => return None,
            SegmentKind::Write { .. } => Opcode::Write,
            SegmentKind::ReadResponse { .. } => Opcode::ReadResponse,
            SegmentKind::Send {
                solicited: false,
                invalidate: None,
                ..
            } => Opcode::Send,
            SegmentKind::Send {
                solicited: false,
                invalidate: Some(_),
                ..
            } => Opcode::SendInvalidate,
            SegmentKind::Send {
                solicited: true,
                invalidate: None,
                ..
            } => Opcode::SendSolicited,
            SegmentKind::Send {
                solicited: true,
                invalidate: Some(_),
                ..
            } => Opcode::SendSolicitedInvalidate,
            SegmentKind::ReadRequest { .. } => Opcode::ReadRequest,
            SegmentKind::Terminate { .. } => Opcode::Terminate,
            SegmentKind::Immediate {
                solicited: false, ..
            } => Opcode::Immediate,
            SegmentKind::Immediate {
                solicited: true, ..
            } => Opcode::ImmediateSolicited,
            SegmentKind::AtomicRequest { .. } => Opcode::AtomicRequest,
            SegmentKind::AtomicResponse { .. } => Opcode::AtomicResponse,
        })
    }

    /// Octets of TRP and DDP headers before the payload, extensions excluded.
    #[inline]
    pub const fn overhead(&self) -> usize {
        match self {
            SegmentKind::Write { .. } | SegmentKind::ReadResponse { .. } => TAGGED_OVERHEAD,
            _ => UNTAGGED_OVERHEAD,
        }
    }
}

/// What one received packet holds beside its TRP header, and where the payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Flags of the packet.
    pub flags: Flags,
    /// What the segment is a part of.
    pub kind: SegmentKind,
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// Where in the datagram the ULP payload of a Write, Read Response or Send begins.
    pub payload_offset: usize,
    /// Length of that payload in octets; 0 for the other kinds.
    pub payload_len: usize,
}

impl Segment {
    /// Reads a packet of a connection: its header and its segment.
    ///
    /// # Errors
    /// See [`ParseError`]. Since an error hides the connection id, use [`TrpHeader::parse`] and
    /// [`Segment::parse_after`] if the peer gets a Terminate.
    #[inline]
    pub fn parse(head: &[u8], datagram_len: usize) -> Result<(TrpHeader, Self), ParseError> {
        let trp = TrpHeader::parse(head, datagram_len)?;
        let segment = Self::parse_after(&trp, head, datagram_len)?;
        Ok((trp, segment))
    }

    /// Reads the rest of a packet whose TRP header `trp` was parsed from the same `head`.
    ///
    /// # Errors
    /// See [`ParseError`]; [`ParseError::PacketType`] for a train, whose segments are read one by
    /// one ([`Segment::parse_at`]).
    #[inline]
    pub fn parse_after(
        trp: &TrpHeader,
        head: &[u8],
        datagram_len: usize,
    ) -> Result<Self, ParseError> {
        let at = trp.len();
        if trp.kind.has_segment() {
            let ddp = head.get(at..).ok_or(ParseError::Truncated)?;
            return Self::parse_at(trp.flags, ddp, at, datagram_len);
        }
        if trp.kind == PacketType::Train {
            return Err(ParseError::PacketType);
        }
        Ok(Self {
            flags: trp.flags,
            kind: SegmentKind::Absent,
            last: true,
            payload_offset: at,
            payload_len: 0,
        })
    }

    /// Reads the segment that lies in a datagram from `at` to `end`, and of which `ddp` holds the
    /// first octets.
    ///
    /// # Errors
    /// See [`ParseError`].
    #[inline]
    pub fn parse_at(flags: Flags, ddp: &[u8], at: usize, end: usize) -> Result<Self, ParseError> {
        let control = *ddp.first().ok_or(ParseError::Truncated)?;
        // RFC5041-4.1-1
        //# The payload of a segment with T set goes into a tagged buffer, that of one with T clear
        //# into an untagged buffer.
        if control & CONTROL_TAGGED != 0 {
            let header = TaggedHeader::parse(ddp)?;
            let payload_offset = at + super::ddp::TAGGED_LEN;
            let payload_len = end
                .checked_sub(payload_offset)
                .ok_or(ParseError::Truncated)?;
            let kind = tagged_kind(&header)?;
            Ok(Self {
                flags,
                kind,
                last: header.last,
                payload_offset,
                payload_len,
            })
        } else {
            let header = UntaggedHeader::parse(ddp)?;
            let payload_offset = at + super::ddp::UNTAGGED_LEN;
            let payload_len = end
                .checked_sub(payload_offset)
                .ok_or(ParseError::Truncated)?;
            let opcode = Opcode::of_control(header.rdmap_control)?;
            let queue = opcode.queue_number().ok_or(ParseError::Opcode)?;
            // RFC5040-4.1-3, RFC5041-7.1-1
            //# Each message has the tagged flag, opcode and queue number of the table in section
            //# 4.1.
            //# An untagged segment is placed only if its queue number, its MSN, and its message
            //# offset and length fit the buffer.
            if header.queue_number != queue as u32 {
                return Err(ParseError::QueueNumber);
            }
            if let Some(kind) = send_kind(opcode, &header, flags) {
                return Ok(Self {
                    flags,
                    kind,
                    last: header.last,
                    payload_offset,
                    payload_len,
                });
            }
            let kind = single_kind(
                opcode,
                &header,
                &ddp[super::ddp::UNTAGGED_LEN..],
                payload_len,
            )?;
            Ok(Self {
                flags,
                kind,
                last: true,
                payload_offset,
                payload_len: 0,
            })
        }
    }
}

#[inline]
fn tagged_kind(header: &TaggedHeader) -> Result<SegmentKind, ParseError> {
    let (stag, offset) = (header.stag, header.offset);
    match Opcode::of_control(header.rdmap_control)? {
        Opcode::Write => Ok(SegmentKind::Write { stag, offset }),
        Opcode::ReadResponse => Ok(SegmentKind::ReadResponse { stag, offset }),
        _ => Err(ParseError::Opcode),
    }
}

/// The kinds that may have several segments and payload.
#[inline]
fn send_kind(opcode: Opcode, header: &UntaggedHeader, flags: Flags) -> Option<SegmentKind> {
    let (solicited, invalidates) = match opcode {
        Opcode::Send => (false, false),
        Opcode::SendInvalidate => (false, true),
        Opcode::SendSolicited => (true, false),
        Opcode::SendSolicitedInvalidate => (true, true),
        _ => return None,
    };
    Some(SegmentKind::Send {
        msn: header.msn,
        offset: header.message_offset,
        solicited,
        invalidate: invalidates.then_some(Stag(header.ulp)),
        // R10-7
        //# **SEND_WITH_IMM.** IMM with opcodes 4 and 6 has no meaning and MUST be ignored.
        immediate: (!invalidates && flags.contains(Flags::IMMEDIATE)).then_some(header.ulp),
    })
}

/// The kinds that are a header of known length in one segment.
#[inline]
pub(super) fn single_kind(
    opcode: Opcode,
    header: &UntaggedHeader,
    body: &[u8],
    body_len: usize,
) -> Result<SegmentKind, ParseError> {
    // R10-4
    //# They MUST have exactly that length, one segment, L set and message offset 0.
    if header.message_offset != 0 {
        return Err(ParseError::MessageOffset);
    }
    if !header.last {
        return Err(ParseError::NotLast);
    }
    // R10-4, RFC5040-4.2-1, RFC7306-6.3-4
    //# They MUST have exactly that length, one segment, L set and message offset 0.
    //# Only the messages that the table in section 4.2 names carry an RDMAP header, and only those
    //# that have none carry payload.
    //# Immediate Data has 8 octets, which the receiver checks.
    let fits = match opcode {
        Opcode::ReadRequest => body_len == rdmap::READ_REQUEST_LEN,
        Opcode::AtomicRequest => body_len == rdmap::ATOMIC_REQUEST_LEN,
        Opcode::AtomicResponse => body_len == rdmap::ATOMIC_RESPONSE_LEN,
        Opcode::Immediate | Opcode::ImmediateSolicited => body_len == rdmap::IMMEDIATE_DATA_LEN,
        _ => body_len >= super::terminate::CONTROL_LEN,
    };
    if !fits {
        return Err(ParseError::MessageLength);
    }
    // A head that is shorter than the datagram may still hold octets of a shorter body.
    let body = &body[..body.len().min(body_len)];
    let msn = header.msn;
    Ok(match opcode {
        Opcode::ReadRequest => SegmentKind::ReadRequest {
            msn,
            request: ReadRequest::parse(body)?,
        },
        Opcode::AtomicRequest => SegmentKind::AtomicRequest {
            msn,
            request: AtomicRequest::parse(body)?,
        },
        Opcode::AtomicResponse => SegmentKind::AtomicResponse {
            msn,
            response: AtomicResponse::parse(body)?,
        },
        Opcode::Immediate => SegmentKind::Immediate {
            msn,
            solicited: false,
            data: ImmediateData::parse(body)?,
        },
        Opcode::ImmediateSolicited => SegmentKind::Immediate {
            msn,
            solicited: true,
            data: ImmediateData::parse(body)?,
        },
        _ => SegmentKind::Terminate {
            msn,
            terminate: Terminate::parse(body)?,
        },
    })
}

/// Writes all headers of a packet to the start of `buf` and returns their length; payload goes
/// right after them.
///
/// `trp.extension_words` and the flag IMM are set here, from `extensions` and `kind`. `last` counts
/// for Writes, Read Responses and Sends; the other messages have one segment.
///
/// # Errors
/// [`EncodeError::NoRoom`].
#[inline]
pub fn encode(
    trp: &TrpHeader,
    extensions: &Extensions,
    kind: &SegmentKind,
    last: bool,
    buf: &mut [u8],
) -> Result<usize, EncodeError> {
    let mut trp = *trp;
    trp.extension_words = extensions.words();
    if let SegmentKind::Send {
        immediate: Some(_), ..
    } = kind
    {
        trp.flags = trp.flags | Flags::IMMEDIATE;
    }
    let at = trp.encode(buf)?;
    if trp.extension_words != 0 {
        extensions.encode(&mut buf[at..])?;
    }
    let at = trp.len();
    let rest = buf.get_mut(at..).ok_or(EncodeError::NoRoom)?;
    // RFC5041-4.4-1
    //# Each segment has a DDP header.
    Ok(at + encode_segment(kind, last, rest)?)
}

/// Writes the headers of a segment of any kind, without payload, to the start of `buf` and returns
/// their length; none when there is no segment.
///
/// # Errors
/// [`EncodeError::NoRoom`].
#[inline]
pub fn encode_segment(
    kind: &SegmentKind,
    last: bool,
    buf: &mut [u8],
) -> Result<usize, EncodeError> {
    // RFC5040-6.1-1
    //# Once RDMA is enabled an end sends RDMAP messages only.
    match *kind {
        SegmentKind::Absent => Ok(0),
        // RFC5040-5.1-1
        //# An RDMA Write is a tagged message.
        SegmentKind::Write { stag, offset } => TaggedHeader {
            last,
            rdmap_control: Opcode::Write.control(),
            stag,
            offset,
        }
        .encode(buf),
        // RFC5040-5.2.2-1
        //# A Read Response is a tagged message, to one tagged buffer.
        SegmentKind::ReadResponse { stag, offset } => TaggedHeader {
            last,
            rdmap_control: Opcode::ReadResponse.control(),
            stag,
            offset,
        }
        .encode(buf),
        SegmentKind::Send {
            msn,
            offset,
            solicited,
            invalidate,
            immediate,
        } => {
            let opcode = match (solicited, invalidate) {
                (false, None) => Opcode::Send,
                (false, Some(_)) => Opcode::SendInvalidate,
                (true, None) => Opcode::SendSolicited,
                (true, Some(_)) => Opcode::SendSolicitedInvalidate,
            };
            // RFC5040-4.1-2, RFC5040-4.1-6
            //# A Send with Invalidate carries the STag in the other four octets that DDP reserves
            //# for the ULP.
            //# The invalidate STag field is 0 in messages that do not invalidate, and the receiver
            //# ignores it; trp.md section 10 makes an exception for Sends with the flag IMM.
            let ulp = invalidate.map(|stag| stag.0).or(immediate).unwrap_or(0);
            // RFC5040-5.3-1
            //# A Send of any kind is an untagged message of queue 0.
            untagged(opcode, QueueNumber::Send, msn, ulp, offset, last).encode(buf)
        }
        SegmentKind::ReadRequest { msn, request } => {
            // RFC5040-5.2.1-1
            //# A Read Request is an untagged message of queue 1.
            let at = single(Opcode::ReadRequest, QueueNumber::Request, msn, buf)?;
            Ok(at + request.encode(&mut buf[at..])?)
        }
        SegmentKind::Terminate { msn, terminate } => {
            // RFC5040-5.4-1
            //# A Terminate is an untagged message of queue 2.
            let at = single(Opcode::Terminate, QueueNumber::Terminate, msn, buf)?;
            Ok(at + terminate.encode(&mut buf[at..])?)
        }
        SegmentKind::Immediate {
            msn,
            solicited,
            data,
        } => {
            let opcode = if solicited {
                Opcode::ImmediateSolicited
            } else {
                Opcode::Immediate
            };
            // RFC7306-6.3-1
            //# Immediate Data is an untagged message of queue 0.
            let at = single(opcode, QueueNumber::Send, msn, buf)?;
            Ok(at + data.encode(&mut buf[at..])?)
        }
        SegmentKind::AtomicRequest { msn, request } => {
            // RFC7306-5.2-1
            //# An Atomic Request is an untagged message of queue 1 (also section 5.2.1).
            let at = single(Opcode::AtomicRequest, QueueNumber::Request, msn, buf)?;
            Ok(at + request.encode(&mut buf[at..])?)
        }
        // RFC7306-5-3
        //# An Atomic Response is an untagged message of queue 3 (also sections 5.2 and 5.2.2).
        SegmentKind::AtomicResponse { msn, response } => {
            let at = single(
                Opcode::AtomicResponse,
                QueueNumber::AtomicResponse,
                msn,
                buf,
            )?;
            Ok(at + response.encode(&mut buf[at..])?)
        }
    }
}

#[inline]
fn single(
    opcode: Opcode,
    queue: QueueNumber,
    msn: Msn,
    buf: &mut [u8],
) -> Result<usize, EncodeError> {
    // RFC5040-4.1-6, RFC7306-4.1-1: no STag is invalidated.
    untagged(opcode, queue, msn, 0, 0, true).encode(buf)
}

#[inline]
fn untagged(
    opcode: Opcode,
    queue: QueueNumber,
    msn: Msn,
    ulp: u32,
    offset: u32,
    last: bool,
) -> UntaggedHeader {
    UntaggedHeader {
        last,
        rdmap_control: opcode.control(),
        ulp,
        queue_number: queue as u32,
        msn,
        message_offset: offset,
    }
}
