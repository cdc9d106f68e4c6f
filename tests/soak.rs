//! All kinds of work at the same time: urdmad's resources are the same before and after.
//!
//! `URDMA_SOAK_S` is the duration in seconds; the default is ten minutes.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, LeasePolicy, Scratch};
use urdma_harness::link::RawLink;
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::{wait_until, Process};
use urdma_harness::{pair, programs};
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{ControlClient, ControlError, RunDir};
use urdma_tests::bridges::up_behind_bridges;
use urdma_tests::{
    alone, check, check_end, expect_all_taken_back, kill_one_end, ports, stream, OneHost,
    CHECK_LIMIT, SHORT, VERBS_CHECK,
};
use urdma_types::Rng;

const SECONDS: u64 = 600;
/// A user id without an account, which may use the instance.
const MEMBER: u32 = 64_001;
/// More conversations than one user may have.
const FLOOD: usize = 500;
/// How long frames of one pair of programs are corrupted.
const MUTATION: Duration = Duration::from_secs(10);
/// Memory that an allocator may retain after it was freed.
const ANONYMOUS_SLACK_KB: u64 = 4096;
/// What urdmad may have read of the last process of each of 253 slots: its delivery records (a
/// header and 8 octets for each of 65,536 queue pairs), of which each process uses others.
const SHARED_SLACK_KB: u64 = 253 * (4 + 512);
/// Flight recordings: of processes that have ended, which urdmad keeps for 15 minutes
/// (doc/tracing.md), and its own.
const RECORDINGS_MAX: usize = 64 + 1;
/// Two files of 1 MB, and a line each.
const LOG_OCTETS_MAX: u64 = (2 << 20) + 8192;

/// The resources of a urdmad.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    /// All but those of flight recordings.
    descriptors: usize,
    recordings: usize,
    threads: usize,
    anonymous_kb: u64,
    /// Channels, pages, the directory and delivery records, as far as urdmad has touched them.
    shared_kb: u64,
}

impl Holdings {
    fn of(host: &Instance) -> Self {
        let proc = Path::new("/proc").join(host.daemon_pid().unwrap().to_string());
        let status = fs::read_to_string(proc.join("status")).unwrap();
        let resident_kb = |kind| {
            let mut lines = status.lines();
            first_number(lines.find_map(|line| line.strip_prefix(kind)).unwrap())
        };
        let files = fs::read_dir(proc.join("fd")).unwrap();
        let files = files.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        let is_recording = |file: &Path| file.starts_with("/memfd:urdma-recording (deleted)");
        let (recordings, others): (Vec<_>, Vec<_>) = files.partition(|file| is_recording(file));
        Self {
            descriptors: others.len(),
            recordings: recordings.len(),
            threads: fs::read_dir(proc.join("task")).unwrap().count(),
            anonymous_kb: resident_kb("RssAnon:"),
            shared_kb: resident_kb("RssShmem:"),
        }
    }

