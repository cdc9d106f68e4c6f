//! Queue pairs and their work requests.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use rdma_core_sys::{rdmacm, verbs};

use crate::error::Error;
use crate::ffi::cm::{called, Id};
use crate::ffi::verbs::{CompletionQueue, Domain};

/// Memory of this end in a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) addr: u64,
    pub(crate) len_octets: u32,
    pub(crate) lkey: u32,
}

impl Local {
    fn element(self) -> verbs::ibv_sge {
        verbs::ibv_sge {
            addr: self.addr,
            length: self.len_octets,
            lkey: self.lkey,
        }
    }
}

/// What a work request of the send queue does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send,
    /// An RDMA Write to this address with this key of the peer, and this immediate data.
    Write {
        addr: u64,
        rkey: u32,
        immediate: Option<u32>,
    },
}

/// How many work requests are posted by one call.
const BATCH: usize = 16;

/// Work requests that are posted by one call.
#[derive(Default)]
pub(crate) struct Batch {
    /// They have no pointers before [`Batch::chain`].
    requests: Vec<verbs::ibv_send_wr>,
    /// Those of the requests in their order, and those of the next request.
    elements: Vec<verbs::ibv_sge>,
    /// How many are of the requests.
    used: usize,
}

// SAFETY: the pointers of the requests are to the batch itself, and none is used but in the call
// for which `chain` has set all of them.
unsafe impl Send for Batch {}
// SAFETY: the pointers of the requests are to the batch itself, and none is used but in the call
// for which `chain` has set all of them; a shared reference reads no pointer.
unsafe impl Sync for Batch {}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch of {}", self.requests.len())
    }
}

impl Batch {
    /// The next work request is also for these octets.
    #[inline]
    pub(crate) fn carry(&mut self, local: Local) {
        if local.len_octets > 0 {
            self.elements.push(local.element());
        }
    }

    /// Adds a work request; the batch is not full.
    pub(crate) fn push(&mut self, id: u64, operation: Operation, signaled: bool) {
        let elements = self.elements.len() - self.used;
        self.used = self.elements.len();
        self.requests
            .push(work_request(id, elements, operation, signaled));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() == BATCH
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
        self.used = 0;
    }

    /// The first of the requests, each of which points to the next and to its elements.
    fn chain(&mut self) -> *mut verbs::ibv_send_wr {
        let mut next = ptr::null_mut();
        let mut elements = &mut self.elements[..self.used];
        for request in self.requests.iter_mut().rev() {
            let count = usize::try_from(request.num_sge).unwrap_or(0);
            let (others, own) = elements.split_at_mut(elements.len() - count);
            (request.sg_list, request.next) = (own.as_mut_ptr(), next);
            next = request;
            elements = others;
        }
        next
    }
}

/// The reliable connection of an identifier.
///
/// Work requests name memory by keys of regions, which the provider checks, so that no request can
/// reach memory that is not registered. Until a request is complete, its caller leaves the octets
/// of a write alone.
#[derive(Debug)]
pub(crate) struct QueuePair {
    id: Arc<Id>,
    _queue: Arc<CompletionQueue>,
    _domain: Arc<Domain>,
}

impl QueuePair {
    /// A queue pair for these numbers of work requests, those of the send queue with at most
    /// `send_elements` elements; completions of both directions go to `queue`.
    pub(crate) fn new(
        id: &Arc<Id>,
        domain: &Arc<Domain>,
        queue: &Arc<CompletionQueue>,
        [send_depth, recv_depth]: [usize; 2],
        send_elements: usize,
    ) -> Result<Self, Error> {
        let depth = |depth: usize| u32::try_from(depth).unwrap_or(u32::MAX);
        let mut init = verbs::ibv_qp_init_attr {
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            qp_type: verbs::IBV_QPT_RC,
            ..Default::default()
        };
        init.cap.max_send_wr = depth(send_depth);
        init.cap.max_recv_wr = depth(recv_depth);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (depth(send_elements), 1);
        // SAFETY: identifier, domain and queue live, the attributes are ours.
        let status = unsafe { rdmacm::rdma_create_qp(id.raw(), domain.raw(), &mut init) };
        called("rdma_create_qp", status)?;
        Ok(Self {
            id: Arc::clone(id),
            _queue: Arc::clone(queue),
            _domain: Arc::clone(domain),
        })
    }

