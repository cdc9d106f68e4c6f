//! The path of data: what comes, what is due, what leaves.
//!
//! | file | what it holds |
//! |---|---|
//! | `progress` | receive, send, timers: one pass |
//! | `receive`, `transmit` | packets in, packets out |
//! | `messages` | connections over channels: both directions |
//! | `in_cell` | reads, and writes with immediate data, of one cell over channels |
//! | `counts` | what the peers of channels have settled |
//! | `packets` | packets that came over channels |
//! | `packet_room` | room for packets in the messages of channels |
//! | `daemon_path` | the path of packets over urdmad |
//! | `kinds` | queue pairs that are not connections |

pub(crate) mod counts;
pub(crate) mod daemon_path;
pub(crate) mod in_cell;
pub(crate) mod kinds;
pub(crate) mod messages;
pub(crate) mod packet_room;
pub(crate) mod packets;
pub(crate) mod progress;
pub(crate) mod receive;
pub(crate) mod transmit;
