//! Queue pairs and their work requests.

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

/// A work request of the send queue.
#[derive(Clone, Copy, Debug)]
struct Request {
    id: u64,
    /// Its elements in those of the batch.
    elements: (usize, usize),
    operation: Operation,
    signaled: bool,
}

/// How many work requests are posted by one call.
const BATCH: usize = 16;

/// Work requests that are posted by one call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    requests: Vec<Request>,
    elements: Vec<verbs::ibv_sge>,
}

impl Batch {
    /// Adds a work request for these octets; the batch is not full.
    pub(crate) fn push(
        &mut self,
        id: u64,
        locals: impl IntoIterator<Item = Local>,
        operation: Operation,
        signaled: bool,
    ) {
        let first = self.elements.len();
        let locals = locals.into_iter().filter(|local| local.len_octets > 0);
        self.elements.extend(locals.map(Local::element));
        self.requests.push(Request {
            id,
            elements: (first, self.elements.len()),
            operation,
            signaled,
        });
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() == BATCH
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.elements.clear();
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

    /// Posts the work requests of a batch.
    pub(crate) fn post(&self, batch: &mut Batch) -> Result<(), Error> {
        let Batch { requests, elements } = batch;
        if requests.is_empty() {
            return Ok(());
        }
        // Most chains are short: what is not used of this is not written either.
        let mut chain = [const { MaybeUninit::<verbs::ibv_send_wr>::uninit() }; BATCH];
        let mut next: *mut verbs::ibv_send_wr = ptr::null_mut();
        for (place, request) in chain.iter_mut().zip(&*requests).rev() {
            let (first, end) = request.elements;
            let wr = place.write(work_request(request, &mut elements[first..end]));
            wr.next = next;
            next = wr;
        }
        let qp = self.raw();
        // SAFETY: the queue pair and its context live.
        let post = unsafe { (*(*qp).context).ops.post_send };
        let post = post.ok_or(Error::from_errno("ibv_post_send", libc::ENOSYS))?;
        let mut bad = ptr::null_mut();
        // SAFETY: the provider's function for its queue pair; the chain lives during the call.
        match unsafe { post(qp, next, &mut bad) } {
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
        let post = post.ok_or(Error::from_errno("ibv_post_recv", libc::ENOSYS))?;
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

fn work_request(request: &Request, elements: &mut [verbs::ibv_sge]) -> verbs::ibv_send_wr {
    let mut wr = verbs::ibv_send_wr {
        wr_id: request.id,
        sg_list: elements.as_mut_ptr(),
        num_sge: i32::try_from(elements.len()).unwrap_or(i32::MAX),
        ..Default::default()
    };
    if request.signaled {
        wr.send_flags = verbs::IBV_SEND_SIGNALED;
    }
    wr.opcode = match request.operation {
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
