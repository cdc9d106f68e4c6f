//! The report of a process for `urdma status`, `top` and `metrics`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use proto_trp::conn::{ConnStats, QpState};
use urdma_ipc::status::{ConnectionReport, LeaseWakeUp};
use urdma_ipc::ProcessReport;

use super::engine::Engine;
use super::shard::{QpEntry, Shard};

/// Connections in a report, so that it fits a request.
const CONNECTIONS_MAX: usize = 20;

impl Engine {
    /// Objects and counters of this process, for `urdma status`.
    pub(super) fn report(&self) -> ProcessReport {
        let shard = self.shard.lock();
        let live = || shard.qps.iter().map(|entry| &entry.conn);
        let connected = live().filter(|conn| conn.state() == QpState::Rts).count();
        let of_all = |count: fn(&ConnStats) -> u64| live().map(|conn| count(conn.stats())).sum();
        let counters = &shard.counters;
        let mut named: BTreeMap<String, u64> = [
            ("datagrams_sent", counters.sent),
            ("datagrams_received", counters.received),
            ("datagrams_malformed", counters.malformed),
            ("datagrams_for_unknown_qp", counters.unknown_qp),
            ("datagrams_from_elsewhere", counters.wrong_source),
            ("resets_left_out", counters.resets_left_out),
            ("datagrams_handed_on", counters.forwarded),
            ("channel_full", counters.channel_full),
            ("no_buffer", counters.no_buffer),
            ("messages_dropped", counters.datagrams_dropped),
            ("messages_too_long", counters.datagrams_too_long),
            ("segments_sent_again", of_all(|conn| conn.retransmits)),
            ("segments_received_again", of_all(|conn| conn.rx_duplicates)),
            ("probe_timeouts", of_all(|conn| conn.probe_timeouts)),
            ("congestion_marks", of_all(|conn| conn.ecn_marks)),
            ("congestion_echoes", of_all(|conn| conn.ecn_echoes)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        if let Some(lease) = &shard.lease {
            let leased = lease.counters();
            named.insert("lease_sent".to_owned(), leased.tx_datagrams);
            named.insert("lease_received".to_owned(), leased.rx_datagrams);
            named.insert("lease_dropped".to_owned(), leased.rx_dropped.iter().sum());
        }
        ProcessReport {
            qps: shard.qp_count,
            qps_connected: u32::try_from(connected).unwrap_or(u32::MAX),
            cqs: shard.cq_count,
            mrs: shard.regions.count(),
            counters: named,
            lease_wake_up: shard.lease.as_ref().map(|lease| match lease.interrupts() {
                Some(_) => LeaseWakeUp::Interrupt,
                None => LeaseWakeUp::Clock,
            }),
            sleeping: self.sleep_control.wake_at.load(Ordering::Relaxed) != 0,
            connections: busiest(
                &shard,
                &mut self.reported.lock().unwrap_or_else(PoisonError::into_inner),
            ),
        }
    }
}

/// The connections that have had most packets since the report before.
fn busiest(shard: &Shard, reported: &mut HashMap<u32, u64>) -> Vec<ConnectionReport> {
    let before = std::mem::take(reported);
    let mut connected: Vec<(u64, &QpEntry)> = Vec::new();
    for entry in shard.qps.iter() {
        let qpn = entry.qp.number().to_u32();
        let stats = entry.conn.stats();
        let packets = stats.tx_datagrams + stats.rx_datagrams;
        reported.insert(qpn, packets);
        if entry.conn.state() == QpState::Rts {
            let new = packets.saturating_sub(before.get(&qpn).copied().unwrap_or(0));
            connected.push((new, entry));
        }
    }
    connected.sort_by_key(|(new, _)| std::cmp::Reverse(*new));
    let first = connected.iter().take(CONNECTIONS_MAX);
    first.map(|(_, entry)| report_of(entry)).collect()
}

fn report_of(entry: &QpEntry) -> ConnectionReport {
    let stats = entry.conn.stats();
    let (window, rtt_ns) = entry.conn.window_and_rtt();
    ConnectionReport {
        qpn: entry.qp.number().to_u32(),
        peer: Some(entry.attributes.remote_gid.to_ip()),
        remote_qpn: entry.attributes.remote_qpn,
        sent: stats.tx_octets,
        received: stats.rx_octets,
        sent_again: stats.retransmits,
        sends: entry.conn.sends_outstanding(),
        recvs: entry.conn.recvs_outstanding(),
        window,
        rtt_us: u32::try_from(rtt_ns / 1000).unwrap_or(u32::MAX),
    }
}
