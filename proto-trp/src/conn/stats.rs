//! Counters of one connection.

/// Counters since the connection was created. A count of datagrams is not beside that of their
/// octets: two separate additions in memory are shorter than one of a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnStats {
    /// Datagrams sent, of every type.
    pub tx_datagrams: u64,
    /// Trains among the datagrams sent: datagrams of several segments.
    pub tx_trains: u64,
    /// Octets of the datagrams sent, TRP header included.
    pub tx_octets: u64,
    /// Datagrams sent that only acknowledge.
    pub tx_acks: u64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Probe timeouts that fired.
    pub probe_timeouts: u64,
    /// Datagrams received for this connection, valid or not.
    pub rx_datagrams: u64,
    /// Accepted trains among the datagrams received; their segments are counted one by one below.
    pub rx_trains: u64,
    /// Octets of the datagrams received, TRP header included.
    pub rx_octets: u64,
    /// Too short, other version, unknown type, or a field that contradicts another.
    pub rx_malformed: u64,
    /// A connection id of another incarnation, or forged.
    pub rx_wrong_id: u64,
    /// In a state that accepts no datagrams.
    pub rx_wrong_state: u64,
    /// Segments received more than once.
    pub rx_duplicates: u64,
    /// Segments outside the receive window.
    pub rx_out_of_window: u64,
    /// Segments that arrived ahead of a missing one.
    pub rx_out_of_order: u64,
    /// Segments not accepted because a table was full or no receive was posted.
    pub rx_deferred: u64,
    /// Packets of UC messages that cannot be received: an earlier packet is lost, or no receive
    /// request is posted.
    pub rx_dropped_messages: u64,
    /// RNR packets sent.
    pub rnr_sent: u64,
    /// RNR packets received.
    pub rnr_received: u64,
    /// Received datagrams with the ECN mark CE.
    pub ecn_marks: u64,
    /// Received acknowledgements with ECN-Echo.
    pub ecn_echoes: u64,
}
