//! Nodes that register at metadata services (`urdma-metad`), and clients that learn of them by the
//! tables of these.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, LeasePolicy};
use urdma_harness::process::Process;
use urdma_pool_verbs::{
    Answer, Client, Error, Learned, Limits, MetadataService, Node, Own, Refusal, Region, Status,
    Target,
};
use urdma_tests::{alone, ports, CHECK_LIMIT};

use super::{
    address_in, kill, new_client, Over, Pool, Reader, HOST, LIMIT, OFFERED, OTHER_HOST, SECOND,
};

/// The services of an end, separated by commas.
pub(super) const SERVICES: &str = "URDMA_TEST_POOL_SERVICES";

/// The services of this end.
pub(super) fn services() -> Vec<SocketAddr> {
    let services = std::env::var(SERVICES).unwrap();
    let services = services.split(',').filter(|service| !service.is_empty());
    services.map(|service| service.parse().unwrap()).collect()
}

/// A pool over initiators, and the addresses of two metadata services.
struct Directory {
    pool: Pool,
    services: [String; 2],
}

impl Directory {
    /// Its ends know the first `known` services.
    fn up(known: usize) -> Self {
        Self::of(Pool::up(Over::Initiators), known)
    }

    fn of(mut pool: Pool, known: usize) -> Self {
        let services = [(); 2].map(|()| format!("127.0.0.1:{}", ports()));
        pool.services = services[..known].join(",");
        Self { pool, services }
    }

    fn service_with(&self, n: usize, options: &[&str]) -> Process {
        let program = binary_dir().unwrap().join("urdma-metad");
        let argv = [program.to_str().unwrap(), "--listen", &self.services[n]];
        let argv = [&argv[..], options].concat();
        let mut command = self.pool.one.host.run(LeasePolicy::Never, &argv).unwrap();
        let mut process = Process::start(&mut command).unwrap();
        process.wait_for_text("listens", CHECK_LIMIT).unwrap();
        process
    }

    fn service(&self, n: usize) -> Process {
        self.service_with(n, &[])
    }

    /// A node at one of the addresses of the pool, once it is registered.
    fn node(&self, n: usize) -> Process {
        self.pool
            .start("node", &self.pool.addresses[n], "registered")
    }
}

/// A client that uses services.
fn client_of(services: &[SocketAddr]) -> Client {
    let mut client = new_client();
    client.use_metadata(services).unwrap();
    client
}

/// A client that uses the services of this end.
fn client() -> Client {
    client_of(&services())
}

