//! Calls on initiators and targets.

use std::sync::Arc;

use proto_trp::conn::{PostError, QpState, SendWr};
use proto_trp::dc::DcTargetAddress;
use urdma_types::Qpn;

use crate::clock;
use crate::engine::Engine;
use crate::objects::kinds::datagram::AddressHandle;
use crate::objects::kinds::dc::entry::{DcEntry, DcRole, CONTEXTS_MAX, THIS_HOST};
use crate::objects::qp::{PolledTable, Qp, QpConfig};
use crate::objects::qp_resources::{check_sizes, purge};
use crate::objects::trace::DRIVER_TYPE;
use crate::paths::path::NextHop;
use crate::shard::queue_pairs::NewQp;
use crate::shard::Shard;
use crate::types::{EngineError, QpAttributes, QpCaps, QpModify};

impl Engine {
    /// A new initiator or target in RESET. A target has a shared receive queue, an initiator none.
    ///
    /// # Errors
    /// As [`Engine::create_qp`]; [`EngineError::Invalid`] for another queue than the role has.
    pub fn create_dc_qp(&self, config: &QpConfig, role: DcRole) -> Result<Arc<Qp>, EngineError> {
        self.usable()?;
        check_sizes(config)?;
        if config.srq.is_some() == (role == DcRole::Initiator) {
            return Err(EngineError::Invalid);
        }
        self.start_background()?;
        let mut shard = self.shard.lock();
        shard.in_domain(config.pd, |shard| add(shard, config, role, &self.polled))
    }

    /// Sets attributes, then goes to a state. An initiator is ready in RTS, a target in RTR.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such step.
    pub fn modify_dc_qp(&self, qp: &Qp, change: &QpModify) -> Result<(), EngineError> {
        self.not_forked()?;
        if !matches!(change.state, Some(QpState::Reset | QpState::Error)) {
            self.usable()?;
        }
        let mut shard = self.shard.lock();
        let (index, now) = (qp.number().index(), clock::now());
        let Shard { qps, process, .. } = &mut *shard;
        let entry = qps.kinds.dc.entry(qp).ok_or(EngineError::Invalid)?;
        let attributes = entry.attributes.with(change);
        entry.change(now, attributes, change.state, process)?;
        if change.state == Some(QpState::Reset) {
            purge(qp);
            self.polled.get(index).reset(&entry.counts);
        }
        shard.transmit_dc(index, now);
        self.sleep_control.wake_if_due(&mut shard);
        Ok(())
    }

    /// State and attributes; those of a queue pair that has been destroyed are RESET and nothing.
    pub fn query_dc_qp(&self, qp: &Qp) -> (QpState, QpAttributes) {
        if self.is_forked() {
            return (QpState::Error, QpAttributes::default());
        }
        let mut shard = self.shard.lock();
        let entry = shard.qps.kinds.dc.entry(qp);
        entry.map_or((QpState::Reset, QpAttributes::default()), |entry| {
            (entry.state(), entry.attributes)
        })
    }

    /// Ends an initiator or a target: its completions are removed from the queues.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it has been destroyed already.
    pub fn destroy_dc_qp(&self, qp: &Qp) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        let index = qp.number().index();
        if !shard.is_dead {
            // As a device would have by now.
            shard.drain(&self.info);
        }
        let entry = shard.qps.kinds.dc.entry(qp).ok_or(EngineError::Invalid)?;
        entry.close();
        shard.transmit_dc(index, clock::now());
        shard.qps.kinds.dc.remove(qp);
        shard.give_back(qp);
        Ok(())
    }

    /// Requests that an initiator would accept now.
    ///
    /// # Errors
    /// As [`Engine::send_room`].
    pub fn dc_send_room(&self, qp: &Qp) -> Result<u32, PostError> {
        let mut shard = self.lock_for_post()?;
        let entry = shard
            .qps
            .kinds
            .dc
            .entry(qp)
            .ok_or(PostError::InvalidState)?;
        if !entry.state().takes_send() {
            return Err(PostError::InvalidState);
        }
        let used = entry.sends_in_use(self.polled.get(qp.number().index()));
        Ok(qp.caps().max_send_wr.saturating_sub(used))
    }

    /// Posts a request of an initiator to the target with a number and a key on the host of an
    /// address handle, and sends what may go now.
    ///
    /// # Errors
    /// The request was not accepted. [`PostError::InvalidRequest`]: the handle is a group's or of
    /// another protection domain, or there is no such number.
    pub fn post_dc_send(
        &self,
        qp: &Qp,
        (handle, number, key): (&AddressHandle, u32, u64),
        wr: &SendWr<'_>,
    ) -> Result<(), PostError> {
        let number = Qpn::from_u32(number).ok_or(PostError::InvalidRequest)?;
        let hop = handle.next_hop().filter(|_| handle.pd() == qp.pd());
        let to = DcTargetAddress {
            address: match hop.ok_or(PostError::InvalidRequest)? {
                NextHop::Local => THIS_HOST,
                NextHop::Remote { ip, .. } => ip,
            },
            number,
            key,
            local: handle.gid_index(),
        };
        let mut shard = self.lock_for_post()?;
        if to.address == THIS_HOST {
            let before = self
                .directory
                .generation(number.slot().number())
                .wrapping_sub(1);
            if shard.channels.is_with(number.slot(), before) {
                drop(shard);
                // urdmad's report of the end of the earlier process is still to come.
                self.peer_slot_gone(number.slot(), before);
                shard = self.lock_for_post()?;
            }
        }
        let (index, now) = (qp.number().index(), clock::now());
        let Shard { qps, process, .. } = &mut *shard;
        let entry = qps.kinds.dc.entry(qp).ok_or(PostError::InvalidState)?;
        if entry.sends_in_use(self.polled.get(index)) >= qp.caps().max_send_wr {
            return Err(PostError::QueueFull);
        }
        entry.post(now, to, wr, process)?;
        shard.transmit_dc(index, now);
        self.sleep_control.wake_if_due(&mut shard);
        Ok(())
    }
}

fn caps_of(config: &QpConfig, role: DcRole) -> QpCaps {
    match role {
        DcRole::Initiator => QpCaps {
            max_send_wr: config.max_send_wr,
            max_recv_wr: 0,
            max_send_sge: config.max_send_sge.max(1),
            max_recv_sge: 0,
            max_inline: config.max_inline,
        },
        DcRole::Target { .. } => QpCaps {
            max_send_wr: 0,
            // Each context has one message at a time that arrives.
            max_recv_wr: u32::try_from(CONTEXTS_MAX).unwrap_or(u32::MAX),
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline: 0,
        },
    }
}

fn add(
    shard: &mut Shard,
    config: &QpConfig,
    role: DcRole,
    polled: &PolledTable,
) -> Result<Arc<Qp>, EngineError> {
    let new = NewQp {
        slot: shard.slot,
        config,
        kind: DRIVER_TYPE,
        polled,
        recorder: &shard.recorder,
    };
    let prepare = |_| ((), caps_of(config, role));
    shard.qps.add(&new, prepare, |qps, qp, ()| {
        let entry = DcEntry::new(Arc::clone(qp), role, qps.kinds.dc.max_datagram_octets);
        qps.kinds.dc.put(qp.number().index(), entry);
    })
}
