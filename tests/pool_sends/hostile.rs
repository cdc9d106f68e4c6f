//! A hostile peer of a pool that exchanges messages: `pool-hostile/main.c` connects or accepts, and
//! then does what no pool does. `crates/pool/src/check/exchanges.rs` has a pool whose
//! messages are changed on their way, without IO.
//!
//! The honest end is one process for all connections. Beside them, the users of another honest one
//! send to it, and have no error.

use std::path::PathBuf;

use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::Process;
use urdma_pool_verbs::{
    Client, Config, Element, EndState, LocalRegionId, Messages, Status, UserId, VirtualId,
};
use urdma_tests::{alone, compile, ports, CHECK_LIMIT};

use super::{address_in, config, killed, new_client_with, Echo, End, Hosts, DEPTHS, PEER, SERVICE};

#[path = "hostile_cases.rs"]
mod cases;
#[path = "hostile_met.rs"]
mod met;

use cases::{Acceptance, Case};

/// A service whose ends have no Receives, one whose have two of 16 octets, and one that is not
/// offered.
const MUTE: u32 = 8;
const NARROW: u32 = 9;
const UNKNOWN: u32 = 99;
/// Receives of the narrow service, in memory of so many octets.
const NARROW_OCTETS: u32 = 16;
const NARROW_AT: [usize; 2] = [1024, 2048];
const NARROW_MEMORY: usize = 4096;
/// What is in memory that peers must not change.
const GUARD: u8 = 0x5a;
const OFFERED: usize = 4096;
/// Virtual queue pairs of the honest end, and answers to a peer that does not take them.
const VIRTUAL_MAX: u32 = 64;

/// An end of the service that has short Receives, with octets around these.
struct Narrow {
    qp: VirtualId,
    local: LocalRegionId,
}

impl Narrow {
    fn accept(client: &mut Client, user: UserId) -> Option<Self> {
        let qp = client.accept(NARROW, user, DEPTHS).unwrap()?;
        let local = client.register(user, NARROW_MEMORY).unwrap();
        client.write(local, 0, &[GUARD; NARROW_MEMORY]).unwrap();
        let start = client.addr(local).unwrap();
        for at in NARROW_AT {
            let element = Element {
                local,
                addr: start + at as u64,
                len_octets: NARROW_OCTETS,
            };
            client.post_receive(qp, at as u64, &[element]).unwrap();
        }
        Some(Self { qp, local })
    }

    /// `false`: it has ended.
    fn turn(&self, client: &mut Client) -> bool {
        let received = client.poll_received(self.qp).unwrap();
        let mut octets = [0; NARROW_MEMORY];
        client.read(self.local, 0, &mut octets).unwrap();
        let is_narrow = |at: usize| {
            let in_receive = |start: usize| (start..start + NARROW_OCTETS as usize).contains(&at);
            NARROW_AT.into_iter().any(in_receive)
        };
        let mut beside = (0..).zip(octets).filter(|(at, _)| !is_narrow(*at));
        assert!(beside.all(|(_, octet)| octet == GUARD), "beside a Receive");
        let Some(received) = received else {
            return client.end_state(self.qp) != Some(EndState::Closed);
        };
        println!("narrow {:?}", received.status);
        received.status == Status::Success
    }
}

/// The honest end: it says what it drops, and which of its ends have ended.
pub(super) fn suffer() {
    let config = Config {
        virtual_max: VIRTUAL_MAX,
        ..config()
    };
    let messages = Messages {
        offered_octets: OFFERED,
        ..Messages::default()
    };
    let mut client = new_client_with(&config, &messages, &[SERVICE, MUTE, NARROW]);
    let mut echo = Echo::default();
    let (mut mute, mut narrow) = (Vec::new(), Vec::new());
    let mut said = String::new();
    for user in 1_000.. {
        echo.turn(&mut client);
        mute.extend(client.accept(MUTE, UserId(user), DEPTHS).unwrap());
        mute.retain(|&qp| {
            let is_there = client.end_state(qp) != Some(EndState::Closed);
            if !is_there {
                client.close(qp).unwrap();
                println!("mute ended");
            }
            is_there
        });
        narrow.extend(Narrow::accept(&mut client, UserId(user)));
        narrow.retain(|end: &Narrow| {
            let is_there = end.turn(&mut client);
            if !is_there {
                client.close(end.qp).unwrap();
                client.deregister(end.local).unwrap();
                println!("narrow ended");
            }
            is_there
        });
        let stats = client.pool().stats();
        let says = format!("dropped {} duplicates {}.", stats.dropped, stats.duplicates);
        if says != said {
            println!("{says}");
            said = says;
        }
        std::thread::yield_now();
    }
}

/// Opens a service of a hostile end, and says what becomes of it and of its Send.
pub(super) fn open(octets: &[u8]) {
    let mut client = new_client_with(&Config::default(), &Messages::default(), &[]);
    let end = End::open(&mut client, UserId(1), address_in(PEER));
    end.send(&mut client, 0, octets, None);
    let mut said = String::new();
    loop {
        let dropped = client.pool().stats().dropped;
        let state = client.end_state(end.qp).unwrap();
        let says = format!("{state:?} dropped {dropped}.");
        if says != said {
            println!("{says}");
            said = says;
        }
        if let Some(done) = end.polled(&mut client) {
            println!("sent {:?}", done.status);
        }
        if let Some(received) = end.received(&mut client) {
            println!("received {:?}", received.status);
        }
        std::thread::yield_now();
    }
}

