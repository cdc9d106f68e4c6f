//! The engine: queue pairs, completion queues, memory regions, packets, timers and threads of one
//! process in one instance, as a library that does not know the verbs ABI.
//!
//! The provider plugin (`provider/src/verbs`) translates verbs to calls on [`Engine`]. Other callers
//! use it directly: `examples/two_queue_pairs.rs` connects two queue pairs of one process and moves
//! octets between them, in under 60 lines and without urdmad
//! (`cargo run -p urdma-engine --example two_queue_pairs`).
//!
//! # Use
//!
//! 1. [`Engine::attach`] attaches to the urdmad of an instance and gives the engine of this process in
//!    it; every caller gets the same one. [`Engine::start`] makes an engine from [`Parts`], for example
//!    of an arena in this process ([`Parts::in_process`]).
//! 2. [`Engine::alloc_pd`], [`Engine::register_mr`], [`Engine::create_cq`] and [`Engine::create_qp`]
//!    make the objects. Each is ended by a call of its own.
//! 3. [`Engine::modify_qp`] connects a queue pair: its peer's number, GID and first PSN are exchanged
//!    by means of the caller's ([`QpModify::steps_to_rts`]), or by rdma_cm ([`Engine::ucma`]).
//! 4. [`Engine::post_send`], [`Engine::post_recv`] and [`Engine::poll_cq`] move data.
//!
//! All calls may be made from any thread. An engine that attached to an urdmad lives until the process
//! ends, or until that urdmad has ended, the process has attached to another one, and no object of the
//! engine is left.
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
//! | `packet_path` | the interface of a path for packets; `arena_path`, `lease` (unsafe): its implementations |
//! | `outbox` | frames that several datagrams share; `batch`: requests that leave together |
//! | `path` | how the peer of a queue pair is reached |
//! | `qp`, `cq`, `srq`, `mr` | queue pairs, completion queues, shared receive queues, regions and their checks |
//! | `window`, `xrc` | memory windows; domains of extended reliable connections |
//! | `memory` | copies between packets and application memory (unsafe); `packet_body`, `address`: the two sides of a copy (unsafe); `checked_copy`: memory whose pages may be missing (unsafe) |
//! | `cma` | long messages inside a host in one copy, receiving side (unsafe); `referral`: sending side |
//! | `datagram` | unreliable datagrams: queue pairs, address handles, multicast groups |
//! | `lanes` | further engines of a process, for threads that share no lock |
//! | `background` | the thread that makes progress when the application does not; `sleep_control`: its sleep |
//! | `control` | the thread that listens to urdmad; `control_socket`: its socket, and forks (unsafe) |
//! | `cm` | what connection management needs of the engine; `note`: what the background thread delivers to it |
//! | `index_table`, `timer` | tables and timers by the index of a queue pair |
//! | `clock`, `lock`, `random`, `thread`, `capture` | the clock, the spin lock, random numbers, thread start, packet captures |
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
//! `post_send` takes the lock and gives the request to the connection. The connection plans the next
//! datagram, the path gives room for it, and the connection writes the headers and has the payload
//! gathered behind them. The path puts the datagram into the ring of the peer. The peer's `poll_cq`
//! finds its completion queue empty, takes the lock and then the datagram. The connection places the
//! payload and pushes a completion. An acknowledgement that is due leaves before the lock is released.

#![cfg_attr(test, allow(clippy::unwrap_used))]

// The rig of the tests names this crate as its users do.
#[cfg(test)]
extern crate self as urdma_engine;

mod address;
mod arena_path;
mod attach;
mod background;
mod batch;
mod capture;
mod checked_copy;
mod clock;
mod cm;
mod cma;
mod control;
mod control_socket;
mod cq;
mod datagram;
mod engine;
mod events;
mod index_table;
mod lanes;
mod lease;
mod lock;
mod memory;
mod mr;
mod note;
mod outbox;
mod packet_body;
mod packet_path;
mod path;
mod progress;
mod qp;
mod random;
mod receive;
mod referral;
/// Two ends of a connection, for tests of what is private to the engine; `tests/engine` uses it too.
#[cfg(test)]
#[allow(dead_code, clippy::cast_possible_truncation)]
#[path = "../tests/engine/rig.rs"]
mod rig;
mod shard;
mod sleep_control;
mod srq;
mod thread;
mod timer;
mod transmit;
mod types;
mod window;
mod xrc;

