//! Watches for processes of this host that are stopped: they take no messages, and urdmad does not
//! report an end.
//!
//! While requests are outstanding, the background thread looks at the channels every [`TICK_NS`]. A
//! channel on which the peer has settled and written nothing since has stalled, and a request whose
//! queue pair has waited for `timeout` × (`retry_cnt` + 1) ends as on a network whose packets are
//! lost. A peer that runs takes messages whatever its application does.

use crate::paths::path::PeerPath;
use crate::shard::Shard;
use crate::types::QpAttributes;
use crate::waiting::sleep_control::FOREVER;

/// The interval of the looks.
const TICK_NS: u64 = 100_000_000;

impl Shard {
    /// Ends the requests to processes that have taken nothing for too long. Gives when to call this
    /// again at the latest.
    pub(super) fn watch_peers(&mut self, now_ns: u64) -> u64 {
        let (published, of) = self.totals();
        published.store_if_due(now_ns, &of);
        if self.counters.sent != self.watch.sent && self.watch.next_ns == FOREVER {
            self.watch.last_ns = now_ns;
            self.watch.next_ns = now_ns + TICK_NS;
        }
        if now_ns < self.watch.next_ns {
            return self.watch.next_ns;
        }
        // If this process was stopped itself, its peers have been waited for only now.
        let elapsed_ns = (now_ns - self.watch.last_ns).min(2 * TICK_NS);
        self.watch.last_ns = now_ns;
        self.watch.sent = self.counters.sent;
        self.channels.note_stalls(elapsed_ns);
        let has_outstanding = self.give_up_stalled();
        self.watch.next_ns = if has_outstanding {
            now_ns + TICK_NS
        } else {
            FOREVER
        };
        self.watch.next_ns
    }

    /// Whether requests are outstanding to processes of this host, after those have ended that
    /// waited for too long.
    fn give_up_stalled(&mut self) -> bool {
        let mut has_outstanding = false;
        for index in self.qps.connected.indices() {
            let Some(entry) = self.qps.connected.get_mut(index) else {
                continue;
            };
            let Some(PeerPath::Channel(slot)) = entry.path else {
                continue;
            };
            if entry.conn.is_unreliable() || entry.conn.sends_outstanding() == 0 {
                continue;
            }
            has_outstanding = true;
            let limit_ns = patience_ns(&entry.attributes);
            if limit_ns.is_none_or(|limit| self.channels.stalled_ns(slot) < limit) {
                continue;
            }
            let (conn, mut host) = entry.with_host(&mut self.process);
            conn.give_up(&mut host);
            self.qps.set_timer(index);
        }
        has_outstanding
    }
}

/// How long a queue pair waits for its peer; None for ever.
fn patience_ns(attributes: &QpAttributes) -> Option<u64> {
    const UNIT_NS: u64 = 4096;
    let timeout = attributes.timeout & 31;
    let tries = u64::from(attributes.retry_cnt) + 1;
    (timeout > 0).then(|| (UNIT_NS << timeout) * tries)
}
