//! Errors of callers. Each is returned before anything has changed.

use thiserror::Error;

use crate::credit::{SHARE_MAX, SHARE_MIN};
use crate::header::HEADER_OCTETS;
use crate::types::ELEMENTS_MAX;

/// A configuration that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A depth or a limit is 0.
    #[error("{0} is 0; it has to be at least 1")]
    Zero(&'static str),
    /// A request would have more elements than there may be.
    #[error("elements_max is {0}; it has to be at most {ELEMENTS_MAX}")]
    Elements(u32),
    /// The completion queue cannot hold the completions of one queue pair.
    #[error(
        "a completion queue of {cq} entries cannot serve a queue pair of {sq} requests: \
         cq_depth has to be at least sq_depth"
    )]
    CompletionQueue {
        /// Its depth.
        cq: u32,
        /// The depth of a send queue.
        sq: u32,
    },
    /// A pool of connections has nothing to switch between.
    #[error("only a pool of initiators switches to connections")]
    SwitchTransport,
    /// The completion queue cannot serve the connections beside the initiators.
    #[error(
        "a completion queue of {cq} entries cannot serve {shared} queue pairs of {sq} requests: \
         cq_depth has to be at least their product"
    )]
    SwitchPlaces {
        /// Its depth.
        cq: u32,
        /// Initiators and connections.
        shared: u64,
        /// The depth of a send queue.
        sq: u32,
    },
    /// A share of buffers is too small or too large.
    #[error("a share of {0} buffers does not work: it has to be {SHARE_MIN} to {SHARE_MAX}")]
    Share(u16),
    /// A buffer has no room for octets of a user.
    #[error("a buffer of {0} octets has no room behind a header of {HEADER_OCTETS}")]
    Buffer(u32),
    /// The pool exchanges messages already.
    #[error("the pool exchanges messages already, with numbers that peers may know")]
    MessagesOffered,
}

/// A request that is refused (check 1 and 2 of doc/pool.md): EINVAL, but where another is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// No virtual queue pair has this id.
    #[error("the virtual queue pair is closed")]
    Closed,
    /// Its state takes no request.
    #[error("the virtual queue pair is in ERR: reset it first")]
    InvalidState,
    /// So many requests are not complete, or their completions not polled: ENOMEM.
    #[error("the send queue is full: poll completions first")]
    QueueFull,
    /// The virtual queue pair was opened without this operation: EOPNOTSUPP.
    #[error("the virtual queue pair was opened without this operation")]
    Operation,
    /// It has more elements than configured, or, if it is an atomic, another number than one.
    #[error("the number of elements is not possible for the operation")]
    Elements,
    /// The message is longer than configured, or an atomic is not of 8 octets.
    #[error("the length is not possible for the operation")]
    Length,
    /// The remote address of an atomic is not a multiple of 8.
    #[error("an atomic needs a remote address that is a multiple of 8")]
    Alignment,
    /// No local region of this user has the id of an element.
    #[error("no local region of this user has the id")]
    LocalRegion,
    /// An element goes beyond its local region.
    #[error("an element goes beyond its local region")]
    LocalBounds,
    /// A local region is no destination: EACCES.
    #[error("a local region is registered without the right to be written")]
    LocalAccess,
    /// No region of the node has the id.
    #[error("no region of this node has the id")]
    RemoteRegion,
    /// The request goes beyond the remote region.
    #[error("the request goes beyond the remote region")]
    RemoteBounds,
    /// The node does not permit the operation there: EACCES.
    #[error("the node does not permit the operation there")]
    RemoteAccess,
    /// It is a Send or a Receive, and the virtual queue pair was opened without a service:
    /// EOPNOTSUPP.
    #[error("the virtual queue pair has no Sends and Receives: open it to a service")]
    OneSided,
    /// As many Receives are not complete, or their completions not polled: ENOMEM.
    #[error("the receive queue is full: poll completions of Receives first")]
    ReceiveQueueFull,
}

/// A call that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The id is that of nothing, or of something that has ended: EINVAL.
    #[error("nothing has the id, or no more")]
    Unknown,
    /// The memory's end has no address: EINVAL.
    #[error("the region exceeds the address space")]
    BadRegion,
    /// As many as there may be: ENOMEM.
    #[error("the limit of {0} is reached")]
    Limit(&'static str),
    /// The pool was not told to exchange messages: EOPNOTSUPP.
    #[error("the pool exchanges no messages: call offer_messages first")]
    NoMessages,
    /// The service is offered already: EADDRINUSE.
    #[error("the service is offered already")]
    ServiceInUse,
    /// The virtual queue pair has another end, which has ended: EINVAL.
    #[error("a virtual queue pair to a service cannot be reset: close it and open another one")]
    TwoEnded,
}