pub use attach::Parts;
pub use cq::{CompletionTime, Cq, CqConfig, Notify};
pub use datagram::{AddressHandle, DatagramAttributes, DatagramModify, DatagramState, DatagramWr};
pub use engine::Engine;
pub use events::{
    send_nowait, AsyncEvent, AsyncKind, CompletionChannel, CompletionSink, EventSink,
};
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
pub use urdma_arena::{Arena, ArenaConfig};
pub use urdma_ipc::Personality;
pub use urdma_types::{Qpn, SlotId};
pub use xrc::{FileId, XrcDomain, XrcMembership, XrcRole};
<<<<<<< HEAD

use background::SleepControl;
use control_socket::ControlSocket;
use lanes::Lanes;
use lock::{Guard, SpinLock};
use path::{NextHop, PeerPath, PeerSource};
use qp::PolledTable;
use shard::{host, Shard};
use urdma_arena::MappedArena;
use urdma_ipc::{ControlClient, RunDir};
use urdma_ucma::Ucma;

/// Polls in a row that may find the lock taken before the processor is given away.
const CONTENDED_POLLS_MAX: u32 = 32;

/// The engine of this process in one instance; see the module.
pub struct Engine {
    info: Info,
    shard: SpinLock<Shard>,
    polled: PolledTable,
    sleep_control: SleepControl,
    is_dead: AtomicBool,
    contended_polls: AtomicU32,
    /// A request waits for more, until the next poll: see `batch.rs`.
    has_batch: AtomicBool,
    control: Option<ControlSocket>,
    /// Where urdmad is, if there is one.
    run_dir: Option<RunDir>,
    lanes: Arc<Lanes>,
    sinks: Mutex<Vec<Weak<dyn EventSink>>>,
    ucma: OnceLock<Arc<Ucma>>,
    background: OnceLock<()>,
    xrc_domains: xrc::XrcDomains,
    /// Held while a queue pair is attached to a multicast group or detached.
    memberships: Mutex<()>,
    /// [`attach::forks`] when it was made.
    forks: u32,
    /// For threads and drivers that must find it again.
    myself: Weak<Engine>,
    /// Last, since the fields before it refer to the arena; none when that stays mapped.
    _mapping: Option<MappedArena>,
}

impl Drop for Engine {
    /// Only engines whose urdmad has ended are dropped, and those of tests.
    fn drop(&mut self) {
        self.lanes.end_with_first(&self.myself);
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
    /// What it is attached to.
    #[inline]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Whether urdmad lives; when it does not, calls answer [`EngineError::DeviceGone`].
    pub fn is_alive(&self) -> bool {
        !self.is_dead.load(Ordering::Acquire)
    }

    /// Whether urdmad lives and this is the process that attached to it.
    pub fn is_usable(&self) -> bool {
        self.usable().is_ok()
    }

    /// Now, on the clock of [`CompletionTime::monotonic_ns`]: nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn usable(&self) -> Result<(), EngineError> {
        if self.is_forked() {
            Err(EngineError::Forked)
        } else if self.is_alive() {
            Ok(())
        } else {
            Err(EngineError::DeviceGone)
        }
    }

    /// Adds a receiver of device events (and of nothing else; queue pairs name their own), held weakly.
    pub fn add_device_sink(&self, sink: &Arc<dyn EventSink>) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.retain(|sink| sink.strong_count() > 0);
        sinks.push(Arc::downgrade(sink));
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// There are too many, or the device is gone.
    pub fn alloc_pd(&self) -> Result<Pd, EngineError> {
        self.usable()?;
        let _lanes = self.lanes.lock();
        let pd = self.shard.lock().pds.alloc()?;
        self.copy_pd_to_lanes(pd, usize::MAX);
        Ok(pd)
    }

