//! What the engine's lock protects: the channels, the lease, queue pairs by index, regions, timers,
//! the ready list.
//!
//! Nothing here is searched on the data path. Packets name queue pairs by index, queue pairs with
//! something to send are in a list, and timers are in a wheel.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use proto_trp::conn::{
    ConnConfig, Connection, Path, QpState, RtrParams, RtsParams, Time, TransitionError,
};
use proto_trp::limit::RateLimit;
use proto_trp::wire::connection_id;
use urdma_channel::{OwnRecords, Traffic};
use urdma_trace::Recorder;
use urdma_types::{Psn, Qpn, SlotId};

use super::batch::Batch;
use super::capture::Capture;
use super::channels::{Channels, PeerChannel, Watch};
use super::clock;
use super::datagram::DatagramTable;
use super::dc::DcTable;
use super::direct::Direct;
use super::entry::QpEntry;
use super::index_table::{IndexAllocator, IndexTable};
use super::lease::LeasedQueue;
use super::path::{PeerPath, PeerSource};
use super::process::Process;
use super::qp::{Counts, PolledTable, Qp, QpConfig};
use super::qp_host::Delivery;
use super::random::{random_u32, random_u64};
use super::timer::Wheel;
use super::trace;
use super::types::{EngineError, Pd, QpAttributes, QpCaps, LIMITS};
use super::xrc::{self, XrcRole};

/// Requests of a shared receive queue that half-arrived messages of one connection may use.
pub(super) const SHARED_IN_USE_MAX: u32 = 64;

