//! What is compared with what, and the goals: one table, evaluated on the samples.

use serde::Serialize;

use crate::samples::{Probe, Samples, Unit};

const fn probe(name: &'static str, unit: Unit) -> Probe {
    Probe { name, unit }
}

/// The probes.
pub mod probes {
    use super::{probe, Probe, Unit};

    /// Half the round trip of 64 octets between two processes on a ring in shared memory, nothing else.
    pub const RAW_RING: Probe = probe(
        "raw shared-memory ring, half round trip",
        Unit::Microseconds,
    );
    /// The same through the arena's endpoints.
    pub const ARENA: Probe = probe("arena frame, half round trip", Unit::Microseconds);
    /// 64 KB copied into shared memory and out again, two processes.
    pub const RAW_STREAM: Probe = probe("raw two-copy stream", Unit::GigabytesPerSecond);
    /// Half the round trip of a frame with 64 octets of payload over net_memif.
    pub const MEMIF_LATENCY: Probe = probe("raw net_memif, half round trip", Unit::Microseconds);
    /// Frames of MTU 9000 one way over net_memif.
    pub const MEMIF_STREAM: Probe =
        probe("raw net_memif stream, MTU 9000", Unit::GigabytesPerSecond);
    /// qperf tcp_lat, 64 octets, loopback.
    pub const TCP_LATENCY: Probe = probe("qperf tcp_lat", Unit::Microseconds);
    /// qperf tcp_bw, 64 KB, loopback.
    pub const TCP_STREAM: Probe = probe("qperf tcp_bw", Unit::GigabytesPerSecond);
    /// UCX tag_lat, 64 octets, shared memory.
    pub const UCX_LATENCY: Probe = probe("ucx tag_lat", Unit::Microseconds);
    /// UCX put_bw, 64 KB, shared memory: one copy.
    pub const UCX_PUT: Probe = probe("ucx put_bw", Unit::GigabytesPerSecond);
    /// UCX tag_bw, 64 KB, shared memory.
    pub const UCX_STREAM: Probe = probe("ucx tag_bw", Unit::GigabytesPerSecond);
    /// ib_send_lat, 64 octets, one host.
    pub const SEND_ONE_HOST: Probe = probe("ib_send_lat one host", Unit::Microseconds);
    /// ib_send_lat, 64 octets, two hosts, through the daemons.
    pub const SEND_FORWARDED: Probe = probe("ib_send_lat forwarded", Unit::Microseconds);
    /// ib_send_lat, 64 octets, two hosts, leased queues.
    pub const SEND_LEASED: Probe = probe("ib_send_lat leased", Unit::Microseconds);
    /// ib_write_bw, 64 KB, one host.
    pub const WRITE_ONE_HOST: Probe = probe("ib_write_bw one host", Unit::GigabytesPerSecond);
    /// ib_write_bw, 64 KB, two hosts, through the daemons.
    pub const WRITE_FORWARDED: Probe = probe("ib_write_bw forwarded", Unit::GigabytesPerSecond);
    /// ib_write_bw, 64 KB, two hosts, leased queues.
    pub const WRITE_LEASED: Probe = probe("ib_write_bw leased", Unit::GigabytesPerSecond);
    /// A process that waits on a completion channel.
    pub const IDLE_APPLICATION: Probe = probe("idle application", Unit::PercentOfCore);
    /// urdmad of that process, no port.
    pub const IDLE_DAEMON: Probe = probe("idle urdmad", Unit::PercentOfCore);
    /// urdmad with a memif port and no traffic.
    pub const IDLE_DAEMON_PORT: Probe = probe("idle urdmad with a memif port", Unit::PercentOfCore);
    /// Simulator: 64 KB writes over 10 Gb/s and 100 us, no loss.
    pub const SIM_LOSSLESS: Probe = probe("simulated goodput, no loss", Unit::GigabytesPerSecond);
    /// The same with 1 % loss.
    pub const SIM_LOSSY: Probe = probe("simulated goodput, 1 % loss", Unit::GigabytesPerSecond);
    /// Simulator: runs of 10,000 with up to 5 % loss and reordering in which a living peer was given up.
    pub const SIM_GIVEN_UP: Probe = probe("simulated spurious RETRY_EXC", Unit::Runs);
    /// ibv_devinfo without urdma.
    pub const DEVINFO_PLAIN: Probe = probe("ibv_devinfo plain", Unit::Milliseconds);
    /// ibv_devinfo through urdma, no lease.
    pub const DEVINFO_URDMA: Probe = probe("ibv_devinfo urdma", Unit::Milliseconds);
    /// ibv_devinfo through urdma with a lease.
    pub const DEVINFO_LEASED: Probe = probe("ibv_devinfo urdma leased", Unit::Milliseconds);
}

