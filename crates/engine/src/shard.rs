//! What the engine's lock protects: the channels, the lease, the queue pairs, what they reach of
//! the process, and what is put off.

use std::sync::Arc;

use proto_trp::conn::{ConnConfig, Connection, QpState, Time};
use proto_trp::limit::RateLimit;
use urdma_channel::{OwnRecords, Traffic};
use urdma_trace::Recorder;
use urdma_types::{Qpn, SlotId};

use super::batch::Batch;
use super::capture::Capture;
use super::channels::{Channels, PeerChannel, Watch};
use super::clock;
use super::direct::Direct;
use super::entry::QpEntry;
use super::lease::LeasedQueue;
use super::path::{PeerPath, PeerSource};
use super::process::Process;
use super::qp::{Counts, PolledTable, Qp, QpConfig};
use super::queue_pairs::QueuePairs;
use super::random::random_u64;
use super::trace;
use super::types::{EngineError, Pd, QpAttributes, QpCaps, LIMITS};
use super::xrc::{self, XrcRole};

/// Requests of a shared receive queue that half-arrived messages of one connection may use.
pub(super) const SHARED_IN_USE_MAX: u32 = 64;

/// Counters of datagrams, also of those that reached no queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketCounters {
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) malformed: u64,
    pub(super) unknown_qp: u64,
    /// Packets for a queue pair from another source than its peer.
    pub(super) wrong_source: u64,
    /// RESETs that were not sent because too many were.
    pub(super) resets_left_out: u64,
    pub(super) forwarded: u64,
    /// Times that a packet found the channel full, or no buffer of the lease.
    pub(super) channel_full: u64,
    pub(super) no_buffer: u64,
    /// Datagrams without a receive request, without a receiver, or with another `Q_Key`.
    pub(super) datagrams_dropped: u64,
    /// Datagrams that the posted receive request was too short for.
    pub(super) datagrams_too_long: u64,
    /// Sent and received by datagram queue pairs; those of connections are counted by them.
    pub(super) of_datagrams: Traffic,
}

impl PacketCounters {
    /// Counts a packet that a datagram queue pair has sent.
    pub(super) fn note_datagram_sent(&mut self, octets: usize, is_to_group: bool) {
        self.sent += 1;
        self.of_datagrams.sent_packets += 1;
        self.of_datagrams.sent_octets += octets as u64;
        self.of_datagrams.sent_to_groups += u64::from(is_to_group);
    }

    /// Counts a packet for datagram queue pairs, which is among those received.
    pub(super) fn note_datagram_received(&mut self, octets: usize, is_to_group: bool) {
        self.of_datagrams.received_packets += 1;
        self.of_datagrams.received_octets += octets as u64;
        self.of_datagrams.received_of_groups += u64::from(is_to_group);
    }
}

