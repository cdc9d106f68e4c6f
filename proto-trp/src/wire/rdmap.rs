//! RDMAP opcodes and the headers that follow DDP's (RFC 5040 section 4, RFC 7306 sections 5 and 6).

use super::ddp::{
    QueueNumber, Stag, TaggedOffset, RDMAP_OPCODE_MASK, RDMAP_VERSION, RDMAP_VERSION_MASK,
};
use super::error::{EncodeError, ParseError};
use super::octets::{be32, be64, chunk, chunk_mut, put};

/// Length of a Read Request header (RFC 5040 section 4.4).
pub const READ_REQUEST_LEN: usize = 28;
/// Length of an Atomic Request header (RFC 7306 section 5.2.1).
pub const ATOMIC_REQUEST_LEN: usize = 52;
/// Length of an Atomic Response header (RFC 7306 section 5.2.2).
pub const ATOMIC_RESPONSE_LEN: usize = 12;
/// Length of the payload of Immediate Data (RFC 7306 section 6.2).
pub const IMMEDIATE_DATA_LEN: usize = 8;

/// Positions in the Read Request header (RFC 5040 section 4.4).
pub mod read_request {
    /// Data sink STag, 4 octets.
    pub const SINK_STAG: usize = 0;
    /// Data sink tagged offset, 8 octets.
    pub const SINK_OFFSET: usize = 4;
    /// RDMA Read message size, 4 octets.
    pub const SIZE: usize = 12;
    /// Data source STag, 4 octets.
    pub const SOURCE_STAG: usize = 16;
    /// Data source tagged offset, 8 octets.
    pub const SOURCE_OFFSET: usize = 20;
}

/// Positions in the Atomic Request header (RFC 7306 section 5.2.1).
pub mod atomic_request {
    /// 28 reserved bits and the atomic opcode in the low 4, 4 octets.
    pub const OPERATION: usize = 0;
    /// Request identifier, 4 octets.
    pub const REQUEST_ID: usize = 4;
    /// Remote STag, 4 octets.
    pub const STAG: usize = 8;
    /// Remote tagged offset, 8 octets.
    pub const OFFSET: usize = 12;
    /// Add or swap data, 8 octets.
    pub const ADD_OR_SWAP: usize = 20;
    /// Add or swap mask, 8 octets.
    pub const ADD_OR_SWAP_MASK: usize = 28;
    /// Compare data, 8 octets.
    pub const COMPARE: usize = 36;
    /// Compare mask, 8 octets.
    pub const COMPARE_MASK: usize = 44;
}

/// Positions in the Atomic Response header (RFC 7306 section 5.2.2).
pub mod atomic_response {
    /// Original request identifier, 4 octets.
    pub const REQUEST_ID: usize = 0;
    /// Original remote data value, 8 octets.
    pub const ORIGINAL: usize = 4;
}

/// Positions in the payload of Immediate Data (RFC 7306 section 6.2; its two halves are our own
/// use).
pub mod immediate_data {
    /// The 32-bit immediate of verbs, 4 octets.
    pub const IMMEDIATE: usize = 0;
    /// Length of the RDMA Write that the message completes, 4 octets.
    pub const WRITE_LEN: usize = 4;
}

/// RDMAP opcode (RFC 5040 section 4.3, RFC 7306 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0x0,
    /// RDMA Read Request.
    ReadRequest = 0x1,
    /// RDMA Read Response.
    ReadResponse = 0x2,
    /// Send.
    Send = 0x3,
    /// Send with Invalidate.
    SendInvalidate = 0x4,
    /// Send with Solicited Event.
    SendSolicited = 0x5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 0x6,
    /// Terminate.
    Terminate = 0x7,
    /// Immediate Data.
    Immediate = 0x8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 0x9,
    /// Atomic Request.
    AtomicRequest = 0xa,
    /// Atomic Response.
    AtomicResponse = 0xb,
}

impl Opcode {
    /// Every opcode in ascending order.
    pub const ALL: [Opcode; 12] = [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
        Opcode::Immediate,
        Opcode::ImmediateSolicited,
        Opcode::AtomicRequest,
        Opcode::AtomicResponse,
    ];

    /// The opcode of an RDMAP control octet.
    ///
    /// # Errors
    /// [`ParseError::RdmapVersion`], [`ParseError::Opcode`].
    #[inline]
    pub const fn of_control(control: u8) -> Result<Self, ParseError> {
        // RFC5040-4.1-4, RFC5040-7.2-1, RFC7306-8.2-1
        //# The RDMAP version is 1.
        //# The receiver checks the DDP header, the opcode and the RDMAP version of each message.
        //# The receiver checks the DDP header, the opcode and the RDMAP version of each message.
        if control & RDMAP_VERSION_MASK != RDMAP_VERSION {
            return Err(ParseError::RdmapVersion);
        }
        // RFC5040-4.1-5: the reserved bits are not checked.
        Ok(match control & RDMAP_OPCODE_MASK {
            0x0 => Opcode::Write,
            0x1 => Opcode::ReadRequest,
            0x2 => Opcode::ReadResponse,
            0x3 => Opcode::Send,
            0x4 => Opcode::SendInvalidate,
            0x5 => Opcode::SendSolicited,
            0x6 => Opcode::SendSolicitedInvalidate,
            0x7 => Opcode::Terminate,
            0x8 => Opcode::Immediate,
            0x9 => Opcode::ImmediateSolicited,
            0xa => Opcode::AtomicRequest,
            0xb => Opcode::AtomicResponse,
            // RFC5040-7.2-1, RFC7306-8.2-1
            //# The receiver checks the DDP header, the opcode and the RDMAP version of each
            //# message.
            //# The receiver checks the DDP header, the opcode and the RDMAP version of each
            //# message.
            _ => return Err(ParseError::Opcode),
        })
    }

