//! The goals: what is compared with what, and which result is good enough.
//!
//! The figures are requirements of the project. Each is relative to a limit or a peer that is
//! measured in the same call (`perf/src/raw/`, [`crate::peers`]), except for processor time,
//! memory, instructions and the time of opening the device, which are absolute. doc/performance.md
//! has the results.

use crate::probes::*;
use crate::samples::Unit;
use crate::spec::Compare::{Above, Alone, BestOf, With};
use crate::spec::Goal::{self, AtLeast, AtMost};
use crate::spec::Spec;

/// Latency in raw half round trips: a verbs message costs at most half as much again as the same
/// octets through the bare ring (one host) or bare net_memif (two hosts, leased).
const LATENCY: Goal = AtMost(1.5);
/// Latency through both daemons, in raw half round trips of net_memif, which has neither.
const LATENCY_FORWARDED: Goal = AtMost(8.0);
/// Microseconds above the two wake-ups that two sleeping processes cost in any case.
const EVENTS: Goal = AtMost(2.0);
/// Latency of a message between two sleeping ends, in latencies of TCP over loopback.
pub(crate) const ASLEEP: Goal = AtMost(0.5);
/// The same while another program runs on each processor: what is saved is less than what the
/// ends wait for a processor.
pub(crate) const ASLEEP_BUSY: Goal = AtMost(1.0);
/// The same between two hosts, through both daemons, in latencies of TCP over a veth pair.
pub(crate) const ASLEEP_FORWARDED: Goal = AtMost(1.2);
/// The same over leased queues, in latencies through both daemons.
pub(crate) const ASLEEP_LEASED: Goal = AtMost(1.0);
/// Connections that ten pairs of processes make together, in those of one pair.
pub(crate) const PAIRS_TOGETHER: Goal = AtLeast(0.8);
/// A new process with one connection, from exec to exit, in times of one over TCP.
pub(crate) const COLD: Goal = AtMost(1.5);
/// Memory of an established connection at an end, in kilobytes: 8 KiB.
pub(crate) const ESTABLISHED: Goal = AtMost(8.192);
/// Rate of connections with the flight recorder, which is always on, in the rate without.
pub(crate) const RECORDED: Goal = AtLeast(0.98);
/// Rate of connections with four probes traced, in the rate without.
pub(crate) const PROBED: Goal = AtLeast(0.93);
/// Latency of a TCP program whose octets go over rings, in latencies of TCP over loopback.
pub(crate) const RINGS_ASLEEP: Goal = AtMost(0.45);
/// The same when both ends poll.
pub(crate) const RINGS_POLLING: Goal = AtMost(0.07);
/// The same in latencies of a plain shared ring, which is no socket.
pub(crate) const RINGS_RAW: Goal = AtMost(1.5);
/// The same beside another program on each processor.
pub(crate) const RINGS_BUSY: Goal = AtMost(1.0);
/// Latency beside ten thousand idle descriptors of a set, in that beside one.
pub(crate) const RINGS_IDLE: Goal = AtMost(1.1);
/// Rate of requests beside another program on each processor, in rates of TCP.
pub(crate) const RINGS_BUSY_RATE: Goal = AtLeast(1.0);
/// Rates of Debian's servers over rings, in rates of TCP: nginx with connections that are kept.
pub(crate) const NGINX: Goal = AtLeast(1.8);
/// memcached.
pub(crate) const MEMCACHED: Goal = AtLeast(2.0);
/// PostgreSQL by `pgbench -S`.
pub(crate) const PGBENCH: Goal = AtLeast(1.2);
/// iperf3, one stream.
pub(crate) const IPERF3: Goal = AtLeast(3.0);
/// The same of connections that stay with TCP although one end has the library, or both.
pub(crate) const NOT_OVER_RINGS: Goal = AtLeast(0.98);
/// The same of connections that end before they are offered rings.
pub(crate) const SHORT_CONNECTIONS: Goal = AtLeast(0.97);
/// Rate of short messages as a share of what the bare ring or bare net_memif moves. The ring moves
/// 50 M/s on the machine of doc/performance.md: 20 M/s, or 50 ns a message for each end.
const RATE: Goal = AtLeast(0.4);
/// Latency in latencies of UCX, which has the same work to do (`tag_lat` over shared memory).
const LATENCY_UCX: Goal = AtMost(1.0);
/// Rate of short messages in rates of UCX (`tag_bw`).
const RATE_UCX: Goal = AtLeast(2.0);
/// Bandwidth in bandwidths of UCX (`tag_bw`).
const AS_UCX: Goal = AtLeast(1.0);
/// Bandwidth as a share of a stream that is copied into shared memory and out of it, which is what
/// a transfer without the kernel's help costs.
const TWO_COPIES: Goal = AtLeast(0.8);
/// Bandwidth in streams of TCP over loopback (`qperf tcp_bw`).
const TCP: Goal = AtLeast(2.5);
/// Bandwidth as a share of bare net_memif with an MTU of 9000.
const MEMIF_JUMBO: Goal = AtLeast(0.85);
/// The same with an MTU of 1500, where headers and work for each packet weigh more.
const MEMIF_STANDARD: Goal = AtLeast(0.7);
/// Rate with up to 100 queue pairs, as a share of the best number of the sweep.
const QUEUE_PAIRS: Goal = AtLeast(0.9);
/// The same with more queue pairs, whose state exceeds a processor's own caches.
const QUEUE_PAIRS_MANY: Goal = AtLeast(0.85);
/// Two threads with thread domains (`ibv_alloc_td`) share no lock: nearly twice the rate of one.
const THREADS: Goal = AtLeast(1.7);
/// Two threads that share an engine are not slower together than one of them.
const THREADS_SHARED: Goal = AtLeast(1.0);
/// Latency with more attached processes, in latencies with one: flat within 15 %.
const FLAT_LATENCY: Goal = AtMost(1.15);
/// Rate with more attached processes, in rates with one.
const FLAT_RATE: Goal = AtLeast(0.85);
/// Resident KB of a queue pair with one work request each way.
const QP_MEMORY: Goal = AtMost(16.0);
/// Per cent of a core that an idle process takes.
pub(crate) const IDLE: Goal = AtMost(0.2);
/// Resident MB of an attached process above the same program without a device.
const MEMORY: Goal = AtMost(8.0);
/// The same with a lease, for which the process becomes a DPDK secondary process.
const MEMORY_LEASED: Goal = AtMost(24.0);
/// Milliseconds of `ibv_devinfo` above the same program without a device.
const ATTACH: Goal = AtMost(3.0);
/// The same with a lease, which starts the DPDK secondary process.
const ATTACH_LEASED: Goal = AtMost(25.0);
/// Instructions of both ends for a SEND of 64 octets that is answered by one.
const INSTRUCTIONS: Goal = AtMost(1_200.0);
/// For a SEND of 64 that are posted at once, which share a part of the work.
const INSTRUCTIONS_OF_64: Goal = AtMost(700.0);
/// For an RDMA Write that is alone.
const INSTRUCTIONS_OF_A_WRITE: Goal = AtMost(1_300.0);
/// A live peer is never given up, in any of [`crate::simulator::RETRY_SEEDS`] simulated runs.
const SPURIOUS_FAILURES: Goal = AtMost(0.0);

