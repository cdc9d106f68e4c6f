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
//!    first PSN ([`QpModify::steps_to_rts`]), or rdma_cm does ([`Engine::ucma`]).
//! 4. [`Engine::post_send`], [`Engine::post_recv`] and [`Engine::poll_cq`] move data.
//!
//! All calls may be made from any thread. An engine that attached to an urdmad lives until the
//! process ends, or until that urdmad has ended, the process has attached to another one, and no
//! object of the engine is left.
//!
//! # Files
//!
//! | file | what it holds |
//! |---|---|
//! | `engine` | [`Engine`], and the calls on it by subject |
//! | `attach` | construction of engines, and the engines of the process |
//! | `types` | types that callers use; `events`: asynchronous events and completion channels |
//! | `shard` | what the engine's lock protects: queue pairs by index, regions, ready list |
//! | `progress` | receive, send, timers; `receive`, `transmit`: the two directions |
//! | `packet_path` | the interface of a path for packets |
//! | `lease` | the path over a leased queue pair (unsafe) |
//! | `lease_sleep` | the sleep until an interrupt of a leased queue pair |
//! | `lease_set` | the set of descriptors of that sleep (unsafe) |
//! | `channels`, `introduce` | channels by the peer's slot; how they are opened |
//! | `messages` | connections over channels: both directions (unsafe) |
//! | `counts` | what the peers of channels have settled |
//! | `packet_room` | room for packets in the messages of channels |
//! | `packets`, `origin` | packets that came over channels (unsafe) |
//! | `in_process` | an instance within one process, without urdmad |
//! | `loopback` | two leased queue pairs in memory, for measurements (unsafe) |
//! | `batch` | requests that leave together |
//! | `path` | how the peer of a queue pair is reached |
//! | `qp`, `cq`, `srq` | queue pairs, completion queues, shared receive queues |
//! | `mr` | memory regions and their access checks |
//! | `window`, `xrc` | memory windows; domains of extended reliable connections |
//! | `memory` | copies between packets and application memory (unsafe) |
//! | `packet_body`, `address` | the two sides of a copy (unsafe) |
//! | `checked_copy` | copies of memory whose pages may be missing (unsafe) |
//! | `populate` | whether memory is mapped (unsafe) |
//! | `unmapped` | registered memory that the program has unmapped (unsafe) |
//! | `qp_host` | what a queue pair has of the process during one call |
//! | `qp_resources` | what a queue pair takes of other objects from its creation to its end |
//! | `datagram` | unreliable datagrams: queue pairs, address handles, multicast groups |
//! | `dc` | initiators and targets of the dynamically connected transport |
//! | `lanes` | further engines of a process, for threads that share no lock |
//! | `background`, `turns` | the thread that makes progress when the application does not |
//! | `driver` | threads of the application that make progress while they wait for an event |
//! | `signals` | signals of such a thread (unsafe); `spins`: how long it looks before it sleeps |
//! | `sleep_control` | when the background thread sleeps, and what wakes it |
//! | `watch` | processes of the host that are stopped |
//! | `control` | the thread that receives events from urdmad; `ended`: what ends with a process |
//! | `control_socket` | the socket of the control thread, and forks (unsafe) |
//! | `cm` | connection management: its interface to the engine |
//! | `note` | what the background thread delivers to connection management |
//! | `index_table`, `timer` | tables and timers by the index of a queue pair |
//! | `clock`, `lock`, `random` | the clock, the spin lock, random numbers |
//! | `thread`, `capture` | start of threads; packet captures |
//! | `report`, `traffic` | what a process reports of itself to urdmad |
//! | `trace` | what the flight recorder is told |
//! | `check`, `fault` | tests: random schedules of threads, and the faults that they find |
//!
//! The files depend on one another in one direction (`scripts/check-modules.py`).
//!
//! # Locks
//!
//! The engine's lock (`lock::SpinLock` around `shard::Shard`) is taken before that of a completion
//! queue. Connection management has its own lock, which is never taken while the engine's is held:
//! what arrives for it waits in the shard as `note::Note`s for the background thread.
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

mod address;
mod attach;
mod background;
mod batch;
mod capture;
mod channels;
#[cfg(test)]
mod check;
mod checked_copy;
mod clock;
mod cm;
mod control;
mod control_socket;
mod counts;
mod cq;
mod daemon_path;
mod datagram;
mod dc;
mod direct;
mod driver;
mod ended;
mod engine;
mod entry;
mod events;
mod fault;
mod in_process;
mod index_table;
mod introduce;
mod lanes;
mod lease;
mod lease_set;
mod lease_sleep;
mod local_events;
mod lock;
mod loopback;
mod memory;
mod messages;
mod mr;
mod note;
mod origin;
mod packet_body;
mod packet_path;
mod packet_room;
mod packets;
mod path;
mod populate;
mod process;
mod progress;
mod qp;
mod qp_host;
mod qp_resources;
mod queue_pairs;
mod random;
mod receive;
mod report;
/// Two ends of a connection, for tests of what is private to the engine; `tests/engine` uses it
/// too.
#[cfg(test)]
#[allow(dead_code, clippy::cast_possible_truncation)]
#[path = "../tests/engine/rig.rs"]
mod rig;
mod shard;
mod signals;
mod sleep_control;
mod spins;
mod srq;
mod thread;
mod timer;
mod trace;
mod traffic;
mod transmit;
mod turns;
mod types;
mod unmapped;
mod unread;
mod watch;
mod window;
mod xrc;

pub use attach::{Host, Parts, PlayedDaemon};
pub use clock::StoppedClock;
pub use cq::{CompletionTime, Cq, CqConfig, Notify};
pub use datagram::{AddressHandle, DatagramAttributes, DatagramModify, DatagramWr};
pub use dc::DcRole;
pub use driver::{interrupt_waits, interrupts};
pub use engine::Engine;
pub use events::{
    AsyncEvent, AsyncKind, CompletionChannel, CompletionSink, Driven, EventSink, Look, SetCall,
    Sleep, Waited,
};
pub use in_process::InProcess;
pub use lease::LeasedQueue;
pub use local_events::send_local_events;
pub use loopback::leased_pair;
pub use mr::MrChange;
pub use proto_trp::conn::{
    Completion, CompletionOp, Payload, PostError, QpState, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, Status, WindowBind,
};
pub use qp::{Qp, QpConfig};
pub use srq::{Srq, SrqConfig};
pub use types::{
    Access, AttachError, EngineError, Gid, GidEntry, Info, LeaseState, Limits, MrKeys, Pd,
    QpAttributes, QpCaps, QpModify, WorkCompletion, LIMITS,
};
pub use unread::{send_nowait, Member, Taken, Unread};
pub use urdma_ipc::{HostMemory, Personality};
pub use urdma_types::{Psn, Qpn, RawQpn, SlotId};
pub use xrc::{FileId, XrcDomain, XrcMembership, XrcRole};