    /// The RDMAP control octet.
    #[inline]
    pub const fn control(self) -> u8 {
        // RFC5040-4.1-1, RFC5040-4.1-4, RFC5040-4.1-5
        //# The octet that DDP reserves for the ULP carries the RDMAP control field: version,
        //# reserved bits, opcode.
        //# The RDMAP version is 1.
        //# The reserved bits of the control field are sent as 0 and ignored on receipt.
        RDMAP_VERSION | self as u8
    }

    /// The queue of an untagged opcode; `None` for the tagged ones (RFC 5040 section 4.2, RFC 7306
    /// section 4).
    #[inline]
    pub const fn queue_number(self) -> Option<QueueNumber> {
        // RFC5040-4.1-3
        //# Each message has the tagged flag, opcode and queue number of the table in section 4.1.
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited => Some(QueueNumber::Send),
            Opcode::ReadRequest | Opcode::AtomicRequest => Some(QueueNumber::Request),
            Opcode::Terminate => Some(QueueNumber::Terminate),
            Opcode::AtomicResponse => Some(QueueNumber::AtomicResponse),
        }
    }
}

/// RDMA Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where the requester wants the data: its STag.
    pub sink_stag: Stag,
    /// Where the requester wants the data: its offset.
    pub sink_offset: TaggedOffset,
    /// Octets to read.
    pub len_octets: u32,
    /// Memory to read from.
    pub source_stag: Stag,
    /// Where to read in that memory.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Reads the header at the start of `octets`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let octets: &[u8; READ_REQUEST_LEN] = chunk(octets, 0)?;
        Ok(Self {
            sink_stag: Stag(be32(octets, read_request::SINK_STAG)),
            sink_offset: TaggedOffset(be64(octets, read_request::SINK_OFFSET)),
            len_octets: be32(octets, read_request::SIZE),
            source_stag: Stag(be32(octets, read_request::SOURCE_STAG)),
            source_offset: TaggedOffset(be64(octets, read_request::SOURCE_OFFSET)),
        })
    }

    /// Writes the header to the start of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        // RFC5040-4.4-1
        //# A Read Request has the header of section 4.4.
        let octets: &mut [u8; READ_REQUEST_LEN] = chunk_mut(buf, 0)?;
        put(
            octets,
            read_request::SINK_STAG,
            self.sink_stag.0.to_be_bytes(),
        );
        put(
            octets,
            read_request::SINK_OFFSET,
            self.sink_offset.0.to_be_bytes(),
        );
        put(octets, read_request::SIZE, self.len_octets.to_be_bytes());
        put(
            octets,
            read_request::SOURCE_STAG,
            self.source_stag.0.to_be_bytes(),
        );
        put(
            octets,
            read_request::SOURCE_OFFSET,
            self.source_offset.0.to_be_bytes(),
        );
        Ok(READ_REQUEST_LEN)
    }
}

/// What an Atomic Request does to the 64-bit value (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds; a set bit of `mask` ends a field of the value, so that no carry leaves it. Mask 0 adds
    /// all 64 bits.
    FetchAdd {
        /// What is added.
        add: u64,
        /// Field boundaries.
        mask: u64,
    },
    /// Swaps the bits of `swap_mask` if the bits of `compare_mask` are equal.
    CompareSwap {
        /// The new bits.
        swap: u64,
        /// Which bits are replaced.
        swap_mask: u64,
        /// What the value is compared with.
        compare: u64,
        /// Which bits are compared.
        compare_mask: u64,
    },
    /// Replaces the value, which requires the right to write only and does not return the old value
    /// (TRP's own; verbs: ATOMIC_WRITE).
    Write {
        /// The new value, as it lies in memory.
        octets: [u8; 8],
    },
}

/// Atomic opcode of Write, which RFC 7306 does not have.
const ATOMIC_WRITE: u32 = 15;
/// Atomic opcode of FetchAdd.
const ATOMIC_FETCH_ADD: u32 = 0;
/// Atomic opcode of CmpSwap.
const ATOMIC_COMPARE_SWAP: u32 = 2;

/// Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Identifies the request; the response repeats it.
    pub request_id: u32,
    /// Memory of the value.
    pub stag: Stag,
    /// Where in that memory.
    pub offset: TaggedOffset,
    /// What to do.
    pub operation: AtomicOperation,
}