/// Latency over UDP sockets, through both daemons, in latencies of bare sockets that block.
pub(crate) const SOCKETS_LATENCY: Goal = AtMost(1.5);
/// Bandwidth over UDP sockets as a share of bare sockets with UDP_SEGMENT and UDP_GRO.
pub(crate) const SOCKETS_RAW: Goal = AtLeast(0.8);
/// The same in bandwidths of TCP (`qperf tcp_bw`).
pub(crate) const SOCKETS_TCP: Goal = AtLeast(1.0);

/// Share of a stream's transfers that are direct, with half as many sends as receives.
pub(crate) const STREAM_DIRECT: Goal = AtLeast(0.95);
/// Rate of that stream in rates of direct transfers only.
pub(crate) const STREAM_DYNAMIC: Goal = AtLeast(0.97);
/// Processor time of a receiver of direct transfers, which copies nothing, in times of one of
/// indirect transfers.
pub(crate) const STREAM_PROCESSOR: Goal = AtMost(0.85);
/// Rate of a stream in rates of writes of the same length (`ib_write_bw`).
pub(crate) const STREAM_RAW: Goal = AtLeast(0.95);
/// Rate of a stream in rates of TCP over loopback.
pub(crate) const STREAM_TCP: Goal = AtLeast(3.0);
/// Latency of a stream in latencies of the same.
pub(crate) const STREAM_TCP_LATENCY: Goal = AtMost(0.33);
/// Share of a link of 1 Gbit/s and 48 ms, where adverts alone reach 0.70.
pub(crate) const STREAM_DISTANCE: Goal = AtLeast(0.9);

