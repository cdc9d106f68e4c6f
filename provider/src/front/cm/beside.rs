//! Connection management beside the engine of the process: each reaches the other through the
//! trait that it defines.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use urdma_engine::{ConnectionManagement, Engine, EngineError};
use urdma_ipc::{CmPort, ControlClient, PortSharing, PortTable};
use urdma_trace::Recorder;
use urdma_types::{Psn, Qpn, RawQpn, SlotId, Time};
use urdma_ucma::{CmId, Device, Driver, Errno, Peer, PortRequest, Sharing, Ucma};

/// Starts connection management of a process, for which the engine has none yet.
///
/// # Errors
/// As [`Engine::manage_connections`].
pub(super) fn start(engine: &Arc<Engine>) -> Result<Arc<Ucma>, EngineError> {
    let ucma = Ucma::new(Arc::new(EngineDriver {
        engine: Arc::downgrade(engine),
    }));
    engine.manage_connections(Arc::new(Managed(Arc::clone(&ucma))))?;
    Ok(ucma)
}

/// Connection management as the engine sees it.
struct Managed(Arc<Ucma>);

impl ConnectionManagement for Managed {
    fn handle_datagram(&self, from: IpAddr, datagram: &[u8]) {
        self.0.handle_datagram(from, datagram);
    }

    fn qp_ready(&self, qpn: Qpn) {
        self.0.qp_ready(qpn);
    }

    fn qp_data(&self, qpn: Qpn) {
        self.0.qp_data(qpn);
    }

    fn qp_gone(&self, qpn: Qpn) {
        self.0.qp_gone(qpn);
    }

    fn slot_gone(&self, slot: SlotId, has_next: &dyn Fn() -> bool) {
        self.0.slot_gone(slot, has_next);
    }

    fn device_removed(&self) {
        self.0.device_removed();
    }

    fn has_peer(&self, qpn: RawQpn, psn: Psn) -> bool {
        self.0.has_peer(qpn, psn)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.0.next_deadline()
    }

    fn handle_timeout(&self) {
        self.0.handle_timeout();
    }

    fn is_unused(&self) -> bool {
        self.0.has_no_file()
    }
}

/// The engine as connection management sees it.
struct EngineDriver {
    engine: Weak<Engine>,
}

impl EngineDriver {
    fn engine(&self) -> Result<Arc<Engine>, Errno> {
        self.engine.upgrade().ok_or(libc::ENODEV)
    }
}

fn control(engine: &Engine) -> Result<&ControlClient, Errno> {
    engine.control().ok_or(libc::ENODEV)
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
        Engine::now()
    }

    fn entropy(&self) -> u64 {
        Engine::entropy()
    }

    fn recorder(&self) -> Recorder {
        let engine = self.engine();
        engine.map_or_else(|_| Recorder::default(), |engine| engine.recorder().clone())
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
        let engine = self.engine();
        engine.map_or(true, |engine| engine.send_cm(to.ip, to.slot, datagram))
    }

    fn event_taken(&self) {
        if let Ok(engine) = self.engine() {
            engine.progress_between_events();
        }
    }

    fn no_event(&self) {
        if let Ok(engine) = self.engine() {
            engine.progress_without_event();
        }
    }

    fn kick(&self) {
        if let Ok(engine) = self.engine() {
            engine.deadline_moved();
        }
    }

    fn qp_is_ready(&self, qpn: RawQpn) -> bool {
        self.engine().map_or(true, |engine| engine.qp_is_ready(qpn))
    }

    fn bind_port(&self, id: CmId, wanted: &PortRequest) -> Result<u16, Errno> {
        let wanted = CmPort {
            space: PortTable::of(wanted.space).ok_or(libc::EINVAL)?,
            addr: wanted.ip,
            port: wanted.port,
            sharing: sharing_of(wanted.sharing),
        };
        let bound = control(&*self.engine()?)?.cm_bind_port(id.0, wanted);
        bound.map_err(|error| error.errno())
    }

    fn share_port(&self, id: CmId, sharing: Sharing) -> Result<(), Errno> {
        let shared = control(&*self.engine()?)?.cm_share(id.0, sharing_of(sharing));
        shared.map_err(|error| error.errno())
    }

    fn listen(&self, id: CmId, backlog: u32) -> Result<(), Errno> {
        let listens = control(&*self.engine()?)?.cm_listen(id.0, backlog);
        listens.map_err(|error| error.errno())
    }

    fn release_port(&self, id: CmId) {
        let Ok(engine) = self.engine() else {
            return;
        };
        if let Ok(control) = control(&engine) {
            // When urdmad has ended, so has the port.
            let _ = control.cm_release(id.0);
        }
    }

    fn resolve(&self, ip: IpAddr) -> Result<IpAddr, Errno> {
        self.engine()?.source_for(ip).map_err(EngineError::errno)
    }
}
