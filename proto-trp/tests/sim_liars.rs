//! A peer that lies: it has the address, queue pair and connection id, and sends what no receiver
//! and no sender may. Beside it the same process has a connection with an honest peer.

#![allow(clippy::unwrap_used)]

use proto_trp::conn::{Payload, PostError, QpState, RecvWr, SendOp, SendWr, Sge, Status};
use proto_trp::wire::trp::{field, HEADER_LEN};
use proto_trp::wire::{connection_id, ext, ConnectionId, PacketType};
use trp_sim::{for_each_seed, LinkModel, Rights, Setup, SimHost, World, SIGNALED};
use urdma_types::Rng;
use urdma_types::{Psn, Qpn, SlotId};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const LENGTH: usize = 1 << 16;
const GUARD: u8 = 0xa5;
/// The end of the process that is lied to, in both worlds, and that of its peer.
const VICTIM: usize = 0;
const PEER: usize = 1;
/// The liar's packets between two messages of the honest connection.
const LIES: usize = 40;
const ROUNDS: u64 = 40;
/// Octets of the longest message of the liar and to it.
const LONGEST: u32 = 20_000;
/// Octets of an honest message: several packets.
const MESSAGE: u32 = 5000;
const LOCAL: Rights = Rights {
    local_write: true,
    remote_write: false,
    remote_read: false,
    remote_atomic: false,
};

/// How a packet of the liar differs from that of an honest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    None,
    Loss,
    Repetition,
    Delay,
    /// An acknowledgement of what has not arrived, or was never sent.
    Ack,
    /// A SACK of any packets.
    Sack,
    /// A refusal of any packet.
    Refusal,
    Psn,
    Window,
    Flags,
    Segment,
    Length,
    Type,
}

const LIES_OF_ALL_KINDS: [Lie; 12] = [
    Lie::Loss,
    Lie::Repetition,
    Lie::Delay,
    Lie::Ack,
    Lie::Sack,
    Lie::Refusal,
    Lie::Psn,
    Lie::Window,
    Lie::Flags,
    Lie::Segment,
    Lie::Length,
    Lie::Type,
];

struct Liar {
    rng: Rng,
    /// Those of this run.
    lies: Vec<Lie>,
    held: Vec<Vec<u8>>,
    /// The id of the stream that the liar acknowledges.
    acknowledged: ConnectionId,
}

