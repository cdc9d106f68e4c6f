//! What ends with another process, and with urdmad.

use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use urdma_types::{Qpn, SlotId};

use crate::engine::Engine;
use crate::objects::events::{AsyncEvent, AsyncKind};
use crate::objects::note::Note;

impl Engine {
    /// Notes that the process that had `slot` in `generation`, or an earlier one, has ended: sends
    /// that it had not received fail, unless its queue pair was destroyed before.
    pub fn peer_slot_gone(&self, slot: SlotId, generation: u32) {
        let connected = self.connected_to(slot, generation);
        let mut closed = None;
        let mut shard = self.shard.lock();
        if shard.channels.is_with(slot, generation) {
            // What it sent before it ended is handled first.
            shard.drain(&self.info);
            closed = shard.end_channel(slot);
            shard.flush();
            self.sleep_control.wake_if_due(&mut shard);
        }
        if self.cm.get().is_some() {
            // After the datagrams that the process has sent, which may be among the notes.
            shard.process.notes.push(Note::SlotGone(slot, generation));
            shard
                .process
                .notes
                .extend(connected.into_iter().map(Note::QpGone));
            self.sleep_control.wake_if_due(&mut shard);
        }
        drop(shard);
        drop(closed);
    }

    /// The queue pairs of all lanes that are connected to the process that had `slot` in its
    /// `generation` or before.
    fn connected_to(&self, slot: SlotId, generation: u32) -> Vec<Qpn> {
        let of_lane = |engine: &Engine| {
            let shard = engine.shard.lock();
            if shard.channels.is_with(slot, generation) {
                shard.qps.connected_to(slot)
            } else {
                Vec::new()
            }
        };
        let mut connected = of_lane(self);
        for lane in self.lanes.others() {
            connected.extend(of_lane(&lane));
        }
        connected
    }

    /// Notes that urdmad has ended: every queue pair fails, and every context gets an event.
    pub fn device_gone(&self) {
        if self.is_dead.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut shard = self.shard.lock();
        shard.device_gone();
        self.sleep_control.wake_if_due(&mut shard);
        drop(shard);
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        for sink in sinks.iter().filter_map(std::sync::Weak::upgrade) {
            sink.async_event(AsyncEvent {
                kind: AsyncKind::DeviceFatal,
                element: None,
            });
        }
        drop(sinks);
        if let Some(cm) = self.cm.get() {
            cm.device_removed();
        }
        // The background thread may end.
        self.sleep_control.kick();
    }
}
