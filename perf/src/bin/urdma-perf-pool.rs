//! The pool of virtual queue pairs, measured by `urdma_perf::pool`:
//!
//! ```text
//! urdma-perf-pool nodes ADDRESS COUNT [SERVICE]    COUNT nodes, at this port and the next ones
//! urdma-perf-pool sleepers ADDRESS COUNT [SERVICE] the same, whose process sleeps then
//! urdma-perf-pool open ADDRESS                     virtual queue pairs that are opened
//! urdma-perf-pool connect ADDRESS                  connections of its own, without a pool
//! urdma-perf-pool read ADDRESS own|connections|initiators [READS]
//! urdma-perf-pool use ADDRESS READS connections|initiators [switching|REQUESTS WINDOW_US]
//!                                                  READS of a new pool, whose initiator may give
//!                                                  way to a connection
//! urdma-perf-pool answers-WAY ADDRESS COUNT        a pool that sends messages back, over a WAY as
//!                                                  of read but own, until it is killed
//! urdma-perf-pool asks ADDRESS connections|initiators
//!                                                  new pools that send to it, at the next port
//! urdma-perf-pool learn ADDRESS COUNT [SERVICE]    virtual queue pairs to COUNT unknown nodes, in
//!                                                  turn with READs of the service's table
//! urdma-perf-pool memory ADDRESS COUNT             heap that each of COUNT known nodes takes
//! ```
//!
//! SERVICE is the address of a metadata service. Each prints its figures, which `urdma_perf::pool`
//! names.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use urdma_perf::pool::{
    config, Way, ABOVE, ANSWERS, FIRST, HEAP, HEAP_ALL, LISTENING, MEDIAN, RATE, READ_OCTETS,
    SWITCHING,
};
use urdma_perf::pool_messages::{answer, ask};
use urdma_pool_verbs::{
    Client, Config, Element, Error, LocalRegionId, Node, Operation, Own, RemoteRegionId, Request,
    Status, Switching, Transport, UserId, VirtualId,
};

const USER: UserId = UserId(1);
const OFFERED: usize = 4096;
const DEPTH: u32 = 4;
const INITIATORS: Transport = Transport::Initiators { count: 1 };
/// Turns of a node between looks for clients that wait.
const TURNS: u32 = 256;
/// Sleep of nodes between looks for clients.
const TURN_EVERY: Duration = Duration::from_millis(100);
const READS: usize = 50_000;
/// New pools that use a node.
const POOLS: usize = 21;
const OPENED: usize = 20_000;
/// Connections that are made, one after the other.
const CONNECTED: usize = 500;
/// Virtual queue pairs that are open at a time.
const ROW: usize = 1_000;

type Outcome<T> = Result<T, String>;

fn text(error: Error) -> String {
    error.to_string()
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-pool: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    const USAGE: &str = "usage: urdma-perf-pool nodes|sleepers|open|connect|read|use|learn|memory|\
                         asks|answers-connections|answers-initiators \
                         ADDRESS [COUNT|READER|READS] \
                         [SERVICE|READS|READER [switching|REQUESTS WINDOW_US]]";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (role, address, rest) = match &arguments[..] {
        [role, address, rest @ ..] => (role.as_str(), address, rest),
        _ => return Err(USAGE.into()),
    };
    let address: SocketAddr = address.parse().map_err(|_| USAGE)?;
    let count = |count: &String| count.parse().map_err(|_| USAGE);
    let services = || -> Outcome<Vec<SocketAddr>> {
        let services = rest.iter().skip(1).map(|service| service.parse());
        services.collect::<Result<_, _>>().map_err(|_| USAGE.into())
    };
    match (role, rest) {
        ("nodes", [nodes, ..]) => serve(address, count(nodes)?, &services()?).map_err(text),
        ("sleepers", [nodes, ..]) => sleep(address, count(nodes)?, &services()?).map_err(text),
        ("learn", [nodes, ..]) => learn(address, count(nodes)?, &services()?),
        ("open", []) => open(address).map_err(text),
        ("connect", []) => connect(address).map_err(text),
        ("read", [way]) => read(address, Way::from_name(way).ok_or(USAGE)?, READS),
        ("read", [way, reads]) => {
            let reads = reads.parse().map_err(|_| USAGE)?;
            read(address, Way::from_name(way).ok_or(USAGE)?, reads)
        }
        ("use", [reads, way, rest @ ..]) => {
            let reads = reads.parse().map_err(|_| USAGE)?;
            let transport = Way::from_name(way).and_then(Way::transport);
            let switching = switching(rest).ok_or(USAGE)?;
            use_node(address, reads, transport.ok_or(USAGE)?, switching)
        }
        ("asks", [way]) => {
            let transport = Way::from_name(way).and_then(Way::transport);
            asks(address, transport.ok_or(USAGE)?)
        }
        (role, [_]) if role.starts_with(ANSWERS) => {
            let way = Way::from_name(&role[ANSWERS.len()..]);
            let transport = way.and_then(Way::transport).ok_or(USAGE)?;
            answer(address, transport).map_err(text)
        }
        ("memory", [nodes]) => memory(address, count(nodes)?).map_err(text),
        _ => Err(USAGE.into()),
    }
}

