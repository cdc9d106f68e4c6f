//! Which part of a work request or response one packet or message carries.

use super::wqe::SendWqe;

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

/// The next segment of a Send or Write.
#[inline(always)]
pub(in crate::conn) fn next_part(
    index: u32,
    wqe: &SendWqe,
    max_tagged: u32,
    max_untagged: u32,
) -> SegmentSpec {
    let max = if wqe.kind.is_write() {
        max_tagged
    } else {
        max_untagged
    };
    next_part_within(index, wqe, max)
}

/// The next segment of a Send or Write whose segments have at most `max` octets.
#[inline(always)]
pub(in crate::conn) fn next_part_within(index: u32, wqe: &SendWqe, max: u32) -> SegmentSpec {
    // RFC5041-5.2-1, RFC5041-5.2-3
    //# A message is cut into segments that are no longer than the path carries.
    //# All payload of a message is sent and placed.
    let left = wqe.length - wqe.progress;
    let len = left.min(max);
    SegmentSpec {
        source: SegmentSource::Message(index),
        // RFC5041-4.3-4, RFC5041-5.2-4
        //# The first octet of an untagged message has message offset 0.
        //# The message offset of a segment is the offset of its payload in the message.
        offset: wqe.progress,
        len,
        // RFC5041-4.1-2, RFC5041-5.2-6
        //# L is set in the last segment of a message and in no other; that segment is sent after
        //# the others and has the highest message offset.
        //# A message of no octets is one segment.
        last: len == left,
    }
}