impl Liar {
    fn new(setup: &Setup, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x11a5);
        let mut lies: Vec<Lie> = LIES_OF_ALL_KINDS
            .into_iter()
            .filter(|_| rng.happens(400_000))
            .collect();
        lies.push(Lie::None);
        let psn = Psn::new(setup.psn[VICTIM]);
        Self {
            lies,
            held: Vec::new(),
            acknowledged: connection_id(setup.qpn[VICTIM], setup.qpn[PEER], psn),
            rng,
        }
    }

    /// A PSN near one of the liar's own header.
    fn near(&mut self, psn: u32) -> u32 {
        let distances = [1, 2, 3, 16, 255, 256, 300, 65_279, 65_280, 1 << 23];
        let by = distances[self.rng.below_len(distances.len())];
        match self.rng.below(4) {
            0 => psn.wrapping_sub(by),
            1 => psn.wrapping_add(by),
            2 => psn.wrapping_add(self.rng.bits32() % 64),
            _ => psn.wrapping_add(self.rng.bits32() % by),
        }
    }

    /// What the liar sends in place of a packet.
    fn instead_of(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let lie = self.lies[self.rng.below_len(self.lies.len())];
        let mut octets = packet.to_vec();
        let (psn, ack) = (read24(packet, field::PSN), read24(packet, field::ACK));
        match lie {
            Lie::None => {}
            Lie::Loss => return Vec::new(),
            Lie::Repetition => return vec![octets.clone(), octets],
            Lie::Delay => {
                self.held.push(octets);
                return self.release();
            }
            Lie::Ack => write24(&mut octets, field::ACK, self.near(ack)),
            Lie::Psn => write24(&mut octets, field::PSN, self.near(psn)),
            Lie::Window => octets[field::WINDOW] = self.octet(),
            Lie::Flags => octets[field::FLAGS] = self.octet(),
            Lie::Sack => return vec![self.sack(packet), octets],
            Lie::Refusal => return vec![self.refusal(packet), octets],
            Lie::Segment => {
                for _ in 0..=self.rng.below(3) {
                    let at = HEADER_LEN + self.rng.below_len(24);
                    if let Some(octet) = octets.get_mut(at) {
                        *octet = self.octet();
                    }
                }
            }
            Lie::Length => {
                let len = self.rng.below_len(2 * octets.len());
                octets.resize(len, 0xff);
            }
            Lie::Type if self.rng.happens(100_000) => {
                let kind = self.octet() & 0x0f;
                octets[field::VERSION_TYPE] = octets[field::VERSION_TYPE] & 0xf0 | kind;
            }
            Lie::Type => octets[field::VERSION_TYPE] = PacketType::Probe.first_octet(),
        }
        vec![octets]
    }

    fn octet(&mut self) -> u8 {
        self.rng.bits32().to_be_bytes()[0]
    }

    /// Some of the packets that are held back, in any order.
    fn release(&mut self) -> Vec<Vec<u8>> {
        let mut released = Vec::new();
        if self.held.len() > 30 {
            for _ in 0..self.rng.below(30) {
                let at = self.rng.below_len(self.held.len());
                released.push(self.held.swap_remove(at));
            }
        }
        released
    }

    /// A packet of the stream that the liar receives, without a segment.
    fn answer(&mut self, kind: PacketType, packet: &[u8], extensions: &[u8]) -> Vec<u8> {
        let mut octets = packet[..HEADER_LEN].to_vec();
        octets[field::VERSION_TYPE] = kind.first_octet();
        let id = self.acknowledged.to_u32().to_be_bytes();
        octets[field::CONNECTION_ID..][..4].copy_from_slice(&id);
        octets[field::EXTENSION_WORDS] = u8::try_from(extensions.len() / 4).unwrap();
        octets.extend_from_slice(extensions);
        octets
    }

    fn sack(&mut self, packet: &[u8]) -> Vec<u8> {
        let words = self.octet() % 17;
        let argument = [0, 0, 1, self.octet(), self.octet()][self.rng.below_len(5)];
        let mut extension = vec![ext::KIND_SACK, words, 0, argument];
        let is_dense = self.rng.happens(500_000);
        for _ in 0..words {
            let bits = self.rng.bits32();
            let bits = if is_dense {
                bits | self.rng.bits32()
            } else {
                bits
            };
            extension.extend_from_slice(&bits.to_be_bytes());
        }
        self.answer(PacketType::Ack, packet, &extension)
    }

    fn refusal(&mut self, packet: &[u8]) -> Vec<u8> {
        let timer = self.octet() % 8;
        let extension = [ext::KIND_RNR_TIMER, 0, 0, timer];
        let mut octets = self.answer(PacketType::Rnr, packet, &extension);
        let ack = read24(packet, field::ACK);
        let refused = ack.wrapping_add(self.rng.bits32() % 32);
        write24(&mut octets, field::PSN, refused);
        if self.rng.happens(500_000) {
            let ack = self.near(ack);
            write24(&mut octets, field::ACK, ack);
        }
        octets
    }
}

fn read24(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, octets[at], octets[at + 1], octets[at + 2]])
}

