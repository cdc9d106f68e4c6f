//! Users of pools, nodes, metadata services and urdmad are killed at random moments, while clients
//! in Rust and in C, over connections, over initiators, and switching between the two all the time,
//! read and write data that they check.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, LeasePolicy, Scratch};
use urdma_harness::process::{wait_until, Process};
use urdma_tests::{
    alone, compile_with_pool, descriptors_of, expect_all_taken_back, link_urdmadv, ports,
    start_end, OneHost, CHECK_LIMIT,
};
use urdma_types::Rng;

#[path = "pool_kills/load.rs"]
mod load;

/// What an end does, and over what: `node`, `rc`, `dc` or `switched`.
const ROLE: &str = "URDMA_TEST_KILLS_ROLE";
/// The addresses of the nodes, or that of this node first.
const ADDRESSES: &str = "URDMA_TEST_KILLS_ADDRESSES";
const SERVICE: &str = "URDMA_TEST_KILLS_SERVICE";
/// The area of a client in the memory of the nodes.
const AREA: &str = "URDMA_TEST_KILLS_AREA";
/// The file of a client's [`Progress`].
const PROGRESS: &str = "URDMA_TEST_KILLS_PROGRESS";
/// How many are killed, in `make test-all`.
const COUNT: &str = "URDMA_KILLS";
const HOST: &str = "127.0.0.1";
const NODES: usize = 2;
/// How long what has to happen may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest time before a victim is killed, and before it is started again.
const PAUSE_US: u64 = 20_000;

/// Clients: over what, and whether they are in C.
type Clients = [(&'static str, bool); 5];
const STEADY: Clients = [
    ("rc", false),
    ("dc", false),
    ("dc", false),
    ("rc", true),
    ("dc", true),
];
const SWITCHING: Clients = [
    ("switched", false),
    ("switched", false),
    ("switched", false),
    ("switched", true),
    ("switched", true),
];

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Client(usize),
    Node(usize),
    Service,
    Daemon,
}

/// In this order, again and again.
const VICTIMS: [Victim; 20] = [
    Victim::Client(0),
    Victim::Node(0),
    Victim::Client(3),
    Victim::Service,
    Victim::Client(1),
    Victim::Node(1),
    Victim::Client(4),
    Victim::Client(2),
    Victim::Node(0),
    Victim::Client(0),
    Victim::Node(1),
    Victim::Client(3),
    Victim::Client(1),
    Victim::Service,
    Victim::Node(0),
    Victim::Client(4),
    Victim::Node(0),
    Victim::Client(2),
    Victim::Node(1),
    Victim::Daemon,
];

/// What a client has done: rounds in which all requests to all nodes succeeded, how often a request
/// to each node, or opening a virtual queue pair to it, has failed, and how often virtual queue
/// pairs have switched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    rounds: u64,
    errors: [u64; NODES],
    switches: u64,
}

impl Progress {
    fn write(&self, file: &File) {
        let [first, second] = self.errors;
        let words = [self.rounds, first, second, self.switches];
        let octets = words.map(u64::to_ne_bytes).concat();
        file.write_all_at(&octets, 0).unwrap();
    }

    fn read(file: &File) -> Self {
        let word = |n: u64| {
            let mut octets = [0; 8];
            // A client that has just begun has written nothing.
            let read = file.read_at(&mut octets, n * 8).unwrap();
            if read == octets.len() {
                u64::from_ne_bytes(octets)
            } else {
                0
            }
        };
        Self {
            rounds: word(0),
            errors: [word(1), word(2)],
            switches: word(3),
        }
    }
}

/// A client that runs.
struct Client {
    process: Process,
    progress: File,
    is_switching: bool,
}

/// Everything that an urdmad serves.
struct Crowd {
    service: Process,
    nodes: Vec<Process>,
    clients: Vec<Client>,
    /// Descriptors of the service without nodes and clients.
    descriptors: usize,
}

struct Bed {
    one: OneHost,
    clients: Clients,
    libraries: Scratch,
    program: PathBuf,
    addresses: [String; NODES],
    service: String,
    /// Clients that were started.
    started: usize,
    rng: Rng,
}

impl Bed {
    fn up(seed: u64, clients: Clients) -> Self {
        let libraries = Scratch::new("pool-kills").unwrap();
        link_urdmadv(libraries.path());
        let program = libraries.path().join("check");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/pool-c-check/load.c");
        compile_with_pool(&program, source.as_ref(), libraries.path());
        Self {
            one: OneHost::up(),
            clients,
            libraries,
            program,
            addresses: [(); NODES].map(|()| format!("{HOST}:{}", ports())),
            service: format!("{HOST}:{}", ports()),
            started: 0,
            rng: Rng::new(seed),
        }
    }

