//! The engine: queue pairs, completion queues, memory regions, packets, timers and threads of one
//! process in one instance, as a library that does not know the verbs ABI.
//!
//! The provider plugin (`provider/src/verbs`) translates verbs to calls on [`Engine`]. Other
//! callers use it directly: `examples/two_queue_pairs.rs` connects two queue pairs of one process
//! and moves octets between them, in under 60 lines and without urdmad (`cargo run -p urdma-engine
//! --example two_queue_pairs`).
//!
//! # Use
//!
//! 1. [`Engine::attach`] attaches to the urdmad of an instance and gives the engine of this process
//!    in it; every caller gets the same one. [`Engine::start`] makes an engine from [`Parts`], for
//!    example of an instance within this process ([`Parts::in_process`]).
//! 2. [`Engine::alloc_pd`], [`Engine::register_mr`], [`Engine::create_cq`] and
//!    [`Engine::create_qp`] make the objects. Each is ended by a call of its own.
//! 3. [`Engine::modify_qp`] connects a queue pair: the caller exchanges the peer's number, GID and
//!    first PSN ([`QpModify::steps_to_rts`]), or rdma_cm does ([`Engine::manage_connections`]).
//! 4. [`Engine::post_send`], [`Engine::post_recv`] and [`Engine::poll_cq`] move data.
//!
//! All calls may be made from any thread. An engine that attached to an urdmad lives until the
//! process ends, or until that urdmad has ended, the process has attached to another one, and no
//! object of the engine is left.
//!
//! # Folders
//!
//! Each folder uses those above it in this table and none below it (`scripts/check-modules.py`).
//! What one offers to the others is `pub(crate)`; `pub(super)` stays within it. The first line of
//! its `mod.rs` says what it is, and a table has its files.
//!
//! | folder | what it holds |
//! |---|---|
//! | (files here) | types of callers, the clock, the spin lock, random numbers, start of threads |
//! | `paths` | how messages and packets leave and come: channels, urdmad, a leased queue |
//! | `objects` | queue pairs, completion queues, shared receive queues, regions, events |
//! | `memory` | copies between packets and application memory |
//! | `shard` | what the engine's lock protects: the above of one process |
//! | `data` | the path of data: receive, send, timers |
//! | `waiting` | when a thread sleeps, and what wakes it |
//! | `engine` | [`Engine`], and the calls on it by subject |
//! | `threads` | the engine's thread, and threads of the application that do its work |
//! | `daemon` | the process' side of urdmad: attach, control thread, reports |
//! | `check`, `fault` | tests: random schedules of threads, and the faults that they find |
//!
//! # Locks
//!
//! The engine's lock (`lock::SpinLock` around `shard::Shard`) is taken before that of a completion
//! queue. Connection management has its own lock, which is never taken while the engine's is held:
//! what arrives for it waits in the shard as `objects::note::Note`s for the background thread.
//!
//! # One SEND inside a host
//!
//! `post_send` takes the lock and gives the request to the connection. The connection plans the
//! next message, the channel gives room for it, and the connection writes the head and has the
//! payload gathered behind it. Publishing the cell sends the message. The peer's `poll_cq` finds
//! its completion queue empty, takes the lock and then the message. The connection places the
//! payload and pushes a completion, and the count of settled messages is stored before the lock is
//! released.

#![cfg_attr(test, allow(clippy::unwrap_used))]

// The rig of the tests names this crate as its users do.
#[cfg(test)]
extern crate self as urdma_engine;

#[cfg(test)]
mod check;
mod clock;
mod daemon;
mod data;
mod engine;
mod fault;
mod lock;
mod memory;
mod objects;
mod paths;
mod random;
/// Two ends of a connection, for tests of what is private to the engine; `tests/engine` uses it
/// too.
#[cfg(test)]
#[allow(dead_code, clippy::cast_possible_truncation)]
#[path = "../tests/engine/rig.rs"]
mod rig;
mod shard;
mod thread;
mod threads;
mod types;
mod waiting;

pub use clock::StoppedClock;
pub use daemon::attach::{Host, Parts, PlayedDaemon};
pub use engine::manager::ConnectionManagement;
pub use engine::Engine;
pub use objects::cq::{CompletionTime, Cq, CqConfig, Notify};
pub use objects::events::{
    AsyncEvent, AsyncKind, CompletionChannel, CompletionSink, Driven, EventSink, Look, SetCall,
    Sleep, Waited,
};
pub use objects::kinds::public::*;
pub use objects::mr::MrChange;
pub use objects::qp::{Qp, QpConfig};
pub use objects::srq::{Srq, SrqConfig};
pub use objects::xrc::{FileId, XrcDomain, XrcMembership, XrcRole};
pub use paths::in_process::InProcess;
pub use paths::lease::LeasedQueue;
pub use paths::loopback::leased_pair;
pub use proto_trp::conn::{
    Completion, CompletionOp, Payload, PostError, QpState, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, Status, WindowBind,
};
pub use threads::driver::{interrupt_waits, interrupts};
pub use types::{
    Access, AttachError, EngineError, Gid, GidEntry, Info, LeaseState, Limits, MrKeys, Pd,
    QpAttributes, QpCaps, QpModify, WorkCompletion, LIMITS,
};
pub use urdma_ipc::{HostMemory, Personality};
pub use urdma_types::{Psn, Qpn, RawQpn, SlotId};
