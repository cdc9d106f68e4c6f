//! Half of the window, always. A test adds this controller to a copy of the tree.

use super::control::{AckInfo, CongestionControl};

/// A window that is always half of the whole one.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct HalfWindow {
    packets: u32,
}

impl CongestionControl for HalfWindow {
    fn new(max_packets: u32) -> Self {
        Self {
            packets: (max_packets / 2).max(1),
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

#[cfg(test)]
mod tests {
    use super::super::{CongestionAlgorithm, Controller};

    #[test]
    fn algorithm_has_its_window() {
        assert_eq!(
            Controller::new(CongestionAlgorithm::HalfWindow, 64).window(),
            32
        );
    }
}