impl AtomicRequest {
    /// Reads the header at the start of `octets`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::AtomicOperation`].
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let octets: &[u8; ATOMIC_REQUEST_LEN] = chunk(octets, 0)?;
        let data = be64(octets, atomic_request::ADD_OR_SWAP);
        let mask = be64(octets, atomic_request::ADD_OR_SWAP_MASK);
        // RFC7306-5-2
        //# FetchAdd and CmpSwap are both implemented (also section 5.2.1).
        let operation = match be32(octets, atomic_request::OPERATION) & 0x0f {
            ATOMIC_FETCH_ADD => AtomicOperation::FetchAdd { add: data, mask },
            ATOMIC_COMPARE_SWAP => AtomicOperation::CompareSwap {
                swap: data,
                swap_mask: mask,
                compare: be64(octets, atomic_request::COMPARE),
                compare_mask: be64(octets, atomic_request::COMPARE_MASK),
            },
            ATOMIC_WRITE => AtomicOperation::Write {
                octets: data.to_be_bytes(),
            },
            // RFC7306-5.2.1-3
            //# An atomic operation that the responder does not support is an error.
            _ => return Err(ParseError::AtomicOperation),
        };
        Ok(Self {
            request_id: be32(octets, atomic_request::REQUEST_ID),
            stag: Stag(be32(octets, atomic_request::STAG)),
            offset: TaggedOffset(be64(octets, atomic_request::OFFSET)),
            operation,
        })
    }

    /// Writes the header to the start of `buf`; fields that the operation does not use are 0.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        let octets: &mut [u8; ATOMIC_REQUEST_LEN] = chunk_mut(buf, 0)?;
        let (operation, data, mask, compare, compare_mask) = match self.operation {
            AtomicOperation::FetchAdd { add, mask } => (ATOMIC_FETCH_ADD, add, mask, 0, 0),
            AtomicOperation::CompareSwap {
                swap,
                swap_mask,
                compare,
                compare_mask,
            } => (ATOMIC_COMPARE_SWAP, swap, swap_mask, compare, compare_mask),
            AtomicOperation::Write { octets } => {
                (ATOMIC_WRITE, u64::from_be_bytes(octets), u64::MAX, 0, 0)
            }
        };
        put(octets, atomic_request::OPERATION, operation.to_be_bytes());
        put(
            octets,
            atomic_request::REQUEST_ID,
            self.request_id.to_be_bytes(),
        );
        put(octets, atomic_request::STAG, self.stag.0.to_be_bytes());
        put(octets, atomic_request::OFFSET, self.offset.0.to_be_bytes());
        put(octets, atomic_request::ADD_OR_SWAP, data.to_be_bytes());
        put(octets, atomic_request::ADD_OR_SWAP_MASK, mask.to_be_bytes());
        put(octets, atomic_request::COMPARE, compare.to_be_bytes());
        put(
            octets,
            atomic_request::COMPARE_MASK,
            compare_mask.to_be_bytes(),
        );
        Ok(ATOMIC_REQUEST_LEN)
    }
}

/// Atomic Response (RFC 7306 section 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The identifier of the request.
    pub request_id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Reads the header at the start of `octets`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let octets: &[u8; ATOMIC_RESPONSE_LEN] = chunk(octets, 0)?;
        Ok(Self {
            request_id: be32(octets, atomic_response::REQUEST_ID),
            original: be64(octets, atomic_response::ORIGINAL),
        })
    }

    /// Writes the header to the start of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        let octets: &mut [u8; ATOMIC_RESPONSE_LEN] = chunk_mut(buf, 0)?;
        put(
            octets,
            atomic_response::REQUEST_ID,
            self.request_id.to_be_bytes(),
        );
        put(
            octets,
            atomic_response::ORIGINAL,
            self.original.to_be_bytes(),
        );
        Ok(ATOMIC_RESPONSE_LEN)
    }
}

/// Payload of Immediate Data: completes the RDMA Write before it (doc/spec/trp.md, section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmediateData {
    /// The 32-bit immediate of verbs.
    pub immediate: u32,
    /// Length in octets of the RDMA Write message before it.
    pub write_len_octets: u32,
}

impl ImmediateData {
    /// Reads the payload at the start of `octets`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let octets: &[u8; IMMEDIATE_DATA_LEN] = chunk(octets, 0)?;
        Ok(Self {
            immediate: be32(octets, immediate_data::IMMEDIATE),
            write_len_octets: be32(octets, immediate_data::WRITE_LEN),
        })
    }

    /// Writes the payload to the start of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        let octets: &mut [u8; IMMEDIATE_DATA_LEN] = chunk_mut(buf, 0)?;
        put(
            octets,
            immediate_data::IMMEDIATE,
            self.immediate.to_be_bytes(),
        );
        put(
            octets,
            immediate_data::WRITE_LEN,
            self.write_len_octets.to_be_bytes(),
        );
        Ok(IMMEDIATE_DATA_LEN)
    }
}
