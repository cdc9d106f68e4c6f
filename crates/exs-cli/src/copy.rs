//! Copies files to another host: see doc/streams.md, "File copy".
//!
//! `message` has what the two ends tell each other, `progress` the bar; `send` and `receive` are
//! the ends.

mod message;
mod progress;
pub(crate) mod receive;
pub(crate) mod send;
