//! Traces of connections: a flight recorder that is always on, and static probes
//! (doc/tracing.md).
//!
//! - [`event`]: what happens to a connection, and its record of four words;
//! - [`recorder`]: writes records into the recording of a process, and passes the probes;
//! - [`probes`]: probes for bpftrace, perf, SystemTap and gdb, which cost a load while none of them
//!   is attached.
//!
//! The command line reads recordings and has the words for them (`src/trace`).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod event;
pub mod probes;
pub mod recorder;

pub use event::{CmMessage, CmState, Direction, End, Event, Kind, Link};
pub use recorder::Recorder;