    pub(crate) fn id(&self) -> &Id {
        &self.id
    }

    fn raw(&self) -> *mut verbs::ibv_qp {
        // SAFETY: the identifier lives.
        unsafe { (*self.id.raw()).qp }
    }

    /// Posts the work requests of a batch, which has one at least.
    pub(crate) fn post(&self, batch: &mut Batch) -> Result<(), Error> {
        self.post_sends(batch.chain())
    }

    /// Posts a work request of one element, which is signaled.
    #[inline]
    pub(crate) fn post_one(
        &self,
        id: u64,
        local: Local,
        operation: Operation,
    ) -> Result<(), Error> {
        let mut element = local.element();
        let mut request = work_request(id, 1, operation, true);
        request.sg_list = &mut element;
        self.post_sends(&mut request)
    }

    /// Posts a chain of work requests, which lives during the call.
    fn post_sends(&self, first: *mut verbs::ibv_send_wr) -> Result<(), Error> {
        let qp = self.raw();
        // SAFETY: the queue pair and its context live.
        let post = unsafe { (*(*qp).context).ops.post_send };
        let post = post.ok_or_else(|| Error::from_errno("ibv_post_send", libc::ENOSYS))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the provider's function for its queue pair; the chain lives during the call.
        match unsafe { post(qp, first, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::from_errno("ibv_post_send", errno.abs())),
        }
    }

    /// Posts receives.
    pub(crate) fn post_recvs(
        &self,
        receives: impl Iterator<Item = (u64, Local)>,
    ) -> Result<(), Error> {
        let mut receives = receives.peekable();
        let mut chain =
            [const { MaybeUninit::<(verbs::ibv_recv_wr, verbs::ibv_sge)>::uninit() }; BATCH];
        while receives.peek().is_some() {
            let mut next = ptr::null_mut();
            for (place, (id, local)) in chain.iter_mut().zip(&mut receives) {
                let (wr, element) = place.write((verbs::ibv_recv_wr::default(), local.element()));
                (wr.wr_id, wr.sg_list, wr.num_sge, wr.next) = (id, element, 1, next);
                next = wr;
            }
            self.post_chain(next)?;
        }
        Ok(())
    }

    /// Posts a chain of receives, which lives during the call.
    fn post_chain(&self, first: *mut verbs::ibv_recv_wr) -> Result<(), Error> {
        let qp = self.raw();
        // SAFETY: the queue pair and its context live.
        let post = unsafe { (*(*qp).context).ops.post_recv };
        let post = post.ok_or_else(|| Error::from_errno("ibv_post_recv", libc::ENOSYS))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the provider's function for its queue pair; the chain lives during the call.
        match unsafe { post(qp, first, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::from_errno("ibv_post_recv", errno.abs())),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the identifier lives and has this queue pair. The peer can write into no memory
        // of this end from then on.
        unsafe { rdmacm::rdma_destroy_qp(self.id.raw()) };
    }
}

/// A work request with this number of elements, without pointers.
fn work_request(
    id: u64,
    elements: usize,
    operation: Operation,
    signaled: bool,
) -> verbs::ibv_send_wr {
    let mut wr = verbs::ibv_send_wr {
        wr_id: id,
        num_sge: i32::try_from(elements).unwrap_or(i32::MAX),
        ..Default::default()
    };
    if signaled {
        wr.send_flags = verbs::IBV_SEND_SIGNALED;
    }
    wr.opcode = match operation {
        Operation::Send => verbs::IBV_WR_SEND,
        Operation::Write {
            addr,
            rkey,
            immediate,
        } => {
            wr.wr.rdma = verbs::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
                remote_addr: addr,
                rkey,
            };
            match immediate {
                Some(word) => {
                    wr.__bindgen_anon_1.imm_data = word.to_be();
                    verbs::IBV_WR_RDMA_WRITE_WITH_IMM
                }
                None => verbs::IBV_WR_RDMA_WRITE,
            }
        }
    };
    wr
}
