//! Two engines in one process, without urdmad: operations both ways, errors, events,
//! ends.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod capture;
mod channels;
mod daemon;
mod datagrams;
mod dc;
mod dc_network;
mod ends;
mod errors;
mod faults;
mod groups;
mod lanes;
mod long_messages;
mod operations;
mod rig;
mod rights;
mod strangers;
mod unreliable;
