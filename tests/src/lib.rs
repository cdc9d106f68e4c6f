//! Shared by the black-box tests: one test at a time, unused ports, `verbs-check` as a pair.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

pub mod bridges;
pub mod hostile;
pub mod machine;
mod ports;
pub mod rings;
pub mod sockets;

use std::ffi::OsStr;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Scratch};
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::{wait_until, Ended, Process};
use urdma_harness::programs::Job;
use urdma_harness::{pair, Failure};

pub use self::ports::ports;

/// `verbs-check`, built from `tests/verbs-check`.
pub const VERBS_CHECK: &str = env!("VERBS_CHECK");
/// How long one end of `verbs-check` may run.
pub const CHECK_LIMIT: Duration = Duration::from_secs(180);
/// How long one end may run after the other has failed.
const AFTER_A_FAILURE: Duration = Duration::from_secs(10);
/// Longest time until a peer notices that a process was killed.
pub const NOTICE: Duration = Duration::from_secs(60);
/// Time limit, on a busy machine, of operations that are quick.
pub const SHORT: Duration = Duration::from_secs(30);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Two cores serve one pair of programs: tests of one binary that hold this lock run one after the
/// other.
pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hosts a and b, whose ports inject the faults of a configuration (`[fault]`), with checksums, so
/// that corruption is detected.
pub fn up_with_faults(scratch: &Scratch, fault: &str) -> [Instance; 2] {
    let socket = scratch.path().join("memif.sock");
    [("a", "127.0.0.1", "server"), ("b", "127.0.0.2", "client")].map(|(name, address, role)| {
        let port = format!(
            "[port]\nkind = \"memif\"\nrole = \"{role}\"\nsocket = \"{}\"\n\
             mtu = 1500\nchecksum = true\n{fault}",
            socket.display()
        );
        Instance::up(scratch.path(), name, address, &port).unwrap()
    })
}

/// Runs a command for at most `limit`: it succeeds, and prints `said`.
pub fn expect_said(command: &mut Command, limit: Duration, said: &str) {
    let ended = Process::run(command, limit).unwrap();
    assert!(ended.succeeded(), "{command:?}: {}", ended.describe());
    assert!(ended.output.contains(said), "{command:?}: {}", ended.output);
}

/// Runs a script of `tests` over a host without a port, with a directory for its files, a port and
/// further arguments: it succeeds within `limit`, and prints `said`.
pub fn run_script(script: &str, arguments: &[&str], limit: Duration, said: &str) {
    let _alone = alone();
    let one = OneHost::up();
    let directory = one.scratch.path().join("files");
    std::fs::create_dir(&directory).unwrap();
    let script = format!("{}/{script}", env!("CARGO_MANIFEST_DIR"));
    let (directory, port) = (directory.to_string_lossy(), ports().to_string());
    let argv = [&["sh", &script, &directory, &port], arguments].concat();
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    expect_said(&mut command, limit, said);
    one.down();
}

/// Compiles a C program, without a warning, by arguments that name its sources and libraries.
pub fn compile<A: AsRef<OsStr>>(program: &Path, arguments: impl IntoIterator<Item = A>) {
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-pedantic"])
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(program)
        .args(arguments);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "cc: {}", ended.describe());
}

/// Compiles a C program that uses `urdma_pool.h`, and links it with the library as an installed one
/// is, from a directory.
pub fn compile_with_pool(program: &Path, source: &Path, directory: &Path) {
    let library = binary_dir().unwrap().join("liburdma_pool_c.so");
    let library = std::fs::canonicalize(&library)
        .unwrap_or_else(|error| panic!("{}: {error}: run make build", library.display()));
    for name in ["liburdma-pool.so", "liburdma-pool.so.0"] {
        std::os::unix::fs::symlink(&library, directory.join(name)).unwrap();
    }
    let place = directory.display();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/pool-c/include");
    let arguments = [
        format!("-I{include}"),
        source.display().to_string(),
        format!("-Wl,-rpath,{place}"),
        format!("-L{place}"),
        "-lurdma-pool".to_owned(),
        "-libverbs".to_owned(),
        "-lpthread".to_owned(),
    ];
    compile(program, arguments);
}

/// A busy machine: one computing thread per processor, until this is dropped.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
}

impl Busy {
    /// Starts them.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self { stop }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A host without a port, at 127.0.0.1.
#[derive(Debug)]
pub struct OneHost {
    /// The instance.
    pub host: Instance,
    /// The directory of its files.
    pub scratch: Scratch,
}

impl OneHost {
    /// Starts it.
    pub fn up() -> Self {
        Self::up_at(&["127.0.0.1"])
    }

    /// The same at several addresses.
    pub fn up_at(addresses: &[&str]) -> Self {
        Self::up_with(addresses, "")
    }

