//! The peer's reads and atomics: requests that wait for their turn, and answers that wait for their acknowledgement.

use super::host::{AtomicOp, ProtectionError};
use super::txwindow::{SegmentSource, SegmentSpec};
use super::types::RemoteAddr;
use crate::wire::{
    AtomicOperation, AtomicRequest, AtomicResponse, Msn, ReadRequest, SegmentKind, Stag,
    TaggedOffset,
};

/// What the peer asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// A read.
    Read(ReadRequest),
    /// An atomic, and once it is executed the old value.
    Atomic(AtomicRequest, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// Arrived ahead of a missing packet.
    Waiting,
    /// In `order`: to be answered, or being answered.
    Answering,
    /// Answered; kept until every segment is acknowledged.
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    asked: Asked,
    msn: Msn,
    stage: Stage,
    /// Octets of the response cut into segments.
    sent: u32,
    /// Segments that are not acknowledged.
    unacked: u32,
}

impl Entry {
    const FREE: Self = Self {
        asked: Asked::Read(ReadRequest {
            sink_stag: Stag(0),
            sink_offset: TaggedOffset(0),
            len_octets: 0,
            source_stag: Stag(0),
            source_offset: TaggedOffset(0),
        }),
        msn: Msn::FIRST,
        stage: Stage::Free,
        sent: 0,
        unacked: 0,
    };
}

/// Entries of the table beyond what the peer's limit asks for.
const SPARE_ENTRIES: u16 = 8;

/// The table of requests, and the order in which they are answered.
#[derive(Debug)]
pub(super) struct Responder {
    entries: Box<[Entry]>,
    /// Entries to be answered, oldest first; a ring of the table's size.
    order: Box<[u16]>,
    order_head: usize,
    order_len: usize,
    /// Entries that are free; the first `free_len` count.
    free: Box<[u16]>,
    free_len: usize,
    /// Requests in progress that the peer may have.
    limit: usize,
    cap: u8,
    /// The request of queue 1 that comes next.
    expected_msn: Msn,
    /// The next atomic response of queue 3.
    response_msn: Msn,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// The peer has more requests in progress than it may.
    TooMany,
    /// Answers of the past still occupy the table.
    Busy,
}

impl Responder {
    /// No table yet; later one for at most `cap` requests in progress.
    pub(super) fn new(cap: u8) -> Self {
        Self {
            entries: Box::default(),
            order: Box::default(),
            order_head: 0,
            order_len: 0,
            free: Box::default(),
            free_len: 0,
            limit: 0,
            cap,
            expected_msn: Msn::FIRST,
            response_msn: Msn::FIRST,
        }
    }

    /// Forgets everything and lets the peer have `limit` requests in progress: takes a table with room for them, for as many answers that are not
    /// acknowledged, and some more.
    pub(super) fn start(&mut self, limit: u8) {
        let limit = limit.min(self.cap);
        // RFC5040-5.2.2-2, RFC7306-5.2.2-1
        let entries = match limit {
            0 => 0,
            _ => 2 * u16::from(limit) + SPARE_ENTRIES,
        };
        self.entries = vec![Entry::FREE; usize::from(entries)].into();
        self.order = vec![0; usize::from(entries)].into();
        self.free = (0..entries).collect();
        (self.order_head, self.order_len) = (0, 0);
        self.free_len = usize::from(entries);
        self.limit = usize::from(limit);
        (self.expected_msn, self.response_msn) = (Msn::FIRST, Msn::FIRST);
    }

    /// The queues begin with this number.
    pub(super) fn number_from(&mut self, msn: Msn) {
        (self.expected_msn, self.response_msn) = (msn, msn);
    }

