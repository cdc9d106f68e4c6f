//! The pool over verbs (`urdma_pool_verbs`): a node and a client, each a process of an instance,
//! which run the test `end` of this program.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use urdma_harness::instance::Instance;
use urdma_harness::process::Process;
use urdma_pool_verbs::{
    Client, Completion, Config, Error, LocalRegionId, Node, Operation, RemoteRegionId, Request,
    Status, UserId, VirtualId,
};
use urdma_tests::{alone, expect_all_taken_back, ports, start_end, OneHost, CHECK_LIMIT};

/// What an end does, and the address of the node.
const ROLE: &str = "URDMA_TEST_POOL_ROLE";
const ADDRESS: &str = "URDMA_TEST_POOL_ADDRESS";
/// Octets of the node, and of a read.
const OFFERED: usize = 4096;
const READ: usize = 64;
const USER: UserId = UserId(1);
/// How long an end waits for what does come.
const LIMIT: Duration = Duration::from_secs(60);

fn start(host: &Instance, role: &str, address: &str, said: &str) -> Process {
    let mut process = start_end(host, &[(ROLE, role), (ADDRESS, address)]);
    process.wait_for_text(said, CHECK_LIMIT).unwrap();
    process
}

fn kill(node: Process) {
    node.signal(Signal::SIGKILL).unwrap();
    node.wait(CHECK_LIMIT).unwrap();
}

/// The client succeeds; nothing is left of it and of the node.
fn expect_success(client: Process, node: Process, one: OneHost) {
    let ended = client.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    kill(node);
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
#[ignore = "an end, which the other tests start"]
fn end() {
    let address: SocketAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    match &*std::env::var(ROLE).unwrap() {
        "node" => serve(address),
        "client" => read_and_close(address),
        "survivor" => read_until_it_works_again(address),
        other => panic!("no role {other:?}"),
    }
}

/// Octet `n` of the node.
fn octet(n: usize) -> u8 {
    u8::try_from(n * 7 % 251).unwrap()
}

fn serve(address: SocketAddr) {
    let mut node = Node::listen(address, OFFERED).unwrap();
    let octets: Vec<u8> = (0..OFFERED).map(octet).collect();
    node.write(0, &octets).unwrap();
    println!("listens");
    loop {
        node.turn().unwrap();
        std::thread::yield_now();
    }
}

/// A client with a virtual queue pair to the node, and memory.
struct Reader {
    client: Client,
    local: LocalRegionId,
    address: SocketAddr,
    qp: VirtualId,
    remote: RemoteRegionId,
    remote_addr: u64,
}

impl Reader {
    fn new(address: SocketAddr) -> Self {
        let mut client = Client::new(address.ip(), &Config::default()).unwrap();
        let local = client.register(USER, READ).unwrap();
        let (qp, remote, remote_addr) = client.open(USER, address, 4).unwrap();
        Self {
            client,
            local,
            address,
            qp,
            remote,
            remote_addr,
        }
    }

    fn open(&mut self) -> Result<(), Error> {
        (self.qp, self.remote, self.remote_addr) = self.client.open(USER, self.address, 4)?;
        Ok(())
    }

    /// Reads octets of the node.
    fn read(&mut self, offset: usize) -> Completion {
        let request = Request {
            id: offset as u64,
            operation: Operation::Read,
            local: self.local,
            local_addr: self.client.addr(self.local).unwrap(),
            remote: self.remote,
            remote_addr: self.remote_addr + offset as u64,
            len_octets: u32::try_from(READ).unwrap(),
            is_signaled: true,
        };
        self.client.post(self.qp, &request).unwrap();
        let began = Instant::now();
        loop {
            if let Some(completion) = self.client.poll(self.qp).unwrap() {
                return completion;
            }
            assert!(began.elapsed() < LIMIT, "a read does not complete");
            std::thread::yield_now();
        }
    }

    fn expect_read(&mut self, offset: usize) {
        let completion = self.read(offset);
        assert_eq!(
            (completion.id, completion.status),
            (offset as u64, Status::Success)
        );
        let mut octets = [0; READ];
        self.client.read(self.local, 0, &mut octets).unwrap();
        for (n, found) in octets.into_iter().enumerate() {
            assert_eq!(found, octet(offset + n), "octet {n}");
        }
    }
}

fn read_and_close(address: SocketAddr) {
    let mut reader = Reader::new(address);
    reader.expect_read(0);
    let beyond = Request {
        id: 1,
        operation: Operation::Write,
        local: reader.local,
        local_addr: reader.client.addr(reader.local).unwrap(),
        remote: reader.remote,
        remote_addr: reader.remote_addr + (OFFERED - READ) as u64 + 1,
        len_octets: u32::try_from(READ).unwrap(),
        is_signaled: true,
    };
    let refused = reader.client.post(reader.qp, &beyond);
    assert!(matches!(refused, Err(Error::Post(_))), "{refused:?}");
    reader.client.close(reader.qp).unwrap();
    // The next ones have no connection of their own.
    for n in 1..32 {
        reader.open().unwrap();
        reader.expect_read(n * READ);
        reader.client.close(reader.qp).unwrap();
    }
    assert_eq!(reader.client.pool().stats().posted, 32);
    println!("done");
}

fn read_until_it_works_again(address: SocketAddr) {
    let mut reader = Reader::new(address);
    reader.expect_read(0);
    println!("reads");
    let began = Instant::now();
    while reader.read(READ).status == Status::Success {
        assert!(began.elapsed() < LIMIT, "the node's end is not noticed");
    }
    println!("lost");
    reader.client.close(reader.qp).unwrap();
    // Nobody listens until the node has been started again.
    loop {
        let opened = reader.open();
        if opened.is_ok() && reader.read(0).status == Status::Success {
            break;
        }
        assert!(began.elapsed() < LIMIT, "the node is not reached again");
        if opened.is_ok() {
            reader.client.close(reader.qp).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    reader.expect_read(READ);
    println!("reads again");
}

#[test]
fn client_reads_and_closes_over_one_connection() {
    let _alone = alone();
    let one = OneHost::up();
    let address = format!("127.0.0.1:{}", ports());
    let node = start(&one.host, "node", &address, "listens");
    let client = start(&one.host, "client", &address, "done");
    expect_success(client, node, one);
}

#[test]
fn client_reaches_a_node_again_that_was_killed() {
    let _alone = alone();
    let one = OneHost::up();
    let address = format!("127.0.0.1:{}", ports());
    let node = start(&one.host, "node", &address, "listens");
    let mut client = start(&one.host, "survivor", &address, "reads");
    kill(node);
    client.wait_for_text("lost", CHECK_LIMIT).unwrap();
    let node = start(&one.host, "node", &address, "listens");
    expect_success(client, node, one);
}
