//! What the engine's lock protects: the channels, the lease, the queue pairs, what they reach of
//! the process, and what is put off.
//!
//! | file | what it holds |
//! |---|---|
//! | `queue_pairs` | all queue pairs by index, their timers, and those that are ready |
//! | `traffic` | what each queue pair has sent and received |

pub(crate) mod queue_pairs;
pub(crate) mod traffic;

use std::sync::Arc;

use proto_trp::conn::{ConnConfig, Connection, QpState, Time};
use proto_trp::limit::RateLimit;
use urdma_channel::OwnRecords;
use urdma_trace::Recorder;
use urdma_types::{Qpn, SlotId};

use self::queue_pairs::{NewQp, QueuePairs};
use self::traffic::{Counted, PacketCounters, Published};
use crate::clock;
use crate::objects::direct::Direct;
use crate::objects::entry::QpEntry;
use crate::objects::process::Process;
use crate::objects::qp::{Counts, PolledTable, Qp, QpConfig};
use crate::objects::qp_resources::{check_sizes, purge, SHARED_IN_USE_MAX};
use crate::objects::rounds::Rounds;
use crate::objects::trace;
use crate::objects::xrc::{self, XrcRole};
use crate::paths::batch::Batch;
use crate::paths::capture::Capture;
use crate::paths::channels::{Channels, Watch};
use crate::paths::lease::LeasedQueue;
use crate::paths::path::PeerSource;
use crate::types::{EngineError, Pd, QpAttributes, QpCaps, LIMITS};

/// See the module.
pub(super) struct Shard {
    pub(super) slot: SlotId,
    pub(super) channels: Channels,
    /// The delivery records of this process, if there is an urdmad to read them.
    pub(super) records: Option<Arc<OwnRecords>>,
    pub(super) batch: Batch,
    /// Completions for the poll that has the lock.
    pub(super) direct: Direct,
    pub(super) watch: Watch,
    pub(super) lease: Option<Box<LeasedQueue>>,
    pub(super) capture: Option<Box<Capture>>,
    pub(super) qps: QueuePairs,
    pub(super) process: Process,
    pub(super) counters: PacketCounters,
    pub(super) published: Published,
    /// Limits the RESETs to other hosts.
    pub(super) resets: RateLimit,
    /// Limits those to processes of this host, so that one of them leaves the others' RESETs.
    pub(super) local_resets: RateLimit,
    /// Queue pairs in the ready list wait for the application's next call.
    pub(super) is_put_off: bool,
    /// Something could not be sent because a channel was full or no buffer was free; it is tried
    /// again soon.
    pub(super) is_blocked: bool,
    /// Polls since an application armed a completion queue.
    pub(super) polls_since_armed: u32,
    /// Polls in a row that found nothing.
    pub(super) empty_polls: u32,
    /// Rounds of them.
    pub(super) empty_rounds: Rounds,
    /// urdmad has ended: nothing is sent any more.
    pub(super) is_dead: bool,
    /// Records what happens to queue pairs.
    pub(super) recorder: Recorder,
}

impl Shard {
    /// A shard without objects.
    pub(super) fn new(
        channels: Channels,
        records: Option<Arc<OwnRecords>>,
        slot: SlotId,
        now: Time,
    ) -> Self {
        Self {
            slot,
            channels,
            records,
            batch: Batch::default(),
            direct: Direct::default(),
            watch: Watch::default(),
            lease: None,
            capture: None,
            qps: QueuePairs::new(now),
            process: Process::new(),
            counters: PacketCounters::default(),
            published: Published::default(),
            resets: RateLimit::default(),
            local_resets: RateLimit::default(),
            is_put_off: false,
            is_blocked: false,
            polls_since_armed: 0,
            empty_polls: 0,
            empty_rounds: Rounds::default(),
            is_dead: false,
            recorder: Recorder::default(),
        }
    }

    /// The entry of a queue pair that exists, and what its host needs beside it.
    #[inline]
    pub(super) fn entry_and_process(&mut self, qp: &Qp) -> Option<(&mut QpEntry, &mut Process)> {
        Some((self.qps.entry(qp)?, &mut self.process))
    }

    /// A new queue pair in RESET.
    pub(super) fn create_qp(
        &mut self,
        config: &QpConfig,
        polled: &PolledTable,
    ) -> Result<Arc<Qp>, EngineError> {
        check_sizes(config)?;
        if matches!(config.xrc, XrcRole::Target(_)) {
            return self.add_qp(config, polled);
        }
        self.in_domain(config.pd, |shard| shard.add_qp(config, polled))
    }

    /// Makes an object of a protection domain, which counts as its user.
    pub(super) fn in_domain<T>(
        &mut self,
        pd: Pd,
        make: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.process.pds.acquire(pd)?;
        let made = make(self);
        if made.is_err() {
            self.process.pds.release(pd);
        }
        made
    }

