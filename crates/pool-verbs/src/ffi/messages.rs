//! Calls for Sends and Receives of connections.

use std::mem::MaybeUninit;
use std::ptr;

use arrayvec::ArrayVec;
use rdma_core_sys::verbs;
use urdma_pool::{Sge, Status, Transmit, ELEMENTS_MAX};

use super::{raw, status_of, work_request, Id, Queue, POLLED};
use crate::error::Error;

/// A Receive that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    /// The number with which it was posted.
    pub(crate) wr_id: u64,
    /// The length of the message; none if the Receive was not filled.
    pub(crate) len_octets: Option<u32>,
}

impl Queue {
    /// The oldest completions of Receives. They are all that the queue has.
    pub(crate) fn poll_receives(&self) -> Result<ArrayVec<Filled, POLLED>, Error> {
        let mut found = [const { MaybeUninit::<verbs::ibv_wc>::uninit() }; POLLED];
        let polled = self.poll_into(&mut found)?;
        let filled = polled.iter().map(|completion| Filled {
            wr_id: completion.wr_id,
            len_octets: (status_of(completion.status) == Status::Success)
                .then_some(completion.byte_len),
        });
        Ok(filled.collect())
    }
}

/// Has `post` post a Receive of one element.
pub(super) fn post_one(
    wr_id: u64,
    element: &Sge,
    post: impl FnOnce(*mut verbs::ibv_recv_wr, *mut *mut verbs::ibv_recv_wr) -> bool,
) -> bool {
    let mut element = raw(element);
    let mut wr = verbs::ibv_recv_wr {
        wr_id,
        sg_list: &mut element,
        num_sge: 1,
        ..Default::default()
    };
    post(&mut wr, &mut ptr::null_mut())
}

impl Id {
    /// Posts a Receive of one element; `false`: the queue pair does not take it.
    pub(crate) fn post_receive(&self, wr_id: u64, element: Sge) -> bool {
        if !self.has_queue_pair() {
            return false;
        }
        // SAFETY: the identifier has a queue pair, whose context lives.
        let (qp, post) = unsafe {
            let qp = (*self.raw).qp;
            (qp, (*(*qp).context).ops.post_recv)
        };
        post_one(wr_id, &element, |wr, bad| {
            // SAFETY: the provider's function for its queue pair; the request lives during the
            // call.
            post.is_some_and(|post| unsafe { post(qp, wr, bad) } == 0)
        })
    }

    /// Posts a work request whose message begins with a header; `false`: the queue pair does not
    /// take it.
    pub(crate) fn post_with_header(&self, work: &Transmit, header: Sge, elements: &[Sge]) -> bool {
        let all = [&header].into_iter().chain(elements);
        let elements: ArrayVec<_, { ELEMENTS_MAX + 1 }> = all.map(raw).collect();
        self.has_queue_pair() && self.post_request(&mut work_request(work, &elements))
    }
}
