//! The report of a process for `urdma status`, `top` and `metrics`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use proto_trp::conn::{ConnStats, QpState};
use urdma_ipc::status::{ConnectionReport, LeaseWakeUp, REPORTED_CONNECTIONS_MAX};
use urdma_ipc::{ProcessCounter as Counter, ProcessReport};

use crate::engine::unmapped;
use crate::engine::Engine;
use crate::objects::entry::QpEntry;
use crate::shard::Shard;

impl Engine {
    /// Objects and counters of this process, for `urdma status`.
    pub(crate) fn report(&self) -> ProcessReport {
        let shard = self.shard.lock();
        let live = || shard.qps.connected.iter().map(|entry| &entry.conn);
        let connected = live().filter(|conn| conn.state() == QpState::Rts).count();
        let (dc_targets, dc_contexts) = shard.qps.kinds.dc.count_targets();
        ProcessReport {
            qps: shard.qps.count,
            qps_connected: saturated(connected),
            cqs: shard.process.cq_count,
            mrs: shard.process.regions.count(),
            dc_targets: saturated(dc_targets),
            dc_contexts: saturated(dc_contexts),
            counters: counters(&shard, self.unmapped_pages()),
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

    /// [`Counter::UnmappedPages`]: those of the process, which its first engine reports.
    fn unmapped_pages(&self) -> u64 {
        if self.lanes.is_first(&self.myself) {
            unmapped::mapped()
        } else {
            0
        }
    }
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The counters by name.
fn counters(shard: &Shard, unmapped_pages: u64) -> BTreeMap<String, u64> {
    let of_all = |count: fn(&ConnStats) -> u64| {
        let connections = shard.qps.connected.iter().map(|entry| &entry.conn);
        connections.map(|conn| count(conn.stats())).sum()
    };
    let packets = &shard.counters;
    let mut counters = vec![
        (Counter::DatagramsSent, packets.sent),
        (Counter::DatagramsReceived, packets.received),
        (Counter::DatagramsMalformed, packets.malformed),
        (Counter::DatagramsForUnknownQp, packets.unknown_qp),
        (Counter::DatagramsFromElsewhere, packets.wrong_source),
        (Counter::ResetsLeftOut, packets.resets_left_out),
        (Counter::DatagramsHandedOn, packets.forwarded),
        (Counter::ChannelFull, packets.channel_full),
        (Counter::NoBuffer, packets.no_buffer),
        (Counter::MessagesDropped, packets.datagrams_dropped),
        (Counter::MessagesTooLong, packets.datagrams_too_long),
        (Counter::SegmentsSentAgain, of_all(|all| all.retransmits)),
        (
            Counter::SegmentsReceivedAgain,
            of_all(|all| all.rx_duplicates),
        ),
        (Counter::ProbeTimeouts, of_all(|all| all.probe_timeouts)),
        (Counter::CongestionMarks, of_all(|all| all.ecn_marks)),
        (Counter::CongestionEchoes, of_all(|all| all.ecn_echoes)),
        (Counter::UnmappedPages, unmapped_pages),
    ];
    if let Some(lease) = &shard.lease {
        let leased = lease.counters();
        counters.extend([
            (Counter::LeaseSent, leased.tx_datagrams),
            (Counter::LeaseReceived, leased.rx_datagrams),
            (Counter::LeaseDropped, leased.rx_dropped.iter().sum()),
        ]);
    }
    let counters = counters.into_iter();
    let by_name = counters.map(|(counter, value)| (counter.name().to_owned(), value));
    by_name.collect()
}

/// The connections that have had most packets since the report before.
fn busiest(shard: &Shard, reported: &mut HashMap<u32, u64>) -> Vec<ConnectionReport> {
    let before = std::mem::take(reported);
    let mut connected: Vec<(u64, &QpEntry)> = Vec::new();
    for entry in shard.qps.connected.iter() {
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
    let first = connected.iter().take(REPORTED_CONNECTIONS_MAX);
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
