//! A pool of initiators connects to a node that is used much, and goes back when it is not.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::resource::{getrlimit, setrlimit, Resource};
use urdma_harness::instance::Scratch;
use urdma_pool_verbs::{Client, Config, Node, Operation, Request, Status, Switching, VirtualId};
use urdma_tests::{alone, up_with_faults, OneHost};

use super::{
    config, from, reaches_a_node_again, wait_for, Over, Pool, Reader, FILES, LIMIT, OFFERED, READ,
    USER,
};

/// The role of [`follow_a_switched_node`].
pub(super) const FOLLOWER: &str = "follows a switched node";
/// Where the node has a counter and a word.
const COUNTER: usize = 128;
const WORD: usize = 192;
/// Atomics in a row.
const ROW: usize = 4;
const ROUNDS: u32 = 3;
/// Rows of which one was posted while no virtual queue pair has switched.
const ROWS: u32 = 20;
/// How long a slow node sleeps, and how many clients end before it has accepted them.
const SLOW: Duration = Duration::from_millis(60);
const LEAVES: u32 = 10;
/// Shorter than the 30 seconds that a connection takes which is waited for.
const GIVEN_UP: Duration = Duration::from_secs(25);

fn switching() -> Switching {
    Switching {
        requests: 8,
        window: Duration::from_millis(1),
        quiet_windows: 100,
        retry_windows: 4,
        ..Switching::default()
    }
}

/// Two virtual queue pairs: one counts, and one writes and reads back.
struct Users {
    reader: Reader,
    writer: VirtualId,
    /// What the next atomic finds, if that is known.
    next: Option<u64>,
    written: u64,
}

impl Users {
    fn new(address: SocketAddr) -> Self {
        let config = Config {
            switching: Some(switching()),
            ..config()
        };
        let mut reader = Reader::with(Client::new(from(), &config).unwrap(), address);
        let (writer, ..) = reader.client.open(USER, address, 4).unwrap();
        Self {
            reader,
            writer,
            next: None,
            written: 0,
        }
    }

    fn post(&mut self, qp: VirtualId, request: &Request, word: usize) {
        let element = self.reader.element(8 * word, 8);
        let posted = self.reader.client.post(qp, request, &[element]);
        posted.unwrap();
    }

    /// A word of the own memory.
    fn word(&self, word: usize) -> u64 {
        let mut octets = [0; 8];
        let (client, local) = (&self.reader.client, self.reader.local);
        client.read(local, 8 * word, &mut octets).unwrap();
        u64::from_ne_bytes(octets)
    }

    /// Posts atomics, and two Writes of a word and a READ of it, all at once: each is executed
    /// once, in order.
    fn row(&mut self) {
        let counts = self.reader.qp;
        let count = self.reader.request(Operation::FetchAdd { add: 1 }, COUNTER);
        let read = self.reader.request(Operation::Read, WORD);
        let write = Request {
            is_signaled: false,
            ..self.reader.request(Operation::Write, WORD)
        };
        // Words 0 to 3 are what atomics find, 4 and 5 what is written, and 6 what is read.
        for n in 0..ROW {
            self.post(counts, &count, n);
            match n {
                0 | 1 => {
                    self.written += 1;
                    let octets = self.written.to_ne_bytes();
                    let (client, local) = (&self.reader.client, self.reader.local);
                    client.write(local, 8 * (4 + n), &octets).unwrap();
                    self.post(self.writer, &write, 4 + n);
                }
                2 => self.post(self.writer, &read, 6),
                _ => {}
            }
        }
        for n in 0..ROW {
            let completion = wait_for(&mut self.reader.client, counts);
            assert_eq!(completion.status, Status::Success);
            let found = self.word(n);
            assert_eq!(
                found,
                *self.next.get_or_insert(found),
                "what an atomic finds"
            );
            self.next = Some(found.wrapping_add(1));
        }
        let completion = wait_for(&mut self.reader.client, self.writer);
        assert_eq!(
            (completion.status, completion.operation),
            (Status::Success, Operation::Read)
        );
        assert_eq!(self.word(6), self.written, "what is read back");
    }

