//! Sends and Receives over virtual queue pairs (`urdma_pool_verbs`): ends, each a process with
//! several users, which run the test `end` of this program.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use urdma_pool_verbs::{
    Client, Completion, Config, Depths, Element, EndState, Error, LocalRegionId, Messages,
    PostError, Received, SendRequest, Status, Transport, UserId, VirtualId,
};
use urdma_tests::{alone, ports, CHECK_LIMIT};
use urdma_types::Rng;

use hosts::{kill, Hosts, Over};

#[path = "../crates/pool-verbs/examples/messages.rs"]
#[allow(dead_code, reason = "its main, which this program does not call")]
mod example;

#[path = "pool_sends/c.rs"]
mod c;
#[path = "pool_sends/hostile.rs"]
mod hostile;
#[path = "pool_sends/hosts.rs"]
mod hosts;
#[path = "pool_sends/offered.rs"]
mod offered;

/// What an end does, the address at which it listens, that of its peer, and a file that exists once
/// all ends listen.
const ROLE: &str = "URDMA_TEST_SENDS_ROLE";
const OWN: &str = "URDMA_TEST_SENDS_OWN";
const PEER: &str = "URDMA_TEST_SENDS_PEER";
const GO: &str = "URDMA_TEST_SENDS_GO";
/// Set for ends over initiators.
const MET: &str = "URDMA_TEST_SENDS_MET";
/// The service of every end.
const SERVICE: u32 = 7;
/// Virtual queue pairs that an end opens, each for a user of its own.
const USERS: u32 = 4;
/// Messages of each end of each of them.
const MESSAGES: u32 = 200;
/// The longest message, of five segments, and how many an end of a virtual queue pair has at a
/// time.
const LEN: usize = 20_000;
const SLOTS: usize = 4;
const DEPTHS: Depths = Depths {
    requests: 4,
    receives: 4,
};
/// How long an end waits for what does come.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest message of the first user of ends that send long ones, and that of the others.
const LONGEST: [usize; 2] = [16 << 20, 1 << 16];
/// How many long messages each end has of each user.
const LONG_MESSAGES: u32 = 40;

/// A link that loses, duplicates and reorders packets.
const BAD_LINK: &str = "[fault]\nloss = \"1%\"\nduplicate = \"1%\"\nreorder = \"1%\"\nseed = 3\n";

#[test]
#[ignore = "an end, which the other tests start"]
fn end() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match &*role {
        "talks" => talk(MESSAGES, [LEN; 2]),
        "talks long" => talk(LONG_MESSAGES, LONGEST),
        "echoes" => echo(),
        "asks" => ask(),
        "asks again" => ask_again(),
        "suffers" => hostile::suffer(),
        "opens" => hostile::open(b"octets"),
        "opens long" => hostile::open(&[7; LEN]),
        "writes" => offered::write(),
        "reads" => offered::read(),
        "offers again" => offer_again(),
        "example answers" => run_example(None),
        "example asks" => run_example(Some(address_in(PEER))),
        other => panic!("no role {other:?}"),
    }
}

fn address_in(variable: &str) -> SocketAddr {
    std::env::var(variable).unwrap().parse().unwrap()
}

/// A client that offers the service, once all ends do.
fn new_client() -> Client {
    new_client_with(&config(), &Messages::default(), &[SERVICE])
}

/// Over what the test has between its ends.
fn config() -> Config {
    let transport = match std::env::var_os(MET) {
        None => Config::default().transport,
        Some(_) => Transport::Initiators { count: 1 },
    };
    Config {
        transport,
        ..Config::default()
    }
}

/// The same with other limits and services.
fn new_client_with(config: &Config, messages: &Messages, services: &[u32]) -> Client {
    let own = address_in(OWN);
    let host: IpAddr = own.ip();
    let mut client = Client::new(host, config).unwrap();
    client.offer_messages(own, messages).unwrap();
    for &service in services {
        client.listen(service).unwrap();
    }
    println!("listens");
    let go = std::env::var(GO).unwrap();
    let began = Instant::now();
    while !Path::new(&go).exists() {
        assert!(began.elapsed() < LIMIT, "the others do not listen");
        client.progress().unwrap();
        std::thread::yield_now();
    }
    client
}

/// One end of a virtual queue pair, with memory for as many Receives and Sends as it has.
struct End {
    qp: VirtualId,
    local: LocalRegionId,
    addr: u64,
    /// The longest message.
    longest: usize,
}

