//! A child process: its output is collected, it has a time limit, and it never outlives its owner.

#![allow(unsafe_code)]

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;

use crate::Failure;

/// Interval of waiting loops.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a pipe is read after its program has ended.
const READER_LIMIT: Duration = Duration::from_secs(2);

/// A started program whose standard output and error are collected.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: Printed,
    errors: Printed,
    readers: Vec<JoinHandle<()>>,
}

/// The output so far.
type Printed = Arc<Mutex<String>>;

/// The end and the output of a program (standard output and error in order of arrival).
#[derive(Debug, Clone)]
pub struct Ended {
    /// The exit status of the operating system.
    pub status: ExitStatus,
    /// The whole output.
    pub output: String,
    /// The part from standard error.
    pub errors: String,
}

impl Ended {
    /// Exit status 0.
    pub fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// "exit status 1" or "killed by signal 9", with the last lines of standard error, or of the
    /// whole output if that is empty.
    pub fn describe(&self) -> String {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        let said = |text: &'_ str| text.lines().any(|line| !line.trim().is_empty());
        let text = if said(&self.errors) {
            &self.errors
        } else {
            &self.output
        };
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let tail = lines[lines.len().saturating_sub(12)..].join(" / ");
        if tail.is_empty() {
            how
        } else {
            format!("{how}: {tail}")
        }
    }
}

