//! The responder: requests of the peer's reads and atomics until their turn comes, and responses
//! until they are acknowledged.

use super::host::{AtomicOp, ProtectionError};
use super::queues::{SegmentSource, SegmentSpec};
use super::types::RemoteAddr;
use crate::wire::{
    AtomicOperation, AtomicRequest, AtomicResponse, Msn, ReadRequest, SegmentKind, TaggedOffset,
};

/// A request of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum InboundRequest {
    /// A read.
    Read(ReadRequest),
    /// An atomic; once it is executed, with the old value.
    Atomic(AtomicRequest, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// Arrived ahead of a missing packet.
    Waiting,
    /// In `order`: waits for its response, or the response is being sent.
    Answering,
    /// The response was sent; the entry is freed when every segment is acknowledged.
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    request: InboundRequest,
    msn: Msn,
    stage: Stage,
    /// Octets of the response that were sent.
    sent: u32,
    /// Unacknowledged segments.
    unacked: u32,
}

/// Entries of the table beyond what the peer's limit requires.
const SPARE_ENTRIES: u16 = 8;

/// The table of requests, and the order of their responses.
#[derive(Debug)]
pub(super) struct Responder {
    /// Grows with the requests that are in it at a time.
    entries: Vec<Entry>,
    /// The most entries that there may be.
    entries_max: usize,
    /// Entries whose response is due, oldest first; a ring of the table's size.
    order: Box<[u16]>,
    order_head: usize,
    order_len: usize,
    /// Free entries.
    free: Vec<u16>,
    /// The limit of the peer's requests in progress (IRD).
    limit: usize,
    cap: u8,
    /// The next expected message number of queue 1.
    expected_msn: Msn,
    /// The next message number of atomic responses on queue 3.
    response_msn: Msn,
    /// A response precedes a request when both are ready.
    has_turn: bool,
}

/// Why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// The peer exceeds its limit of requests in progress.
    TooMany,
    /// Unacknowledged responses occupy the table.
    Busy,
}

impl Responder {
    /// Without a table; `start` makes one for at most `cap` requests in progress.
    pub(super) fn new(cap: u8) -> Self {
        Self {
            entries: Vec::new(),
            entries_max: 0,
            order: Box::default(),
            order_head: 0,
            order_len: 0,
            free: Vec::new(),
            limit: 0,
            cap,
            expected_msn: Msn::FIRST,
            response_msn: Msn::FIRST,
            has_turn: false,
        }
    }

    /// Resets everything and sets the limit of requests in progress: the table has room for them,
    /// for as many unacknowledged responses, and some more.
    pub(super) fn start(&mut self, limit: u8) {
        let limit = limit.min(self.cap);
        // RFC5040-5.2.2-2, RFC7306-5.2.2-1
        //# Queue 1 has buffers for as many requests as were agreed.
        //# Queue 1 has buffers for as many reads and atomics as were agreed.
        let entries = match limit {
            0 => 0,
            _ => 2 * u16::from(limit) + SPARE_ENTRIES,
        };
        self.entries = Vec::new();
        self.entries_max = usize::from(entries);
        self.order = vec![0; self.entries_max].into();
        self.free = Vec::new();
        (self.order_head, self.order_len) = (0, 0);
        self.limit = usize::from(limit);
        (self.expected_msn, self.response_msn) = (Msn::FIRST, Msn::FIRST);
    }

    /// Sets the next message numbers.
    pub(super) fn number_from(&mut self, msn: Msn) {
        (self.expected_msn, self.response_msn) = (msn, msn);
    }

    /// Stores a request that has arrived.
    pub(super) fn admit(&mut self, msn: Msn, request: InboundRequest) -> Result<u16, NotAdmitted> {
        let entry = Entry {
            request,
            msn,
            stage: Stage::Waiting,
            sent: 0,
            unacked: 0,
        };
        if let Some(slot) = self.free.pop() {
            self.entries[usize::from(slot)] = entry;
            return Ok(slot);
        }
        let slot = match u16::try_from(self.entries.len()) {
            Ok(slot) if self.entries.len() < self.entries_max => slot,
            _ => return Err(self.full()),
        };
        self.entries.push(entry);
        Ok(slot)
    }