impl End {
    fn new(client: &mut Client, user: UserId, qp: VirtualId, longest: usize) -> Self {
        let local = client.register(user, 2 * SLOTS * longest).unwrap();
        let addr = client.addr(local).unwrap();
        let end = Self {
            qp,
            local,
            addr,
            longest,
        };
        (0..SLOTS).for_each(|slot| end.receive(client, slot));
        end
    }

    fn open(client: &mut Client, user: UserId, to: SocketAddr) -> Self {
        Self::open_for(client, user, to, LEN)
    }

    fn open_for(client: &mut Client, user: UserId, to: SocketAddr, longest: usize) -> Self {
        let opened = client.open_service(user, (to, SERVICE), DEPTHS).unwrap();
        Self::new(client, user, opened, longest)
    }

    fn accept(client: &mut Client, user: UserId) -> Option<Self> {
        Self::accept_for(client, user, LEN)
    }

    fn accept_for(client: &mut Client, user: UserId, longest: usize) -> Option<Self> {
        let accepted = client.accept(SERVICE, user, DEPTHS).unwrap()?;
        Some(Self::new(client, user, accepted, longest))
    }

    fn element(&self, slot: usize, len: usize) -> Element {
        Element {
            local: self.local,
            addr: self.addr + (slot * self.longest) as u64,
            len_octets: u32::try_from(len).unwrap(),
        }
    }

    fn try_receive(&self, client: &mut Client, slot: usize) -> Result<(), Error> {
        let element = self.element(slot, self.longest);
        client.post_receive(self.qp, slot as u64, &[element])
    }

    fn receive(&self, client: &mut Client, slot: usize) {
        self.try_receive(client, slot).unwrap();
    }

    /// What a Receive has brought.
    fn octets(&self, client: &Client, received: &Received) -> Vec<u8> {
        let slot = usize::try_from(received.id).unwrap();
        let mut octets = vec![0; received.len_octets as usize];
        let at = slot * self.longest;
        client.read(self.local, at, &mut octets).unwrap();
        octets
    }

    fn send(&self, client: &mut Client, slot: usize, octets: &[u8], immediate: Option<u32>) {
        self.try_send(client, slot, octets, immediate).unwrap();
    }

    /// Sends what has come back, and receives again.
    fn answer(&self, client: &mut Client, received: &Received, slot: usize) -> Result<(), Error> {
        let octets = self.octets(client, received);
        self.try_receive(client, usize::try_from(received.id).unwrap())?;
        self.try_send(client, slot, &octets, received.immediate)
    }

    fn try_send(
        &self,
        client: &mut Client,
        slot: usize,
        octets: &[u8],
        immediate: Option<u32>,
    ) -> Result<(), Error> {
        let place = SLOTS + slot;
        client.write(self.local, place * self.longest, octets)?;
        let request = SendRequest {
            id: slot as u64,
            immediate,
            is_signaled: true,
        };
        // In two elements.
        let (first, second) = (octets.len() / 3, octets.len() - octets.len() / 3);
        let mut elements = [self.element(place, first), self.element(place, second)];
        elements[1].addr += first as u64;
        client.post_send(self.qp, &request, &elements)
    }

    fn polled(&self, client: &mut Client) -> Option<Completion> {
        client.poll(self.qp).unwrap()
    }

    fn received(&self, client: &mut Client) -> Option<Received> {
        client.poll_received(self.qp).unwrap()
    }
}

/// What an end sends and receives over one virtual queue pair, each as a digest.
struct Stream {
    end: End,
    rng: Rng,
    to_send: u32,
    to_receive: u32,
    free: Vec<usize>,
    sent: Sha256,
    received: Sha256,
}

fn add(digest: &mut Sha256, octets: &[u8], immediate: Option<u32>) {
    digest.update((octets.len() as u64).to_be_bytes());
    digest.update(immediate.map_or([0; 5], |immediate| {
        let [a, b, c, d] = immediate.to_be_bytes();
        [1, a, b, c, d]
    }));
    digest.update(octets);
}

impl Stream {
    fn new(end: End, seed: u64, messages: u32) -> Self {
        Self {
            end,
            rng: Rng::new(seed),
            to_send: messages,
            to_receive: messages,
            free: (0..SLOTS).collect(),
            sent: Sha256::new(),
            received: Sha256::new(),
        }
    }

    /// That of a message, each order of magnitude of which is as likely.
    fn length(&mut self) -> usize {
        let longest = self.end.longest;
        let magnitude = self.rng.below(u64::from(longest.ilog2()) + 2);
        self.rng.below_len(longest.min(1 << magnitude) + 1)
    }

