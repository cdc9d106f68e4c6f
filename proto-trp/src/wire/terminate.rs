//! RDMAP Terminate (RFC 5040 section 4.8): layout and error codes.

use super::ddp::{self, UNTAGGED_LEN};
use super::error::{EncodeError, ParseError};
use super::rdmap::{Opcode, READ_REQUEST_LEN};
use super::{be16, chunk, chunk_mut, put};

/// Length of the Terminate control field with its reserved bits.
pub const CONTROL_LEN: usize = 4;
/// Length of a Terminate with everything that it may include.
pub const LEN_MAX: usize = CONTROL_LEN + SEGMENT_LEN_LEN + UNTAGGED_LEN + READ_REQUEST_LEN;

/// Positions and bits (RFC 5040 section 4.8).
pub mod field {
    /// Layer (high nibble) and error type (low nibble), then the error code, 2 octets.
    pub const CAUSE: usize = 0;
    /// Header control bits, then reserved ones.
    pub const HEADER_CONTROL: usize = 2;
    /// The DDP segment length, 2 octets, if the DDP header follows it.
    pub const SEGMENT_LEN: usize = 4;
    /// Header control: M, the DDP segment length is valid.
    pub const M: u8 = 0x80;
    /// Header control: D, the DDP header is included.
    pub const D: u8 = 0x40;
    /// Header control: R, the RDMAP header is included.
    pub const R: u8 = 0x20;
}

const SEGMENT_LEN_LEN: usize = 2;

/// Layer, error type and error code of a Terminate: `layer << 12 | type << 8 | code` (RFC 5040
/// section 4.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TerminateCause(u16);

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl TerminateCause {
            $($(#[$doc])* pub const $name: TerminateCause = TerminateCause($value);)*

            /// Every cause that RFC 5040 names.
            pub const ALL: &'static [TerminateCause] = &[$(TerminateCause::$name),*];

            /// What the cause means, for people.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "unknown cause",
                }
            }
        }
    };
}

// RFC5040-4.8-2, RFC5041-7.2-1
causes! {
    /// RDMAP, local catastrophic error.
    RDMAP_CATASTROPHIC = 0x0000, "RDMAP: local catastrophic error";
    /// RDMAP, remote protection error: invalid STag.
    INVALID_STAG = 0x0100, "RDMAP protection: invalid STag";
    /// RDMAP, remote protection error: base or bounds violation.
    BOUNDS = 0x0101, "RDMAP protection: bounds";
    /// RDMAP, remote protection error: access rights violation.
    ACCESS = 0x0102, "RDMAP protection: access rights";
    /// RDMAP, remote protection error: STag not associated with the stream (another protection
    /// domain).
    STAG_NOT_ASSOCIATED = 0x0103, "RDMAP protection: STag of another stream";
    /// RDMAP, remote protection error: tagged offset wraps.
    OFFSET_WRAP = 0x0104, "RDMAP protection: tagged offset wraps";
    /// RDMAP, remote protection error: the STag cannot be invalidated.
    CANNOT_INVALIDATE_PROTECTED = 0x0109, "RDMAP protection: STag cannot be invalidated";
    /// RDMAP, remote protection error: unspecified.
    REMOTE_PROTECTION_UNSPECIFIED = 0x01ff, "RDMAP protection: unspecified";
    /// RDMAP, remote operation error: invalid RDMAP version.
    RDMAP_VERSION = 0x0205, "RDMAP operation: invalid version";
    /// RDMAP, remote operation error: unexpected opcode.
    UNEXPECTED_OPCODE = 0x0206, "RDMAP operation: unexpected opcode";
    /// RDMAP, remote operation error: catastrophic error of this stream.
    STREAM_CATASTROPHIC = 0x0207, "RDMAP operation: catastrophic, this stream";
    /// RDMAP, remote operation error: catastrophic error of all streams.
    GLOBAL_CATASTROPHIC = 0x0208, "RDMAP operation: catastrophic, all streams";
    /// RDMAP, remote operation error: the STag cannot be invalidated.
    CANNOT_INVALIDATE = 0x0209, "RDMAP operation: STag cannot be invalidated";
    /// RDMAP, remote operation error: unspecified.
    REMOTE_OPERATION_UNSPECIFIED = 0x02ff, "RDMAP operation: unspecified";
    /// DDP, local catastrophic error.
    DDP_CATASTROPHIC = 0x1000, "DDP: local catastrophic error";
    /// DDP, tagged buffer error: invalid STag.
    TAGGED_INVALID_STAG = 0x1100, "DDP tagged: invalid STag";
    /// DDP, tagged buffer error: base or bounds violation.
    TAGGED_BOUNDS = 0x1101, "DDP tagged: bounds";
    /// DDP, tagged buffer error: STag not associated with the stream.
    TAGGED_NOT_ASSOCIATED = 0x1102, "DDP tagged: STag of another stream";
    /// DDP, tagged buffer error: tagged offset wraps.
    TAGGED_OFFSET_WRAP = 0x1103, "DDP tagged: tagged offset wraps";
    /// DDP, tagged buffer error: invalid DDP version.
    TAGGED_VERSION = 0x1104, "DDP tagged: invalid version";
    /// DDP, untagged buffer error: invalid queue number.
    INVALID_QUEUE_NUMBER = 0x1201, "DDP untagged: invalid queue number";
    /// DDP, untagged buffer error: no buffer available.
    NO_BUFFER = 0x1202, "DDP untagged: no buffer";
    /// DDP, untagged buffer error: message sequence number out of range.
    MSN_OUT_OF_RANGE = 0x1203, "DDP untagged: MSN out of range";
    /// DDP, untagged buffer error: invalid message offset.
    INVALID_MESSAGE_OFFSET = 0x1204, "DDP untagged: invalid message offset";
    /// DDP, untagged buffer error: message too long for the buffer.
    MESSAGE_TOO_LONG = 0x1205, "DDP untagged: message too long";
    /// DDP, untagged buffer error: invalid DDP version.
    UNTAGGED_VERSION = 0x1206, "DDP untagged: invalid version";
}

