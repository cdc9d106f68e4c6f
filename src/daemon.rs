//! `urdma up` and `urdma down`.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use urdma_ipc::status::PortStatus;
use urdma_ipc::{ControlClient, ControlError, RunDir, PROTOCOL_VERSION};

use crate::error::Error;
use crate::libraries;
use crate::target::Target;

/// Time limit for urdmad to answer; a port with hugepages takes longest.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for urdmad to remove its files.
const STOP_LIMIT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Options of `urdma up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    target: Target,
    /// Configuration file (TOML); without one: no port, 127.0.0.1 and the addresses of the host
    #[arg(long)]
    config: Option<PathBuf>,
}

/// The standard input of urdmad, by which it gets a configuration that it cannot read itself.
const STDIN: &str = "/dev/stdin";

/// The configuration of the instance to start.
struct Configuration<'a> {
    file: &'a Path,
    /// What the file contains; None if it cannot be read, which urdmad reports.
    text: Option<Vec<u8>>,
}

impl<'a> Configuration<'a> {
    fn read(file: &'a Path) -> Self {
        let text = fs::read(file).ok();
        Self { file, text }
    }

    /// The name of the instance, if there is one; urdmad reports errors in the rest.
    fn instance(&self) -> Option<String> {
        let text = std::str::from_utf8(self.text.as_ref()?).ok()?;
        let keys: toml::Table = text.parse().ok()?;
        Some(keys.get("instance")?.as_str()?.to_owned())
    }

    /// The text, if urdmad would not find it under the file's name: a pipe can be read only once,
    /// and a descriptor may be another file in urdmad.
    fn text_for_urdmad(&self) -> Option<&[u8]> {
        let is_descriptor = ["/dev", "/proc"].iter().any(|at| self.file.starts_with(at));
        let text = self.text.as_deref()?;
        (is_descriptor || !self.file.is_file()).then_some(text)
    }

    /// Starts urdmad with this configuration.
    fn start(&self, command: &mut Command) -> io::Result<Child> {
        let Some(text) = self.text_for_urdmad() else {
            return command.arg("--config").arg(self.file).spawn();
        };
        command.args(["--config", STDIN]).stdin(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // It fails only if urdmad has ended, which is reported.
            let _ = stdin.write_all(text);
        }
        Ok(child)
    }
}

impl UpArgs {
    /// The instance to start: from the options, else from the configuration.
    fn target(&self, configuration: Option<&Configuration>) -> Result<Target, Error> {
        let mut target = self.target.clone();
        let Some(configuration) = configuration else {
            return Ok(target);
        };
        match (&target.instance, configuration.instance()) {
            (Some(asked), Some(named)) if *asked != named => {
                return Err(Error::sentence(format!(
                    "{} names the instance \"{named}\" and --instance \"{asked}\": leave one of \
                    them out",
                    configuration.file.display()
                )));
            }
            (None, Some(named)) => target.instance = Some(named),
            _ => {}
        }
        Ok(target)
    }
}

/// Starts urdmad in the background and waits until it answers.
pub(crate) fn up(args: &UpArgs) -> Result<(), Error> {
    let configuration = args.config.as_deref().map(Configuration::read);
    let target = args.target(configuration.as_ref())?;
    let run_dir = target.run_dir();
    if let Ok(client) = ControlClient::connect(&run_dir, "urdma") {
        return Err(Error::sentence(format!(
            "instance \"{}\" is up already: see `urdma status{}`",
            client.instance(),
            target.options()
        )));
    }
    let program = libraries::companion("urdmad")?;
    let mut command = Command::new(&program);
    command.arg("--run-dir").arg(run_dir.path());
    if let Some(instance) = &target.instance {
        command.arg("--instance").arg(instance);
    }
    // SAFETY: setsid and prctl are async-signal-safe and touch only the child about to exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            // Until it is ready, urdmad ends with this program and removes its files.
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            Ok(())
        });
    }
    let (reader, writer) = io::pipe().map_err(|error| Error::sentence(error.to_string()))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer);
    let started = match configuration {
        Some(configuration) => configuration.start(&mut command),
        None => command.spawn(),
    };
    drop(command);
    let mut child = started.map_err(|error| not_started(&error))?;
    wait_until_ready(&mut child, &program, reader, &run_dir)?;
    let status = ControlClient::connect(&run_dir, "urdma")?.status()?;
    let addresses: Vec<String> = status.addresses.iter().map(ToString::to_string).collect();
    println!(
        "instance \"{}\" is up at {}; try: urdma run{} -- ibv_devinfo",
        status.instance,
        addresses.join(", "),
        target.options()
    );
    let may_lease = |port: &PortStatus| port.kind != "udp";
    if let (true, Some(reason)) = (
        status.port.as_ref().is_some_and(may_lease),
        status.no_leases_because,
    ) {
        println!("note: {reason}");
    }
    Ok(())
}

/// The error that kept urdmad from starting.
fn not_started(error: &io::Error) -> Error {
    let null = Path::new("/dev/null");
    Error::sentence(if null.exists() {
        format!("cannot start urdmad: {error}")
    } else {
        "cannot start urdmad: there is no /dev/null; give the container a /dev".to_owned()
    })
}

fn wait_until_ready(
    child: &mut Child,
    program: &Path,
    mut errors: io::PipeReader,
    run_dir: &RunDir,
) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            let mut said = String::new();
            // Empty output counts as unreadable: the exit status is reported instead.
            let _ = errors.read_to_string(&mut said);
            let said = said.trim().trim_start_matches("urdmad: ").to_owned();
            return Err(Error::Sentence(if said.is_empty() {
                format!("urdmad ended with {status}: {}", log_tail(run_dir))
            } else {
                said
            }));
        }
        match ControlClient::connect(run_dir, "urdma") {
            Ok(_) => return Ok(()),
            Err(ControlError::VersionMismatch { theirs, pid })
                if u32::try_from(pid).ok() == Some(child.id()) =>
            {
                end(child);
                return Err(Error::Sentence(format!(
                    "{} is of another version than this urdma (control protocol {theirs}, not \
                     {PROTOCOL_VERSION}): install both of one version",
                    program.display()
                )));
            }
            // It does not listen yet, or another urdmad has not ended.
            Err(_) => {}
        }
        if start.elapsed() > START_LIMIT {
            end(child);
            return Err(Error::Sentence(format!(
                "urdmad was not ready within {} s: {}",
                START_LIMIT.as_secs(),
                log_tail(run_dir)
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Ends a urdmad that has not become ready: by SIGTERM if possible, since hugepages and files stay
/// behind a killed one.
fn end(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // The child is not reaped yet, so the process id is its own.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    let start = Instant::now();
    while start.elapsed() < STOP_LIMIT && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(POLL_INTERVAL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn log_tail(run_dir: &RunDir) -> String {
    let log = run_dir.log_file();
    fs::read_to_string(&log)
        .ok()
        .and_then(|text| text.lines().last().map(str::to_owned))
        .unwrap_or_else(|| format!("nothing in {}", log.display()))
}

/// Has urdmad shut down and waits until it has ended.
pub(crate) fn down(target: &Target) -> Result<(), Error> {
    let run_dir = target.run_dir();
    let (shown, pid) = match target.connect() {
        Ok(client) => {
            let pid = client.daemon_pid();
            match client.shutdown() {
                Ok(()) | Err(ControlError::Gone) => {}
                Err(error) => return Err(error.into()),
            }
            (format!("instance \"{}\"", client.instance()), pid)
        }
        // A signal ends urdmad as the request does, which this version cannot make.
        Err(Error::Control(ControlError::VersionMismatch { pid, .. })) => {
            let shown = format!("the instance in {}", run_dir.path().display());
            (shown, terminate(pid)?)
        }
        Err(error) => return Err(error),
    };
    let start = Instant::now();
    while run_dir.control_socket().exists() || is_running(pid) {
        if start.elapsed() > STOP_LIMIT {
            return Err(Error::sentence(format!(
                "urdmad (process {pid}) has not ended within {} s: see {}",
                STOP_LIMIT.as_secs(),
                run_dir.log_file().display()
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    println!("{shown} is down");
    Ok(())
}

/// Sends SIGTERM to a process, and returns its number.
fn terminate(pid: i32) -> Result<u32, Error> {
    // Zero stands for this program's own process group, and for a process that it does not see.
    let seen = u32::try_from(pid).ok().filter(|pid| *pid > 0);
    let Some(seen) = seen else {
        return Err(Error::sentence(
            "urdmad is of another version, and in a process namespace that this program does not \
             see: run `urdma down` there",
        ));
    };
    kill(Pid::from_raw(pid), Signal::SIGTERM)
        .map(|()| seen)
        .map_err(|errno| {
            Error::sentence(format!(
                "urdmad (process {pid}) is of another version and cannot be ended: {errno}: run \
                 `urdma down` as its user"
            ))
        })
}

/// Whether `pid` runs; an unreaped zombie does not. While it ends, its first thread is a zombie
/// before others have given the memory of the process back.
fn is_running(pid: u32) -> bool {
    /// Behind the name of the program: the state, and the number of threads.
    const FIELDS: [usize; 2] = [0, 17];
    let mut stat = String::new();
    let file = File::open(Path::new("/proc").join(pid.to_string()).join("stat"));
    let read = file.and_then(|mut file| file.read_to_string(&mut stat));
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let field = |at| fields.split_whitespace().nth(at).unwrap_or_default();
    let [state, threads] = FIELDS.map(field);
    read.is_ok() && (state != "Z" || threads.parse().is_ok_and(|threads: u32| threads > 1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;

    // `urdma down` returned while urdmad still had its huge pages.
    #[test]
    fn process_runs_until_its_last_thread_has_ended() {
        let program = "import ctypes, sys, threading\n\
            threading.Thread(target=sys.stdin.read).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let state = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        while !state().contains(") Z ") {
            std::thread::sleep(POLL_INTERVAL);
        }
        assert!(is_running(pid));
        drop(child.stdin.take());
        while is_running(pid) {
            std::thread::sleep(POLL_INTERVAL);
        }
        assert!(state().contains(") Z "));
        child.wait().unwrap();
        assert!(!is_running(pid));
    }
}
