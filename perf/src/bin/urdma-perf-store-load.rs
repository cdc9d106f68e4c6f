//! Workers of a key-value store, whose number doubles and halves, measured by
//! `urdma_perf::store_load`:
//!
//! ```text
//! urdma-perf-store-load worker KIND ADDRESS    gets until its standard input ends; its windows,
//!                                              8 at least
//! urdma-perf-store-load load KIND ADDRESS      fills the store, runs workers; figures
//! urdma-perf-store-load late KIND ADDRESS      the same with one worker, which is told to end at
//!                                              once; how many windows it has served
//! ```
//!
//! The node is that of `urdma-perf-store`. A worker gets one key after the other, and notes the
//! time after each window of [`WINDOW`] gets. It serves at its full rate from the end of the first
//! window whose rate is at least [`FULL_SHARE`] of the median of the later half of its windows.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::time::{clock_gettime, ClockId};
use urdma_perf::pool::{config, Way};
use urdma_perf::store::{value, KEYS, USER};
use urdma_perf::store_load::{BEFORE, BESIDE, FULL, MEANWHILE, SERVED, WINDOWS_MIN};
use urdma_pool_verbs::{Client, Config, Geometry, Own, OwnRead, Status, Store};
use urdma_store::{Blocks, Operation, Outcome, Step, HEADER_LEN};

type Ended<T> = Result<T, String>;

/// Gets of a window.
const WINDOW: u32 = 100;
const FULL_SHARE: f64 = 0.9;
/// Workers that are there all the time, and those that come and go.
const WORKERS: usize = 2;
/// How often their number doubles and halves.
const DOUBLINGS: usize = 10;
/// How long it stays as it is.
const PERIOD: Duration = Duration::from_millis(300);
/// Octets for an operation of a worker with a connection of its own.
const MEMORY_OCTETS: usize = 4096;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-store-load: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Ended<()> {
    const USAGE: &str = "usage: urdma-perf-store-load worker|load|late KIND ADDRESS";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [role, way, at] = arguments[..] else {
        return Err(USAGE.into());
    };
    let way = Way::from_name(way).ok_or(USAGE)?;
    let at = at.parse().map_err(|_| USAGE)?;
    match role {
        "worker" => work(way, at),
        "load" => load(way, at),
        "late" => late(way, at),
        _ => Err(USAGE.into()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Nanoseconds of a clock that all processes have in common.
fn now_ns() -> Ended<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(text)?;
    u64::try_from(Duration::from(now).as_nanos()).map_err(text)
}

/// The store as a worker reaches it.
enum Reach {
    Pool(Box<Client>, Store),
    Own(OwnStore),
}

impl Reach {
    fn open(way: Way, at: SocketAddr) -> Ended<Self> {
        let Some(transport) = way.transport() else {
            return OwnStore::open(at).map(Self::Own);
        };
        let mut client = Client::new(at.ip(), &config(transport)).map_err(text)?;
        let store = Store::open(&mut client, USER, at).map_err(text)?;
        Ok(Self::Pool(Box::new(client), store))
    }

    fn get(&mut self, key: &[u8]) -> Ended<Option<Vec<u8>>> {
        match self {
            Self::Pool(client, store) => store.get(client, key).map_err(text),
            Self::Own(store) => store.get(key),
        }
    }
}

/// The store over a connection of the worker's own.
struct OwnStore {
    own: Own,
    geometry: Geometry,
    /// Those of a client that only reads.
    none: Blocks,
    buffer: Vec<u8>,
}

impl OwnStore {
    fn open(at: SocketAddr) -> Ended<Self> {
        let mut own = Own::connect(at, MEMORY_OCTETS).map_err(text)?;
        read(&mut own, &[(0, 0, HEADER_LEN)])?;
        let mut header = [0; HEADER_LEN];
        own.copy(0, &mut header).map_err(text)?;
        let geometry = Geometry::new(&header, own.offered_octets()).map_err(text)?;
        Ok(Self {
            own,
            geometry,
            none: Blocks::default(),
            buffer: vec![0; geometry.buffer_len()],
        })
    }

    fn get(&mut self, key: &[u8]) -> Ended<Option<Vec<u8>>> {
        let mut operation = Operation::get(&self.geometry, key);
        loop {
            // A get has nothing but READs.
            let reads = operation.requests().iter();
            let reads = reads.map(|one| (one.offset, one.buffer_offset, one.len_octets));
            let reads: Vec<_> = reads.collect();
            read(&mut self.own, &reads)?;
            for (_, at, len) in reads {
                let to = &mut self.buffer[at..at + len];
                self.own.copy(at, to).map_err(text)?;
            }
            let step = operation.handle(&mut self.none, &mut self.buffer);
            match step.map_err(text)? {
                Step::Requests => {}
                Step::Done(Outcome::Found(value)) => return Ok(Some(value.to_vec())),
                Step::Done(_) => return Ok(None),
            }
        }
    }
}

/// Posts reads, and waits until all have ended: from where, to where, how many octets.
fn read(own: &mut Own, reads: &[(u64, usize, usize)]) -> Ended<()> {
    for (from, to, len_octets) in reads.iter().copied() {
        let read = OwnRead {
            from,
            to,
            len_octets,
        };
        own.post(&read).map_err(text)?;
    }
    loop {
        match own.poll().map_err(text)? {
            Some(Status::Success) => return Ok(()),
            Some(status) => return Err(format!("a read ended with {status:?}")),
            None => std::thread::yield_now(),
        }
    }
}

/// Gets keys until the standard input ends, and prints the ends of the windows.
fn work(way: Way, at: SocketAddr) -> Ended<()> {
    static IS_TO_END: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ended = std::io::stdin().read(&mut [0]);
        IS_TO_END.store(true, Ordering::Relaxed);
    });
    let mut store = Reach::open(way, at)?;
    let mut ends_ns = Vec::new();
    let mut n = std::process::id();
    while ends_ns.len() < WINDOWS_MIN || !IS_TO_END.load(Ordering::Relaxed) {
        for _ in 0..WINDOW {
            n = n.wrapping_mul(5).wrapping_add(1) % KEYS;
            let found = store.get(&n.to_ne_bytes())?;
            if found.as_deref() != Some(&value(n, 0)[..]) {
                return Err(format!("key {n} has another value"));
            }
        }
        ends_ns.push(now_ns()?);
    }
    let lines: String = ends_ns.iter().map(|end| format!("{end}\n")).collect();
    std::io::stdout().write_all(lines.as_bytes()).map_err(text)
}