    /// Keeps a request that has arrived.
    pub(super) fn admit(&mut self, msn: Msn, asked: Asked) -> Result<u16, NotAdmitted> {
        if self.free_len == 0 {
            let answered = self
                .entries
                .iter()
                .filter(|e| e.stage == Stage::Answered)
                .count();
            return Err(if self.entries.len() - answered >= self.limit {
                NotAdmitted::TooMany
            } else {
                NotAdmitted::Busy
            });
        }
        self.free_len -= 1;
        let slot = self.free[self.free_len];
        self.entries[usize::from(slot)] = Entry {
            asked,
            msn,
            stage: Stage::Waiting,
            sent: 0,
            unacked: 0,
        };
        Ok(slot)
    }

    /// The request in an entry, whose turn has not come, is void.
    pub(super) fn release(&mut self, entry: u16) {
        self.entries[usize::from(entry)].stage = Stage::Free;
        self.free[self.free_len] = entry;
        self.free_len += 1;
    }

    /// What an entry asks, and under which number.
    pub(super) fn request(&self, entry: u16) -> (Msn, Asked) {
        let entry = &self.entries[usize::from(entry)];
        (entry.msn, entry.asked)
    }

    /// Whether the request whose turn has come has the number that comes next.
    pub(super) fn is_next(&self, entry: u16) -> bool {
        self.entries[usize::from(entry)].msn == self.expected_msn
    }

    /// Whether the peer has as many requests in progress as it may.
    pub(super) fn is_at_limit(&self) -> bool {
        self.order_len >= self.limit
    }

    /// The turn of a request has come and it is granted; `original` is the old value of an atomic.
    pub(super) fn answer(&mut self, entry: u16, original: u64) {
        let e = &mut self.entries[usize::from(entry)];
        e.stage = Stage::Answering;
        if let Asked::Atomic(_, value) = &mut e.asked {
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
        self.order[at] = entry;
        self.order_len += 1;
    }

    /// Whether a response is to be sent.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        self.order_len > 0
    }

    /// The next segment of a response, if one is to be sent; `max_len` octets of payload fit a datagram.
    #[inline]
    pub(super) fn next_segment(&self, max_len: u32) -> Option<SegmentSpec> {
        if !self.has_answers() {
            return None;
        }
        // RFC5040-5.2.2-4, RFC5040-5.5-7, RFC7306-5.2.2-4
        let entry = self.order[self.order_head];
        let e = &self.entries[usize::from(entry)];
        let left = match e.asked {
            Asked::Read(read) => read.len_octets - e.sent,
            Asked::Atomic(..) => 0,
        };
        let len = left.min(max_len);
        Some(SegmentSpec {
            source: SegmentSource::Response(entry),
            offset: e.sent,
            len,
            last: len == left,
        })
    }

    /// The segment that [`Responder::next_segment`] named has been sent.
    #[inline]
    pub(super) fn sent(&mut self, spec: &SegmentSpec) {
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

    /// A segment of a response has been acknowledged.
    #[inline]
    pub(super) fn acked(&mut self, entry: u16) {
        let e = &mut self.entries[usize::from(entry)];
        e.unacked = e.unacked.saturating_sub(1);
        if e.unacked == 0 && e.stage == Stage::Answered {
            self.release(entry);
        }
    }

    /// The headers of a segment of a response, and where its payload is.
    #[inline]
    pub(super) fn segment_kind(
        &self,
        entry: u16,
        spec: &SegmentSpec,
    ) -> (SegmentKind, Option<RemoteAddr>) {
        let e = &self.entries[usize::from(entry)];
        match e.asked {
            Asked::Read(read) => {
                let offset = u64::from(spec.offset);
                let kind = SegmentKind::ReadResponse {
                    // RFC5040-4.4-2
                    stag: read.sink_stag,
                    offset: TaggedOffset(read.sink_offset.0.wrapping_add(offset)),
                };
                let source = RemoteAddr {
                    stag: read.source_stag.0,
                    to: read.source_offset.0.wrapping_add(offset),
                };
                (kind, Some(source))
            }
            Asked::Atomic(request, original) => {
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

/// The operation of an atomic request as the host takes it.
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

/// What the checks of a request say: the old value of an atomic, or why not.
pub(super) type Granted = Result<u64, ProtectionError>;
