//! The totals of the traffic, which urdmad reads for the counters of the port.
//!
//! Connections count for themselves. Their counts are added up when urdmad asks, when queue pairs
//! are destroyed and about once a second by the background thread, so that urdmad has them if the
//! process is killed. The data path has no part in it.

use proto_trp::conn::ConnStats;
use urdma_channel::Traffic;

use super::shard::Shard;

/// The interval at which the background thread stores the totals, if it runs.
const INTERVAL_NS: u64 = 1_000_000_000;

impl Shard {
    /// The totals of all queue pairs that exist and existed.
    pub(super) fn traffic(&self) -> Traffic {
        let mut total = self.published.ended;
        total += self.counters.of_datagrams;
        total.malformed += self.counters.malformed;
        for entry in self.qps.connected.iter() {
            total += of_connection(entry.conn.stats());
        }
        total
    }

    /// Stores the totals where urdmad reads them.
    pub(super) fn publish_traffic(&mut self) {
        self.published.removed = 0;
        self.published.packets = (self.counters.sent, self.counters.received);
        if let Some(records) = &self.records {
            records.publish(self.traffic());
        }
    }

    /// As [`Shard::publish_traffic`] once an interval, unless there is nothing new.
    pub(super) fn publish_traffic_if_due(&mut self, now_ns: u64) {
        let packets = (self.counters.sent, self.counters.received);
        if now_ns >= self.published.next_ns && packets != self.published.packets {
            self.published.next_ns = now_ns + INTERVAL_NS;
            self.publish_traffic();
        }
    }

    /// Keeps what a connection that has been removed has counted.
    pub(super) fn keep_traffic(&mut self, stats: &ConnStats) {
        self.published.ended += of_connection(stats);
        self.note_removed();
    }

    /// A queue pair has been removed. Stores the totals when as many are left as were removed
    /// since: each is then added up once or twice if all are removed.
    pub(super) fn note_removed(&mut self) {
        self.published.removed += 1;
        if self.published.removed >= self.qps.count {
            self.publish_traffic();
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
