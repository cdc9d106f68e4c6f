//! The interface between driver and connection: work requests, completions, events and errors.

use urdma_zeroed::zeroed;

/// One scatter-gather element of the application's memory; opaque to the connection, only the host
/// interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address of the first octet.
    pub addr: u64,
    /// Octets.
    pub length: u32,
    /// Local key of the memory region.
    pub lkey: u32,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Message into a receive buffer of the peer.
    Send,
    /// Message that also invalidates a key of the peer.
    SendInvalidate {
        /// The key to invalidate.
        stag: u32,
    },
    /// Write into the peer's memory.
    Write {
        /// Where to.
        remote: RemoteAddr,
    },
    /// Read from the peer's memory into the scatter-gather list.
    Read {
        /// Where from.
        remote: RemoteAddr,
    },
    /// 64-bit compare and swap in the peer's memory; the old value goes to the scatter-gather list.
    CompareSwap {
        /// The operand's place.
        remote: RemoteAddr,
        /// Value to compare with.
        compare: u64,
        /// Value to store when equal.
        swap: u64,
    },
    /// 64-bit fetch and add in the peer's memory; the old value goes to the scatter-gather list.
    FetchAdd {
        /// The operand's place.
        remote: RemoteAddr,
        /// Value to add.
        add: u64,
    },
    /// Atomic write: replaces a 64-bit word of the peer's memory, after the effects of all earlier
    /// requests.
    AtomicWrite {
        /// The word's place.
        remote: RemoteAddr,
        /// The new value, in memory order.
        octets: [u8; 8],
    },
    /// Invalidates a key of this end; nothing is sent.
    LocalInvalidate {
        /// The key.
        stag: u32,
    },
    /// Binds a memory window of this end; nothing is sent.
    BindWindow(WindowBind),
}

impl SendOp {
    /// Whether it is a request on queue 1, to which the peer responds with data.
    #[inline]
    pub const fn is_request(&self) -> bool {
        matches!(
            self,
            SendOp::Read { .. }
                | SendOp::CompareSwap { .. }
                | SendOp::FetchAdd { .. }
                | SendOp::AtomicWrite { .. }
        )
    }
}

/// The parameters of a memory window's binding; only the host interprets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WindowBind {
    /// The new key of the window.
    pub key: u32,
    /// Local key of the underlying region.
    pub lkey: u32,
    /// The peer's access rights, in the host's encoding.
    pub access: u32,
    /// Address of the first octet.
    pub addr: u64,
    /// Octets.
    pub len: u64,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RemoteAddr {
    /// The steering tag (`rkey`).
    pub stag: u32,
    /// Tagged offset; the virtual address in verbs.
    pub to: u64,
}

/// Flags of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// Generate a completion for success, too.
    pub signaled: bool,
    /// Start only after earlier reads and atomics have finished.
    pub fence: bool,
    /// Raise a solicited event at the peer.
    pub solicited: bool,
}

/// The payload of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, gathered on transmission.
    Sges(&'a [Sge]),
    /// Inline data: these parts, concatenated, copied by `post_send`.
    Inline(&'a [&'a [u8]]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's identifier.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Immediate data (in host order) of a send or write.
    pub imm: Option<u32>,
    /// Flags.
    pub flags: SendFlags,
    /// The peer's shared receive queue, on a connection that names one with each request (XRC);
    /// else ignored.
    pub shared_queue: u32,
    /// The payload.
    pub payload: Payload<'a>,
}

impl SendWr<'_> {
    /// Whether it is a Send or Write that waits for nothing, invalidates nothing and has no
    /// immediate data.
    #[inline(always)]
    pub(super) const fn is_plain(&self) -> bool {
        self.has_one_head() && self.imm.is_none()
    }

    /// Whether it is plain but for its immediate data, for which the head of a message has room.
    #[inline(always)]
    pub(super) const fn has_one_head(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::Write { .. }) && !self.flags.fence
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The application's identifier.
    pub wr_id: u64,
    /// The receive buffer.
    pub sges: &'a [Sge],
}

/// A receive work request taken from a shared receive queue; see [`super::Host::take_shared_recv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SharedRecv {
    /// The application's identifier.
    pub wr_id: u64,
    /// Number of scatter-gather elements that were filled in.
    pub sge_count: u8,
}