    /// Whether these resources are at most those of `before`, but for what urdmad is to keep.
    fn fits(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.recordings <= RECORDINGS_MAX
            && self.threads <= before.threads
            && self.anonymous_kb <= before.anonymous_kb + ANONYMOUS_SLACK_KB
            && self.shared_kb <= before.shared_kb + SHARED_SLACK_KB
    }
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// The hosts under test.
struct Bed {
    /// Programs of one host, and a user who floods it.
    one: OneHost,
    /// Two hosts on a link whose frames are corrupted.
    hosts: [Instance; 2],
    link: RawLink,
    scratch: Scratch,
    _spaces: Namespaces,
}

impl Bed {
    fn up() -> Self {
        let one = OneHost::up();
        let run_dir = one.host.run_dir();
        for (path, mode) in [
            (one.scratch.path().to_owned(), 0o755),
            (run_dir.join("control.sock"), 0o666),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let scratch = Scratch::new("soak").unwrap();
        let spaces = Namespaces::new().unwrap();
        let hosts = up_behind_bridges(&spaces, &scratch);
        let link = RawLink::open(spaces.name(0), "tap0").unwrap();
        Self {
            one,
            hosts,
            link,
            scratch,
            _spaces: spaces,
        }
    }

    fn all(&self) -> [&Instance; 3] {
        [&self.one.host, &self.hosts[0], &self.hosts[1]]
    }

    /// A directory for one kind of work.
    fn folder(&self, name: &str) -> std::path::PathBuf {
        let folder = self.scratch.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// perftest, the ping-pongs, and programs of rdma_cm, one pair after the other.
    fn run_a_pair(&self, round: usize, first_port: u16) {
        let host = &self.one.host;
        let jobs = programs::main_job(first_port, host.address());
        let job = &jobs[round % jobs.len()];
        if let Err(failure) = pair::run(job, host, host, LeasePolicy::Never) {
            panic!("{}: {failure}", job.label);
        }
    }

    fn kill_an_end(&self, round: usize) {
        let host = &self.one.host;
        let ends = stream(host, host, LeasePolicy::Never, &self.folder("kills"));
        kill_one_end(ends, round.is_multiple_of(2));
    }

    /// Forks with an open device, and asynchronous events.
    fn fork(&self) {
        let argv = [VERBS_CHECK, "events"];
        let mut command = self.one.host.run(LeasePolicy::Never, &argv).unwrap();
        let ended = Process::run(&mut command, CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }

    /// A member who opens conversations until they are refused, some with descriptors, with random
    /// content.
    fn flood(&self) {
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                // SAFETY: the call takes three integers. Without the C library it changes this
                // thread only.
                let outcome = unsafe { libc::syscall(libc::SYS_setresuid, -1, MEMBER, -1) };
                assert_eq!(outcome, 0);
                let run_dir = RunDir::at(self.one.host.run_dir());
                let mut held = Vec::new();
                let refused = loop {
                    match ControlClient::connect(&run_dir, "flood") {
                        Ok(client) => held.push(client),
                        Err(error) => break error,
                    }
                    assert!(held.len() < FLOOD);
                };
                assert!(matches!(refused, ControlError::Refused(_)), "{refused}");
                drop(held);
                let file = fs::File::open("/dev/zero").unwrap();
                for copies in [0, 1, 250] {
                    let socket = PacketSocket::connect(&run_dir.control_socket()).unwrap();
                    let fds = vec![file.as_fd(); copies];
                    // urdmad may have refused it already.
                    let _ = socket.send(&"this is no request", &fds);
                }
            });
            flood.join().unwrap();
        });
    }

    /// Starts another instance, may kill and restart it, and takes it down.
    fn restart_another(&self, round: usize) {
        let folder = self.folder("restarts");
        let other = Instance::up(&folder, "other", "127.0.0.1", "").unwrap();
        if round.is_multiple_of(2) {
            other.kill_and_restart().unwrap();
        }
        other.down().unwrap();
    }

    /// Programs on two hosts that also receive corrupted copies of frames. Their results are open:
    /// an observer of their packets can forge any.
    fn mutate(&self, random: &mut Rng) {
        let folder = self.folder("mutations");
        let [a, b] = &self.hosts;
        let start =
            |role, host| check_end("mix", role, host, LeasePolicy::Never, &folder, &[1, 50_000]);
        let mut ends = [start("server", a).unwrap(), start("client", b).unwrap()];
        let until = Instant::now() + MUTATION;
        let mut buffer = [0; 65_536];
        while Instant::now() < until && ends.iter_mut().all(Process::is_running) {
            let look_again = Instant::now() + Duration::from_millis(50);
            if let Some(frame) = self.link.receive(&mut buffer, look_again) {
                let mut frame = frame.to_vec();
                if mutate(random, &mut frame) {
                    // A full queue of the interface is no error.
                    let _ = self.link.send(&frame);
                }
            }
        }
        for end in ends {
            let _ = end.signal(Signal::SIGKILL);
            end.wait(SHORT).unwrap();
        }
        let _ = fs::remove_file(folder.join("meet"));
    }

    /// Checks that nothing is attached and no channel is open.
    fn expect_nothing_held(&self) {
        for host in self.all() {
            expect_all_taken_back(host);
        }
    }
}

/// Lengths of the Ethernet, IPv4 and UDP headers, and the offset of the UDP checksum.
const HEADERS_OCTETS: usize = 14 + 20 + 8;
const UDP_CHECKSUM: std::ops::Range<usize> = 40..42;
const IPV4_UDP: ([u8; 2], u8) = ([8, 0], 17);

