//! The counters of the port by the names that the kernel gives them in sysfs.
//!
//! `ports/1/counters` has those of the InfiniBand specification (IBTA 16.1.3.5, PortCounters, and
//! 16.1.4.11, PortCountersExtended) that the kernel's `drivers/infiniband/core/sysfs.c` names,
//! `ports/1/hw_counters` those of the kernel's rdma_rxe. A counter that nothing counts has no file.
//! doc/conformance.md lists them.

use urdma_channel::Traffic;
use urdma_kernel::abi::PortCounters;
use urdma_underlay::Dropped;

use crate::counters::DataCounters;

/// What the counters are computed from.
pub(crate) struct Figures<'a> {
    /// Of all processes, also of those that have ended.
    pub(crate) traffic: Traffic,
    /// Of urdmad.
    pub(crate) data: &'a DataCounters,
}

/// One counter.
#[derive(Debug)]
pub(crate) struct PortCounter {
    /// Its file, below the directory of the port.
    pub(crate) file: &'static str,
    /// Its value.
    pub(crate) value: fn(&PortCounters) -> u64,
}

macro_rules! port_counters {
    ($($file:literal => $value:expr,)*) => {
        /// All counters of the port.
        pub(crate) const ALL: &[PortCounter] = &[$(PortCounter { file: $file, value: $value },)*];
    };
}

/// Octets of the unit of `port_xmit_data` and `port_rcv_data`.
const DATA_UNIT_OCTETS: u64 = 4;

/// How long values are kept, in milliseconds, as the kernel's `lifespan` says it.
pub(crate) const LIFESPAN_MS: u64 = 10;

// The kernel module has the same files (kernel-stub/module/counters.c).
port_counters! {
    "counters/port_xmit_data" => |of| of.port_xmit_data,
    "counters/port_rcv_data" => |of| of.port_rcv_data,
    "counters/port_xmit_packets" => |of| of.port_xmit_packets,
    "counters/port_rcv_packets" => |of| of.port_rcv_packets,
    "counters/unicast_xmit_packets" => |of| of.unicast_xmit_packets,
    "counters/unicast_rcv_packets" => |of| of.unicast_rcv_packets,
    "counters/multicast_xmit_packets" => |of| of.multicast_xmit_packets,
    "counters/multicast_rcv_packets" => |of| of.multicast_rcv_packets,
    "counters/port_rcv_errors" => |of| of.port_rcv_errors,
    "counters/port_xmit_discards" => |of| of.port_xmit_discards,
    // Of InfiniBand's physical layer, link layer, subnet manager and partitions, which an Ethernet
    // port has none of: 0, as on RoCE adapters.
    "counters/symbol_error" => |_| 0,
    "counters/link_error_recovery" => |_| 0,
    "counters/local_link_integrity_errors" => |_| 0,
    "counters/excessive_buffer_overrun_errors" => |_| 0,
    "counters/VL15_dropped" => |_| 0,
    "counters/port_rcv_remote_physical_errors" => |_| 0,
    "counters/port_rcv_switch_relay_errors" => |_| 0,
    "counters/port_xmit_constraint_errors" => |_| 0,
    "counters/port_rcv_constraint_errors" => |_| 0,
    "hw_counters/sent_pkts" => |of| of.port_xmit_packets,
    "hw_counters/rcvd_pkts" => |of| of.port_rcv_packets,
    "hw_counters/duplicate_request" => |of| of.duplicate_request,
    "hw_counters/out_of_seq_request" => |of| of.out_of_seq_request,
    "hw_counters/send_rnr_err" => |of| of.send_rnr_err,
    "hw_counters/rcvd_rnr_err" => |of| of.rcvd_rnr_err,
    "hw_counters/lifespan" => |_| LIFESPAN_MS,
}