    /// Why a full table takes no request.
    #[cold]
    fn full(&self) -> NotAdmitted {
        let answered = self
            .entries
            .iter()
            .filter(|e| e.stage == Stage::Answered)
            .count();
        if self.entries.len() - answered >= self.limit {
            NotAdmitted::TooMany
        } else {
            NotAdmitted::Busy
        }
    }

    /// Frees the entry of a request that is void before its turn.
    pub(super) fn release(&mut self, entry: u16) {
        self.entries[usize::from(entry)].stage = Stage::Free;
        self.free.push(entry);
    }

    /// The request of an entry, and its message number.
    pub(super) fn request(&self, entry: u16) -> (Msn, InboundRequest) {
        let entry = &self.entries[usize::from(entry)];
        (entry.msn, entry.request)
    }

    /// Whether the request has the next expected message number.
    pub(super) fn is_next(&self, entry: u16) -> bool {
        self.entries[usize::from(entry)].msn == self.expected_msn
    }

    /// Whether the peer has as many requests in progress as its limit.
    pub(super) fn is_at_limit(&self) -> bool {
        self.order_len >= self.limit
    }

    /// Queues the response of a request that was granted; `original` is the old value of an atomic.
    pub(super) fn answer(&mut self, entry: u16, original: u64) {
        let e = &mut self.entries[usize::from(entry)];
        e.stage = Stage::Answering;
        if let InboundRequest::Atomic(_, value) = &mut e.request {
            *value = original;
            e.msn = self.response_msn;
            self.response_msn = self.response_msn.next();
        }
        self.expected_msn = self.expected_msn.next();
        let mut at = self.order_head + self.order_len;
        if at >= self.order.len() {
            at -= self.order.len();
        }
        // RFC5040-5.2-1, RFC5040-5.2.1-6, RFC7306-5.2.1-5
        //# An RDMA Read is one request and one response.
        //# The responder answers a valid Read Request with a valid Read Response.
        //# The responder answers a valid Atomic Request with an Atomic Response.
        self.order[at] = entry;
        self.order_len += 1;
    }

    /// Whether the peer may request a read or atomic with this number next.
    #[inline(always)]
    pub(super) fn expects(&self, msn: Msn) -> bool {
        self.limit > 0 && msn == self.expected_msn
    }

    /// A read was answered as soon as it had arrived, when no response was to be sent.
    #[inline(always)]
    pub(super) fn answered_at_once(&mut self) {
        self.expected_msn = self.expected_msn.next();
        self.has_turn = false;
    }

    /// An atomic was executed as soon as it had arrived, when no response was to be sent. Returns
    /// the number of its response.
    #[inline(always)]
    pub(super) fn executed_at_once(&mut self) -> Msn {
        let number = self.response_msn;
        self.response_msn = number.next();
        self.answered_at_once();
        number
    }