    fn turn(&mut self, client: &mut Client) {
        while let Some(slot) = self.free.pop_if(|_| self.to_send > 0) {
            let mut octets = vec![0; self.length()];
            self.rng.fill(&mut octets);
            let immediate = self.rng.percent(50).then(|| self.rng.bits32());
            add(&mut self.sent, &octets, immediate);
            self.end.send(client, slot, &octets, immediate);
            self.to_send -= 1;
        }
        while let Some(done) = self.end.polled(client) {
            assert_eq!(done.status, Status::Success);
            self.free.push(usize::try_from(done.id).unwrap());
        }
        while let Some(received) = self.end.received(client) {
            assert_eq!(received.status, Status::Success);
            let octets = self.end.octets(client, &received);
            add(&mut self.received, &octets, received.immediate);
            self.to_receive = self.to_receive.checked_sub(1).expect("too many messages");
            self.end
                .receive(client, usize::try_from(received.id).unwrap());
        }
    }

    fn is_done(&self) -> bool {
        self.to_send == 0 && self.to_receive == 0 && self.free.len() == SLOTS
    }
}

/// The digests of all streams, in whichever order these are.
fn all_of(digests: impl Iterator<Item = Sha256>) -> String {
    let mut all: Vec<Vec<u8>> = digests.map(|digest| digest.finalize().to_vec()).collect();
    all.sort();
    let all = Sha256::digest(all.concat());
    all.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// Opens virtual queue pairs to the other end, and accepts as many, in the same order.
fn talk(messages: u32, longest: [usize; 2]) {
    let mut client = new_client();
    let (own, peer) = (address_in(OWN), address_in(PEER));
    let seed = u64::from(own.port());
    let mut streams: Vec<Stream> = Vec::new();
    for user in 0..USERS {
        let longest = longest[usize::from(user > 0)];
        let end = End::open_for(&mut client, UserId(user), peer, longest);
        streams.push(Stream::new(end, seed + u64::from(user), messages));
    }
    let began = Instant::now();
    while streams.len() < 2 * USERS as usize || !streams.iter().all(Stream::is_done) {
        assert!(began.elapsed() < LIMIT, "the ends do not come to an end");
        let user = u32::try_from(streams.len()).unwrap();
        let longest = longest[usize::from(user > USERS)];
        if let Some(end) = End::accept_for(&mut client, UserId(user), longest) {
            let seed = seed + 100 + u64::from(user);
            streams.push(Stream::new(end, seed, messages));
        }
        for stream in &mut streams {
            stream.turn(&mut client);
        }
        std::thread::yield_now();
    }
    for stream in &streams {
        assert_eq!(client.end_state(stream.end.qp), Some(EndState::Open));
    }
    let (sent, received): (Vec<_>, Vec<_>) = streams
        .into_iter()
        .map(|stream| (stream.sent, stream.received))
        .unzip();
    println!("sent {}", all_of(sent.into_iter()));
    println!("received {}", all_of(received.into_iter()));
    let stats = client.pool().stats();
    println!("dropped {} failed {}", stats.dropped, stats.failed);
    println!("done");
    // The other end may not know yet that all has arrived.
    loop {
        client.progress().unwrap();
        std::thread::yield_now();
    }
}

/// What an end has printed behind a word.
fn said<'a>(printed: &'a str, word: &str) -> &'a str {
    let line = printed.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap_or_else(|| panic!("no {word:?} in {printed}"))
}

fn both_ends_talk(hosts: Hosts) {
    both_ends_are(hosts, "talks");
}

fn both_ends_are(hosts: Hosts, role: &str) {
    let mut ends = [hosts.start(role, 0), hosts.start(role, 1)];
    hosts.let_go();
    for end in &mut ends {
        end.wait_for_text("done", CHECK_LIMIT).unwrap();
    }
    let printed = [0, 1].map(|at| ends[at].printed());
    for at in [0, 1] {
        let (sent, received) = (
            said(&printed[at], "sent "),
            said(&printed[1 - at], "received "),
        );
        assert_eq!(sent, received, "{printed:?}");
    }
    hosts.down(ends);
}

#[test]
fn users_of_two_ends_send_to_each_other() {
    let _alone = alone();
    both_ends_talk(Hosts::one());
}

#[test]
fn users_over_initiators_send_to_each_other() {
    let _alone = alone();
    both_ends_talk(Hosts::one().over(Over::Initiators));
}

#[test]
fn users_over_initiators_send_long_messages_to_each_other() {
    let _alone = alone();
    both_ends_are(Hosts::one().over(Over::Initiators), "talks long");
}