    fn add_qp(&mut self, config: &QpConfig, polled: &PolledTable) -> Result<Arc<Qp>, EngineError> {
        let new = NewQp {
            slot: self.slot,
            config,
            kind: trace::type_number(config),
            polled,
            recorder: &self.recorder,
        };
        let seed = self.qps.seeds.next();
        let prepare = |number| {
            let conn = Connection::new(conn_config(number, seed, config));
            let caps = caps_of(conn.config());
            (conn, caps)
        };
        self.qps.add(&new, prepare, |qps, qp, conn| {
            let entry = QpEntry {
                conn,
                qp: Arc::clone(qp),
                attributes: QpAttributes::default(),
                path: None,
                source: PeerSource::NONE,
                counts: Counts::default(),
                delivery: None,
                is_queued: false,
                ids: [None; 2],
            };
            qps.connected.put(qp.number().index(), entry);
        })
    }

    /// Removes a queue pair; the caller has sent its last acknowledgement.
    pub(super) fn remove_qp(&mut self, qp: &Qp) {
        let index = qp.number().index();
        self.forget_path(index);
        let Some(entry) = self.qps.connected.take(index) else {
            return;
        };
        self.process.regions.close_windows_of(qp.number().to_u32());
        self.published.keep(entry.conn.stats());
        self.qps.connected.discard(entry);
        self.give_back(qp);
    }

    /// Gives back what a queue pair of any kind has had, which was taken out of the table of its
    /// kind.
    pub(super) fn give_back(&mut self, qp: &Qp) {
        self.qps.remove(qp, &mut self.process, &self.recorder);
        let (published, of) = self.totals();
        published.note_removed(&of);
    }

    /// The totals of the traffic, and what they are of.
    pub(super) fn totals(&mut self) -> (&mut Published, Counted<'_>) {
        let of = Counted {
            counters: &self.counters,
            qps: &self.qps,
            records: self.records.as_deref(),
        };
        (&mut self.published, of)
    }

    /// Stores the totals where urdmad reads them.
    pub(super) fn store_totals(&mut self) {
        let (published, of) = self.totals();
        published.store(&of);
    }

    /// Wakes the processes for which something was written.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.channels.ring_doorbells();
    }

    /// Whether something waits in a channel, or possibly in the leased queue, which interrupts the
    /// thread that sleeps from now on.
    pub(super) fn has_work(&mut self) -> bool {
        let lease = self.lease.as_deref_mut();
        lease.is_some_and(LeasedQueue::unmask) || self.channels.have_work()
    }

    /// Closes the path of a queue pair to its peer.
    pub(super) fn forget_path(&mut self, index: u16) {
        if let (Some(route), Some(lease)) = (self.qps.forget_path(index), &mut self.lease) {
            lease.close_route(route);
        }
    }

    /// Back to RESET: all state is dropped, completions included.
    pub(super) fn reset_qp(&mut self, index: u16, polled: &PolledTable) {
        self.forget_path(index);
        self.qps.wheel.cancel(index);
        if let Some(entry) = self.qps.connected.get_mut(index) {
            entry.conn.reset();
            purge(&entry.qp);
            polled.get(index).reset(&entry.counts);
        }
    }

    /// See [`QueuePairs::step`].
    pub(super) fn step_qp(
        &mut self,
        index: u16,
        to: QpState,
        max_datagram: u32,
    ) -> Result<(), EngineError> {
        let step = (clock::now(), to);
        let (process, records) = (&mut self.process, self.records.as_ref());
        self.qps.step(index, step, max_datagram, process, records)
    }

    /// Fails every queue pair: urdmad has ended.
    pub(super) fn device_gone(&mut self) {
        self.is_dead = true;
        for index in self.qps.connected.indices() {
            self.qps.fail(index, &mut self.process);
        }
        self.qps.kinds.fail_all(clock::now(), &mut self.process);
    }
}

fn sges(count: u32) -> u8 {
    u8::try_from(count.clamp(1, LIMITS.max_sge)).unwrap_or(1)
}

fn conn_config(number: Qpn, seed: u64, config: &QpConfig) -> ConnConfig {
    let is_target = matches!(config.xrc, XrcRole::Target(_));
    ConnConfig {
        sq_depth: config.max_send_wr,
        rq_depth: match (&config.xrc, &config.srq) {
            (XrcRole::Target(_), _) => xrc::IN_USE_MAX,
            (_, Some(_)) => SHARED_IN_USE_MAX,
            (_, None) => config.max_recv_wr,
        },
        shared_recv: config.srq.is_some() || is_target,
        names_shared_queue: matches!(config.xrc, XrcRole::Initiator),
        unreliable: config.unreliable,
        fails_with_peer: config.fails_with_peer,
        max_send_sge: sges(config.max_send_sge),
        max_recv_sge: sges(match &config.srq {
            Some(srq) => srq.max_sge(),
            None if is_target => LIMITS.max_sge,
            None => config.max_recv_sge,
        }),
        max_inline: config.max_inline,
        max_dest_rd_atomic_cap: LIMITS.max_rd_atomic,
        seed,
        ..ConnConfig::new(number)
    }
}

fn caps_of(config: &ConnConfig) -> QpCaps {
    QpCaps {
        max_send_wr: config.sq_depth,
        max_recv_wr: config.rq_depth,
        max_send_sge: config.max_send_sge.into(),
        max_recv_sge: config.max_recv_sge.into(),
        max_inline: config.max_inline,
    }
}
