//! What is measured in each round, in which order: what is compared lies close together in time.

use std::path::{Path, PathBuf};

use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::{Instance, Lease, Queues, Scratch, TwoHosts};
use urdma_harness::Failure;

use crate::raw::memif::{self, Mode, Pages, HEADERS_OCTETS};
use crate::rows::probes;
use crate::samples::{Probe, Sample, Samples};
use crate::{attach, cpu, peers, product, raw, simulator};

const MESSAGE_OCTETS: u32 = 64;
const WRITE_OCTETS: u32 = 65_536;
const MTU: u16 = 9000;
/// Two leases a host: its server and its client may both be there.
const LEASE_QUEUES: u16 = 2;
/// 2 MB pages for two hosts with leases.
const HUGEPAGES: u64 = 512;
const FIRST_PORT: u16 = 18_910;

/// One call of `make perf`.
#[derive(Debug)]
pub struct Plan {
    scratch: Scratch,
    /// Where this program's companions are: beside it.
    programs: PathBuf,
    hugepages: Result<Hugepages, Failure>,
    samples: Samples,
    port: u16,
}

impl Plan {
    /// Finds the programs and reserves hugepages; without them leases are reported as not available.
    ///
    /// # Errors
    /// There is no room for temporary files, or this program does not know where it is.
    pub fn new() -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let programs = program.parent().unwrap_or(Path::new(".")).to_path_buf();
        Ok(Self {
            scratch: Scratch::new("perf")?,
            programs,
            hugepages: Hugepages::reserve(HUGEPAGES),
            samples: Samples::default(),
            port: FIRST_PORT,
        })
    }

    /// What was measured so far.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Measures what does not depend on the machine or the moment: the simulations.
    pub fn simulate(&mut self) {
        self.take(probes::SIM_LOSSLESS, simulator::lossless);
        self.take(probes::SIM_LOSSY, simulator::lossy);
        self.take(probes::SIM_GIVEN_UP, simulator::spurious_failures);
    }

    /// Measures everything else once.
    pub fn round(&mut self) {
        self.raw_and_peers();
        self.one_host();
        self.two_hosts();
    }

    fn take(&mut self, probe: Probe, measure: impl FnOnce() -> Sample) {
        let sample = measure();
        match &sample {
            Ok(value) => eprintln!("  {:44} {value:10.2} {}", probe.name, probe.unit.sign()),
            Err(reason) => eprintln!("  {:44} not available: {}", probe.name, first_line(reason)),
        }
        self.samples.add(probe, sample);
    }

    fn next_port(&mut self) -> u16 {
        self.port = if self.port >= FIRST_PORT + 80 {
            FIRST_PORT
        } else {
            self.port + 1
        };
        self.port
    }

    fn raw_and_peers(&mut self) {
        self.take(probes::ARENA, raw::arena::half_round_trip);
        self.take(probes::UCX_LATENCY, || {
            peers::ucx_latency(MESSAGE_OCTETS as usize)
        });
        self.take(probes::TCP_LATENCY, || {
            peers::tcp_latency(MESSAGE_OCTETS as usize)
        });
        self.take(probes::UCX_PUT, || {
            peers::ucx_stream("ucp_put_bw", WRITE_OCTETS as usize)
        });
        self.take(probes::UCX_STREAM, || {
            peers::ucx_stream("tag_bw", WRITE_OCTETS as usize)
        });
        self.take(probes::DEVINFO_PLAIN, attach::plain);
    }

    fn one_host(&mut self) {
        let host =
            Instance::up(self.scratch.path(), "one", "127.0.0.1", "").map_err(|f| f.to_string());
        let with = |measure: &dyn Fn(&Instance) -> Sample| match &host {
            Ok(host) => measure(host),
            Err(reason) => Err(reason.clone()),
        };
        let (first, second) = (self.next_port(), self.next_port());
        self.take(probes::RAW_RING, raw::ring::half_round_trip);
        self.take(probes::SEND_ONE_HOST, || {
            with(&|h| product::latency("ib_send_lat", MESSAGE_OCTETS, first, (h, h), Lease::Never))
        });
        self.take(probes::TCP_STREAM, || {
            peers::tcp_stream(WRITE_OCTETS as usize)
        });
        self.take(probes::WRITE_ONE_HOST, || {
            with(&|h| product::bandwidth("ib_write_bw", WRITE_OCTETS, second, (h, h), Lease::Never))
        });
        self.take(probes::RAW_STREAM, raw::ring::two_copy_stream);
        self.take(probes::DEVINFO_URDMA, || {
            with(&|h| attach::through_urdma(h, Lease::Never))
        });
        let (application, daemon) = match &host {
            Ok(host) => cpu::application_and_daemon(host, &self.programs),
            Err(reason) => (Err(reason.clone()), Err(reason.clone())),
        };
        self.take(probes::IDLE_APPLICATION, || application);
        self.take(probes::IDLE_DAEMON, || daemon);
        if let Ok(host) = host {
            complain(host.down());
        }
    }

    fn raw_memif(&mut self, probe: Probe, mode: Mode, payload_octets: usize) {
        let socket = self.scratch.path().join("raw.sock");
        let programs = self.programs.clone();
        let pages = match self.hugepages {
            Ok(_) => Pages::Huge,
            Err(_) => Pages::Plain,
        };
        self.take(probe, || {
            memif::measure(&programs, &socket, mode, payload_octets, pages)
        });
    }

    fn two_hosts(&mut self) {
        self.raw_memif(
            probes::MEMIF_LATENCY,
            Mode::Latency,
            MESSAGE_OCTETS as usize,
        );
        // A frame as long as ours: the IP packet fills the MTU.
        self.raw_memif(
            probes::MEMIF_STREAM,
            Mode::Stream,
            usize::from(MTU) + 14 - HEADERS_OCTETS,
        );
        let queues = match self.hugepages {
            Ok(_) => Queues::Leased(LEASE_QUEUES),
            Err(_) => Queues::Forwarded,
        };
        let no_lease = self.hugepages.as_ref().err().map(ToString::to_string);
        let hosts = TwoHosts::up(self.scratch.path(), queues, MTU).map_err(|f| f.to_string());
        let paths = [
            (Lease::Require, probes::SEND_LEASED, probes::WRITE_LEASED),
            (
                Lease::Never,
                probes::SEND_FORWARDED,
                probes::WRITE_FORWARDED,
            ),
        ];
        for (lease, send, write) in paths {
            let ends = match (&hosts, &no_lease, lease) {
                (Err(reason), _, _) | (_, Some(reason), Lease::Require) => Err(reason.clone()),
                (Ok(hosts), _, _) => Ok((&hosts.a, &hosts.b)),
            };
            let (first, second) = (self.next_port(), self.next_port());
            self.take(send, || {
                product::latency("ib_send_lat", MESSAGE_OCTETS, first, ends.clone()?, lease)
            });
            self.take(write, || {
                product::bandwidth("ib_write_bw", WRITE_OCTETS, second, ends.clone()?, lease)
            });
            if lease == Lease::Require {
                self.take(probes::DEVINFO_LEASED, || {
                    attach::through_urdma(ends?.0, lease)
                });
            }
        }
        self.take(probes::IDLE_DAEMON_PORT, || {
            cpu::daemon(&hosts.as_ref().map_err(Clone::clone)?.a)
        });
        if let Ok(hosts) = hosts {
            complain(hosts.down());
        }
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

fn complain(outcome: Result<(), Failure>) {
    if let Err(failure) = outcome {
        eprintln!("  {failure}");
    }
}