/// How a pool switches: not at all without arguments, and by default as its configuration says.
fn switching(arguments: &[String]) -> Option<Option<Switching>> {
    let (requests, window_us) = match arguments {
        [] => return Some(None),
        [default] if default == SWITCHING => return Some(Some(Switching::default())),
        [requests, window_us] => (requests, window_us),
        _ => return None,
    };
    Some(Some(Switching {
        requests: requests.parse().ok()?,
        window: Duration::from_micros(window_us.parse().ok()?),
        ..Switching::default()
    }))
}

/// The address whose port is `n` higher.
fn address_at(first: SocketAddr, n: u16) -> SocketAddr {
    SocketAddr::new(first.ip(), first.port() + n)
}

fn nodes_at(first: SocketAddr, count: u16, services: &[SocketAddr]) -> Result<Vec<Node>, Error> {
    let new = |n| {
        let mut node = Node::listen(address_at(first, n), OFFERED)?;
        node.offer_target()?;
        node.register(services)?;
        Ok(node)
    };
    (0..count).map(new).collect()
}

/// Nodes that look for clients now and then, once they are registered.
fn sleep(first: SocketAddr, count: u16, services: &[SocketAddr]) -> Result<(), Error> {
    let mut nodes = nodes_at(first, count, services)?;
    while nodes.iter().any(|node| node.registered() < services.len()) {
        for node in &mut nodes {
            node.turn()?;
        }
        std::thread::yield_now();
    }
    println!("{LISTENING}");
    loop {
        for node in &mut nodes {
            node.turn()?;
        }
        std::thread::sleep(TURN_EVERY);
    }
}

fn serve(first: SocketAddr, count: u16, services: &[SocketAddr]) -> Result<(), Error> {
    let mut nodes = nodes_at(first, count, services)?;
    let mut is_ready = false;
    loop {
        for node in &mut nodes {
            node.turn()?;
        }
        if !is_ready && nodes.iter().all(|node| node.registered() == services.len()) {
            println!("{LISTENING}");
            is_ready = true;
        }
        for _ in 0..TURNS {
            nodes[0].progress()?;
        }
        std::thread::yield_now();
    }
}

fn median_us(mut ns: Vec<i64>) -> f64 {
    ns.sort_unstable();
    ns[ns.len() / 2] as f64 / 1e3
}

fn elapsed_ns(began: Instant) -> i64 {
    i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX)
}

/// Opens virtual queue pairs to a node that is known.
fn open(to: SocketAddr) -> Result<(), Error> {
    let mut client = Client::new(to.ip(), &config(INITIATORS))?;
    client.open(USER, to, DEPTH)?;
    let mut ns = Vec::with_capacity(OPENED);
    for _ in 0..OPENED {
        let began = Instant::now();
        let (opened, ..) = client.open(USER, to, DEPTH)?;
        ns.push(elapsed_ns(began));
        client.close(opened)?;
    }
    println!("{MEDIAN}{:.4}", median_us(ns));
    let mut row = Vec::with_capacity(ROW);
    let mut all_ns = 0;
    for _ in 0..OPENED / ROW {
        let began = Instant::now();
        for _ in 0..ROW {
            row.push(client.open(USER, to, DEPTH)?.0);
        }
        all_ns += elapsed_ns(began);
        for opened in row.drain(..) {
            client.close(opened)?;
        }
    }
    println!("{RATE}{:.4}", OPENED as f64 * 1e3 / all_ns as f64);
    Ok(())
}

