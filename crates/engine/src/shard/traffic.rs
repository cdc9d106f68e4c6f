//! What a process counts of its packets, and the totals of the traffic, which urdmad reads for the
//! counters of the port.
//!
//! Connections count for themselves. Their counts are added up when urdmad asks, when queue pairs
//! are destroyed and about once a second by the background thread, so that urdmad has them if the
//! process is killed. The data path has no part in it.

use proto_trp::conn::ConnStats;
use urdma_channel::{OwnRecords, Traffic};

use super::queue_pairs::QueuePairs;

/// The interval at which the background thread stores the totals, if it runs.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Counters of datagrams, also of those that reached no queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketCounters {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) malformed: u64,
    pub(crate) unknown_qp: u64,
    /// Packets for a queue pair from another source than its peer.
    pub(crate) wrong_source: u64,
    /// RESETs that were not sent because too many were.
    pub(crate) resets_left_out: u64,
    pub(crate) forwarded: u64,
    /// Times that a packet found the channel full, or no buffer of the lease.
    pub(crate) channel_full: u64,
    pub(crate) no_buffer: u64,
    /// Datagrams without a receive request, without a receiver, or with another `Q_Key`.
    pub(crate) datagrams_dropped: u64,
    /// Datagrams that the posted receive request was too short for.
    pub(crate) datagrams_too_long: u64,
    /// Sent and received by datagram queue pairs; those of connections are counted by them.
    pub(super) of_datagrams: Traffic,
}

impl PacketCounters {
    /// Counts a packet that a datagram queue pair has sent.
    pub(crate) fn note_datagram_sent(&mut self, octets: usize, is_to_group: bool) {
        self.sent += 1;
        self.of_datagrams.sent_packets += 1;
        self.of_datagrams.sent_octets += octets as u64;
        self.of_datagrams.sent_to_groups += u64::from(is_to_group);
    }

    /// Counts a packet for datagram queue pairs, which is among those received.
    pub(crate) fn note_datagram_received(&mut self, octets: usize, is_to_group: bool) {
        self.of_datagrams.received_packets += 1;
        self.of_datagrams.received_octets += octets as u64;
        self.of_datagrams.received_of_groups += u64::from(is_to_group);
    }
}

/// What the totals are of, and where urdmad reads them.
pub(crate) struct Counted<'a> {
    pub(crate) counters: &'a PacketCounters,
    pub(super) qps: &'a QueuePairs,
    pub(super) records: Option<&'a OwnRecords>,
}

/// What was done to have the totals of the traffic where urdmad reads them.
#[derive(Default)]
pub(crate) struct Published {
    /// The totals of connections that were removed.
    pub(super) ended: Traffic,
    /// Queue pairs removed since the totals were stored.
    pub(super) removed: u32,
    /// Packets sent and received when they were stored.
    pub(super) packets: (u64, u64),
    /// When they are to be stored next if there are more.
    pub(crate) next_ns: u64,
}

impl Published {
    /// The totals of all queue pairs that exist and existed.
    fn total(&self, of: &Counted<'_>) -> Traffic {
        let mut total = self.ended;
        total += of.counters.of_datagrams;
        total.malformed += of.counters.malformed;
        for entry in of.qps.connected.iter() {
            total += of_connection(entry.conn.stats());
        }
        total
    }

    /// Stores the totals where urdmad reads them.
    pub(super) fn store(&mut self, of: &Counted<'_>) {
        self.removed = 0;
        self.packets = (of.counters.sent, of.counters.received);
        if let Some(records) = of.records {
            records.publish(self.total(of));
        }
    }

    /// As [`Published::store`] once an interval, unless there is nothing new.
    pub(crate) fn store_if_due(&mut self, now_ns: u64, of: &Counted<'_>) {
        let packets = (of.counters.sent, of.counters.received);
        if now_ns >= self.next_ns && packets != self.packets {
            self.next_ns = now_ns + INTERVAL_NS;
            self.store(of);
        }
    }

    /// Keeps what a connection that has been removed has counted.
    pub(super) fn keep(&mut self, stats: &ConnStats) {
        self.ended += of_connection(stats);
    }

    /// A queue pair has been removed. Stores the totals when as many are left as were removed
    /// since: each is then added up once or twice if all are removed.
    pub(super) fn note_removed(&mut self, of: &Counted<'_>) {
        self.removed += 1;
        if self.removed >= of.qps.count {
            self.store(of);
        }
    }
}

fn of_connection(stats: &ConnStats) -> Traffic {
    Traffic {
        sent_packets: stats.tx_datagrams,
        sent_octets: stats.tx_octets,
        received_packets: stats.rx_datagrams,
        received_octets: stats.rx_octets,
        malformed: stats.rx_malformed,
        duplicates: stats.rx_duplicates,
        out_of_order: stats.rx_out_of_order,
        rnr_sent: stats.rnr_sent,
        rnr_received: stats.rnr_received,
        ..Traffic::default()
    }
}
