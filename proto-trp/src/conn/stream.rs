//! The stream of packets between two hosts (TRP): sequence numbers, acknowledgements, loss,
//! recovery and congestion. What the packets carry is decided outside of it.

mod ack;
mod congestion;
mod loss;
mod recovery;
mod rnr_pause;
mod sender;
mod tx_window;

pub use congestion::CongestionAlgorithm;
pub(super) use sender::Sender;
