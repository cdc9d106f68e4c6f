//! A fixed window: for unreliable connections, and paths that neither lose nor queue packets.

use super::control::{AckInfo, CongestionControl};

/// A window that is always the whole one.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct FixedWindow {
    packets: u32,
}

impl CongestionControl for FixedWindow {
    fn new(max_packets: u32) -> Self {
        Self {
            packets: max_packets,
        }
    }

    #[inline]
    fn window(&self) -> u32 {
        self.packets
    }

    #[inline]
    fn on_ack(&mut self, _: &AckInfo) -> Option<u32> {
        None
    }

    fn on_loss(&mut self, _: u32) {}

    fn on_timeout(&mut self) {}
}
