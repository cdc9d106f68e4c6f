//! The causes of a Terminate (RFC 5040 section 4.8).

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
//# Layer, type and code of a Terminate are among those of the table in section 4.8.
//# Errors have the types and codes of section 7.2.
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
