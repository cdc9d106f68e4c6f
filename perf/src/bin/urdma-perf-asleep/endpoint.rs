//! A queue pair with a completion queue and a completion channel of its own.

#![allow(unsafe_code)]

use std::io::Error;
use std::ptr;

use rdma_core_sys::verbs;
use urdma_perf::verbs_setup::{made, poll, register, request_notification};

use crate::cm::{self, Id};
use crate::text;

/// The verbs objects of a connection, which exist until the process ends.
pub(crate) struct Endpoint {
    pd: *mut verbs::ibv_pd,
    channel: *mut verbs::ibv_comp_channel,
    cq: *mut verbs::ibv_cq,
    qp: *mut verbs::ibv_qp,
}

/// Registered memory, which exists until the process ends.
pub(crate) struct Memory {
    start: *mut u8,
    lkey: u32,
}

impl Memory {
    pub(crate) fn at(&self, offset: u32) -> *mut u8 {
        self.start.wrapping_add(offset as usize)
    }

    pub(crate) fn sge(&self, offset: u32, octets: u32) -> verbs::ibv_sge {
        verbs::ibv_sge {
            addr: self.at(offset) as u64,
            length: octets,
            lkey: self.lkey,
        }
    }
}

impl Endpoint {
    /// Makes them with room for `depth` work requests each way; the completion queue is armed.
    pub(crate) fn new(id: Id, depth: u32) -> Result<Self, String> {
        let entries = i32::try_from(2 * depth).map_err(text)?;
        // SAFETY: the identifier lives and has a device, whose context is open.
        let context = unsafe { (*id).verbs };
        // SAFETY: the context is open.
        let pd = made("ibv_alloc_pd", unsafe { verbs::ibv_alloc_pd(context) })?;
        // SAFETY: the context is open.
        let channel = unsafe { verbs::ibv_create_comp_channel(context) };
        let channel = made("ibv_create_comp_channel", channel)?;
        // SAFETY: context and channel are valid; no user context is given.
        let cq = unsafe { verbs::ibv_create_cq(context, entries, ptr::null_mut(), channel, 0) };
        let cq = made("ibv_create_cq", cq)?;
        cm::make_queue_pair(id, pd, cq, depth)?;
        // SAFETY: the call has given the identifier a queue pair.
        let qp = unsafe { (*id).qp };
        let endpoint = Self {
            pd,
            channel,
            cq,
            qp,
        };
        endpoint.arm()?;
        Ok(endpoint)
    }

    pub(crate) fn qp(&self) -> *mut verbs::ibv_qp {
        self.qp
    }

    /// Allocates and registers memory.
    pub(crate) fn memory(&self, octets: u32) -> Result<Memory, String> {
        let memory = Box::leak(vec![0; octets as usize].into_boxed_slice());
        // SAFETY: the domain lives; the memory is never freed.
        let region = unsafe { register(self.pd, memory)? };
        // SAFETY: the region was just made.
        let lkey = unsafe { (*region).lkey };
        let start = memory.as_mut_ptr();
        Ok(Memory { start, lkey })
    }

    pub(crate) fn arm(&self) -> Result<(), String> {
        // SAFETY: the queue lives.
        unsafe { request_notification(self.cq) }
    }

    #[inline]
    pub(crate) fn poll(&self, found: &mut [verbs::ibv_wc]) -> Result<usize, String> {
        // SAFETY: the queue lives.
        unsafe { poll(self.cq, found) }
    }

    /// Takes an event from the completion channel, and waits until there is one.
    pub(crate) fn take_event(&self) -> Result<(), String> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, both results are ours.
        let status = unsafe { verbs::ibv_get_cq_event(self.channel, &mut cq, &mut context) };
        if status != 0 {
            return Err(format!("ibv_get_cq_event: {}", Error::last_os_error()));
        }
        // SAFETY: the call has given our queue, of which one event was taken.
        unsafe { verbs::ibv_ack_cq_events(cq, 1) };
        Ok(())
    }
}
