//! The pool over verbs (`urdma_pool_verbs`), over connections and over initiators: nodes and a
//! client, each a process of an instance, which run the test `end` of this program.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::Signal;
use urdma_harness::instance::{Instance, Scratch};
use urdma_harness::process::Process;
use urdma_pool_verbs::{
    Client, Completion, Config, Element, Error, LocalRegionId, Node, Operation, RemoteRegionId,
    Request, Status, Transport, UserId, VirtualId,
};
use urdma_tests::{
    alone, descriptors_of, expect_all_taken_back, link_urdmadv, ports, start_end, up_with_faults,
    OneHost, CHECK_LIMIT,
};

#[path = "pool/away.rs"]
mod away;
#[path = "pool/metadata.rs"]
mod metadata;
#[path = "pool/store.rs"]
mod store;
#[path = "pool/switch.rs"]
mod switch;

/// What an end does, over what, and the address of the node and of a second one.
const ROLE: &str = "URDMA_TEST_POOL_ROLE";
const OVER: &str = "URDMA_TEST_POOL_OVER";
const ADDRESS: &str = "URDMA_TEST_POOL_ADDRESS";
const SECOND: &str = "URDMA_TEST_POOL_SECOND";
/// The address of a client's host.
const FROM: &str = "URDMA_TEST_POOL_FROM";
const HOST: &str = "127.0.0.1";
const OTHER_HOST: &str = "127.0.0.2";
/// A directory in which ends tell each other something.
const FILES: &str = "URDMA_TEST_POOL_FILES";
/// Octets of the node, and of a read.
const OFFERED: usize = 4096;
const READ: usize = 64;
const USER: UserId = UserId(1);
/// How long an end waits for what does come.
const LIMIT: Duration = Duration::from_secs(60);

/// What the shared queue pairs of the clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Connections,
    Initiators,
}

/// One host, whose processes find `liburdmadv.so`, or two: then the clients are on the other one.
struct Pool {
    one: OneHost,
    other: Option<Instance>,
    over: Over,
    libraries: Scratch,
    addresses: [String; 2],
    /// Metadata services of ends that are started, separated by commas.
    services: String,
}

impl Pool {
    fn up(over: Over) -> Self {
        Self::on(OneHost::up(), None, over)
    }

    /// Over initiators, with nodes at an address of IPv6.
    fn up_over_ipv6() -> Self {
        let one = OneHost::up_at(&["127.0.0.1", "::1"]);
        let mut pool = Self::on(one, None, Over::Initiators);
        pool.addresses = [(); 2].map(|()| format!("[::1]:{}", ports()));
        pool
    }

    /// On two hosts.
    fn up_between_hosts(over: Over) -> Self {
        let scratch = Scratch::new("pool-hosts").unwrap();
        let [host, other] = up_with_faults(&scratch, "");
        Self::on(OneHost { host, scratch }, Some(other), over)
    }

    fn on(one: OneHost, other: Option<Instance>, over: Over) -> Self {
        let libraries = Scratch::new("pool").unwrap();
        link_urdmadv(libraries.path());
        Self {
            one,
            other,
            over,
            libraries,
            addresses: [(); 2].map(|()| format!("127.0.0.1:{}", ports())),
            services: String::new(),
        }
    }

    fn start(&self, role: &str, address: &str, said: &str) -> Process {
        self.start_on(&self.one.host, role, address, said)
    }

    fn start_on(&self, host: &Instance, role: &str, address: &str, said: &str) -> Process {
        let libraries = self.libraries.path().to_str().unwrap();
        let over = match self.over {
            Over::Connections => "connections",
            Over::Initiators => "initiators",
        };
        let from = match std::ptr::eq(host, &self.one.host) {
            true => HOST,
            false => OTHER_HOST,
        };
        let environment = [
            (ROLE, role),
            (OVER, over),
            (ADDRESS, address),
            (SECOND, &self.addresses[1]),
            (FROM, from),
            (metadata::SERVICES, &self.services),
            (FILES, libraries),
            ("LD_LIBRARY_PATH", libraries),
        ];
        let mut process = start_end(host, &environment);
        process.wait_for_text(said, CHECK_LIMIT).unwrap();
        process
    }

    fn node(&self) -> Process {
        self.start("node", &self.addresses[0], "listens")
    }