/// How a row's value comes from its probes.
#[derive(Clone, Copy, Debug)]
enum Compare {
    /// Ours divided by a limit or peer.
    With(Probe),
    /// Ours alone.
    Alone,
    /// Ours minus the same without us.
    Above(Probe),
}

/// What is good.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Goal {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// No goal: for information.
    None,
}

impl Goal {
    fn met(self, value: f64) -> Option<bool> {
        match self {
            Self::AtMost(limit) => Some(value <= limit),
            Self::AtLeast(limit) => Some(value >= limit),
            Self::None => None,
        }
    }

    /// "<= 2.00", ">= 0.60" or nothing.
    pub fn sign(self) -> String {
        match self {
            Self::AtMost(limit) => format!("<= {limit}"),
            Self::AtLeast(limit) => format!(">= {limit}"),
            Self::None => String::new(),
        }
    }
}

struct Spec {
    name: &'static str,
    ours: Probe,
    compare: Compare,
    goal: Goal,
}

const fn row(name: &'static str, ours: Probe, compare: Compare, goal: Goal) -> Spec {
    Spec {
        name,
        ours,
        compare,
        goal,
    }
}

const SPECS: &[Spec] = {
    use probes::*;
    use Compare::{Above, Alone, With};
    use Goal::{AtLeast, AtMost};
    &[
        row(
            "64 B send, one host / raw ring",
            SEND_ONE_HOST,
            With(RAW_RING),
            AtMost(2.0),
        ),
        row(
            "64 B send, one host / TCP",
            SEND_ONE_HOST,
            With(TCP_LATENCY),
            Goal::None,
        ),
        row(
            "64 B send, one host / UCX",
            SEND_ONE_HOST,
            With(UCX_LATENCY),
            Goal::None,
        ),
        row(
            "64 B arena frame / raw ring",
            ARENA,
            With(RAW_RING),
            Goal::None,
        ),
        row(
            "64 B send, two hosts leased / raw memif",
            SEND_LEASED,
            With(MEMIF_LATENCY),
            AtMost(2.0),
        ),
        row(
            "64 B send, two hosts leased / TCP",
            SEND_LEASED,
            With(TCP_LATENCY),
            Goal::None,
        ),
        row(
            "64 B send, two hosts forwarded / TCP",
            SEND_FORWARDED,
            With(TCP_LATENCY),
            Goal::None,
        ),
        row(
            "64 KB write, one host / TCP",
            WRITE_ONE_HOST,
            With(TCP_STREAM),
            AtLeast(2.0),
        ),
        row(
            "64 KB write, one host / raw two copies",
            WRITE_ONE_HOST,
            With(RAW_STREAM),
            Goal::None,
        ),
        row(
            "64 KB write, one host / UCX put, one copy",
            WRITE_ONE_HOST,
            With(UCX_PUT),
            Goal::None,
        ),
        row(
            "64 KB write, one host / UCX tag",
            WRITE_ONE_HOST,
            With(UCX_STREAM),
            Goal::None,
        ),
        row(
            "64 KB write, two hosts leased / raw memif",
            WRITE_LEASED,
            With(MEMIF_STREAM),
            AtLeast(0.6),
        ),
        row(
            "64 KB write, two hosts forwarded / raw memif",
            WRITE_FORWARDED,
            With(MEMIF_STREAM),
            Goal::None,
        ),
        row(
            "CPU, application on a completion channel",
            IDLE_APPLICATION,
            Alone,
            AtMost(1.0),
        ),
        row(
            "CPU, urdmad without a port",
            IDLE_DAEMON,
            Alone,
            AtMost(1.0),
        ),
        row(
            "CPU, urdmad with a memif port",
            IDLE_DAEMON_PORT,
            Alone,
            AtMost(1.0),
        ),
        row(
            "attach without a lease",
            DEVINFO_URDMA,
            Above(DEVINFO_PLAIN),
            AtMost(10.0),
        ),
        row(
            "attach with a lease",
            DEVINFO_LEASED,
            Above(DEVINFO_PLAIN),
            AtMost(40.0),
        ),
        row(
            "goodput at 1 % loss / lossless, simulated",
            SIM_LOSSY,
            With(SIM_LOSSLESS),
            AtLeast(0.7),
        ),
        row(
            "spurious RETRY_EXC in 10,000 seeds, simulated",
            SIM_GIVEN_UP,
            Alone,
            AtMost(0.0),
        ),
    ]
};

