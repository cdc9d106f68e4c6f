//! What callers name, and what they are told.

use arrayvec::ArrayVec;

use crate::header::HeaderOctets;
use crate::slots::Id;

/// Octets of an atomic operation.
pub const ATOMIC_OCTETS: u32 = 8;
/// Elements of a request that a pool can be configured for.
pub const ELEMENTS_MAX: usize = 16;

/// An owner of virtual queue pairs and local regions. The caller chooses the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(pub u32);

/// A node that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub(crate) Id);

impl NodeId {
    /// Its place in a table of nodes: that of one that was removed, or the next one, from 0.
    pub fn index(self) -> usize {
        self.0.slot as usize
    }
}

/// A virtual queue pair. The id of one that was closed never names another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtualId(pub(crate) Id);

/// A local region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalRegionId(pub(crate) Id);

/// A region of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegionId(pub(crate) Id);

macro_rules! bits {
    ($($name:ident),+) => {$(
        impl $name {
            /// The number by which a program in another language names it.
            pub fn to_bits(self) -> u64 {
                u64::from(self.0.generation) << 32 | u64::from(self.0.slot)
            }

            /// What has this number. Calls refuse numbers that nothing has.
            pub fn from_bits(bits: u64) -> Self {
                let [g3, g2, g1, g0, slot @ ..] = bits.to_be_bytes();
                Self(Id {
                    slot: u32::from_be_bytes(slot),
                    generation: u32::from_be_bytes([g3, g2, g1, g0]),
                })
            }
        }
    )+};
}

bits!(VirtualId, LocalRegionId, RemoteRegionId);

/// One incarnation of a shared queue pair: the one that replaces it has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhysicalId {
    pub(crate) slot: u16,
    pub(crate) generation: u16,
}

impl PhysicalId {
    /// Its place in a table of shared queue pairs: that of the one that it replaces, or the next
    /// one, from 0.
    pub fn index(self) -> usize {
        self.slot.into()
    }
}

/// One end of a connection, as its pool names it to the other one: a request that names the same
/// place of the same pool, with a later generation, replaces the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionName {
    /// The random number of the pool (`MessageConfig::epoch`).
    pub epoch: u32,
    /// The place.
    pub slot: u16,
    /// The incarnation, modulo 2^16.
    pub generation: u16,
}

/// What may be done with memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// As the destination of an operation; what an RDMA Read needs locally and a Write remotely.
    pub write: bool,
    /// RDMA Reads from it. Local memory can always be read.
    pub read: bool,
    /// Atomics. Locally, they need `write`.
    pub atomic: bool,
}

impl Access {
    /// Everything.
    pub const ALL: Self = Self {
        write: true,
        read: true,
        atomic: true,
    };

    /// Whether an operation is permitted, at the node's memory.
    #[inline(always)]
    pub(crate) fn permits(self, operation: Operation) -> bool {
        if operation == Operation::Read {
            // Without a table of jumps for the others.
            return self.read;
        }
        match operation {
            Operation::Read | Operation::Write => self.write,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => self.atomic,
            Operation::Send { .. } => true,
        }
    }
}

/// Memory that the caller has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRegion {
    /// The only user whose requests may name it.
    pub user: UserId,
    /// Its first address.
    pub addr: u64,
    /// Its length.
    pub len_octets: u64,
    /// Its key.
    pub lkey: u32,
    /// Whether it may be a destination.
    pub access: Access,
}

/// Memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// Whose it is.
    pub node: NodeId,
    /// Its first address.
    pub addr: u64,
    /// Its length.
    pub len_octets: u64,
    /// Its key.
    pub rkey: u32,
    /// What the node permits.
    pub access: Access,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA Read: from the node's memory into local memory.
    Read,
    /// RDMA Write.
    Write,
    /// Atomic compare and swap of 8 octets; the word before it is placed into local memory.
    CompareSwap {
        /// What the word is compared with.
        expected: u64,
        /// What replaces it if it is equal.
        swap: u64,
    },
    /// Atomic fetch and add of 8 octets; the word before it is placed into local memory.
    FetchAdd {
        /// What is added.
        add: u64,
    },
    /// Send, by [`crate::Pool::post_send`] only.
    Send {
        /// Immediate data.
        immediate: Option<u32>,
    },
}

impl Operation {
    /// Whether executing it twice differs from executing it once. A Send is not delivered twice.
    pub(crate) fn has_effect(self) -> bool {
        !matches!(self, Self::Read | Self::Send { .. })
    }

    pub(crate) fn is_send(self) -> bool {
        matches!(self, Self::Send { .. })
    }

    /// Whether it writes into its elements.
    pub(crate) fn writes_locally(self) -> bool {
        !matches!(self, Self::Write | Self::Send { .. })
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// A request of a user, without its local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The user's number for it (`wr_id`).
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// The node's region.
    pub remote: RemoteRegionId,
    /// The first address at the node.
    pub remote_addr: u64,
    /// Whether its success gives a completion; a failure always does.
    pub is_signaled: bool,
}

/// A Send of a user, without its local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The user's number for it (`wr_id`).
    pub id: u64,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether its success gives a completion; a failure always does.
    pub is_signaled: bool,
}