/// What was done to have the totals of the traffic where urdmad reads them (`traffic.rs`).
#[derive(Default)]
pub(super) struct Published {
    /// The totals of connections that were removed.
    pub(super) ended: Traffic,
    /// Queue pairs removed since the totals were stored.
    pub(super) removed: u32,
    /// Packets sent and received when they were stored.
    pub(super) packets: (u64, u64),
    /// When they are to be stored next if there are more.
    pub(super) next_ns: u64,
}

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
        let index = self.qps.take_index()?;
        let number = Qpn::new(self.slot, index);
        let conn = Connection::new(conn_config(number, config));
        let caps = caps_of(conn.config());
        if let Err(error) = attach(config, caps) {
            self.qps.give_index(index);
            return Err(error);
        }
        let qp = Qp::new(number, caps, config, &self.recorder);
        let counts = Counts::default();
        polled.get(index).reset(&counts);
        let entry = QpEntry {
            conn,
            qp: Arc::clone(&qp),
            attributes: QpAttributes::default(),
            path: None,
            source: PeerSource::NONE,
            counts,
            delivery: None,
            is_queued: false,
            ids: [None; 2],
        };
        self.qps.connected.put(index, entry);
        self.qps.count += 1;
        self.recorder
            .qp_create(number.to_u32(), trace::type_number(config));
        Ok(qp)
    }

    /// Removes a queue pair; the caller has sent its last acknowledgement.
    pub(super) fn remove_qp(&mut self, qp: &Qp) {
        let index = qp.number().index();
        self.forget_path(index);
        let Some(entry) = self.qps.connected.take(index) else {
            return;
        };
        self.qps.wheel.cancel(index);
        self.process.regions.close_windows_of(qp.number().to_u32());
        purge(&entry.qp);
        detach(&entry.qp);
        if !matches!(entry.qp.xrc(), XrcRole::Target(_)) {
            self.process.pds.release(entry.qp.pd());
        }
        self.qps.give_index(index);
        self.qps.count -= 1;
        self.keep_traffic(entry.conn.stats());
        self.recorder.qp_destroy(qp.number().to_u32());
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

    /// Ends the channel to a slot, whose process has ended, or does not keep to the protocol: each
    /// queue pair over it learns that its peer has ended. A rare event, so all queue pairs are
    /// walked. For the channel, see [`Channels::close`].
    #[must_use]
    pub(super) fn end_channel(&mut self, slot: SlotId) -> Option<Box<PeerChannel>> {
        // C8.4-1: what it had settled is completed.
        self.read_counts(slot);
        for index in self.qps.connected.indices() {
            let Some(entry) = self
                .qps
                .connected
                .get_mut(index)
                .filter(|entry| entry.is_over(slot))
            else {
                continue;
            };
            entry.path = Some(PeerPath::Ended);
            let (conn, mut host) = entry.with_host(&mut self.process);
            conn.peer_gone(&mut host);
            self.qps.wheel.set(index, entry.conn.next_deadline());
        }
        let now = clock::now();
        for index in self.qps.dc.indices() {
            self.qps.dc.slot_gone(index, now, slot, &mut self.process);
            self.qps.settle_dc(index);
        }
        let mut closed = self.channels.close(slot);
        for index in closed
            .iter_mut()
            .flat_map(|channel| channel.waiting.drain(..))
        {
            if let Some(entry) = self.qps.connected.get_mut(index) {
                entry.is_queued = false;
            }
            self.qps.make_ready(index);
        }
        closed
    }

    /// Fails every queue pair: urdmad has ended.
    pub(super) fn device_gone(&mut self) {
        self.is_dead = true;
        for index in self.qps.connected.indices() {
            self.qps.fail(index, &mut self.process);
        }
        self.fail_datagrams();
        self.qps.dc.fail_all(clock::now(), &mut self.process);
    }
}

/// Removes the unpolled completions of a queue pair.
pub(super) fn purge(qp: &Qp) {
    let number = qp.number();
    qp.send_cq().purge(|wc| wc.qpn == number);
    qp.recv_cq().purge(|wc| wc.qpn == number);
    if let XrcRole::Target(domain) = qp.xrc() {
        domain.purge(number);
    }
}

/// Whether there can be a queue pair of these sizes.
pub(super) fn check_sizes(config: &QpConfig) -> Result<(), EngineError> {
    let fits = (1..=LIMITS.max_qp_wr).contains(&config.max_send_wr)
        && config.max_recv_wr <= LIMITS.max_qp_wr
        && config.max_send_sge <= LIMITS.max_sge
        && config.max_recv_sge <= LIMITS.max_sge
        && config.max_inline <= LIMITS.max_inline;
    if fits {
        Ok(())
    } else {
        Err(EngineError::Invalid)
    }
}

fn sges(count: u32) -> u8 {
    u8::try_from(count.clamp(1, LIMITS.max_sge)).unwrap_or(1)
}

fn conn_config(number: Qpn, config: &QpConfig) -> ConnConfig {
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
        seed: random_u64(),
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

/// Reserves room for all completions of a queue pair, and keeps the shared receive queue.
pub(super) fn attach(config: &QpConfig, caps: QpCaps) -> Result<(), EngineError> {
    if let XrcRole::Target(domain) = &config.xrc {
        return domain.attach_target();
    }
    config.send_cq.attach(caps.max_send_wr)?;
    let received = match &config.srq {
        Some(_) => config.recv_cq.attach_shared(caps.max_recv_wr),
        None => config.recv_cq.attach(caps.max_recv_wr),
    };
    if received.is_err() {
        config.send_cq.detach(caps.max_send_wr);
        return received;
    }
    if let Some(srq) = &config.srq {
        srq.acquire();
    }
    Ok(())
}

/// Undoes [`attach`].
pub(super) fn detach(qp: &Qp) {
    if let XrcRole::Target(domain) = qp.xrc() {
        return domain.detach_target();
    }
    let caps = qp.caps();
    qp.send_cq().detach(caps.max_send_wr);
    match qp.srq() {
        Some(srq) => {
            qp.recv_cq().detach_shared(caps.max_recv_wr);
            srq.release();
        }
        None => qp.recv_cq().detach(caps.max_recv_wr),
    }
}
