//! Connections over rings for a long time: streams with changes of every kind, whose digests agree,
//! and programs and urdmads that are killed at random moments (doc/sockets.md).
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use urdma_harness::process::{wait_until, Process};
use urdma_tests::rings::{at_the_end, client, from_call, reasons};
use urdma_tests::{alone, descriptors_of, ports, OneHost};
use urdma_types::Rng;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings/endurance.py");
/// Octets that are sent each way, in `make test-all`.
const OCTETS: &str = "URDMA_SOCKET_OCTETS";
/// How many are killed, in `make test-all`.
const KILLS: &str = "URDMA_SOCKET_KILLS";
/// Octets of a connection, each way: `STREAM` of the program.
const STREAM: u64 = 16 << 20;
/// Limit of each awaited change.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest time before a victim is killed, and before it is started again.
const PAUSE_US: u64 = 20_000;
const CLIENTS: usize = 3;
/// Connections of a client.
const CONNECTIONS: u64 = 4;
/// One in this many kills is of urdmad.
const DAEMON_EVERY: usize = 8;
/// The share of the last kills, which leave urdmad alone: what it has is compared before and after.
const LAST: usize = 4;
/// What the allocator of urdmad may keep meanwhile, octets.
const GROWTH: u64 = 512 << 10;

fn start(one: &OneHost, words: &[&str]) -> Process {
    let argv: Vec<&str> = ["python3", PROGRAM].iter().chain(words).copied().collect();
    Process::start(&mut from_call(one, 0, &argv)).unwrap()
}

fn listening(one: &OneHost, words: &[&str]) -> Process {
    let mut process = start(one, words);
    process.wait_for_text("ready", LIMIT).unwrap();
    process
}

/// The lines of the connections, `[number, digest of what was sent, digest of what was received]`.
fn digests(output: &str, role: &str) -> Vec<[String; 3]> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(role));
    let words = lines.map(|line| line.split_whitespace().map(str::to_owned));
    words
        .map(|words| words.collect::<Vec<_>>().try_into().unwrap())
        .collect()
}

fn exchange(octets: u64, limit: Duration) {
    let _alone = alone();
    let seed = std::process::id().to_string();
    println!("seed {seed}");
    let one = OneHost::up();
    let (port, octets_each) = (ports().to_string(), octets.to_string());
    let server = listening(&one, &["offer", &port, &octets_each, &seed]);
    let client = start(&one, &["take", &port, &octets_each, &seed]);
    let [taken, offered] = [client, server].map(|process| {
        let ended = process.wait(limit).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        ended.output
    });
    let (taken, offered) = (digests(&taken, "take"), digests(&offered, "offer"));
    assert_eq!(taken.len() as u64, octets / STREAM);
    let crossed = offered.into_iter().map(|[n, sent, got]| [n, got, sent]);
    assert_eq!(taken, crossed.collect::<Vec<_>>());
    let status = at_the_end(&one);
    println!("{status:?}");
    assert!(status.joined >= octets / STREAM);
    // Some moves to TCP and back, or stays there.
    let both = 2 * octets;
    assert!(
        status.ring_octets > both / 10 && status.ring_octets < both,
        "{status:?}"
    );
    one.down();
}

#[test]
fn streams_with_changes_of_every_kind_arrive_as_they_were_sent() {
    exchange(4 * STREAM, LIMIT);
}

#[test]
#[ignore = "make test-all"]
fn ten_gigabytes_with_changes_of_every_kind_arrive_as_they_were_sent() {
    let octets = std::env::var(OCTETS).map_or(5 << 30, |octets| octets.parse().unwrap());
    exchange(octets / STREAM * STREAM, Duration::from_secs(3600));
}

/// Who is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Client(usize),
    Server,
    Daemon,
}

/// A client that runs.
struct Client {
    process: Process,
    progress: File,
}

impl Client {
    /// Round trips, and connections that have ended.
    fn progress(&self) -> [u64; 2] {
        [0, 8].map(|at| {
            let mut octets = [0; 8];
            // A client that has just begun has written nothing.
            let read = self.progress.read_at(&mut octets, at).unwrap();
            assert!(read == 8 || read == 0);
            u64::from_ne_bytes(octets)
        })
    }
}

struct Bed {
    one: OneHost,
    port: String,
    server: Process,
    clients: Vec<Client>,
    /// Clients that were started.
    started: usize,
    rng: Rng,
}

impl Bed {
    fn up() -> Self {
        let one = OneHost::up();
        let port = ports().to_string();
        let server = listening(&one, &["serve", &port]);
        let mut bed = Self {
            one,
            port,
            server,
            clients: Vec::new(),
            started: 0,
            rng: Rng::new(u64::from(std::process::id())),
        };
        bed.start_clients();
        bed
    }

    fn start_clients(&mut self) {
        self.clients = (0..CLIENTS).map(|_| self.client()).collect();
    }

