//! A hostile peer of a byte stream over verbs: `exs-hostile/main.c` makes the connection and then
//! does what no correct peer does. `crates/stream/src/check/hostile.rs` has the cases without IO.
//!
//! The honest end is one process for all connections, which runs the test `end` of this program.
#![allow(clippy::unwrap_used)]

#[path = "exs-hostile/cases.rs"]
mod cases;
#[path = "exs-hostile/program.rs"]
mod program;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cases::{Case, Expected, RECV, RING};
use urdma_exs::{Buffer, Config, Error, Event, Listener, Options, Socket};
use urdma_harness::instance::{Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::Process;
use urdma_tests::{alone, expect_all_taken_back, ports, OneHost, SHORT};

/// Where the honest end listens.
const ADDRESS: &str = "URDMA_TEST_EXS_ADDRESS";
/// How long a connection may last.
const LIMIT: Duration = Duration::from_secs(60);
/// Octets that a peer must not change, and those of buffers that have come back.
const SECRET: u8 = 0x5a;
const RETURNED: u8 = 0x33;
/// What a correct peer sends after all others.
const GOOD: &[u8] = b"octets of a correct peer";

fn options(case: &Case) -> Options {
    let config = Config {
        choice: case.choice,
        recv_slots: 8,
        max_recvs: 2,
        advert_min_octets: 0,
        ..Config::default()
    };
    Options {
        config,
        ring_octets: RING as usize,
        ..Options::default()
    }
}

/// Memory of the honest end beside that which peers may write into.
#[derive(Debug, Default)]
struct Kept {
    secrets: Vec<Buffer>,
    returned: Vec<Buffer>,
}

impl Kept {
    fn check(&self) {
        let is_kept = |octets: &[u8]| octets.iter().all(|&octet| octet == SECRET);
        for secret in &self.secrets {
            let (address, rest) = secret.split_at(8);
            assert_eq!(address, (secret.as_ptr() as u64).to_be_bytes());
            assert!(is_kept(rest), "a peer has written into memory of this end");
        }
        let all = self.returned.iter().all(|buffer| {
            let mut octets = buffer.iter();
            octets.all(|&octet| octet == RETURNED)
        });
        assert!(all, "a peer has written into a buffer that was returned");
    }
}

/// A buffer that begins with its own address, which the peer is told.
fn secret() -> Result<Buffer, Error> {
    let mut buffer = Buffer::new(4096)?;
    buffer.fill(SECRET);
    let address = (buffer.as_ptr() as u64).to_be_bytes();
    buffer[..8].copy_from_slice(&address);
    Ok(buffer)
}

/// Serves a hostile peer until the connection has ended; how, and how much was refused.
fn suffer(case: &Case, listener: &Listener, kept: &mut Kept) -> Result<String, Error> {
    let mut socket = listener.accept(&options(case))?;
    socket.send(secret()?, 8).map_err(|refused| refused.error)?;
    for _ in 0..case.recvs {
        let mut buffer = Buffer::new(RECV as usize)?;
        buffer.fill(SECRET);
        let len = buffer.len();
        socket
            .recv(buffer, len, true)
            .map_err(|refused| refused.error)?;
    }
    loop {
        match socket.wait(Some(LIMIT))? {
            Some(Event::Sent { buffer, .. }) => kept.secrets.push(buffer),
            Some(Event::Received { mut buffer, .. }) => {
                buffer.fill(RETURNED);
                kept.returned.push(buffer);
            }
            Some(Event::Failed(failure)) => {
                return Ok(format!("{failure}; refused {}", socket.stats().refused));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn receive_good(listener: &Listener) -> Result<(), Error> {
    let mut socket = listener.accept(&Options::default())?;
    let buffer = Buffer::new(GOOD.len())?;
    let posted = socket.recv(buffer, GOOD.len(), true);
    posted.map_err(|refused| refused.error)?;
    match socket.wait(Some(LIMIT))? {
        Some(Event::Received { buffer, octets, .. }) => assert_eq!(
            &buffer[..usize::try_from(octets).unwrap()],
            GOOD,
            "octets of a correct peer"
        ),
        other => panic!("{other:?}"),
    }
    socket.close()?;
    expect_closed(&mut socket)
}

fn expect_closed(socket: &mut Socket) -> Result<(), Error> {
    loop {
        match socket.wait(Some(LIMIT))? {
            Some(Event::Closed) => return Ok(()),
            Some(Event::Sent { .. } | Event::Received { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn send_good(address: SocketAddr) -> Result<(), Error> {
    let mut socket = Socket::connect(address, &Options::default())?;
    let mut buffer = Buffer::new(GOOD.len())?;
    buffer.copy_from_slice(GOOD);
    let posted = socket.send(buffer, GOOD.len());
    posted.map_err(|refused| refused.error)?;
    socket.close()?;
    expect_closed(&mut socket)
}

#[test]
#[ignore = "an end of a stream, which the other tests start"]
fn end() {
    let Ok(role) = std::env::var(ADDRESS) else {
        return;
    };
    let (role, address) = role.split_once(' ').unwrap();
    let address = address.parse().unwrap();
    if role == "client" {
        send_good(address).unwrap();
        println!("client is done");
        return;
    }
    let listener = Listener::bind(address).unwrap();
    println!("listening");
    let mut kept = Kept::default();
    for (number, case) in cases::all().iter().enumerate() {
        let ended = suffer(case, &listener, &mut kept);
        let ended = ended.unwrap_or_else(|error| format!("no stream: {error}"));
        kept.check();
        println!("connection {number}: {ended}.");
    }
    receive_good(&listener).unwrap();
    kept.check();
    println!("server is done");
}

fn start_end(host: &Instance, role: &str, address: &str) -> Process {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let argv = [program, "--exact", "end", "--ignored", "--nocapture"];
    let mut command = host.run(LeasePolicy::Never, &argv).unwrap();
    command.env(ADDRESS, format!("{role} {address}"));
    Process::start(&mut command).unwrap()
}

/// What the honest end says of a connection, and lines that the hostile one prints.
fn told(expected: Expected) -> (String, Vec<&'static str>) {
    match expected {
        Expected::Refused(text) => (
            format!("the peer violates the protocol: {text}; refused 1."),
            vec!["aborted with code 1\n", "ended\n"],
        ),
        Expected::Broken => (
            "the connection ended; refused 0.".to_owned(),
            vec!["failed: ", "ended\n"],
        ),
        Expected::Rejected(text) => (text.to_owned(), vec!["rejected\n"]),
    }
}

fn attack([server, client]: [&Instance; 2], program: &Path) {
    let port = ports().to_string();
    let address = format!("{}:{port}", server.address());
    let mut serving = start_end(server, "server", &address);
    serving.wait_for_text("listening", SHORT).unwrap();
    for (number, case) in cases::all().iter().enumerate() {
        let host = server.address().to_string();
        let mut argv = vec![program.to_str().unwrap(), &host, &port];
        argv.extend(case.steps.iter().map(String::as_str));
        let mut command = client.run(LeasePolicy::Never, &argv).unwrap();
        let attacked = Process::run(&mut command, LIMIT).unwrap();
        let (by_server, by_client) = told(case.expected);
        let what = format!("{case:?}: {}; {}", attacked.describe(), serving.printed());
        assert!(attacked.succeeded(), "{what}");
        for line in by_client {
            assert!(attacked.output.contains(line), "no {line:?}: {what}");
        }
        let line = format!("connection {number}: ");
        let served = serving.wait_for_text(&line, SHORT);
        served.unwrap_or_else(|failure| panic!("{failure}: {what}"));
        let printed = serving.printed();
        let ended = printed.lines().find(|printed| printed.contains(&line));
        assert!(ended.unwrap().contains(&by_server), "{ended:?}: {what}");
    }
    let asked = start_end(client, "client", &address).wait(SHORT).unwrap();
    assert!(
        asked.output.contains("client is done"),
        "{}",
        asked.describe()
    );
    let served = serving.wait(SHORT).unwrap();
    assert!(
        served.output.contains("server is done"),
        "{}",
        served.describe()
    );
    for host in [server, client] {
        expect_all_taken_back(host);
    }
}

#[test]
fn hostile_peer_on_the_host_is_refused_and_changes_no_octet_outside() {
    let _alone = alone();
    let one = OneHost::up();
    let program = program::compile(one.scratch.path());
    attack([&one.host, &one.host], &program);
    one.down();
}

#[test]
#[ignore = "the cases of the other test, in packets: `make test-all`"]
fn hostile_peer_on_another_host_is_refused_and_changes_no_octet_outside() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 1500).unwrap();
    let program = program::compile(scratch.path());
    attack([&hosts.a, &hosts.b], &program);
    hosts.down().unwrap();
}
