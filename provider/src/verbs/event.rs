//! Asynchronous events: written to a socket from which libibverbs reads, and removed when their
//! object is destroyed.
//!
//! After an object is destroyed, no unread event may refer to it, and destruction waits until the
//! application has acknowledged all events that it has read. Events are therefore counted when they
//! are read ([`Unacknowledged`]), and unread ones are removed from the socket ([`discard`]).

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use libc::{pthread_cond_t, pthread_mutex_t};
use rdma_core_sys::verbs::{
    ibv_event_type, IBV_EVENT_COMM_EST, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED,
    IBV_EVENT_SRQ_LIMIT_REACHED,
};

use urdma_abi::event_socket::event_socket;

use super::errno::VerbsError;
use urdma_engine::{AsyncEvent, AsyncKind, CompletionChannel, EventSink};

/// Size of an asynchronous event as libibverbs reads it (`struct ib_uverbs_async_event_desc`): the
/// element in 8 octets, its type in 4, and 4 reserved.
const ASYNC_OCTETS: usize = 16;

/// Size of a completion event: the address of the `ibv_cq`.
pub(super) const COMPLETION_OCTETS: usize = 8;

/// The writing end of a context's asynchronous events.
pub(super) struct AsyncQueue {
    channel: Arc<CompletionChannel>,
    /// False if nothing was written since a look that has found nothing to keep: most objects are
    /// destroyed without a system call for their events.
    may_have_events: AtomicBool,
}

impl AsyncQueue {
    /// A queue, and the descriptor from which libibverbs reads, and which it closes.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(super) fn new() -> Result<(Arc<Self>, OwnedFd), VerbsError> {
        let ends = event_socket().map_err(|_| VerbsError::last_os_error())?;
        // SAFETY: the call has just created both, and they have no other owner.
        let [read_end, write_end] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        Ok((
            Arc::new(Self {
                channel: CompletionChannel::of_async_events(write_end),
                may_have_events: AtomicBool::new(false),
            }),
            read_end,
        ))
    }

    /// What a thread that reads the events sleeps on.
    pub(super) fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    fn write(&self, octets: &[u8]) {
        // Before, for a look that begins as soon as it is written; afterwards, since one that has
        // begun meanwhile may have missed it.
        self.may_have_events.store(true, Ordering::SeqCst);
        self.channel.send_record(octets);
        self.may_have_events.store(true, Ordering::SeqCst);
    }

    /// Removes the unread events of a queue pair or shared receive queue.
    pub(super) fn discard(&self, read_end: RawFd, element: u64) {
        if !self.may_have_events.swap(false, Ordering::SeqCst) {
            return;
        }
        discard::<ASYNC_OCTETS>(
            read_end,
            |record| record[..8] == element.to_ne_bytes(),
            |record| self.write(record),
        );
    }
}

impl EventSink for AsyncQueue {
    fn async_event(&self, event: AsyncEvent) {
        let mut record = [0; ASYNC_OCTETS];
        record[..8].copy_from_slice(&event.element.unwrap_or(0).to_ne_bytes());
        record[8..12].copy_from_slice(&event_type(event.kind).to_ne_bytes());
        self.write(&record);
    }
}

pub(super) const fn event_type(kind: AsyncKind) -> ibv_event_type {
    match kind {
        AsyncKind::CommunicationEstablished => IBV_EVENT_COMM_EST,
        AsyncKind::QpFatal => IBV_EVENT_QP_FATAL,
        AsyncKind::QpRequestError => IBV_EVENT_QP_REQ_ERR,
        AsyncKind::QpAccessError => IBV_EVENT_QP_ACCESS_ERR,
        AsyncKind::SqDrained => IBV_EVENT_SQ_DRAINED,
        AsyncKind::LastRecvReached => IBV_EVENT_QP_LAST_WQE_REACHED,
        AsyncKind::SrqLimitReached => IBV_EVENT_SRQ_LIMIT_REACHED,
        AsyncKind::DeviceFatal => IBV_EVENT_DEVICE_FATAL,
    }
}

/// The number of events of one object that the application has read and must acknowledge.
#[derive(Default)]
pub(super) struct Unacknowledged {
    read: AtomicU32,
}

