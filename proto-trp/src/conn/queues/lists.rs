//! What of posted work requests does not fit their entries: scatter-gather lists and inline data.

use super::super::host::Host;
use super::super::types::{PostError, SendWr, Sge};
use super::wqe::{Extra, SendWqe};
use urdma_zeroed::ZeroedSlice;

/// What of the requests of a queue their entries have no room for.
#[derive(Debug, Default)]
pub(in crate::conn) struct Lists {
    /// Scatter-gather lists that have not just one element.
    sges: ZeroedSlice<Sge>,
    /// Inline data.
    inline: ZeroedSlice<u8>,
    /// None until there is a request that needs it, then one for each entry.
    extras: ZeroedSlice<Extra>,
    max_sge: usize,
    max_inline: usize,
}

impl Lists {
    pub(super) fn new(entries: u32, max_sge: u8, max_inline: u32) -> Self {
        let (entries, max_sge) = (entries as usize, usize::from(max_sge));
        let max_inline = max_inline as usize;
        Self {
            sges: ZeroedSlice::new(entries * max_sge),
            inline: ZeroedSlice::new(entries * max_inline),
            extras: ZeroedSlice::default(),
            max_sge,
            max_inline,
        }
    }

    /// Octets of inline data that one request may have.
    #[inline(always)]
    pub(super) const fn max_inline(&self) -> usize {
        self.max_inline
    }

    /// What the entry in `slot` has no room for.
    #[inline]
    pub(super) fn extra(&self, slot: usize) -> Extra {
        self.extras.get(slot).copied().unwrap_or(Extra::NONE)
    }

    /// The list of the request in `slot`, which has `count` elements.
    pub(super) fn sges(&self, slot: usize, count: u8) -> &[Sge] {
        let at = slot * self.max_sge;
        &self.sges[at..at + usize::from(count)]
    }

    /// Room for the list of the request in `slot`.
    pub(super) fn room(&mut self, slot: usize) -> &mut [Sge] {
        let at = slot * self.max_sge;
        &mut self.sges[at..at + self.max_sge]
    }

    /// Stores a list; returns the number of its elements.
    #[inline(never)]
    pub(super) fn push(&mut self, slot: usize, sges: &[Sge]) -> Result<u8, PostError> {
        let count = u8::try_from(sges.len()).map_err(|_| PostError::TooManySges)?;
        let room = self.room(slot).get_mut(..sges.len());
        room.ok_or(PostError::TooManySges)?.copy_from_slice(sges);
        Ok(count)
    }

    /// Stores inline data; returns its length in octets.
    #[inline(never)]
    pub(super) fn push_inline(&mut self, slot: usize, parts: &[&[u8]]) -> Result<u32, PostError> {
        let at = slot * self.max_inline;
        let mut room = &mut self.inline[at..at + self.max_inline];
        let mut length = 0;
        for part in parts {
            let (into, rest) = room
                .split_at_mut_checked(part.len())
                .ok_or(PostError::InlineTooLong)?;
            into.copy_from_slice(part);
            room = rest;
            length += part.len();
        }
        u32::try_from(length).map_err(|_| PostError::InlineTooLong)
    }

    /// Stores inline data of one part, which is not too long.
    #[inline(always)]
    pub(super) fn keep_inline(&mut self, slot: usize, parts: &[&[u8]]) {
        if let [part] = parts {
            let at = slot * self.max_inline;
            self.inline[at..at + part.len()].copy_from_slice(part);
        }
    }

    /// Stores what the entry has no room for.
    #[inline(never)]
    pub(super) fn keep(&mut self, slot: usize, mask: u32, wr: &SendWr<'_>) {
        if self.extras.is_empty() {
            self.extras = ZeroedSlice::new(mask as usize + 1);
        }
        self.extras[slot] = Extra {
            op: wr.op,
            imm: wr.imm,
            shared_queue: wr.shared_queue,
        };
    }

    /// Copies octets of a request from `offset` on to `payload`; false if the local memory may not
    /// be read.
    #[inline(always)]
    #[must_use]
    pub(in crate::conn) fn copy_payload<H: Host>(
        &self,
        wqe: &SendWqe,
        slot: usize,
        offset: u32,
        payload: &mut [u8],
        host: &mut H,
    ) -> bool {
        if payload.is_empty() {
            return true;
        }
        if !wqe.has_one_sge() {
            return self.copy_other(wqe, slot, offset, payload, host);
        }
        let sges = std::slice::from_ref(&wqe.sge);
        host.gather(sges, u64::from(offset), payload).is_ok()
    }

    /// As [`Lists::copy_payload`], of a request that has not just one element.
    #[inline(never)]
    fn copy_other<H: Host>(
        &self,
        wqe: &SendWqe,
        slot: usize,
        offset: u32,
        payload: &mut [u8],
        host: &mut H,
    ) -> bool {
        if wqe.is_inline() {
            let from = slot * self.max_inline + offset as usize;
            payload.copy_from_slice(&self.inline[from..from + payload.len()]);
            return true;
        }
        let sges = self.sges(slot, wqe.sge_count());
        host.gather(sges, u64::from(offset), payload).is_ok()
    }
}

/// Length of a scatter-gather list.
#[inline(never)]
pub(super) fn octets_of(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}
