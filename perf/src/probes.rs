//! Every probe's name and unit.

use crate::samples::{Probe, Unit};

const fn probe(name: &'static str, unit: Unit) -> Probe {
    Probe { name, unit }
}

/// Declares probes: constant, name, unit.
macro_rules! probes {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, $unit:ident;)*) => {
        $($(#[$doc])* pub const $constant: Probe = probe($name, Unit::$unit);)*
        /// All of them.
        pub const ALL: &[Probe] = &[$($constant),*];
    };
}

probes! {
    /// Half the round trip of 64 octets through a plain shared ring.
    RAW_RING = "raw ring", Microseconds;
    /// 64-octet entries through a plain shared ring.
    RAW_RING_RATE = "raw ring, entries", MillionsPerSecond;
    /// 64 KB blocks, copied in and out of shared memory.
    RAW_STREAM = "raw two copies", GigabytesPerSecond;
    /// The same from 8 MB into 16 MB in turn.
    RAW_STREAM_IN_TURN = "raw two copies, 8 MB into 16 MB in turn", GigabytesPerSecond;
    /// A round trip of two processes that sleep in an eventfd: two wake-ups.
    RAW_WAKE_UPS = "raw eventfd, two wake-ups", Microseconds;
    /// Half the round trip of a cell of a channel, without verbs and protocol.
    CHANNEL = "channel", Microseconds;
    /// Half the round trip of a frame of 64 octets through net_memif.
    MEMIF_LATENCY = "raw memif", Microseconds;
    /// Frames of 64 octets one way through net_memif.
    MEMIF_RATE = "raw memif, packets", MillionsPerSecond;
    /// Frames of 9000 octets one way through net_memif.
    MEMIF_STREAM = "raw memif, 9000 octets", GigabytesPerSecond;
    /// Frames of 1500 octets one way through net_memif.
    MEMIF_STREAM_1500 = "raw memif, 1500 octets", GigabytesPerSecond;
    /// qperf tcp_lat over loopback.
    TCP_LATENCY = "qperf tcp_lat", Microseconds;
    /// qperf tcp_bw over loopback.
    TCP_STREAM = "qperf tcp_bw", GigabytesPerSecond;
    /// ucx_perftest tag_lat over shared memory.
    UCX_LATENCY = "ucx tag_lat", Microseconds;
    /// ucx_perftest tag_bw of 64 octets over shared memory.
    UCX_RATE = "ucx tag_bw 64 B", MillionsPerSecond;
    /// ucx_perftest ucp_put_bw over shared memory: one copy, by one side.
    UCX_PUT = "ucx ucp_put_bw", GigabytesPerSecond;
    /// ucx_perftest tag_bw over shared memory, 64 KB.
    UCX_STREAM = "ucx tag_bw 64 KB", GigabytesPerSecond;
    /// ucx_perftest tag_bw over shared memory, 1 MB.
    UCX_STREAM_1M = "ucx tag_bw 1 MB", GigabytesPerSecond;

    /// ib_send_lat, one host.
    SEND_ONE_HOST = "ib_send_lat, one host", Microseconds;
    /// ib_write_lat, one host.
    WRITE_LAT_ONE_HOST = "ib_write_lat, one host", Microseconds;
    /// ib_send_lat with both applications asleep in their completion channels.
    EVENTS_ONE_HOST = "ib_send_lat -e, one host", Microseconds;
    /// ib_send_bw of 64 octets, one host.
    SEND_RATE_ONE_HOST = "ib_send_bw 64 B, one host", MillionsPerSecond;
    /// ib_write_bw of 64 octets, one host.
    WRITE_RATE_ONE_HOST = "ib_write_bw 64 B, one host", MillionsPerSecond;
    /// ib_write_bw, 64 KB, one host.
    WRITE_ONE_HOST = "ib_write_bw 64 KB, one host", GigabytesPerSecond;
    /// ib_write_bw, 1 MB, one host.
    WRITE_1M_ONE_HOST = "ib_write_bw 1 MB, one host", GigabytesPerSecond;
    /// The same between measurements of byte streams.
    WRITE_1M_STREAMS = "1 MB write, one host, beside streams", GigabytesPerSecond;
    /// Sends over verbs alone of the lengths of streams.
    SEND_64_STREAMS = "64 B send, one host, beside streams", GigabytesPerSecond;
    /// The same.
    SEND_1K_STREAMS = "1 KB send, one host, beside streams", GigabytesPerSecond;
    /// Latency of such sends, both applications asleep in their completion channels.
    EVENTS_64K_STREAMS = "64 KB send, one host, asleep, beside streams", Microseconds;
    /// Writes of 1 MB over 8 queue pairs in turn, each with 1 MB of its own and one in progress.
    WRITE_1M_STREAMS_8 = "1 MB write, 8 QPs in turn, beside streams", GigabytesPerSecond;
    /// Writes with Immediate of 1 MB over one queue pair, out of 8 MB into 16 MB in turn.
    WRITES_IN_TURN = "1 MB write, 8 MB into 16 MB in turn", GigabytesPerSecond;
    /// ib_write_bw of 64 octets over one queue pair of the sweep.
    QPS_1 = "ib_write_bw 64 B, 1 QP", MillionsPerSecond;
    /// Over 10.
    QPS_10 = "ib_write_bw 64 B, 10 QPs", MillionsPerSecond;
    /// Over 100.
    QPS_100 = "ib_write_bw 64 B, 100 QPs", MillionsPerSecond;
    /// Over 1000.
    QPS_1000 = "ib_write_bw 64 B, 1000 QPs", MillionsPerSecond;
    /// Over 4000.
    QPS_4000 = "ib_write_bw 64 B, 4000 QPs", MillionsPerSecond;

    /// ib_send_lat, two hosts, forwarded.
    SEND_FORWARDED = "ib_send_lat, forwarded", Microseconds;
    /// ib_send_lat with events, two hosts, forwarded.
    EVENTS_FORWARDED = "ib_send_lat -e, forwarded", Microseconds;
    /// ib_write_bw, 64 KB, two hosts, forwarded.
    WRITE_FORWARDED = "ib_write_bw 64 KB, forwarded", GigabytesPerSecond;
    /// ib_send_lat, two hosts, leased queues.
    SEND_LEASED = "ib_send_lat, leased", Microseconds;
    /// ib_send_bw of 64 octets, leased.
    SEND_RATE_LEASED = "ib_send_bw 64 B, leased", MillionsPerSecond;
    /// ib_write_bw of 64 octets, leased.
    WRITE_RATE_LEASED = "ib_write_bw 64 B, leased", MillionsPerSecond;
    /// ib_write_bw, 64 KB, leased, MTU 9000.
    WRITE_LEASED = "ib_write_bw 64 KB, leased", GigabytesPerSecond;
    /// ib_write_bw, 1 MB.
    WRITE_1M_LEASED = "ib_write_bw 1 MB, leased", GigabytesPerSecond;
    /// ib_read_bw, 64 KB.
    READ_LEASED = "ib_read_bw 64 KB, leased", GigabytesPerSecond;
    /// ib_read_bw, 1 MB.
    READ_1M_LEASED = "ib_read_bw 1 MB, leased", GigabytesPerSecond;
    /// ib_send_bw, 64 KB.
    SEND_BW_LEASED = "ib_send_bw 64 KB, leased", GigabytesPerSecond;
    /// ib_send_bw, 1 MB.
    SEND_BW_1M_LEASED = "ib_send_bw 1 MB, leased", GigabytesPerSecond;
    /// ib_write_bw, 64 KB, leased, MTU 1500.
    WRITE_1500 = "ib_write_bw 64 KB, leased, MTU 1500", GigabytesPerSecond;
    /// ib_write_bw, 1 MB.
    WRITE_1M_1500 = "ib_write_bw 1 MB, leased, MTU 1500", GigabytesPerSecond;
    /// ib_read_bw, 64 KB.
    READ_1500 = "ib_read_bw 64 KB, leased, MTU 1500", GigabytesPerSecond;
    /// ib_send_bw, 64 KB.
    SEND_BW_1500 = "ib_send_bw 64 KB, leased, MTU 1500", GigabytesPerSecond;

    /// Half the round trip of 64 octets between UDP sockets that block, over a veth pair.
    RAW_UDP_LATENCY = "raw UDP over veth", Microseconds;
    /// Messages of 44 datagrams of 1472 octets, segmented and coalesced by the kernel.
    RAW_UDP_STREAM = "raw UDP over veth, segmented", GigabytesPerSecond;
    /// qperf tcp_bw over the veth pair.
    TCP_VETH_STREAM = "qperf tcp_bw over veth", GigabytesPerSecond;
    /// ib_send_lat, ports over UDP sockets.
    SEND_SOCKETS = "ib_send_lat, UDP sockets", Microseconds;
    /// ib_write_bw, 64 KB, MTU 1500.
    WRITE_SOCKETS = "ib_write_bw 64 KB, UDP sockets", GigabytesPerSecond;
    /// ib_write_bw, 1 MB.
    WRITE_1M_SOCKETS = "ib_write_bw 1 MB, UDP sockets", GigabytesPerSecond;
    /// urdmad with a port over UDP sockets and no traffic.
    IDLE_SOCKETS = "idle urdmad with UDP sockets", PercentOfCore;

    /// A thread that writes 64 octets over a queue pair connected to itself.
    ONE_THREAD = "64 B writes, one thread", MillionsPerSecond;
    /// Two threads of one process, each in a thread domain.
    TWO_THREADS = "64 B writes, two threads with domains", MillionsPerSecond;
    /// The same without thread domains: the threads share an engine and its lock.
    TWO_THREADS_SHARED = "64 B writes, two threads that share a lock", MillionsPerSecond;

    /// A process that waits on a completion channel.
    IDLE_APPLICATION = "idle application", PercentOfCore;
    /// urdmad of that process, no port.
    IDLE_DAEMON = "idle urdmad", PercentOfCore;
    /// urdmad with a memif port and no traffic.
    IDLE_DAEMON_PORT = "idle urdmad with a memif port", PercentOfCore;
    /// Resident memory of a program that has loaded libibverbs and opened nothing.
    RESIDENT_PLAIN = "resident, without a device", Megabytes;
    /// The same with the device open and a connected queue pair, waiting.
    RESIDENT_ATTACHED = "resident, attached", Megabytes;
    /// The same with a lease.
    RESIDENT_LEASED = "resident, attached with a lease", Megabytes;
    /// An additional queue pair with one work request each way, resident.
    RESIDENT_QP = "resident, a QP of 1 + 1 requests", Kilobytes;
    /// ibv_devinfo without urdma.
    DEVINFO_PLAIN = "ibv_devinfo plain", Milliseconds;
    /// ibv_devinfo through urdma, no lease.
    DEVINFO_URDMA = "ibv_devinfo urdma", Milliseconds;
    /// ibv_devinfo through urdma with a lease.
    DEVINFO_LEASED = "ibv_devinfo urdma leased", Milliseconds;

    /// Instructions of the engine for a SEND of 64 octets in a ping-pong.
    INSTRUCTIONS_SEND = "instructions, SEND", Instructions;
    /// For a SEND of 64 that are posted at once.
    INSTRUCTIONS_STREAM = "instructions, SEND of 64 at once", Instructions;
    /// For an RDMA Write.
    INSTRUCTIONS_WRITE = "instructions, WRITE", Instructions;

    /// Simulator: 64 KB writes over 10 Gb/s and 100 us, no loss.
    SIM_LOSSLESS = "simulated goodput, no loss", GigabytesPerSecond;
    /// The same with 1 % loss.
    SIM_LOSSY = "simulated goodput, 1 % loss", GigabytesPerSecond;
    /// Simulator: runs of 10,000, with up to 5 % loss and reordering, in which a live peer was
    /// given up.
    SIM_GIVEN_UP = "simulated spurious RETRY_EXC", Runs;
}

/// The sweep over queue pairs: how many, and its probe.
pub const QP_SWEEP: [(u32, Probe); 5] = [
    (1, QPS_1),
    (10, QPS_10),
    (100, QPS_100),
    (1000, QPS_1000),
    (4000, QPS_4000),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = ALL.iter().map(|probe| probe.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