    fn second_node(&self) -> Process {
        self.start("node", &self.addresses[1], "listens")
    }

    fn client(&self, role: &str, said: &str) -> Process {
        let host = self.other.as_ref().unwrap_or(&self.one.host);
        self.start_on(host, role, &self.addresses[0], said)
    }

    /// The client succeeds; nothing is left of it and of the nodes.
    fn expect_success(self, client: Process, nodes: Vec<Process>) {
        let ended = client.wait(CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
        nodes.into_iter().for_each(kill);
        expect_all_taken_back(&self.one.host);
        if let Some(other) = self.other {
            expect_all_taken_back(&other);
            other.down().unwrap();
        }
        self.one.down();
    }
}

fn kill(node: Process) {
    node.signal(Signal::SIGKILL).unwrap();
    node.wait(CHECK_LIMIT).unwrap();
}

#[test]
#[ignore = "an end, which the other tests start"]
fn end() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let address = address_in(ADDRESS);
    match &*role {
        "node" => serve(address),
        "client" => read_and_close(address),
        "survivor" => read_until_it_works_again(address),
        "neighbour" => write_beside_a_node_that_is_gone(address),
        "limited" => open_without_descriptors(address),
        "nodes" => serve_many(address),
        "wanderer" => read_from_one_after_the_other(address),
        "follows a node" => metadata::follow_a_node(address),
        "follows a service" => metadata::follow_a_service(address),
        "uses a second service" => metadata::use_a_second_service(address),
        "sees a host lost" => metadata::see_a_host_lost(address),
        "lies" => metadata::lie(address),
        "is deceived" => metadata::be_deceived(address),
        "is refused" => metadata::be_refused(address),
        "store" => store::offer(address),
        "worker 1" => store::work(address, 1),
        "worker 2" => store::work(address, 2),
        "worker 3" => store::work(address, 3),
        "looks" => store::look(address),
        "returns to many" => away::return_to_many(address),
        "returns to another" => away::return_to_another(address),
        "uses both" => switch::use_both(address),
        "connects later" => switch::connect_later(address),
        "deaf node" => switch::serve_without_connections(address),
        "uses a deaf node" => switch::use_a_deaf_node(address),
        "slow node" => switch::serve_slowly(address),
        "leaves early" => switch::leave_early(address),
        switch::FOLLOWER => switch::follow_a_switched_node(address),
        other => panic!("no role {other:?}"),
    }
}

/// The address in an environment variable.
fn address_in(variable: &str) -> SocketAddr {
    std::env::var(variable).unwrap().parse().unwrap()
}

/// Octet `n` of the node.
fn octet(n: usize) -> u8 {
    u8::try_from(n * 7 % 251).unwrap()
}

fn serve(address: SocketAddr) {
    let mut node = Node::listen(address, OFFERED).unwrap();
    let octets: Vec<u8> = (0..OFFERED).map(octet).collect();
    node.write(0, &octets).unwrap();
    if std::env::var(OVER).unwrap() == "initiators" {
        node.offer_target().unwrap();
    }
    println!("listens");
    let services = metadata::services();
    if !services.is_empty() {
        node.register(&services).unwrap();
    }
    let mut registered = 0;
    loop {
        node.turn().unwrap();
        if node.registered() != registered {
            registered = node.registered();
            if registered == services.len() {
                println!("registered");
            }
        }
        std::thread::yield_now();
    }
}

fn config() -> Config {
    let transport = match &*std::env::var(OVER).unwrap() {
        "connections" => Transport::Connections { per_node: 1 },
        "initiators" => Transport::Initiators { count: 1 },
        other => panic!("nothing is over {other:?}"),
    };
    Config {
        transport,
        ..Config::default()
    }
}

fn from() -> IpAddr {
    std::env::var(FROM).unwrap().parse().unwrap()
}