#[test]
fn users_over_initiators_of_two_hosts_send_to_each_other() {
    let _alone = alone();
    both_ends_talk(Hosts::two("").over(Over::Initiators));
}

#[test]
fn users_over_initiators_send_to_each_other_over_a_bad_link() {
    let _alone = alone();
    both_ends_talk(Hosts::two(BAD_LINK).over(Over::Initiators));
}

/// The ends have messages of up to 16 MB beside short ones.
#[test]
fn users_of_two_ends_send_long_messages_to_each_other() {
    let _alone = alone();
    both_ends_are(Hosts::one(), "talks long");
}

#[test]
fn users_of_two_hosts_send_to_each_other() {
    let _alone = alone();
    both_ends_talk(Hosts::two(""));
}

#[test]
fn users_of_two_hosts_send_to_each_other_over_a_bad_link() {
    let _alone = alone();
    both_ends_talk(Hosts::two(BAD_LINK));
}

/// What an end has that sends each message back to its sender.
#[derive(Default)]
struct Echo {
    ends: Vec<(End, Vec<usize>)>,
    accepted: u32,
    ended: u32,
}

impl Echo {
    fn turn(&mut self, client: &mut Client) {
        if let Some(end) = End::accept(client, UserId(self.accepted)) {
            self.accepted += 1;
            self.ends.push((end, (0..SLOTS).collect()));
        }
        let ended = &mut self.ended;
        self.ends.retain_mut(|(end, free)| {
            while let Some(done) = end.polled(client) {
                free.push(usize::try_from(done.id).unwrap());
            }
            while let Some(received) = end.received(client) {
                if received.status != Status::Success {
                    client.close(end.qp).unwrap();
                    client.deregister(end.local).unwrap();
                    *ended += 1;
                    println!("ended {ended}");
                    return false;
                }
                let slot = free.pop().expect("the peer has as many messages at a time");
                match end.answer(client, &received, slot) {
                    // Its other Receives say so, too.
                    Ok(()) | Err(Error::Post(PostError::InvalidState)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            true
        });
    }
}

fn echo() {
    let mut client = new_client();
    let mut echo = Echo::default();
    loop {
        echo.turn(&mut client);
        std::thread::yield_now();
    }
}

/// Sends a message and compares what comes back; `false`: the end has ended.
fn is_echoed(client: &mut Client, end: &End, number: u32, rng: &mut Rng) -> bool {
    let mut octets = vec![0; rng.below_len(LEN + 1)];
    rng.fill(&mut octets);
    end.send(client, 0, &octets, Some(number));
    let began = Instant::now();
    let (mut is_sent, mut is_back) = (false, false);
    while !is_sent || !is_back {
        assert!(
            began.elapsed() < LIMIT,
            "message {number} does not come back"
        );
        if let Some(done) = end.polled(client) {
            if done.status != Status::Success {
                return false;
            }
            is_sent = true;
        }
        if let Some(received) = end.received(client) {
            if received.status != Status::Success {
                return false;
            }
            assert_eq!(received.immediate, Some(number));
            assert!(end.octets(client, &received) == octets, "message {number}");
            end.receive(client, usize::try_from(received.id).unwrap());
            is_back = true;
        }
        std::thread::yield_now();
    }
    true
}

/// Asks an end that echoes, by all users, until the file says that others have been killed, and a
/// while longer.
fn ask() {
    let mut client = new_client();
    let peer = address_in(PEER);
    let ends = (0..USERS).map(|user| End::open(&mut client, UserId(user), peer));
    let ends: Vec<End> = ends.collect();
    let mut rng = Rng::new(u64::from(std::process::id()));
    let killed = PathBuf::from(std::env::var(GO).unwrap()).with_extension("killed");
    let (mut number, mut left) = (0, MESSAGES);
    while left > 0 {
        left -= u32::from(killed.exists());
        for end in &ends {
            assert!(is_echoed(&mut client, end, number, &mut rng));
        }
        number += 1;
        if number == 10 {
            println!("asks");
        }
    }
    for end in ends {
        client.close(end.qp).unwrap();
    }
    client.progress().unwrap();
    println!("done");
}

fn killed(hosts: &Hosts) {
    std::fs::write(hosts.go().with_extension("killed"), "").unwrap();
}

/// One of two processes that send to a third is killed.
#[test]
fn others_go_on_when_an_end_is_killed() {
    others_go_on(Over::Connections, 3);
}

/// The others notice it, although no event tells them.
#[test]
fn others_go_on_when_an_end_over_initiators_is_killed() {
    others_go_on(Over::Initiators, 3);
}

#[test]
#[ignore = "ten minutes"]
fn others_go_on_when_a_thousand_ends_over_initiators_are_killed() {
    others_go_on(Over::Initiators, 1000);
}

fn others_go_on(over: Over, rounds: u32) {
    let _alone = alone();
    let hosts = Hosts::one().over(over);
    let mut echo = hosts.start("echoes", 0);
    hosts.let_go();
    let mut survivor = hosts.start("asks", 1);
    let own = format!("127.0.0.1:{}", ports());
    for round in 1..=rounds {
        let mut victim = hosts.start_at("asks", 1, &own);
        for end in [&mut victim, &mut survivor] {
            end.wait_for_text("asks", CHECK_LIMIT).unwrap();
        }
        kill(victim);
        // Its users' ends have ended; another process takes its address.
        let ended = format!("ended {}\n", round * USERS);
        echo.wait_for_text(&ended, CHECK_LIMIT).unwrap();
    }
    killed(&hosts);
    let ended = survivor.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    hosts.down([echo]);
}

fn run_example(peer: Option<SocketAddr>) {
    println!("listens");
    // An end that does not listen yet refuses the one that asks.
    let began = Instant::now();
    let expected: &[u8] = if peer.is_some() {
        b"answer  "
    } else {
        b"question"
    };
    while example::exchange(address_in(OWN), peer).unwrap() != expected {
        assert!(began.elapsed() < LIMIT, "the other end does not answer");
    }
    println!("done");
    // The other end may not know yet that its message has arrived.
    std::thread::sleep(Duration::from_secs(1));
}

#[test]
fn example_exchanges_a_message() {
    let _alone = alone();
    let hosts = Hosts::one();
    let answers = hosts.start("example answers", 0);
    let asks = hosts.start("example asks", 1);
    for end in [asks, answers] {
        let ended = end.wait(CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    hosts.down([]);
}

/// Asks until the peer has ended, and then the one that takes its place.
fn ask_again() {
    let mut client = new_client();
    let peer = address_in(PEER);
    let mut rng = Rng::new(u64::from(std::process::id()));
    let ends = (0..USERS).map(|user| End::open(&mut client, UserId(user), peer));
    let ends: Vec<End> = ends.collect();
    let mut number = 0;
    while ends
        .iter()
        .all(|end| is_echoed(&mut client, end, number, &mut rng))
    {
        number += 1;
        if number == 10 {
            println!("asks");
        }
    }
    println!("lost");
    let began = Instant::now();
    for end in ends {
        // All have ended, each by itself.
        while !matches!(client.end_state(end.qp), Some(EndState::Closed)) {
            assert!(began.elapsed() < LIMIT, "an end remains");
            client.progress().unwrap();
        }
        client.close(end.qp).unwrap();
    }
    for round in 0.. {
        assert!(began.elapsed() < LIMIT, "the peer is not reached again");
        let end = End::open(&mut client, UserId(round), peer);
        let is_there = is_echoed(&mut client, &end, number, &mut rng);
        client.close(end.qp).unwrap();
        if is_there {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("done");
}

#[test]
fn end_that_is_killed_is_reached_again() {
    reached_again(Over::Connections);
}

#[test]
fn end_over_initiators_that_is_killed_is_reached_again() {
    reached_again(Over::Initiators);
}

fn reached_again(over: Over) {
    let _alone = alone();
    let hosts = Hosts::one().over(over);
    let echo = hosts.start("echoes", 0);
    hosts.let_go();
    let mut asking = hosts.start("asks again", 1);
    asking.wait_for_text("asks", CHECK_LIMIT).unwrap();
    kill(echo);
    asking.wait_for_text("lost", CHECK_LIMIT).unwrap();
    let echo = hosts.start("echoes", 0);
    let ended = asking.wait(CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    hosts.down([echo]);
}

/// A configuration for which the device has no completion queue is no reason to refuse another.
fn offer_again() {
    let many = Config {
        cq_depth: 1 << 20,
        ..Config::default()
    };
    let mut client = Client::new(address_in(OWN).ip(), &many).unwrap();
    let too_many = Messages {
        share: 1 << 14,
        ..Messages::default()
    };
    let refused = client.offer_messages(address_in(OWN), &too_many);
    assert!(matches!(refused, Err(Error::Call { .. })), "{refused:?}");
    let offered = client.offer_messages(address_in(OWN), &Messages::default());
    offered.unwrap();
    println!("listens");
}

#[test]
fn messages_are_offered_after_a_refusal() {
    let _alone = alone();
    let hosts = Hosts::one();
    let end = hosts.start("offers again", 0);
    hosts.down([end]);
}