/// A worker at work.
struct Working {
    began_ns: u64,
    child: Child,
}

impl Working {
    fn start(way: Way, at: SocketAddr) -> Ended<Self> {
        let began_ns = now_ns()?;
        let child = Command::new(std::env::current_exe().map_err(text)?)
            .args(["worker", way.name(), &at.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        Ok(Self { began_ns, child })
    }

    /// Tells workers to end, all before the first one is waited for.
    fn end(mut workers: Vec<Self>) -> Ended<Vec<Windows>> {
        for worker in &mut workers {
            drop(worker.child.stdin.take());
        }
        workers.into_iter().map(Self::windows).collect()
    }

    fn windows(self) -> Ended<Windows> {
        let ended = self.child.wait_with_output().map_err(text)?;
        if !ended.status.success() {
            return Err(format!("a worker ended with {}", ended.status));
        }
        let printed = String::from_utf8(ended.stdout).map_err(text)?;
        let ends_ns = printed.lines().map(|line| line.parse().map_err(text));
        Ok(Windows {
            began_ns: self.began_ns,
            ends_ns: ends_ns.collect::<Ended<_>>()?,
        })
    }
}

/// What a worker has served.
struct Windows {
    began_ns: u64,
    ends_ns: Vec<u64>,
}

impl Windows {
    /// When it first served at its full rate.
    fn full_ns(&self) -> Ended<u64> {
        let lengths = self.ends_ns.windows(2).map(|ends| ends[1] - ends[0]);
        let lengths: Vec<u64> = lengths.collect();
        let mut later = lengths[lengths.len() / 2..].to_vec();
        later.sort_unstable();
        let median = *later
            .get(later.len() / 2)
            .ok_or("a worker has served nothing")?;
        let first = lengths
            .iter()
            .position(|length| *length as f64 * FULL_SHARE <= median as f64);
        // The median is of one of them.
        Ok(self.ends_ns[first.ok_or("no window")? + 1])
    }

    /// Gets from one time to another one.
    fn gets(&self, from_ns: u64, to_ns: u64) -> u64 {
        let served = |end: &&u64| (from_ns..to_ns).contains(*end);
        self.ends_ns.iter().filter(served).count() as u64 * u64::from(WINDOW)
    }
}

/// Gets in spans of time.
#[derive(Default)]
struct Rate {
    gets: u64,
    ns: u64,
}

impl Rate {
    fn add(&mut self, workers: &[Windows], from_ns: u64, to_ns: u64) {
        self.gets += workers
            .iter()
            .map(|worker| worker.gets(from_ns, to_ns))
            .sum::<u64>();
        self.ns += to_ns - from_ns;
    }

    fn thousands_per_second(&self) -> f64 {
        self.gets as f64 * 1e6 / self.ns as f64
    }
}

/// One time that the number of workers has doubled.
struct Doubling {
    began_ns: u64,
    ended_ns: u64,
    newer: Vec<Windows>,
}

fn fill(at: SocketAddr) -> Ended<()> {
    let mut client = Client::new(at.ip(), &Config::default()).map_err(text)?;
    let mut store = Store::open(&mut client, USER, at).map_err(text)?;
    for n in 0..KEYS {
        let put = store.put(&mut client, &n.to_ne_bytes(), &value(n, 0));
        put.map_err(text)?;
    }
    store.close(&mut client).map_err(text)
}

fn start(way: Way, at: SocketAddr) -> Ended<Vec<Working>> {
    (0..WORKERS).map(|_| Working::start(way, at)).collect()
}

fn load(way: Way, at: SocketAddr) -> Ended<()> {
    fill(at)?;
    let older = start(way, at)?;
    let mut doublings = Vec::with_capacity(DOUBLINGS);
    for _ in 0..DOUBLINGS {
        std::thread::sleep(PERIOD);
        let began_ns = now_ns()?;
        let newer = start(way, at)?;
        std::thread::sleep(PERIOD);
        let ended_ns = now_ns()?;
        let newer = Working::end(newer)?;
        doublings.push(Doubling {
            began_ns,
            ended_ns,
            newer,
        });
    }
    report(&Working::end(older)?, &doublings)
}

fn late(way: Way, at: SocketAddr) -> Ended<()> {
    fill(at)?;
    for worker in Working::end(vec![Working::start(way, at)?])? {
        worker.full_ns()?;
        println!("{SERVED}{}", worker.ends_ns.len());
    }
    Ok(())
}

fn report(older: &[Windows], doublings: &[Doubling]) -> Ended<()> {
    let half_ns = u64::try_from(PERIOD.as_nanos() / 2).map_err(text)?;
    let mut full_us = Vec::new();
    let [mut before, mut meanwhile, mut beside] = <[Rate; 3]>::default();
    for doubling in doublings {
        let mut last_ns = doubling.began_ns;
        for worker in &doubling.newer {
            let full_ns = worker.full_ns()?;
            full_us.push((full_ns - worker.began_ns) as f64 / 1e3);
            last_ns = last_ns.max(full_ns);
        }
        before.add(older, doubling.began_ns - half_ns, doubling.began_ns);
        meanwhile.add(older, doubling.began_ns, last_ns);
        // No time is left if a worker was late.
        beside.add(older, last_ns, doubling.ended_ns.max(last_ns));
    }
    full_us.sort_unstable_by(f64::total_cmp);
    println!("{FULL}{:.1}", full_us[full_us.len() / 2]);
    for (word, rate) in [(BEFORE, before), (MEANWHILE, meanwhile), (BESIDE, beside)] {
        if rate.ns == 0 {
            return Err(format!("there is no time for: {word}"));
        }
        println!("{word}{:.3}", rate.thousands_per_second());
    }
    Ok(())
}