    fn client(&mut self) -> Client {
        let name = format!("client-{}", self.started);
        let path = self.one.scratch.path().join(name);
        self.started += 1;
        fs::write(&path, []).unwrap();
        let progress = File::open(&path).unwrap();
        let path = path.to_str().unwrap();
        let connections = CONNECTIONS.to_string();
        let process = start(&self.one, &["ask", &self.port, &connections, path]);
        Client { process, progress }
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_micros(self.rng.below(PAUSE_US)));
    }

    /// Kills one, and starts another one in its place.
    fn kill(&mut self, victim: Victim) {
        self.pause();
        match victim {
            Victim::Client(n) => {
                kill(&mut self.clients[n].process);
                self.pause();
                self.clients[n] = self.client();
            }
            Victim::Server => {
                kill(&mut self.server);
                self.pause();
                self.server = listening(&self.one, &["serve", &self.port]);
            }
            Victim::Daemon => self.one.host.kill_and_restart().unwrap(),
        }
    }

    /// Each client goes on for as many round trips as it takes to use all of its connections.
    fn expect_progress(&mut self) {
        let before: Vec<_> = self.clients.iter().map(Client::progress).collect();
        let began = Instant::now();
        loop {
            let now: Vec<_> = self.clients.iter().map(Client::progress).collect();
            let mut both = now.iter().zip(&before);
            if both.all(|(now, then)| now[0] > then[0] + 10 * CONNECTIONS) {
                return;
            }
            let clients = self.clients.iter_mut().map(|client| &mut client.process);
            for process in clients.chain([&mut self.server]) {
                assert!(process.is_running(), "{}", process.printed());
            }
            assert!(
                began.elapsed() < LIMIT,
                "a client hangs: {before:?}, {now:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// How many connections of each client have ended.
    fn ends(&self) -> Vec<u64> {
        self.clients
            .iter()
            .map(|client| client.progress()[1])
            .collect()
    }

    fn daemon(&self) -> u32 {
        self.one.host.daemon_pid().unwrap()
    }

    /// The files that urdmad has in its directory.
    fn files(&self) -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(self.one.host.run_dir()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// Memory of a process that is its own, octets.
fn memory_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

fn stop(mut process: Process) {
    kill(&mut process);
}

fn kill(process: &mut Process) {
    process.signal(Signal::SIGKILL).unwrap();
    wait_until("the end of a process", LIMIT, || !process.is_running()).unwrap();
}

/// Resources in use without a connection.
#[derive(Debug)]
struct Held {
    /// Descriptors of urdmad and of the server.
    descriptors: [usize; 2],
    /// Memory of urdmad, octets.
    memory: u64,
    files: BTreeSet<PathBuf>,
}

impl Bed {
    /// Kills the clients, and says what is left.
    fn held(&mut self) -> Held {
        for client in std::mem::take(&mut self.clients) {
            stop(client.process);
        }
        println!("{:?}", at_the_end(&self.one));
        Held {
            descriptors: self.descriptors(),
            memory: memory_of(self.daemon()),
            files: self.files(),
        }
    }

    fn descriptors(&self) -> [usize; 2] {
        [self.daemon(), self.server.id()].map(descriptors_of)
    }

    /// Kills all, and expects that no more is left than before.
    fn end(mut self, before: &Held) {
        let reasons = reasons(&client(&self.one));
        let after = self.held();
        println!("{reasons:?}; before {before:?}, after {after:?}");
        let is_closed = || {
            let mut both = self.descriptors().into_iter().zip(before.descriptors);
            both.all(|(now, before)| now <= before)
        };
        wait_until("closing descriptors", LIMIT, is_closed)
            .unwrap_or_else(|late| panic!("{late}: {:?}", self.descriptors()));
        assert_eq!(after.files, before.files);
        assert!(after.memory <= before.memory + GROWTH);
        stop(self.server);
        self.one.down();
    }
}

/// The connections of a killed urdmad go on, and those of killed programs end.
fn kill_under_load(count: usize) {
    let _alone = alone();
    let mut bed = Bed::up();
    bed.expect_progress();
    let (files, first_of_last) = (bed.files(), count - count / LAST);
    let mut before = None;
    for number in 0..count {
        if number == first_of_last {
            before = Some(bed.held());
            bed.start_clients();
            bed.expect_progress();
        }
        let victim = match number {
            _ if number % DAEMON_EVERY == DAEMON_EVERY - 1 && before.is_none() => Victim::Daemon,
            _ if number % 4 == 0 => Victim::Server,
            _ => Victim::Client(number % CLIENTS),
        };
        let ends = bed.ends();
        bed.kill(victim);
        bed.expect_progress();
        let now = bed.ends();
        println!("{number}: {victim:?}, {ends:?}, {now:?}");
        match victim {
            Victim::Daemon => {
                assert_eq!(now, ends);
                assert_eq!(bed.files(), files);
            }
            Victim::Server => {
                let mut both = ends.iter().zip(now);
                assert!(both.all(|(before, now)| before + CONNECTIONS <= now));
            }
            Victim::Client(_) => {}
        }
    }
    bed.end(&before.unwrap());
}

#[test]
fn killed_programs_end_their_connections_and_a_killed_urdmad_none() {
    // Others are killed between the last urdmad and the first count of descriptors.
    kill_under_load(12);
}

#[test]
#[ignore = "make test-all"]
fn a_thousand_kills_leave_nothing() {
    kill_under_load(std::env::var(KILLS).map_or(1000, |kills| kills.parse().unwrap()));
}
