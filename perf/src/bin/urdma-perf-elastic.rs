//! Processes that start, read from three nodes and end, measured by `urdma_perf::elastic`:
//!
//! ```text
//! urdma-perf-elastic tcp-nodes ADDRESS             nodes over TCP, at this port and the next two
//! urdma-perf-elastic host-pool ADDRESS             a pool that reads for other processes
//! urdma-perf-elastic worker KIND ADDRESS           one process
//! urdma-perf-elastic workers KIND ADDRESS COUNT    COUNT of them, one after the other; figures
//! ```
//!
//! The nodes of the other kinds are those of `urdma-perf-pool`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;
use urdma_perf::elastic::{Worker, LISTENING, MEDIAN, NODES, PROCESSOR, RATE, READ_OCTETS, TAIL};
use urdma_pool_verbs::{
    Client, Config, Element, LocalRegionId, Operation, Own, Request, Status, Transport, UserId,
    VirtualId,
};

type Outcome<T> = Result<T, String>;

const USER: UserId = UserId(1);
/// What a client of TCP sends for each read.
const QUESTION: [u8; 8] = *b"read4096";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-elastic: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    const USAGE: &str = "usage: urdma-perf-elastic tcp-nodes ADDRESS | host-pool ADDRESS \
                         | worker KIND ADDRESS | workers KIND ADDRESS COUNT";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let address = |text: &str| text.parse().map_err(|_| USAGE);
    let kind = |name: &str| Worker::from_name(name).ok_or(USAGE);
    match arguments[..] {
        ["tcp-nodes", at] => serve(address(at)?),
        ["host-pool", at] => read_for_others(address(at)?),
        ["worker", name, at] => work(kind(name)?, address(at)?),
        ["workers", name, at, count] => {
            let count = count.parse().map_err(|_| USAGE)?;
            measure(kind(name)?, address(at)?, count)
        }
        _ => Err(USAGE.into()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn nodes_from(first: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    (0..NODES).map(move |n| SocketAddr::new(first.ip(), first.port() + n))
}

/// Answers over TCP, a thread for each node, one client at a time.
fn serve(first: SocketAddr) -> Outcome<()> {
    let mut serving = Vec::new();
    for address in nodes_from(first) {
        let listener = TcpListener::bind(address).map_err(text)?;
        serving.push(std::thread::spawn(move || answer(&listener)));
    }
    println!("{LISTENING}");
    for thread in serving {
        let _ended = thread.join();
    }
    Err("a node has ended".into())
}

fn answer(listener: &TcpListener) {
    let octets = [7; READ_OCTETS as usize];
    for client in listener.incoming().flatten() {
        let (mut client, mut question) = (client, QUESTION);
        while client.read_exact(&mut question).is_ok() && client.write_all(&octets).is_ok() {}
    }
}

fn work(kind: Worker, first: SocketAddr) -> Outcome<()> {
    match kind {
        Worker::Tcp => read_over_tcp(first),
        Worker::Nothing => Ok(()),
        Worker::Connections => nodes_from(first).try_for_each(|node| {
            let mut own = Own::connect(node, READ_OCTETS as usize).map_err(text)?;
            expect_success(own.read(READ_OCTETS as usize).map_err(text)?)
        }),
        Worker::Pool => {
            let mut pool = Pool::new(first)?;
            nodes_from(first).try_for_each(|node| pool.read(node).map(drop))
        }
        Worker::HostPool => ask_host_pool(first),
    }
}

/// The name of the socket of a pool of the host.
fn socket_of(first: SocketAddr) -> Outcome<net::SocketAddr> {
    let name = format!("urdma-perf-elastic-{}", first.port());
    net::SocketAddr::from_abstract_name(name).map_err(text)
}

/// Reads for other processes of the host, one at a time. A question is the number of the node.
fn read_for_others(first: SocketAddr) -> Outcome<()> {
    let nodes: Vec<SocketAddr> = nodes_from(first).collect();
    let mut pool = Pool::new(first)?;
    let listener = UnixListener::bind_addr(&socket_of(first)?).map_err(text)?;
    println!("{LISTENING}");
    for mut process in listener.incoming().flatten() {
        let mut number = [0];
        while process.read_exact(&mut number).is_ok() {
            let node = nodes.get(usize::from(number[0])).ok_or("no such node")?;
            let octets = pool.read(*node)?;
            process.write_all(&octets).map_err(text)?;
        }
    }
    Err("no process can ask any more".into())
}

fn ask_host_pool(first: SocketAddr) -> Outcome<()> {
    let mut octets = [0; READ_OCTETS as usize];
    let mut pool = UnixStream::connect_addr(&socket_of(first)?).map_err(text)?;
    for (number, _) in (0..).zip(nodes_from(first)) {
        pool.write_all(&[number]).map_err(text)?;
        pool.read_exact(&mut octets).map_err(text)?;
    }
    Ok(())
}

fn read_over_tcp(first: SocketAddr) -> Outcome<()> {
    let mut octets = [0; READ_OCTETS as usize];
    for node in nodes_from(first) {
        let mut connected = TcpStream::connect(node).map_err(text)?;
        connected.set_nodelay(true).map_err(text)?;
        connected.write_all(&QUESTION).map_err(text)?;
        connected.read_exact(&mut octets).map_err(text)?;
    }
    Ok(())
}

/// A pool over an initiator, with memory for one read.
struct Pool {
    client: Client,
    local: LocalRegionId,
    local_addr: u64,
}

impl Pool {
    fn new(first: SocketAddr) -> Outcome<Self> {
        let config = Config {
            transport: Transport::Initiators { count: 1 },
            sq_depth: 4,
            cq_depth: 4,
            ..Config::default()
        };
        let mut client = Client::new(first.ip(), &config).map_err(text)?;
        let local = client.register(USER, READ_OCTETS as usize).map_err(text)?;
        let local_addr = client.addr(local).map_err(text)?;
        Ok(Self {
            client,
            local,
            local_addr,
        })
    }

    /// Opens a virtual queue pair to a node, reads and closes it.
    fn read(&mut self, node: SocketAddr) -> Outcome<[u8; READ_OCTETS as usize]> {
        let client = &mut self.client;
        let (qp, remote, remote_addr) = client.open(USER, node, 1).map_err(text)?;
        let request = Request {
            id: 1,
            operation: Operation::Read,
            remote,
            remote_addr,
            is_signaled: true,
        };
        let element = Element {
            local: self.local,
            addr: self.local_addr,
            len_octets: READ_OCTETS,
        };
        client.post(qp, &request, &[element]).map_err(text)?;
        expect_success(wait(client, qp)?)?;
        client.close(qp).map_err(text)?;
        let mut octets = [0; READ_OCTETS as usize];
        client.read(self.local, 0, &mut octets).map_err(text)?;
        Ok(octets)
    }
}

fn wait(client: &mut Client, qp: VirtualId) -> Outcome<Status> {
    loop {
        if let Some(completion) = client.poll(qp).map_err(text)? {
            return Ok(completion.status);
        }
    }
}

fn expect_success(status: Status) -> Outcome<()> {
    match status {
        Status::Success => Ok(()),
        other => Err(format!("a read ended with {other:?}")),
    }
}

/// Processor time of the processes that have ended.
fn processor_time() -> Outcome<Duration> {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(text)?;
    let us = used.user_time().num_microseconds() + used.system_time().num_microseconds();
    u64::try_from(us).map(Duration::from_micros).map_err(text)
}

/// Runs workers one after the other.
fn measure(kind: Worker, first: SocketAddr, count: usize) -> Outcome<()> {
    let myself = std::env::current_exe().map_err(text)?;
    let mut us = Vec::with_capacity(count);
    let before = processor_time()?;
    let began = Instant::now();
    for _ in 0..count {
        let begins = Instant::now();
        let ended = Command::new(&myself)
            .args(["worker", kind.name(), &first.to_string()])
            .status()
            .map_err(text)?;
        us.push(begins.elapsed().as_nanos() as f64 / 1e3);
        if !ended.success() {
            return Err(format!("a worker ended with {ended}"));
        }
    }
    let elapsed = began.elapsed();
    let used = processor_time()? - before;
    us.sort_unstable_by(f64::total_cmp);
    println!("{MEDIAN}{:.1}", us[count / 2]);
    println!("{TAIL}{:.1}", us[count * 99 / 100]);
    println!("{RATE}{:.4}", count as f64 / elapsed.as_secs_f64() / 1e3);
    println!(
        "{PROCESSOR}{:.1}",
        used.as_nanos() as f64 / 1e3 / count as f64
    );
    Ok(())
}
