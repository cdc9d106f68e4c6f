//! System calls of programs, counted by the kernel.
//!
//! `perf stat` has the kernel count at the tracepoints of system calls, for all threads of a
//! program. A program that is counted is not stopped, which ptrace and seccomp's notify do at each
//! call: what arrives at the other end meanwhile would be taken with fewer calls than otherwise.
//! Nor are counts lost, as the records of `perf trace` are.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

use crate::instance::Scratch;
use crate::process::{Ended, Process};
use crate::Failure;

/// All system calls.
const ALL: &str = "raw_syscalls:sys_enter";
/// Start of the name of a call's tracepoint.
const ENTER: &str = "syscalls:sys_enter_";
/// The calls that have counters of their own: a counter for each that there is would lengthen the
/// changes of threads. The tracepoints have the kernel's names: `newfstat` is fstat(2).
const NAMES: [&str; 23] = [
    "read",
    "write",
    "sendto",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_ctl",
    "futex",
    "futex_waitv",
    "newfstat",
    "fcntl",
    "ioctl",
    "rt_sigprocmask",
    "clock_nanosleep",
    "madvise",
    "sched_yield",
];
/// The name of a call that gives the processor to another thread: how often it is made depends on
/// what else runs.
const YIELD: &str = "sched_yield";
/// Calls of which a table shows how many were made.
const SHOWN: f64 = 0.05;

/// A program whose calls are counted.
#[derive(Debug)]
pub struct Counted {
    process: Process,
    report: PathBuf,
    _scratch: Scratch,
}

impl Counted {
    /// Starts `command`, to which nothing but its arguments has been added.
    ///
    /// # Errors
    /// `perf` is not installed.
    pub fn start(command: &Command) -> Result<Self, Failure> {
        let scratch = Scratch::new("calls")?;
        let report = scratch.path().join("report");
        let mut counted = Command::new("perf");
        counted.args(["stat", "-x,", "-o"]).arg(&report);
        counted.args(["-e", ALL]);
        for name in NAMES {
            counted.arg("-e").arg(format!("{ENTER}{name}"));
        }
        counted.arg("--").arg(command.get_program());
        counted.args(command.get_args());
        let process = Process::start(&mut counted)
            .map_err(|failure| Failure::new(format!("{failure}: install linux-perf")))?;
        Ok(Self {
            process,
            report,
            _scratch: scratch,
        })
    }

    /// The process that counts, whose output is that of the program.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Asks the program to end.
    ///
    /// # Errors
    /// It is gone.
    pub fn terminate(&self) -> Result<(), Failure> {
        let perf = self.process.id();
        let children = fs::read_to_string(format!("/proc/{perf}/task/{perf}/children"))?;
        let program = children.trim().parse().map(Pid::from_raw);
        let program = program.map_err(|_| Failure::new("the program to be counted is gone"))?;
        kill(program, Signal::SIGTERM)
            .map_err(|error| Failure::new(format!("cannot end what is counted: {error}")))
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// It did not end within `limit`, or could not be counted.
    pub fn wait(self, limit: Duration) -> Result<(Ended, Calls), Failure> {
        let ended = self.process.wait(limit)?;
        let calls = fs::read_to_string(&self.report)
            .map_err(Failure::from)
            .and_then(|report| Calls::read(&report))
            .map_err(|failure| Failure::new(format!("{failure}; {}", ended.describe())))?;
        Ok((ended, calls))
    }
}

/// System calls of a program, or those of each request on average.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    all: f64,
    /// In the order of [`NAMES`].
    by_name: Vec<f64>,
}

impl Calls {
    /// Reads the report of `perf stat`.
    fn read(report: &str) -> Result<Self, Failure> {
        let count = |event: &str| {
            let mut lines = report.lines().map(|line| line.split(','));
            let fields = lines.find(|fields| fields.clone().any(|field| field == event));
            let count = fields.and_then(|mut fields| fields.next()?.parse().ok());
            count.ok_or_else(|| Failure::new(format!("perf has no count of {event}")))
        };
        let by_name = NAMES.iter().map(|name| count(&format!("{ENTER}{name}")));
        Ok(Self {
            all: count(ALL)?,
            by_name: by_name.collect::<Result<_, _>>()?,
        })
    }

    /// The calls of each request, of which this run has made `more` than the run `shorter`: without
    /// those of the start and the end.
    #[must_use]
    pub fn of_each(&self, shorter: &Self, more: u32) -> Self {
        let of_each = |(long, short): (&f64, &f64)| (long - short) / f64::from(more);
        Self {
            all: of_each((&self.all, &shorter.all)),
            by_name: self
                .by_name
                .iter()
                .zip(&shorter.by_name)
                .map(of_each)
                .collect(),
        }
    }

    /// How many were made of a call that has a counter of its own; 0 for another.
    pub fn of(&self, name: &str) -> f64 {
        let place = NAMES.iter().position(|known| *known == name);
        place.map(|place| self.by_name[place]).unwrap_or_default()
    }

    /// All of them but sched_yield(2), which a thread that spins makes as long as nothing arrives.
    pub fn without_yields(&self) -> f64 {
        self.all - self.of(YIELD)
    }
}

/// "6.06: epoll_ctl 4.00, sendto 1.00, recvfrom 1.00, others 0.06", the most frequent calls first.
impl fmt::Display for Calls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMES.iter().map(|name| name.trim_start_matches("new"));
        let mut shown: Vec<_> = named.zip(self.by_name.iter().copied()).collect();
        shown.retain(|(_, count)| count.abs() >= SHOWN);
        shown.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let others = self.all - shown.iter().map(|(_, count)| count).sum::<f64>();
        write!(out, "{:.2}:", self.all)?;
        for (name, count) in shown {
            write!(out, " {name} {count:.2},")?;
        }
        write!(out, " others {others:.2}")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn report(all: u32, of: &[(&str, u32)]) -> String {
        let count = |name: &str| of.iter().find(|(known, _)| *known == name);
        let lines = NAMES.iter().map(|name| {
            let count = count(name).map_or(0, |(_, count)| *count);
            format!("{count},,{ENTER}{name},9,100.00,,\n")
        });
        let lines: String = lines.collect();
        format!("# started on Tue\n\n{all},,{ALL},9,100.00,,\n{lines}")
    }

    #[test]
    fn calls_of_a_request_are_those_of_the_longer_run() {
        let start = report(500, &[("read", 300), ("newfstat", 7)]);
        let long = report(
            2_600,
            &[("read", 1_300), ("newfstat", 507), ("sched_yield", 250)],
        );
        let [start, long] = [start, long].map(|report| Calls::read(&report).unwrap());
        let each = long.of_each(&start, 1_000);
        assert_eq!(
            each.to_string(),
            "2.10: read 1.00, fstat 0.50, sched_yield 0.25, others 0.35"
        );
        assert!((each.without_yields() - 1.85).abs() < 1e-9);
    }

    #[test]
    fn call_that_was_not_counted_is_a_failure() {
        let report = report(9, &[]).replace("0,,syscalls:sys_enter_poll,", "<not counted>,,x,");
        let failure = Calls::read(&report).unwrap_err();
        assert!(failure.0.contains("sys_enter_poll"), "{failure}");
        assert!(Calls::read("").is_err());
    }
}
