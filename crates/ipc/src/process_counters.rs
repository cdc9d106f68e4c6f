//! The counters that processes report.

use crate::named::named;

named! {
    /// A counter of a process.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ProcessCounter {
        /// Packets sent.
        DatagramsSent = "datagrams_sent",
        /// Packets received.
        DatagramsReceived = "datagrams_received",
        /// Received packets and cells that cannot be parsed.
        DatagramsMalformed = "datagrams_malformed",
        /// Received packets for a queue pair that does not exist.
        DatagramsForUnknownQp = "datagrams_for_unknown_qp",
        /// Received packets of another source than the peer of their connection.
        DatagramsFromElsewhere = "datagrams_from_elsewhere",
        /// RESETs that were not sent because of the rate limit.
        ResetsLeftOut = "resets_left_out",
        /// Packets from a leased queue passed on to other processes through urdmad.
        DatagramsHandedOn = "datagrams_handed_on",
        /// Sends that found a channel full, or no buffer of the lease.
        ChannelFull = "channel_full",
        /// Sends that found no packet buffer.
        NoBuffer = "no_buffer",
        /// Datagrams without a receive request, without a receiver, or with another `Q_Key`.
        MessagesDropped = "messages_dropped",
        /// Datagrams that are longer than their receive request.
        MessagesTooLong = "messages_too_long",
        /// Segments sent again.
        SegmentsSentAgain = "segments_sent_again",
        /// Segments received again.
        SegmentsReceivedAgain = "segments_received_again",
        /// Probe timeouts.
        ProbeTimeouts = "probe_timeouts",
        /// Received packets with a congestion mark (CE).
        CongestionMarks = "congestion_marks",
        /// Congestion marks that peers have reported.
        CongestionEchoes = "congestion_echoes",
        /// Packets sent over the leased queue.
        LeaseSent = "lease_sent",
        /// Packets received over the leased queue.
        LeaseReceived = "lease_received",
        /// Packets of the leased queue that were dropped.
        LeaseDropped = "lease_dropped",
        /// Pages of regions that the program had unmapped when they were accessed.
        UnmappedPages = "unmapped_pages",
    }
}