fn new_client() -> Client {
    Client::new(from(), &config()).unwrap()
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
        Self::with(new_client(), address)
    }

    fn with(mut client: Client, address: SocketAddr) -> Self {
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

    fn request(&self, operation: Operation, offset: usize) -> Request {
        Request {
            id: offset as u64,
            operation,
            remote: self.remote,
            remote_addr: self.remote_addr + offset as u64,
            is_signaled: true,
        }
    }

    /// Octets of the own memory.
    fn element(&self, offset: usize, len: usize) -> Element {
        Element {
            local: self.local,
            addr: self.client.addr(self.local).unwrap() + offset as u64,
            len_octets: u32::try_from(len).unwrap(),
        }
    }

    fn post(&mut self, request: &Request) -> Result<(), Error> {
        let all = self.element(0, READ);
        self.client.post(self.qp, request, &[all])
    }

    /// Reads octets of the node.
    fn read(&mut self, offset: usize) -> Completion {
        let request = self.request(Operation::Read, offset);
        self.post(&request).unwrap();
        self.wait()
    }

    /// The next completion.
    fn wait(&mut self) -> Completion {
        wait_for(&mut self.client, self.qp)
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

/// The next completion of a virtual queue pair.
fn wait_for(client: &mut Client, qp: VirtualId) -> Completion {
    let began = Instant::now();
    loop {
        if let Some(completion) = client.poll(qp).unwrap() {
            return completion;
        }
        assert!(began.elapsed() < LIMIT, "a request does not complete");
        std::thread::yield_now();
    }
}

fn read_and_close(address: SocketAddr) {
    let mut reader = Reader::new(address);
    reader.expect_read(0);
    let beyond = reader.request(Operation::Write, OFFERED - READ + 1);
    let refused = reader.post(&beyond);
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

/// One shared queue pair, if it is an initiator, reaches both nodes; the first one ends.
fn write_beside_a_node_that_is_gone(address: SocketAddr) {
    let second = address_in(SECOND);
    let mut reader = Reader::new(address);
    reader.expect_read(0);
    let (qp, remote, remote_addr) = reader.client.open(USER, second, 64).unwrap();
    println!("reads");
    // That the first one cannot be connected to again is no error of requests to the second one.
    // No descriptor is free; poll(2) takes one entry.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 1, hard).unwrap();
    let began = Instant::now();
    let mut written = 0;
    let mut is_lost = false;
    while !is_lost || written < 1000 {
        assert!(
            began.elapsed() < LIMIT,
            "the end of the first node is not noticed"
        );
        if !is_lost {
            let request = reader.request(Operation::Read, 0);
            reader.post(&request).unwrap();
        }
        let to_second = Request {
            remote,
            remote_addr,
            ..reader.request(Operation::Write, 0)
        };
        for _ in 0..8 {
            let all = reader.element(0, READ);
            reader.client.post(qp, &to_second, &[all]).unwrap();
        }
        if !is_lost {
            is_lost = reader.wait().status != Status::Success;
        }
        for _ in 0..8 {
            let completion = wait_for(&mut reader.client, qp);
            assert_eq!(completion.status, Status::Success, "after {written} Writes");
            written += 1;
        }
    }
    assert!(reader.client.pool().stats().failed > 0);
    println!("done");
}

/// No descriptor is free when a virtual queue pair is opened: it is not left open.
fn open_without_descriptors(address: SocketAddr) {
    let only_one = Config {
        virtual_max: 1,
        ..config()
    };
    let mut client = Client::new(from(), &only_one).unwrap();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
    let refused = client.open(USER, address, 4);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(matches!(refused, Err(Error::Call { .. })), "{refused:?}");
    client.open(USER, address, 4).unwrap();
    println!("done");
}

/// Nodes of one process, at as many ports.
const MANY: u16 = 24;

/// The address of each of them.
fn many_from(first: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    (0..MANY).map(move |n| SocketAddr::new(first.ip(), first.port() + n))
}

fn serve_many(first: SocketAddr) {
    let octets: Vec<u8> = (0..OFFERED).map(octet).collect();
    let mut nodes: Vec<Node> = many_from(first)
        .map(|address| {
            let mut node = Node::listen(address, OFFERED).unwrap();
            node.write(0, &octets).unwrap();
            node.offer_target().unwrap();
            node
        })
        .collect();
    println!("listens");
    loop {
        nodes.iter_mut().for_each(|node| node.turn().unwrap());
        std::thread::yield_now();
    }
}

/// Opens, reads from and closes each of many nodes; the pool has few of them at a time.
fn read_from_each(reader: &mut Reader, first: SocketAddr, at: usize, nodes_max: usize) {
    for address in many_from(first) {
        reader.address = address;
        reader.open().unwrap();
        reader.expect_read(at);
        reader.client.close(reader.qp).unwrap();
        assert!(reader.client.pool().nodes() <= nodes_max);
    }
}

/// The client may know a third of the nodes, and its completion queue serves four connections.
fn read_from_one_after_the_other(first: SocketAddr) {
    let few = Config {
        nodes_max: u32::from(MANY) / 3,
        cq_depth: 4 * Config::default().sq_depth,
        ..config()
    };
    let mut reader = Reader::with(Client::new(from(), &few).unwrap(), first);
    reader.client.close(reader.qp).unwrap();
    let mut descriptors = Vec::new();
    for round in 0..4 {
        read_from_each(&mut reader, first, round * READ, few.nodes_max as usize);
        descriptors.push(descriptors_of(std::process::id()));
    }
    assert_eq!(descriptors, [descriptors[0]; 4]);
    let stats = *reader.client.pool().stats();
    assert!(stats.removed >= 3 * u64::from(MANY), "{stats:?}");
    println!("done");
}

fn forgets_nodes(over: Over) {
    let _alone = alone();
    let pool = Pool::up(over);
    let nodes = pool.start("nodes", &pool.addresses[0], "listens");
    let client = pool.client("wanderer", "done");
    pool.expect_success(client, vec![nodes]);
}

#[test]
fn client_over_connections_forgets_nodes_that_it_does_not_use() {
    forgets_nodes(Over::Connections);
}

#[test]
fn client_over_an_initiator_forgets_nodes_that_it_does_not_use() {
    forgets_nodes(Over::Initiators);
}

fn reads_and_closes(pool: Pool) {
    let node = pool.node();
    let client = pool.client("client", "done");
    pool.expect_success(client, vec![node]);
}

#[test]
fn client_reads_and_closes_over_one_connection() {
    let _alone = alone();
    reads_and_closes(Pool::up(Over::Connections));
}

#[test]
fn client_reads_and_closes_over_one_initiator() {
    let _alone = alone();
    reads_and_closes(Pool::up(Over::Initiators));
}

#[test]
fn client_reads_and_closes_over_one_initiator_between_hosts() {
    let _alone = alone();
    reads_and_closes(Pool::up_between_hosts(Over::Initiators));
}

/// The node is killed under a client of this role, and begins anew.
fn reaches_a_node_again(pool: Pool, role: &str) {
    let node = pool.node();
    let mut client = pool.client(role, "reads");
    kill(node);
    client.wait_for_text("lost", CHECK_LIMIT).unwrap();
    let node = pool.node();
    pool.expect_success(client, vec![node]);
}

#[test]
fn client_reaches_a_node_again_that_was_killed() {
    let _alone = alone();
    reaches_a_node_again(Pool::up(Over::Connections), "survivor");
}

#[test]
fn initiator_reaches_a_node_again_that_was_killed() {
    let _alone = alone();
    reaches_a_node_again(Pool::up(Over::Initiators), "survivor");
}

#[test]
fn initiator_reaches_a_node_of_another_host_again_that_was_killed() {
    let _alone = alone();
    reaches_a_node_again(Pool::up_between_hosts(Over::Initiators), "survivor");
}

fn writes_beside_a_node_that_is_gone(over: Over) {
    let _alone = alone();
    let pool = Pool::up(over);
    let (first, second) = (pool.node(), pool.second_node());
    let client = pool.client("neighbour", "reads");
    kill(first);
    pool.expect_success(client, vec![second]);
}

#[test]
fn connections_to_others_survive_the_end_of_a_node() {
    writes_beside_a_node_that_is_gone(Over::Connections);
}

#[test]
fn writes_of_an_initiator_to_others_survive_the_end_of_a_node() {
    writes_beside_a_node_that_is_gone(Over::Initiators);
}

fn opens_again_after_a_failure(over: Over) {
    let _alone = alone();
    let pool = Pool::up(over);
    let node = pool.node();
    let client = pool.client("limited", "done");
    pool.expect_success(client, vec![node]);
}

#[test]
fn connection_that_fails_leaves_no_virtual_queue_pair_open() {
    opens_again_after_a_failure(Over::Connections);
}

#[test]
fn question_that_fails_leaves_no_virtual_queue_pair_open() {
    opens_again_after_a_failure(Over::Initiators);
}
