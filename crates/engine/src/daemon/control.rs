//! The thread that reads events from urdmad: slots whose process has ended, the end of urdmad,
//! requests for a status report. It starts the background thread if that was put off.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use proto_trp::conn::QpState;
use urdma_ipc::message::{QpOutcome, QpTarget};
use urdma_ipc::Event;
use urdma_types::{Qpn, SlotId};

use crate::engine::Engine;
use crate::objects::qp::Qp;
use crate::thread::spawn_quiet;
use crate::types::{Access, EngineError, Gid, QpModify};

/// How often the thread checks whether its engine still exists; only engines of tests end while
/// urdmad runs.
const LOOK: Duration = Duration::from_secs(60);

/// How long a sender that finds no receive is asked to wait: code 12, 0.64 ms, as the stand-in's
/// rdma_cm has it.
const MIN_RNR_TIMER: u8 = 12;

impl Engine {
    /// Starts the thread, if there is an urdmad.
    pub(super) fn start_control(&self) -> io::Result<()> {
        if self.control.is_none() {
            return Ok(());
        }
        let engine = Weak::clone(&self.myself);
        let mut looks = self.background.start.watch();
        spawn_quiet("urdma-control", move || {
            while let Some(engine) = engine.upgrade() {
                if !engine.listen_once(looks.due_in().unwrap_or(LOOK)) {
                    engine.start_awaited_background();
                    return;
                }
                engine.look_for_driver(&mut looks);
            }
        })
    }

    /// Waits up to `limit` for an event and takes it; false when urdmad is gone.
    fn listen_once(&self, limit: Duration) -> bool {
        let Some(control) = self.daemon() else {
            self.device_gone();
            return false;
        };
        match control.next_event(Some(limit)) {
            Ok(None) => true,
            Ok(Some((Event::SlotGone { slot, generation }, _))) => {
                if let Some(slot) = SlotId::new(slot) {
                    self.peer_slot_gone(slot, generation);
                }
                true
            }
            Ok(Some((
                Event::ChannelOffered {
                    slot,
                    generation,
                    stranger,
                    deposit_is_given,
                },
                fds,
            ))) => {
                match SlotId::new(slot) {
                    Some(slot) if deposit_is_given => {
                        self.deposit_given(slot, generation, stranger, fds);
                    }
                    Some(slot) => self.channel_offered(slot, generation, stranger, fds),
                    None => {}
                }
                true
            }
            Ok(Some((Event::ChannelWanted { slot, generation }, _))) => {
                if let Some(slot) = SlotId::new(slot) {
                    self.channel_wanted(slot, generation);
                }
                true
            }
            Ok(Some((Event::ChannelPassed { .. }, _))) => true,
            // Outcomes of offers that another connection makes.
            Ok(Some((
                Event::SocketWaits { .. } | Event::SocketJoined(_) | Event::SocketRefused { .. },
                _,
            ))) => true,
            Ok(Some((Event::ChannelRefused { slot, generation }, _))) => {
                if let (Some(slot), Some(generation)) = (SlotId::new(slot), generation) {
                    self.offer_refused(slot, generation);
                }
                true
            }
            Ok(Some((Event::ReportWanted, _))) => {
                // If it cannot be sent, the next event says why.
                let _ = control.report(self.report());
                true
            }
            Ok(Some((Event::CountWanted, _))) => {
                self.shard.lock().store_totals();
                // If it cannot be sent, the next event says why.
                let _ = control.counted();
                true
            }
            Ok(Some((Event::SetQps(targets), _))) => {
                self.set_qps_for_daemon(targets);
                true
            }
            Ok(Some((Event::EndQp { qpn }, _))) => {
                self.end_qp(qpn);
                true
            }
            Ok(Some((Event::Shutdown, _))) | Err(_) => {
                // If the program has closed the socket, this says so.
                let _ = self.daemon();
                self.device_gone();
                false
            }
        }
    }

