//! Calls on queue pairs of connections.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use proto_trp::conn::{PostError, QpState, RecvWr, SendWr};
use urdma_types::Qpn;

use crate::clock;
use crate::engine::Engine;
use crate::fault::{has, Fault};
use crate::objects::entry::QpEntry;
use crate::objects::process::Process;
use crate::objects::qp::{Qp, QpConfig};
use crate::objects::trace;
use crate::paths::path::{self, NextHop, PeerPath, PeerSource};
use crate::shard::Shard;
use crate::types::{EngineError, QpAttributes, QpModify};

impl Engine {
    /// A new queue pair in RESET.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for sizes out of range, [`EngineError::NoMemory`] when there are
    /// too many.
    pub fn create_qp(&self, config: &QpConfig) -> Result<Arc<Qp>, EngineError> {
        self.usable()?;
        self.start_background()?;
        self.shard.lock().create_qp(config, &self.polled)
    }

    /// Sets attributes, then goes to a state. The caller has checked which attributes belong to the
    /// step.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such step or a value out of range;
    /// [`EngineError::HostUnreachable`], [`EngineError::NetUnreachable`]: no host has the peer's
    /// address. Nothing has changed then. Resolution may take two seconds.
    pub fn modify_qp(&self, qp: &Qp, change: &QpModify) -> Result<(), EngineError> {
        self.not_forked()?;
        let index = qp.number().index();
        let (attributes, state) = {
            let mut shard = self.shard.lock();
            let entry = shard.qps.entry(qp).ok_or(EngineError::Invalid)?;
            (entry.attributes.with(change), entry.conn.state())
        };
        let to = change.state.unwrap_or(state);
        if !matches!(to, QpState::Reset | QpState::Error) {
            self.usable()?;
        }
        if change.state.is_some() && to != state && !state.may_become(to) {
            return Err(EngineError::Invalid);
        }
        let hop = match to {
            QpState::Rtr if state == QpState::Init => {
                Some(self.find_next_hop(attributes.remote_gid)?)
            }
            _ => None,
        };
        if let (Some(NextHop::Local), Some(remote)) = (hop, Qpn::from_u32(attributes.remote_qpn)) {
            self.open_channel(remote.slot())?;
        }
        let mut shard = self.shard.lock();
        if matches!(to, QpState::Reset | QpState::Error) {
            self.settle(&mut shard, index);
        }
        self.apply(&mut shard, qp, attributes, to, hop)?;
        let ready = shard
            .qps
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
        to: QpState,
        hop: Option<NextHop>,
    ) -> Result<(), EngineError> {
        let index = qp.number().index();
        let entry = shard.qps.entry(qp).ok_or(EngineError::Invalid)?;
        let (state, before) = (entry.conn.state(), entry.attributes);
        entry.attributes = attributes;
        let outcome = match to {
            QpState::Reset => {
                shard.reset_qp(index, &self.polled);
                Ok(())
            }
            QpState::Error => {
                shard.qps.fail(index, &mut shard.process);
                Ok(())
            }
            _ if to == state && state != QpState::Init => Ok(()),
            _ => self.step(shard, qp, to, hop),
        };
        if let Some(entry) = shard.qps.entry(qp) {
            if outcome.is_err() {
                entry.attributes = before;
            }
            // The one attribute that may change in any state.
            entry.conn.set_min_rnr_timer(entry.attributes.min_rnr_timer);
        }
        if outcome.is_ok() {
            trace::state_changed(qp, &attributes, state, to);
        }
        outcome
    }

    fn step(
        &self,
        shard: &mut Shard,
        qp: &Qp,
        to: QpState,
        hop: Option<NextHop>,
    ) -> Result<(), EngineError> {
        let index = qp.number().index();
        let mut max_datagram = 0;
        if let Some(hop) = hop {
            max_datagram = path::max_datagram(&self.info, hop);
            let path = self.path_for(shard, qp, hop)?;
            shard.forget_path(index);
            if let Some(entry) = shard.qps.entry(qp) {
                entry.path = Some(path);
                let remote = Qpn::from_u32(entry.attributes.remote_qpn);
                entry.source =
                    remote.map_or(PeerSource::NONE, |remote| PeerSource::new(hop, remote));
            }
        }
        let outcome = shard.step_qp(index, to, max_datagram);
        if outcome.is_err() && hop.is_some() {
            shard.forget_path(index);
        }
        outcome
    }