impl TerminateCause {
    /// The cause as received; a cause that the RFC does not name is kept.
    #[inline]
    pub const fn from_u16(value: u16) -> Self {
        Self(value)
    }

    /// Layer, type and code as on the wire.
    #[inline]
    pub const fn to_u16(self) -> u16 {
        self.0
    }

    /// The layer that found the error: 0 RDMAP, 1 DDP, 2 the layer below.
    #[inline]
    pub const fn layer(self) -> u8 {
        self.0.to_be_bytes()[0] >> 4
    }

    /// The error type; its meaning depends on the layer.
    #[inline]
    pub const fn error_type(self) -> u8 {
        self.0.to_be_bytes()[0] & 0x0f
    }

    /// The error code; its meaning depends on layer and type.
    #[inline]
    pub const fn code(self) -> u8 {
        self.0.to_be_bytes()[1]
    }

    /// Whether the peer refuses access to its memory: verbs report IBV_WC_REM_ACCESS_ERR.
    #[inline]
    pub const fn is_access_error(self) -> bool {
        // Remote protection errors of RDMAP and tagged buffer errors of DDP, but for a wrong
        // version.
        matches!(self.0, 0x0100..=0x01ff | 0x1100..=0x1103)
    }
}

impl std::fmt::Debug for TerminateCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TerminateCause({:#06x}: {})", self.0, self.name())
    }
}

/// The DDP header of the segment that a Terminate is about, as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminatedDdp {
    /// A tagged header.
    Tagged([u8; ddp::TAGGED_LEN]),
    /// An untagged header.
    Untagged([u8; ddp::UNTAGGED_LEN]),
}

impl TerminatedDdp {
    fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let control = octets.first().ok_or(ParseError::Truncated)?;
        Ok(if control & ddp::CONTROL_TAGGED != 0 {
            TerminatedDdp::Tagged(*chunk(octets, 0)?)
        } else {
            TerminatedDdp::Untagged(*chunk(octets, 0)?)
        })
    }

    /// The octets of the header.
    pub fn octets(&self) -> &[u8] {
        match self {
            TerminatedDdp::Tagged(octets) => octets,
            TerminatedDdp::Untagged(octets) => octets,
        }
    }
}