/// Rate of a stream in rates of rsockets (`rstream`), with messages of `octets` octets.
pub(crate) const fn rsockets_rate(octets: u32) -> Goal {
    match octets {
        64 | 1_048_576 => AtLeast(1.5),
        _ => AtLeast(1.0),
    }
}

/// Latency of a stream in latencies of the same.
pub(crate) const fn rsockets_latency(octets: u32) -> Goal {
    match octets {
        64 | 1_048_576 => AtMost(0.67),
        _ => AtMost(1.0),
    }
}

/// Microseconds until a virtual queue pair to a known node is open.
pub(crate) const POOL_OPEN: Goal = AtMost(1.0);
/// Millions of them a second, of one thread.
pub(crate) const POOL_OPENED: Goal = AtLeast(0.5);
/// Time until a virtual queue pair to a known node is open, in times of rdma_connect in a process
/// that has connections, and of a whole process that connects.
pub(crate) const POOL_WARM: Goal = AtMost(0.1);
pub(crate) const POOL_COLD: Goal = AtMost(0.01);
/// Time of an RDMA Read over a virtual queue pair, in times of one over a connection of its own.
pub(crate) const POOL_READ: Goal = AtMost(1.15);
/// Microseconds by which opening a virtual queue pair to a node that is not known, by a metadata
/// service, takes longer than an RDMA Read of that service just before.
pub(crate) const POOL_LEARN: Goal = AtMost(5.0);
/// Octets of the heap for each further node that a client knows, when the tables of its process
/// that have a bound are full.
pub(crate) const POOL_NODE: Goal = AtMost(32.0);
/// Time from the start to the end of a process that reads from three nodes, in times of one over
/// TCP.
pub(crate) const SHORT_PROCESS: Goal = AtMost(0.5);

/// Share of a link's rate that the queue pairs on it use, headers included.
pub(crate) const LINK: Goal = AtLeast(0.9);
/// Fairness of queue pairs that share a link: Jain's index (R. Jain, D. Chiu and W. Hawe, "A
/// Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared Computer
/// Systems", DEC-TR-301, 1984).
pub(crate) const FAIRNESS: Goal = AtLeast(0.95);
/// Mean wait of a packet for a shared link, in round trips.
pub(crate) const QUEUEING: Goal = AtMost(2.0);

/// Goodput with 1 % loss as a share of the goodput without loss. Go-back-N, as soft-RoCE does it,
/// keeps 0.12 in the same simulation.
const LOSS_1_PERCENT: Goal = AtLeast(0.8);

/// Figure with more attached processes, in figures of this unit with one.
pub(crate) const fn flat(unit: Unit) -> Goal {
    match unit {
        Unit::Microseconds => FLAT_LATENCY,
        _ => FLAT_RATE,
    }
}

/// Rate of Valkey's GET requests between sleeping programs, in rates of TCP over loopback. The more
/// requests there are at once, the less a wake-up and the transport weigh.
pub(crate) const fn valkey(clients: u32, in_a_row: u32) -> Goal {
    match (clients, in_a_row) {
        (1, _) => AtLeast(3.0),
        (50, 1) => AtLeast(1.5),
        (50, 16) => AtLeast(1.3),
        _ => Goal::None,
    }
}

/// The same while another program runs on each processor.
pub(crate) const fn valkey_busy(clients: u32, in_a_row: u32) -> Goal {
    match (clients, in_a_row) {
        (1, 1) => AtLeast(1.5),
        (1, 16) | (50, 1) => AtLeast(1.2),
        (50, 16) => AtLeast(1.0),
        _ => Goal::None,
    }
}

/// The same over rings in place of TCP.
pub(crate) const fn valkey_over_rings(clients: u32) -> Goal {
    match clients {
        1 => AtLeast(3.0),
        _ => AtLeast(2.5),
    }
}