impl Figures<'_> {
    /// The counters that have values.
    pub(crate) fn counters(&self) -> PortCounters {
        let Self { traffic, data } = self;
        PortCounters {
            port_xmit_data: traffic.sent_octets / DATA_UNIT_OCTETS,
            port_rcv_data: traffic.received_octets / DATA_UNIT_OCTETS,
            port_xmit_packets: traffic.sent_packets,
            port_rcv_packets: traffic.received_packets,
            unicast_xmit_packets: sent_to_one(traffic),
            unicast_rcv_packets: received_by_one(traffic),
            multicast_xmit_packets: traffic.sent_to_groups,
            multicast_rcv_packets: traffic.received_of_groups,
            port_rcv_errors: traffic.malformed + malformed_at_port(data),
            port_xmit_discards: discarded_to_send(data),
            duplicate_request: traffic.duplicates,
            out_of_seq_request: traffic.out_of_order,
            send_rnr_err: traffic.rnr_sent,
            rcvd_rnr_err: traffic.rnr_received,
        }
    }
}

fn sent_to_one(traffic: &Traffic) -> u64 {
    traffic.sent_packets.saturating_sub(traffic.sent_to_groups)
}

fn received_by_one(traffic: &Traffic) -> u64 {
    traffic
        .received_packets
        .saturating_sub(traffic.received_of_groups)
}

/// Frames from the port that are damaged; not those that are for another receiver.
fn malformed_at_port(data: &DataCounters) -> u64 {
    let damaged = [
        Dropped::Truncated,
        Dropped::BadIpHeader,
        Dropped::BadIpChecksum,
        Dropped::BadUdpLength,
        Dropped::BadUdpChecksum,
    ];
    let dropped = damaged.map(|reason| data.rx_dropped[reason.index()].value());
    dropped.iter().sum()
}

/// Frames for the port that were not sent.
fn discarded_to_send(data: &DataCounters) -> u64 {
    let dropped = [
        &data.drop_tx_no_port,
        &data.drop_tx_unreachable,
        &data.drop_tx_waiting,
        &data.drop_tx_too_long,
        &data.drop_tx_no_buffer,
        &data.drop_tx_port_full,
        &data.drop_tx_bad_meta,
    ];
    dropped.iter().map(|counter| counter.value()).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn figures_are_translated_into_the_units_of_the_names() {
        let data = DataCounters::default();
        data.rx_dropped[Dropped::BadUdpChecksum.index()].add(2);
        data.rx_dropped[Dropped::NotForUs.index()].add(100);
        data.drop_tx_unreachable.add(3);
        data.drop_tx_port_full.add(4);
        let traffic = Traffic {
            sent_packets: 10,
            sent_octets: 4003,
            sent_to_groups: 4,
            received_packets: 20,
            received_octets: 8000,
            received_of_groups: 5,
            malformed: 1,
            duplicates: 6,
            out_of_order: 7,
            rnr_sent: 8,
            rnr_received: 9,
        };
        let figures = Figures {
            traffic,
            data: &data,
        };
        let counters = figures.counters();
        let values: BTreeMap<_, _> = ALL
            .iter()
            .map(|counter| (counter.file, (counter.value)(&counters)))
            .filter(|(_, value)| *value != 0)
            .collect();
        let expected = [
            ("counters/port_xmit_data", 1000),
            ("counters/port_rcv_data", 2000),
            ("counters/port_xmit_packets", 10),
            ("counters/port_rcv_packets", 20),
            ("counters/unicast_xmit_packets", 6),
            ("counters/unicast_rcv_packets", 15),
            ("counters/multicast_xmit_packets", 4),
            ("counters/multicast_rcv_packets", 5),
            ("counters/port_rcv_errors", 3),
            ("counters/port_xmit_discards", 7),
            ("hw_counters/sent_pkts", 10),
            ("hw_counters/rcvd_pkts", 20),
            ("hw_counters/duplicate_request", 6),
            ("hw_counters/out_of_seq_request", 7),
            ("hw_counters/send_rnr_err", 8),
            ("hw_counters/rcvd_rnr_err", 9),
            ("hw_counters/lifespan", 10),
        ];
        assert_eq!(values, BTreeMap::from(expected));
    }

    #[test]
    fn each_counter_has_one_file() {
        let files: BTreeSet<_> = ALL.iter().map(|counter| counter.file).collect();
        assert_eq!(files.len(), ALL.len());
    }
}