    /// Sets queue pairs of connections made through the kernel, and confirms to urdmad; in threads
    /// of their own those whose addresses have to be resolved.
    fn set_qps_for_daemon(&self, targets: Vec<QpTarget>) {
        let (near, far): (Vec<_>, Vec<_>) = targets
            .into_iter()
            .partition(|target| self.is_own(target.remote_ip));
        for target in far {
            let Some(engine) = self.myself.upgrade() else {
                return;
            };
            // urdmad treats a missing confirmation as a failure.
            let _ = spawn_quiet("urdma-connect", move || engine.set_qps_and_tell(&[target]));
        }
        if !near.is_empty() {
            self.set_qps_and_tell(&near);
        }
    }

    fn set_qps_and_tell(&self, targets: &[QpTarget]) {
        let set = |target: &QpTarget| QpOutcome {
            qpn: target.qpn,
            succeeded: self.set_qp(target).is_ok(),
        };
        let outcomes = targets.iter().map(set).collect();
        if let Some(control) = self.daemon() {
            // If it cannot be sent, urdmad is gone.
            let _ = control.qps_are_set(outcomes);
        }
    }

    /// Fails the queue pair of a connection made through the kernel, which has ended.
    fn end_qp(&self, qpn: u32) {
        if let Some(qp) = self.own_qp(qpn) {
            let failed = QpModify {
                state: Some(QpState::Error),
                ..QpModify::default()
            };
            // A queue pair that cannot fail has been reset or destroyed.
            let _ = self.modify_qp(&qp, &failed);
        }
    }

    /// The queue pair of this process that has a number.
    fn own_qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        let qpn = Qpn::from_u32(qpn).filter(|qpn| qpn.slot() == self.info.slot)?;
        let shard = self.shard.lock();
        let entry = shard.qps.connected.get(qpn.index())?;
        Some(Arc::clone(&entry.qp))
    }

    /// Takes a queue pair from INIT to RTS.
    fn set_qp(&self, target: &QpTarget) -> Result<(), EngineError> {
        let qp = self.own_qp(target.qpn).ok_or(EngineError::Invalid)?;
        let remote = Gid::from_ip(target.remote_ip);
        let is_v4 = |gid: Gid| gid.to_ip().is_ipv4();
        let gids = &self.info.gids;
        let local = Gid::from_ip(target.local_ip);
        let own = gids
            .iter()
            .position(|entry| entry.gid == local)
            .or_else(|| {
                gids.iter()
                    .position(|entry| is_v4(entry.gid) == is_v4(remote))
            });
        // As RNICs do: the kernel reports no rights to the connecting end before it has connected,
        // and applications do not ask for any.
        let (_, attributes) = self.query_qp(&qp);
        let ready_to_receive = QpModify {
            state: Some(QpState::Rtr),
            access: Some(attributes.access | Access::REMOTE_READ | Access::REMOTE_WRITE),
            path_mtu: Some(u32::from(target.path_mtu.min(self.info.path_mtu_code()))),
            address: Some((
                remote,
                own.and_then(|index| u8::try_from(index).ok()).unwrap_or(0),
            )),
            remote_qpn: Some(target.remote_qpn),
            rq_psn: Some(target.remote_psn),
            max_dest_rd_atomic: Some(target.max_dest_rd_atomic),
            min_rnr_timer: Some(MIN_RNR_TIMER),
            ..QpModify::default()
        };
        self.modify_qp(&qp, &ready_to_receive)?;
        let ready_to_send = QpModify {
            state: Some(QpState::Rts),
            sq_psn: Some(target.local_psn),
            max_rd_atomic: Some(target.max_rd_atomic),
            timeout: Some(target.ack_timeout),
            retry_cnt: Some(target.retry_count),
            rnr_retry: Some(target.rnr_retry),
            ..QpModify::default()
        };
        self.modify_qp(&qp, &ready_to_send)
    }
}
