//! Debian's servers and the programs that load them, with TCP connections over rings, beside the
//! same over TCP: nginx and wrk, memcached and memcaslap, PostgreSQL and pgbench, iperf3.
//!
//! The servers of both run at the same time, and clients use them in turn. A row of connections
//! over rings has a value only if rings have carried half of the octets or more, and one of
//! connections that stay with TCP only if they have carried none.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FilePath;
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, Place, Scratch};
use urdma_harness::over::Over;
use urdma_harness::pair::serve;
use urdma_harness::process::{Ended, Process};
use urdma_harness::servers::{self, Connections, Load, PostgreSql};
use urdma_harness::Failure;

use crate::asleep::Load as Others;
use crate::goals;
use crate::samples::{text, Probe, Sample, Unit};
use crate::spec::{pair, Goal, Pair, Spec};

/// How often the clients of each server run in a round.
const RUNS: usize = 5;
/// The same where the goal is a few hundredths, by which runs of the same differ.
const RUNS_OF_TCP: usize = 16;
/// Seconds of a run.
const SECONDS: u32 = 1;
/// The file for which wrk asks.
const FILE: &str = "file";
/// Its length.
const FILE_OCTETS: usize = 398;
/// Octets that a client of PostgreSQL sends and receives for a transaction, at least.
const SELECT_OCTETS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(60);
/// How often the octets of rings are read until they are enough; connections may be ending.
const LOOKS: u32 = 20;
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Programs {
    Nginx(Connections),
    Memcached,
    PostgreSql,
    Iperf3,
}

/// What the octets of the programs go over that are compared with TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Rings.
    Both,
    /// TCP, since only the server has the library.
    Server,
    /// TCP, since all connections are excluded.
    Excluded,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    programs: Programs,
    ends: Ends,
    others: Others,
    value: Pair,
}

/// Points: parts of the name; unit, programs, ends, other programs.
macro_rules! points {
    ($($($name:literal),+: $unit:ident, $programs:expr, $ends:ident, $others:ident;)*) => {
        [$(Point {
            programs: $programs,
            ends: Ends::$ends,
            others: Others::$others,
            value: pair!($unit, "TCP", $($name),+),
        }),*]
    };
}

const KEPT: Programs = Programs::Nginx(Connections::Kept);
const SHORT: Programs = Programs::Nginx(Connections::Short);

/// All points.
pub const POINTS: [Point; 11] = points! {
    "nginx and wrk over rings": ThousandsPerSecond, KEPT, Both, Quiet;
    "nginx and wrk over rings", ", busy": ThousandsPerSecond, KEPT, Both, Busy;
    "nginx and wrk, only nginx with --sockets": ThousandsPerSecond, KEPT, Server, Quiet;
    "nginx and wrk, excluded from rings": ThousandsPerSecond, KEPT, Excluded, Quiet;
    "nginx and wrk, short connections": ThousandsPerSecond, SHORT, Both, Quiet;
    "memcached over rings": ThousandsPerSecond, Programs::Memcached, Both, Quiet;
    "memcached over rings", ", busy": ThousandsPerSecond, Programs::Memcached, Both, Busy;
    "pgbench -S over rings": ThousandsPerSecond, Programs::PostgreSql, Both, Quiet;
    "pgbench -S over rings", ", busy": ThousandsPerSecond, Programs::PostgreSql, Both, Busy;
    "iperf3 over rings": GigabytesPerSecond, Programs::Iperf3, Both, Quiet;
    "iperf3 over rings", ", busy": GigabytesPerSecond, Programs::Iperf3, Both, Busy;
};

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What `urdma status` says of octets that rings have carried, and of sockets without rings.
fn status(host: &Instance) -> Result<(u64, String), Failure> {
    let status = host.status()?;
    let sockets = &status["sockets"];
    let octets = sockets["ring_octets"].as_u64();
    let octets = octets.ok_or_else(|| Failure::new("status has no ring_octets"))?;
    let reasons = sockets["reasons"].as_object().into_iter().flatten();
    let counted = reasons.filter(|(_, count)| count.as_u64() != Some(0));
    let counted: Vec<String> = counted.map(|(why, n)| format!("{why} {n}")).collect();
    Ok((octets, counted.join(", ")))
}

impl Point {
    /// Octets of payload that rings have to carry for a load.
    const fn octets(&self, load: &Load) -> u64 {
        let each = match (self.ends, self.programs) {
            (Ends::Server | Ends::Excluded, _) | (_, SHORT) => 0,
            (_, Programs::Nginx(_)) => FILE_OCTETS as u64,
            (_, Programs::Memcached) => servers::VALUE_OCTETS,
            (_, Programs::PostgreSql) => SELECT_OCTETS,
            (_, Programs::Iperf3) => 1,
        };
        load.count * each
    }