/// System calls of an end for one of these requests, in calls over TCP.
pub(crate) const fn calls(clients: u32, in_a_row: u32) -> Goal {
    match (clients, in_a_row) {
        (50, 1) => AtMost(1.0),
        _ => Goal::None,
    }
}

/// Thousands of connections a second, of `at_once` at a time: each is made, established, ended and
/// destroyed. One at a time, it is to take 120 us at most.
pub(crate) const fn connections(at_once: u32) -> Goal {
    match at_once {
        1 => AtLeast(1e3 / 120.0),
        1000 => AtLeast(40.0),
        _ => Goal::None,
    }
}

/// Goodput over a link that loses `loss_ppm` packets in a million, as a share of the goodput
/// without loss. Rates of loss without an entry are measured for information.
pub(crate) const fn goodput(loss_ppm: u32) -> Goal {
    match loss_ppm {
        100 => AtLeast(0.98),
        1_000 => AtLeast(0.95),
        10_000 => LOSS_1_PERCENT,
        50_000 => AtLeast(0.5),
        _ => Goal::None,
    }
}

/// Rows of the report: name, probe, what it is compared with, goal.
macro_rules! rows {
    ($($name:literal: $ours:ident, $compare:expr, $goal:expr;)*) => {
        &[$(Spec { name: $name, ours: $ours, compare: $compare, goal: $goal }),*]
    };
}

