//! Instances that a group may use, programs of honest users on them, and `urdma-hostile`.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Group;
use urdma_harness::instance::{binary_dir, urdma, Instance, Place, Scratch};
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::{wait_until, Ended, Process};

use crate::sockets::{spaces, ADDRESSES};
use crate::{descriptors_of, CHECK_LIMIT, SHORT, VERBS_CHECK};

/// User ids without accounts.
pub const ATTACKER: u32 = 64_001;
/// Another user that attacks.
pub const OTHER_ATTACKER: u32 = 64_004;
/// Users that are attacked.
pub const HONEST: [u32; 2] = [64_002, 64_003];
/// How long an attack may take to end after its duration: it waits for slots and for urdmad.
pub const ATTACK_LIMIT: Duration = Duration::from_secs(30);
/// The group whose members may use the instance.
const GROUP: &str = "users";
/// Recordings of a user's processes that urdmad keeps after their end (doc/tracing.md).
const RECORDINGS: usize = 16;
/// What begins a line in which an end of a steady pair reports its operations.
const REPORT: &str = "mixed ";
/// Lines that a test that fails prints of each log and trace.
const LINES: usize = 60;
/// Operations of each end of a pair that connects anew again and again.
const FEW: &str = "300";
const PROGRAMS: [&str; 5] = [
    "urdma",
    "urdmad",
    "liburdma_provider.so",
    "liburdma_standin.so",
    "urdma-hostile",
];

/// Instances of root that the members of a group may use, and programs that all can execute.
#[derive(Debug)]
pub struct Bed {
    /// One host, or two that are joined.
    pub hosts: Vec<Instance>,
    scratch: Scratch,
    _spaces: Option<Namespaces>,
}

/// Which ends a pair of programs has.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// Its meeting point.
    pub name: &'static str,
    /// Whose programs they are.
    pub user: u32,
    /// The hosts of server and client.
    pub hosts: [usize; 2],
}

impl Bed {
    /// One host without a port.
    pub fn up() -> Self {
        let scratch = scratch_with_programs();
        let keys = format!("group = \"{GROUP}\"\n");
        let host = Instance::up_at(scratch.path(), "one", &["127.0.0.1"], &keys).unwrap();
        Self {
            hosts: vec![host],
            scratch,
            _spaces: None,
        }
    }

    /// Two hosts with ports of kind `udp`.
    pub fn up_two() -> Self {
        let scratch = scratch_with_programs();
        let spaces = spaces(1500);
        let keys = format!("group = \"{GROUP}\"\n[port]\nkind = \"udp\"\n");
        let hosts = [(0, "one"), (1, "two")].map(|(end, name)| {
            let place = Place {
                namespace: Some(spaces.name(end).to_owned()),
                user: None,
            };
            Instance::up_at_place(place, scratch.path(), name, &ADDRESSES[end], &keys).unwrap()
        });
        Self {
            hosts: hosts.into(),
            scratch,
            _spaces: Some(spaces),
        }
    }

    /// The host that is attacked.
    pub fn host(&self) -> &Instance {
        &self.hosts[0]
    }

    /// The socket at which the pair `name` meets.
    pub fn meeting_point(&self, name: &str) -> PathBuf {
        self.scratch.path().join("meet").join(name)
    }

    /// A program of the scratch directory, or of an absolute path, as a member of the group.
    pub fn as_user(&self, user: u32, program: &str) -> Command {
        let group = Group::from_name(GROUP).unwrap().unwrap().gid;
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={user}"))
            .arg(format!("--groups={group}"))
            .args(["--inh-caps=-all", "--no-new-privs"])
            .arg(self.scratch.path().join(program));
        command
    }

    /// `urdma run` on a host.
    pub fn run(&self, user: u32, host: usize) -> Command {
        let mut command = self.as_user(user, "urdma");
        command
            .args(["run", "--lease", "never", "--run-dir"])
            .arg(self.hosts[host].run_dir())
            .arg("--");
        command
    }

    /// One end of a scenario of verbs-check: 0 is the server.
    pub fn check_end(
        &self,
        scenario: &str,
        (pair, end): (&Pair, usize),
        numbers: &[&str],
    ) -> Process {
        let mut command = self.run(pair.user, pair.hosts[end]);
        command
            .arg(self.scratch.path().join("verbs-check"))
            .args([scenario, ["server", "client"][end]])
            .arg(self.meeting_point(pair.name))
            .args(numbers);
        Process::start(&mut command).unwrap()
    }

