//! The queues of a queue pair: posted work requests, the segments that they become, and what of
//! them is done. They know no wire: which packets or messages carry segments is decided outside.

mod lists;
mod recv_queue;
mod segment;
mod send_queue;
mod wqe;

pub(super) use recv_queue::{RecvError, RecvQueue};
pub(super) use segment::{next_part, next_part_within, SegmentSource, SegmentSpec};
pub(super) use send_queue::{SendQueue, ATOMIC_OCTETS};
pub(super) use wqe::{Extra, Kind, SendWqe};
