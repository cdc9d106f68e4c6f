//! The engine of a process in one instance: its state, and the calls on it by subject.
//!
//! | file | calls |
//! |---|---|
//! | `regions` | protection domains, memory regions and windows |
//! | `queues` | completion queues, shared receive queues and XRC domains |
//! | `qps` | queue pairs of connections |
//! | `datagrams`, `dc` | queue pairs of the other services, address handles |
//! | `resolve` | addresses of peers |
//! | `introduce` | opening of channels |
//! | `manager`, `cm` | connection management beside the engine: what it is told, what it calls |
//! | `lanes` | objects that all lanes have |
//! | `ended` | what ends with a process |
//! | `start` | when the background thread starts |
//! | `unmapped` | registered memory that the program has unmapped |
//! | `control_socket` | the socket of the control thread, and forks |

pub(crate) mod cm;
pub(crate) mod control_socket;
mod ended;
mod introduce;
mod kinds;
mod lanes;
pub(crate) mod manager;
mod qps;
mod queues;
mod regions;
mod resolve;
mod start;
pub(crate) mod unmapped;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use proto_trp::conn::PostError;
use urdma_channel::Directory;
use urdma_ipc::{ControlClient, RunDir};
use urdma_trace::Recorder;
use urdma_types::SlotId;

use self::control_socket::ControlSocket;
use self::manager::ConnectionManagement;
use crate::clock;
use crate::lock::{Guard, SpinLock};
use crate::objects::events::EventSink;
use crate::objects::qp::PolledTable;
use crate::objects::xrc;
use crate::paths::in_process::InProcess;
use crate::shard::Shard;
use crate::types::{EngineError, Info, LANES_MAX};
use crate::waiting::sleep_control::SleepControl;
use crate::waiting::start::Start;

/// The engine of this process in one instance; see the crate.
pub struct Engine {
    pub(super) info: Info,
    pub(super) shard: SpinLock<Shard>,
    pub(super) polled: PolledTable,
    pub(super) sleep_control: SleepControl,
    /// Which slots of the instance have a process.
    pub(super) directory: Arc<Directory>,
    /// The instance, if it is in this process.
    pub(super) in_process: Option<Arc<InProcess>>,
    /// The Ethernet address of all other hosts, behind an urdmad that is played.
    pub(super) next_hop: Option<[u8; 6]>,
    pub(super) is_dead: AtomicBool,
    pub(super) contended_polls: AtomicU32,
    /// A request waits for others, until the next poll: see `paths/batch.rs`.
    pub(super) has_batch: AtomicBool,
    pub(super) control: Option<ControlSocket>,
    /// The run directory of urdmad, if there is an urdmad.
    pub(super) run_dir: Option<RunDir>,
    pub(super) lanes: Arc<Lanes>,
    pub(super) sinks: Mutex<Vec<Weak<dyn EventSink>>>,
    /// Connection management, once the process uses it.
    pub(super) cm: OnceLock<Arc<dyn ConnectionManagement>>,
    /// Held while notes are delivered.
    pub(super) delivery: Mutex<()>,
    pub(super) background: Background,
    pub(super) xrc_domains: xrc::XrcDomains,
    /// Held while a queue pair is attached to a multicast group or detached.
    pub(super) memberships: Mutex<()>,
    /// Records what happens to connections.
    pub(super) recorder: Recorder,
    /// The packets that each queue pair had had at the last report (`daemon/report.rs`).
    pub(super) reported: Mutex<HashMap<u32, u64>>,
    /// The number of forks (`control_socket::forks`) when it was made.
    pub(super) forks: u32,
    /// For threads and drivers that need a reference of their own.
    pub(super) myself: Weak<Engine>,
}

