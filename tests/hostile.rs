//! A process that keeps no rule (`urdma-hostile`) beside programs of another user on one instance.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Group;
use urdma_harness::instance::{binary_dir, Instance, Scratch};
use urdma_harness::process::{wait_until, Ended, Process};
use urdma_tests::{alone, descriptors_of, expect_all_taken_back, CHECK_LIMIT, SHORT, VERBS_CHECK};

/// Recordings of a user's processes that urdmad keeps after their end (doc/tracing.md).
const RECORDINGS: usize = 16;
/// User ids without accounts.
const ATTACKER: u32 = 64_001;
const HONEST: u32 = 64_002;
/// The group whose members may use the instance.
const GROUP: &str = "users";
/// How long each attack lasts.
const ATTACK: Duration = Duration::from_millis(1500);
/// The part of its share that an honest pair keeps, and how often an attack is compared before it
/// counts as one that takes more.
const SHARE: f64 = 0.8;
const COMPARISONS: usize = 12;
/// How long an attack may take to end after that: it waits for slots and for urdmad.
const ATTACK_LIMIT: Duration = Duration::from_secs(30);
/// What begins a line in which an end of a steady pair reports its operations.
const REPORT: &str = "mixed ";
/// Operations of each end of a pair that connects anew again and again.
const FEW: &str = "300";
/// The duration of an attack that a test ends.
const UNTIL_KILLED: Duration = Duration::from_secs(3600);
/// Programs that connect one after the other, some connections each.
const ROUNDS_OF_UCMATOSE: usize = 3;
const PROGRAMS: [&str; 5] = [
    "urdma",
    "urdmad",
    "liburdma_provider.so",
    "liburdma_standin.so",
    "urdma-hostile",
];

/// An instance of root that the members of a group may use, and programs that all can execute.
struct Bed {
    host: Instance,
    scratch: Scratch,
}

impl Bed {
    fn up() -> Self {
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
        let keys = format!("group = \"{GROUP}\"\n");
        let host = Instance::up_at(dir, "one", &["127.0.0.1"], &keys).unwrap();
        Self { host, scratch }
    }

    fn meeting_point(&self, name: &str) -> PathBuf {
        self.scratch.path().join("meet").join(name)
    }

