//! Which part of a work request or response one packet or message carries.

/// What a sequence number carries. It does not change once sent, nor do the numbers of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conn) enum SegmentSource {
    /// Part of the send or write request with this index.
    Message(u32),
    /// The immediate data after a write request.
    Immediate(u32),
    /// A read or atomic request.
    Request(u32),
    /// A local request; never sent.
    Local(u32),
    /// Part of the response in this entry of the responder's table.
    Response(u16),
    /// Part of a request that the peer has refused: it is sent again under another number, and this
    /// number carries nothing.
    Void,
}

/// The part of a work request or response that one datagram carries.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct SegmentSpec {
    pub(in crate::conn) source: SegmentSource,
    /// Offset in the message.
    pub(in crate::conn) offset: u32,
    /// Octets of payload.
    pub(in crate::conn) len: u32,
    /// Last segment of its message.
    pub(in crate::conn) last: bool,
}
