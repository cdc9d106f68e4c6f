//! A request that is not complete, and the messages that a Send is divided into.

use crate::per_element::PerElement;
use crate::regions::Piece;
use crate::types::{Completion, Element, Operation, Request, Status};

/// What the check of a request has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    /// The key of the node's region.
    pub(crate) rkey: u32,
    /// Of all elements.
    pub(crate) len_octets: u32,
    pub(crate) pieces: PerElement<Piece>,
}

/// The keys of the memory of a request of one element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) remote: u32,
    pub(crate) local: u32,
}

impl Checked {
    /// Of a request of one element.
    #[inline(always)]
    pub(crate) fn of_one(element: &Element, keys: Keys) -> Self {
        Self {
            rkey: keys.remote,
            len_octets: element.len_octets,
            pieces: PerElement::new(Some(Piece::new(element, keys.local)), 0),
        }
    }
}

/// A request that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) remote_addr: u64,
    /// The key of the node's region.
    pub(crate) rkey: u32,
    /// Of all elements.
    pub(crate) len_octets: u32,
    pub(crate) pieces: PerElement<Piece>,
    pub(crate) is_signaled: bool,
}

impl Queued {
    #[inline(always)]
    pub(crate) fn new(request: &Request, checked: Checked) -> Self {
        Self {
            id: request.id,
            operation: request.operation,
            remote_addr: request.remote_addr,
            rkey: checked.rkey,
            len_octets: checked.len_octets,
            pieces: checked.pieces,
            is_signaled: request.is_signaled,
        }
    }

    /// The only element, if there is one that is posted as it is; that of a Send may be cut.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<Piece> {
        let only = self.pieces.only();
        only.filter(|_| !self.operation.is_send())
    }

    pub(crate) fn completion(&self, status: Status) -> Completion {
        Completion {
            id: self.id,
            status,
            operation: self.operation,
            len_octets: self.len_octets,
        }
    }
}

/// What requests that are posted are in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PostedCounts {
    pub(crate) requests: u32,
    /// Of their elements, those that are not the first one.
    pub(crate) others: u32,
    /// Requests that must not be repeated.
    pub(crate) effects: u32,
    pub(crate) sends: u32,
}

impl PostedCounts {
    #[inline(always)]
    pub(crate) fn add(&mut self, queued: &Queued) {
        self.requests += 1;
        self.others += queued.pieces.others();
        self.effects += u32::from(queued.operation.has_effect());
        self.sends += u32::from(queued.operation.is_send());
    }

    #[inline(always)]
    pub(crate) fn subtract(&mut self, queued: &Queued) {
        self.requests -= 1;
        self.others -= queued.pieces.others();
        self.effects -= u32::from(queued.operation.has_effect());
        self.sends -= u32::from(queued.operation.is_send());
    }
}

/// What a message has of a Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// All of it.
    Whole,
    /// The first or a further segment, which is followed by others.
    Part,
    /// The last of several.
    Last,
}

/// The offset at which the last segment of a Send begins, if none has more than `most` octets.
pub(crate) fn last_offset(len_octets: u32, most: u32) -> u32 {
    len_octets.saturating_sub(1) / most * most
}