    /// The protection domain with this number.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: there is none.
    pub fn find_pd(&self, number: u32) -> Result<Pd, EngineError> {
        self.usable()?;
        self.shard.lock().pds.find(number)
    }

    /// Gives a protection domain back.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while regions or queue pairs use it.
    pub fn dealloc_pd(&self, pd: Pd) -> Result<(), EngineError> {
        self.not_forked()?;
        let _lanes = self.lanes.lock();
        self.remove_pd_from_lanes(pd)?;
        let outcome = self.shard.lock().pds.dealloc(pd);
        if outcome == Err(EngineError::Busy) {
            self.copy_pd_to_lanes(pd, usize::MAX);
        }
        outcome
    }

    fn not_forked(&self) -> Result<(), EngineError> {
        if self.is_forked() {
            return Err(EngineError::Forked);
        }
        Ok(())
    }

    /// Registers `len` octets at `addr`, which peers and scatter-gather lists address from `iova` on.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: wraps round, or remote write or atomics without local write; [`EngineError::Fault`]: not mapped so;
    /// [`EngineError::NoMemory`]: too many regions.
    pub fn register_mr(
        &self,
        pd: Pd,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrKeys, EngineError> {
        self.usable()?;
        if !access.contains(Access::ON_DEMAND) {
            memory::populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
        }
        self.add_region(pd, |regions| regions.register(pd, addr, len, iova, access))
    }

    /// The length in octets of a region of a protection domain, and its keys.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: there is none.
    pub fn find_mr(&self, pd: Pd, lkey: u32) -> Result<(u64, MrKeys), EngineError> {
        self.usable()?;
        let len = self.shard.lock().regions.length_of(pd, lkey)?;
        // The key is the same for both.
        Ok((len, MrKeys { lkey, rkey: lkey }))
    }

    /// Registers the region that reads as zeroes everywhere and keeps nothing.
    ///
    /// # Errors
    /// [`EngineError::NoMemory`]: too many regions.
    pub fn register_null_mr(&self, pd: Pd) -> Result<MrKeys, EngineError> {
        self.usable()?;
        self.add_region(pd, |regions| regions.register_null(pd))
    }

    /// Has a region of `pd` made, and tells all lanes.
    fn add_region(
        &self,
        pd: Pd,
        make: impl FnOnce(&mut MrTable) -> Result<MrKeys, EngineError>,
    ) -> Result<MrKeys, EngineError> {
        let _lanes = self.lanes.lock();
        let mut shard = self.shard.lock();
        let keys = shard.in_domain(pd, |shard| make(&mut shard.regions))?;
        let copy = shard.regions.copy_of(keys.lkey);
        drop(shard);
        self.copy_region_to_lanes(copy.as_ref());
        Ok(keys)
    }

    /// Changes a region, which keeps its keys.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while windows are bound to it; else as [`Engine::register_mr`]. Nothing has changed.
    pub fn reregister_mr(&self, lkey: u32, change: &MrChange) -> Result<(), EngineError> {
        self.usable()?;
        let before = self.shard.lock().regions.access_of(lkey)?;
        let access = change.access.unwrap_or(before);
        if !access.contains(Access::ON_DEMAND) {
            if let Some((addr, len, _)) = change.translation {
                memory::populate(addr, len, access.contains(Access::LOCAL_WRITE))?;
            }
        }
        let _lanes = self.lanes.lock();
        let mut shard = self.shard.lock();
        if let Some(pd) = change.pd {
            shard.pds.acquire(pd)?;
        }
        let outcome = shard.regions.reregister(lkey, change);
        if let Some(pd) = change.pd {
            shard.pds.release(*outcome.as_ref().unwrap_or(&pd));
        }
        let copy = shard.regions.copy_of(lkey);
        drop(shard);
        self.copy_region_to_lanes(copy.as_ref());
        outcome.map(|_| ())
    }

    /// Brings the pages of a part of a region into memory, for writing if `write`; those of a
    /// region without on-demand paging are there.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such region, or not that part of it; [`EngineError::Fault`]: there is a hole.
    pub fn prefetch(&self, pd: Pd, sge: &Sge, write: bool) -> Result<(), EngineError> {
        self.usable()?;
        let needed = if write {
            Access::LOCAL_WRITE
        } else {
            Access::LOCAL
        };
        let len = u64::from(sge.length);
        let found = self
            .shard
            .lock()
            .regions
            .find(sge.lkey, sge.addr, len, (pd, 0), needed);
        match found {
            Ok(Place::OnDemand(addr)) => memory::populate(addr, len, write),
            Ok(Place::Memory(_) | Place::Null) => Ok(()),
            Err(_) => Err(EngineError::Invalid),
        }
    }

    /// One more user of a protection domain.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it has ended.
    pub fn share_pd(&self, pd: Pd) -> Result<(), EngineError> {
        self.usable()?;
        self.shard.lock().pds.acquire(pd)
    }

    /// Undoes [`Engine::share_pd`].
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn unshare_pd(&self, pd: Pd) -> Result<(), EngineError> {
        self.not_forked()?;
        self.shard.lock().pds.release(pd);
        Ok(())
    }

    /// Ends a region; when this returns nobody touches its memory any more.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: there is no such region; [`EngineError::Busy`]: windows are bound to it.
    pub fn deregister_mr(&self, lkey: u32) -> Result<(), EngineError> {
        self.not_forked()?;
        let _lanes = self.lanes.lock();
        let mut shard = self.shard.lock();
        let pd = shard.regions.deregister(lkey)?;
        shard.pds.release(pd);
        drop(shard);
        for lane in self.lanes.others() {
            lane.shard.lock().regions.drop_copy(lkey);
        }
        Ok(())
    }

    /// A new completion queue.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a depth out of range.
    pub fn create_cq(&self, config: CqConfig) -> Result<Arc<Cq>, EngineError> {
        self.usable()?;
        let mut shard = self.shard.lock();
        if shard.cq_count >= LIMITS.max_cq {
            return Err(EngineError::NoMemory);
        }
        let cq = Cq::new(config)?;
        shard.cq_count += 1;
        Ok(cq)
    }

    /// Sets the depth that the application asks for; never below what the attached queues need.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a depth out of range or below the number of completions that wait.
    pub fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), EngineError> {
        self.usable()?;
        cq.resize(depth)
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while queue pairs use it.
    pub fn destroy_cq(&self, cq: &Cq) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        if cq.is_used() {
            return Err(EngineError::Busy);
        }
        shard.cq_count -= 1;
        Ok(())
    }