/// The rows that do not belong to a part of their own.
pub(crate) const SPECS: &[Spec] = rows! {
    "64 B send, one host / raw ring": SEND_ONE_HOST, With(RAW_RING), LATENCY;
    "64 B write, one host / raw ring": WRITE_LAT_ONE_HOST, With(RAW_RING), LATENCY;
    "64 B send, one host / UCX": SEND_ONE_HOST, With(UCX_LATENCY), LATENCY_UCX;
    "64 B write, one host / UCX": WRITE_LAT_ONE_HOST, With(UCX_LATENCY), LATENCY_UCX;
    "64 B send, one host / TCP": SEND_ONE_HOST, With(TCP_LATENCY), Goal::None;
    "64 B channel / raw ring": CHANNEL, With(RAW_RING), Goal::None;
    "64 B send, one host, events, above 2 wake-ups":
        EVENTS_ONE_HOST, Above(RAW_WAKE_UPS), EVENTS;
    "64 B send, leased / raw memif": SEND_LEASED, With(MEMIF_LATENCY), LATENCY;
    "64 B send, leased / TCP": SEND_LEASED, With(TCP_LATENCY), Goal::None;
    "64 B send, forwarded / raw memif": SEND_FORWARDED, With(MEMIF_LATENCY), LATENCY_FORWARDED;
    "64 B send, forwarded / TCP": SEND_FORWARDED, With(TCP_LATENCY), Goal::None;
    "64 B send, forwarded, events / TCP": EVENTS_FORWARDED, With(TCP_LATENCY), Goal::None;

    "64 B send rate, one host / raw ring": SEND_RATE_ONE_HOST, With(RAW_RING_RATE), RATE;
    "64 B write rate, one host / raw ring": WRITE_RATE_ONE_HOST, With(RAW_RING_RATE), RATE;
    "64 B send rate, one host / UCX": SEND_RATE_ONE_HOST, With(UCX_RATE), RATE_UCX;
    "64 B write rate, one host / UCX": WRITE_RATE_ONE_HOST, With(UCX_RATE), RATE_UCX;
    "64 B send rate, leased / raw memif": SEND_RATE_LEASED, With(MEMIF_RATE), RATE;
    "64 B write rate, leased / raw memif": WRITE_RATE_LEASED, With(MEMIF_RATE), RATE;

    "64 KB write, one host / UCX tag": WRITE_ONE_HOST, With(UCX_STREAM), AS_UCX;
    "1 MB write, one host / UCX tag": WRITE_1M_ONE_HOST, With(UCX_STREAM_1M), AS_UCX;
    "64 KB write, one host / raw two copies": WRITE_ONE_HOST, With(RAW_STREAM), TWO_COPIES;
    "1 MB write, one host / raw two copies": WRITE_1M_ONE_HOST, With(RAW_STREAM), TWO_COPIES;
    "64 KB write, one host / TCP": WRITE_ONE_HOST, With(TCP_STREAM), TCP;
    "1 MB write, one host / TCP": WRITE_1M_ONE_HOST, With(TCP_STREAM), TCP;
    "64 KB write, one host / UCX put, one copy": WRITE_ONE_HOST, With(UCX_PUT), Goal::None;

    "64 KB write, leased / raw memif": WRITE_LEASED, With(MEMIF_STREAM), MEMIF_JUMBO;
    "1 MB write, leased / raw memif": WRITE_1M_LEASED, With(MEMIF_STREAM), MEMIF_JUMBO;
    "64 KB read, leased / raw memif": READ_LEASED, With(MEMIF_STREAM), MEMIF_JUMBO;
    "1 MB read, leased / raw memif": READ_1M_LEASED, With(MEMIF_STREAM), MEMIF_JUMBO;
    "64 KB send, leased / raw memif": SEND_BW_LEASED, With(MEMIF_STREAM), MEMIF_JUMBO;
    "1 MB send, leased / raw memif": SEND_BW_1M_LEASED, With(MEMIF_STREAM), MEMIF_JUMBO;
    "64 KB write, forwarded / raw memif": WRITE_FORWARDED, With(MEMIF_STREAM), Goal::None;
    "64 KB write, MTU 1500 / raw memif": WRITE_1500, With(MEMIF_STREAM_1500), MEMIF_STANDARD;
    "1 MB write, MTU 1500 / raw memif": WRITE_1M_1500, With(MEMIF_STREAM_1500), MEMIF_STANDARD;
    "64 KB read, MTU 1500 / raw memif": READ_1500, With(MEMIF_STREAM_1500), MEMIF_STANDARD;
    "64 KB send, MTU 1500 / raw memif": SEND_BW_1500, With(MEMIF_STREAM_1500), MEMIF_STANDARD;

    "64 B write rate, 1 QP / best of the sweep": QPS_1, BestOf(&QP_SWEEP), QUEUE_PAIRS;
    "64 B write rate, 10 QPs / best": QPS_10, BestOf(&QP_SWEEP), QUEUE_PAIRS;
    "64 B write rate, 100 QPs / best": QPS_100, BestOf(&QP_SWEEP), QUEUE_PAIRS;
    "64 B write rate, 1000 QPs / best": QPS_1000, BestOf(&QP_SWEEP), QUEUE_PAIRS_MANY;
    "64 B write rate, 4000 QPs / best": QPS_4000, BestOf(&QP_SWEEP), QUEUE_PAIRS_MANY;
    "64 B writes, two threads with domains / one": TWO_THREADS, With(ONE_THREAD), THREADS;
    "64 B writes, two threads, one engine / one":
        TWO_THREADS_SHARED, With(ONE_THREAD), THREADS_SHARED;

    "memory of a QP": RESIDENT_QP, Alone, QP_MEMORY;
    "CPU, application on a completion channel": IDLE_APPLICATION, Alone, IDLE;
    "CPU, urdmad without a port": IDLE_DAEMON, Alone, IDLE;
    "CPU, urdmad with a memif port": IDLE_DAEMON_PORT, Alone, IDLE;
    "memory, attached above plain": RESIDENT_ATTACHED, Above(RESIDENT_PLAIN), MEMORY;
    "memory, with a lease above plain": RESIDENT_LEASED, Above(RESIDENT_PLAIN), MEMORY_LEASED;
    "attach without a lease": DEVINFO_URDMA, Above(DEVINFO_PLAIN), ATTACH;
    "attach with a lease": DEVINFO_LEASED, Above(DEVINFO_PLAIN), ATTACH_LEASED;

    "instructions, 64 B SEND, both ends": INSTRUCTIONS_SEND, Alone, INSTRUCTIONS;
    "instructions, 64 B SEND of 64 at once": INSTRUCTIONS_STREAM, Alone, INSTRUCTIONS_OF_64;
    "instructions, 64 B WRITE": INSTRUCTIONS_WRITE, Alone, INSTRUCTIONS_OF_A_WRITE;

    "goodput at 1 % loss / lossless, simulated": SIM_LOSSY, With(SIM_LOSSLESS), LOSS_1_PERCENT;
    "spurious RETRY_EXC in 10,000 seeds, simulated": SIM_GIVEN_UP, Alone, SPURIOUS_FAILURES;
};