/// Silence after which a connection to another host probes its peer: the peer's urdmad answers at
/// once for a process that has ended.
const KEEPALIVE_NS: u64 = 3_000_000_000;

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
    pub(super) qps: IndexTable<QpEntry>,
    indices: IndexAllocator,
    /// Datagram queue pairs, whose indices are empty places of `qps`.
    pub(super) datagrams: DatagramTable,
    /// Initiators and targets of the dynamically connected transport, likewise.
    pub(super) dc: DcTable,
    pub(super) qp_count: u32,
    pub(super) process: Process,
    pub(super) wheel: Wheel,
    pub(super) ready: VecDeque<u16>,
    /// The queue pair that took the last datagrams of a burst, 0 for none: its timer is to be set
    /// (`receive.rs`).
    pub(super) handled: u16,
    /// Queue pairs by the connection ids of their streams, for RESETs, which name nothing else.
    pub(super) by_id: HashMap<u32, u16>,
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
        let indices = IndexAllocator::new(random_u32);
        let first = indices.first();
        Self {
            slot,
            channels,
            records,
            batch: Batch::default(),
            direct: Direct::default(),
            watch: Watch::default(),
            lease: None,
            capture: None,
            qps: IndexTable::new(first),
            indices,
            datagrams: DatagramTable::new(first),
            dc: DcTable::new(first),
            qp_count: 0,
            process: Process::new(),
            wheel: Wheel::new(first, now),
            ready: VecDeque::new(),
            handled: 0,
            by_id: HashMap::new(),
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
        let entry = self
            .qps
            .get_mut(qp.number().index())
            .filter(|entry| std::ptr::eq(&*entry.qp, qp))?;
        Some((entry, &mut self.process))
    }

    /// The entry of a queue pair that exists.
    #[inline]
    pub(super) fn entry(&mut self, qp: &Qp) -> Option<&mut QpEntry> {
        self.entry_and_process(qp).map(|(entry, _)| entry)
    }

    /// An index that no queue pair has.
    pub(super) fn take_index(&mut self) -> Result<u16, EngineError> {
        let index = self.indices.take().ok_or(EngineError::NoMemory)?;
        self.wheel.reserve(self.indices.places());
        self.ready.reserve(self.indices.places());
        Ok(index)
    }

    /// Gives an index back.
    pub(super) fn give_index(&mut self, index: u16) {
        self.indices.give_back(index);
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
        let index = self.take_index()?;
        let number = Qpn::new(self.slot, index);
        let conn = Connection::new(conn_config(number, config));
        let caps = caps_of(conn.config());
        if let Err(error) = attach(config, caps) {
            self.give_index(index);
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
        self.qps.put(index, entry);
        self.qp_count += 1;
        self.recorder
            .qp_create(number.to_u32(), trace::type_number(config));
        Ok(qp)
    }

    /// Removes a queue pair; the caller has sent its last acknowledgement.
    pub(super) fn remove_qp(&mut self, qp: &Qp) {
        let index = qp.number().index();
        self.forget_path(index);
        let Some(entry) = self.qps.take(index) else {
            return;
        };
        self.wheel.cancel(index);
        self.process.regions.close_windows_of(qp.number().to_u32());
        purge(&entry.qp);
        detach(&entry.qp);
        if !matches!(entry.qp.xrc(), XrcRole::Target(_)) {
            self.process.pds.release(entry.qp.pd());
        }
        self.give_index(index);
        self.qp_count -= 1;
        self.keep_traffic(entry.conn.stats());
        self.recorder.qp_destroy(qp.number().to_u32());
    }

    /// Closes the path to the peer and removes the ids of the streams.
    pub(super) fn forget_path(&mut self, index: u16) {
        let Some(entry) = self.qps.get_mut(index) else {
            return;
        };
        for id in entry.ids.iter_mut().filter_map(Option::take) {
            self.by_id.remove(&id);
        }
        entry.source = PeerSource::NONE;
        entry.delivery = None;
        if let (Some(PeerPath::Lease(route)), Some(lease)) = (entry.path.take(), &mut self.lease) {
            lease.close_route(route);
        }
    }

    /// Whether something waits in a channel, or possibly in the leased queue, which interrupts the
    /// thread that sleeps from now on.
    pub(super) fn has_work(&mut self) -> bool {
        let lease = self.lease.as_deref_mut();
        lease.is_some_and(LeasedQueue::unmask) || self.channels.have_work()
    }

    /// Back to RESET: all state is dropped, completions included.
    pub(super) fn reset_qp(&mut self, index: u16, polled: &PolledTable) {
        self.forget_path(index);
        self.wheel.cancel(index);
        if let Some(entry) = self.qps.get_mut(index) {
            entry.conn.reset();
            purge(&entry.qp);
            polled.get(index).reset(&entry.counts);
        }
    }

    /// RESET or INIT to INIT, INIT to RTR, RTR to RTS, and so on, with the attributes that are in
    /// the entry.
    pub(super) fn step_qp(
        &mut self,
        index: u16,
        now: Time,
        to: QpState,
        max_datagram: u32,
    ) -> Result<(), EngineError> {
        let Some(entry) = self.qps.get_mut(index) else {
            return Err(EngineError::Invalid);
        };
        let stepped = match (entry.conn.state(), to) {
            (_, QpState::Init) => entry.conn.to_init(),
            (_, QpState::Rtr) => {
                let params = rtr_params(entry, max_datagram).ok_or(EngineError::Invalid)?;
                entry.conn.to_rtr(now, &params)
            }
            (QpState::Sqd | QpState::Sqe, QpState::Rts) => entry.conn.resume(),
            (_, QpState::Rts) => {
                let params = rts_params(entry);
                entry.conn.to_rts(now, &params)
            }
            (_, QpState::Sqd) => {
                let (conn, mut host) = entry.with_host(&mut self.process);
                conn.to_sqd(&mut host)
            }
            (_, QpState::Reset | QpState::Error) => Ok(()),
            // SQE is entered on a send error, never requested.
            (_, QpState::Sqe) => Err(TransitionError),
        };
        stepped.map_err(|_| EngineError::Invalid)?;
        self.learn_id(index, to);
        self.make_ready(index);
        Ok(())
    }

    /// Stores the connection id of the stream that begins with a step.
    fn learn_id(&mut self, index: u16, to: QpState) {
        let Some(entry) = self.qps.get_mut(index) else {
            return;
        };
        let Some(remote) = Qpn::from_u32(entry.attributes.remote_qpn) else {
            return;
        };
        let local = entry.qp.number();
        let (place, id) = match to {
            QpState::Rtr => (
                0,
                connection_id(remote, local, Psn::new(entry.attributes.rq_psn)),
            ),
            QpState::Rts => (
                1,
                connection_id(local, remote, Psn::new(entry.attributes.sq_psn)),
            ),
            _ => return,
        };
        if to == QpState::Rtr {
            let is_local = entry.path.as_ref().is_some_and(PeerPath::is_local);
            let records = self.records.as_ref().filter(|_| !is_local);
            entry.delivery = records.map(|records| Delivery::new(records, index));
            if let Some(delivery) = &entry.delivery {
                let first = entry.attributes.rq_psn;
                delivery.record().begin(id.to_u32(), first);
            }
        }
        if let Some(old) = entry.ids[place].replace(id.to_u32()) {
            self.by_id.remove(&old);
        }
        self.by_id.insert(id.to_u32(), index);
    }

    /// Any state to ERROR: everything is flushed.
    pub(super) fn fail_qp(&mut self, index: u16) {
        if let Some(entry) = self.qps.get_mut(index) {
            let (conn, mut host) = entry.with_host(&mut self.process);
            conn.to_error(&mut host);
        }
    }

    /// Puts a queue pair into the ready list.
    #[inline]
    pub(super) fn make_ready(&mut self, index: u16) {
        if let Some(entry) = self.qps.get_mut(index) {
            if !entry.is_queued {
                entry.is_queued = true;
                self.ready.push_back(index);
            }
        }
    }

    /// Ends the channel to a slot, whose process has ended, or does not keep to the protocol: each
    /// queue pair over it learns that its peer has ended. A rare event, so all queue pairs are
    /// walked. For the channel, see [`Channels::close`].
    #[must_use]
    pub(super) fn end_channel(&mut self, slot: SlotId) -> Option<Box<PeerChannel>> {
        // C8.4-1: what it had settled is completed.
        self.read_counts(slot);
        for index in self.qps.indices() {
            let Some(entry) = self.qps.get_mut(index).filter(|entry| entry.is_over(slot)) else {
                continue;
            };
            entry.path = Some(PeerPath::Ended);
            let (conn, mut host) = entry.with_host(&mut self.process);
            conn.peer_gone(&mut host);
            self.wheel.set(index, entry.conn.next_deadline());
        }
        let mut closed = self.channels.close(slot);
        for index in closed
            .iter_mut()
            .flat_map(|channel| channel.waiting.drain(..))
        {
            if let Some(entry) = self.qps.get_mut(index) {
                entry.is_queued = false;
            }
            self.make_ready(index);
        }
        closed
    }

    /// The queue pairs whose peer is the process at the other end of the channel to `slot`.
    pub(super) fn connected_to(&self, slot: SlotId) -> Vec<Qpn> {
        self.qps
            .iter()
            .filter(|entry| entry.is_over(slot))
            .map(|entry| entry.qp.number())
            .collect()
    }

    /// Makes every queue pair acknowledge what it has received with the next packets that are sent.
    pub(super) fn acknowledge_all(&mut self) {
        for index in self.qps.indices() {
            self.acknowledge(index);
        }
    }

    /// Makes a queue pair acknowledge what it has received with the next packet that is sent.
    pub(super) fn acknowledge(&mut self, index: u16) {
        if let Some(entry) = self.qps.get_mut(index) {
            entry.conn.acknowledge_now();
            if entry.conn.ack_is_due() {
                self.make_ready(index);
            }
        }
    }

    /// Fails every queue pair: urdmad has ended.
    pub(super) fn device_gone(&mut self) {
        self.is_dead = true;
        for index in self.qps.indices() {
            self.fail_qp(index);
        }
        self.fail_datagrams();
        self.dc.fail_all(clock::now(), &mut self.process);
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

fn rtr_params(entry: &QpEntry, max_datagram: u32) -> Option<RtrParams> {
    let attributes = &entry.attributes;
    Some(RtrParams {
        remote_qpn: Qpn::from_u32(attributes.remote_qpn)?,
        remote_psn: Psn::new(attributes.rq_psn),
        max_datagram_octets: max_datagram,
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        path: match entry.path {
            Some(PeerPath::Channel(_) | PeerPath::Ended) => Path::Channel,
            Some(PeerPath::Daemon(_) | PeerPath::Lease(_)) | None => Path::Network,
        },
    })
}

fn rts_params(entry: &QpEntry) -> RtsParams {
    let attributes = &entry.attributes;
    // urdmad reports the end of a local peer; no keepalive is needed.
    let is_local = entry.path.as_ref().is_some_and(PeerPath::is_local);
    RtsParams {
        local_psn: Psn::new(attributes.sq_psn),
        timeout: attributes.timeout,
        retry_cnt: attributes.retry_cnt,
        rnr_retry: attributes.rnr_retry,
        max_rd_atomic: attributes.max_rd_atomic,
        keepalive_ns: if is_local { 0 } else { KEEPALIVE_NS },
    }
}