    /// `urdma-hostile` of a user on the host that is attacked.
    pub fn hostile(&self, user: u32, attack: &str, duration: Duration) -> Command {
        let mut command = self.as_user(user, "urdma-hostile");
        command.arg("--run-dir").arg(self.host().run_dir());
        command.args(["--attack", attack, "--seconds"]);
        command.arg(duration.as_secs_f64().to_string());
        command
    }

    /// The names of all attacks.
    pub fn attacks(&self) -> Vec<String> {
        let mut list = self.hostile(ATTACKER, "list", Duration::ZERO);
        let ended = Process::run(&mut list, SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        ended.output.lines().map(str::to_owned).collect()
    }

    /// Waits until no attacker has a slot and urdmad no descriptors but those it had.
    pub fn expect_nothing_left_of_attackers(&self, descriptors: usize) {
        wait_until("the end of the attackers' slots", SHORT, || {
            let status = self.host().status().unwrap();
            let slots = status["slots"].as_array().unwrap();
            let is_honest = |slot: &serde_json::Value| HONEST.iter().any(|uid| slot["uid"] == *uid);
            slots.iter().all(is_honest)
        })
        .unwrap();
        let status = self.host().status().unwrap();
        for list in ["listeners", "bound", "groups"] {
            assert_eq!(status[list].as_array().unwrap().len(), 0, "{status}");
        }
        wait_until("closing of descriptors", SHORT, || {
            descriptors_of(self.host().daemon_pid().unwrap()) <= descriptors + RECORDINGS
        })
        .unwrap();
    }

    /// Takes the hosts down and checks that they leave nothing behind.
    pub fn down(mut self) {
        for host in std::mem::take(&mut self.hosts) {
            host.down().unwrap();
        }
    }
}

impl Drop for Bed {
    /// Prints the last warnings of each host, if a test has failed.
    fn drop(&mut self) {
        for host in &self.hosts {
            let log = fs::read_to_string(host.run_dir().join("urdmad.log")).unwrap_or_default();
            let warnings = log.lines().filter(|line| !line.contains(" INFO "));
            let last = last_lines(warnings);
            eprintln!("{}: {last}", host.run_dir().display());
        }
    }
}

fn last_lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = lines.collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

fn scratch_with_programs() -> Scratch {
    let scratch = Scratch::new("hostile").unwrap();
    let dir = scratch.path();
    let built = binary_dir().unwrap();
    for program in PROGRAMS {
        fs::copy(built.join(program), dir.join(program)).unwrap();
    }
    fs::copy(VERBS_CHECK, dir.join("verbs-check")).unwrap();
    fs::create_dir(dir.join("meet")).unwrap();
    for (path, mode) in [(dir.to_owned(), 0o755), (dir.join("meet"), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    scratch
}

/// Two ends that check every octet and every completion until they are told to end.
#[derive(Debug)]
pub struct Steady {
    /// Server and client.
    pub ends: [Process; 2],
    name: &'static str,
    run_dirs: [PathBuf; 2],
}

/// What a steady pair has done, and the processor time that it has used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    operations: u64,
    processor_s: f64,
}

impl Work {
    /// Operations in a second of processor time.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.processor_s
    }
}

impl std::ops::Sub for Work {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            operations: self.operations - before.operations,
            processor_s: self.processor_s - before.processor_s,
        }
    }
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, more: Self) {
        self.operations += more.operations;
        self.processor_s += more.processor_s;
    }
}

impl Steady {
    /// A pair of the first honest user on the first host.
    pub fn start(bed: &Bed) -> Self {
        let pair = Pair {
            name: "steady",
            user: HONEST[0],
            hosts: [0, 0],
        };
        Self::start_pair(bed, &pair)
    }

    /// Any pair.
    pub fn start_pair(bed: &Bed, pair: &Pair) -> Self {
        let ends = [0, 1].map(|end| bed.check_end("steady", (pair, end), &["1"]));
        let mut steady = Self {
            ends,
            name: pair.name,
            run_dirs: pair.hosts.map(|host| bed.hosts[host].run_dir().to_owned()),
        };
        for end in &mut steady.ends {
            end.wait_for_text(&format!("\n{REPORT}"), SHORT).unwrap();
        }
        steady
    }

    /// The numbers of its queue pairs, and where their streams began.
    pub fn connection(&self) -> String {
        let printed = self.ends[0].printed();
        let line = printed
            .lines()
            .find_map(|line| line.strip_prefix("connection "));
        line.unwrap().to_owned()
    }