/// Makes connections by rdma_cm in a process that has had one, with a completion queue and memory.
fn connect(to: SocketAddr) -> Result<(), Error> {
    let _first = Own::connect(to, OFFERED)?;
    let mut ns = Vec::with_capacity(CONNECTED);
    for _ in 0..CONNECTED {
        let began = Instant::now();
        let connection = Own::connect(to, OFFERED)?;
        ns.push(elapsed_ns(began));
        drop(connection);
    }
    println!("{MEDIAN}{:.4}", median_us(ns));
    Ok(())
}

/// Opens a virtual queue pair to each node, which is not known: the median time, and by how much it
/// is above that of a READ of the service's table over a connection of its own. The two are beside
/// each other, the one or the other first, so that both find the service asleep, or awake.
fn learn(first: SocketAddr, count: u16, services: &[SocketAddr]) -> Outcome<()> {
    let mut client = Client::new(first.ip(), &config(INITIATORS)).map_err(text)?;
    client.use_metadata(services).map_err(text)?;
    let mut open = |n| {
        let began = Instant::now();
        let opened = client.open(USER, address_at(first, n), DEPTH);
        opened.map(|_| elapsed_ns(began)).map_err(text)
    };
    match services.first() {
        None => {
            let ns = (0..count).map(open).collect::<Outcome<_>>()?;
            println!("{MEDIAN}{:.4}", median_us(ns));
        }
        Some(service) => {
            let own = Own::connect_to_service(*service, READ_OCTETS as usize);
            let mut own = own.map_err(text)?;
            let (mut ns, mut above_ns) = (Vec::new(), Vec::new());
            for n in 0..count {
                let mut read = || time_read(&mut || own.read(READ_OCTETS as usize));
                let (opened, read) = match n % 2 {
                    0 => (open(n)?, read()?),
                    _ => {
                        let read = read()?;
                        (open(n)?, read)
                    }
                };
                ns.push(opened);
                above_ns.push(opened - read);
            }
            println!("{MEDIAN}{:.4}", median_us(ns));
            println!("{ABOVE}{:.4}", median_us(above_ns));
        }
    }
    let by_table = if services.is_empty() { 0 } else { count.into() };
    assert_eq!(client.learned().by_table, by_table);
    Ok(())
}

/// One virtual queue pair with memory.
struct Virtual {
    client: Client,
    qp: VirtualId,
    local: (LocalRegionId, u64),
    remote: (RemoteRegionId, u64),
}

impl Virtual {
    fn open(mut client: Client, to: SocketAddr) -> Result<Self, Error> {
        let local = client.register(USER, OFFERED)?;
        let (qp, remote, addr) = client.open(USER, to, DEPTH)?;
        let local = (local, client.addr(local)?);
        Ok(Self {
            client,
            qp,
            local,
            remote: (remote, addr),
        })
    }

    fn read(&mut self) -> Result<Status, Error> {
        let request = Request {
            id: 1,
            operation: Operation::Read,
            remote: self.remote.0,
            remote_addr: self.remote.1,
            is_signaled: true,
        };
        let element = Element {
            local: self.local.0,
            addr: self.local.1,
            len_octets: READ_OCTETS,
        };
        self.client.post(self.qp, &request, &[element])?;
        loop {
            if let Some(completion) = self.client.poll(self.qp)? {
                return Ok(completion.status);
            }
        }
    }
}

