//! Connections over a channel, the transport inside a host (doc/spec/channel.md, sections 7 and 8).
//! What a message does at its receiver, and what completes a request, is decided by the same code
//! as over TRP.
//!
//! A channel is reliable and in order, so there are no windows, acknowledgements and timers: the
//! driver reports how many messages the peer has settled. The peer refuses a message by an answer,
//! which precedes that report; the requests from it on are then taken back and sent again.

mod in_cell;
mod message;
mod receive;
mod refuse;
mod request_in_cell;
mod send;
mod state;

pub use in_cell::Target;
pub use message::{answer_unknown, Answer, Handled, Message, MessagePlan, Written};
pub use request_in_cell::{CellAtomic, CellRead};
pub(super) use state::ChannelState;
