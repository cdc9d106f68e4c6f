//! A new process that makes one connection, from exec to exit: Debian's rdma_client, and a C
//! program that exchanges the same messages over TCP. Each run has a server of its own, which
//! listens already. The libraries and the program over TCP are copies, as an installation has them.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::resource::{getrusage, Usage, UsageWho};
use nix::sys::time::TimeValLike;
use urdma_harness::instance::{Copies, Instance, LeasePolicy};
use urdma_harness::pair::is_ready;
use urdma_harness::process::{wait_until, Process};
use urdma_harness::programs::{rdma_client, Job};
use urdma_harness::Failure;

use crate::compile::compile;
use crate::goals;
use crate::samples::{Probe, Sample, Series, Unit};
use crate::spec::{pair, Compare, Goal, Pair, Spec};

/// Runs of each kind, in turn, whose median counts.
const RUNS: usize = 25;
const LIMIT: Duration = Duration::from_secs(20);
/// What the server over TCP prints when it listens.
const LISTENING: &str = "listening";
/// The variables that `urdma run` sets, by their beginnings.
const VARIABLES: [&str; 4] = ["LD_PRELOAD", "IBV_DRIVERS", "SYSFS_PATH", "URDMA_"];

/// What is measured of a run: its time, the processor's, and page faults.
const FIGURES: [Pair; 3] = [
    pair!(Microseconds, "TCP", "cold client"),
    pair!(Microseconds, "TCP", "CPU, ", "cold client"),
    pair!(Faults, "TCP", "page faults, ", "cold client"),
];
/// The time of the same program where there is no device: it is linked, and fails.
const WITHOUT_DEVICE: Probe = Probe {
    name: "cold client, no device",
    unit: Unit::Microseconds,
};

/// Rows of the report.
pub(crate) fn specs() -> impl Iterator<Item = Spec> {
    let goals = [goals::COLD, Goal::None, Goal::None];
    let figures = FIGURES.into_iter().zip(goals);
    let without = Spec::new(
        "cold client, no device / TCP",
        WITHOUT_DEVICE,
        Compare::With(FIGURES[0].peer),
        Goal::None,
    );
    figures.map(|(pair, goal)| pair.spec(goal)).chain([without])
}

/// The children of this process that have ended: processor time in us, and page faults.
fn children() -> Result<[f64; 2], Failure> {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_err(|error| Failure::new(format!("getrusage: {error}")))?;
    let us = |used: &Usage| used.user_time() + used.system_time();
    Ok([
        us(&used).num_microseconds() as f64,
        used.minor_page_faults() as f64,
    ])
}

/// Runs a program to its end; fails if the program does and `may_fail` is not set. No other child
/// of this process ends meanwhile.
fn timed(command: &mut Command, may_fail: bool) -> Result<[f64; 3], Failure> {
    let before = children()?;
    let (mut output, end) = std::io::pipe()?;
    command.stdin(Stdio::null());
    command.stdout(end.try_clone()?).stderr(end);
    let start = Instant::now();
    let mut child = command.spawn()?;
    // The command has an end of the pipe, too.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut said = String::new();
    let limit = PollTimeout::try_from(LIMIT).unwrap_or(PollTimeout::MAX);
    loop {
        let mut ends = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        let mut octets = [0; 4096];
        if !poll(&mut ends, limit).is_ok_and(|count| count > 0) {
            child.kill()?;
        }
        match output.read(&mut octets)? {
            0 => break,
            count => said += &String::from_utf8_lossy(&octets[..count]),
        }
    }
    let status = child.wait()?;
    let us = start.elapsed().as_secs_f64() * 1e6;
    if !status.success() && !may_fail {
        return Err(Failure::new(format!("client: {status}: {}", said.trim())));
    }
    let after = children()?;
    Ok([us, after[0] - before[0], after[1] - before[1]])
}

/// A client of the instance as `urdma run` starts it, without the time of `urdma` itself.
fn client(host: &Instance, copies: &Copies, argv: &[String]) -> Result<Command, Failure> {
    let mut env = host.run_with(copies, LeasePolicy::Never, &["env"]);
    let ended = Process::run(&mut env, LIMIT)?;
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]);
    let variables = ended.output.lines().filter_map(|line| line.split_once('='));
    let is_of_urdma = |name: &str| VARIABLES.iter().any(|start| name.starts_with(start));
    command.envs(variables.filter(|(name, _)| is_of_urdma(name)));
    Ok(command)
}

/// Waits for the end of a server, which has served its one client.
fn end(server: Process) -> Result<(), Failure> {
    let ended = server.wait(LIMIT)?;
    match ended.succeeded() {
        true => Ok(()),
        false => Err(Failure::new(format!("server {}", ended.describe()))),
    }
}

fn over_urdma(host: &Instance, copies: &Copies, job: &Job) -> Result<[f64; 3], Failure> {
    let mut server = host.run_with(copies, LeasePolicy::Never, &job.server);
    let mut server = Process::start(&mut server)?;
    let is_listening = || !server.is_running() || is_ready(job.ready, host);
    wait_until("listening", LIMIT, is_listening)?;
    let taken = timed(&mut client(host, copies, &job.client)?, false)?;
    end(server)?;
    Ok(taken)
}

fn over_tcp(program: &Path, address: &str, port: u16) -> Result<[f64; 3], Failure> {
    let ends = ["server", "client"].map(|role| {
        let mut command = Command::new(program);
        command.args([role, address, &port.to_string()]);
        command
    });
    let [mut server, mut client] = ends;
    let mut server = Process::start(&mut server)?;
    server.wait_for_text(LISTENING, LIMIT)?;
    let taken = timed(&mut client, false)?;
    end(server)?;
    Ok(taken)
}

/// All runs: over urdma, over TCP, and without a device.
fn runs(host: &Instance, scratch: &Path, port: u16) -> Result<[Vec<[f64; 3]>; 3], Failure> {
    let copies = Copies::of_urdma()?;
    let program = compile(scratch, "exchange", include_str!("cold/exchange.c"))?;
    let program = copies.of(&program)?;
    let job = rdma_client(port, host.address());
    let mut all: [Vec<_>; 3] = Default::default();
    for _ in 0..RUNS {
        all[0].push(over_urdma(host, &copies, &job)?);
        all[1].push(over_tcp(&program, host.address(), port)?);
        let mut command = Command::new(&job.client[0]);
        all[2].push(timed(command.args(&job.client[1..]), true)?);
    }
    Ok(all)
}

/// Measures on one host.
pub fn measure(host: Result<&Instance, String>, scratch: &Path, port: u16) -> Vec<(Probe, Sample)> {
    let runs = host.and_then(|host| {
        let runs = runs(host, scratch, port);
        runs.map_err(|failure| failure.to_string())
    });
    let median = |kind: usize, figure: usize| {
        let runs = &runs.as_ref().map_err(Clone::clone)?[kind];
        let values = runs.iter().map(|run| run[figure]).collect();
        Series {
            values,
            failure: None,
        }
        .median()
    };
    let figures = FIGURES.iter().enumerate();
    let mut samples: Vec<_> = figures
        .flat_map(|(at, pair)| [(pair.ours, median(0, at)), (pair.peer, median(1, at))])
        .collect();
    samples.push((WITHOUT_DEVICE, median(2, 0)));
    samples
}