    /// Takes up to `max` completions off `cq`, oldest first, and makes progress when there is none. Gives their number.
    ///
    /// # Errors
    /// [`EngineError::Forked`] in a forked child. The device's end is no error here: flushed requests are still delivered.
    #[inline]
    pub fn poll_cq(
        &self,
        cq: &Cq,
        max: usize,
        mut take: impl FnMut(&WorkCompletion),
    ) -> Result<usize, EngineError> {
        self.not_forked()?;
        let mut counted = |wc: &WorkCompletion| {
            if wc.qpn.slot() == self.info.slot {
                self.polled
                    .get(wc.qpn.index())
                    .count(wc.completion.is_send());
            } else {
                self.count_polled_elsewhere(wc);
            }
            take(wc);
        };
        if !cq.has_completions() || self.has_batch.load(Ordering::Relaxed) {
            self.progress_for_poll(cq);
            if !cq.has_completions() {
                return Ok(0);
            }
        }
        Ok(cq.pop(max, &mut counted))
    }

    /// Counts a completion of another lane's queue pair.
    #[cold]
    fn count_polled_elsewhere(&self, wc: &WorkCompletion) {
        if let Some(engine) = self.lanes.find(wc.qpn.slot()) {
            let polled = engine.polled.get(wc.qpn.index());
            polled.count(wc.completion.is_send());
        }
    }

