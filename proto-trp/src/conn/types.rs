//! Work requests, completions, events and errors: what the driver and a connection say to one another.

/// One scatter-gather element of the application's memory; the connection never looks into it, only the host does.
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
    /// Replaces a 64-bit word of the peer's memory at once, after all that was done before it.
    AtomicWrite {
        /// The word's place.
        remote: RemoteAddr,
        /// The new value, as it lies in memory.
        octets: [u8; 8],
    },
    /// Takes the rights of a key of this end away; nothing is sent.
    LocalInvalidate {
        /// The key.
        stag: u32,
    },
    /// Gives a memory window of this end a new range; nothing is sent.
    BindWindow(WindowBind),
    /// A request that cannot succeed: it ends with `status` in its turn, and nothing is sent.
    Fail {
        /// What its completion says it was.
        op: CompletionOp,
        /// How it ends.
        status: Status,
    },
}

impl SendOp {
    /// Whether the peer answers it with data, on queue 1.
    #[inline]
    pub(super) const fn is_request(&self) -> bool {
        matches!(
            self,
            SendOp::Read { .. }
                | SendOp::CompareSwap { .. }
                | SendOp::FetchAdd { .. }
                | SendOp::AtomicWrite { .. }
        )
    }

    /// Whether it is done here, without the peer.
    #[inline]
    pub(super) const fn is_local(&self) -> bool {
        matches!(
            self,
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) | SendOp::Fail { .. }
        )
    }

    /// What the request's completion says it was.
    #[inline]
    pub(super) const fn completion_op(&self) -> CompletionOp {
        match *self {
            SendOp::Send | SendOp::SendInvalidate { .. } => CompletionOp::Send,
            SendOp::Write { .. } => CompletionOp::Write,
            SendOp::Read { .. } => CompletionOp::Read,
            SendOp::CompareSwap { .. } => CompletionOp::CompareSwap,
            SendOp::FetchAdd { .. } => CompletionOp::FetchAdd,
            SendOp::AtomicWrite { .. } => CompletionOp::AtomicWrite,
            SendOp::LocalInvalidate { .. } => CompletionOp::LocalInvalidate,
            SendOp::BindWindow(_) => CompletionOp::BindWindow,
            SendOp::Fail { op, .. } => op,
        }
    }
}

/// What a memory window gets; only the host looks into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WindowBind {
    /// The key that the window gets.
    pub key: u32,
    /// Local key of the region that it opens.
    pub lkey: u32,
    /// Rights that the peer gets, as the host numbers them.
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

/// Modifiers of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// Report success too.
    pub signaled: bool,
    /// Start only after earlier reads and atomics have finished.
    pub fence: bool,
    /// Raise a solicited event at the peer.
    pub solicited: bool,
}

/// Where a work request's octets are.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, gathered when sent.
    Sges(&'a [Sge]),
    /// Here, copied by `post_send`, concatenated.
    Inline(&'a [&'a [u8]]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Immediate data (in host order) of a send or write.
    pub imm: Option<u32>,
    /// Modifiers.
    pub flags: SendFlags,
    /// The peer's shared receive queue, on a connection that names one with each request; else ignored.
    pub shared_queue: u32,
    /// The octets.
    pub payload: Payload<'a>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The application's name for it.
    pub wr_id: u64,
    /// Where a message goes.
    pub sges: &'a [Sge],
}

/// A receive work request taken from a shared receive queue; see [`super::Host::take_shared_recv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SharedRecv {
    /// The application's name for it.
    pub wr_id: u64,
    /// Elements filled in.
    pub sge_count: u8,
}

/// Why a shared receive queue has no work request to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSharedRecv {
    /// There is none at the moment.
    Empty,
    /// There is no such queue.
    NoQueue,
}

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue pair is not in a state that takes this request (EINVAL).
    InvalidState,
    /// The queue is full (ENOMEM).
    QueueFull,
    /// More scatter-gather elements than the queue was made for (EINVAL).
    TooManySges,
    /// More inline octets than the queue was made for (EINVAL).
    InlineTooLong,
    /// More than 2^31 octets (EINVAL).
    MessageTooLong,
    /// Modifiers or lengths that do not fit the operation (EINVAL).
    InvalidRequest,
}

/// How a work request ended; the names are those of `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// A message longer than the receive buffer.
    LocalLengthError,
    /// An operation that this queue pair does not have, or cannot do as it is set up.
    LocalQpOperationError,
    /// Local memory that the work request must not touch.
    LocalProtectionError,
    /// Local memory that the peer's write with immediate data must not touch.
    LocalAccessError,
    /// Not started or not finished when the queue pair failed.
    WorkRequestFlushed,
    /// The peer had not enough room or did not understand.
    RemoteInvalidRequestError,
    /// The peer's memory protection refused.
    RemoteAccessError,
    /// The peer failed while doing it.
    RemoteOperationError,
    /// The peer did not answer.
    RetryExceeded,
    /// The peer had no receive buffer for too long.
    RnrRetryExceeded,
    /// A memory window that could not be bound, or a key that this end could not invalidate:
    /// InfiniBand's memory management operation error.
    WindowBindError,
}

/// What kind of work request ended; the names are those of `ibv_wc_opcode`.
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

/// A finished work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The application's name for the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was.
    pub op: CompletionOp,
    /// Octets received, or read; of the message otherwise.
    pub byte_len: u32,
    /// Immediate data received, in host order.
    pub imm: Option<u32>,
    /// Key that the peer invalidated.
    pub invalidated: Option<u32>,
    /// The peer asked for a solicited event, or the request failed.
    pub solicited: bool,
}

impl Completion {
    /// Whether it came off the send queue.
    #[inline]
    pub const fn is_send(&self) -> bool {
        !matches!(self.op, CompletionOp::Recv | CompletionOp::RecvWriteImm)
    }
}

/// What happened to a connection beside completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// First packet received in RTR (`IBV_EVENT_COMM_EST`).
    Established,
    /// The queue pair failed by a local error or the peer's Terminate (`IBV_EVENT_QP_FATAL`).
    Fatal,
    /// The peer asked for what it must not do (`IBV_EVENT_QP_REQ_ERR`).
    RemoteInvalidRequest,
    /// The peer touched memory it must not touch (`IBV_EVENT_QP_ACCESS_ERR`).
    RemoteAccessError,
    /// The peer's process or queue pair is gone without a FIN. The queue pair is in ERROR if sends were outstanding or
    /// [`super::ConnConfig::fails_with_peer`] is set.
    PeerGone,
    /// The peer destroyed its queue pair in order.
    PeerClosed,
    /// The send queue has drained in SQD (`IBV_EVENT_SQ_DRAINED`).
    SqDrained,
    /// The connection has failed and takes no more requests off the shared receive queue (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastRecvReached,
}
