//! The parts of a measurement.

/// A part, which can be measured alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// 64-octet latencies
    Latency,
    /// 64-octet message rates
    Rate,
    /// 64 KB and 1 MB bandwidths, MTU 9000 and 1500
    Bandwidth,
    /// Message rate over 1 to 4000 queue pairs
    Qps,
    /// Rate of two threads of one process compared with one
    Threads,
    /// Latency and rate with 1 to 252 attached processes
    Processes,
    /// Connections and ping-pongs of processes that sleep, next to TCP
    Asleep,
    /// Connections: rate over their number and over pairs of processes, steps, cost of tracing
    Connections,
    /// A new process with one connection, from exec to exit, of copied libraries, next to TCP
    Cold,
    /// Valkey's requests, quiet and beside busy programs, next to TCP
    Valkey,
    /// TCP programs whose octets go over rings, next to TCP
    Rings,
    /// Byte streams (EXS), next to rsockets and TCP
    Streams,
    /// Virtual queue pairs on shared ones: opening, reads, memory
    Pool,
    /// Goodput over loss, between two hosts
    Loss,
    /// Links of limited rate and delay
    Links,
    /// Two hosts with ports over UDP sockets, next to TCP and bare UDP
    Sockets,
    /// Processor time of idle processes
    Idle,
    /// Resident memory of idle processes and queue pairs
    Memory,
    /// Time of opening the device
    Attach,
    /// Instructions of the engine for one message
    Instructions,
    /// The protocol alone, in the simulator
    Simulation,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 21] = [
        Self::Latency,
        Self::Rate,
        Self::Bandwidth,
        Self::Qps,
        Self::Threads,
        Self::Processes,
        Self::Asleep,
        Self::Connections,
        Self::Cold,
        Self::Valkey,
        Self::Rings,
        Self::Streams,
        Self::Pool,
        Self::Loss,
        Self::Links,
        Self::Sockets,
        Self::Idle,
        Self::Memory,
        Self::Attach,
        Self::Instructions,
        Self::Simulation,
    ];

    /// The number of rounds in which it is measured at most.
    pub(crate) const fn rounds_max(self) -> u16 {
        match self {
            Self::Connections | Self::Loss | Self::Streams => 3,
            Self::Links => 1,
            _ => u16::MAX,
        }
    }
}
