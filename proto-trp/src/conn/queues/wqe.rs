//! A posted send request and its progress, in one cache line: what the queue's usual requests need.

use super::super::types::{
    Completion, CompletionOp, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Status,
};
use urdma_zeroed::zeroed;

/// The end of a request whose last segment was not sent.
pub(super) const NOT_SENT: u64 = u64::MAX;
/// The elements of a request whose data is inline.
const INLINE: u8 = u8::MAX;

/// What a request does, as far as it decides the way that the request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conn) enum Kind {
    /// A Send that waits for nothing, invalidates nothing and has no immediate data.
    PlainSend,
    /// A Write that waits for nothing and has no immediate data.
    PlainWrite,
    Send,
    SendInvalidate,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    LocalInvalidate,
    BindWindow,
}

impl Kind {
    #[inline(always)]
    pub(in crate::conn) const fn of(wr: &SendWr<'_>) -> Self {
        if wr.is_plain() {
            Self::of_plain(wr)
        } else {
            Self::of_other(wr)
        }
    }

    /// As [`Kind::of`], of a plain request.
    #[inline(always)]
    pub(in crate::conn) const fn of_plain(wr: &SendWr<'_>) -> Self {
        match wr.op {
            SendOp::Write { .. } => Self::PlainWrite,
            _ => Self::PlainSend,
        }
    }

    #[inline(never)]
    const fn of_other(wr: &SendWr<'_>) -> Self {
        match wr.op {
            SendOp::Send => Self::Send,
            SendOp::SendInvalidate { .. } => Self::SendInvalidate,
            SendOp::Write { .. } if wr.imm.is_some() => Self::WriteImm,
            SendOp::Write { .. } => Self::Write,
            SendOp::Read { .. } => Self::Read,
            SendOp::CompareSwap { .. } => Self::CompareSwap,
            SendOp::FetchAdd { .. } => Self::FetchAdd,
            SendOp::AtomicWrite { .. } => Self::AtomicWrite,
            SendOp::LocalInvalidate { .. } => Self::LocalInvalidate,
            SendOp::BindWindow(_) => Self::BindWindow,
        }
    }

    #[inline(always)]
    pub(in crate::conn) const fn is_plain(self) -> bool {
        matches!(self, Self::PlainSend | Self::PlainWrite)
    }

    /// Whether its entry has room for all of it.
    #[inline(always)]
    pub(in crate::conn) const fn fits_entry(self) -> bool {
        self.is_plain() || matches!(self, Self::Read)
    }

    #[inline(always)]
    pub(in crate::conn) const fn is_write(self) -> bool {
        matches!(self, Self::PlainWrite | Self::Write | Self::WriteImm)
    }

    /// The operation in the request's completion.
    #[inline(always)]
    const fn completion_op(self) -> CompletionOp {
        match self {
            Self::PlainSend | Self::Send | Self::SendInvalidate => CompletionOp::Send,
            Self::PlainWrite | Self::Write | Self::WriteImm => CompletionOp::Write,
            Self::Read => CompletionOp::Read,
            Self::CompareSwap => CompletionOp::CompareSwap,
            Self::FetchAdd => CompletionOp::FetchAdd,
            Self::AtomicWrite => CompletionOp::AtomicWrite,
            Self::LocalInvalidate => CompletionOp::LocalInvalidate,
            Self::BindWindow => CompletionOp::BindWindow,
        }
    }
}

/// The response to a read or atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conn) enum Response {
    /// It has none, or all of it has arrived.
    None,
    /// A part has not arrived.
    Awaited,
    /// A part has not arrived, but the last segment has.
    LastSeen,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(in crate::conn) struct SendWqe {
    pub(in crate::conn) wr_id: u64,
    /// One past the last segment's sequence number, of a read or atomic one past the request's;
    /// `NOT_SENT` until every segment has been sent.
    pub(in crate::conn) end: u64,
    /// Where a Write goes, or a Read is from: the offset, then the tag.
    to: u64,
    stag: u32,
    /// The first element of its list.
    pub(in crate::conn) sge: Sge,
    /// Length of the message, in octets.
    pub(in crate::conn) length: u32,
    /// Octets that were sent; of a read: octets received.
    pub(in crate::conn) progress: u32,
    /// Message number, valid once a segment that has one was sent.
    pub(in crate::conn) msn: u32,
    pub(in crate::conn) flags: SendFlags,
    pub(in crate::conn) kind: Kind,
    sge_count: u8,
    /// The first segment has been sent.
    pub(in crate::conn) started: bool,
    pub(in crate::conn) response: Response,
    /// It cannot succeed: it completes with this status in its turn, and nothing is sent.
    pub(in crate::conn) fails: Option<Status>,
}

const _: () = assert!(size_of::<SendWqe>() == 64);
// A place that was never used is not read.
zeroed!(SendWqe, Extra);

impl SendWqe {
    pub(in crate::conn) const EMPTY: Self = Self {
        wr_id: 0,
        end: NOT_SENT,
        to: 0,
        stag: 0,
        sge: Sge {
            addr: 0,
            length: 0,
            lkey: 0,
        },
        length: 0,
        progress: 0,
        msn: 0,
        flags: SendFlags {
            signaled: false,
            fence: false,
            solicited: false,
        },
        kind: Kind::PlainSend,
        sge_count: 0,
        started: false,
        response: Response::None,
        fails: None,
    };