impl Drop for Engine {
    /// Only engines whose urdmad has ended are dropped, and those of tests.
    fn drop(&mut self) {
        self.lanes.end_with_first(&self.myself);
        unmapped::forget(&self.shard);
        // DPDK cannot be taken down without its primary process.
        std::mem::forget(self.shard.lock().lease.take());
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("slot", &self.info.slot)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// The instance that it is attached to.
    #[inline]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Whether urdmad runs; when it does not, calls return [`EngineError::DeviceGone`].
    pub fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Acquire)
    }

    /// Whether urdmad runs and this is the process that attached to it.
    pub fn is_usable(&self) -> bool {
        self.usable().is_ok()
    }

    /// Now, on the clock of [`crate::CompletionTime::monotonic_ns`]: nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        clock::now_ns()
    }

    pub(crate) fn usable(&self) -> Result<(), EngineError> {
        if self.is_forked() {
            Err(EngineError::Forked)
        } else if self.is_alive() {
            Ok(())
        } else {
            Err(EngineError::DeviceGone)
        }
    }

    /// Whether the calling process is a fork of the one that attached.
    #[inline]
    pub fn is_forked(&self) -> bool {
        control_socket::forks() != self.forks
    }

    /// Adds a receiver of device events (only; queue pairs name their own), held weakly.
    pub fn add_device_sink(&self, sink: &Arc<dyn EventSink>) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.retain(|sink| sink.strong_count() > 0);
        sinks.push(Arc::downgrade(sink));
    }

    pub(crate) fn not_forked(&self) -> Result<(), EngineError> {
        if self.is_forked() {
            return Err(EngineError::Forked);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn lock_for_post(&self) -> Result<Guard<'_, Shard>, PostError> {
        if self.is_forked() {
            return Err(PostError::InvalidState);
        }
        Ok(self.shard.lock())
    }

    /// The client of urdmad, if there is an urdmad and the socket is still open.
    pub(crate) fn daemon(&self) -> Option<&ControlClient> {
        self.control.as_ref()?.client()
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.info.addresses
    }
}

/// The background thread.
pub(super) struct Background {
    pub(super) start: Start,
    /// What it does.
    pub(super) run: fn(Arc<Engine>),
}

/// The lanes of a process in one instance; all its engines have the same.
#[derive(Debug)]
pub(super) struct Lanes {
    first: Weak<Engine>,
    /// All that were ever created.
    pub(super) made: [OnceLock<Weak<Engine>>; LANES_MAX],
    /// The same, kept alive as long as the first engine.
    pub(super) kept: Mutex<Vec<Arc<Engine>>>,
    /// Those that no thread domain has. Locked while objects that all lanes share change.
    idle: Mutex<Vec<Arc<Engine>>>,
}

impl Lanes {
    /// None yet, beside `first`.
    pub(super) fn new(first: Weak<Engine>) -> Arc<Self> {
        Arc::new(Self {
            first,
            made: [const { OnceLock::new() }; LANES_MAX],
            kept: Mutex::new(Vec::new()),
            idle: Mutex::new(Vec::new()),
        })
    }

    /// The process's first engine.
    pub(super) fn first(&self) -> Option<Arc<Engine>> {
        self.first.upgrade()
    }

    /// All but the first engine.
    pub(super) fn others(&self) -> impl Iterator<Item = Arc<Engine>> + '_ {
        let made = self.made.iter().map_while(OnceLock::get);
        made.filter_map(Weak::upgrade)
    }

    /// Whether `engine` is the first one.
    pub(super) fn is_first(&self, engine: &Weak<Engine>) -> bool {
        self.first.ptr_eq(engine)
    }

    /// When `engine` is the first one, which ends: drops the references to all lanes.
    pub(super) fn end_with_first(&self, engine: &Weak<Engine>) {
        if self.is_first(engine) {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = [
                std::mem::take(&mut *kept),
                std::mem::take(&mut *self.lock()),
            ];
            drop(kept);
            drop(ended);
        }
    }

    /// The engine in `slot`.
    pub(super) fn find(&self, slot: SlotId) -> Option<Arc<Engine>> {
        let lane = self.others().find(|lane| lane.info.slot == slot);
        lane.or_else(|| self.first().filter(|first| first.info.slot == slot))
    }

    /// Locks the objects that all lanes share against changes.
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Arc<Engine>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