    fn start(&self, role: &str, addresses: &str, area: &str, progress: &str) -> Process {
        let libraries = self.libraries.path().to_str().unwrap();
        let environment = [
            (ROLE, role),
            (ADDRESSES, addresses),
            (SERVICE, &self.service),
            (AREA, area),
            (PROGRESS, progress),
            ("LD_LIBRARY_PATH", libraries),
        ];
        start_end(&self.one.host, &environment)
    }

    fn start_c(&self, over: &str, area: &str, progress: &str) -> Process {
        let [first, second] = self.addresses.each_ref().map(|address| {
            let (_, port) = address.split_once(':').unwrap();
            port
        });
        let program = self.program.to_str().unwrap();
        let argv = [program, over, first, second, area, progress];
        let mut command = self.one.host.run(LeasePolicy::Never, &argv).unwrap();
        command.env("LD_LIBRARY_PATH", self.libraries.path());
        Process::start(&mut command).unwrap()
    }

    fn service(&self) -> Process {
        let program = binary_dir().unwrap().join("urdma-metad");
        let argv = [program.to_str().unwrap(), "--listen", &self.service];
        let mut command = self.one.host.run(LeasePolicy::Never, &argv).unwrap();
        let mut process = Process::start(&mut command).unwrap();
        process.wait_for_text("listens", CHECK_LIMIT).unwrap();
        process
    }

    fn node(&self, n: usize) -> Process {
        let mut process = self.start("node", &self.addresses[n], "", "");
        process.wait_for_text("listens", CHECK_LIMIT).unwrap();
        process
    }

    fn client(&mut self, n: usize) -> Client {
        // What one that was killed has posted may still be executed.
        let area = (self.started % load::AREAS).to_string();
        let path = self
            .libraries
            .path()
            .join(format!("client-{}", self.started));
        self.started += 1;
        fs::write(&path, []).unwrap();
        let progress = File::open(&path).unwrap();
        let path = path.to_str().unwrap();
        let (over, is_c) = self.clients[n];
        let process = match is_c {
            true => self.start_c(over, &area, path),
            false => self.start(over, &self.addresses.join(","), &area, path),
        };
        Client {
            process,
            progress,
            is_switching: over == "switched",
        }
    }

    fn crowd(&mut self) -> Crowd {
        let service = self.service();
        let descriptors = descriptors_of(service.id());
        Crowd {
            service,
            nodes: (0..NODES).map(|n| self.node(n)).collect(),
            clients: (0..self.clients.len()).map(|n| self.client(n)).collect(),
            descriptors,
        }
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_micros(self.rng.below(PAUSE_US)));
    }

    /// Kills one of the crowd and starts another one in its place.
    fn kill(&mut self, victim: Victim, crowd: &mut Crowd) {
        self.pause();
        match victim {
            Victim::Client(n) => {
                kill(&mut crowd.clients[n].process);
                self.pause();
                crowd.clients[n] = self.client(n);
            }
            Victim::Node(n) => {
                kill(&mut crowd.nodes[n]);
                self.pause();
                crowd.nodes[n] = self.node(n);
            }
            Victim::Service => {
                kill(&mut crowd.service);
                self.pause();
                crowd.service = self.service();
            }
            Victim::Daemon => unreachable!("it takes all with it"),
        }
    }

    /// All processes end when urdmad was killed, with an error of their own; nothing of them is
    /// left with its successor.
    fn kill_daemon(&self, crowd: Crowd) {
        self.one.host.kill_and_restart().unwrap();
        let Crowd {
            service,
            nodes,
            clients,
            ..
        } = crowd;
        let clients = clients.into_iter().map(|client| client.process);
        for process in clients.chain(nodes).chain([service]) {
            let ended = process.wait(LIMIT).unwrap();
            assert!(
                ended.output.contains("urdmad has ended"),
                "{}",
                ended.describe()
            );
        }
        expect_all_taken_back(&self.one.host);
    }

    /// All are killed, and neither the service nor urdmad keeps anything.
    fn end(self, crowd: Crowd, before: usize) {
        for client in crowd.clients {
            stop(client.process);
        }
        crowd.nodes.into_iter().for_each(stop);
        let of_service = || descriptors_of(crowd.service.id());
        wait_until("closing connections", LIMIT, || {
            of_service() == crowd.descriptors
        })
        .unwrap_or_else(|late| panic!("{late}: {} of {}", of_service(), crowd.descriptors));
        stop(crowd.service);
        expect_all_taken_back(&self.one.host);
        let held = || self.held();
        // Before, it may have had one of a command that was just over.
        wait_until("closing descriptors", LIMIT, || held() <= before)
            .unwrap_or_else(|late| panic!("{late}: {} of {before}", held()));
        self.one.down();
    }

    /// Descriptors of urdmad.
    fn held(&self) -> usize {
        descriptors_of(self.one.host.daemon_pid().unwrap())
    }
}

