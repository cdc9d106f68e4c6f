//! One program under our control: its output is collected, it has a time limit, and it never outlives its owner.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Failure;

/// How often a waiting loop looks again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A started program whose standard output and error are collected.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// How a program ended and what it printed (standard output and error as they came).
#[derive(Debug, Clone)]
pub struct Ended {
    /// Exit status as the operating system reports it.
    pub status: ExitStatus,
    /// Everything that it printed.
    pub output: String,
}

impl Ended {
    /// Exit status 0.
    pub fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// "exit status 1" or "killed by signal 9", with the last lines printed.
    pub fn describe(&self) -> String {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        let lines: Vec<&str> = self
            .output
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let tail = lines[lines.len().saturating_sub(3)..].join(" / ");
        if tail.is_empty() {
            how
        } else {
            format!("{how}: {tail}")
        }
    }
}

impl Process {
    /// Starts `command` in a process group of its own, with no standard input.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        // SAFETY: prctl is async-signal-safe and touches only the child about to exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
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
        let output = Arc::new(Mutex::new(String::new()));
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(collect(stdout, Arc::clone(&output)));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(collect(stderr, Arc::clone(&output)));
        }
        Ok(Self {
            name,
            child,
            output,
            readers,
        })
    }

    /// Runs `command` to its end.
    ///
    /// # Errors
    /// It cannot be started or does not end within `limit` (it is killed then).
    pub fn run(command: &mut Command, limit: Duration) -> Result<Ended, Failure> {
        Self::start(command)?.wait(limit)
    }

    /// The operating system's id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub fn printed(&self) -> String {
        self.output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether it still runs.
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

    /// Waits until it has printed `text`.
    ///
    /// # Errors
    /// It ended first, or `limit` passed.
    pub fn wait_for_text(&mut self, text: &str, limit: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.printed().contains(text) {
            if !self.is_running() {
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
    /// It did not end within `limit`; it and its process group are killed then.
    pub fn wait(mut self, limit: Duration) -> Result<Ended, Failure> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    for reader in self.readers.drain(..) {
                        wait_for_reader(reader, Duration::from_secs(2));
                    }
                    let output = self.printed();
                    return Ok(Ended { status, output });
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

    fn kill_group(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // The group may be gone already, which is what is wanted.
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

/// A program that leaves a grandchild behind holds its pipe open: the reader is left alone then.
fn wait_for_reader(reader: JoinHandle<()>, limit: Duration) {
    let start = Instant::now();
    while !reader.is_finished() && start.elapsed() < limit {
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn collect(mut from: impl Read + Send + 'static, into: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            into.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
    })
}

/// Calls `condition` until it is true.
///
/// # Errors
/// It was not within `limit`; the failure says that `what` did not happen.
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

    #[test]
    fn run_collects_both_streams_and_status() {
        let ended = Process::run(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::from_secs(5),
        )
        .unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.output.contains("out") && ended.output.contains("err"));
        assert!(!ended.succeeded());
    }

    #[test]
    fn wait_past_limit_kills_and_says_so() {
        let failure = Process::run(
            Command::new("sh").args(["-c", "echo begun; sleep 60"]),
            Duration::from_millis(300),
        )
        .unwrap_err();
        assert!(failure.0.contains("did not end") && failure.0.contains("begun"));
    }

    #[test]
    fn drop_of_running_process_kills_it() {
        let process = Process::start(Command::new("sleep").arg("60")).unwrap();
        let pid = process.id();
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
