//! The LD_PRELOAD library that moves TCP connections between two programs of one host to rings
//! (doc/sockets.md). `urdma run --sockets` preloads it before the stand-in.
//!
//! A program keeps its sockets: addresses, ports, the backlog, options and the end of a connection
//! are the kernel's. Calls that move octets go through the switch (`urdma_socket_switch`) once both
//! ends have met; whatever this library does not do on rings moves the connection back to TCP for
//! good, and is then done by the kernel.
//!
//! Files: `real` the functions behind the hooks; `own` the descriptors of this library; `bell` that
//! of the agent; `clock` the time of the host; `local` what each thread has; `futex` sleeping on a
//! shared word; `memory` block and rings, `connection` a connection, `peer` what those to one
//! process share; `octets` the buffers of a call; `process` the process and the owners of locks;
//! `host` the accesses of a call; `signals` handlers; `table` what is known of each descriptor;
//! `early` offers at connect and accept; `begin` the begin of a call; `readiness` what a connection
//! is ready for; `sets` epoll sets, `link` which one a socket is in; `sleepers` threads that wait;
//! `limits` how long; `leave` the ends of rings; `reasons` counts why; `lent` what forked children
//! have, `shares` which of both has closed a socket; `spawned` what vforked children hand on;
//! `agent` the thread that meets urdmad and acts for the process; `calls` sending and receiving,
//! `buffers` by calls on one buffer, `at_once` while nothing but the rings is needed; `files`
//! sendfile; `life` loading, forks and exit; `diagnosis` system calls without the C library,
//! `diagnosed` whether they are; `hooks` the interposed functions.
//!
//! Rules, since this code runs inside calls of arbitrary programs:
//! - Inert unless `URDMA_RUN_DIR` is set.
//! - A call on a descriptor that has no rings costs a load; on a socket that may get some, two
//!   atomic additions more.
//! - `errno` changes only when a call fails.
//! - No handler of a signal runs while a lock is held, and no thread is cancelled then. Where a
//!   thread sleeps for the program it holds nothing.
//! - A forked child has rings of no connection that another process has. A vforked child changes
//!   nothing of its parent's: it has its parent make the kernel's what it hands on.
#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the library knows the calling conventions of Linux on x86-64 and aarch64 only");

mod agent;
mod at_once;
mod begin;
mod bell;
mod buffers;
mod calls;
mod clock;
mod connection;
#[cfg_attr(test, allow(dead_code))]
mod diagnosed;
#[cfg_attr(test, allow(dead_code))]
mod diagnosis;
mod early;
mod files;
mod futex;
#[cfg_attr(test, allow(dead_code))]
mod hooks;
mod host;
mod leave;
#[cfg_attr(test, allow(dead_code))]
mod lent;
#[cfg(not(test))]
mod life;
mod limits;
mod link;
mod local;
mod memory;
mod octets;
mod own;
mod peer;
mod process;
mod readiness;
mod real;
mod reasons;
mod sets;
#[cfg_attr(test, allow(dead_code))]
mod shares;
mod signals;
mod sleepers;
mod spawned;
mod spins;
mod table;
mod yields;
