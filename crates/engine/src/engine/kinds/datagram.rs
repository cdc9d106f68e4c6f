//! Calls on datagram queue pairs, address handles and multicast groups.

use std::sync::{Arc, MutexGuard, PoisonError};

use proto_trp::conn::{CompletionOp, PostError, QpState, RecvWr};
use proto_trp::wire::datagram::is_group;
use urdma_ipc::ControlError;

use crate::clock;
use crate::engine::Engine;
use crate::objects::kinds::datagram::handle::{AddressHandle, HandleTarget};
use crate::objects::kinds::datagram::pair::{DatagramAttributes, DatagramModify};
use crate::objects::kinds::datagram::queue::{DatagramWr, SendRing};
use crate::objects::qp::{Qp, QpConfig};
use crate::types::{EngineError, Gid, Pd, LIMITS};

impl Engine {
    /// A new address handle.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such GID here; [`EngineError::HostUnreachable`],
    /// [`EngineError::NetUnreachable`]: no host has the address. Resolution may take two seconds.
    pub fn create_ah(
        &self,
        pd: Pd,
        sgid_index: u8,
        destination: Gid,
        traffic_class: u8,
    ) -> Result<Arc<AddressHandle>, EngineError> {
        self.usable()?;
        let source = self.info.gids.get(usize::from(sgid_index));
        let source = source.ok_or(EngineError::Invalid)?.gid;
        let target = self.resolve_target(destination)?;
        let mut shard = self.shard.lock();
        if shard.qps.kinds.datagrams.handle_count >= LIMITS.max_ah {
            return Err(EngineError::NoMemory);
        }
        shard.process.pds.acquire(pd)?;
        shard.qps.kinds.datagrams.handle_count += 1;
        Ok(Arc::new(AddressHandle {
            pd,
            source,
            gid_index: sgid_index,
            destination,
            traffic_class,
            target,
        }))
    }

