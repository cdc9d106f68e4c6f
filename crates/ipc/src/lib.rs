//! What urdmad, provider processes and the command line say to each other, where an instance's
//! files are, and what they all look up of the machine.
//!
//! - [`paths`]: the run directory of an instance; [`trust`]: whether a client uses it.
//! - [`personality`]: what a device shows itself as; [`port_table`]: rdma_cm's ports.
//! - [`message`]: requests, answers and events; [`status`]: what `urdma status` shows; [`fault`]:
//!   what `urdma fault` can ask for.
//! - [`packet`]: one JSON message per packet of a SOCK_SEQPACKET socket, file descriptors beside
//!   it.
//! - [`hugepages`]: what the machine has of them.
//! - [`client`]: the blocking client of providers and of the command line; [`error`]: what can go
//!   wrong, as sentences.
//!
//! A conversation starts with [`message::Request::Hello`], which carries [`PROTOCOL_VERSION`]; its
//! form never changes. Every request has an id that its answer repeats; events come unasked. urdmad
//! may answer a connection by [`message::FromDaemon::Refused`] alone. Closing the socket is the
//! same as [`message::Request::Detach`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod client;
pub mod error;
pub mod fault;
pub mod hugepages;
pub mod message;
pub mod packet;
pub mod paths;
pub mod personality;
pub mod port_table;
pub mod status;
pub mod trust;

pub use client::{Attaching, ControlClient};
pub use error::{ControlError, Refusal, RefusalKind};
pub use hugepages::HugepageInfo;
pub use message::{
    gid_table_len, Answer, ArenaParams, Attached, Event, GidEntry, LeaseAnswer, LeaseParams,
    Request, Resolution, GROUPS_PER_PROCESS_MAX,
};
pub use paths::RunDir;
pub use personality::Personality;
pub use port_table::{CmPort, PortSharing, PortTable};
pub use status::{ProcessReport, Status};

/// Version of the control protocol; both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 4;
