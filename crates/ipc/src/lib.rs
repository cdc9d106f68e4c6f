//! The control protocol between urdmad, provider processes and the command line; the paths of an
//! instance; the machine's hugepages.
//!
//! - [`paths`]: the run directory of an instance; [`trust`]: whether a client uses it.
//! - [`personality`]: the type of the device, RoCE or iWARP; [`port_table`]: rdma_cm's ports.
//! - [`message`]: requests, answers and events; [`status`]: the contents of `urdma status`;
//!   [`process_counters`]: those of its counters that processes report; [`socket_reasons`]: why
//!   sockets stay with TCP; [`socket_rules`]: which do by configuration; [`fault`]: the parameters
//!   of `urdma fault`.
//! - [`capture`]: the options of a capture.
//! - [`metrics`]: a status as text for Prometheus.
//! - [`recordings`]: the flight recordings that urdmad has.
//! - [`packet`]: one JSON message per packet of a SOCK_SEQPACKET socket, with file descriptors.
//! - [`hugepages`]: the hugepages of the machine.
//! - [`client`]: the blocking client of providers and of the command line; [`error`]: its errors.
//!
//! The first message of a connection is [`message::Request::Hello`], which has
//! [`PROTOCOL_VERSION`]; its format never changes. Every request has an id that its answer repeats;
//! events are unsolicited. urdmad may answer a connection by [`message::FromDaemon::Refused`] only.
//! Closing the socket has the effect of [`message::Request::Detach`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod capture;
pub mod client;
pub mod error;
pub mod fault;
pub mod hugepages;
pub mod message;
pub mod metrics;
mod named;
pub mod packet;
pub mod paths;
pub mod personality;
pub mod port_table;
pub mod process_counters;
pub mod recordings;
pub mod socket_reasons;
pub mod socket_rules;
pub mod status;
pub mod trust;

pub use client::{Attaching, ControlClient, HostMemory};
pub use error::{ControlError, Refusal, RefusalKind};
pub use hugepages::HugepageInfo;
pub use message::{
    gid_table_len, Answer, Attached, Event, GidEntry, JoinedSocket, LeaseAnswer, LeaseParams,
    Request, Resolution, GROUPS_PER_PROCESS_MAX,
};
pub use paths::RunDir;
pub use personality::Personality;
pub use port_table::{CmPort, PortSharing, PortTable};
pub use process_counters::ProcessCounter;
pub use recordings::{Ended, RecordingInfo};
pub use socket_reasons::SocketReason;
pub use socket_rules::{SocketRule, SocketRules};
pub use status::{ProcessReport, SocketStatus, Status};

/// Version of the control protocol and of the memory that processes and urdmad share, which must be
/// the same on both sides.
pub const PROTOCOL_VERSION: u32 = 19;