    /// A request with a message of `length` octets. `sge_count` is only looked at where the payload
    /// is a list that has not just one element.
    #[inline(always)]
    pub(in crate::conn) fn new(wr: &SendWr<'_>, kind: Kind, length: u32, sge_count: u8) -> Self {
        let (sge, sge_count) = match wr.payload {
            Payload::Sges([sge]) => (*sge, 1),
            Payload::Sges(_) => (Self::EMPTY.sge, sge_count),
            Payload::Inline(_) => (Self::EMPTY.sge, INLINE),
        };
        let (to, stag) = match wr.op {
            SendOp::Write { remote } | SendOp::Read { remote } => (remote.to, remote.stag),
            _ => (0, 0),
        };
        Self {
            wr_id: wr.wr_id,
            to,
            stag,
            sge,
            length,
            flags: wr.flags,
            kind,
            sge_count,
            ..Self::EMPTY
        }
    }

    /// Where a Write goes, or a Read is from.
    #[inline(always)]
    pub(in crate::conn) const fn remote(&self) -> RemoteAddr {
        RemoteAddr {
            stag: self.stag,
            to: self.to,
        }
    }

    #[inline(always)]
    pub(in crate::conn) const fn is_inline(&self) -> bool {
        self.sge_count == INLINE
    }

    /// The elements of its list; none if its data is inline.
    #[inline(always)]
    pub(in crate::conn) const fn sge_count(&self) -> u8 {
        if self.is_inline() {
            0
        } else {
            self.sge_count
        }
    }

    /// Whether its list has one element, which is `sge`.
    #[inline(always)]
    pub(in crate::conn) const fn has_one_sge(&self) -> bool {
        self.sge_count == 1
    }

    /// Whether the peer responds with data (queue 1).
    #[inline]
    pub(in crate::conn) const fn is_request(&self) -> bool {
        let has_response = matches!(
            self.kind,
            Kind::Read | Kind::CompareSwap | Kind::FetchAdd | Kind::AtomicWrite
        );
        has_response && self.fails.is_none()
    }

    /// Whether it is an atomic, which the peer must not execute twice.
    pub(in crate::conn) const fn is_atomic(&self) -> bool {
        self.is_request() && !matches!(self.kind, Kind::Read)
    }

    /// Whether it is executed locally, without the peer.
    #[inline]
    pub(in crate::conn) const fn is_local(&self) -> bool {
        matches!(self.kind, Kind::LocalInvalidate | Kind::BindWindow) || self.fails.is_some()
    }

    /// Whether it has a message number, of queue 0 or queue 1.
    #[inline]
    pub(in crate::conn) const fn has_msn(&self) -> bool {
        !matches!(self.kind, Kind::PlainWrite | Kind::Write) && !self.is_local()
    }

    /// Whether a part of the response has not arrived.
    #[inline]
    pub(in crate::conn) const fn is_unanswered(&self) -> bool {
        !matches!(self.response, Response::None)
    }

    /// The response is to come once more, with its last segment.
    pub(in crate::conn) fn forget_last(&mut self) {
        if self.response == Response::LastSeen {
            self.response = Response::Awaited;
        }
    }

    /// Begins it: the message of a Send, or of immediate data, gets the next number of queue 0.
    #[inline]
    pub(in crate::conn) fn start_message(&mut self, next_msn: &mut u32) {
        self.started = true;
        if !matches!(self.kind, Kind::PlainWrite | Kind::Write) {
            // RFC5041-4.3-3
            //# The MSN of a queue begins with 1, grows by one for each message, and wraps to 0.
            self.msn = *next_msn;
            *next_msn = next_msn.wrapping_add(1);
        }
    }

    /// Records a segment of a Send or Write of `len` octets that was sent; `end` is one past its
    /// number. Returns whether the request is sent.
    #[inline]
    pub(in crate::conn) fn advance(&mut self, len: u32, last: bool, end: u64) -> bool {
        self.progress += len;
        // Immediate data follows a Write.
        let ends = last && self.kind != Kind::WriteImm;
        if ends {
            self.end = end;
        }
        ends
    }

    /// Whether it is done when everything before sequence number `una` is acknowledged.
    #[inline]
    pub(in crate::conn) const fn is_done(&self, una: u64) -> bool {
        self.end <= una && !self.is_unanswered()
    }

    /// Whether every segment has been sent at least once.
    #[inline]
    pub(in crate::conn) const fn is_sent(&self) -> bool {
        self.end != NOT_SENT
    }

    /// Its completion.
    #[inline(always)]
    pub(in crate::conn) const fn completion(&self, status: Status) -> Completion {
        let is_success = matches!(status, Status::Success);
        Completion {
            wr_id: self.wr_id,
            status,
            op: self.kind.completion_op(),
            byte_len: if is_success { self.length } else { 0 },
            imm: None,
            invalidated: None,
            solicited: !is_success,
        }
    }
}

/// What of a request its entry has no room for: see [`Kind::fits_entry`]. A request that names a
/// shared receive queue has always some.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct Extra {
    pub(in crate::conn) op: SendOp,
    /// Immediate data.
    pub(in crate::conn) imm: Option<u32>,
    /// The shared receive queue of the peer that it names, or 0.
    pub(in crate::conn) shared_queue: u32,
}

impl Extra {
    pub(in crate::conn) const NONE: Self = Self {
        op: SendOp::Send,
        imm: None,
        shared_queue: 0,
    };
}