/// Changes some octets of a datagram and disables its checksum.
fn mutate(random: &mut Rng, frame: &mut [u8]) -> bool {
    if frame.len() <= HEADERS_OCTETS || (frame[12..14] != IPV4_UDP.0 || frame[23] != IPV4_UDP.1) {
        return false;
    }
    // Half of the changes are in the headers of TRP and its payload.
    let payload = frame.len() - HEADERS_OCTETS;
    for _ in 0..=random.below_len(4) {
        let end = if random.below_len(2) == 0 {
            payload.min(64)
        } else {
            payload
        };
        let place = HEADERS_OCTETS + random.below_len(end);
        frame[place] ^= 1 << random.below_len(8);
    }
    frame[UDP_CHECKSUM].fill(0);
    true
}

/// A kind of work; its argument is the number of previous runs.
type Work<'a> = (&'static str, Box<dyn FnMut(usize) + Send + 'a>);

fn works(bed: &Bed, seed: u64) -> Vec<Work<'_>> {
    let first_port = ports();
    let mut random = Rng::new(seed);
    vec![
        (
            "pairs",
            Box::new(move |round| bed.run_a_pair(round, first_port)),
        ),
        ("kills", Box::new(|round| bed.kill_an_end(round))),
        ("forks", Box::new(|_| bed.fork())),
        ("floods", Box::new(|_| bed.flood())),
        ("restarts", Box::new(|round| bed.restart_another(round))),
        ("mutations", Box::new(move |_| bed.mutate(&mut random))),
    ]
}

/// Ends the other threads when one of them panics.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// Runs all kinds of work at the same time; returns how often each ran.
fn soak(works: &mut [Work<'_>], duration: Duration) -> Vec<String> {
    let end = Instant::now() + duration;
    let has_failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let has_failed = &has_failed;
        let threads: Vec<_> = works
            .iter_mut()
            .map(|(name, work)| {
                scope.spawn(move || {
                    let _ends_all = EndsAll(has_failed);
                    let mut rounds = 0;
                    while Instant::now() < end && !has_failed.load(Ordering::Relaxed) {
                        rounds += 1;
                        work(rounds);
                    }
                    format!("{rounds} {name}")
                })
            })
            .collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.map(|thread| thread.expect("it said why")).collect()
    })
}

#[test]
#[ignore = "takes ten minutes, or URDMA_SOAK_S seconds: make test-all"]
fn urdmad_has_the_same_before_and_after_many_things_at_once() {
    let _alone = alone();
    let seconds = std::env::var("URDMA_SOAK_S").ok();
    let seconds = seconds.map_or(SECONDS, |text| text.parse().unwrap());
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let bed = Bed::up();
    let mut works = works(&bed, seed);
    // Allocates what is allocated at the first use.
    soak(&mut works, Duration::from_secs(1));
    bed.expect_nothing_held();
    let before = bed.all().map(Holdings::of);
    let done = soak(&mut works, Duration::from_secs(seconds));
    println!("{}", done.join(", "));
    drop(works);
    bed.expect_nothing_held();
    for (host, before) in bed.all().into_iter().zip(before) {
        let told = format!("{}: {before:?} before", host.run_dir().display());
        let fits = wait_until("what urdmad has shrinks", SHORT, || {
            Holdings::of(host).fits(&before)
        });
        println!("{told}, {:?} after", Holdings::of(host));
        assert!(fits.is_ok(), "{told}, {:?} after", Holdings::of(host));
        let logs = ["urdmad.log", "urdmad.log.1"].map(|name| host.run_dir().join(name));
        let octets = logs.map(|log| fs::metadata(log).map_or(0, |found| found.len()));
        assert!(octets.iter().sum::<u64>() <= LOG_OCTETS_MAX, "{octets:?}");
    }
    // The instance still serves programs.
    let [a, b] = &bed.hosts;
    let scratch = bed.scratch.path();
    check("mix", a, b, LeasePolicy::Never, scratch);
    check(
        "mix",
        &bed.one.host,
        &bed.one.host,
        LeasePolicy::Never,
        scratch,
    );
    let Bed { one, hosts, .. } = bed;
    one.down();
    for host in hosts {
        host.down().unwrap();
    }
}