    /// A program of the scratch directory, or of an absolute path, as a member of the group.
    fn as_user(&self, user: u32, program: &str) -> Command {
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

    /// One end of a scenario of verbs-check; the meeting point is that of the pair `name`.
    fn check_end(&self, scenario: &str, role: &str, name: &str, numbers: &[&str]) -> Process {
        let mut command = self.as_user(HONEST, "urdma");
        command
            .args(["run", "--lease", "never", "--run-dir"])
            .arg(self.host.run_dir())
            .arg("--")
            .arg(self.scratch.path().join("verbs-check"))
            .args([scenario, role])
            .arg(self.meeting_point(name))
            .args(numbers);
        Process::start(&mut command).unwrap()
    }

    /// rdma-core's `ucmatose`, of the user that is attacked.
    fn ucmatose(&self, arguments: &[&str]) -> Process {
        let mut command = self.as_user(HONEST, "urdma");
        command
            .args(["run", "--lease", "never", "--run-dir"])
            .arg(self.host.run_dir())
            .args(["--", "/usr/bin/ucmatose"])
            .args(arguments);
        Process::start(&mut command).unwrap()
    }

    fn hostile(&self, attack: &str) -> Command {
        self.hostile_for(attack, ATTACK)
    }

    fn hostile_for(&self, attack: &str, duration: Duration) -> Command {
        let mut command = self.as_user(ATTACKER, "urdma-hostile");
        command.arg("--run-dir").arg(self.host.run_dir());
        command.args(["--attack", attack, "--seconds"]);
        command.arg(duration.as_secs_f64().to_string());
        command
    }

    fn attacks(&self) -> Vec<String> {
        let ended = Process::run(&mut self.hostile("list"), SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        ended.output.lines().map(str::to_owned).collect()
    }

    /// Waits until the attacker has no slot and urdmad no descriptors but those it had, and the
    /// recordings of the attacker that it keeps.
    fn expect_nothing_left_of_the_attacker(&self, descriptors: usize) {
        wait_until("the end of the attacker's slots", SHORT, || {
            let status = self.host.status().unwrap();
            let slots = status["slots"].as_array().unwrap();
            slots.iter().all(|slot| slot["uid"] == HONEST)
        })
        .unwrap();
        let status = self.host.status().unwrap();
        for list in ["listeners", "bound", "groups"] {
            assert_eq!(status[list].as_array().unwrap().len(), 0, "{status}");
        }
        wait_until("closing of descriptors", SHORT, || {
            descriptors_of(self.host.daemon_pid().unwrap()) <= descriptors + RECORDINGS
        })
        .unwrap();
    }
}

/// Regions that a process has mapped.
fn regions_of(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.matches("memfd:urdma-").count()
}

/// Processor time that the threads of a process have used.
fn processor_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_task = |task: fs::DirEntry| -> u64 {
        let numbers = fs::read_to_string(task.path().join("schedstat")).unwrap();
        numbers.split_whitespace().next().unwrap().parse().unwrap()
    };
    tasks.map(|task| of_task(task.unwrap())).sum()
}

/// Two ends that check every octet and every completion until they are told to end.
struct Steady {
    ends: [Process; 2],
}

impl Steady {
    fn start(bed: &Bed) -> Self {
        let ends = ["server", "client"].map(|role| bed.check_end("steady", role, "steady", &["1"]));
        let mut steady = Self { ends };
        for end in &mut steady.ends {
            end.wait_for_text(&format!("\n{REPORT}"), SHORT).unwrap();
        }
        steady
    }

    /// The numbers of its queue pairs, and where their streams began.
    fn connection(&self) -> String {
        let printed = self.ends[0].printed();
        let line = printed
            .lines()
            .find_map(|line| line.strip_prefix("connection "));
        line.unwrap().to_owned()
    }