    /// Ends an address handle; requests that name it and wait are sent all the same.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn destroy_ah(&self, handle: &AddressHandle) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        shard.process.pds.release(handle.pd);
        shard.qps.kinds.datagrams.handle_count -= 1;
        Ok(())
    }

    /// A new datagram queue pair in RESET.
    ///
    /// # Errors
    /// As [`Engine::create_qp`].
    pub fn create_datagram_qp(&self, config: &QpConfig) -> Result<Arc<Qp>, EngineError> {
        self.usable()?;
        self.start_background()?;
        self.shard.lock().create_datagram_qp(config, &self.polled)
    }

    /// Sets attributes, then goes to a state. The caller has checked which attributes belong to the
    /// step.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no such step.
    pub fn modify_datagram_qp(&self, qp: &Qp, change: &DatagramModify) -> Result<(), EngineError> {
        self.not_forked()?;
        if !matches!(change.state, Some(QpState::Reset | QpState::Error)) {
            self.usable()?;
        }
        let mut shard = self.shard.lock();
        shard.modify_datagram_qp(qp, change, &self.polled)?;
        shard.transmit_datagrams(qp.number().index(), clock::now());
        shard.publish();
        self.sleep_control.wake_if_due(&mut shard);
        Ok(())
    }

    /// State and attributes; those of a queue pair that has been destroyed are RESET and nothing.
    pub fn query_datagram_qp(&self, qp: &Qp) -> (QpState, DatagramAttributes) {
        if self.is_forked() {
            return (QpState::Error, DatagramAttributes::default());
        }
        let mut shard = self.shard.lock();
        shard
            .qps
            .kinds
            .datagrams
            .entry(qp)
            .map_or((QpState::Reset, DatagramAttributes::default()), |entry| {
                (entry.state, entry.attributes)
            })
    }

    /// Ends a datagram queue pair: its completions are removed from the queues.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it has been destroyed already; [`EngineError::Busy`]: it is
    /// attached to a multicast group.
    pub fn destroy_datagram_qp(&self, qp: &Qp) -> Result<(), EngineError> {
        self.not_forked()?;
        self.shard.lock().remove_datagram_qp(qp)
    }

    /// Attaches a datagram queue pair to a multicast group. It receives each message once, however
    /// often it is attached.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: no group, or no such queue pair; [`EngineError::NoMemory`]: one
    /// too many; [`EngineError::DeviceGone`].
    pub fn attach_to_group(&self, qp: &Qp, group: Gid) -> Result<(), EngineError> {
        self.usable()?;
        if !is_group(&group.0) {
            return Err(EngineError::Invalid);
        }
        // urdmad is notified in the order in which the table changes.
        let _told_in_order = self.lock_memberships();
        let is_first = self.shard.lock().qps.kinds.datagrams.attach(qp, group)?;
        let Some(control) = self.daemon().filter(|_| is_first) else {
            return Ok(());
        };
        let joined = control.join_group(group.to_ip());
        joined.map_err(|error| {
            // No other caller has seen it attached, so detaching cannot fail.
            let _ = self.shard.lock().qps.kinds.datagrams.detach(qp, group);
            match error {
                ControlError::Refused(_) => EngineError::NoMemory,
                _ => EngineError::DeviceGone,
            }
        })
    }

    /// Undoes [`Engine::attach_to_group`].
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it is not attached.
    pub fn detach_from_group(&self, qp: &Qp, group: Gid) -> Result<(), EngineError> {
        self.not_forked()?;
        let _told_in_order = self.lock_memberships();
        let is_last = self.shard.lock().qps.kinds.datagrams.detach(qp, group)?;
        if let Some(control) = self.daemon().filter(|_| is_last) {
            // If urdmad has ended, so has the membership.
            let _ = control.leave_group(group.to_ip());
        }
        Ok(())
    }

    fn lock_memberships(&self) -> MutexGuard<'_, ()> {
        self.memberships
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a send request and sends what may go now.
    ///
    /// # Errors
    /// The request was not accepted.
    pub fn post_datagram(&self, qp: &Qp, wr: &DatagramWr<'_>) -> Result<(), PostError> {
        self.post_to_ring(qp, |sends| sends.push(wr))
    }

    /// Posts a request that the service does not have, which ends with
    /// [`crate::Status::LocalQpOperationError`] in its turn and takes the queue pair to SQE.
    ///
    /// # Errors
    /// The request was not accepted.
    #[cold]
    pub fn post_unsupported_datagram(
        &self,
        qp: &Qp,
        wr_id: u64,
        op: CompletionOp,
    ) -> Result<(), PostError> {
        self.post_to_ring(qp, |sends| sends.push_unsupported(wr_id, op))
    }

    #[inline]
    fn post_to_ring(
        &self,
        qp: &Qp,
        push: impl FnOnce(&mut SendRing) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut shard = self.lock_for_post()?;
        let index = qp.number().index();
        let (mut queues, mut host) = shard.datagram_host(qp).ok_or(PostError::InvalidState)?;
        let waiting = self.polled.get(index).send_waiting(host.counts);
        if queues.sends_outstanding() + waiting >= qp.caps().max_send_wr {
            return Err(PostError::QueueFull);
        }
        queues.post_send(&mut host, push)?;
        shard.transmit_datagrams(index, clock::now());
        shard.publish();
        self.sleep_control.wake_if_due(&mut shard);
        Ok(())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The request was not accepted.
    pub fn post_datagram_recv(&self, qp: &Qp, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut shard = self.lock_for_post()?;
        let index = qp.number().index();
        let (mut queues, mut host) = shard.datagram_host(qp).ok_or(PostError::InvalidState)?;
        let waiting = self.polled.get(index).recv_waiting(host.counts);
        if queues.recvs_outstanding() + waiting >= qp.caps().max_recv_wr {
            return Err(PostError::QueueFull);
        }
        queues.post_recv(wr, &mut host)
    }

    /// Resolves `destination`; may ask urdmad, so not to be called under the engine's lock.
    pub(super) fn resolve_target(&self, destination: Gid) -> Result<HandleTarget, EngineError> {
        if is_group(&destination.0) {
            Ok(HandleTarget::Group)
        } else {
            self.find_next_hop(destination).map(HandleTarget::Host)
        }
    }
}
