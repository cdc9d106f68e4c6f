//! Congestion control: how many packets may be in flight.
//!
//! A controller is a type in a file of this folder that implements [`CongestionControl`], and a
//! line in the `controllers!` list below. [`super::ConnConfig::congestion`] selects it for paths
//! over a network. Inside a host, and for unreliable connections, the window is always fixed.

mod delay_based;
mod fixed_window;

use super::config::MAX_WINDOW_PACKETS;
use super::{Connection, NETWORK_ACK_REQUEST_INTERVAL};
use delay_based::DelayBased;
use fixed_window::FixedWindow;
use urdma_types::Time;

/// Acknowledgements that are requested per window, if the window is small.
const ACKS_IN_WINDOW: u32 = 4;

/// What an acknowledgement shows of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo {
    /// Time of its arrival.
    pub(super) now: Time,
    /// Packets newly acknowledged.
    pub(super) packets: u32,
    /// Packets still in flight.
    pub(super) in_flight: u32,
    /// The RTT sample, if there is one that does not include an acknowledgement delay of the peer.
    pub(super) rtt_ns: Option<u64>,
    /// The minimum RTT of the last 10 to 20 seconds.
    pub(super) min_rtt_ns: u64,
    /// The smoothed RTT (RFC 9002 section 5.3).
    pub(super) smoothed_rtt_ns: u64,
    /// ECN-Echo: some of the packets were marked Congestion Experienced.
    pub(super) marked: bool,
}

/// A congestion controller. The unit of its window is a packet.
pub(super) trait CongestionControl: Sized {
    /// A controller for a new stream, whose window never exceeds `max_packets`.
    fn new(max_packets: u32) -> Self;
    /// The congestion window, at least 1.
    fn window(&self) -> u32;
    /// Packets were newly acknowledged. Returns the window, or `None` if it never changes.
    fn on_ack(&mut self, ack: &AckInfo) -> Option<u32>;
    /// Packets were declared lost.
    fn on_loss(&mut self, packets: u32);
    /// Several probe timeouts in a row have passed without an acknowledgement.
    fn on_timeout(&mut self);
}

/// Declares the selectable controllers: an enum for the configuration, and one with the state,
/// which dispatches statically.
macro_rules! controllers {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// A congestion controller for paths over a network.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CongestionAlgorithm {
            $($(#[$doc])* $name,)+
        }

        /// The state of the controller of a connection.
        #[derive(Clone, Copy, Debug)]
        pub(super) enum Controller {
            $($name($name),)+
        }

        impl Controller {
            /// A controller for a new stream, whose window never exceeds `max_packets`.
            pub(super) fn new(algorithm: CongestionAlgorithm, max_packets: u32) -> Self {
                match algorithm {
                    $(CongestionAlgorithm::$name => Self::$name($name::new(max_packets)),)+
                }
            }

            /// The congestion window, at least 1.
            #[inline]
            pub(super) fn window(&self) -> u32 {
                match self {
                    $(Self::$name(control) => control.window(),)+
                }
            }

            /// See [`CongestionControl::on_ack`].
            #[inline]
            pub(super) fn on_ack(&mut self, ack: &AckInfo) -> Option<u32> {
                match self {
                    $(Self::$name(control) => control.on_ack(ack),)+
                }
            }

            /// See [`CongestionControl::on_loss`].
            pub(super) fn on_loss(&mut self, packets: u32) {
                match self {
                    $(Self::$name(control) => control.on_loss(packets),)+
                }
            }

            /// See [`CongestionControl::on_timeout`].
            pub(super) fn on_timeout(&mut self) {
                match self {
                    $(Self::$name(control) => control.on_timeout(),)+
                }
            }
        }
    };
}

controllers! {
    /// The whole window, always.
    FixedWindow,
    /// Delay, ECN marks and heavy loss limit the window (doc/spec/trp.md, section 7.8).
    DelayBased,
}

impl Connection {
    /// The congestion window has changed. The send window gets room for twice as many packets, so
    /// that new ones can be sent while lost ones are retransmitted, and the peer is asked for
    /// several acknowledgements per window.
    pub(super) fn follow_window(&mut self, window: u32) {
        let interval = (window / ACKS_IN_WINDOW).clamp(1, NETWORK_ACK_REQUEST_INTERVAL);
        self.peer.ack_request_interval = u64::from(interval);
        let room = (2 * window).min(MAX_WINDOW_PACKETS).next_power_of_two();
        if room > self.tx.capacity() {
            self.tx.grow(room);
        }
    }
}