    /// How many virtual queue pairs have switched, and how many of them are on connections.
    fn switched(&self) -> (u64, u64) {
        let stats = self.reader.client.pool().stats();
        let (to, back) = (stats.switched_to_connections, stats.switched_back);
        (to + back, to - back)
    }

    /// Posts rows until some in a row have all gone over connections, or over initiators.
    fn expect_rows_over(&mut self, connections: u64, rows: u32) {
        let began = Instant::now();
        loop {
            let before = self.switched();
            for _ in 0..rows {
                self.row();
            }
            if before.1 == connections && self.switched() == before {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{:?}", self.switched());
        }
    }

    /// Posts nothing until all virtual queue pairs are on initiators.
    fn rest(&mut self) {
        let began = Instant::now();
        while self.switched().1 > 0 {
            assert_eq!(self.reader.client.poll(self.writer).unwrap(), None);
            assert!(began.elapsed() < LIMIT, "the node keeps its connection");
        }
    }

    fn failures(&self) -> u64 {
        self.reader.client.pool().stats().switches_failed
    }
}

/// Works over initiators, then over a connection, and rests, again and again.
pub(super) fn use_both(address: SocketAddr) {
    let mut users = Users::new(address);
    for _ in 0..ROUNDS {
        users.expect_rows_over(0, 1);
        users.expect_rows_over(2, ROWS);
        users.rest();
    }
    users.reader.expect_read(0);
    let (switches, _) = users.switched();
    assert!(switches >= 4 * u64::from(ROUNDS));
    println!("done");
}

/// No descriptor is free for a connection: requests go on over the initiator, and there are no more
/// attempts than there may be. Then one is.
pub(super) fn connect_later(address: SocketAddr) {
    let began = Instant::now();
    let mut users = Users::new(address);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 1, hard).unwrap();
    while users.failures() < 5 {
        users.row();
        assert!(began.elapsed() < LIMIT, "there are no attempts");
    }
    let waits: u32 = (1 << (users.failures() - 1)) - 1;
    assert_eq!(users.switched(), (0, 0));
    let switching = switching();
    let least = switching.window * switching.retry_windows * waits;
    assert!(began.elapsed() >= least, "{} attempts", users.failures());
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    users.expect_rows_over(2, ROWS);
    println!("done");
}

/// A file by which an end tells another one.
pub(super) fn told(what: &str) -> PathBuf {
    PathBuf::from(std::env::var(FILES).unwrap()).join(what)
}

/// A node that accepts no connection once it is told so.
pub(super) fn serve_without_connections(address: SocketAddr) {
    let mut node = Node::listen(address, OFFERED).unwrap();
    node.offer_target().unwrap();
    println!("listens");
    while !told("deaf").exists() {
        node.turn().unwrap();
        std::thread::yield_now();
    }
    std::fs::write(told("is deaf"), []).unwrap();
    loop {
        node.progress().unwrap();
        std::thread::yield_now();
    }
}

/// The node does not answer who asks for a connection: that is given up, and requests go on.
pub(super) fn use_a_deaf_node(address: SocketAddr) {
    let mut users = Users::new(address);
    std::fs::write(told("deaf"), []).unwrap();
    let began = Instant::now();
    while !told("is deaf").exists() {
        assert!(began.elapsed() < LIMIT, "the node goes on");
        std::thread::yield_now();
    }
    let began = Instant::now();
    while users.failures() == 0 {
        users.row();
        assert!(began.elapsed() < GIVEN_UP, "a connection is waited for");
    }
    assert_eq!(users.switched(), (0, 0));
    println!("done");
}

/// A node that looks for clients now and then.
pub(super) fn serve_slowly(address: SocketAddr) {
    let mut node = Node::listen(address, OFFERED).unwrap();
    node.offer_target().unwrap();
    println!("listens");
    loop {
        node.turn().unwrap();
        std::thread::sleep(SLOW);
    }
}

