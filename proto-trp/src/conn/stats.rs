//! Counters of one connection.

/// What a connection has done and seen since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnStats {
    /// Datagrams sent, of every type.
    pub tx_datagrams: u64,
    /// Octets of those, TRP header included.
    pub tx_octets: u64,
    /// Trains among those: datagrams of several segments.
    pub tx_trains: u64,
    /// Datagrams that only acknowledge.
    pub tx_acks: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Probe timeouts that fired.
    pub probe_timeouts: u64,
    /// Datagrams received for this connection, valid or not.
    pub rx_datagrams: u64,
    /// Octets of those, TRP header included.
    pub rx_octets: u64,
    /// Trains among those that were taken, whose segments are counted one by one below.
    pub rx_trains: u64,
    /// Too short, other version, unknown type, or a field that contradicts another.
    pub rx_malformed: u64,
    /// A connection id of another incarnation, or forged.
    pub rx_wrong_id: u64,
    /// In a state that takes no datagrams.
    pub rx_wrong_state: u64,
    /// Segments received more than once.
    pub rx_duplicates: u64,
    /// Segments outside the receive window.
    pub rx_out_of_window: u64,
    /// Segments that arrived ahead of a missing one.
    pub rx_out_of_order: u64,
    /// Segments put aside because a table was full or no receive was posted.
    pub rx_deferred: u64,
    /// Packets of unreliable messages that cannot be received any more: one before them is lost, or nothing is there to receive them.
    pub rx_dropped_messages: u64,
    /// RNR answers sent.
    pub rnr_sent: u64,
    /// RNR answers received.
    pub rnr_received: u64,
    /// Congestion marks seen on arriving datagrams.
    pub ecn_marks: u64,
    /// Acknowledgements that told of congestion marks on what was sent.
    pub ecn_echoes: u64,
}