    /// Fails with what both say, without their reports, if an end has ended.
    fn expect_alive(&mut self, when: &str) {
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
        panic!("{when}: {}", said.join("\n"));
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

    /// Operations that have completed at both ends.
    fn completed(&self) -> u64 {
        let last = |end| Self::reports(end).last().copied().unwrap_or(0);
        self.ends.iter().map(last).sum()
    }

    /// Processor time that both ends have used, in seconds.
    fn processor_s(&self) -> f64 {
        let used_ns: u64 = self.ends.iter().map(|end| processor_ns(end.id())).sum();
        used_ns as f64 / 1e9
    }

    /// Waits until both ends have completed more.
    fn expect_progress(&mut self, when: &str) {
        let before = self.ends.each_ref().map(|end| Self::reports(end).len());
        let has_reported = |steady: &Self| {
            let now = steady.ends.each_ref().map(|end| Self::reports(end).len());
            now.iter().zip(before).all(|(now, before)| *now > before)
        };
        let start = Instant::now();
        while !has_reported(self) {
            self.expect_alive(when);
            assert!(start.elapsed() < SHORT, "{when}: no progress");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(self) {
        for end in &self.ends {
            end.signal(Signal::SIGUSR1).unwrap();
        }
        for end in self.ends {
            let ended = end.wait(CHECK_LIMIT).unwrap();
            assert!(ended.succeeded(), "{}", ended.describe());
        }
    }
}

/// Runs pairs that connect, check everything and end, until `is_over`; counts them.
fn connect_again_and_again(bed: &Bed, is_over: &AtomicBool, pairs: &AtomicUsize) {
    while !is_over.load(Ordering::Relaxed) {
        let seed = pairs.load(Ordering::Relaxed).to_string();
        let start = |role| bed.check_end("mix", role, "anew", &[&seed, FEW]);
        let ended = ["server", "client"].map(start);
        let ended = ended.map(|end| end.wait(CHECK_LIMIT).unwrap());
        let said = ended.each_ref().map(Ended::describe).join("; ");
        assert!(ended.iter().all(Ended::succeeded), "pair {seed}: {said}");
        pairs.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the other pairs, also when a test fails.
struct EndOfPairs<'a>(&'a AtomicBool);

impl Drop for EndOfPairs<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs an attack beside a steady pair; returns the operations of the pair in a second of the
/// processor time that it had.
fn attack(bed: &Bed, steady: &mut Steady, name: &str, seed: usize) -> f64 {
    let mut command = bed.hostile(name);
    command.args(["--connection", &steady.connection(), "--seed"]);
    command.arg(seed.to_string());
    let (before, used_before_s) = (steady.completed(), steady.processor_s());
    let attacking = Process::start(&mut command).unwrap();
    steady.expect_progress(name);
    let ended = attacking.wait(ATTACK_LIMIT).unwrap();
    // An attack that does not find the pair fails for the same reason.
    steady.expect_alive(name);
    assert!(
        ended.succeeded(),
        "{name}: {}{}",
        ended.output,
        ended.describe()
    );
    let operations = (steady.completed() - before) as f64;
    let rate = operations / (steady.processor_s() - used_before_s);
    print!("{}", ended.output);
    rate
}

/// Runs `beside` beside a steady pair and a pair that connects again and again, and checks that
/// nothing is left of the attacker.
fn with_honest_pairs(beside: impl FnOnce(&Bed, &mut Steady, &dyn Fn(&str))) {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let regions = steady.ends.each_ref().map(|end| regions_of(end.id()));
    let descriptors = descriptors_of(bed.host.daemon_pid().unwrap());
    let (is_over, pairs) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect_again_and_again(&bed, &is_over, &pairs));
        let _end_of_pairs = EndOfPairs(&is_over);
        beside(&bed, &mut steady, &|name| {
            let has_failed = connecting.is_finished();
            assert!(!has_failed, "{name}: the other pair has failed");
        });
    });
    println!(
        "{} pairs have connected meanwhile",
        pairs.load(Ordering::Relaxed)
    );
    assert!(pairs.load(Ordering::Relaxed) > 0);
    bed.expect_nothing_left_of_the_attacker(descriptors);
    for (end, before) in steady.ends.iter().zip(regions) {
        wait_until("the end of channels", SHORT, || {
            regions_of(end.id()) <= before
        })
        .unwrap();
    }
    steady.end();
    expect_all_taken_back(&bed.host);
    bed.host.down().unwrap();
}

#[test]
fn programs_of_another_user_lose_nothing_while_a_process_attacks_them() {
    with_honest_pairs(|bed, steady, expect_others| {
        for name in bed.attacks() {
            attack(bed, steady, &name, std::process::id() as usize);
            expect_others(&name);
        }
    });
}

// The scheduler gives every runnable thread its share of the processors, so what counts is what the
// pair does with the processor time that it has. Beside 20 busy threads on two processors a single
// rate of `spin` is 40 to 150 % of the median, and as much depends on which processors the ends of
// the pair have.
#[test]
#[ignore = "make test-all"]
fn honest_pair_keeps_its_share_beside_each_attack() {
    with_honest_pairs(|bed, steady, _| {
        let seed = std::process::id() as usize;
        for name in bed.attacks().iter().filter(|name| *name != "spin") {
            let mut kept = 0.0;
            for _ in 0..COMPARISONS {
                let share = attack(bed, steady, "spin", seed);
                kept = attack(bed, steady, name, seed) / share;
                if kept >= SHARE {
                    break;
                }
            }
            println!("  the honest pair has {:.0} % of its share", 100.0 * kept);
            assert!(kept >= SHARE, "{name}: {:.0} % of the share", 100.0 * kept);
        }
    });
}

#[test]
fn corrupt_cell_ends_the_connections_to_its_process_and_no_others() {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let mut command = bed.hostile("corrupt");
    command.arg("--meet").arg(bed.meeting_point("corrupted"));
    let attacking = Process::start(&mut command).unwrap();
    let victim = bed.check_end("corrupted", "client", "corrupted", &[]);
    let ended = victim.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    let ended = attacking.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}{}", ended.output, ended.describe());
    steady.expect_progress("a corrupt cell");
    steady.end();
    expect_all_taken_back(&bed.host);
    bed.host.down().unwrap();
}

/// One user has bound every port that it may, and goes on; two programs of another user connect
/// again and again.
#[test]
fn programs_go_on_connecting_while_another_user_binds_all_ports() {
    const CONNECTIONS: &str = "50";
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let mut command = bed.hostile_for("ports", UNTIL_KILLED);
    let mut attacking = Process::start(&mut command).unwrap();
    attacking.wait_for_text("arrived\n", ATTACK_LIMIT).unwrap();
    for _ in 0..ROUNDS_OF_UCMATOSE {
        let server = bed.ucmatose(&["-c", CONNECTIONS]);
        wait_until("a listener", SHORT, || {
            let status = bed.host.status().unwrap();
            !status["listeners"].as_array().unwrap().is_empty()
        })
        .unwrap();
        let client = bed.ucmatose(&["-c", CONNECTIONS, "-s", "127.0.0.1"]);
        for end in [client, server] {
            let ended = end.wait(CHECK_LIMIT).unwrap();
            assert!(ended.succeeded(), "{}", ended.describe());
        }
    }
    assert!(attacking.is_running(), "{}", attacking.printed());
    attacking.signal(Signal::SIGKILL).unwrap();
    attacking.wait(SHORT).unwrap();
    steady.expect_progress("ports");
    steady.end();
    expect_all_taken_back(&bed.host);
    bed.host.down().unwrap();
}

/// A program that may open few files keeps its device, and some descriptors.
#[test]
fn program_with_few_descriptors_keeps_its_device_while_a_crowd_offers_channels() {
    const FREE: usize = 28;
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    let open = steady.ends.each_ref().map(|end| descriptors_of(end.id()));
    for (end, open) in steady.ends.iter().zip(open) {
        let mut limit = bed.as_user(HONEST, "/usr/bin/prlimit");
        limit.args(["--pid", &end.id().to_string()]);
        limit.arg(format!("--nofile={0}:{0}", open + FREE));
        let ended = Process::run(&mut limit, SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    let mut command = bed.hostile("crowd");
    command.args(["--connection", &steady.connection()]);
    let mut attacking = Process::start(&mut command).unwrap();
    let mut most = [0; 2];
    while attacking.is_running() {
        for (most, end) in most.iter_mut().zip(&steady.ends) {
            *most = descriptors_of(end.id()).max(*most);
        }
    }
    let ended = attacking.wait(ATTACK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}{}", ended.output, ended.describe());
    print!("{}", ended.output);
    for (most, open) in most.into_iter().zip(open) {
        let kept = (open + FREE) / 4;
        let range = open + kept..open + FREE;
        assert!(range.contains(&most), "{most} descriptors, not {range:?}");
    }
    steady.expect_progress("crowd");
    steady.end();
    expect_all_taken_back(&bed.host);
    bed.host.down().unwrap();
}

/// A program that is stopped, by a debugger for example, keeps its device and its connection.
#[test]
fn stopped_program_keeps_its_device_while_a_process_attacks() {
    let _alone = alone();
    let bed = Bed::up();
    let mut steady = Steady::start(&bed);
    for name in ["churn", "statuses"] {
        for end in &steady.ends {
            end.signal(Signal::SIGSTOP).unwrap();
        }
        let mut command = bed.hostile(name);
        command.args(["--connection", &steady.connection()]);
        let ended = Process::run(&mut command, ATTACK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{name}: {}", ended.output);
        for end in &steady.ends {
            end.signal(Signal::SIGCONT).unwrap();
        }
        steady.expect_progress(name);
    }
    steady.end();
    expect_all_taken_back(&bed.host);
    bed.host.down().unwrap();
}
