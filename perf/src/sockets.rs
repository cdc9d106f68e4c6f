//! Two hosts with ports over UDP sockets, in two network namespaces joined by a veth pair, beside
//! TCP and bare UDP sockets over the same pair.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::{Instance, LeasePolicy, Place, Scratch};
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::Process;
use urdma_harness::{pair, programs, Failure};

use crate::goals;
use crate::idle;
use crate::peers;
use crate::probes::{
    IDLE_SOCKETS, RAW_UDP_LATENCY, RAW_UDP_STREAM, SEND_SOCKETS, TCP_VETH_STREAM, WRITE_1M_SOCKETS,
    WRITE_SOCKETS,
};
use crate::raw::Mode;
use crate::samples::{text, Probe, Sample};
use crate::spec::Compare::{Alone, With};
use crate::spec::Spec;

/// The ends' addresses.
const ADDRESSES: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
/// Octets of a datagram of urdma's at an MTU of 1500.
pub const DATAGRAM_OCTETS: usize = 1472;
/// Start of the line with the result of `urdma-perf-udp`.
pub const RESULT: &str = "result";
/// The line that its server prints when it has its socket.
pub const LISTENING: &str = "listening";
const SMALL: u32 = 64;
const KB_64: u32 = 65_536;
const MB_1: u32 = 1 << 20;
/// Octets of a stream over urdma.
const STREAM_OCTETS: u32 = 1 << 31;
const LIMIT: Duration = Duration::from_secs(30);

/// The rows of this part.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    [
        Spec::new(
            "64 B send, UDP sockets / raw UDP",
            SEND_SOCKETS,
            With(RAW_UDP_LATENCY),
            goals::SOCKETS_LATENCY,
        ),
        Spec::new(
            "64 KB write, UDP sockets / raw UDP",
            WRITE_SOCKETS,
            With(RAW_UDP_STREAM),
            goals::SOCKETS_RAW,
        ),
        Spec::new(
            "1 MB write, UDP sockets / raw UDP",
            WRITE_1M_SOCKETS,
            With(RAW_UDP_STREAM),
            goals::SOCKETS_RAW,
        ),
        Spec::new(
            "64 KB write, UDP sockets / TCP",
            WRITE_SOCKETS,
            With(TCP_VETH_STREAM),
            goals::SOCKETS_TCP,
        ),
        Spec::new(
            "1 MB write, UDP sockets / TCP",
            WRITE_1M_SOCKETS,
            With(TCP_VETH_STREAM),
            goals::SOCKETS_TCP,
        ),
        Spec::new(
            "CPU, urdmad with a port over UDP sockets",
            IDLE_SOCKETS,
            Alone,
            goals::IDLE,
        ),
    ]
    .into_iter()
}

/// The hosts.
struct Hosts {
    // Dropped before the namespaces that they are in.
    instances: [Instance; 2],
    spaces: Namespaces,
    _scratch: Scratch,
}

impl Hosts {
    fn up() -> Result<Self, Failure> {
        let (scratch, spaces) = (Scratch::new("sockets")?, Namespaces::new()?);
        let start = |end: usize| {
            let address = format!("{}/24", ADDRESSES[end]);
            spaces.ip(end, &["addr", "add", &address, "dev", spaces.netdev(end)])?;
            let place = Place {
                namespace: Some(spaces.name(end).to_owned()),
                user: None,
            };
            let port = "[port]\nkind = \"udp\"\n";
            let addresses = [ADDRESSES[end]];
            Instance::up_at_place(place, scratch.path(), ["a", "b"][end], &addresses, port)
        };
        Ok(Self {
            instances: [start(0)?, start(1)?],
            spaces,
            _scratch: scratch,
        })
    }

    fn perftest(&self, tool: &str, octets: u32, iterations: u32, port: u16) -> Sample {
        let [server, client] = &self.instances;
        let job = programs::perftest(tool, octets, false, port, server.address());
        let job = job.with_iterations(iterations);
        let figure = pair::run(&job, server, client, LeasePolicy::Never).map_err(text)?;
        let figure = figure.ok_or("perftest printed no figure")?;
        // perftest's MB/s.
        Ok(if tool.ends_with("_bw") {
            figure.value * 1_048_576.0 / 1e9
        } else {
            figure.value
        })
    }

    fn raw(&self, programs: &Path, mode: Mode) -> Sample {
        let end = |end: usize, role: &str| {
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", self.spaces.name(end)])
                .arg(programs.join("urdma-perf-udp"))
                .args([role, mode.name(), ADDRESSES[0]]);
            command
        };
        let mut server = Process::start(&mut end(0, "server")).map_err(text)?;
        server.wait_for_text(LISTENING, LIMIT).map_err(text)?;
        let client = Process::run(&mut end(1, "client"), LIMIT).map_err(text)?;
        let server = server.wait(LIMIT).map_err(text)?;
        for ended in [&client, &server] {
            if !ended.succeeded() {
                return Err(format!("raw UDP: {}", ended.describe()));
            }
        }
        let printed = client.output + &server.output;
        let mut results = printed.lines().filter_map(|line| line.strip_prefix(RESULT));
        let value = results.next().and_then(|value| value.trim().parse().ok());
        value.ok_or_else(|| "raw UDP printed no result".to_owned())
    }
}

/// Measures everything once, values that are compared close together in time. perftest uses the TCP
/// ports from `port` on.
pub fn measure(programs: &Path, port: u16) -> Vec<(Probe, Sample)> {
    let hosts = match Hosts::up() {
        Ok(hosts) => hosts,
        Err(failure) => return vec![(SEND_SOCKETS, Err(failure.to_string()))],
    };
    let write = |octets, port| {
        let iterations = STREAM_OCTETS / octets;
        hosts.perftest("ib_write_bw", octets, iterations, port)
    };
    let exec = |end: usize| {
        let words = ["ip", "netns", "exec", hosts.spaces.name(end)];
        words.map(str::to_owned).to_vec()
    };
    vec![
        (RAW_UDP_LATENCY, hosts.raw(programs, Mode::Latency)),
        (
            SEND_SOCKETS,
            hosts.perftest("ib_send_lat", SMALL, 20_000, port),
        ),
        (WRITE_SOCKETS, write(KB_64, port + 1)),
        (RAW_UDP_STREAM, hosts.raw(programs, Mode::Stream)),
        (
            TCP_VETH_STREAM,
            peers::tcp_stream_between([exec(0), exec(1)], ADDRESSES[0], KB_64 as usize),
        ),
        (WRITE_1M_SOCKETS, write(MB_1, port + 2)),
        (IDLE_SOCKETS, idle::daemon(&hosts.instances[0])),
    ]
}
