//! DDP segment headers (RFC 5041 section 4), with the RDMAP control field (RFC 5040 section 4.1)
//! that they carry.

use super::error::{EncodeError, ParseError};
use super::octets::{be32, be64, chunk, chunk_mut, put};

/// DDP control, first octet: the segment is tagged (RFC 5041 section 4.1).
pub const CONTROL_TAGGED: u8 = 0x80;
/// DDP control: the last segment of its message.
pub const CONTROL_LAST: u8 = 0x40;
/// DDP control: mask of the version.
pub const CONTROL_VERSION_MASK: u8 = 0x03;
/// The DDP version (RFC 5041 section 4.1).
pub const VERSION: u8 = 1;

/// RDMAP control, second octet: mask of the version (RFC 5040 section 4.1).
pub const RDMAP_VERSION_MASK: u8 = 0xc0;
/// The RDMAP version 1 in its position.
pub const RDMAP_VERSION: u8 = 0x40;
/// RDMAP control: mask of the opcode.
pub const RDMAP_OPCODE_MASK: u8 = 0x0f;

/// Length of a tagged header (RFC 5041 section 4.2).
pub const TAGGED_LEN: usize = 14;
/// Length of an untagged header (RFC 5041 section 4.3).
pub const UNTAGGED_LEN: usize = 18;

/// Positions in both headers and in the tagged one (RFC 5041 section 4.2).
pub mod tagged {
    /// DDP control.
    pub const CONTROL: usize = 0;
    /// RDMAP control: the octet that DDP reserves for the ULP.
    pub const RDMAP_CONTROL: usize = 1;
    /// Steering tag, 4 octets.
    pub const STAG: usize = 2;
    /// Tagged offset, 8 octets.
    pub const OFFSET: usize = 6;
}

/// Positions in the untagged header (RFC 5041 section 4.3).
pub mod untagged {
    /// The other 4 octets that DDP reserves for the ULP: the STag to invalidate, or with flag IMM
    /// the immediate data.
    pub const ULP: usize = 2;
    /// Queue number, 4 octets.
    pub const QUEUE_NUMBER: usize = 6;
    /// Message sequence number, 4 octets.
    pub const MSN: usize = 10;
    /// Message offset, 4 octets.
    pub const MESSAGE_OFFSET: usize = 14;
}

/// Steering tag: names a memory region or window of the receiver (verbs: rkey).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stag(pub u32);

/// Tagged offset: where in the memory that a [`Stag`] names (verbs: the virtual address).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaggedOffset(pub u64);

/// Message sequence number of a DDP queue: 32 bits, serial arithmetic, the first is 1 (RFC 5041
/// section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(pub u32);

impl Msn {
    /// The number of the first message of a stream.
    pub const FIRST: Msn = Msn(1);

    /// The next message.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        // RFC5041-4.3-3
        //# The MSN of a queue begins with 1, grows by one for each message, and wraps to 0.
        Self(self.0.wrapping_add(1))
    }

    /// How many messages `self` is after `earlier`; negative when it is before it.
    #[inline]
    pub const fn distance(self, earlier: Msn) -> i32 {
        i32::from_ne_bytes(self.0.wrapping_sub(earlier.0).to_ne_bytes())
    }
}

/// Queue number of an untagged buffer queue (RFC 5040 section 4.2, RFC 7306 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QueueNumber {
    /// Sends and Immediate Data.
    Send = 0,
    /// Read Requests and Atomic Requests.
    Request = 1,
    /// Terminate.
    Terminate = 2,
    /// Atomic Responses.
    AtomicResponse = 3,
}

/// Header of a tagged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// Whether this is the last segment of its message.
    pub last: bool,
    /// RDMAP control octet: version and opcode.
    pub rdmap_control: u8,
    /// Steering tag.
    pub stag: Stag,
    /// Tagged offset of the segment's first payload octet.
    pub offset: TaggedOffset,
}

