//! Connection management beside the engine: the calls by which it reaches packets, urdmad, and the
//! states of queue pairs.

use std::net::IpAddr;
use std::sync::Arc;

use proto_trp::conn::{QpState, Time};
use urdma_ipc::ControlClient;
use urdma_trace::Recorder;
use urdma_types::{Psn, Qpn, RawQpn, SlotId};

use crate::clock;
use crate::engine::manager::ConnectionManagement;
use crate::engine::Engine;
use crate::paths::path::NextHop;
use crate::random::random_u64;
use crate::types::{EngineError, Gid};

/// What connection management calls.
impl Engine {
    /// Starts to tell `manager` what happens; to be called once.
    ///
    /// # Errors
    /// [`EngineError::Busy`] if there is another manager, [`EngineError::Forked`], or that the
    /// background thread could not be started.
    pub fn manage_connections(
        &self,
        manager: Arc<dyn ConnectionManagement>,
    ) -> Result<(), EngineError> {
        self.not_forked()?;
        // The program waits for events of its connections.
        self.start_background_beside_driver()?;
        self.cm.set(manager).map_err(|_| EngineError::Busy)
    }

    /// The time of the clock that timers run by.
    pub fn now() -> Time {
        clock::now()
    }

    /// An unpredictable number.
    pub fn entropy() -> u64 {
        random_u64()
    }

    /// Where events of connections are recorded.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The client of urdmad; `None` if there is no urdmad, or it has ended.
    pub fn control(&self) -> Option<&ControlClient> {
        self.daemon().filter(|_| self.is_alive())
    }

    /// Sends a datagram of connection management to a slot of a host, which may be this one. False
    /// if there is no room for it at the moment. Delivery is not guaranteed.
    pub fn send_cm(&self, to: IpAddr, slot: SlotId, datagram: &[u8]) -> bool {
        let mut shard = self.shard.lock();
        let is_sent = shard.is_dead || shard.send_cm(&self.info, to, slot, datagram);
        let offers = shard.take_offers();
        drop(shard);
        // The process may end before another thread has made the offer, and with it what it has
        // written.
        for (slot, offer) in offers {
            self.make_offer(slot, offer);
        }
        is_sent
    }

    /// The manager's next deadline has moved to an earlier time: wakes the thread that sleeps until
    /// the deadline.
    pub fn deadline_moved(&self) {
        self.sleep_control.kick();
    }

    /// Whether a queue pair of this process is in RTR or a later state; true as well for one that
    /// is unknown or of datagrams.
    pub fn qp_is_ready(&self, qpn: RawQpn) -> bool {
        let Some(qpn) = qpn.to_qpn() else {
            return true;
        };
        let Some(engine) = self.lanes.find(qpn.slot()) else {
            return true;
        };
        let shard = engine.shard.lock();
        let entry = shard.qps.connected.get(qpn.index());
        entry.is_none_or(|entry| !matches!(entry.conn.state(), QpState::Reset | QpState::Init))
    }

    /// The instance's source address for an address. May block for seconds.
    ///
    /// # Errors
    /// [`EngineError::HostUnreachable`] or [`EngineError::NetUnreachable`] if the address cannot be
    /// resolved.
    pub fn source_for(&self, ip: IpAddr) -> Result<IpAddr, EngineError> {
        let addresses = self.addresses();
        let source = match self.find_next_hop(Gid::from_ip(ip))? {
            NextHop::Local if addresses.contains(&ip) => Some(ip),
            NextHop::Local => addresses.first().copied(),
            NextHop::Remote { .. } => addresses
                .iter()
                .copied()
                .find(|own| own.is_ipv4() == ip.is_ipv4()),
        };
        source.ok_or(EngineError::NetUnreachable)
    }

    /// Whether connection management of this process has met a peer with this queue pair number and
    /// first PSN.
    pub fn has_met(&self, qpn: RawQpn, psn: Psn) -> bool {
        self.cm.get().is_some_and(|cm| cm.has_peer(qpn, psn))
    }
}

impl Engine {
    /// Connection management of the process, if it is used: the first engine has it.
    pub(crate) fn cm_in_use(&self) -> Option<Arc<dyn ConnectionManagement>> {
        self.lanes.first()?.cm.get().cloned()
    }

    /// Notes that a queue pair has reached RTR.
    pub(super) fn qp_is_ready_now(&self, qpn: Qpn) {
        if let Some(cm) = self.cm_in_use() {
            cm.qp_ready(qpn);
        }
    }

    /// Tells connection management, which knows slots only, that a process has ended.
    pub(crate) fn cm_slot_gone(
        &self,
        cm: &dyn ConnectionManagement,
        slot: SlotId,
        generation: u32,
    ) {
        let (number, directory) = (slot.number(), &self.directory);
        cm.slot_gone(slot, &|| {
            directory.has_process(number) && directory.generation(number) != generation
        });
    }
}