    /// Fails with what both say, without their reports, if an end has ended.
    pub fn expect_alive(&mut self, when: &str) {
        if self.ends.iter_mut().all(Process::is_running) {
            return;
        }
        // The other one soon says why.
        std::thread::sleep(Duration::from_secs(1));
        let said = self.ends.each_ref().map(|end| {
            let printed = end.printed();
            let lines = printed.lines().filter(|line| !line.starts_with(REPORT));
            lines.collect::<Vec<_>>().join("\n")
        });
        let (said, traced) = (said.join("\n"), self.traces().join("\n"));
        panic!("{when}: {} has ended: {said}\n{traced}", self.name);
    }

    /// The last events of the connection at each end.
    fn traces(&self) -> [String; 2] {
        let connection = self.connection();
        let qpn = connection.split(':').next().unwrap();
        self.run_dirs.each_ref().map(|run_dir| {
            let mut trace = urdma().unwrap();
            trace.arg("trace").arg("--run-dir").arg(run_dir);
            let traced = Process::run(trace.args(["--conn", qpn]), SHORT).unwrap();
            last_lines(traced.output.lines())
        })
    }

    /// The numbers of operations that an end has reported.
    fn reports(end: &Process) -> Vec<u64> {
        let printed = end.printed();
        let complete = printed.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let numbers = complete
            .lines()
            .filter_map(|line| line.strip_prefix(REPORT));
        numbers.map(|number| number.parse().unwrap()).collect()
    }

    /// The work of both ends so far.
    pub fn work(&self) -> Work {
        let last = |end| Self::reports(end).last().copied().unwrap_or(0);
        let used = |end: &Process| end.processor_time().unwrap().as_secs_f64();
        Work {
            operations: self.ends.iter().map(last).sum(),
            processor_s: self.ends.iter().map(used).sum(),
        }
    }

    /// Waits until both ends have completed more.
    pub fn expect_progress(&mut self, when: &str) {
        let before = self.ends.each_ref().map(|end| Self::reports(end).len());
        let has_reported = |steady: &Self| {
            let now = steady.ends.each_ref().map(|end| Self::reports(end).len());
            now.iter().zip(before).all(|(now, before)| *now > before)
        };
        let start = Instant::now();
        while !has_reported(self) {
            self.expect_alive(when);
            assert!(
                start.elapsed() < SHORT,
                "{when}: {} makes no progress",
                self.name
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends both, which check the whole memory of each other first.
    pub fn end(self) {
        for end in &self.ends {
            end.signal(Signal::SIGUSR1).unwrap();
        }
        for end in self.ends {
            let ended = end.wait(CHECK_LIMIT).unwrap();
            assert!(ended.succeeded(), "{}: {}", self.name, ended.describe());
        }
    }
}

/// Runs `beside` while pairs connect, check everything and end, one after the other; `beside` gets
/// a check that none has failed. Fails if none has connected.
pub fn beside_pairs_that_connect(bed: &Bed, beside: impl FnOnce(&dyn Fn(&str))) {
    let (is_over, pairs) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect_again_and_again(bed, &is_over, &pairs));
        let _end_of_pairs = EndOfPairs(&is_over);
        beside(&|when| {
            let has_failed = connecting.is_finished();
            assert!(!has_failed, "{when}: the pair that connects has failed");
        });
    });
    let pairs = pairs.into_inner();
    println!("{pairs} pairs have connected meanwhile");
    assert!(pairs > 0);
}

/// Runs such pairs until `is_over`; counts them.
fn connect_again_and_again(bed: &Bed, is_over: &AtomicBool, pairs: &AtomicUsize) {
    let anew = Pair {
        name: "anew",
        user: HONEST[0],
        hosts: [0, 0],
    };
    while !is_over.load(Ordering::Relaxed) {
        let seed = pairs.load(Ordering::Relaxed).to_string();
        let start = |end| bed.check_end("mix", (&anew, end), &[&seed, FEW]);
        let ended = [0, 1].map(start).map(|end| end.wait(CHECK_LIMIT).unwrap());
        let said = ended.each_ref().map(Ended::describe).join("; ");
        assert!(ended.iter().all(Ended::succeeded), "pair {seed}: {said}");
        pairs.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends these pairs, also when a test fails.
struct EndOfPairs<'a>(&'a AtomicBool);

impl Drop for EndOfPairs<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