/// Reads of the node, one at a time.
fn read(to: SocketAddr, way: Way, reads: usize) -> Outcome<()> {
    let ns = match way.transport() {
        None => {
            let mut own = Own::connect(to, OFFERED).map_err(text)?;
            time_reads(reads, || own.read(READ_OCTETS as usize))?
        }
        Some(transport) => {
            let client = Client::new(to.ip(), &config(transport)).map_err(text)?;
            let mut over = Virtual::open(client, to).map_err(text)?;
            time_reads(reads, || over.read())?
        }
    };
    println!("{MEDIAN}{:.4}", median_us(ns));
    Ok(())
}

/// Reads of a node by new pools, one after the other: medians of the time in which a pool opens the
/// node and reads, of the longest read, and of how many reads came before the switch to a
/// connection.
fn use_node(
    to: SocketAddr,
    reads: usize,
    transport: Transport,
    switching: Option<Switching>,
) -> Outcome<()> {
    let config = Config {
        switching,
        ..config(transport)
    };
    let (mut all, mut longest, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..POOLS {
        let client = Client::new(to.ip(), &config).map_err(text)?;
        let began = Instant::now();
        let mut over = Virtual::open(client, to).map_err(text)?;
        let (mut most, mut switched) = (0, None);
        for n in 0..reads {
            let began = Instant::now();
            let status = over.read().map_err(text)?;
            if status != Status::Success {
                return Err(format!("a read ended with {status:?}"));
            }
            most = most.max(elapsed_ns(began));
            if switched.is_none() && over.client.pool().stats().switched_to_connections > 0 {
                switched = i64::try_from(n).ok();
            }
        }
        all.push(elapsed_ns(began));
        longest.push(most);
        before.extend(switched);
    }
    println!("{MEDIAN}{:.4}", median_us(all));
    println!("longest {:.4}", median_us(longest));
    println!("switched {} of {POOLS}", before.len());
    if !before.is_empty() {
        println!("before the switch {:.0}", median_us(before) * 1e3);
    }
    Ok(())
}

/// Asks a pool that answers: medians of half a round trip, and of the time until the first answer
/// of a new pool.
fn asks(to: SocketAddr, transport: Transport) -> Outcome<()> {
    let asked = ask(address_at(to, 1), to, transport, (POOLS, READS))?;
    println!("{MEDIAN}{:.4}", median_us(asked.round_ns) / 2.0);
    println!("{FIRST}{:.4}", median_us(asked.first_ns));
    Ok(())
}

/// The time of a read.
fn time_read(read: &mut impl FnMut() -> Result<Status, Error>) -> Outcome<i64> {
    let began = Instant::now();
    match read().map_err(text)? {
        Status::Success => Ok(elapsed_ns(began)),
        status => Err(format!("a read ended with {status:?}")),
    }
}

/// The times of reads after a warm-up.
fn time_reads(reads: usize, mut read: impl FnMut() -> Result<Status, Error>) -> Outcome<Vec<i64>> {
    let mut ns = Vec::with_capacity(reads);
    for n in 0..reads + reads / 10 {
        let read_ns = time_read(&mut read)?;
        if n >= reads / 10 {
            ns.push(read_ns);
        }
    }
    Ok(ns)
}

/// Octets of the heap that are in use.
fn heap() -> usize {
    // SAFETY: the call has no argument.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Makes nodes known, and tells what the process has more then, its libraries included: for each
/// node; and for each one behind the first half. The process's bounded tables are full by then:
/// those of 256 services in sets, some of which have few after a quarter of the nodes.
fn memory(first: SocketAddr, count: u16) -> Result<(), Error> {
    let mut client = Client::new(first.ip(), &config(INITIATORS))?;
    let mut know = |nodes: Range<u16>| -> Result<usize, Error> {
        for n in nodes {
            let (opened, ..) = client.open(USER, address_at(first, n), DEPTH)?;
            client.close(opened)?;
        }
        Ok(heap())
    };
    // The first one has what all need.
    let begun = know(0..1)?;
    let half = know(1..count / 2)?;
    let all = know(count / 2..count)?;
    let each = |grown: usize, nodes: u16| grown as f64 / f64::from(nodes);
    println!(
        "{HEAP}{:.1}",
        each(all.saturating_sub(half), count - count / 2)
    );
    println!(
        "{HEAP_ALL}{:.1}",
        each(all.saturating_sub(begun), count - 1)
    );
    Ok(())
}