impl TaggedHeader {
    /// Parses the header at the start of `octets`, whose DDP control says that it is tagged.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::TaggedDdpVersion`].
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let octets: &[u8; TAGGED_LEN] = chunk(octets, 0)?;
        let control = octets[tagged::CONTROL];
        // R10-2, RFC5041-4.1-3: the reserved bits are not checked.
        if control & CONTROL_VERSION_MASK != VERSION {
            return Err(ParseError::TaggedDdpVersion);
        }
        Ok(Self {
            last: control & CONTROL_LAST != 0,
            rdmap_control: octets[tagged::RDMAP_CONTROL],
            stag: Stag(be32(octets, tagged::STAG)),
            offset: TaggedOffset(be64(octets, tagged::OFFSET)),
        })
    }

    /// Writes the header to the start of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        // RFC5041-4.2-1
        //# A tagged segment has the header of section 4.2.
        let octets: &mut [u8; TAGGED_LEN] = chunk_mut(buf, 0)?;
        // R10-1, RFC5041-4.1-3, RFC5041-4.1-4
        //# **All messages.** A sender MUST set reserved bits to 0, and a receiver MUST ignore them.
        //# The reserved bits of the DDP control field are sent as 0 and not checked.
        //# The DDP version is 1 in each segment.
        octets[tagged::CONTROL] = CONTROL_TAGGED | last_bit(self.last) | VERSION;
        octets[tagged::RDMAP_CONTROL] = self.rdmap_control;
        put(octets, tagged::STAG, self.stag.0.to_be_bytes());
        put(octets, tagged::OFFSET, self.offset.0.to_be_bytes());
        Ok(TAGGED_LEN)
    }
}

/// Header of an untagged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// Whether this is the last segment of its message.
    pub last: bool,
    /// RDMAP control octet: version and opcode.
    pub rdmap_control: u8,
    /// The field reserved for the ULP: the STag to invalidate, the immediate data of a Send, or 0.
    pub ulp: u32,
    /// Queue number as received; [`QueueNumber`] lists those that exist.
    pub queue_number: u32,
    /// Number of the message in its queue.
    pub msn: Msn,
    /// Offset of the segment's first payload octet in the message.
    pub message_offset: u32,
}

impl UntaggedHeader {
    /// Parses the header at the start of `octets`, whose DDP control says that it is untagged.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::UntaggedDdpVersion`].
    #[inline]
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let octets: &[u8; UNTAGGED_LEN] = chunk(octets, 0)?;
        let control = octets[tagged::CONTROL];
        // R10-2, RFC5041-4.1-3: the reserved bits are not checked.
        if control & CONTROL_VERSION_MASK != VERSION {
            return Err(ParseError::UntaggedDdpVersion);
        }
        Ok(Self {
            last: control & CONTROL_LAST != 0,
            rdmap_control: octets[tagged::RDMAP_CONTROL],
            ulp: be32(octets, untagged::ULP),
            queue_number: be32(octets, untagged::QUEUE_NUMBER),
            msn: Msn(be32(octets, untagged::MSN)),
            message_offset: be32(octets, untagged::MESSAGE_OFFSET),
        })
    }

    /// Writes the header to the start of `buf`.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        // RFC5041-4.3-1
        //# An untagged segment has the header of section 4.3.
        let octets: &mut [u8; UNTAGGED_LEN] = chunk_mut(buf, 0)?;
        // R10-1, RFC5041-4.1-3, RFC5041-4.1-4
        //# **All messages.** A sender MUST set reserved bits to 0, and a receiver MUST ignore them.
        //# The reserved bits of the DDP control field are sent as 0 and not checked.
        //# The DDP version is 1 in each segment.
        octets[tagged::CONTROL] = last_bit(self.last) | VERSION;
        octets[tagged::RDMAP_CONTROL] = self.rdmap_control;
        put(octets, untagged::ULP, self.ulp.to_be_bytes());
        put(
            octets,
            untagged::QUEUE_NUMBER,
            self.queue_number.to_be_bytes(),
        );
        put(octets, untagged::MSN, self.msn.0.to_be_bytes());
        put(
            octets,
            untagged::MESSAGE_OFFSET,
            self.message_offset.to_be_bytes(),
        );
        Ok(UNTAGGED_LEN)
    }
}

#[inline]
const fn last_bit(last: bool) -> u8 {
    if last {
        CONTROL_LAST
    } else {
        0
    }
}
