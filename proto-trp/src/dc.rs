//! The dynamically connected transport (doc/spec/trp.md, section 17; doc/dc.md): an initiator sends
//! requests to any target, one target at a time, and a target serves any number of initiators with
//! a bounded number of contexts.
//!
//! Both are sans-IO and made of connections of [`crate::conn`]: a [`DcInitiator`] has one while it
//! works with a target, and a [`DcTarget`] has one for each context. The driver calls them as it
//! calls a [`crate::conn::Connection`]: `handle_datagram` for what has arrived, `handle_timeout`
//! when a deadline has passed, `plan_transmit` and `write_transmit` until there is no plan,
//! `next_deadline`. `poll_transmit` combines both steps for a buffer of full size.

#[cfg(test)]
mod check;
mod contexts;
mod ends;
mod fault;
mod floors;
mod initiator;
mod known;
mod lists;
mod requests;
mod target;
mod timers;

pub use ends::{DcArrival, DcPlan, DcSource, DcTargetAddress};
pub use initiator::{DcInitiator, DcInitiatorConfig};
pub use target::{DcTarget, DcTargetConfig, DcTargetStats, DcVerdict};

use urdma_types::{Psn, Qpn};

/// Maximum number of reads and atomics in progress of one connection.
pub const DC_RD_ATOMIC: u8 = 16;
/// The longest acknowledge timeout, as in `ibv_modify_qp`: 4.3 s.
pub const DC_TIMEOUT_MAX: u8 = 20;
/// `TIMEOUT_STRETCH` times the unit of `timeout`; see doc/spec/trp.md, section 7.7.
const TIMEOUT_UNIT_NS: u64 = 4 * 4_096;

/// The silence after which an initiator gives a target up.
fn silence_ns(timeout: u8, retry_cnt: u8) -> u64 {
    (TIMEOUT_UNIT_NS << timeout) * (u64::from(retry_cnt) + 1)
}

/// The initial PSN of the stream from `sender` to `receiver` in the connection with this epoch and
/// token.
// R17.1-1
//# The initial PSN of each stream is a function of both QPNs and the epoch, which both ends MUST
//# compute as follows: m = (epoch XOR (sender QPN << 24 receiver QPN) XOR (token << 32))
fn initial_psn(sender: Qpn, receiver: Qpn, epoch: u64, token: u32) -> Psn {
    let ends = u64::from(sender.to_u32()) << 24 | u64::from(receiver.to_u32());
    let mixed = (epoch ^ ends ^ u64::from(token) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let [_, high, middle, low, ..] = (mixed ^ mixed >> 32).to_be_bytes();
    Psn::new(u32::from_be_bytes([0, high, middle, low]))
}
