//! The objects of verbs, each with its state: queue pairs, completion queues, shared receive
//! queues, regions, and the events that they report.
//!
//! | file | what it holds |
//! |---|---|
//! | `qp` | a queue pair as its callers see it |
//! | `entry` | a connected queue pair as the engine has it |
//! | `qp_resources` | what a queue pair takes of other objects from its creation to its end |
//! | `qp_host` | what a queue pair has of the process during one call |
//! | `kinds` | queue pairs that are not connections |
//! | `cq`, `srq` | completion queues, shared receive queues |
//! | `direct` | completions that a post or a poll hands over without a queue |
//! | `rounds` | how often a program has polled all its queues in vain |
//! | `mr`, `window` | memory regions and their access checks; memory windows |
//! | `xrc` | domains of extended reliable connections |
//! | `process` | what all queue pairs of a process share |
//! | `events` | asynchronous events and completion channels |
//! | `note` | what the background thread delivers to connection management |
//! | `index_table`, `timer` | tables and timers by the index of a queue pair |
//! | `spares` | memory of dropped values, for the next ones |
//! | `trace` | what the flight recorder is told |

pub(crate) mod cq;
pub(crate) mod direct;
pub(crate) mod entry;
pub(crate) mod events;
pub(crate) mod index_table;
pub(crate) mod kinds;
pub(crate) mod mr;
pub(crate) mod note;
pub(crate) mod process;
pub(crate) mod qp;
pub(crate) mod qp_host;
pub(crate) mod qp_resources;
pub(crate) mod rounds;
mod spares;
pub(crate) mod srq;
pub(crate) mod timer;
pub(crate) mod trace;
pub(crate) mod window;
pub(crate) mod xrc;
