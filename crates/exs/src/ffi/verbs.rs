//! Protection domains, memory regions, completion queues and their channels.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use rdma_core_sys::verbs;

use crate::error::Error;
use crate::ffi::cm::Id;
use crate::ffi::memory::Pages;
use crate::ffi::{borrowed, set_nonblocking};

// Applications link the system's libibverbs.
#[link(name = "ibverbs")]
extern "C" {}

/// A protection domain. Keys of its regions are valid for its queue pairs only.
#[derive(Debug)]
pub(crate) struct Domain {
    pd: *mut verbs::ibv_pd,
    /// Keeps the context open.
    id: Arc<Id>,
}

// SAFETY: libibverbs permits calls for an object from all threads.
unsafe impl Send for Domain {}
// SAFETY: libibverbs permits calls for an object from all threads.
unsafe impl Sync for Domain {}

impl Domain {
    /// A domain of the device that an identifier is bound to.
    pub(crate) fn new(id: &Arc<Id>) -> Result<Self, Error> {
        // SAFETY: the identifier keeps its context open.
        let pd = unsafe { verbs::ibv_alloc_pd(id.context()?) };
        if pd.is_null() {
            return Err(Error::of("ibv_alloc_pd"));
        }
        let id = Arc::clone(id);
        Ok(Self { pd, id })
    }

    pub(crate) fn raw(&self) -> *mut verbs::ibv_pd {
        self.pd
    }

    /// How many elements a work request may have.
    pub(crate) fn max_elements(&self) -> Result<usize, Error> {
        let mut attributes = verbs::ibv_device_attr::default();
        // SAFETY: the identifier keeps its context open, the attributes are ours.
        match unsafe { verbs::ibv_query_device(self.id.context()?, &mut attributes) } {
            0 => Ok(usize::try_from(attributes.max_sge).unwrap_or(1).max(1)),
            errno => Err(Error::from_errno("ibv_query_device", errno.abs())),
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all regions, queues and queue pairs of the domain hold a reference to it.
        unsafe { verbs::ibv_dealloc_pd(self.pd) };
    }
}

/// Who may access registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The device reads it for work requests of this end.
    Read,
    /// The device also writes what is received by SEND.
    Receive,
    /// The peer writes into it.
    RemoteWrite,
}

/// A memory region: an allocation that the device may access.
#[derive(Debug)]
pub(crate) struct Region {
    mr: *mut verbs::ibv_mr,
    /// Kept mapped while the device may access them.
    _pages: Arc<Pages>,
    _domain: Arc<Domain>,
}

// SAFETY: libibverbs permits calls for an object from all threads.
unsafe impl Send for Region {}
// SAFETY: libibverbs permits calls for an object from all threads.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        pages: &Arc<Pages>,
        access: Access,
    ) -> Result<Self, Error> {
        let access = match access {
            Access::Read => 0,
            Access::Receive => verbs::IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteWrite => verbs::IBV_ACCESS_LOCAL_WRITE | verbs::IBV_ACCESS_REMOTE_WRITE,
        };
        let (start, len) = (pages.start().as_ptr(), pages.len_octets());
        // SAFETY: the domain lives; the region holds a reference to the mapping.
        let mr = unsafe { verbs::ibv_reg_mr(domain.pd, start, len, access.cast_signed()) };
        if mr.is_null() {
            return Err(Error::of("ibv_reg_mr"));
        }
        Ok(Self {
            mr,
            _pages: Arc::clone(pages),
            _domain: Arc::clone(domain),
        })
    }

    /// The key for work requests of this end.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).lkey }
    }

    /// The key for RDMA Writes of the peer.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the region is registered. From then on its keys are invalid.
        unsafe { verbs::ibv_dereg_mr(self.mr) };
    }
}

/// A completion: success or the end of a work request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    /// The number that the request was posted with.
    pub(crate) id: u64,
    pub(crate) ok: bool,
    /// Of a receive, the immediate data that took it.
    pub(crate) immediate: Option<u32>,
    /// Of a receive, how many octets were received or written.
    pub(crate) len_octets: u32,
}

/// How many completions are polled at once.
const POLLED: usize = 32;

/// Completions that were polled. An empty one costs nothing: most polls find none.
#[derive(Debug)]
pub(crate) struct Found {
    entries: [MaybeUninit<verbs::ibv_wc>; POLLED],
    /// How many of them the provider has written.
    count: usize,
}

