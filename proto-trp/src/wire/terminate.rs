//! RDMAP Terminate (RFC 5040 section 4.8): the layout.

use super::ddp::{self, UNTAGGED_LEN};
use super::error::{EncodeError, ParseError};
use super::octets::{be16, chunk, chunk_mut, put};
use super::rdmap::{Opcode, READ_REQUEST_LEN};

pub use super::cause::TerminateCause;

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
        //# As an exception, a tagged header MUST be left out of error types other than 1, since
        //# Wireshark 4.0 expects 18 octets there.
        if matches!(header, TerminatedDdp::Tagged(_)) && cause.error_type() != 1 {
            return Self::new(cause);
        }
        let is_read = header.octets()[ddp::tagged::RDMAP_CONTROL] == Opcode::ReadRequest.control();
        // R11-3
        //# **Format.** The Terminate MUST include the length and the DDP header of the offending
        //# segment (bits M and D), and the RDMAP header of a Read Request (bit R), as RFC 5040
        //# section 4.8 lays out:
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
        let mut terminate = Self::new(TerminateCause::from_u16(be16(control, field::CAUSE)));
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
        //# A Terminate has the header of section 4.8: layer, type, code, and the bits M, D and R.
        let mut bits = 0;
        let mut at = field::SEGMENT_LEN;
        if let Some((segment_len, header)) = &self.ddp {
            // R11-3, RFC5040-4.8-4
            //# **Format.** The Terminate MUST include the length and the DDP header of the
            //# offending segment (bits M and D), and the RDMAP header of a Read Request (bit R), as
            //# RFC 5040 section 4.8 lays out:
            //# The DDP segment length is valid if bit M is set and present if bit D is set, as is
            //# the DDP header then; the RDMAP header is present if bit R is set.
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
            //# **Format.** The Terminate MUST include the length and the DDP header of the
            //# offending segment (bits M and D), and the RDMAP header of a Read Request (bit R), as
            //# RFC 5040 section 4.8 lays out:
            //# The DDP segment length is valid if bit M is set and present if bit D is set, as is
            //# the DDP header then; the RDMAP header is present if bit R is set.
            bits |= field::R;
            at = copy(buf, at, read_request)?;
        }
        let control: &mut [u8; CONTROL_LEN] = chunk_mut(buf, 0)?;
        put(control, field::CAUSE, self.cause.to_u16().to_be_bytes());
        // RFC5040-4.8-3
        //# The reserved bits of a Terminate are sent as 0 and ignored on receipt.
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