/// Waits until the look-ups of a node have these answers.
fn wait_for_answers(client: &mut Client, node: SocketAddr, expected: impl Fn(&[Answer]) -> bool) {
    let began = Instant::now();
    loop {
        let answers = client.look_up(node);
        if expected(&answers) {
            return;
        }
        let error = client.metadata_error();
        assert!(began.elapsed() < LIMIT, "{answers:?}, {error:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_found(answers: &[Answer]) -> bool {
    matches!(answers, [Answer::Found(_)])
}

fn generation(client: &mut Client, node: SocketAddr) -> u16 {
    match client.look_up(node)[..] {
        [Answer::Found(found)] => found.generation,
        ref other => panic!("{other:?}"),
    }
}

fn learned(by_table: u64, by_asking: u64) -> Learned {
    Learned {
        by_table,
        by_asking,
    }
}

/// How a read ends over a virtual queue pair that is opened for it.
fn status_when_opened(reader: &mut Reader) -> Status {
    reader.open().unwrap();
    let status = reader.read(0).status;
    reader.client.close(reader.qp).unwrap();
    status
}

/// The node ends, and another one begins at its address.
pub(super) fn follow_a_node(node: SocketAddr) {
    let mut reader = Reader::with(client(), node);
    reader.expect_read(0);
    assert_eq!(reader.client.learned(), learned(1, 0));
    let before = generation(&mut reader.client, node);
    println!("reads");
    wait_for_answers(&mut reader.client, node, |found| found == [Answer::Absent]);
    println!("gone");
    wait_for_answers(&mut reader.client, node, is_found);
    assert_ne!(generation(&mut reader.client, node), before);
    // The client knows only the node before, until a request to it has failed.
    assert_ne!(reader.read(0).status, Status::Success);
    reader.open().unwrap();
    reader.expect_read(64);
    assert_eq!(reader.client.learned(), learned(2, 0));
    println!("done");
}

/// The node is out of reach for a while.
pub(super) fn see_a_host_lost(node: SocketAddr) {
    let mut client = client();
    wait_for_answers(&mut client, node, is_found);
    let before = generation(&mut client, node);
    println!("found");
    wait_for_answers(&mut client, node, |found| found == [Answer::Absent]);
    println!("gone");
    wait_for_answers(&mut client, node, is_found);
    assert_ne!(generation(&mut client, node), before);
    println!("done");
}

/// The service ends, and another one begins at its address.
pub(super) fn follow_a_service(node: SocketAddr) {
    let second = address_in(SECOND);
    let mut reader = Reader::with(client(), node);
    reader.expect_read(0);
    println!("reads");
    wait_for_answers(&mut reader.client, node, <[_]>::is_empty);
    assert!(reader.client.metadata_error().is_some());
    reader.address = second;
    reader.open().unwrap();
    reader.expect_read(0);
    assert_eq!(reader.client.learned(), learned(1, 1));
    println!("asked");
    wait_for_answers(&mut reader.client, second, is_found);
    let mut other = Reader::with(client(), second);
    other.expect_read(0);
    assert_eq!(other.client.learned(), learned(1, 0));
    println!("done");
}

/// The first of two services answers no more.
pub(super) fn use_a_second_service(node: SocketAddr) {
    let mut client = client();
    wait_for_answers(&mut client, node, |found| {
        matches!(found, [Answer::Found(_), Answer::Found(_)])
    });
    println!("two answer");
    wait_for_answers(&mut client, node, is_found);
    let mut reader = Reader::with(client, node);
    reader.expect_read(0);
    assert_eq!(reader.client.learned(), learned(1, 0));
    println!("done");
}

/// A service with what the other one has of two nodes, but other memory of the first one, and
/// another target of the second.
pub(super) fn lie(node: SocketAddr) {
    let services = services();
    let [own, honest] = services[..] else {
        panic!("{services:?}")
    };
    let second = address_in(SECOND);
    let mut client = client_of(&[honest]);
    let mut target_of = |node| match client.look_up(node)[..] {
        [Answer::Found(found)] => found.target,
        ref other => panic!("{other:?}"),
    };
    let (first, other) = (target_of(node), target_of(second));
    let region = first.region();
    let wrong = Region {
        rkey: region.rkey ^ 0x100,
        ..region
    };
    let first = Target::new(first.number(), first.access_key(), wrong).unwrap();
    let other = Target::new(other.number() ^ 1, other.access_key(), other.region()).unwrap();
    let limits = Limits {
        nodes: 2,
        clients: 1,
    };
    let mut service = MetadataService::listen(own, limits).unwrap();
    service.enter(node, first).unwrap();
    service.enter(second, other).unwrap();
    println!("lies");
    loop {
        service.turn().unwrap();
    }
}

/// What the table of the first service has of both nodes is wrong.
pub(super) fn be_deceived(node: SocketAddr) {
    let mut client = client_of(&services()[..1]);
    for (node, before) in [(node, 0), (address_in(SECOND), 1)] {
        let mut reader = Reader::with(client, node);
        assert_ne!(reader.read(0).status, Status::Success);
        assert_eq!(reader.client.learned(), learned(before + 1, before));
        reader.client.close(reader.qp).unwrap();
        assert_eq!(status_when_opened(&mut reader), Status::Success);
        assert_eq!(reader.client.learned(), learned(before + 1, before + 1));
        client = reader.client;
    }
    println!("done");
}

/// The service has room for one node and one client.
pub(super) fn be_refused(address: SocketAddr) {
    let service = services()[0];
    let mut nodes = [address, address_in(SECOND)].map(|address| {
        let mut node = Node::listen(address, OFFERED).unwrap();
        let early = node.register(&[service]);
        assert!(matches!(early, Err(Error::Metadata(_))), "{early:?}");
        node.offer_target().unwrap();
        let many = node.register(&[service; 3]);
        assert!(matches!(many, Err(Error::Metadata(_))), "{many:?}");
        node
    });
    let mut wait_until = |what: &str, n: usize, is_so: &dyn Fn(&Node) -> bool| {
        let began = Instant::now();
        nodes[n].register(&[service]).unwrap();
        while !is_so(&nodes[n]) {
            let error = nodes[n].registration_error();
            assert!(began.elapsed() < LIMIT, "{what}: {error:?}");
            nodes.iter_mut().for_each(|node| node.turn().unwrap());
            std::thread::yield_now();
        }
    };
    wait_until("registered", 0, &|node| node.registered() == 1);
    wait_until("refused", 1, &|node| {
        is_refusal(node.registration_error(), Refusal::Nodes)
    });

    let mut first = client();
    assert!(is_found(&first.look_up(address)));
    let mut second = client();
    assert_eq!(second.look_up(address), []);
    assert!(is_refusal(second.metadata_error(), Refusal::Clients));
    let error = Client::use_metadata(&mut second, &[service; 3]);
    assert!(matches!(error, Err(Error::Metadata(_))), "{error:?}");

    let other = Own::connect(service, 8).map(drop);
    assert!(matches!(other, Err(Error::Unreachable(_))), "{other:?}");
    println!("done");
}

fn is_refusal(error: Option<&Error>, expected: Refusal) -> bool {
    matches!(error, Some(Error::Refused { refusal, .. }) if *refusal == expected)
}

fn follows_a_node(directory: Directory) {
    let service = directory.service(0);
    let node = directory.node(0);
    let mut client = directory.pool.client("follows a node", "reads");
    kill(node);
    client.wait_for_text("gone", CHECK_LIMIT).unwrap();
    let node = directory.node(0);
    directory.pool.expect_success(client, vec![node, service]);
}

#[test]
fn node_is_found_by_a_table_for_as_long_as_it_lives() {
    let _alone = alone();
    follows_a_node(Directory::up(1));
}

#[test]
fn node_of_another_host_is_found_by_a_table_for_as_long_as_it_lives() {
    let _alone = alone();
    let pool = Pool::up_between_hosts(Over::Initiators);
    follows_a_node(Directory::of(pool, 1));
}

/// A host with a node loses its network, and gets it back.
#[test]
#[ignore = "half a minute, most of which is the time between probes"]
fn node_whose_host_is_lost_leaves_the_table_and_comes_back() {
    let _alone = alone();
    let directory = Directory::of(Pool::up_between_hosts(Over::Initiators), 1);
    let service = directory.service(0);
    let pool = &directory.pool;
    let other = pool.other.as_ref().unwrap();
    let address = pool.addresses[0].replace(HOST, OTHER_HOST);
    let node = pool.start_on(other, "node", &address, "registered");
    let mut client = pool.start_on(&pool.one.host, "sees a host lost", &address, "found");
    other.fault(&["--loss", "100%"]).unwrap();
    client.wait_for_text("gone", CHECK_LIMIT).unwrap();
    other.fault(&["--off"]).unwrap();
    directory.pool.expect_success(client, vec![node, service]);
}

#[test]
fn nodes_are_asked_while_no_service_lives() {
    let _alone = alone();
    let directory = Directory::up(1);
    let service = directory.service(0);
    let nodes = [0, 1].map(|n| directory.node(n));
    let mut client = directory.pool.client("follows a service", "reads");
    kill(service);
    client.wait_for_text("asked", CHECK_LIMIT).unwrap();
    let service = directory.service(0);
    let others = nodes.into_iter().chain([service]).collect();
    directory.pool.expect_success(client, others);
}

/// The first of two services gets a signal.
fn second_service_answers_after(signal: Signal) {
    let _alone = alone();
    let directory = Directory::up(2);
    let services = [0, 1].map(|n| directory.service(n));
    let node = directory.node(0);
    let client = directory.pool.client("uses a second service", "two answer");
    services[0].signal(signal).unwrap();
    let others = services.into_iter().chain([node]).collect();
    directory.pool.expect_success(client, others);
}

#[test]
fn second_service_answers_when_the_first_was_killed() {
    second_service_answers_after(Signal::SIGKILL);
}

#[test]
fn second_service_answers_when_the_first_is_silent() {
    second_service_answers_after(Signal::SIGSTOP);
}

#[test]
fn table_that_lies_is_believed_once() {
    let _alone = alone();
    let mut directory = Directory::up(2);
    let honest = directory.service(1);
    let known = std::mem::replace(&mut directory.pool.services, directory.services[1].clone());
    let nodes = [0, 1].map(|n| directory.node(n));
    directory.pool.services = known;
    let liar = directory.pool.client("lies", "lies");
    let client = directory.pool.client("is deceived", "done");
    let others = nodes.into_iter().chain([honest, liar]).collect();
    directory.pool.expect_success(client, others);
}

#[test]
fn service_without_room_refuses_with_a_reason() {
    let _alone = alone();
    let directory = Directory::up(1);
    let options = ["--nodes-max", "1", "--clients-max", "1"];
    let service = directory.service_with(0, &options);
    let client = directory.pool.client("is refused", "done");
    directory.pool.expect_success(client, vec![service]);
}