zeroed!(Sge, SharedRecv);

/// Why no work request could be taken from a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSharedRecv {
    /// The queue is empty.
    Empty,
    /// The queue does not exist.
    NoQueue,
}

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The state of the queue pair does not allow this request (EINVAL).
    InvalidState,
    /// The queue is full (ENOMEM).
    QueueFull,
    /// More scatter-gather elements than the queue's limit (EINVAL).
    TooManySges,
    /// More inline data than the queue's limit (EINVAL).
    InlineTooLong,
    /// More than 2^31 octets (EINVAL).
    MessageTooLong,
    /// Flags or lengths that the operation does not allow (EINVAL).
    InvalidRequest,
}

/// The status of a completion; the names are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// A message longer than the receive buffer.
    LocalLengthError,
    /// An operation that this queue pair does not have, or cannot do as it is set up.
    LocalQpOperationError,
    /// Local memory that the work request must not access.
    LocalProtectionError,
    /// Local memory that the peer's write with immediate data must not access.
    LocalAccessError,
    /// Not started or not finished when the queue pair failed.
    WorkRequestFlushed,
    /// The peer had too short a receive buffer, or refused the request as invalid.
    RemoteInvalidRequestError,
    /// The peer's memory protection refused the access.
    RemoteAccessError,
    /// The peer failed while executing the request.
    RemoteOperationError,
    /// The peer did not answer.
    RetryExceeded,
    /// The peer had no receive buffer for too long.
    RnrRetryExceeded,
    /// A memory window that could not be bound, or a key that this end could not invalidate:
    /// InfiniBand's memory management operation error.
    WindowBindError,
}

/// What a tracer is told of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// The probe timeout has expired.
    ProbeTimeout {
        /// Timeouts in a row, this one included.
        backoff: u32,
        /// The time until the next one, nanoseconds.
        interval_ns: u64,
    },
    /// A packet is sent again.
    SentAgain,
    /// The congestion window has changed.
    Window {
        /// Its size in packets.
        packets: u32,
        /// The smoothed round-trip time, nanoseconds.
        rtt_ns: u64,
    },
    /// A work request fails, and with it the connection.
    Failed(Status),
}

/// The operation of a completed work request; the names are those of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionOp {
    /// Send.
    Send,
    /// Write.
    Write,
    /// Read.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Atomic write.
    AtomicWrite,
    /// Local invalidation.
    LocalInvalidate,
    /// Memory window bound.
    BindWindow,
    /// Message received.
    Recv,
    /// Write with immediate data received.
    RecvWriteImm,
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The application's identifier of the request.
    pub wr_id: u64,
    /// Status.
    pub status: Status,
    /// Operation.
    pub op: CompletionOp,
    /// Octets received or read; the length of the message otherwise.
    pub byte_len: u32,
    /// Immediate data received, in host order.
    pub imm: Option<u32>,
    /// Key that the peer invalidated.
    pub invalidated: Option<u32>,
    /// The peer requested a solicited event, or the request failed.
    pub solicited: bool,
}

impl Completion {
    /// Whether it is a completion of the send queue.
    #[inline]
    pub const fn is_send(&self) -> bool {
        // Those of the receive queue are the last ones.
        (self.op as u8) < CompletionOp::Recv as u8
    }
}

/// Asynchronous events of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// First packet received in RTR (`IBV_EVENT_COMM_EST`).
    Established,
    /// The queue pair failed, by a local error or the peer's Terminate (`IBV_EVENT_QP_FATAL`).
    Fatal,
    /// The peer sent an invalid request (`IBV_EVENT_QP_REQ_ERR`).
    RemoteInvalidRequest,
    /// The peer violated memory access rights (`IBV_EVENT_QP_ACCESS_ERR`).
    RemoteAccessError,
    /// The peer's process or queue pair is gone without a FIN. The queue pair is in ERROR if sends
    /// were outstanding or [`super::ConnConfig::fails_with_peer`] is set.
    PeerGone,
    /// The peer destroyed its queue pair (FIN).
    PeerClosed,
    /// The send queue has drained in SQD (`IBV_EVENT_SQ_DRAINED`).
    SqDrained,
    /// The connection has failed and takes no more requests from the shared receive queue
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastRecvReached,
}
