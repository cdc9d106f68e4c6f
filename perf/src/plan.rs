//! The order of the measurements of a round: values that are compared are measured close together
//! in time.

use std::path::PathBuf;

use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::{Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::Failure;

use crate::asleep::Load;
use crate::instructions::{per_message, Operation};
use crate::part::Part;
use crate::probes;
use crate::processors::{ByKind, Kind};
use crate::raw::memif::{self, Pages, HEADERS_OCTETS};
use crate::raw::Mode;
use crate::samples::{Probe, Sample};
use crate::threads::{self, Sharing};
use crate::workloads::{Path, WORKLOADS};
use crate::{
    asleep, attach, cold, connections, elastic, idle, links, lossy, peers, pool, processes,
    product, raw, shares, simulator, sockets, store, store_load, stream_sweep, streams,
    tcp_programs, ucx, valkey, workloads,
};

const SMALL: usize = 64;
const KB_64: usize = 65_536;
const MB_1: usize = 1 << 20;
const JUMBO: u16 = 9000;
const STANDARD: u16 = 1500;
/// Leases of a host: its server and its client may have one each.
const LEASE_QUEUES: u16 = 2;
/// Number of 2 MB pages for two hosts with leases.
const HUGEPAGES: u64 = 512;
/// How often something is measured until the processors stay where they are.
const ATTEMPTS: usize = 3;
const FIRST_PORT: u16 = 18_910;
const PORTS: u16 = 80;
const ETHERNET_OCTETS: usize = 14;

/// A measurement of the machine or of a peer.
type Measure = fn() -> Sample;

/// Limits and peers of one host, with the part whose workloads they are compared with.
const BESIDE: &[(Part, Probe, Measure)] = &[
    (
        Part::Latency,
        probes::CHANNEL,
        raw::channel::half_round_trip,
    ),
    (
        Part::Latency,
        probes::RAW_WAKE_UPS,
        raw::eventfd::two_wake_ups,
    ),
    (Part::Latency, probes::UCX_LATENCY, || {
        peers::ucx_latency(SMALL)
    }),
    (Part::Latency, probes::TCP_LATENCY, || {
        peers::tcp_latency(SMALL)
    }),
    (
        Part::Rate,
        probes::RAW_RING_RATE,
        raw::ring::entries_a_second,
    ),
    (Part::Rate, probes::UCX_RATE, || peers::ucx_rate(SMALL)),
    (Part::Bandwidth, probes::TCP_STREAM, || {
        peers::tcp_stream(KB_64)
    }),
    (
        Part::Bandwidth,
        probes::RAW_STREAM,
        raw::ring::two_copy_stream,
    ),
    (
        Part::Streams,
        probes::RAW_STREAM_IN_TURN,
        raw::ring::two_copies_in_turn,
    ),
    (Part::Bandwidth, probes::UCX_PUT, || {
        peers::ucx_stream("ucp_put_bw", KB_64)
    }),
    (Part::Bandwidth, probes::UCX_STREAM, || {
        peers::ucx_stream("tag_bw", KB_64)
    }),
    (Part::Bandwidth, probes::UCX_STREAM_1M, || {
        peers::ucx_stream("tag_bw", MB_1)
    }),
    (Part::Attach, probes::DEVINFO_PLAIN, attach::plain),
];

/// net_memif, with the workloads of two hosts that it is compared with. A frame is as long as one
/// of urdma, whose IP packet fills the MTU.
const MEMIF: &[(Part, Path, Probe, Mode, usize)] = &[
    (
        Part::Latency,
        Path::Leased,
        probes::MEMIF_LATENCY,
        Mode::Latency,
        SMALL,
    ),
    (
        Part::Rate,
        Path::Leased,
        probes::MEMIF_RATE,
        Mode::Stream,
        SMALL,
    ),
    (
        Part::Bandwidth,
        Path::Leased,
        probes::MEMIF_STREAM,
        Mode::Stream,
        payload(JUMBO),
    ),
    (
        Part::Bandwidth,
        Path::Leased1500,
        probes::MEMIF_STREAM_1500,
        Mode::Stream,
        payload(STANDARD),
    ),
];

const fn payload(mtu: u16) -> usize {
    mtu as usize + ETHERNET_OCTETS - HEADERS_OCTETS
}

/// The instances of a path.
enum Hosts {
    One(Instance),
    Two(TwoHosts),
}

impl Hosts {
    /// Server and client.
    fn ends(&self) -> (&Instance, &Instance) {
        match self {
            Self::One(host) => (host, host),
            Self::Two(hosts) => (&hosts.a, &hosts.b),
        }
    }

    fn down(self) -> Result<(), Failure> {
        match self {
            Self::One(host) => host.down(),
            Self::Two(hosts) => hosts.down(),
        }
    }
}

/// One call of `make perf`.
#[derive(Debug)]
pub struct Plan {
    scratch: Scratch,
    /// Directory of the other programs of this package: that of this program.
    programs: PathBuf,
    hugepages: Result<Hugepages, Failure>,
    parts: Vec<Part>,
    samples: ByKind,
    /// How far the processors were from each other at the last look.
    kind: Kind,
    port: u16,
}

impl Plan {
    /// Finds the programs and reserves hugepages; without hugepages, leases are reported as not
    /// available. No parts means all.
    ///
    /// # Errors
    /// The scratch directory cannot be made, or the path of this program is not known.
    pub fn new(parts: &[Part]) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let programs = program.parent().map(std::path::Path::to_path_buf);
        Ok(Self {
            scratch: Scratch::new("perf")?,
            programs: programs.unwrap_or_default(),
            hugepages: Hugepages::reserve(HUGEPAGES),
            parts: match parts {
                [] => Part::ALL.to_vec(),
                some => some.to_vec(),
            },
            samples: ByKind::default(),
            kind: Kind::Far,
            port: FIRST_PORT,
        })
    }

    /// The values measured so far.
    pub fn samples(&self) -> &ByKind {
        &self.samples
    }

    /// Runs what does not depend on the load of the machine, for which one round is enough: the
    /// simulations, and the counts of instructions.
    pub fn once(&mut self) {
        if self.parts.contains(&Part::Instructions) {
            let programs = self.programs.clone();
            for (probe, operation) in [
                (probes::INSTRUCTIONS_SEND, Operation::Send),
                (probes::INSTRUCTIONS_STREAM, Operation::Stream),
                (probes::INSTRUCTIONS_WRITE, Operation::Write),
            ] {
                self.take_once(probe, per_message(&programs, operation, workloads::SMALL));
            }
        }
        if self.parts.contains(&Part::Simulation) {
            self.take_once(probes::SIM_LOSSLESS, simulator::lossless());
            self.take_once(probes::SIM_LOSSY, simulator::lossy());
            self.take_once(probes::SIM_GIVEN_UP, simulator::spurious_failures());
        }
    }

    /// Measures everything else once. Long parts are measured in the first rounds only.
    pub fn round(&mut self, number: u16) {
        self.look();
        eprintln!("  {}", self.kind);
        if self.parts.contains(&Part::Sockets) {
            self.sockets();
        }
        for paths in [
            &[Path::OneHost][..],
            &[Path::Leased, Path::Forwarded],
            &[Path::Leased1500],
        ] {
            let parts: Vec<Part> = self
                .parts
                .iter()
                .copied()
                .filter(|part| number <= part.rounds_max() && is_measured_over(*part, paths))
                .collect();
            if parts.is_empty() {
                continue;
            }
            let hosts = self.up(paths[0]).map_err(|failure| failure.to_string());
            for part in parts {
                for path in paths {
                    self.limits(part, *path);
                    self.workloads(part, *path, &hosts);
                    self.at_rest(part, *path, &hosts);
                    self.asleep(part, *path, &hosts);
                    match (part, *path) {
                        (Part::Threads, Path::OneHost) => self.threads(&hosts),
                        (Part::Processes, Path::OneHost) => self.processes(&hosts),
                        (Part::Valkey | Part::Rings, Path::OneHost) => {
                            self.valkey(part, number, &hosts);
                            self.tcp_programs(part);
                        }
                        (Part::Streams, Path::OneHost) => self.streams(&hosts),
                        (Part::Connections, Path::OneHost) => self.connections(&hosts),
                        (Part::Cold, Path::OneHost) => self.cold(&hosts),
                        (Part::Pool, Path::OneHost) => self.pool(&hosts),
                        (Part::Streams, Path::Forwarded) => self.distance(&hosts),
                        (Part::Loss, Path::Leased1500) => self.loss(&hosts),
                        (Part::Links, Path::Forwarded) => self.links(&hosts),
                        _ => {}
                    }
                }
            }
            if let Ok(hosts) = hosts {
                if let Err(failure) = hosts.down() {
                    eprintln!("  {failure}");
                }
            }
        }
    }

    /// Hosts whose ports are UDP sockets.
    fn sockets(&mut self) {
        let (programs, port) = (self.programs.clone(), self.next_port());
        self.take_all(|| sockets::measure(&programs, port));
    }

    fn take(&mut self, probe: Probe, mut measure: impl FnMut() -> Sample) {
        self.take_all(|| vec![(probe, measure())]);
    }

    /// Measures, and again if the processors were moved meanwhile.
    fn take_all(&mut self, mut measure: impl FnMut() -> Vec<(Probe, Sample)>) {
        for attempt in 1..=ATTEMPTS {
            let before = self.kind;
            let measured = measure();
            self.look();
            let has_moved = self.kind != before;
            if has_moved && attempt < ATTEMPTS {
                eprintln!("  {} now, measuring again", self.kind);
                continue;
            }
            for (probe, sample) in measured {
                let sample = match has_moved {
                    true => Err("the processors were moved during each measurement".into()),
                    false => sample,
                };
                print(probe, &sample);
                self.samples.of_mut(before).add(probe, sample);
            }
            return;
        }
    }

    /// Adds what does not depend on the processors.
    fn take_once(&mut self, probe: Probe, sample: Sample) {
        print(probe, &sample);
        for kind in Kind::ALL {
            self.samples.of_mut(kind).add(probe, sample.clone());
        }
    }

    /// Looks how far the processors are from each other.
    fn look(&mut self) {
        match raw::ring::half_round_trip() {
            Ok(us) => {
                self.kind = Kind::of(us);
                self.samples.of_mut(self.kind).add(probes::RAW_RING, Ok(us));
            }
            Err(reason) => print(probes::RAW_RING, &Err(reason)),
        }
    }

    fn next_port(&mut self) -> u16 {
        self.port = FIRST_PORT + (self.port - FIRST_PORT + 1) % PORTS;
        self.port
    }

    fn up(&self, path: Path) -> Result<Hosts, Failure> {
        let directory = self.scratch.path();
        let queues = match self.hugepages {
            Ok(_) => Queues::Leased(LEASE_QUEUES),
            Err(_) => Queues::Forwarded,
        };
        let mtu = match path {
            Path::OneHost => {
                return Instance::up(directory, "one", "127.0.0.1", "").map(Hosts::One)
            }
            Path::Leased1500 => STANDARD,
            Path::Leased | Path::Forwarded => JUMBO,
        };
        TwoHosts::up(directory, queues, mtu).map(Hosts::Two)
    }

    /// Raw limits and peers.
    fn limits(&mut self, part: Part, path: Path) {
        if path == Path::OneHost {
            for (_, probe, measure) in BESIDE.iter().filter(|(of, ..)| *of == part) {
                self.take(*probe, measure);
            }
        }
        for (_, _, probe, mode, octets) in MEMIF
            .iter()
            .filter(|(of, over, ..)| (*of, *over) == (part, path))
        {
            let socket = self.scratch.path().join("raw.sock");
            let programs = self.programs.clone();
            let pages = match self.hugepages {
                Ok(_) => Pages::Huge,
                Err(_) => Pages::Plain,
            };
            let is_rate = probe.unit == crate::samples::Unit::MillionsPerSecond;
            self.take(*probe, || {
                let value = memif::measure(&programs, &socket, *mode, *octets, pages)?;
                // GB/s of payload.
                Ok(if is_rate {
                    value * 1e3 / *octets as f64
                } else {
                    value
                })
            });
        }
    }

    /// The reason why leases are not available.
    fn no_lease(&self) -> Option<String> {
        self.hugepages.as_ref().err().map(ToString::to_string)
    }

    /// Server and client of a path, or the reason why the path is not available.
    fn ends<'a>(
        &self,
        path: Path,
        hosts: &'a Result<Hosts, String>,
    ) -> Result<(&'a Instance, &'a Instance), String> {
        let is_leased = matches!(path, Path::Leased | Path::Leased1500);
        match self.no_lease().filter(|_| is_leased) {
            Some(reason) => Err(reason),
            None => hosts.as_ref().map(Hosts::ends).map_err(Clone::clone),
        }
    }

    fn workloads(&mut self, part: Part, path: Path, hosts: &Result<Hosts, String>) {
        for workload in WORKLOADS
            .iter()
            .filter(|workload| (workload.part, workload.path) == (part, path))
        {
            let (port, ends) = (self.next_port(), self.ends(path, hosts));
            self.take(workload.probe, || {
                let (server, client) = ends.clone()?;
                product::measure(workload, port, server, client)
            });
        }
    }

    /// Threads whose queue pairs are connected to themselves.
    fn threads(&mut self, hosts: &Result<Hosts, String>) {
        let programs = self.programs.clone();
        let ends = hosts.as_ref().map(Hosts::ends).map_err(Clone::clone);
        for (probe, count, sharing) in [
            (probes::ONE_THREAD, 1, Sharing::Domains),
            (probes::TWO_THREADS, 2, Sharing::Domains),
            (probes::TWO_THREADS_SHARED, 2, Sharing::Shared),
        ] {
            let host = ends.clone();
            self.take(probe, || {
                threads::rate(host.clone()?.0, &programs, count, sharing)
            });
        }
    }

    /// Processes that are connected to one.
    fn processes(&mut self, hosts: &Result<Hosts, String>) {
        let host = hosts.as_ref().map(|hosts| hosts.ends().0);
        let host = host.map_err(Clone::clone);
        let programs = self.programs.clone();
        for point in &processes::POINTS {
            self.take_all(|| {
                let point = std::slice::from_ref(point);
                processes::measure(host.clone(), &programs, point)
            });
        }
    }

    /// Processes that sleep while they wait, over urdma and over TCP.
    fn asleep(&mut self, part: Part, path: Path, hosts: &Result<Hosts, String>) {
        let programs = self.programs.clone();
        let ends = self.ends(path, hosts);
        for point in asleep::POINTS
            .iter()
            .filter(|point| (point.part, point.path) == (part, path))
        {
            self.take_all(|| point.measure(ends.clone(), &programs));
        }
        if (part, path) == (Part::Asleep, Path::OneHost) {
            let host = ends.map(|(server, _)| server);
            for point in &ucx::POINTS {
                let ports = [self.next_port(), self.next_port()];
                self.take_all(|| point.measure(host.clone(), ports));
            }
        }
    }

    /// Connections: their rates, their steps, and what tracing costs.
    fn connections(&mut self, hosts: &Result<Hosts, String>) {
        let programs = self.programs.clone();
        let host = hosts.as_ref().map(|hosts| hosts.ends().0);
        let host = host.map_err(Clone::clone);
        self.take_all(|| connections::measure(host.clone(), &programs));
    }

    /// A new process with one connection.
    fn cold(&mut self, hosts: &Result<Hosts, String>) {
        let (scratch, port) = (self.scratch.path().to_owned(), self.next_port());
        let host = hosts.as_ref().map(|hosts| hosts.ends().0);
        let host = host.map_err(Clone::clone);
        self.take_all(|| cold::measure(host.clone(), &scratch, port));
    }

    /// Valkey, with the calls of its requests in the first round.
    fn valkey(&mut self, part: Part, number: u16, hosts: &Result<Hosts, String>) {
        let programs = self.programs.clone();
        let host = hosts.as_ref().map(|hosts| hosts.ends().0);
        let host = host.map_err(Clone::clone);
        for point in valkey::POINTS.iter().filter(|point| point.part == part) {
            for others in [Load::Quiet, Load::Busy] {
                let port = self.next_port();
                self.take_all(|| point.measure(host.clone(), others, &programs, port));
            }
            if number == 1 {
                for (probe, sample) in point.count(host.clone(), &programs, self.next_port()) {
                    self.take_once(probe, sample);
                }
            }
        }
    }

    /// Debian's servers over rings, on instances of their own.
    fn tcp_programs(&mut self, part: Part) {
        if part != Part::Rings {
            return;
        }
        for point in &tcp_programs::POINTS {
            let programs = self.programs.clone();
            let ports = [self.next_port(), self.next_port()];
            self.take_all(|| point.measure(&programs, ports));
        }
    }

    /// Byte streams of one host.
    fn streams(&mut self, hosts: &Result<Hosts, String>) {
        let programs = self.programs.clone();
        let host = hosts.as_ref().map(|hosts| hosts.ends().0);
        let host = host.map_err(Clone::clone);
        for ways in stream_sweep::POINTS.chunks(stream_sweep::WAYS) {
            for point in (0..stream_sweep::turns(ways)).flat_map(|_| ways) {
                let port = self.next_port();
                self.take_all(|| point.measure(host.clone(), &programs, port));
            }
        }
        for size in &streams::SIZES {
            let port = self.next_port();
            self.take_all(|| size.measure_beside_tcp(host.clone(), &programs, port));
            for _ in 0..streams::TURNS {
                self.take_all(|| size.measure_beside_rstream(host.clone(), &programs, port));
            }
        }
    }

    /// Virtual queue pairs of one host.
    fn pool(&mut self, hosts: &Result<Hosts, String>) {
        let (programs, scratch) = (self.programs.clone(), self.scratch.path().to_owned());
        let host = hosts.as_ref().map(|hosts| hosts.ends().0);
        let host = host.map_err(Clone::clone);
        self.take_all(|| pool::measure(host.clone(), &programs, &scratch));
        self.take_all(|| elastic::measure(host.clone(), &programs, &scratch));
        self.take_all(|| store::measure(host.clone(), &programs, &scratch));
        self.take_all(|| store_load::measure(host.clone(), &programs, &scratch));
    }

    /// Byte streams over a long link.
    fn distance(&mut self, hosts: &Result<Hosts, String>) {
        let programs = self.programs.clone();
        let ends = hosts.as_ref().map(Hosts::ends).map_err(Clone::clone);
        let port = self.next_port();
        self.take_all(|| streams::distance(ends.clone(), &programs, port));
        self.end_faults(hosts);
    }

    /// The loss sweep, each point followed by the same run without loss. No queue is leased, so
    /// that all packets pass the daemons and their faults.
    fn loss(&mut self, hosts: &Result<Hosts, String>) {
        let ends = hosts.as_ref().map(Hosts::ends).map_err(Clone::clone);
        if let Ok((server, client)) = ends {
            // The first run touches frames and the link's buffers for the first time, which costs
            // more than any loss.
            let _ = lossy::POINTS[0]
                .lossless()
                .measure(server, client, self.next_port());
        }
        let pairs = lossy::POINTS
            .iter()
            .flat_map(|point| [*point, point.lossless()]);
        for point in pairs {
            let port = self.next_port();
            self.take(point.probe, || {
                let (server, client) = ends.clone()?;
                point.measure(server, client, port)
            });
        }
        self.end_faults(hosts);
    }

    /// The links; no queue is leased here, either.
    fn links(&mut self, hosts: &Result<Hosts, String>) {
        let ends = hosts.as_ref().map(Hosts::ends).map_err(Clone::clone);
        for link in links::LINKS {
            let port = self.next_port();
            self.take(link.probe, || {
                let (server, client) = ends.clone()?;
                link.measure(server, client, port)
            });
        }
        for shared in shares::SHARED {
            let (programs, scratch) = (self.programs.clone(), self.scratch.path().to_owned());
            self.take_all(|| shared.measure(ends.clone(), &programs, &scratch).into());
        }
        self.end_faults(hosts);
    }

    fn end_faults(&self, hosts: &Result<Hosts, String>) {
        if let Some(Err(reason)) = hosts.as_ref().ok().map(|hosts| lossy::end(hosts.ends().0)) {
            eprintln!("  {reason}");
        }
    }

    /// Measurements without traffic.
    fn at_rest(&mut self, part: Part, path: Path, hosts: &Result<Hosts, String>) {
        let programs = self.programs.clone();
        let ends = self.ends(path, hosts);
        match (part, path) {
            (Part::Attach, Path::OneHost) => self.take(probes::DEVINFO_URDMA, || {
                attach::through_urdma(ends.clone()?.0, LeasePolicy::Never)
            }),
            (Part::Attach, Path::Leased) => self.take(probes::DEVINFO_LEASED, || {
                attach::through_urdma(ends.clone()?.0, LeasePolicy::Require)
            }),
            (Part::Idle, Path::OneHost) => {
                self.take_all(|| {
                    let (application, daemon) = match ends.clone() {
                        Ok((host, _)) => idle::application_and_daemon(host, &programs),
                        Err(reason) => (Err(reason.clone()), Err(reason)),
                    };
                    vec![
                        (probes::IDLE_APPLICATION, application),
                        (probes::IDLE_DAEMON, daemon),
                    ]
                });
            }
            (Part::Idle, Path::Forwarded) => {
                self.take(probes::IDLE_DAEMON_PORT, || idle::daemon(ends.clone()?.0));
            }
            (Part::Memory, Path::OneHost) => {
                self.take(probes::RESIDENT_PLAIN, || idle::plain_memory(&programs));
                self.take(probes::RESIDENT_ATTACHED, || {
                    idle::attached_memory(ends.clone()?.0, LeasePolicy::Never, &programs)
                });
                self.take(probes::RESIDENT_QP, || {
                    idle::queue_pair_memory(ends.clone()?.0, &programs)
                });
            }
            (Part::Memory, Path::Leased) => self.take(probes::RESIDENT_LEASED, || {
                idle::attached_memory(ends.clone()?.0, LeasePolicy::Require, &programs)
            }),
            _ => {}
        }
    }
}

fn print(probe: Probe, sample: &Sample) {
    match sample {
        Ok(value) => eprintln!("  {:44} {value:10.2} {}", probe.name, probe.unit.sign()),
        Err(reason) => {
            let line = reason.lines().next().unwrap_or("");
            eprintln!("  {:44} not available: {line}", probe.name);
        }
    }
}

/// Whether `part` has anything to measure over these paths.
fn is_measured_over(part: Part, paths: &[Path]) -> bool {
    match part {
        Part::Threads
        | Part::Processes
        | Part::Connections
        | Part::Cold
        | Part::Valkey
        | Part::Rings
        | Part::Pool => paths.contains(&Path::OneHost),
        Part::Asleep => paths[0] != Path::Leased1500,
        Part::Streams => paths[0] != Path::Leased1500,
        Part::Links => paths.contains(&Path::Forwarded),
        Part::Loss => paths[0] == Path::Leased1500,
        Part::Idle | Part::Memory | Part::Attach => paths[0] != Path::Leased1500,
        _ => WORKLOADS
            .iter()
            .any(|workload| workload.part == part && paths.contains(&workload.path)),
    }
}