    /// Whether a response is to be sent.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        self.order_len > 0
    }

    /// Whether a response precedes a request when both are ready: the two alternate.
    #[inline]
    pub(super) fn has_turn(&self) -> bool {
        self.has_turn
    }

    /// A request was sent: it is the turn of a response.
    #[inline(always)]
    pub(super) fn take_turn(&mut self) {
        self.has_turn = true;
    }

    /// The next segment of a response, if one is to be sent; `max_len` is the maximum payload.
    #[inline]
    pub(super) fn next_segment(&self, max_len: u32) -> Option<SegmentSpec> {
        if !self.has_answers() {
            return None;
        }
        // RFC5040-5.2.2-4, RFC5040-5.5-7, RFC7306-5.2.2-4
        //# Read Responses are sent in the order of their requests.
        //# Read Responses are sent in the order in which DDP delivered their requests (rule 20).
        //# Atomic Responses are sent in the order of their requests (also section 5.4).
        let entry = self.order[self.order_head];
        let e = &self.entries[usize::from(entry)];
        let left = match e.request {
            InboundRequest::Read(read) => read.len_octets - e.sent,
            InboundRequest::Atomic(..) => 0,
        };
        let len = left.min(max_len);
        Some(SegmentSpec {
            source: SegmentSource::Response(entry),
            offset: e.sent,
            len,
            last: len == left,
        })
    }

    /// Records that the segment of [`Responder::next_segment`] was sent.
    #[inline]
    pub(super) fn sent(&mut self, spec: &SegmentSpec) {
        self.has_turn = false;
        let e = &mut self.entries[usize::from(self.order[self.order_head])];
        e.sent += spec.len;
        e.unacked += 1;
        if spec.last {
            e.stage = Stage::Answered;
            self.order_head += 1;
            if self.order_head == self.order.len() {
                self.order_head = 0;
            }
            self.order_len -= 1;
        }
    }

    /// Records that a segment of a response was acknowledged.
    #[inline]
    pub(super) fn acked(&mut self, entry: u16) {
        let e = &mut self.entries[usize::from(entry)];
        e.unacked = e.unacked.saturating_sub(1);
        if e.unacked == 0 && e.stage == Stage::Answered {
            self.release(entry);
        }
    }

    /// The header of a segment of a response, and the source of its payload.
    #[inline]
    pub(super) fn segment_kind(
        &self,
        entry: u16,
        spec: &SegmentSpec,
    ) -> (SegmentKind, Option<RemoteAddr>) {
        let e = &self.entries[usize::from(entry)];
        match e.request {
            InboundRequest::Read(read) => {
                let offset = u64::from(spec.offset);
                let kind = SegmentKind::ReadResponse {
                    // RFC5040-4.4-2
                    //# A Read Response carries the sink STag of its request, uninterpreted.
                    stag: read.sink_stag,
                    offset: TaggedOffset(read.sink_offset.0.wrapping_add(offset)),
                };
                let source = RemoteAddr {
                    stag: read.source_stag.0,
                    to: read.source_offset.0.wrapping_add(offset),
                };
                (kind, Some(source))
            }
            InboundRequest::Atomic(request, original) => {
                let response = AtomicResponse {
                    request_id: request.request_id,
                    original,
                };
                let kind = SegmentKind::AtomicResponse {
                    msn: e.msn,
                    response,
                };
                (kind, None)
            }
        }
    }
}

/// The host's operation for an atomic request.
pub(super) const fn atomic_op(operation: AtomicOperation) -> AtomicOp {
    match operation {
        AtomicOperation::FetchAdd { add, mask } => AtomicOp::FetchAdd { add, mask },
        AtomicOperation::CompareSwap {
            swap,
            swap_mask,
            compare,
            compare_mask,
        } => AtomicOp::CompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        },
        AtomicOperation::Write { octets } => AtomicOp::Write { octets },
    }
}

/// The result of granting a request: the old value of an atomic, or an error.
pub(super) type Granted = Result<u64, ProtectionError>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Stag;

    #[test]
    fn table_grows_to_its_limit_and_entries_are_used_again() {
        const LIMIT: u8 = 3;
        let request = InboundRequest::Read(ReadRequest {
            sink_stag: Stag(0),
            sink_offset: TaggedOffset(0),
            len_octets: 0,
            source_stag: Stag(0),
            source_offset: TaggedOffset(0),
        });
        let mut responder = Responder::new(u8::MAX);
        responder.start(LIMIT);
        assert_eq!(responder.entries.capacity(), 0);
        let most = 2 * u16::from(LIMIT) + SPARE_ENTRIES;
        for slot in 0..most {
            assert_eq!(responder.admit(Msn::FIRST, request), Ok(slot));
        }
        let refused = responder.admit(Msn::FIRST, request);
        assert_eq!(refused, Err(NotAdmitted::TooMany));
        for entry in &mut responder.entries[usize::from(LIMIT) - 1..] {
            entry.stage = Stage::Answered;
        }
        let refused = responder.admit(Msn::FIRST, request);
        assert_eq!(refused, Err(NotAdmitted::Busy));
        responder.release(5);
        assert_eq!(responder.admit(Msn::FIRST, request), Ok(5));
    }
}
