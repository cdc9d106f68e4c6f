//! The interface of a congestion controller.

use urdma_types::Time;

/// What an acknowledgement shows of the path.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct AckInfo {
    /// Time of its arrival.
    pub(in crate::conn) now: Time,
    /// Packets newly acknowledged.
    pub(in crate::conn) packets: u32,
    /// Packets still in flight.
    pub(in crate::conn) in_flight: u32,
    /// The RTT sample, if there is one that does not include an acknowledgement delay of the peer.
    pub(in crate::conn) rtt_ns: Option<u64>,
    /// The minimum RTT of the last 10 to 20 seconds.
    pub(in crate::conn) min_rtt_ns: u64,
    /// The smoothed RTT (RFC 9002 section 5.3).
    pub(in crate::conn) smoothed_rtt_ns: u64,
    /// ECN-Echo: some of the packets were marked Congestion Experienced.
    pub(in crate::conn) marked: bool,
}

/// A congestion controller. The unit of its window is a packet.
pub(in crate::conn) trait CongestionControl: Sized {
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