/// A client asks for a connection, and its process ends before the node has accepted it.
pub(super) fn leave_early(address: SocketAddr) {
    let mut users = Users::new(address);
    let began = Instant::now();
    while began.elapsed() < SLOW / 3 {
        users.row();
    }
    println!("done");
    std::process::exit(0);
}

/// The node is killed while it is connected to, and begins anew at its address.
pub(super) fn follow_a_switched_node(address: SocketAddr) {
    let mut users = Users::new(address);
    users.expect_rows_over(2, ROWS);
    println!("reads");
    let began = Instant::now();
    while users.reader.read(0).status == Status::Success {
        assert!(began.elapsed() < LIMIT, "the node's end is not noticed");
    }
    println!("lost");
    users.reader.client.close(users.reader.qp).unwrap();
    users.reader.client.close(users.writer).unwrap();
    while users.reader.open().is_err() {
        assert!(began.elapsed() < LIMIT, "the node is not reached again");
        std::thread::sleep(Duration::from_millis(20));
    }
    // What opens one knows the target of the new node.
    users.reader.expect_read(READ);
    let (writer, ..) = users.reader.client.open(USER, address, 4).unwrap();
    (users.writer, users.next) = (writer, None);
    users.expect_rows_over(2, ROWS);
    println!("done");
}

fn expect_done(pool: Pool, role: &str) {
    let node = pool.node();
    let client = pool.client(role, "done");
    pool.expect_success(client, vec![node]);
}

#[test]
fn node_that_is_used_much_is_connected_to_and_left_again() {
    let _alone = alone();
    expect_done(Pool::up(Over::Initiators), "uses both");
}

#[test]
fn node_of_another_host_is_connected_to_and_left_again() {
    let _alone = alone();
    expect_done(Pool::up_between_hosts(Over::Initiators), "uses both");
}

#[test]
fn node_is_connected_to_and_left_again_over_a_link_with_losses() {
    let _alone = alone();
    let scratch = Scratch::new("pool-losses").unwrap();
    let fault = "[fault]\nloss = \"0.1%\"\nduplicate = \"1%\"\nreorder = \"1%\"\nseed = 5\n";
    let [host, other] = up_with_faults(&scratch, fault);
    let pool = Pool::on(OneHost { host, scratch }, Some(other), Over::Initiators);
    expect_done(pool, "uses both");
}

#[test]
fn node_that_cannot_be_connected_to_is_reached_over_initiators_until_it_can() {
    let _alone = alone();
    expect_done(Pool::up(Over::Initiators), "connects later");
}

#[test]
fn connection_that_is_not_accepted_is_given_up_and_disturbs_no_request() {
    let _alone = alone();
    let pool = Pool::up(Over::Initiators);
    let node = pool.start("deaf node", &pool.addresses[0], "listens");
    let client = pool.client("uses a deaf node", "done");
    pool.expect_success(client, vec![node]);
}

#[test]
fn clients_that_end_while_they_connect_do_not_end_the_node() {
    let _alone = alone();
    let pool = Pool::up(Over::Initiators);
    let node = pool.start("slow node", &pool.addresses[0], "listens");
    for _ in 0..LEAVES {
        let client = pool.client("leaves early", "done");
        assert!(client.wait(LIMIT).unwrap().succeeded());
    }
    let client = pool.client("leaves early", "done");
    pool.expect_success(client, vec![node]);
}

#[test]
fn node_that_ends_while_it_is_connected_to_is_reached_again() {
    let _alone = alone();
    reaches_a_node_again(Pool::up(Over::Initiators), FOLLOWER);
}

#[test]
fn node_of_another_host_that_ends_while_it_is_connected_to_is_reached_again() {
    let _alone = alone();
    reaches_a_node_again(Pool::up_between_hosts(Over::Initiators), FOLLOWER);
}