fn write24(octets: &mut [u8], at: usize, value: u32) {
    octets[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

/// The process: its connection with the liar, and what it and the liar have posted there.
struct Lied {
    world: World,
    liar: Liar,
    rng: Rng,
    /// Memory that the liar may read, write and change.
    open: u32,
    /// Memory of the process alone.
    guard: u32,
    /// Memory of the liar.
    lair: u32,
    posted: u64,
    completed: u64,
}

const LIED_TO: u64 = 7;

impl Lied {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut setup = setup();
        setup.psn = [rng.bits32() & 0xff_ffff, 0x00ff_fff0];
        setup.count_from = [1, u32::MAX - 5][rng.below_len(2)];
        setup.max_datagram_octets = [256, 1472][rng.below_len(2)];
        setup.rnr_retry = [3, 7, 7][rng.below_len(3)];
        setup.config.window_packets = [256, 65_280][rng.below_len(2)];
        let mut world = World::new(&setup, seed);
        let host = &mut world.ends[VICTIM].host;
        let open = host.register(vec![0; LENGTH], Rights::ALL);
        let guard = host.register(vec![GUARD; LENGTH], LOCAL);
        let lair = world.ends[PEER].host.register(vec![1; LENGTH], Rights::ALL);
        Self {
            liar: Liar::new(&setup, seed),
            world,
            rng,
            open,
            guard,
            lair,
            posted: 0,
            completed: 0,
        }
    }

    /// A few work requests of both, and a few packets of the liar. A connection that has ended is
    /// begun again, while packets of the one before are on their way.
    fn go_on(&mut self) {
        let has_ended = [VICTIM, PEER].map(|end| self.world.conn(end).state() == QpState::Error);
        if has_ended.contains(&true) {
            self.end();
            for end in [VICTIM, PEER] {
                let conn = self.world.conn(end);
                conn.reset();
                conn.to_init().unwrap();
                self.world.connect(end);
            }
        }
        for _ in 0..LIES {
            let end = self.rng.below_len(2);
            if self.rng.happens(300_000) {
                self.post(end);
            }
            self.lie();
            self.world.step();
        }
        self.count();
    }

    /// Everything that the liar has to send, as lies.
    fn lie(&mut self) {
        let mut buf = vec![0; 2048];
        loop {
            let now = self.world.now;
            let (conn, host) = self.world.split(PEER);
            let Some(sent) = conn.poll_transmit(now, &mut buf, host) else {
                return;
            };
            for packet in self.liar.instead_of(&buf[..sent.len]) {
                self.world.carry(PEER, &packet);
            }
        }
    }

    fn post(&mut self, end: usize) {
        let (own, other) = [(self.open, self.lair), (self.lair, self.open)][end];
        let at = self.rng.below(1000) * 8;
        let length = [8, 64, 3000, LONGEST][self.rng.below_len(4)];
        let remote = SimHost::remote(other, self.rng.below(1000) * 8);
        let mut sges = vec![SimHost::sge(own, at, length)];
        let op = match self.rng.below(8) {
            0..=2 => {
                sges[0].length = LONGEST;
                return self.post_recv(end, &sges);
            }
            3 | 4 => SendOp::Send,
            5 => SendOp::Write { remote },
            6 => SendOp::Read { remote },
            _ => {
                sges[0].length = 8;
                SendOp::FetchAdd { remote, add: 3 }
            }
        };
        let wr = SendWr {
            wr_id: LIED_TO,
            op,
            imm: None,
            flags: SIGNALED,
            shared_queue: 0,
            payload: Payload::Sges(&sges),
        };
        let now = self.world.now;
        let (conn, host) = self.world.split(end);
        let posted = conn.post_send(|| now, &wr, host).map(|_| ());
        self.note(end, posted);
    }

    fn post_recv(&mut self, end: usize, sges: &[Sge]) {
        let wr = RecvWr {
            wr_id: LIED_TO,
            sges,
        };
        let (conn, host) = self.world.split(end);
        let posted = conn.post_recv(&wr, host);
        self.note(end, posted);
    }

    fn note(&mut self, end: usize, posted: Result<(), PostError>) {
        match posted {
            Ok(()) => self.posted += u64::from(end == VICTIM),
            Err(PostError::QueueFull | PostError::InvalidState) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn count(&mut self) {
        let completions = &mut self.world.ends[VICTIM].host.completions;
        let before = completions.len();
        completions.retain(|completion| completion.wr_id != LIED_TO);
        self.completed += (before - completions.len()) as u64;
        self.world.ends[VICTIM].host.events.clear();
        self.world.ends[PEER].host.completions.clear();
    }

    /// Ends both connections; each request of the process has completed once.
    fn end(&mut self) {
        for end in [VICTIM, PEER] {
            let (conn, host) = self.world.split(end);
            conn.to_error(host);
        }
        self.count();
        assert_eq!(self.completed, self.posted, "requests lost or twice");
        let guard = self.world.ends[VICTIM].host.octets(self.guard);
        assert!(guard.iter().all(|&octet| octet == GUARD));
    }
}

fn setup() -> Setup {
    let mut setup = Setup {
        link: LinkModel {
            delay_ns: 5_000,
            jitter_ns: 2_000,
            ..LinkModel::default()
        },
        timeout: 10,
        ..Setup::default()
    };
    setup.config.sq_depth = 16;
    setup.config.rq_depth = 16;
    setup
}

/// The connection with an honest peer: one message after the other, in either direction.
struct Honest {
    world: World,
    /// Memory of either end that only the connection changes.
    memory: [u32; 2],
}

impl Honest {
    /// A connection of the process whose memory and completions are in `host`.
    fn new(host: &mut SimHost, seed: u64) -> Self {
        let mut setup = setup();
        setup.qpn = [0x0303, 0x0404].map(|index| Qpn::new(SlotId::DAEMON, index));
        let mut world = World::new(&setup, seed);
        let memory = [
            host.register(vec![0; LENGTH], LOCAL),
            world.ends[PEER].host.register(vec![0; LENGTH], LOCAL),
        ];
        Self { world, memory }
    }

    /// Exchanges one message in each direction while the process' host is in this world.
    fn exchange(&mut self, host: &mut SimHost, round: u64) {
        std::mem::swap(host, &mut self.world.ends[VICTIM].host);
        for end in [VICTIM, PEER] {
            let memory = self.world.ends[end].host.octets_mut(self.memory[end]);
            let (sent, received) = memory.split_at_mut(LENGTH / 2);
            Rng::new(round ^ end as u64).fill(sent);
            received.fill(0);
            let into = SimHost::sge(self.memory[end], (LENGTH / 2) as u64, MESSAGE);
            self.world.post_recv(end, 2 * round + 100, &[into]);
            let from = SimHost::sge(self.memory[end], 0, MESSAGE);
            self.world.post(end, 2 * round + 101, SendOp::Send, &[from]);
        }
        let is_done = |world: &mut World| {
            [VICTIM, PEER]
                .iter()
                .all(|&end| world.ends[end].host.completions.len() == 2)
        };
        assert!(
            self.world.run_until(SECOND, is_done),
            "{}",
            self.world.summary()
        );
        for end in [VICTIM, PEER] {
            let outcome = self.world.outcome(end);
            assert!(outcome.iter().all(|(_, status)| *status == Status::Success));
            let mut wanted = vec![0; MESSAGE as usize];
            Rng::new(round ^ (1 - end) as u64).fill(&mut wanted);
            let memory = self.world.ends[end].host.octets(self.memory[end]);
            assert_eq!(memory[LENGTH / 2..][..MESSAGE as usize], wanted);
        }
        std::mem::swap(host, &mut self.world.ends[VICTIM].host);
    }
}

/// Whatever a peer says: no octet outside of what it may write, each request completes once, and
/// another connection of the process loses nothing.
#[test]
fn peer_that_lies_harms_its_own_connection_at_most() {
    for_each_seed(60, |seed| {
        let mut lied = Lied::new(seed);
        let mut honest = Honest::new(&mut lied.world.ends[VICTIM].host, seed);
        for round in 0..ROUNDS {
            lied.go_on();
            honest.exchange(&mut lied.world.ends[VICTIM].host, round);
        }
        lied.end();
    });
}

/// Each refusal voids the window behind it. One at a time is a receiver's; a liar could refuse each
/// packet of the window in turn.
#[test]
fn second_refusal_before_the_first_is_over_has_no_effect() {
    const WRITES: u8 = 8;
    let setup = setup();
    let mut world = World::new(&setup, 1);
    let memory = [VICTIM, PEER].map(|end| {
        let host = &mut world.ends[end].host;
        host.register(vec![7; LENGTH], Rights::ALL)
    });
    let mut liar = Liar::new(&setup, 1);
    for wr_id in 0..WRITES.into() {
        let remote = SimHost::remote(memory[PEER], 0);
        let from = SimHost::sge(memory[VICTIM], 0, 8);
        world.post(VICTIM, wr_id, SendOp::Write { remote }, &[from]);
    }
    let mut sent = Vec::new();
    let mut buf = [0; 2048];
    while let Some(transmit) = {
        let now = world.now;
        let (conn, host) = world.split(VICTIM);
        conn.poll_transmit(now, &mut buf, host)
    } {
        sent.push(buf[..transmit.len].to_vec());
    }
    // One packet or train, from the PSN of the stream on.
    let mut refusal = liar.answer(PacketType::Rnr, &sent[0], &[ext::KIND_RNR_TIMER, 0, 0, 31]);
    write24(&mut refusal, field::ACK, setup.psn[VICTIM]);
    refusal[2..4].copy_from_slice(&setup.qpn[VICTIM].index().to_be_bytes());
    for ahead in (0..u32::from(WRITES)).rev() {
        write24(
            &mut refusal,
            field::PSN,
            setup.psn[VICTIM].wrapping_add(ahead),
        );
        world.deliver(VICTIM, &refusal, false);
    }
    assert_eq!(world.stats(VICTIM).rnr_received, 1);
    // The true receiver has refused nothing.
    for packet in &sent {
        world.deliver(PEER, packet, false);
    }
    let is_done = |world: &mut World| world.ends[VICTIM].host.completions.len() == WRITES.into();
    assert!(world.run_until(SECOND, is_done), "{}", world.summary());
    let wanted: Vec<_> = (0..WRITES)
        .map(|wr_id| (wr_id.into(), Status::Success))
        .collect();
    assert_eq!(world.outcome(VICTIM), wanted);
}
