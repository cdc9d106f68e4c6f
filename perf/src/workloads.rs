//! The runs of Debian's perftest: tool, size, path, and the probe that gets the figure.

use crate::part::Part;
use crate::probes::*;
use crate::samples::Probe;

/// Octets of a measurement of bandwidth, through urdma, a peer or raw: half a second at 8 GB/s. In
/// less than a tenth of that, the first pages and the scheduler's first placement of the threads
/// decide the result.
pub const STREAM_OCTETS: usize = 4 << 30;
/// Messages of a measurement of a rate, through urdma or a peer.
pub const STREAM_MESSAGES: u32 = 2_000_000;

/// The path between the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// One host, through shared memory.
    OneHost,
    /// Two hosts, forwarded by both daemons, MTU 9000.
    Forwarded,
    /// Two hosts, with leased queues, MTU 9000.
    Leased,
    /// Two hosts, with leased queues, MTU 1500.
    Leased1500,
}

/// One run of perftest.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The probe that gets the figure; its unit selects the figure.
    pub probe: Probe,
    /// The part of the measurement that it belongs to.
    pub part: Part,
    /// The path between the two programs.
    pub path: Path,
    /// The program.
    pub tool: &'static str,
    /// Size of a message.
    pub octets: u32,
    /// Additional flags, the same at both ends.
    pub flags: &'static [&'static str],
}

const fn work(part: Part, path: Path, probe: Probe, tool: &'static str, octets: u32) -> Workload {
    Workload {
        probe,
        part,
        path,
        tool,
        octets,
        flags: &[],
    }
}

const fn with(mut workload: Workload, flags: &'static [&'static str]) -> Workload {
    workload.flags = flags;
    workload
}

/// Octets of a short message.
pub(crate) const SMALL: u32 = 64;
const KB_1: u32 = 1024;
const KB_64: u32 = 65_536;
const MB_1: u32 = 1 << 20;

/// All runs, in the order in which they are measured.
pub const WORKLOADS: &[Workload] = {
    use Part::{Bandwidth, Latency, Qps, Rate, Streams};
    use Path::{Forwarded, Leased, Leased1500, OneHost};
    &[
        work(Latency, OneHost, SEND_ONE_HOST, "ib_send_lat", SMALL),
        work(Latency, OneHost, WRITE_LAT_ONE_HOST, "ib_write_lat", SMALL),
        with(
            work(Latency, OneHost, EVENTS_ONE_HOST, "ib_send_lat", SMALL),
            &["-e"],
        ),
        work(Rate, OneHost, SEND_RATE_ONE_HOST, "ib_send_bw", SMALL),
        work(Rate, OneHost, WRITE_RATE_ONE_HOST, "ib_write_bw", SMALL),
        work(Bandwidth, OneHost, WRITE_ONE_HOST, "ib_write_bw", KB_64),
        work(Bandwidth, OneHost, WRITE_1M_ONE_HOST, "ib_write_bw", MB_1),
        work(Streams, OneHost, SEND_64_STREAMS, "ib_send_bw", SMALL),
        work(Streams, OneHost, SEND_1K_STREAMS, "ib_send_bw", KB_1),
        with(
            work(Streams, OneHost, EVENTS_64K_STREAMS, "ib_send_lat", KB_64),
            &["-e"],
        ),
        work(Streams, OneHost, WRITE_1M_STREAMS, "ib_write_bw", MB_1),
        with(
            work(Streams, OneHost, WRITE_1M_STREAMS_8, "ib_write_bw", MB_1),
            &["-q", "8", "-t", "1"],
        ),
        with(
            work(Qps, OneHost, QPS_1, "ib_write_bw", SMALL),
            &["-q", "1"],
        ),
        with(
            work(Qps, OneHost, QPS_10, "ib_write_bw", SMALL),
            &["-q", "10"],
        ),
        with(
            work(Qps, OneHost, QPS_100, "ib_write_bw", SMALL),
            &["-q", "100"],
        ),
        with(
            work(Qps, OneHost, QPS_1000, "ib_write_bw", SMALL),
            &["-q", "1000"],
        ),
        with(
            work(Qps, OneHost, QPS_4000, "ib_write_bw", SMALL),
            &["-q", "4000"],
        ),
        work(Latency, Leased, SEND_LEASED, "ib_send_lat", SMALL),
        work(Rate, Leased, SEND_RATE_LEASED, "ib_send_bw", SMALL),
        work(Rate, Leased, WRITE_RATE_LEASED, "ib_write_bw", SMALL),
        work(Bandwidth, Leased, WRITE_LEASED, "ib_write_bw", KB_64),
        work(Bandwidth, Leased, WRITE_1M_LEASED, "ib_write_bw", MB_1),
        work(Bandwidth, Leased, READ_LEASED, "ib_read_bw", KB_64),
        work(Bandwidth, Leased, READ_1M_LEASED, "ib_read_bw", MB_1),
        work(Bandwidth, Leased, SEND_BW_LEASED, "ib_send_bw", KB_64),
        work(Bandwidth, Leased, SEND_BW_1M_LEASED, "ib_send_bw", MB_1),
        work(Latency, Forwarded, SEND_FORWARDED, "ib_send_lat", SMALL),
        with(
            work(Latency, Forwarded, EVENTS_FORWARDED, "ib_send_lat", SMALL),
            &["-e"],
        ),
        work(Bandwidth, Forwarded, WRITE_FORWARDED, "ib_write_bw", KB_64),
        work(Bandwidth, Leased1500, WRITE_1500, "ib_write_bw", KB_64),
        work(Bandwidth, Leased1500, WRITE_1M_1500, "ib_write_bw", MB_1),
        work(Bandwidth, Leased1500, READ_1500, "ib_read_bw", KB_64),
        work(Bandwidth, Leased1500, SEND_BW_1500, "ib_send_bw", KB_64),
    ]
};
