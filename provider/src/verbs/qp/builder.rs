//! The requests that the calls of `ibv_qp_ex` build; [`super::post_ex`] has the calls and posts the
//! requests.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_core_sys::verbs::{ibv_ah, ibv_send_wr, ibv_sge, IBV_SEND_INLINE};

/// The requests that are being built.
#[derive(Default)]
pub(super) struct Builder {
    /// Set while a thread is between start and complete.
    taken: AtomicBool,
    pub(super) draft: UnsafeCell<Draft>,
}

// SAFETY: the flag admits one thread at a time to the draft.
unsafe impl Sync for Builder {}
// SAFETY: the pointers in a draft are the application's and are used only during calls that it
// makes.
unsafe impl Send for Builder {}

/// The requests of one list, with their elements and inline data.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) requests: Vec<Request>,
    sges: Vec<ibv_sge>,
    inline: Vec<u8>,
}

/// The operation of a request.
pub(super) enum Operation {
    /// The one of the `ibv_send_wr`'s opcode.
    Opcode,
    /// `ibv_wr_atomic_write` of these octets, for which an `ibv_send_wr` has no field.
    AtomicWrite([u8; 8]),
}

/// A target of the dynamically connected transport, as `urdmadv_wr_set_dc_addr` names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DcName {
    pub(super) ah: *mut ibv_ah,
    pub(super) number: u32,
    pub(super) key: u64,
}

/// One request of the list.
pub(super) struct Request {
    pub(super) wr: ibv_send_wr,
    pub(super) operation: Operation,
    /// The target of a request of an initiator.
    pub(super) target: Option<DcName>,
    /// Its elements; the address of an inline request's element is an offset in `inline`.
    pub(super) sges: Range<usize>,
}

impl Draft {
    /// Removes all requests.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
    }

    /// Sets the elements of the current request.
    pub(super) fn set_sges(&mut self, sges: impl Iterator<Item = ibv_sge>) {
        let begin = self.sges.len();
        self.sges.extend(sges);
        let end = self.sges.len();
        if let Some(request) = self.requests.last_mut() {
            request.sges = begin..end;
        }
    }

    /// Copies the inline data of the current request.
    pub(super) fn set_inline<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) {
        let begin = self.inline.len();
        for part in parts {
            self.inline.extend_from_slice(part);
        }
        let length = self.inline.len() - begin;
        let sge = ibv_sge {
            addr: begin as u64,
            // More than any queue pair's inline limit, so the request is refused.
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey: 0,
        };
        self.set_sges(std::iter::once(sge));
        if let Some(request) = self.requests.last_mut() {
            request.wr.send_flags |= IBV_SEND_INLINE;
        }
    }

    /// Sets the list pointers of all requests; the elements do not move afterwards.
    #[inline]
    pub(super) fn finish(&mut self) {
        let base = self.inline.as_ptr() as u64;
        for request in &mut self.requests {
            let sges = &mut self.sges[request.sges.clone()];
            if request.wr.send_flags & IBV_SEND_INLINE != 0 {
                sges.iter_mut().for_each(|sge| sge.addr += base);
            }
            request.wr.sg_list = sges.as_mut_ptr();
            request.wr.num_sge = c_int::try_from(sges.len()).unwrap_or(c_int::MAX);
        }
    }
}

impl Builder {
    /// Takes the builder for this thread, and waits while another thread has it.
    #[inline]
    pub(super) fn take(&self) {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Releases the builder to other threads.
    #[inline]
    pub(super) fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draft_points_every_request_at_its_own_elements() {
        let mut draft = Draft::default();
        let request = || Request {
            wr: ibv_send_wr::default(),
            operation: Operation::Opcode,
            target: None,
            sges: 0..0,
        };
        draft.requests.push(request());
        draft.set_inline([&b"ab"[..], b"", b"cd"].into_iter());
        draft.requests.push(request());
        draft.set_sges((1..4).map(|addr| ibv_sge {
            addr,
            length: 1,
            lkey: 2,
        }));
        draft.requests.push(request());
        draft.set_inline([&b"efg"[..]].into_iter());
        draft.finish();
        let counts: Vec<_> = draft.requests.iter().map(|r| r.wr.num_sge).collect();
        assert_eq!(counts, [1, 3, 1]);
        let read = |request: &Request| {
            // SAFETY: `finish` has set the pointer to the third element of the draft's list.
            unsafe {
                let sge = *request.wr.sg_list;
                std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
            }
        };
        assert_eq!(read(&draft.requests[0]), b"abcd");
        assert_eq!(read(&draft.requests[2]), b"efg");
        // SAFETY: `finish` has set the pointer to the third element of the draft's list.
        assert_eq!(unsafe { (*draft.requests[1].wr.sg_list.add(2)).addr }, 3);
        draft.clear();
        assert!(draft.requests.is_empty() && draft.inline.is_empty());
    }
}