/// Terminate (RFC 5040 section 4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// What went wrong.
    pub cause: TerminateCause,
    /// Length of the offending DDP segment, valid (bit M) when there is one, and its DDP header
    /// (bit D).
    pub ddp: Option<(u16, TerminatedDdp)>,
    /// The RDMAP header of the offending segment, if it was a Read Request (bit R).
    pub read_request: Option<[u8; READ_REQUEST_LEN]>,
}

impl Terminate {
    /// A Terminate that is about no segment.
    pub const fn new(cause: TerminateCause) -> Self {
        Self {
            cause,
            ddp: None,
            read_request: None,
        }
    }

    /// A Terminate about a segment received: `segment` begins with its DDP header, `segment_len` is
    /// all of it.
    ///
    /// The headers are included as far as they are in `segment`. A tagged header is left out of
    /// errors other than protection and tagged buffer errors, where decoders (Wireshark 4.0) expect
    /// an untagged one.
    pub fn about(cause: TerminateCause, segment: &[u8], segment_len: usize) -> Self {
        let Ok(header) = TerminatedDdp::parse(segment) else {
            return Self::new(cause);
        };
        // R11-4
        if matches!(header, TerminatedDdp::Tagged(_)) && cause.error_type() != 1 {
            return Self::new(cause);
        }
        let is_read = header.octets()[ddp::tagged::RDMAP_CONTROL] == Opcode::ReadRequest.control();
        // R11-3
        let read_request = match header {
            TerminatedDdp::Untagged(_) if is_read => chunk(segment, UNTAGGED_LEN).ok().copied(),
            _ => None,
        };
        Self {
            cause,
            ddp: Some((u16::try_from(segment_len).unwrap_or(u16::MAX), header)),
            read_request,
        }
    }

    /// Reads the Terminate at the start of `octets`; what follows the headers it includes is
    /// ignored.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn parse(octets: &[u8]) -> Result<Self, ParseError> {
        let control: &[u8; CONTROL_LEN] = chunk(octets, 0)?;
        let bits = control[field::HEADER_CONTROL];
        let mut at = field::SEGMENT_LEN;
        let mut terminate = Self::new(TerminateCause(be16(control, field::CAUSE)));
        if bits & field::D != 0 {
            let segment_len = u16::from_be_bytes(*chunk(octets, at)?);
            let header = TerminatedDdp::parse(&octets[at + SEGMENT_LEN_LEN..])?;
            at += SEGMENT_LEN_LEN + header.octets().len();
            terminate.ddp = Some((if bits & field::M != 0 { segment_len } else { 0 }, header));
        }
        if bits & field::R != 0 {
            terminate.read_request = Some(*chunk(octets, at)?);
        }
        Ok(terminate)
    }

    /// Writes the Terminate to the start of `buf` and returns its length.
    ///
    /// # Errors
    /// [`EncodeError::NoRoom`].
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, EncodeError> {
        // RFC5040-4.8-1
        let mut bits = 0;
        let mut at = field::SEGMENT_LEN;
        if let Some((segment_len, header)) = &self.ddp {
            // R11-3, RFC5040-4.8-4
            bits |= field::M | field::D;
            put(
                chunk_mut::<SEGMENT_LEN_LEN>(buf, at)?,
                0,
                segment_len.to_be_bytes(),
            );
            at = copy(buf, at + SEGMENT_LEN_LEN, header.octets())?;
        }
        if let Some(read_request) = &self.read_request {
            // R11-3, RFC5040-4.8-4
            bits |= field::R;
            at = copy(buf, at, read_request)?;
        }
        let control: &mut [u8; CONTROL_LEN] = chunk_mut(buf, 0)?;
        put(control, field::CAUSE, self.cause.0.to_be_bytes());
        // RFC5040-4.8-3
        put(control, field::HEADER_CONTROL, [bits, 0]);
        Ok(at)
    }
}

/// Copies `octets` to `at` and returns where they end.
fn copy(buf: &mut [u8], at: usize, octets: &[u8]) -> Result<usize, EncodeError> {
    let end = at + octets.len();
    buf.get_mut(at..end)
        .ok_or(EncodeError::NoRoom)?
        .copy_from_slice(octets);
    Ok(end)
}
