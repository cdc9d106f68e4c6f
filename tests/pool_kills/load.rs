//! The processes that are killed: nodes, and clients that read and write data which they check.

use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use urdma_pool_verbs::{
    Client, Completion, Config, Element, Error, LocalRegionId, Node, Operation, RemoteRegionId,
    Request, Status, Switching, Transport, UserId, VirtualId,
};

use super::{Progress, ADDRESSES, AREA, HOST, LIMIT, NODES, PROGRESS, ROLE, SERVICE};

/// Areas of clients, behind the octets that all read.
pub(super) const AREAS: usize = 64;
/// Of the octets that all read.
const COMMON: usize = 4096;
/// Of an area: a counter in its first word, and a block in its second half.
const AREA_LEN: usize = 256;
const BLOCK: usize = 128;
const OFFERED: usize = COMMON + AREAS * AREA_LEN;
const DEPTH: u32 = 4;
const USER: UserId = UserId(1);
/// Where requests have their local memory: what is read, what is read back, the counter.
const READ: usize = 0;
const BACK: usize = BLOCK;
const COUNTER: usize = 2 * BLOCK;
const LOCAL: usize = 2 * BLOCK + 8;
/// Of a client that switches: after this number of rounds it posts nothing for a while, in which
/// windows pass without requests.
const ROUNDS: u64 = 8;
const WINDOW: Duration = Duration::from_millis(5);
const REST: Duration = Duration::from_millis(15);

/// A node is connected to after a window with requests, and left after one without.
const SWITCHING: Switching = Switching {
    connections_max: 2,
    requests: 1,
    window: WINDOW,
    quiet_windows: 1,
    retry_windows: 1,
};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

pub(super) fn run() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let ended = match &*role {
        "node" => serve(),
        over => Load::new(over).and_then(|mut load| load.run()),
    };
    println!("ended: {}", ended.unwrap_err());
}

/// Octet `n` of those that all read.
fn octet(n: usize) -> u8 {
    u8::try_from(n * 7 % 251).unwrap()
}

fn serve() -> Result<(), Error> {
    let mut node = Node::listen(variable(ADDRESSES).parse().unwrap(), OFFERED)?;
    let octets: Vec<u8> = (0..COMMON).map(octet).collect();
    node.write(0, &octets)?;
    node.offer_target()?;
    node.register(&[variable(SERVICE).parse().unwrap()])?;
    println!("listens");
    loop {
        match node.wait(None) {
            Err(Error::Removed) => return Err(Error::Removed),
            // A client has ended before it was accepted.
            Err(error) => println!("goes on: {error}"),
            Ok(()) => {}
        }
    }
}

/// A virtual queue pair that works.
#[derive(Clone, Copy)]
struct End {
    qp: VirtualId,
    remote: RemoteRegionId,
    addr: u64,
    local: LocalRegionId,
    /// What the counter has, if that is known.
    counter: Option<u64>,
}

struct Load {
    client: Client,
    addresses: Vec<SocketAddr>,
    locals: Vec<LocalRegionId>,
    ends: [Option<End>; NODES],
    /// Where the client's area begins.
    area: usize,
    is_switching: bool,
    progress: Progress,
}