    #[inline]
    fn progress_for_poll(&self, cq: &Cq) {
        let Some(mut shard) = self.shard.try_lock() else {
            self.count_contention();
            return;
        };
        if self.has_batch.load(Ordering::Relaxed) {
            self.has_batch.store(false, Ordering::Relaxed);
        }
        shard.progress_for_poll(&self.info, || cq.has_completions());
        if self.sleep_control.polled(&mut shard, cq.has_completions()) {
            drop(shard);
            self.sleep_control.give_way();
        }
    }

    #[cold]
    fn count_contention(&self) {
        let polls = self.contended_polls.load(Ordering::Relaxed) + 1;
        if polls >= CONTENDED_POLLS_MAX {
            self.contended_polls.store(0, Ordering::Relaxed);
            std::thread::yield_now();
        } else {
            self.contended_polls.store(polls, Ordering::Relaxed);
        }
    }

    /// Asks for one event on the queue's channel; a completion that is already in the queue raises none.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn req_notify_cq(&self, cq: &Cq, notify: Notify) -> Result<(), EngineError> {
        self.not_forked()?;
        cq.arm(notify);
        // The application is about to sleep: from now on senders have to ring.
        let mut shard = self.shard.lock();
        shard.flush();
        self.sleep_control.armed(&mut shard);
        Ok(())
    }

    /// A new queue pair in RESET.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for sizes out of range, [`EngineError::NoMemory`] when there are too many.
    pub fn create_qp(&self, config: &QpConfig) -> Result<Arc<Qp>, EngineError> {
        self.usable()?;
        self.start_background()?;
        self.shard.lock().create_qp(config, &self.polled)
    }

    /// Sets attributes, then goes to a state. The caller has checked which attributes belong to the step.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such step or a value out of range; [`EngineError::HostUnreachable`], [`EngineError::NetUnreachable`]: nobody
    /// has the peer's address. Nothing has changed then. May take two seconds to find that out.
    pub fn modify_qp(&self, qp: &Qp, change: &QpModify) -> Result<(), EngineError> {
        self.not_forked()?;
        let index = qp.number().index();
        let (attributes, state) = {
            let mut shard = self.shard.lock();
            let entry = shard.entry(qp).ok_or(EngineError::Invalid)?;
            (changed(entry.attributes, change), entry.conn.state())
        };
        let to = change.state.unwrap_or(state);
        if !matches!(to, QpState::Reset | QpState::Error) {
            self.usable()?;
        }
        if change.state.is_some() && to != state && !state.may_become(to) {
            return Err(EngineError::Invalid);
        }
        let hop = match to {
            State::Rtr if state == State::Init => Some(self.find_next_hop(attributes.remote_gid)?),
            _ => None,
        };
        let mut shard = self.shard.lock();
        if matches!(to, QpState::Reset | QpState::Error) {
            self.settle(&mut shard, index);
        }
        self.apply(&mut shard, qp, attributes, to, hop)?;
        let ready = shard
            .entry(qp)
            .is_some_and(|entry| entry.conn.state() != state)
            && to == QpState::Rtr;
        shard.transmit(index, clock::now());
        self.sleep_control.wake_if_due(&mut shard);
        drop(shard);
        if ready {
            self.qp_is_ready_now(qp.number());
        }
        Ok(())
    }

    fn apply(
        &self,
        shard: &mut Shard,
        qp: &Qp,
        attributes: QpAttributes,
        to: State,
        hop: Option<NextHop>,
    ) -> Result<(), EngineError> {
        let index = qp.number().index();
        let entry = shard.entry(qp).ok_or(EngineError::Invalid)?;
        let (state, before) = (entry.conn.state(), entry.attributes);
        entry.attributes = attributes;
        let outcome = match to {
            QpState::Reset => {
                shard.reset_qp(index, &self.polled);
                Ok(())
            }
            QpState::Error => {
                shard.fail_qp(index);
                Ok(())
            }
            _ if to == state && state != State::Init => Ok(()),
            _ => self.step(shard, qp, to, hop),
        };
        if let Some(entry) = shard.entry(qp) {
            if outcome.is_err() {
                entry.attributes = before;
            }
            // The one attribute that may change in any state.
            entry.conn.set_min_rnr_timer(entry.attributes.min_rnr_timer);
        }
        outcome
    }

    fn step(
        &self,
        shard: &mut Shard,
        qp: &Qp,
        to: State,
        hop: Option<NextHop>,
    ) -> Result<(), EngineError> {
        let index = qp.number().index();
        let mut max_datagram = 0;
        if let Some(hop) = hop {
            max_datagram = path::max_datagram(&self.info, hop);
            if shard.capture.is_some() {
                max_datagram = max_datagram.min(capture::MAX_DATAGRAM);
            }
            let path = self.path_for(shard, qp, hop)?;
            shard.forget_path(index);
            if let Some(entry) = shard.entry(qp) {
                entry.path = Some(path);
                let remote = Qpn::from_u32(entry.attributes.remote_qpn);
                entry.source =
                    remote.map_or(PeerSource::NONE, |remote| PeerSource::new(hop, remote));
            }
        }
        let outcome = shard.step_qp(index, clock::now(), to, max_datagram);
        if outcome.is_err() && hop.is_some() {
            shard.forget_path(index);
        }
        outcome
    }

    fn path_for(&self, shard: &mut Shard, qp: &Qp, hop: NextHop) -> Result<PeerPath, EngineError> {
        let entry = shard.entry(qp).ok_or(EngineError::Invalid)?;
        let remote = Qpn::from_u32(entry.attributes.remote_qpn).ok_or(EngineError::Invalid)?;
        Ok(match hop {
            NextHop::Local => PeerPath::Local(remote.slot()),
            NextHop::Remote { ip, mac } => {
                let local = (qp.number(), entry.attributes.sgid_index);
                let meta = path::metadata(ip, local, remote.slot());
                let lease = shard.lease.as_mut();
                let route = lease.and_then(|lease| lease.open_route(mac, &meta));
                route.map_or(PeerPath::Daemon(meta), PeerPath::Lease)
            }
        })
    }

    /// State and attributes; those of a queue pair that has been destroyed are RESET and nothing.
    pub fn query_qp(&self, qp: &Qp) -> (QpState, QpAttributes) {
        if self.is_forked() {
            return (QpState::Error, QpAttributes::default());
        }
        let mut shard = self.shard.lock();
        shard
            .entry(qp)
            .map_or((QpState::Reset, QpAttributes::default()), |entry| {
                (entry.conn.state(), entry.attributes)
            })
    }

    /// Ends a queue pair: its completions vanish from the queues, the peer is told.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it has been destroyed already.
    pub fn destroy_qp(&self, qp: &Qp) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        let now = clock::now();
        self.settle(&mut shard, qp.number().index());
        let entry = shard.entry(qp).ok_or(EngineError::Invalid)?;
        entry.conn.close();
        shard.transmit(qp.number().index(), now);
        shard.remove_qp(qp);
        Ok(())
    }

    /// Before a queue pair stops: takes what has arrived and acknowledges it, as a device would have by now.
    fn settle(&self, shard: &mut Shard, index: u16) {
        if !shard.is_dead {
            shard.drain(&self.info);
            shard.acknowledge(index);
            shard.transmit(index, clock::now());
        }
    }

    /// Send requests that [`Engine::post_send`] would take now, one after the other.
    ///
    /// # Errors
    /// [`PostError::InvalidState`]: none, in this state.
    pub fn send_room(&self, qp: &Qp) -> Result<u32, PostError> {
        let mut shard = self.lock_for_post()?;
        let entry = shard.entry(qp).ok_or(PostError::InvalidState)?;
        if !entry.conn.state().takes_send() {
            return Err(PostError::InvalidState);
        }
        let waiting = self.polled.get(qp.number().index());
        let used = entry.conn.sends_outstanding() + waiting.send_waiting(&entry.counts);
        Ok(qp.caps().max_send_wr.saturating_sub(used))
    }

    /// Posts a send request and transmits what may go now.
    ///
    /// # Errors
    /// Nothing was taken.
    #[inline]
    pub fn post_send(&self, qp: &Qp, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut shard = self.lock_for_post()?;
        let index = qp.number().index();
        let found = shard.entry_and_host(qp);
        let (entry, regions, notes) = found.ok_or(PostError::InvalidState)?;
        let waiting = self.polled.get(index).send_waiting(&entry.counts);
        if entry.conn.sends_outstanding() + waiting >= qp.caps().max_send_wr {
            return Err(PostError::QueueFull);
        }
        let mut host = host!(entry, *regions, *notes);
        let octets = entry.conn.post_send(clock::now, wr, &mut host)?;
        shard.transmit_posted(index, octets);
        if shard.batch.has_begun() {
            self.has_batch.store(true, Ordering::Relaxed);
        }
        self.sleep_control.wake_if_due(&mut shard);
        Ok(())
    }

    #[inline]
    fn lock_for_post(&self) -> Result<Guard<'_, Shard>, PostError> {
        if self.is_forked() {
            return Err(PostError::InvalidState);
        }
        Ok(self.shard.lock())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// Nothing was taken.
    #[inline]
    pub fn post_recv(&self, qp: &Qp, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut shard = self.lock_for_post()?;
        let index = qp.number().index();
        let found = shard.entry_and_host(qp);
        let (entry, regions, notes) = found.ok_or(PostError::InvalidState)?;
        let waiting = self.polled.get(index).recv_waiting(&entry.counts);
        if entry.conn.recvs_outstanding() + waiting >= qp.caps().max_recv_wr {
            return Err(PostError::QueueFull);
        }
        let mut host = host!(entry, *regions, *notes);
        entry.conn.post_recv(wr, &mut host)?;
        if !entry.is_queued && entry.conn.may_have_tx() {
            shard.transmit(index, clock::now());
        }
        Ok(())
    }

    /// The ucma over this engine, for the stand-in's `cm_open`, `cm_write` and `cm_close`.
    ///
    /// # Errors
    /// [`EngineError::Forked`], or the background thread could not be started.
    pub fn ucma(&self) -> Result<&Arc<Ucma>, EngineError> {
        self.not_forked()?;
        self.start_background()?;
        Ok(self.ucma.get_or_init(|| self.make_ucma()))
    }

    /// The conversation with urdmad, if there is one and its socket is still open.
    fn daemon(&self) -> Option<&ControlClient> {
        self.control.as_ref()?.client()
    }

    fn addresses(&self) -> &[IpAddr] {
        &self.info.addresses
    }
}