    const fn runs(&self) -> usize {
        match (self.ends, self.programs) {
            (Ends::Server | Ends::Excluded, _) | (_, SHORT) => RUNS_OF_TCP,
            _ => RUNS,
        }
    }

    const fn goal(&self) -> Goal {
        match (self.ends, self.others, self.programs) {
            (Ends::Server | Ends::Excluded, ..) => goals::NOT_OVER_RINGS,
            (_, Others::Busy, _) => goals::RINGS_BUSY_RATE,
            (.., SHORT) => goals::SHORT_CONNECTIONS,
            (.., KEPT) => goals::NGINX,
            (.., Programs::Memcached) => goals::MEMCACHED,
            (.., Programs::PostgreSql) => goals::PGBENCH,
            (.., Programs::Iperf3) => goals::IPERF3,
        }
    }

    /// What the octets of server (0) and client (1) go over.
    const fn over<'a>(&self, host: &'a Instance, end: usize) -> Over<'a> {
        match (self.ends, end) {
            (Ends::Both, _) | (Ends::Server, 0) => Over::Rings(host),
            (Ends::Excluded, _) => Over::Excluded(host),
            _ => Over::Tcp,
        }
    }

    /// Runs servers, which use these ports, and clients; gives the rates of both.
    pub fn measure(&self, programs: &FilePath, ports: [u16; 2]) -> Vec<(Probe, Sample)> {
        let per_unit = match self.value.ours.unit {
            Unit::GigabytesPerSecond => 1e9,
            _ => 1e3,
        };
        match self.rates(programs, ports) {
            Ok((ours, tcp)) => vec![
                (self.value.ours, ours.map(|rate| rate / per_unit)),
                (self.value.peer, Ok(tcp / per_unit)),
            ],
            Err(failure) => vec![
                (self.value.ours, Err(text(failure.clone()))),
                (self.value.peer, Err(text(failure))),
            ],
        }
    }

    /// Rates over what is compared with TCP, or why that has none, and over TCP.
    fn rates(&self, programs: &FilePath, ports: [u16; 2]) -> Result<(Sample, f64), Failure> {
        let bed = Bed::new(self.programs)?;
        let over = |end: usize| [self.over(&bed.host, end), Over::Tcp];
        let mut servers = Vec::new();
        for (over, port) in over(0).into_iter().zip(ports) {
            servers.push(bed.serve(over, port)?);
        }
        let mut loads: [Vec<Load>; 2] = Default::default();
        let (before, _) = status(&bed.host)?;
        {
            let _others = self.others.start(programs)?;
            for run in 0..self.runs() {
                for place in [run % 2, 1 - run % 2] {
                    loads[place].push(bed.load(over(1)[place], ports[place])?);
                }
            }
        }
        let carried = self.check_carried(&bed.host, before, &loads[0]);
        for server in servers {
            bed.end(server)?;
        }
        let [ours, tcp] = loads.map(|loads| median(loads.iter().map(|load| load.rate).collect()));
        Ok((carried.map(|()| ours).map_err(text), tcp))
    }

    /// Rings have carried what they had to since they had carried `before` octets.
    fn check_carried(&self, host: &Instance, before: u64, loads: &[Load]) -> Result<(), Failure> {
        let least = loads.iter().map(|load| self.octets(load)).sum::<u64>() / 2;
        for _ in 0..LOOKS {
            if least > 0 && status(host)?.0 - before >= least {
                return Ok(());
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        let (now, why) = status(host)?;
        match now - before {
            0 if least == 0 => Ok(()),
            carried => Err(Failure::new(format!(
                "rings have carried {carried} octets, not {least}; sockets without: {why}"
            ))),
        }
    }
}

/// The instance and the files of the programs.
struct Bed {
    programs: Programs,
    host: Instance,
    /// PostgreSQL runs as a user of its own.
    postgresql: Option<PostgreSql>,
    scratch: Scratch,
}

impl Bed {
    fn new(programs: Programs) -> Result<Self, Failure> {
        let scratch = Scratch::new("servers")?;
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
        let postgresql = match programs {
            Programs::PostgreSql => Some(PostgreSql::installed()?),
            _ => None,
        };
        let mut place = Place::default();
        if let Some(PostgreSql { user, .. }) = &postgresql {
            place.user = Some(user.uid.as_raw());
            std::os::unix::fs::chown(
                scratch.path(),
                Some(user.uid.as_raw()),
                Some(user.gid.as_raw()),
            )?;
        }
        let access = "access = \"everyone\"\n";
        let addresses = ["127.0.0.1"];
        let host = Instance::up_at_place(place, scratch.path(), "servers", &addresses, access)?;
        fs::write(scratch.path().join(FILE), "x".repeat(FILE_OCTETS))?;
        Ok(Self {
            programs,
            host,
            postgresql,
            scratch,
        })
    }

    /// PostgreSQL, and its arguments as those of its user if no instance starts it.
    fn as_user(&self, over: Over<'_>, argv: Vec<String>) -> Vec<String> {
        match (&self.postgresql, over) {
            (Some(postgresql), Over::Tcp) => postgresql.as_user(&argv),
            _ => argv,
        }
    }

    fn run(&self, over: Over<'_>, argv: Vec<String>) -> Result<Ended, Failure> {
        Process::run(&mut over.command(&self.as_user(over, argv))?, LIMIT)
    }

    /// Starts a server.
    fn serve(&self, over: Over<'_>, port: u16) -> Result<Process, Failure> {
        let dir = self.scratch.path();
        let data = dir.join(format!("data-{port}"));
        let argv = match (self.programs, &self.postgresql) {
            (_, Some(postgresql)) => {
                succeed(&self.run(Over::Tcp, postgresql.initdb(&data))?)?;
                postgresql.server(&data, port)
            }
            (Programs::Nginx(_), _) => servers::nginx(dir, dir, port)?,
            (Programs::Iperf3, _) => servers::iperf3_server(port),
            (Programs::Memcached | Programs::PostgreSql, _) => servers::memcached(port),
        };
        let mut command = over.command(&self.as_user(over, argv))?;
        let mut server = serve(&mut command, port)?;
        if let Some(postgresql) = &self.postgresql {
            server.wait_for_text("ready to accept", LIMIT)?;
            let filling = postgresql.client("pgbench", port, &["-i", "-q"]);
            succeed(&self.run(Over::Tcp, filling)?)?;
        }
        Ok(server)
    }

    /// Runs the client of a server.
    fn load(&self, over: Over<'_>, port: u16) -> Result<Load, Failure> {
        let seconds = SECONDS.to_string();
        match (self.programs, &self.postgresql) {
            (_, Some(postgresql)) => {
                let arguments = ["-S", "-n", "-c4", "-j2", "-T", &seconds];
                let argv = postgresql.client("pgbench", port, &arguments);
                servers::read_pgbench(&self.run(over, argv)?)
            }
            (Programs::Nginx(connections), _) => {
                let argv = servers::wrk(port, FILE, SECONDS, connections);
                servers::read_wrk(&self.run(over, argv)?)
            }
            (Programs::Iperf3, _) => {
                let argv = servers::iperf3_client(port, SECONDS);
                servers::read_iperf3(&self.run(over, argv)?)
            }
            (Programs::Memcached | Programs::PostgreSql, _) => {
                let argv = servers::memcaslap(port, SECONDS);
                servers::read_memcaslap(&self.run(over, argv)?)
            }
        }
    }

    /// Ends a server.
    fn end(&self, server: Process) -> Result<(), Failure> {
        // PostgreSQL waits for its clients otherwise.
        server.signal(match self.programs {
            Programs::PostgreSql => Signal::SIGINT,
            _ => Signal::SIGTERM,
        })?;
        server.wait(LIMIT).map(drop)
    }
}

fn succeed(ended: &Ended) -> Result<(), Failure> {
    match ended.succeeded() {
        true => Ok(()),
        false => Err(Failure::new(ended.describe())),
    }
}

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    POINTS.iter().map(|point| point.value.spec(point.goal()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_their_goals() {
        let rows: Vec<Spec> = specs().collect();
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        let goal = |name| rows.iter().find(|row| row.name == name).unwrap().goal;
        assert_eq!(goal("nginx and wrk over rings / TCP"), Goal::AtLeast(1.8));
        let busy = "memcached over rings, busy / TCP";
        assert_eq!(goal(busy), Goal::AtLeast(1.0));
        let excluded = "nginx and wrk, excluded from rings / TCP";
        assert_eq!(goal(excluded), Goal::AtLeast(0.98));
        let short = "nginx and wrk, short connections / TCP";
        assert_eq!(goal(short), Goal::AtLeast(0.97));
    }
}
