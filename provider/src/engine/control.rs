//! The thread that listens to urdmad: slots that are gone, urdmad's end, questions for the status.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use proto_trp::addr::SlotId;
use proto_trp::conn::State;
use urdma_ipc::{Event, ProcessReport};

use super::attach::spawn_quiet;
use super::events::{AsyncEvent, AsyncKind};
use super::{clock, Engine};

/// How often the thread looks whether its engine still exists; only engines of tests ever end.
const LOOK: Duration = Duration::from_secs(60);

impl Engine {
    /// Starts the thread, if there is an urdmad.
    pub(super) fn start_control(&self) -> io::Result<()> {
        if self.control.is_none() {
            return Ok(());
        }
        let engine = Weak::clone(&self.myself);
        spawn_quiet("urdma-control", move || {
            while let Some(engine) = engine.upgrade() {
                if !engine.listen_once() {
                    return;
                }
            }
        })
    }

    /// Takes one event; false when urdmad is gone.
    fn listen_once(&self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        match control.next_event(Some(LOOK)) {
            Ok(None) => true,
            Ok(Some(Event::SlotGone { slot })) => {
                if let Some(slot) = SlotId::new(slot) {
                    self.peer_slot_gone(slot);
                }
                true
            }
            Ok(Some(Event::ReportWanted)) => {
                // If it cannot be sent, the next event says why.
                let _ = control.report(self.report());
                true
            }
            Ok(Some(Event::Shutdown)) | Err(_) => {
                self.device_gone();
                false
            }
        }
    }

    /// The process in `slot` has ended: what leads there fails, unless its queue pair said goodbye before.
    pub fn peer_slot_gone(&self, slot: SlotId) {
        let mut shard = self.shard.lock();
        // What it sent before it ended comes first: its last acknowledgements are among that.
        shard.drain(&self.info);
        shard.slot_gone(slot);
        shard.transmit_ready(clock::now());
        self.rest.look(&mut shard);
        drop(shard);
        if let Some(ucma) = self.ucma.get() {
            ucma.slot_gone(slot.number());
        }
    }

    /// urdmad has ended: every queue pair fails, every context hears of it.
    pub fn device_gone(&self) {
        if self.is_dead.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut shard = self.shard.lock();
        shard.device_gone();
        self.rest.look(&mut shard);
        drop(shard);
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        for sink in sinks.iter().filter_map(std::sync::Weak::upgrade) {
            sink.async_event(AsyncEvent {
                kind: AsyncKind::DeviceFatal,
                element: None,
            });
        }
        drop(sinks);
        if let Some(ucma) = self.ucma.get() {
            ucma.device_removed();
        }
    }

    /// What this process has, for `urdma status`.
    fn report(&self) -> ProcessReport {
        let shard = self.shard.lock();
        let connected = shard
            .qps
            .iter()
            .flatten()
            .filter(|entry| entry.conn.state() == State::Rts)
            .count();
        let counters = &shard.counters;
        let mut named: BTreeMap<String, u64> = [
            ("datagrams_sent", counters.sent),
            ("datagrams_received", counters.received),
            ("datagrams_malformed", counters.malformed),
            ("datagrams_for_unknown_qp", counters.unknown_qp),
            ("datagrams_handed_on", counters.forwarded),
            ("no_frame", counters.no_frame),
            ("ring_full", counters.ring_full),
            ("messages_dropped", counters.datagrams_dropped),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        if let Some(lease) = &shard.lease {
            let leased = lease.counters();
            named.insert("lease_sent".to_owned(), leased.tx_datagrams);
            named.insert("lease_received".to_owned(), leased.rx_datagrams);
            named.insert("lease_dropped".to_owned(), leased.rx_dropped.iter().sum());
        }
        ProcessReport {
            qps: shard.qp_count,
            qps_connected: u32::try_from(connected).unwrap_or(u32::MAX),
            cqs: shard.cq_count,
            mrs: shard.regions.count(),
            counters: named,
        }
    }
}
