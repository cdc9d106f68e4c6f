//! The queue pairs of a process by index, with their timers and the list of those that have
//! something to send.
//!
//! Nothing here is searched on the data path. Packets name queue pairs by index, queue pairs with
//! something to send are in a list, and timers are in a wheel.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use proto_trp::conn::{Path, QpState, RtrParams, RtsParams, Time, TransitionError};
use proto_trp::wire::connection_id;
use urdma_channel::OwnRecords;
use urdma_trace::Recorder;
use urdma_types::{Psn, Qpn, SlotId};

use crate::objects::entry::QpEntry;
use crate::objects::index_table::{IndexAllocator, IndexTable};
use crate::objects::kinds::Kinds;
use crate::objects::process::Process;
use crate::objects::qp::{Counts, PolledTable, Qp, QpConfig};
use crate::objects::qp_host::Delivery;
use crate::objects::qp_resources::{attach, detach, purge};
use crate::objects::timer::Wheel;
use crate::objects::xrc::XrcRole;
use crate::paths::lease::RouteId;
use crate::paths::path::{PeerPath, PeerSource};
use crate::random::{random_words, Seeds};
use crate::types::{EngineError, QpCaps};

/// Silence after which a connection to another host probes its peer: the peer's urdmad answers at
/// once for a process that has ended.
const KEEPALIVE_NS: u64 = 3_000_000_000;

/// What a queue pair of any kind is made with.
pub(crate) struct NewQp<'a> {
    pub(crate) slot: SlotId,
    pub(crate) config: &'a QpConfig,
    /// Its kind, as the flight recorder names it.
    pub(crate) kind: u32,
    pub(crate) polled: &'a PolledTable,
    pub(crate) recorder: &'a Recorder,
}

/// See the module.
pub(crate) struct QueuePairs {
    pub(crate) connected: IndexTable<QpEntry>,
    /// Those of other kinds, whose indices are empty places of `connected`.
    pub(crate) kinds: Kinds,
    /// The number of all of them.
    pub(crate) count: u32,
    indices: IndexAllocator,
    /// Of what their connections draw.
    pub(super) seeds: Seeds,
    pub(crate) wheel: Wheel,
    pub(crate) ready: VecDeque<u16>,
    /// The queue pair that took the last datagrams of a burst, 0 for none: its timer is to be set
    /// (`data/receive.rs`).
    pub(crate) handled: u16,
    /// Queue pairs by the connection ids of their streams, for RESETs, which name nothing else.
    pub(crate) by_id: HashMap<u32, u16>,
}

impl QueuePairs {
    /// No queue pairs.
    pub(crate) fn new(now: Time) -> Self {
        let indices = IndexAllocator::new(random_words);
        let first = indices.first();
        Self {
            connected: IndexTable::new(first),
            kinds: Kinds::new(first),
            count: 0,
            indices,
            seeds: Seeds::default(),
            wheel: Wheel::new(first, now),
            ready: VecDeque::new(),
            handled: 0,
            by_id: HashMap::new(),
        }
    }

    /// A new queue pair of any kind in RESET. `prepare` gives what it can hold, and what `put`
    /// stores in the table of its kind.
    pub(crate) fn add<T>(
        &mut self,
        new: &NewQp<'_>,
        prepare: impl FnOnce(Qpn) -> (T, QpCaps),
        put: impl FnOnce(&mut Self, &Arc<Qp>, T),
    ) -> Result<Arc<Qp>, EngineError> {
        let index = self.take_index()?;
        let number = Qpn::new(new.slot, index);
        let (prepared, caps) = prepare(number);
        if let Err(error) = attach(new.config, caps) {
            self.indices.give_back(index);
            return Err(error);
        }
        let qp = Qp::new(number, caps, new.config, new.recorder);
        new.polled.get(index).reset(&Counts::default());
        put(self, &qp, prepared);
        self.count += 1;
        new.recorder.qp_create(number.to_u32(), new.kind);
        Ok(qp)
    }

    /// Undoes [`QueuePairs::add`], and the use of the protection domain, of a queue pair that was
    /// taken out of the table of its kind.
    pub(crate) fn remove(&mut self, qp: &Qp, process: &mut Process, recorder: &Recorder) {
        let index = qp.number().index();
        self.wheel.cancel(index);
        purge(qp);
        detach(qp);
        if !matches!(qp.xrc(), XrcRole::Target(_)) {
            process.pds.release(qp.pd());
        }
        self.indices.give_back(index);
        self.count -= 1;
        recorder.qp_destroy(qp.number().to_u32());
    }