/// One comparison, evaluated.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is compared.
    pub name: &'static str,
    /// Our probe.
    pub ours_name: &'static str,
    /// Our median.
    pub ours: Result<f64, String>,
    /// Unit of both values.
    pub unit: &'static str,
    /// The limit's or peer's probe.
    pub other_name: Option<&'static str>,
    /// Its median.
    pub other: Option<Result<f64, String>>,
    /// What the goal is about: a ratio, a difference, or our value.
    pub result: Option<f64>,
    /// Whether the result is a ratio.
    pub is_ratio: bool,
    /// The goal.
    pub goal: Goal,
    /// Whether it is met; None without a goal or a result.
    pub met: Option<bool>,
}

impl Row {
    /// Why there is no result, if there is none.
    pub fn why_not(&self) -> Option<&str> {
        let other = self.other.as_ref().and_then(|other| other.as_ref().err());
        self.ours.as_ref().err().or(other).map(String::as_str)
    }
}

/// All rows.
pub fn evaluate(samples: &Samples) -> Vec<Row> {
    SPECS
        .iter()
        .map(|spec| evaluate_one(spec, samples))
        .collect()
}

fn evaluate_one(spec: &Spec, samples: &Samples) -> Row {
    let ours = samples.median(spec.ours);
    let other_probe = match spec.compare {
        Compare::With(other) | Compare::Above(other) => Some(other),
        Compare::Alone => None,
    };
    let other = other_probe.map(|other| samples.median(other));
    let result = match (&ours, &other, spec.compare) {
        (Ok(ours), Some(Ok(other)), Compare::With(_)) => Some(ours / other),
        (Ok(ours), Some(Ok(other)), Compare::Above(_)) => Some(ours - other),
        (Ok(ours), _, Compare::Alone) => Some(*ours),
        _ => None,
    };
    Row {
        name: spec.name,
        ours_name: spec.ours.name,
        ours,
        unit: spec.ours.unit.sign(),
        other_name: other_probe.map(|other| other.name),
        other,
        result,
        is_ratio: matches!(spec.compare, Compare::With(_)),
        goal: spec.goal,
        met: result.and_then(|result| spec.goal.met(result)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn find<'a>(rows: &'a [Row], name: &str) -> &'a Row {
        rows.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn row_with_both_values_has_ratio_and_verdict() {
        let mut samples = Samples::default();
        samples.add(probes::SEND_ONE_HOST, Ok(0.6));
        samples.add(probes::RAW_RING, Ok(0.2));
        samples.add(probes::TCP_LATENCY, Ok(6.0));
        let rows = evaluate(&samples);
        let row = find(&rows, "64 B send, one host / raw ring");
        assert!((row.result.unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(row.met, Some(false));
        let row = find(&rows, "64 B send, one host / TCP");
        assert_eq!((row.met, row.why_not()), (None, None));
    }

    #[test]
    fn row_of_a_missing_part_says_why() {
        let mut samples = Samples::default();
        samples.add(probes::DEVINFO_PLAIN, Ok(3.0));
        samples.add(probes::DEVINFO_URDMA, Err("no urdma".into()));
        samples.add(probes::DEVINFO_LEASED, Ok(13.0));
        let rows = evaluate(&samples);
        let row = find(&rows, "attach without a lease");
        assert_eq!(
            (row.result, row.met, row.why_not()),
            (None, None, Some("no urdma"))
        );
        let row = find(&rows, "attach with a lease");
        assert_eq!((row.result, row.met), (Some(10.0), Some(true)));
    }
}
