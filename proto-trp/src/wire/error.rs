//! Parse errors, in the classes that a receiver counts.

use super::cause::TerminateCause;

/// Why a received packet was refused.
///
/// Errors of the first group make the datagram an invalid TRP packet: it is counted and dropped.
/// Those of the second group are an invalid DDP segment in a valid TRP packet: if the connection id
/// is right, the peer is at fault and gets a Terminate ([`ParseError::terminate_cause`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ParseError {
    /// The datagram ends within a header.
    Truncated,
    /// A TRP version other than 1.
    Version,
    /// A TRP type that version 1 does not have.
    PacketType,
    /// A connection-management packet where a connection's packet was expected.
    ConnectionManagement,
    /// A receive window of 0.
    Window,
    /// More extension octets than allowed, or an extension that ends outside them.
    Extension,
    /// Octets after a packet that has no segment.
    Trailing,
    /// A table of a train that does not agree with its packet.
    Train,

    /// A tagged segment with a DDP version other than 1.
    TaggedDdpVersion,
    /// An untagged segment with a DDP version other than 1.
    UntaggedDdpVersion,
    /// An RDMAP version other than 1.
    RdmapVersion,
    /// An opcode that does not exist, or a tagged one in an untagged segment or the reverse.
    Opcode,
    /// A queue number that does not belong to the opcode.
    QueueNumber,
    /// A message offset other than 0 in a message that has one segment only.
    MessageOffset,
    /// A message of one segment that is not marked as the last.
    NotLast,
    /// A message of fixed length with more or fewer octets.
    MessageLength,
    /// An atomic operation that does not exist.
    AtomicOperation,
}

impl ParseError {
    /// The number of reasons, for tables of counters.
    pub const COUNT: usize = ParseError::AtomicOperation as usize + 1;

    /// Every reason in the order of [`ParseError::index`].
    pub const ALL: [ParseError; ParseError::COUNT] = [
        ParseError::Truncated,
        ParseError::Version,
        ParseError::PacketType,
        ParseError::ConnectionManagement,
        ParseError::Window,
        ParseError::Extension,
        ParseError::Trailing,
        ParseError::Train,
        ParseError::TaggedDdpVersion,
        ParseError::UntaggedDdpVersion,
        ParseError::RdmapVersion,
        ParseError::Opcode,
        ParseError::QueueNumber,
        ParseError::MessageOffset,
        ParseError::NotLast,
        ParseError::MessageLength,
        ParseError::AtomicOperation,
    ];

    /// Index into a table of [`ParseError::COUNT`] counters.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name of the counter.
    pub const fn name(self) -> &'static str {
        match self {
            ParseError::Truncated => "truncated",
            ParseError::Version => "trp_version",
            ParseError::PacketType => "trp_type",
            ParseError::ConnectionManagement => "connection_management",
            ParseError::Window => "zero_window",
            ParseError::Extension => "extension",
            ParseError::Trailing => "trailing_octets",
            ParseError::Train => "train",
            ParseError::TaggedDdpVersion => "tagged_ddp_version",
            ParseError::UntaggedDdpVersion => "untagged_ddp_version",
            ParseError::RdmapVersion => "rdmap_version",
            ParseError::Opcode => "opcode",
            ParseError::QueueNumber => "queue_number",
            ParseError::MessageOffset => "message_offset",
            ParseError::NotLast => "not_last",
            ParseError::MessageLength => "message_length",
            ParseError::AtomicOperation => "atomic_operation",
        }
    }

    /// The cause of the Terminate that the peer gets, if the packet's connection id was right.
    ///
    /// `None` for packets that are dropped silently.
    pub const fn terminate_cause(self) -> Option<TerminateCause> {
        match self {
            ParseError::Truncated
            | ParseError::Version
            | ParseError::PacketType
            | ParseError::ConnectionManagement
            | ParseError::Window
            | ParseError::Extension
            | ParseError::Trailing
            | ParseError::Train => None,
            ParseError::TaggedDdpVersion => Some(TerminateCause::TAGGED_VERSION),
            ParseError::UntaggedDdpVersion => Some(TerminateCause::UNTAGGED_VERSION),
            ParseError::RdmapVersion => Some(TerminateCause::RDMAP_VERSION),
            ParseError::Opcode => Some(TerminateCause::UNEXPECTED_OPCODE),
            ParseError::QueueNumber => Some(TerminateCause::INVALID_QUEUE_NUMBER),
            ParseError::MessageOffset => Some(TerminateCause::INVALID_MESSAGE_OFFSET),
            ParseError::NotLast | ParseError::MessageLength => {
                Some(TerminateCause::MESSAGE_TOO_LONG)
            }
            ParseError::AtomicOperation => Some(TerminateCause::REMOTE_OPERATION_UNSPECIFIED),
        }
    }
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for ParseError {}

/// Why a packet could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncodeError {
    /// The buffer is shorter than the headers.
    NoRoom,
}

impl std::fmt::Display for EncodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no room for the headers")
    }
}

impl std::error::Error for EncodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_error_indices_name_their_own_reason() {
        for (i, error) in ParseError::ALL.into_iter().enumerate() {
            assert_eq!(error.index(), i);
        }
        let names: std::collections::HashSet<_> = ParseError::ALL.map(ParseError::name).into();
        assert_eq!(names.len(), ParseError::COUNT);
    }
}
