//! Congestion control: how many packets may be in flight.
//!
//! A controller is a type in a file of this folder that implements [`CongestionControl`], and a
//! line in the `controllers!` list below. [`crate::conn::ConnConfig::congestion`] selects it for
//! paths over a network. For unreliable connections the window is always fixed.

mod control;
mod delay_based;
mod fixed_window;

pub(super) use control::AckInfo;

use control::CongestionControl;
use delay_based::DelayBased;
use fixed_window::FixedWindow;

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