/// `attributes` with a change.
fn changed(attributes: QpAttributes, change: &QpModify) -> QpAttributes {
    let (remote_gid, sgid_index) = change
        .address
        .unwrap_or((attributes.remote_gid, attributes.sgid_index));
    QpAttributes {
        access: change.access.unwrap_or(attributes.access),
        path_mtu: change.path_mtu.unwrap_or(attributes.path_mtu),
        remote_gid,
        sgid_index,
        remote_qpn: change.remote_qpn.unwrap_or(attributes.remote_qpn),
        rq_psn: change.rq_psn.unwrap_or(attributes.rq_psn),
        sq_psn: change.sq_psn.unwrap_or(attributes.sq_psn),
        max_rd_atomic: change.max_rd_atomic.unwrap_or(attributes.max_rd_atomic),
        max_dest_rd_atomic: change
            .max_dest_rd_atomic
            .unwrap_or(attributes.max_dest_rd_atomic),
        min_rnr_timer: change.min_rnr_timer.unwrap_or(attributes.min_rnr_timer),
        timeout: change.timeout.unwrap_or(attributes.timeout),
        retry_cnt: change.retry_cnt.unwrap_or(attributes.retry_cnt),
        rnr_retry: change.rnr_retry.unwrap_or(attributes.rnr_retry),
    }
}
=======
>>>>>>> 3771abc (engine: the files depend on one another in one direction)
