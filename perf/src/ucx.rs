//! `ucx_perftest` with both ends asleep, over a transport of UCX on urdma's device and over UCX's
//! own TCP.

use std::process::Command;

use urdma_harness::instance::{Instance, LeasePolicy};
use urdma_harness::Failure;

use crate::goals;
use crate::peers::ucx_between;
use crate::samples::{Probe, Sample, Unit};
use crate::spec::{pair, Pair, Spec};

/// Messages each way.
const MESSAGES: &str = "30000";
/// The column of the typical latency.
const TYPICAL: usize = 1;
/// What UCX uses over TCP.
const TCP: [&str; 2] = ["UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"];
const DEVICE: &str = "UCX_NET_DEVICES=urdma0:1";

/// A transport and its probes.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    transports: &'static str,
    latency: Pair,
}

/// All points.
pub const POINTS: [Point; 2] = [
    Point {
        transports: "UCX_TLS=rc_verbs,ud_verbs:aux,self",
        latency: pair!(Microseconds, "TCP", "UCX, 8 B, both ends sleep, rc_verbs"),
    },
    Point {
        transports: "UCX_TLS=ud_verbs,self",
        latency: pair!(Microseconds, "TCP", "UCX, 8 B, both ends sleep, ud_verbs"),
    },
];

impl Point {
    /// Measures over urdma, then over TCP; gives each probe with its value.
    pub fn measure(
        &self,
        host: Result<&Instance, String>,
        ports: [u16; 2],
    ) -> Vec<(Probe, Sample)> {
        let ours = host.and_then(|host| {
            latency_us([self.transports, DEVICE], ports[0], |argv| {
                host.run(LeasePolicy::Never, argv)
            })
        });
        let tcp = latency_us(TCP, ports[1], |argv| {
            let mut command = Command::new(&argv[0]);
            command.args(&argv[1..]);
            Ok(command)
        });
        vec![(self.latency.ours, ours), (self.latency.peer, tcp)]
    }
}

/// The typical time of a message one way, with programs that `start` makes.
fn latency_us(
    variables: [&str; 2],
    port: u16,
    start: impl Fn(&[String]) -> Result<Command, Failure>,
) -> Sample {
    let port = port.to_string();
    let command = |arguments: &[&str]| {
        let program = ["ucx_perftest", "-p", &port, "-E", "sleep"];
        let words = ["env"].iter().chain(&variables).chain(&program);
        let argv: Vec<String> = words.chain(arguments).map(ToString::to_string).collect();
        start(&argv)
    };
    ucx_between(command, ["tag_lat", "8", MESSAGES], TYPICAL)
}

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    POINTS.iter().map(|point| point.latency.spec(goals::ASLEEP))
}