    /// The same with further lines of configuration.
    pub fn up_with(addresses: &[&str], configuration: &str) -> Self {
        let scratch = Scratch::new("test").unwrap();
        let host = Instance::up_at(scratch.path(), "one", addresses, configuration).unwrap();
        Self { host, scratch }
    }

    /// Takes it down and checks that it leaves nothing behind.
    pub fn down(self) {
        self.host.down().unwrap();
    }
}

/// An IPv4 and an IPv6 address of [`host_without_configured_addresses`].
pub const HOST_ADDRESSES: [&str; 2] = ["10.77.0.1", "fd77::1"];

/// A host without configured addresses: the namespace has [`HOST_ADDRESSES`], another address on an
/// interface that is down, and the instance gets no address.
pub fn host_without_configured_addresses(spaces: &Namespaces, scratch: &Scratch) -> Instance {
    let [v4, v6] = HOST_ADDRESSES;
    let (v4_network, v6_network) = (format!("{v4}/24"), format!("{v6}/64"));
    for arguments in [
        &["addr", "add", &v4_network, "dev", spaces.netdev(0)][..],
        &["addr", "add", &v6_network, "dev", spaces.netdev(0), "nodad"],
        &["link", "add", "down0", "type", "veth"],
        &["addr", "add", "10.88.0.1/24", "dev", "down0"],
    ] {
        spaces.ip(0, arguments).unwrap();
    }
    Instance::up_at_host_addresses(spaces.name(0), scratch.path(), "a", v4).unwrap()
}

/// Hosts a and b, at 127.0.0.1 and 127.0.0.2, whose packets are lost at each of their ports.
pub fn lossy_hosts(scratch: &Path) -> [Instance; 2] {
    let socket = scratch.join("memif.sock");
    let hosts = [("a", "127.0.0.1", "server"), ("b", "127.0.0.2", "client")];
    hosts.map(|(name, address, role)| {
        let port = format!(
            "[port]\nkind = \"memif\"\nrole = \"{role}\"\nsocket = \"{}\"\n\
             [fault]\nloss = \"5%\"\nseed = 3\n",
            socket.display()
        );
        Instance::up(scratch, name, address, &port).unwrap()
    })
}

/// The output of a program on an instance.
pub fn print_of(host: &Instance, argv: &[&str]) -> String {
    let mut command = host.run(LeasePolicy::Never, argv).unwrap();
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "{argv:?}: {}", ended.describe());
    ended.output
}

