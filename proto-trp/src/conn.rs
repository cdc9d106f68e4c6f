//! The connection engine: the protocol state of one RC or UC queue pair, sans-IO.
//!
//! A [`Connection`] has no clock, socket, thread or application memory. Inputs are the time,
//! datagrams and work requests; outputs are datagrams, placements ([`Host`]), completions, events
//! and the next deadline. After RTR nothing is allocated but the packet windows, which double when
//! a path proves to need it, and the reorder buffer.
//!
//! The driver calls, in this order:
//!
//! 1. [`Connection::handle_datagram`] for everything that has arrived;
//! 2. [`Connection::handle_timeout`] if a deadline has passed;
//! 3. [`Connection::plan_transmit`], which says how large a buffer the next datagram needs, and
//!    [`Connection::write_transmit`], which writes it, until there is no plan; if the plan says
//!    that several may be sent, [`Connection::write_run`] writes them at once;
//! 4. [`Connection::next_deadline`].
//!
//! A connection may reach its peer in another process of the host through a channel
//! ([`Path::Channel`]; doc/spec/channel.md, sections 7 and 8). It has messages instead of
//! datagrams. For each message that arrives the driver calls [`Connection::settled`] with the count
//! that the message carries, and then [`Connection::handle_message`]. It then calls
//! [`Connection::plan_message`] and [`Connection::write_message`] until there is no plan or no
//! room.
//!
//! An acknowledgement that the peer requested can be sent directly after the datagram that
//! requested it. [`Connection::poll_transmit`] combines plan and write for a buffer of full size;
//! simulator, tests and fuzz targets use it.

mod ack;
mod ack_state;
mod arrived;
mod bits;
mod channel;
mod commit;
mod completion;
mod config;
mod connection;
mod ending;
mod host;
mod keepalive;
mod num;
mod outgoing;
mod packet;
mod peer;
mod phase;
mod placement;
mod plain;
mod plan;
mod predicted;
mod qp_state;
mod queues;
mod receive;
mod reorder;
mod responder;
mod rnr;
mod rxwindow;
mod segments;
mod send;
mod stats;
mod stream;
mod timers;
mod train;
mod transitions;
mod transmit;
mod transport;
mod types;
mod unreliable;

pub use channel::{
    answer_unknown, Answer, CellAtomic, CellRead, Handled, Message, MessagePlan, Target, Written,
};
pub use config::{
    ConnConfig, Path, RtrParams, RtsParams, MAX_INLINE, MAX_MESSAGE_OCTETS, MAX_RD_ATOMIC, MAX_SGE,
    MAX_WINDOW_PACKETS,
};
pub use connection::Connection;
pub use host::{AtomicOp, Host, ProtectionError, RemoteAccess};
pub use packet::{Datagram, HEAD_OCTETS};
pub use predicted::PREDICTED_OCTETS;
pub use qp_state::{QpState, TransitionError};
pub use stats::ConnStats;
pub use stream::CongestionAlgorithm;
pub use transmit::{Run, Transmit, TransmitPlan};
pub use types::{
    Completion, CompletionOp, Event, NoSharedRecv, Payload, PostError, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr, Sge, SharedRecv, Status, Trace, WindowBind,
};
pub use urdma_types::Time;
