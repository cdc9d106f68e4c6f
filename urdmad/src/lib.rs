//! urdmad, the daemon of one host ("instance"): slots, ports, forwarding, leases, reaping.
//!
//! | module | what it does |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`config`] | TOML to one validated configuration |
//! | [`daemon`] | start and shutdown, in order |
//! | [`rundir`], [`sysfs`] | the run directory; its sysfs tree for libibverbs |
//! | [`identity`] | GUID and GIDs |
//! | [`interfaces`] | the addresses of the host |
//! | `control`, `client` | the control thread: socket, clients, requests, reaping, status |
//! | [`slots`], [`listeners`], [`groups`], [`lease`] | slots, CM ports, memberships, queue pairs |
//! | `data` | the data thread: channels, port, neighbours, CM requests, multicast, RESETs |
//! | `kernel`, `kernel_cm` | the kernel module's device, and its connection management |
//! | [`kinds`], [`port`] | the kinds of ports; how packets leave the host |
//! | `metrics` | metrics over HTTP |
//! | `sandbox` | capabilities and system calls that it gives up after its start |
//! | [`shared`], [`counters`], [`capture`] | what both threads use |
//! | `process`, `descriptors` | whether another process is about to end; what clients send |
//! | `closing` | closing the sockets of clients, and what they have sent |
//! | `recordings` | the flight recordings of processes, also of some that have ended |
//! | `sockets` | the ends of TCP connections of this host, which get rings |
//! | `users`, `user_limits`, `fair` | the groups of users; rate limits per user; how users share |
//! | `tally`, `port_counters` | traffic of processes; the counters of the port by name |
//! | `counter_files` | these counters as files, whose values are computed when they are opened |
//!
//! Files it touches: its run directory; `/etc/machine-id`; what the port's driver needs. It
//! trusts no client's claims about itself, and copies what it reads from the memory of a process
//! before it validates it.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

pub mod arguments;
pub mod capture;
mod client;
mod closing;
pub mod config;
mod control;
mod counter_files;
pub mod counters;
pub mod daemon;
pub mod data;
mod descriptors;
mod fair;
pub mod groups;
pub mod identity;
pub mod interfaces;
mod kernel;
mod kernel_cm;
pub mod kinds;
pub mod lease;
pub mod listeners;
mod log;
mod metrics;
pub mod notify;
pub mod port;
mod port_counters;
mod process;
mod recordings;
pub mod rundir;
mod sandbox;
pub mod shared;
mod shown;
pub mod slots;
mod sockets;
pub mod sysfs;
mod tally;
mod user_limits;
mod users;
mod versions;
