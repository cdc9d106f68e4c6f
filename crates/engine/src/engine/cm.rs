//! What connection management needs of the engine: packets, time, urdmad, and the states of queue
//! pairs.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use proto_trp::conn::QpState;
use urdma_ipc::{CmPort, ControlClient, PortSharing, PortTable};
use urdma_trace::Recorder;
use urdma_types::{Psn, Qpn, RawQpn, SlotId, Time};
use urdma_ucma::{CmId, Device, Driver, Errno, Peer, PortRequest, Sharing, Ucma};

use crate::clock;
use crate::engine::Engine;
use crate::paths::path::NextHop;
use crate::random::random_u64;
use crate::types::{EngineError, Gid};

/// The engine as connection management sees it.
struct EngineDriver {
    engine: Weak<Engine>,
}

impl Engine {
    /// The ucma over this engine, for the stand-in's `cm_open`, `cm_write` and `cm_close`.
    ///
    /// # Errors
    /// [`EngineError::Forked`], or the background thread could not be started.
    pub fn ucma(&self) -> Result<&Arc<Ucma>, EngineError> {
        self.not_forked()?;
        self.start_background()?;
        Ok(self.ucma.get_or_init(|| self.make_ucma()))
    }

    pub(super) fn make_ucma(&self) -> Arc<Ucma> {
        Ucma::new(Arc::new(EngineDriver {
            engine: Weak::clone(&self.myself),
        }))
    }

    /// Connection management of the process, if it is used: the first engine has it.
    pub(crate) fn cm_in_use(&self) -> Option<Arc<Ucma>> {
        self.lanes.first()?.ucma.get().cloned()
    }

    /// Notes that a queue pair has reached RTR: a handshake may be waiting for that.
    pub(super) fn qp_is_ready_now(&self, qpn: Qpn) {
        if let Some(ucma) = self.cm_in_use() {
            ucma.qp_ready(qpn);
        }
    }

    /// Whether connection management of this process has met a peer with this queue pair number and
    /// first PSN.
    pub fn has_met(&self, qpn: RawQpn, psn: Psn) -> bool {
        self.ucma.get().is_some_and(|ucma| ucma.has_peer(qpn, psn))
    }

    /// Tells connection management, which knows slots only, that a process has ended. If the slot
    /// has a new process, an attempt to connect to the earlier one ends by itself.
    pub(crate) fn cm_slot_gone(&self, ucma: &Ucma, slot: SlotId, generation: u32) {
        let (number, directory) = (slot.number(), &self.directory);
        ucma.slot_gone(slot, || {
            directory.has_process(number) && directory.generation(number) != generation
        });
    }

    fn control(&self) -> Result<&ControlClient, Errno> {
        if self.is_alive() {
            self.daemon().ok_or(libc::ENODEV)
        } else {
            Err(libc::ENODEV)
        }
    }
}

impl EngineDriver {
    fn engine(&self) -> Result<Arc<Engine>, Errno> {
        self.engine.upgrade().ok_or(libc::ENODEV)
    }
}

/// A port's sharing as urdmad knows it.
fn sharing_of(sharing: Sharing) -> PortSharing {
    PortSharing {
        reuse_addr: sharing.reuse_addr,
        af_only: sharing.af_only,
    }
}

impl Driver for EngineDriver {
    fn now(&self) -> Time {
        clock::now()
    }

    fn entropy(&self) -> u64 {
        random_u64()
    }

    fn recorder(&self) -> Recorder {
        let engine = self.engine();
        engine.map_or_else(|_| Recorder::default(), |engine| engine.recorder.clone())
    }

    fn device(&self) -> Device {
        let Ok(engine) = self.engine() else {
            return Device {
                slot: SlotId::DAEMON,
                node_guid: [0; 8],
                addresses: Vec::new(),
                gids: Vec::new(),
                path_mtu: 1,
            };
        };
        let info = engine.info();
        Device {
            slot: info.slot,
            node_guid: info.node_guid.to_be_bytes(),
            addresses: info.addresses.clone(),
            gids: info.gids.iter().map(|entry| entry.gid.0).collect(),
            path_mtu: info.path_mtu_code(),
        }
    }

    fn transmit(&self, to: Peer, datagram: &[u8]) -> bool {
        let Ok(engine) = self.engine() else {
            return true;
        };
        let mut shard = engine.shard.lock();
        let is_sent = shard.is_dead || shard.send_cm(&engine.info, to.ip, to.slot, datagram);
        let offers = shard.take_offers();
        drop(shard);
        // The process may end before another thread has made the offer, and with it what it has
        // written.
        for (slot, offer) in offers {
            engine.make_offer(slot, offer);
        }
        is_sent
    }

    fn event_taken(&self) {
        if let Ok(engine) = self.engine() {
            engine.progress_between_events();
        }
    }

    fn kick(&self) {
        if let Ok(engine) = self.engine() {
            engine.sleep_control.kick();
        }
    }

    fn qp_is_ready(&self, qpn: RawQpn) -> bool {
        let (Ok(first), Some(qpn)) = (self.engine(), qpn.to_qpn()) else {
            return true;
        };
        let Some(engine) = first.lanes.find(qpn.slot()) else {
            return true;
        };
        let shard = engine.shard.lock();
        let entry = shard.qps.connected.get(qpn.index());
        entry.is_none_or(|entry| !matches!(entry.conn.state(), QpState::Reset | QpState::Init))
    }

    fn bind_port(&self, id: CmId, wanted: &PortRequest) -> Result<u16, Errno> {
        let wanted = CmPort {
            space: PortTable::of(wanted.space).ok_or(libc::EINVAL)?,
            addr: wanted.ip,
            port: wanted.port,
            sharing: sharing_of(wanted.sharing),
        };
        let bound = self.engine()?.control()?.cm_bind_port(id.0, wanted);
        bound.map_err(|error| error.errno())
    }

    fn share_port(&self, id: CmId, sharing: Sharing) -> Result<(), Errno> {
        let shared = self
            .engine()?
            .control()?
            .cm_share(id.0, sharing_of(sharing));
        shared.map_err(|error| error.errno())
    }

    fn listen(&self, id: CmId, backlog: u32) -> Result<(), Errno> {
        let listens = self.engine()?.control()?.cm_listen(id.0, backlog);
        listens.map_err(|error| error.errno())
    }

    fn release_port(&self, id: CmId) {
        let Ok(engine) = self.engine() else {
            return;
        };
        if let Ok(control) = engine.control() {
            // When urdmad has ended, so has the port.
            let _ = control.cm_release(id.0);
        }
    }

    fn resolve(&self, ip: IpAddr) -> Result<IpAddr, Errno> {
        let engine = self.engine()?;
        let own = || {
            engine
                .addresses()
                .first()
                .copied()
                .ok_or(EngineError::NetUnreachable)
        };
        let source = match engine.find_next_hop(Gid::from_ip(ip)) {
            Ok(NextHop::Local) if engine.addresses().contains(&ip) => Ok(ip),
            Ok(NextHop::Local) => own(),
            Ok(NextHop::Remote { .. }) => engine
                .addresses()
                .iter()
                .copied()
                .find(|own| own.is_ipv4() == ip.is_ipv4())
                .ok_or(EngineError::NetUnreachable),
            Err(error) => Err(error),
        };
        source.map_err(EngineError::errno)
    }
}