    fn path_for(&self, shard: &mut Shard, qp: &Qp, hop: NextHop) -> Result<PeerPath, EngineError> {
        let entry = shard.qps.entry(qp).ok_or(EngineError::Invalid)?;
        let remote = Qpn::from_u32(entry.attributes.remote_qpn).ok_or(EngineError::Invalid)?;
        let sgid_index = entry.attributes.sgid_index;
        Ok(match hop {
            NextHop::Local if shard.channels.has(remote.slot()) => PeerPath::Channel(remote.slot()),
            NextHop::Local => PeerPath::Ended,
            NextHop::Remote { ip, mac } => {
                let local = (qp.number(), sgid_index);
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
            .qps
            .entry(qp)
            .map_or((QpState::Reset, QpAttributes::default()), |entry| {
                (entry.conn.state(), entry.attributes)
            })
    }

    /// Ends a queue pair: its completions are removed from the queues, and the peer is notified.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it has been destroyed already.
    pub fn destroy_qp(&self, qp: &Qp) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        let now = clock::now();
        self.settle(&mut shard, qp.number().index());
        let entry = shard.qps.entry(qp).ok_or(EngineError::Invalid)?;
        entry.conn.close();
        shard.transmit(qp.number().index(), now);
        shard.remove_qp(qp);
        Ok(())
    }

    /// Before a queue pair stops: handles and acknowledges what has arrived, as a device would have
    /// by now.
    fn settle(&self, shard: &mut Shard, index: u16) {
        if !shard.is_dead {
            shard.drain(&self.info);
            shard.qps.acknowledge(index);
            shard.transmit(index, clock::now());
        }
    }

    /// The number of send requests that [`Engine::post_send`] would accept now.
    ///
    /// # Errors
    /// [`PostError::InvalidState`]: none, in this state.
    pub fn send_room(&self, qp: &Qp) -> Result<u32, PostError> {
        let mut shard = self.lock_for_post()?;
        let index = qp.number().index();
        shard.read_counts_of(index);
        let entry = shard.qps.entry(qp).ok_or(PostError::InvalidState)?;
        if !entry.conn.state().takes_send() {
            return Err(PostError::InvalidState);
        }
        let waiting = self.polled.get(index);
        let used = entry.sends_in_use(waiting);
        Ok(qp.caps().max_send_wr.saturating_sub(used))
    }

    /// Posts a send request and transmits what may be sent now.
    ///
    /// # Errors
    /// The request was not accepted.
    #[inline]
    pub fn post_send(&self, qp: &Qp, wr: &SendWr<'_>) -> Result<(), PostError> {
        if has(Fault::BehindFlush) && self.is_flushed_meanwhile(qp) {
            return Ok(());
        }
        let mut shard = self.lock_for_post()?;
        let index = qp.number().index();
        let polled = self.polled.get(index);
        if shard.post_in_cell(qp, polled, wr) {
            return Ok(());
        }
        if wr.op.is_request() && shard.post_request_in_cell(qp, polled, wr) {
            return Ok(());
        }
        let max = qp.caps().max_send_wr;
        if self.sends_in_use(&mut shard, qp)? >= max {
            shard.read_counts_of(index);
            if self.sends_in_use(&mut shard, qp)? >= max {
                return Err(PostError::QueueFull);
            }
        }
        let found = shard.entry_and_process(qp);
        let (entry, process) = found.ok_or(PostError::InvalidState)?;
        let (conn, mut host) = entry.with_host(process);
        let octets = conn.post_send(clock::now, wr, &mut host)?;
        shard.transmit_posted(index, octets);
        if shard.batch.has_begun() {
            self.has_batch.store(true, Ordering::Relaxed);
        }
        self.sleep_control.wake_if_due(&mut shard);
        Ok(())
    }

    /// Whether a queue pair goes to ERR between two looks at it: see [`Fault::BehindFlush`].
    #[cold]
    fn is_flushed_meanwhile(&self, qp: &Qp) -> bool {
        let before = self.query_qp(qp).0;
        before == QpState::Rts && self.query_qp(qp).0 == QpState::Error
    }

    /// Places of the send queue in use: by requests, and by completions that were not polled.
    #[inline]
    fn sends_in_use(&self, shard: &mut Shard, qp: &Qp) -> Result<u32, PostError> {
        let entry = shard.qps.entry(qp).ok_or(PostError::InvalidState)?;
        let polled = self.polled.get(qp.number().index());
        Ok(entry.sends_in_use(polled))
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The request was not accepted.
    #[inline]
    pub fn post_recv(&self, qp: &Qp, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut shard = self.lock_for_post()?;
        let index = qp.number().index();
        let found = shard.entry_and_process(qp);
        let (entry, process) = found.ok_or(PostError::InvalidState)?;
        let waiting = self.polled.get(index).recv_waiting(&entry.counts);
        if entry.conn.recvs_outstanding() + waiting >= qp.caps().max_recv_wr {
            return Err(PostError::QueueFull);
        }
        if let Some(stored) = entry.conn.store_recv(wr) {
            return stored;
        }
        post_recv_with_effects(entry, process, wr)?;
        if !entry.is_queued && entry.conn.may_have_tx() {
            shard.transmit(index, clock::now());
        }
        Ok(())
    }
}

/// Posts a receive request that is not only stored.
#[cold]
fn post_recv_with_effects(
    entry: &mut QpEntry,
    process: &mut Process,
    wr: &RecvWr<'_>,
) -> Result<(), PostError> {
    let (conn, mut host) = entry.with_host(process);
    conn.post_recv(wr, &mut host)
}