    /// An index that no queue pair has.
    fn take_index(&mut self) -> Result<u16, EngineError> {
        let index = self.indices.take().ok_or(EngineError::NoMemory)?;
        self.wheel.reserve(self.indices.places());
        self.ready.reserve(self.indices.places());
        Ok(index)
    }

    /// The entry of a queue pair that exists.
    #[inline]
    pub(crate) fn entry(&mut self, qp: &Qp) -> Option<&mut QpEntry> {
        let entry = self.connected.get_mut(qp.number().index());
        entry.filter(|entry| std::ptr::eq(&*entry.qp, qp))
    }

    /// Puts a queue pair into the ready list.
    #[inline]
    pub(crate) fn make_ready(&mut self, index: u16) {
        if let Some(entry) = self.connected.get_mut(index) {
            if !entry.is_queued {
                entry.is_queued = true;
                self.ready.push_back(index);
            }
        }
    }

    /// The queue pairs whose peer is the process at the other end of the channel to `slot`.
    pub(crate) fn connected_to(&self, slot: SlotId) -> Vec<Qpn> {
        self.connected
            .iter()
            .filter(|entry| entry.is_over(slot))
            .map(|entry| entry.qp.number())
            .collect()
    }

    /// Makes every queue pair acknowledge what it has received with the next packets that are sent.
    pub(crate) fn acknowledge_all(&mut self) {
        for index in self.connected.indices() {
            self.acknowledge(index);
        }
    }

    /// Makes a queue pair acknowledge what it has received with the next packet that is sent.
    pub(crate) fn acknowledge(&mut self, index: u16) {
        if let Some(entry) = self.connected.get_mut(index) {
            entry.conn.acknowledge_now();
            if entry.conn.ack_is_due() {
                self.make_ready(index);
            }
        }
    }

    /// When a timer may be due, if one is set.
    pub(crate) fn next_look_ns(&self) -> Option<u64> {
        self.wheel.next_look().map(Time::as_ns)
    }

    /// Sets the timer of a connection.
    #[inline]
    pub(crate) fn set_timer(&mut self, index: u16) {
        if let Some(entry) = self.connected.get_mut(index) {
            self.wheel.set(index, entry.conn.next_deadline());
        }
    }

    /// Forgets the path to the peer and the ids of the streams; gives the route of the lease, which
    /// the caller closes.
    #[must_use]
    pub(super) fn forget_path(&mut self, index: u16) -> Option<RouteId> {
        let entry = self.connected.get_mut(index)?;
        for id in entry.ids.iter_mut().filter_map(Option::take) {
            self.by_id.remove(&id);
        }
        entry.source = PeerSource::NONE;
        entry.delivery = None;
        match entry.path.take() {
            Some(PeerPath::Lease(route)) => Some(route),
            _ => None,
        }
    }

    /// RESET or INIT to INIT, INIT to RTR, RTR to RTS, and so on, with the attributes that are in
    /// the entry.
    pub(super) fn step(
        &mut self,
        index: u16,
        (now, to): (Time, QpState),
        max_datagram: u32,
        process: &mut Process,
        records: Option<&Arc<OwnRecords>>,
    ) -> Result<(), EngineError> {
        let Some(entry) = self.connected.get_mut(index) else {
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
                let (conn, mut host) = entry.with_host(process);
                conn.to_sqd(&mut host)
            }
            (_, QpState::Reset | QpState::Error) => Ok(()),
            // SQE is entered on a send error, never requested.
            (_, QpState::Sqe) => Err(TransitionError),
        };
        stepped.map_err(|_| EngineError::Invalid)?;
        self.learn_id(index, to, records);
        self.make_ready(index);
        Ok(())
    }

    /// Stores the connection id of the stream that begins with a step.
    fn learn_id(&mut self, index: u16, to: QpState, records: Option<&Arc<OwnRecords>>) {
        let Some(entry) = self.connected.get_mut(index) else {
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
            let records = records.filter(|_| !is_local);
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
    pub(crate) fn fail(&mut self, index: u16, process: &mut Process) {
        if let Some(entry) = self.connected.get_mut(index) {
            let (conn, mut host) = entry.with_host(process);
            conn.to_error(&mut host);
        }
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