impl Unacknowledged {
    /// Counts an event that was read.
    pub(super) fn count(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the application has acknowledged all of them.
    ///
    /// # Safety
    /// The three belong to one initialized object of libibverbs; `mutex` guards `acknowledged`, and
    /// `cond` is signaled when it changes.
    pub(super) unsafe fn wait(
        &self,
        mutex: *mut pthread_mutex_t,
        cond: *mut pthread_cond_t,
        acknowledged: *const u32,
    ) {
        // SAFETY: by the caller's promise; the counter is read under its mutex.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            while acknowledged.read() != self.read.load(Ordering::Relaxed) {
                libc::pthread_cond_wait(cond, mutex);
            }
            libc::pthread_mutex_unlock(mutex);
        }
    }
}

/// Removes the unread records of `OCTETS` octets that are `unwanted`, and writes the others back in
/// order.
pub(super) fn discard<const OCTETS: usize>(
    read_end: RawFd,
    unwanted: impl Fn(&[u8; OCTETS]) -> bool,
    write: impl Fn(&[u8]),
) {
    let mut kept = Vec::new();
    while let Some(record) = receive_nowait::<OCTETS>(read_end) {
        if !unwanted(&record) {
            kept.push(record);
        }
    }
    for record in &kept {
        write(record);
    }
}

fn receive_nowait<const OCTETS: usize>(read_end: RawFd) -> Option<[u8; OCTETS]> {
    let mut record = [0; OCTETS];
    // SAFETY: `record` has room for the octets asked for.
    let received = unsafe {
        libc::recv(
            read_end,
            record.as_mut_ptr().cast(),
            OCTETS,
            libc::MSG_DONTWAIT,
        )
    };
    (usize::try_from(received) == Ok(OCTETS)).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn event(kind: AsyncKind, element: u64) -> AsyncEvent {
        AsyncEvent {
            kind,
            element: Some(element),
        }
    }

    #[test]
    fn async_event_written_is_read_as_libibverbs_reads_it() {
        let (queue, read_end) = AsyncQueue::new().unwrap();
        queue.async_event(event(AsyncKind::QpFatal, 0x1122_3344_5566));
        let record = receive_nowait::<ASYNC_OCTETS>(read_end.as_raw_fd()).unwrap();
        assert_eq!(record[..8], 0x1122_3344_5566_u64.to_ne_bytes());
        assert_eq!(record[8..12], IBV_EVENT_QP_FATAL.to_ne_bytes());
        assert_eq!(record[12..], [0; 4]);
    }

    #[test]
    fn discard_of_one_element_keeps_the_others_in_order() {
        let (queue, read_end) = AsyncQueue::new().unwrap();
        for element in [1, 2, 3, 2, 4] {
            queue.async_event(event(AsyncKind::CommunicationEstablished, element));
        }
        queue.discard(read_end.as_raw_fd(), 2);
        for element in [1_u64, 3, 4] {
            let record = receive_nowait::<ASYNC_OCTETS>(read_end.as_raw_fd()).unwrap();
            assert_eq!(record[..8], element.to_ne_bytes());
        }
        assert_eq!(receive_nowait::<ASYNC_OCTETS>(read_end.as_raw_fd()), None);
    }

    #[test]
    fn discard_reads_nothing_where_nothing_was_written() {
        let (queue, read_end) = AsyncQueue::new().unwrap();
        let read_end = read_end.as_raw_fd();
        let record = [1; ASYNC_OCTETS];
        queue.channel.send_record(&record);
        queue.discard(read_end, u64::from_ne_bytes([1; 8]));
        assert_eq!(receive_nowait(read_end), Some(record), "it was not read");
        queue.write(&record);
        queue.discard(read_end, u64::from_ne_bytes([1; 8]));
        assert_eq!(receive_nowait::<ASYNC_OCTETS>(read_end), None);
    }

    #[test]
    fn async_event_without_reader_is_dropped_without_signal() {
        let (queue, read_end) = AsyncQueue::new().unwrap();
        drop(read_end);
        queue.async_event(event(AsyncKind::QpFatal, 1));
    }
}