/// The hosts, and the hostile program.
struct Bed {
    hosts: Hosts,
    program: PathBuf,
}

impl Bed {
    fn up() -> Self {
        let hosts = Hosts::one();
        let program = hosts.scratch.path().join("pool-hostile");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/pool-hostile/main.c");
        compile(&program, [source, "-lrdmacm", "-libverbs"]);
        Self { hosts, program }
    }

    /// Connects to an address, or listens there.
    fn start(&self, role: &str, at: &str, hello: &str, steps: &[String]) -> Process {
        let (host, port) = at.split_once(':').unwrap();
        let program = self.program.to_str().unwrap();
        let mut argv = vec![program, role, host, port, hello];
        argv.extend(steps.iter().map(String::as_str));
        let mut command = self.hosts.hosts[0].run(LeasePolicy::Never, &argv).unwrap();
        Process::start(&mut command).unwrap()
    }

    /// Has a peer with a port do what is in a case.
    fn attack(&self, case: &Case, own: u16, victim: &mut Victim) {
        let hello = case.hello.encode(&self.hosts.addresses[0], own);
        let attacker = self.start("connect", &self.hosts.addresses[0], &hello, &case.steps);
        victim.expect(attacker, case);
    }
}

/// The honest end, and what it has counted.
struct Victim {
    end: Process,
    dropped: u64,
    duplicates: u64,
}

impl Victim {
    fn start(hosts: &Hosts) -> Self {
        let end = hosts.start("suffers", 0);
        hosts.let_go();
        Self {
            end,
            dropped: 0,
            duplicates: 0,
        }
    }

    /// Waits until a peer has done what is in a case, and for what follows.
    fn expect(&mut self, attacker: Process, case: &Case) {
        let ended = attacker.wait(CHECK_LIMIT).unwrap();
        let what = format!("{case:?}: {}; {}", ended.describe(), self.end.printed());
        assert!(ended.succeeded(), "{what}");
        assert!(ended.output.contains(case.prints), "{what}");
        self.dropped += case.dropped;
        self.duplicates += case.duplicates;
        let counted = format!("dropped {} duplicates {}.", self.dropped, self.duplicates);
        for text in [&*counted, case.victim] {
            let said = self.end.wait_for_text(text, CHECK_LIMIT);
            said.unwrap_or_else(|error| panic!("{error}: {what}"));
        }
    }
}

/// Each peer in turn, and at the same time the users of an honest one.
#[test]
fn hostile_peers_are_refused_and_counted_and_others_go_on() {
    let _alone = alone();
    let bed = Bed::up();
    let mut victim = Victim::start(&bed.hosts);
    let mut survivor = bed.hosts.start("asks", 1);
    survivor.wait_for_text("asks", CHECK_LIMIT).unwrap();
    // A pool that had one of these ports before would have another name.
    for (case, own) in cases::all().iter().zip(ports()..) {
        bed.attack(case, own, &mut victim);
    }
    killed(&bed.hosts);
    let ended = survivor.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    bed.hosts.down([victim.end]);
}

/// Two peers, of which one names the virtual queue pair of the other one.
#[test]
fn peer_that_names_the_end_of_another_one_is_refused() {
    let _alone = alone();
    let bed = Bed::up();
    let at = &bed.hosts.addresses[0];
    let mut victim = Victim::start(&bed.hosts);
    let own = ports();
    let tried = bed.hosts.scratch.path().join("tried");
    let hello = cases::Hello::default().encode(at, own);
    let mut honest = cases::opened();
    honest.extend(["say=d".to_owned(), format!("file={}", tried.display())]);
    honest.extend(cases::echoed(0));
    let mut honest = bed.start("connect", at, &hello, &honest);
    honest.wait_for_text("named", CHECK_LIMIT).unwrap();
    let printed = honest.printed();
    let named = super::said(&printed, "named ").to_owned();
    let thief = cases::of_another(&named);
    bed.attack(&thief, own + 1, &mut victim);
    std::fs::write(tried, "").unwrap();
    let ended = honest.wait(CHECK_LIMIT).unwrap();
    assert!(ended.output.contains("leaves"), "{}", ended.describe());
    bed.hosts.down([victim.end]);
}

/// A service that is opened, and whose pool lies.
#[test]
fn pool_that_accepts_falsely_is_refused() {
    let _alone = alone();
    let bed = Bed::up();
    for Acceptance {
        hello,
        steps,
        role,
        opener,
    } in cases::acceptances()
    {
        let at = format!("127.0.0.1:{}", ports());
        let mut liar = bed.start("listen", &at, &hello, &steps);
        liar.wait_for_text("listens", CHECK_LIMIT).unwrap();
        bed.hosts.let_go();
        let own = format!("127.0.0.1:{}", ports());
        let mut opens = bed.hosts.start_between(role, &own, &at);
        for text in opener {
            let said = opens.wait_for_text(text, CHECK_LIMIT);
            said.unwrap_or_else(|error| panic!("{error}: {steps:?}: {}", opens.printed()));
        }
        super::kill(opens);
        super::kill(liar);
    }
    bed.hosts.down([]);
}