/// Runs every job and fails with a list of those that failed.
pub fn run_all(jobs: &[Job], server: &Instance, client: &Instance, lease: LeasePolicy) {
    let failures: Vec<String> = jobs
        .iter()
        .filter_map(|job| {
            let failure = pair::run(job, server, client, lease).err()?;
            Some(format!("{}: {failure}", job.label))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Starts one end of a scenario of `verbs-check`; `numbers` are its seed and, for `mix`, the number
/// of operations of each end.
pub fn check_end(
    scenario: &str,
    role: &str,
    host: &Instance,
    lease: LeasePolicy,
    scratch: &Path,
    numbers: &[u32],
) -> Result<Process, Failure> {
    let socket = scratch.join("meet").to_string_lossy().into_owned();
    let mut argv = [VERBS_CHECK, scenario, role, &socket]
        .map(str::to_owned)
        .to_vec();
    argv.extend(numbers.iter().map(ToString::to_string));
    Process::start(&mut host.run(lease, &argv)?)
}

/// Runs a scenario of `verbs-check` and checks that both ends succeed.
pub fn check(
    scenario: &str,
    server: &Instance,
    client: &Instance,
    lease: LeasePolicy,
    scratch: &Path,
) {
    let seed = std::env::var("URDMA_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(std::process::id);
    let serving = check_end(scenario, "server", server, lease, scratch, &[seed]).unwrap();
    let asking = check_end(scenario, "client", client, lease, scratch, &[seed]).unwrap();
    expect_content(scenario, seed, serving, asking);
}

/// Variants of the scenario `leave`: six ways to end, two operations, signaled or not.
const LEAVINGS: u32 = 24;

/// Runs every variant of the scenario `leave` and checks that the sender succeeds in each.
pub fn leave_in_every_way(
    receiver: &Instance,
    sender: &Instance,
    lease: LeasePolicy,
    scratch: &Path,
) {
    for variant in 0..LEAVINGS {
        let start =
            |role, host| check_end("leave", role, host, lease, scratch, &[1, variant]).unwrap();
        let (receiving, sending) = (start("server", receiver), start("client", sender));
        let [sent, left] = wait_in_turn(sending, receiving);
        let sent = sent.unwrap();
        let left = left.map_or_else(|late| late.to_string(), |ended| ended.describe());
        let said = sent.describe();
        assert!(
            sent.succeeded(),
            "variant {variant}: {said}; receiver: {left}"
        );
    }
}

/// Runs `mix` with this number of operations at each end, applies `disturb` to the two processes
/// (server, client) while they run, and checks that both succeed.
pub fn mix_while(
    (server, client): (&Instance, &Instance),
    scratch: &Path,
    operations: u32,
    disturb: impl FnOnce(&Process, &Process),
) {
    let numbers = [std::process::id(), operations];
    let start =
        |role, host| check_end("mix", role, host, LeasePolicy::Never, scratch, &numbers).unwrap();
    let (mut serving, mut asking) = (start("server", server), start("client", client));
    for end in [&mut serving, &mut asking] {
        end.wait_for_text("mixing", SHORT).unwrap();
        assert!(end.is_running(), "{}", end.printed());
    }
    disturb(&serving, &asking);
    expect_content("mix", numbers[0], serving, asking);
}

/// Runs a scenario with this number of operations and checks that both ends succeed.
pub fn check_operations(
    scenario: &str,
    (server, client): (&Instance, &Instance),
    scratch: &Path,
    operations: u32,
) {
    let numbers = [std::process::id(), operations];
    let start = |role, host| {
        check_end(scenario, role, host, LeasePolicy::Never, scratch, &numbers).unwrap()
    };
    let (serving, asking) = (start("server", server), start("client", client));
    expect_content(scenario, numbers[0], serving, asking);
}

/// Waits for two ends; the second may wait without a limit for the first, if that has failed.
fn wait_in_turn(first: Process, second: Process) -> [Result<Ended, Failure>; 2] {
    let first = first.wait(CHECK_LIMIT);
    let has_succeeded = first.as_ref().is_ok_and(Ended::succeeded);
    let limit = if has_succeeded {
        CHECK_LIMIT
    } else {
        AFTER_A_FAILURE
    };
    [first, second.wait(limit)]
}

/// Waits for both ends of a scenario and checks that they succeed; fails with their output.
fn expect_content(scenario: &str, seed: u32, mut serving: Process, mut asking: Process) {
    wait_until("the end of either", CHECK_LIMIT, || {
        !(serving.is_running() && asking.is_running())
    })
    .unwrap_or_else(|late| {
        let printed = [asking.printed(), serving.printed()].map(|said| said.trim().to_owned());
        panic!("{scenario} (URDMA_SEED={seed}): {late}; client, server: {printed:?}")
    });
    let (asked, served) = if asking.is_running() {
        let [served, asked] = wait_in_turn(serving, asking);
        (asked, served)
    } else {
        wait_in_turn(asking, serving).into()
    };
    let content = |ended: &Result<Ended, Failure>| match ended {
        Ok(ended) if ended.succeeded() => None,
        Ok(ended) => Some(ended.describe()),
        Err(failure) => Some(failure.to_string()),
    };
    let errors: Vec<String> = [("client", content(&asked)), ("server", content(&served))]
        .into_iter()
        .filter_map(|(end, error)| Some(format!("{end}: {}", error?)))
        .collect();
    assert!(
        errors.is_empty(),
        "{scenario} (replay with URDMA_SEED={seed}): {}",
        errors.join("; ")
    );
}

/// Two ends of a stream that runs until one of them is killed, started and in progress.
pub fn stream(
    server: &Instance,
    client: &Instance,
    lease: LeasePolicy,
    scratch: &Path,
) -> (Process, Process) {
    let mut serving = check_end("stream", "server", server, lease, scratch, &[1]).unwrap();
    let mut asking = check_end("stream", "client", client, lease, scratch, &[1]).unwrap();
    asking.wait_for_text("streaming", SHORT).unwrap();
    serving.wait_for_text("waiting", SHORT).unwrap();
    (serving, asking)
}

/// Kills the target or the initiator of a stream and checks that the other end gets an error.
pub fn kill_one_end((serving, asking): (Process, Process), victim_is_target: bool) {
    let (victim, survivor) = if victim_is_target {
        (serving, asking)
    } else {
        (asking, serving)
    };
    victim.signal(Signal::SIGKILL).unwrap();
    expect_stream_ended(survivor);
}

/// Checks that an end of a stream gets an error and ends.
pub fn expect_stream_ended(end: Process) {
    expect_end_that_says(end, "stream ended");
}

/// Checks that an end of a stream gives up its silent peer and ends.
pub fn expect_peer_given_up(end: Process) {
    expect_end_that_says(end, "stream ended: transport retry counter exceeded");
}

fn expect_end_that_says(end: Process, words: &str) {
    let ended = end.wait(NOTICE).unwrap();
    assert!(ended.output.contains(words), "{}", ended.describe());
}

/// Runs a check of `verbs-check` in a single process.
pub fn check_alone(host: &Instance, name: &str) {
    check_leased_alone(host, LeasePolicy::Never, name);
}

/// The same, with or without a leased queue.
pub fn check_leased_alone(host: &Instance, lease: LeasePolicy, name: &str) {
    let argv = [VERBS_CHECK, name];
    let mut command = host.run(lease, &argv).unwrap();
    let ended = Process::run(&mut command, CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
}

/// Runs scenarios of `verbs-check` on one host, one after the other.
pub fn check_on_one_host(scenarios: &[&str]) {
    let _alone = alone();
    let one = OneHost::up();
    for scenario in scenarios {
        let scratch = one.scratch.path();
        check(scenario, &one.host, &one.host, LeasePolicy::Never, scratch);
    }
    one.down();
}

/// Waits until nothing is left of the processes of an instance, and urdmad has no more descriptors
/// than `before`, which is what it has at the first call.
pub fn expect_nothing_left(host: &Instance, before: &mut Option<usize>) {
    expect_all_taken_back(host);
    let status = host.status().unwrap();
    assert_eq!(status["listeners"], serde_json::json!([]));
    let daemon = host.daemon_pid().unwrap();
    // Those of the last clients may be about to be closed.
    let before = *before.get_or_insert_with(|| descriptors_of(daemon));
    wait_until("as many descriptors as before", SHORT, || {
        descriptors_of(daemon) <= before
    })
    .unwrap();
}

/// Starts the ignored test `end` of the running test program as a program of an instance.
pub fn start_end(host: &Instance, environment: &[(&str, &str)]) -> Process {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let argv = [program, "--exact", "end", "--ignored", "--nocapture"];
    let mut command = host.run(LeasePolicy::Never, &argv).unwrap();
    command.envs(environment.iter().copied());
    Process::start(&mut command).unwrap()
}

/// Links `liburdmadv.so` into a directory, under the names by which it is linked and loaded.
///
/// # Panics
/// If it has not been built.
pub fn link_urdmadv(directory: &Path) {
    let library = binary_dir().unwrap().join("liburdma_dv.so");
    let library = std::fs::canonicalize(&library)
        .unwrap_or_else(|error| panic!("{}: {error}: run make build", library.display()));
    for name in ["liburdmadv.so", "liburdmadv.so.0"] {
        std::os::unix::fs::symlink(&library, directory.join(name)).unwrap();
    }
}

/// Waits until no process is attached, no queue is leased, and urdmad maps no region of a channel
/// but the one of the next process.
pub fn expect_all_taken_back(host: &Instance) {
    wait_until("taking everything back", SHORT, || {
        let status = host.status().unwrap();
        status["slots"].as_array().is_some_and(Vec::is_empty)
            && status["leases"]
                .as_array()
                .is_some_and(|leases| leases.iter().all(|lease| lease["slot"].is_null()))
            && mapped_regions(host) == 1
    })
    .unwrap_or_else(|late| panic!("{late}; {} regions are mapped", mapped_regions(host)));
}

/// Descriptors of a process, without those of recordings of processes that have ended, which urdmad
/// keeps for a while.
pub fn descriptors_of(pid: u32) -> usize {
    let is_recording = |file: &Path| file.to_string_lossy().contains("urdma-recording");
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let files = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    files.filter(|file| !is_recording(file)).count()
}

/// Mappings of regions of channels in urdmad, which has two regions for each attached process.
fn mapped_regions(host: &Instance) -> usize {
    let maps = format!("/proc/{}/maps", host.daemon_pid().unwrap());
    let maps = std::fs::read_to_string(maps).unwrap();
    let is_region = |line: &&str| line.contains("/memfd:urdma-channel");
    maps.lines().filter(is_region).count()
}

/// Free packet buffers by pool.
pub fn free_mbufs(host: &Instance) -> Vec<(String, u64)> {
    let status = host.status().unwrap();
    let pools = status["port"]["mbufs"].as_array().unwrap();
    pools
        .iter()
        .map(|pool| {
            let name = pool["name"].as_str().unwrap().to_owned();
            (name, pool["free"].as_u64().unwrap())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    /// The output of a failed check of two ends, which ends before the time limit of an end.
    fn failure_of(server: &str, client: &str) -> String {
        let start = Instant::now();
        let (serving, asking) = (shell(server), shell(client));
        let check = AssertUnwindSafe(|| expect_content("pair", 1, serving, asking));
        let payload = catch_unwind(check).unwrap_err();
        assert!(start.elapsed() < CHECK_LIMIT);
        payload.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn end_that_waits_for_a_failed_one_is_ended_and_the_failure_is_reported() {
        let of_client = failure_of("exec sleep 600", "echo no device >&2; exit 1");
        assert!(
            of_client.contains("client: exit status 1: no device"),
            "{of_client}"
        );
        let of_server = failure_of("echo no device >&2; exit 1", "exec sleep 600");
        assert!(
            of_server.contains("server: exit status 1: no device"),
            "{of_server}"
        );
    }
}