impl Process {
    /// Starts `command` in its own process group, without standard input.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        // SAFETY: prctl and signal are async-signal-safe and affect only the child before exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // A shell ignores it in what it starts in the background, and so would the child.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::new(format!("cannot start {name}: {error}")))?;
        let (output, errors) = (Printed::default(), Printed::default());
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(collect(stdout, vec![Arc::clone(&output)]));
        }
        if let Some(stderr) = child.stderr.take() {
            let into = vec![Arc::clone(&output), Arc::clone(&errors)];
            readers.push(collect(stderr, into));
        }
        Ok(Self {
            name,
            child,
            output,
            errors,
            readers,
        })
    }

    /// Runs `command` and waits for its end.
    ///
    /// # Errors
    /// It cannot be started, or does not end within `limit` and is killed.
    pub fn run(command: &mut Command, limit: Duration) -> Result<Ended, Failure> {
        Self::start(command)?.wait(limit)
    }

    /// Runs `command` and waits for its end; gives the processor time, too, of it and of the
    /// children that it has waited for. No other child of this process ends meanwhile.
    ///
    /// # Errors
    /// It cannot be started, or does not end within `limit` and is killed.
    pub fn run_measured(
        command: &mut Command,
        limit: Duration,
    ) -> Result<(Ended, Duration), Failure> {
        let before = time_of_children()?;
        let ended = Self::run(command, limit)?;
        Ok((ended, time_of_children()?.saturating_sub(before)))
    }

    /// The processor time of all threads that the process has now.
    ///
    /// # Errors
    /// The process is gone.
    pub fn processor_time(&self) -> Result<Duration, Failure> {
        processor_time(self.child.id())
    }

    /// The operating system's id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The output so far.
    pub fn printed(&self) -> String {
        text_of(&self.output)
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends `signal` to the process.
    ///
    /// # Errors
    /// The process is gone.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> Result<(), Failure> {
        let pid =
            i32::try_from(self.child.id()).map_err(|_| Failure::new("process id out of range"))?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal)
            .map_err(|error| Failure::new(format!("cannot signal {}: {error}", self.name)))
    }

    /// Waits until its output contains `text`.
    ///
    /// # Errors
    /// It ended first, or `limit` passed.
    pub fn wait_for_text(&mut self, text: &str, limit: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.printed().contains(text) {
            if !self.is_running() {
                self.read_to_the_end();
                if self.printed().contains(text) {
                    break;
                }
                return Err(Failure::new(format!(
                    "{} ended before it printed '{text}': {}",
                    self.name,
                    self.printed().trim()
                )));
            }
            if start.elapsed() > limit {
                return Err(Failure::new(format!(
                    "{} did not print '{text}' within {limit:?}",
                    self.name
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end within `limit`; it and its process group are then killed.
    pub fn wait(mut self, limit: Duration) -> Result<Ended, Failure> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.read_to_the_end();
                    return Ok(Ended {
                        status,
                        output: self.printed(),
                        errors: text_of(&self.errors),
                    });
                }
                Ok(None) if start.elapsed() > limit => {
                    self.kill_group();
                    let printed = self.printed();
                    let last = printed.lines().last().unwrap_or("nothing");
                    return Err(Failure::new(format!(
                        "{} did not end within {} s; last printed: {last}",
                        self.name,
                        limit.as_secs()
                    )));
                }
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until all output has been read; the process has ended.
    fn read_to_the_end(&mut self) {
        for reader in self.readers.drain(..) {
            wait_for_reader(reader, READER_LIMIT);
        }
    }

    fn kill_group(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // The group may be gone already.
            let _ = nix::sys::signal::killpg(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill_group();
        }
    }
}

/// The processor time of all threads that process `pid` has now, as the scheduler counts it.
///
/// # Errors
/// The process is gone.
pub fn processor_time(pid: u32) -> Result<Duration, Failure> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|error| Failure::new(format!("process {pid}: {error}")))?;
    let of_thread = |directory: &Path| -> Option<u64> {
        let line = fs::read_to_string(directory.join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse().ok()
    };
    let of_threads = threads
        .flatten()
        .filter_map(|thread| of_thread(&thread.path()));
    Ok(Duration::from_nanos(of_threads.sum()))
}

/// The processor time of the children of this process that have ended.
fn time_of_children() -> Result<Duration, Failure> {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_err(|error| Failure::new(format!("getrusage: {error}")))?;
    let micros = [used.user_time(), used.system_time()].map(|time| time.num_microseconds());
    let micros = u64::try_from(micros.iter().sum::<i64>()).unwrap_or_default();
    Ok(Duration::from_micros(micros))
}

/// A grandchild that the program leaves behind keeps its pipe open; the reader is then abandoned.
fn wait_for_reader(reader: JoinHandle<()>, limit: Duration) {
    let start = Instant::now();
    while !reader.is_finished() && start.elapsed() < limit {
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn text_of(printed: &Printed) -> String {
    printed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

fn collect(mut from: impl Read + Send + 'static, into: Vec<Printed>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            let text = String::from_utf8_lossy(&chunk[..count]);
            for printed in &into {
                printed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&text);
            }
        }
    })
}

/// Calls `condition` repeatedly until it is true.
///
/// # Errors
/// It was not true within `limit`; the failure says that `what` did not happen.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> bool,
) -> Result<(), Failure> {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > limit {
            return Err(Failure::new(format!(
                "{what} did not happen within {limit:?}"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn text_of_a_process_that_has_ended_is_found() {
        let mut process = Process::start(Command::new("sh").args(["-c", "echo done"])).unwrap();
        wait_until("the end", LIMIT, || !process.is_running()).unwrap();
        process.wait_for_text("done", LIMIT).unwrap();
        assert!(process.wait_for_text("more", LIMIT).is_err());
    }

    #[test]
    fn run_collects_both_streams_and_status() {
        let ended = Process::run(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            LIMIT,
        )
        .unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.output.contains("out") && ended.output.contains("err"));
        assert!(!ended.succeeded());
        assert_eq!(ended.describe(), "exit status 3: err");
    }

    #[test]
    fn wait_past_limit_kills_and_says_so() {
        let mut process =
            Process::start(Command::new("sh").args(["-c", "echo begun; sleep 60"])).unwrap();
        process.wait_for_text("begun", LIMIT).unwrap();
        let failure = process.wait(Duration::ZERO).unwrap_err();
        assert!(failure.0.contains("did not end") && failure.0.contains("begun"));
    }

    #[test]
    fn processor_time_of_a_busy_process_grows() {
        let me = std::process::id();
        let before = processor_time(me).unwrap();
        let deadline = Instant::now() + LIMIT;
        while processor_time(me).unwrap() == before {
            assert!(Instant::now() < deadline);
        }
        assert!(processor_time(u32::MAX).is_err());
    }

    #[test]
    fn program_that_is_measured_has_used_processor_time() {
        let mut command = Command::new("sh");
        command.args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done"]);
        let (ended, used) = Process::run_measured(&mut command, LIMIT).unwrap();
        assert!(ended.succeeded() && used > Duration::ZERO, "{used:?}");
    }

    #[test]
    fn drop_of_running_process_kills_it() {
        let process = Process::start(Command::new("sleep").arg("60")).unwrap();
        let pid = process.id();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