fn kill(process: &mut Process) {
    process.signal(Signal::SIGKILL).unwrap();
    wait_until("the end of a process", LIMIT, || !process.is_running()).unwrap();
}

fn stop(mut process: Process) {
    kill(&mut process);
}

impl Crowd {
    fn progress(&self) -> Vec<Progress> {
        let files = self.clients.iter().map(|client| &client.progress);
        files.map(Progress::read).collect()
    }

    /// Each client goes on for two rounds, and, if it switches, for two switches.
    fn expect_progress(&mut self) {
        let before = self.progress();
        let began = Instant::now();
        while !self.has_gone_on(&before) {
            for client in &mut self.clients {
                assert!(client.process.is_running(), "{}", client.process.printed());
            }
            let processes = self.nodes.iter_mut().chain([&mut self.service]);
            for process in processes {
                assert!(process.is_running(), "{}", process.printed());
            }
            assert!(
                began.elapsed() < LIMIT,
                "a client hangs: {before:?}, {:?}",
                self.progress()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn has_gone_on(&self, before: &[Progress]) -> bool {
        let mut all = self.clients.iter().zip(self.progress()).zip(before);
        all.all(|((client, now), then)| {
            let switches = if client.is_switching { 2 } else { 0 };
            now.rounds >= then.rounds + 2 && now.switches >= then.switches + switches
        })
    }
}

/// What kills have done to the others: all have errors of the nodes that were killed, and none of
/// others.
fn expect_errors_of(victims: &[Victim], before: &[Progress], after: &[Progress]) {
    for (n, (before, after)) in before.iter().zip(after).enumerate() {
        if victims.contains(&Victim::Client(n)) {
            continue;
        }
        for node in 0..NODES {
            assert_eq!(
                victims.contains(&Victim::Node(node)),
                after.errors[node] > before.errors[node],
                "client {n}, node {node}, after {victims:?}: {before:?}, {after:?}"
            );
        }
    }
}

fn kill_under_load(clients: Clients, count: usize) {
    let _alone = alone();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut bed = Bed::up(seed, clients);
    let mut before = bed.held();
    let mut crowd = bed.crowd();
    let mut left: Vec<Victim> = VICTIMS.into_iter().cycle().take(count).collect();
    left.reverse();
    while let Some(victim) = left.pop() {
        crowd.expect_progress();
        println!("{} left: {victim:?}", left.len());
        if victim == Victim::Daemon {
            bed.pause();
            bed.kill_daemon(crowd);
            before = bed.held();
            crowd = bed.crowd();
            continue;
        }
        let progress = crowd.progress();
        bed.kill(victim, &mut crowd);
        let mut victims = vec![victim];
        // Others while the clients reconnect.
        while bed.rng.percent(50) && left.last().is_some_and(|next| *next != Victim::Daemon) {
            victims.extend(left.pop());
            bed.kill(victims[victims.len() - 1], &mut crowd);
        }
        println!("{victims:?}");
        crowd.expect_progress();
        expect_errors_of(&victims, &progress, &crowd.progress());
    }
    bed.end(crowd, before);
}

#[test]
#[ignore = "an end, which the other tests start"]
fn end() {
    load::run();
}

#[test]
fn kills_of_each_kind_disturb_no_one_else() {
    kill_under_load(STEADY, VICTIMS.len());
}

#[test]
fn kills_during_switches_disturb_no_one_else() {
    kill_under_load(SWITCHING, VICTIMS.len());
}

#[test]
#[ignore = "several minutes"]
fn a_thousand_kills_disturb_no_one_else() {
    kill_under_load(STEADY, many());
}

#[test]
#[ignore = "several minutes"]
fn a_thousand_kills_during_switches_disturb_no_one_else() {
    kill_under_load(SWITCHING, many());
}

fn many() -> usize {
    std::env::var(COUNT).map_or(1000, |count| count.parse().unwrap())
}