/// The queues of a virtual queue pair that has Sends and Receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Requests, with their completions.
    pub requests: u32,
    /// Receives, with their completions.
    pub receives: u32,
}

/// The state of a virtual queue pair that has Sends and Receives. Each state but the first is
/// entered by a message of the node, a failure, or [`crate::Pool::accept`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndState {
    /// The service has not answered. One-sided requests are posted, Sends wait.
    Opening,
    /// The service of this end has accepted it, and the node has not sent anything since.
    Accepted,
    /// Both ends know each other.
    Open,
    /// The service has refused it, or the node has no service.
    Refused,
    /// The other end was closed, or one of them has failed.
    Closed,
}

/// A Receive that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The user's number.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// The length of the message.
    pub len_octets: u32,
    /// The immediate data of the Send.
    pub immediate: Option<u32>,
}

/// What the driver is to do with a buffer of a Receive of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "an allocation for each copy costs more"
)]
pub enum BufferAction {
    /// Copy the octets of the user, behind the header, to its memory. Elements have the length of
    /// these in all.
    Copy {
        /// The number of the buffer.
        buffer: u32,
        /// Where they go.
        elements: ArrayVec<Sge, ELEMENTS_MAX>,
    },
    /// Post a Receive with the buffer to the queue pair.
    Post {
        /// The queue pair, if it is not destroyed.
        physical: PhysicalId,
        /// The number of the buffer.
        buffer: u32,
    },
    /// Post a Receive with the buffer to the receive queue of the target, over initiators.
    PostToTarget {
        /// The number of the buffer.
        buffer: u32,
    },
}

/// An element of the scatter-gather list of a request: local memory that it reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// The local region.
    pub local: LocalRegionId,
    /// The first address.
    pub addr: u64,
    /// The length; 8 for atomics.
    pub len_octets: u32,
}

/// An element as it is posted, in the layout of `struct ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// The first address.
    pub addr: u64,
    /// The length.
    pub len_octets: u32,
    /// The key of the local region.
    pub lkey: u32,
}

/// How a request ended, as `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It was executed once.
    Success,
    /// It was behind one that failed, or the queue pair was taken to ERR.
    Flushed,
    /// The node does not permit the access.
    RemoteAccess,
    /// The node does not accept the request.
    RemoteInvalidRequest,
    /// The node could not complete it.
    RemoteOperation,
    /// The node did not answer, or its end of the virtual queue pair does not exist any more.
    RetryExceeded,
    /// Of a Receive: the message is longer.
    LocalLength,
    /// Another status, by its number in `ibv_wc_status`.
    Other(u32),
}

impl Status {
    /// Whether the node itself refused the request: it executes nothing that was sent behind it
    /// over the same queue pair.
    pub(crate) fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::RemoteAccess | Self::RemoteInvalidRequest | Self::RemoteOperation
        )
    }
}

/// The completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The user's number.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What it did.
    pub operation: Operation,
    /// Its length.
    pub len_octets: u32,
}

/// The state of a virtual queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VirtualState {
    /// It takes requests.
    Ready,
    /// A request has failed, and all behind it; `reset` makes it ready.
    Error,
}

/// The state of a shared queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysicalState {
    /// Not connected, since no virtual queue pair has asked for it since it could not be.
    Down,
    /// The driver connects it; requests wait.
    Connecting,
    /// The node has asked for it, and the driver has accepted; requests wait.
    Accepting,
    /// Requests are posted.
    Ready,
    /// It has failed; the driver destroys it.
    Failing,
}

/// A work request that the driver posts, beside its scatter-gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To this queue pair.
    pub physical: PhysicalId,
    /// To this node.
    pub node: NodeId,
    /// With this number.
    pub wr_id: u64,
    /// What it does.
    pub operation: Operation,
    /// Its remote address.
    pub remote_addr: u64,
    /// The key of the remote region.
    pub rkey: u32,
    /// Whether it has a completion.
    pub is_signaled: bool,
    /// Of a Send, what is sent before its elements.
    pub header: Option<HeaderOctets>,
}

/// Whether the driver could post a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It was.
    Accepted,
    /// The queue pair does not take it.
    Refused,
}

/// What the driver is to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create a queue pair and connect it to the node, then call `handle_connected` or
    /// `handle_unreachable`. It is void once the state of the queue pair is another one than
    /// [`PhysicalState::Connecting`].
    Connect(PhysicalId, NodeId),
    /// Create an initiator, then call `handle_connected`, or `handle_unreachable` if there can be
    /// none.
    Create(PhysicalId),
    /// Post the Receives for messages of a further node, ask the node with what
    /// [`crate::Pool::ask`] returns, unless it returns nothing, then call `handle_answered` or
    /// `handle_unanswered`.
    Ask(NodeId),
    /// Take the queue pair to ERR, or give up connecting it, handle the completions that there are,
    /// destroy it, and call `handle_destroyed`.
    Destroy(PhysicalId),
    /// Deregister memory: no request uses it any more.
    Deregister(LocalRegionId),
}