impl Found {
    pub(crate) fn new() -> Self {
        Self {
            entries: [const { MaybeUninit::uninit() }; POLLED],
            count: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The completions, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Completion> + '_ {
        self.entries[..self.count].iter().map(|entry| {
            // SAFETY: the provider has written it.
            completion_of(unsafe { entry.assume_init_ref() })
        })
    }
}

/// A completion queue with a channel of its own.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    cq: *mut verbs::ibv_cq,
    channel: *mut verbs::ibv_comp_channel,
    _domain: Arc<Domain>,
}

// SAFETY: libibverbs permits calls for an object from all threads.
unsafe impl Send for CompletionQueue {}
// SAFETY: libibverbs permits calls for an object from all threads.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(crate) fn new(domain: &Arc<Domain>, entries: usize) -> Result<Self, Error> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let context = domain.id.context()?;
        // SAFETY: the domain keeps the context open.
        let channel = unsafe { verbs::ibv_create_comp_channel(context) };
        if channel.is_null() {
            return Err(Error::of("ibv_create_comp_channel"));
        }
        // SAFETY: the domain keeps the context open; the channel was just made.
        let cq = unsafe { verbs::ibv_create_cq(context, entries, ptr::null_mut(), channel, 0) };
        if cq.is_null() {
            let error = Error::of("ibv_create_cq");
            // SAFETY: no queue uses the channel.
            unsafe { verbs::ibv_destroy_comp_channel(channel) };
            return Err(error);
        }
        let queue = Self {
            cq,
            channel,
            _domain: Arc::clone(domain),
        };
        // SAFETY: the channel lives.
        set_nonblocking(unsafe { (*channel).fd })?;
        Ok(queue)
    }

    pub(crate) fn raw(&self) -> *mut verbs::ibv_cq {
        self.cq
    }

    /// The descriptor that can be read when an armed queue has a completion.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as the queue, which the result borrows.
        borrowed(unsafe { (*self.channel).fd })
    }

    /// Finds the oldest completions.
    pub(crate) fn poll(&self, found: &mut Found) -> Result<(), Error> {
        found.count = 0;
        let most = i32::try_from(POLLED).unwrap_or(0);
        // SAFETY: the queue and its context live.
        let poll = unsafe { (*(*self.cq).context).ops.poll_cq };
        let poll = poll.ok_or_else(|| Error::from_errno("ibv_poll_cq", libc::ENOSYS))?;
        // SAFETY: the provider's function for its queue; there is room for `most`.
        let count = unsafe { poll(self.cq, most, found.entries.as_mut_ptr().cast()) };
        let count =
            usize::try_from(count).map_err(|_| Error::from_errno("ibv_poll_cq", libc::EIO))?;
        found.count = count.min(POLLED);
        Ok(())
    }

    /// Arms the queue: the next completion makes the descriptor readable.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        // SAFETY: the queue and its context live.
        let request = unsafe { (*(*self.cq).context).ops.req_notify_cq };
        let request =
            request.ok_or_else(|| Error::from_errno("ibv_req_notify_cq", libc::ENOSYS))?;
        // SAFETY: the provider's function for its queue.
        match unsafe { request(self.cq, 0) } {
            0 => Ok(()),
            errno => Err(Error::from_errno("ibv_req_notify_cq", errno.abs())),
        }
    }

    /// Takes the event of an armed queue, if there is one.
    pub(crate) fn take_event(&self) -> bool {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, both results are ours.
        let taken = unsafe { verbs::ibv_get_cq_event(self.channel, &mut cq, &mut context) } == 0;
        if taken {
            // SAFETY: the event was of the only queue of the channel.
            unsafe { verbs::ibv_ack_cq_events(cq, 1) };
        }
        taken
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold a reference to the queue, so none uses it; every event taken
        // was acknowledged.
        unsafe { verbs::ibv_destroy_cq(self.cq) };
        // SAFETY: its only queue is gone.
        unsafe { verbs::ibv_destroy_comp_channel(self.channel) };
    }
}

fn completion_of(entry: &verbs::ibv_wc) -> Completion {
    let ok = entry.status == verbs::IBV_WC_SUCCESS;
    let has_immediate = ok && entry.wc_flags & verbs::IBV_WC_WITH_IMM != 0;
    let immediate = has_immediate.then(|| {
        // SAFETY: the flag says that the field is immediate data; both variants are integers.
        u32::from_be(unsafe { entry.__bindgen_anon_1.imm_data })
    });
    Completion {
        id: entry.wr_id,
        ok,
        immediate,
        len_octets: entry.byte_len,
    }
}