impl Load {
    fn new(over: &str) -> Result<Self, Error> {
        let transport = match over {
            "rc" => Transport::Connections { per_node: 1 },
            "dc" | "switched" => Transport::Initiators { count: 1 },
            other => panic!("nothing is over {other:?}"),
        };
        let is_switching = over == "switched";
        let config = Config {
            transport,
            switching: is_switching.then_some(SWITCHING),
            ..Config::default()
        };
        let host: IpAddr = HOST.parse().unwrap();
        let mut client = Client::new(host, &config)?;
        if transport == (Transport::Initiators { count: 1 }) {
            client.use_metadata(&[variable(SERVICE).parse().unwrap()])?;
        }
        let addresses = variable(ADDRESSES);
        let addresses = addresses.split(',');
        let area: usize = variable(AREA).parse().unwrap();
        Ok(Self {
            addresses: addresses.map(|at| at.parse().unwrap()).collect(),
            locals: (0..NODES)
                .map(|_| client.register(USER, LOCAL))
                .collect::<Result<_, _>>()?,
            client,
            ends: [None; NODES],
            area: COMMON + area * AREA_LEN,
            is_switching,
            progress: Progress::default(),
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        let mut file = OpenOptions::new();
        let file = file.write(true).open(variable(PROGRESS)).unwrap();
        loop {
            self.round()?;
            if self.is_switching && self.progress.rounds.is_multiple_of(ROUNDS) {
                self.rest()?;
            }
            let stats = self.client.pool().stats();
            self.progress.switches = stats.switched_to_connections + stats.switched_back;
            self.progress.write(&file);
        }
    }

    /// Polls for a while, in which nothing is complete.
    fn rest(&mut self) -> Result<(), Error> {
        let until = Instant::now() + REST;
        while Instant::now() < until {
            for end in self.ends.into_iter().flatten() {
                assert_eq!(self.client.poll(end.qp)?, None);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Reads from, writes to and counts at each node.
    fn round(&mut self) -> Result<(), Error> {
        for node in 0..NODES {
            if self.ends[node].is_none() {
                self.open(node)?;
            }
        }
        let offset = usize::try_from(self.progress.rounds).unwrap() * 64 % (COMMON - BLOCK);
        let read = (Operation::Read, READ, offset, BLOCK);
        let count = (Operation::FetchAdd { add: 1 }, COUNTER, self.area, 8);
        self.execute([read, count])?;
        for node in 0..NODES {
            self.check_counter(node)?;
        }
        let block = self.area + AREA_LEN - BLOCK;
        let write = (Operation::Write, READ, block, BLOCK);
        let back = (Operation::Read, BACK, block, BLOCK);
        self.execute([write, back])?;
        for end in self.ends.iter().flatten() {
            let mut octets = [0; BLOCK];
            self.client.read(end.local, BACK, &mut octets)?;
            for (n, found) in octets.into_iter().enumerate() {
                assert_eq!(found, octet(offset + n), "octet {n} at {offset}");
            }
        }
        if self.ends.iter().all(Option::is_some) {
            self.progress.rounds += 1;
        }
        Ok(())
    }

    fn open(&mut self, node: usize) -> Result<(), Error> {
        match self.client.open(USER, self.addresses[node], DEPTH) {
            Ok((qp, remote, addr)) => {
                self.ends[node] = Some(End {
                    qp,
                    remote,
                    addr,
                    local: self.locals[node],
                    counter: None,
                });
            }
            Err(Error::Removed) => return Err(Error::Removed),
            Err(_) => {
                self.progress.errors[node] += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// What each atomic finds is what the one before has left.
    fn check_counter(&mut self, node: usize) -> Result<(), Error> {
        if let Some(end) = &mut self.ends[node] {
            let mut word = [0; 8];
            self.client.read(end.local, COUNTER, &mut word)?;
            let found = u64::from_ne_bytes(word);
            assert!(
                end.counter.is_none_or(|counter| counter == found),
                "an atomic finds {found}, not {:?}",
                end.counter
            );
            end.counter = Some(found + 1);
        }
        Ok(())
    }

    /// Posts requests to all nodes that are reached, and waits for their completions.
    fn execute(&mut self, requests: [(Operation, usize, usize, usize); 2]) -> Result<(), Error> {
        let mut posted = [0; NODES];
        for (node, posted) in posted.iter_mut().enumerate() {
            for (n, (operation, local, remote, len)) in requests.into_iter().enumerate() {
                let Some(end) = self.ends[node] else {
                    continue;
                };
                let request = Request {
                    id: n as u64,
                    operation,
                    remote: end.remote,
                    remote_addr: end.addr + remote as u64,
                    is_signaled: true,
                };
                let element = Element {
                    local: end.local,
                    addr: self.client.addr(end.local)? + local as u64,
                    len_octets: u32::try_from(len).unwrap(),
                };
                match self.client.post(end.qp, &request, &[element]) {
                    Ok(()) => *posted += 1,
                    Err(Error::Removed) => return Err(Error::Removed),
                    // It has failed, or the node has begun anew.
                    Err(_) => self.failed(node)?,
                }
            }
        }
        for (node, posted) in posted.into_iter().enumerate() {
            for n in 0..posted {
                let Some(end) = self.ends[node] else {
                    break;
                };
                let completion = match self.wait(end.qp) {
                    Ok(completion) => completion,
                    Err(Error::Removed) => return Err(Error::Removed),
                    Err(_) => {
                        self.failed(node)?;
                        break;
                    }
                };
                assert_eq!(completion.id, n, "completions are in order");
                if completion.status != Status::Success {
                    self.failed(node)?;
                }
            }
        }
        Ok(())
    }

    /// A request to a node has failed: another virtual queue pair is opened later.
    fn failed(&mut self, node: usize) -> Result<(), Error> {
        self.progress.errors[node] += 1;
        if let Some(end) = self.ends[node].take() {
            self.client.close(end.qp)?;
        }
        Ok(())
    }

    fn wait(&mut self, qp: VirtualId) -> Result<Completion, Error> {
        let began = Instant::now();
        loop {
            if let Some(completion) = self.client.poll(qp)? {
                return Ok(completion);
            }
            assert!(began.elapsed() < LIMIT, "a request does not complete");
            std::thread::yield_now();
        }
    }
}
