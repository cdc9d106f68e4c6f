//! Completion channels and asynchronous events: how the engine notifies the application.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use urdma_abi::spared::Spared;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncKind {
    /// IBV_EVENT_COMM_EST
    CommunicationEstablished,
    /// IBV_EVENT_QP_FATAL
    QpFatal,
    /// IBV_EVENT_QP_REQ_ERR
    QpRequestError,
    /// IBV_EVENT_QP_ACCESS_ERR
    QpAccessError,
    /// IBV_EVENT_SQ_DRAINED
    SqDrained,
    /// IBV_EVENT_QP_LAST_WQE_REACHED
    LastRecvReached,
    /// IBV_EVENT_SRQ_LIMIT_REACHED
    SrqLimitReached,
    /// IBV_EVENT_DEVICE_FATAL: urdmad has ended.
    DeviceFatal,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The kind of an event.
    pub kind: AsyncKind,
    /// [`super::QpConfig::cookie`] of the queue pair, or [`super::SrqConfig::cookie`] of the queue,
    /// it happened to; `None` for the device.
    pub element: Option<u64>,
}

/// A receiver of asynchronous events; one per opened device context.
pub trait EventSink: Send + Sync {
    /// Called under the engine's lock: must not block and must not call the engine.
    fn async_event(&self, event: AsyncEvent);
}

/// Ignores all events.
impl EventSink for () {
    fn async_event(&self, _: AsyncEvent) {}
}

/// A completion channel of the application.
pub trait CompletionSink: Send + Sync + std::fmt::Debug {
    /// Reports an event of the queue with this cookie. Called under the queue's lock: must not
    /// block and must not call the engine.
    fn notify(&self, cookie: u64);
}

/// The engine's end of a completion channel that is a socket.
#[derive(Debug)]
pub struct CompletionChannel {
    write_end: Spared,
}

impl CompletionChannel {
    /// A channel whose reader gets 8 octets per event; `write_end` must be non-blocking.
    pub fn new(write_end: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            write_end: write_end.into(),
        })
    }
}

impl CompletionSink for CompletionChannel {
    /// An event that finds the socket full is lost; that takes more unread events than there are
    /// armed completion queues.
    fn notify(&self, cookie: u64) {
        send_nowait(&self.write_end, &cookie.to_ne_bytes());
    }
}

/// Sends a record to a socket; it is lost if the socket is full.
pub fn send_nowait(socket: &Spared, octets: &[u8]) {
    // The C library's function is a cancellation point, and this is called from the data path.
    // SAFETY: the descriptor is open as long as `socket` lives, and `octets` holds the octets that
    // are sent; no address is named.
    unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            octets.as_ptr(),
            octets.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            std::ptr::null::<libc::sockaddr>(),
            0,
        )
    };
}
