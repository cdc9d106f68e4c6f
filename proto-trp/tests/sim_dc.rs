//! The dynamically connected transport: initiators and targets over a network that loses, repeats
//! and reorders, with fewer contexts than initiators; in a part of the seeds a path is cut for a
//! while, or a target or an initiator begins anew.
//!
//! A model checks that each Send is delivered once and in order, each atomic is executed once,
//! reads return the right octets, no target has more contexts than configured, and everything ends.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use proto_trp::conn::{
    CompletionOp, ConnConfig, Datagram, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
    Status, HEAD_OCTETS,
};
use proto_trp::dc::{
    DcInitiator, DcInitiatorConfig, DcTarget, DcTargetAddress, DcTargetConfig, DcVerdict,
};
use proto_trp::sim::{for_each_seed, Rights, Rng, SimHost};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use urdma_types::{Qpn, SlotId, Time};

const MS: u64 = 1_000_000;
const DATAGRAM: usize = 1472;
const BUFFER: u32 = 4096;
const KEY: u64 = 0xdc_0000_0001;
/// Memory of a target: a counter for each initiator, then octets to read.
const READ_AT: usize = 4096;
const READ_LEN: usize = 16384;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Initiator(usize),
    Target(usize),
}

/// Faults of the network and of processes.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    loss_ppm: u32,
    duplicate_ppm: u32,
    late_ppm: u32,
    late_ns: u64,
    delay_ns: u64,
    cuts: bool,
    restarts: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    target: usize,
    executed: u32,
    status: Option<Status>,
    is_send: bool,
    is_atomic: bool,
}

struct Initiator {
    dc: DcInitiator,
    host: SimHost,
    memory: u32,
    /// Requests by `wr_id`, which is unique over all initiators.
    posted: Vec<u64>,
    to_post: u32,
}

struct Target {
    dc: DcTarget,
    host: SimHost,
    memory: u32,
    buffers: u32,
    /// Receive requests that are to be posted again.
    to_repost: Vec<u64>,
}

/// Arrival, order, destination, origin, octets.
type Flight = (Time, u64, Node, Node, Vec<u8>);

struct Sim {
    now: Time,
    rng: Rng,
    faults: Faults,
    initiators: Vec<Initiator>,
    targets: Vec<Target>,
    contexts_max: usize,
    flights: BinaryHeap<Reverse<Flight>>,
    order: u64,
    cut_until: Time,
    fates: BTreeMap<u64, Fate>,
    /// The last Send that was delivered from an initiator to a target.
    last: BTreeMap<(u64, usize), u64>,
    next_id: u64,
}

static EVICTED: AtomicU64 = AtomicU64::new(0);
static EXPIRED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static BUSY: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);

fn address_of(node: Node) -> IpAddr {
    let last = match node {
        // Two initiators at an address.
        Node::Initiator(number) => 100 + number / 2,
        Node::Target(number) => 1 + number,
    };
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, u8::try_from(last).unwrap()))
}

fn qpn(index: usize) -> Qpn {
    Qpn::new(SlotId::new(1).unwrap(), u16::try_from(index + 1).unwrap())
}

fn target_address(target: usize) -> DcTargetAddress {
    DcTargetAddress {
        address: address_of(Node::Target(target)),
        number: qpn(0x100),
        key: KEY,
    }
}

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

fn new_initiator(number: usize, rng: &mut Rng, linger_ns: u64) -> Initiator {
    let mut host = SimHost::default();
    let memory = host.register(vec![0; 1 << 20], Rights::ALL);
    let dc = DcInitiator::new(DcInitiatorConfig {
        conn: ConnConfig {
            sq_depth: 16,
            seed: rng.bits(),
            ..ConnConfig::new(qpn(number))
        },
        max_datagram_octets: DATAGRAM as u32,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        linger_ns,
        known_max: 2,
    });
    Initiator {
        dc,
        host,
        memory,
        posted: Vec::new(),
        to_post: 0,
    }
}

fn new_target(rng: &mut Rng, contexts_max: usize) -> Target {
    let mut host = SimHost::default();
    let mut octets = vec![0; READ_AT + READ_LEN];
    for (at, octet) in octets[READ_AT..].iter_mut().enumerate() {
        *octet = pattern(at);
    }
    let memory = host.register(octets, Rights::ALL);
    let count = 8;
    let buffers = host.register(vec![0; count * BUFFER as usize], Rights::ALL);
    let dc = DcTarget::new(DcTargetConfig {
        number: qpn(0x100),
        key: KEY,
        contexts_max,
        contexts_per_address_max: contexts_max,
        max_datagram_octets: DATAGRAM as u32,
        window_packets: 256,
        max_recv_sge: 1,
        min_rnr_timer: 1 + (rng.below(12) as u8),
        secret: [rng.bits(), rng.bits()],
    });
    Target {
        dc,
        host,
        memory,
        buffers,
        to_repost: (0..count as u64).collect(),
    }
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let is_rough = seed % 4 == 3;
        let faults = Faults {
            loss_ppm: rng.below(100_000) as u32,
            duplicate_ppm: rng.below(100_000) as u32,
            late_ppm: rng.below(100_000) as u32,
            late_ns: [300_000, 20 * MS, 200 * MS][rng.below_len(3)],
            delay_ns: 2_000 + rng.below(100_000),
            cuts: is_rough && rng.below(2) == 0,
            restarts: is_rough,
        };
        let contexts_max = 1 + rng.below_len(4);
        let linger_ns = [50_000, 5 * MS, 5_000 * MS][rng.below_len(3)];
        let initiators = 2 + rng.below_len(5);
        let targets = 1 + rng.below_len(3);
        let initiators = (0..initiators)
            .map(|number| new_initiator(number, &mut rng, linger_ns))
            .collect::<Vec<_>>();
        let targets = (0..targets)
            .map(|_| new_target(&mut rng, contexts_max))
            .collect();
        let mut sim = Self {
            now: Time::from_ns(MS),
            rng,
            faults,
            initiators,
            targets,
            contexts_max,
            flights: BinaryHeap::new(),
            order: 0,
            cut_until: Time::ZERO,
            fates: BTreeMap::new(),
            last: BTreeMap::new(),
            next_id: 1,
        };
        for initiator in &mut sim.initiators {
            initiator.to_post = 4 + sim.rng.below(16) as u32;
        }
        sim
    }

    fn carry(&mut self, from: Node, to: Node, octets: &[u8]) {
        if self.now < self.cut_until || self.rng.happens(self.faults.loss_ppm) {
            return;
        }
        for _ in 0..1 + u32::from(self.rng.happens(self.faults.duplicate_ppm)) {
            let mut delay_ns = self.faults.delay_ns;
            if self.rng.happens(self.faults.late_ppm) {
                delay_ns += self.rng.below(self.faults.late_ns);
            }
            self.order += 1;
            let at = self.now.plus_ns(delay_ns);
            let flight = (at, self.order, to, from, octets.to_vec());
            self.flights.push(Reverse(flight));
        }
    }

    fn deliver(&mut self, to: Node, from: Node, octets: &[u8]) {
        let datagram = Datagram {
            head: &octets[..octets.len().min(HEAD_OCTETS)],
            len: octets.len(),
            body: octets,
            congestion_experienced: false,
        };
        let (now, address) = (self.now, address_of(from));
        match to {
            Node::Initiator(number) => {
                let Initiator { dc, host, .. } = &mut self.initiators[number];
                if let Some(reset) = dc.handle_datagram(now, address, &datagram, host) {
                    let mut buf = [0; HEAD_OCTETS];
                    let len = reset.encode(&mut buf).unwrap();
                    self.carry(to, from, &buf[..len]);
                }
            }
            Node::Target(number) => {
                let Target { dc, host, .. } = &mut self.targets[number];
                let verdict = dc.handle_datagram(now, address, &datagram, host);
                assert!(dc.contexts() <= self.contexts_max, "too many contexts");
                if let DcVerdict::Refused(reset) = verdict {
                    self.carry(to, from, &reset);
                }
            }
        }
    }

    fn flush(&mut self) {
        let mut buf = [0; DATAGRAM];
        for number in 0..self.initiators.len() {
            loop {
                let Initiator { dc, host, .. } = &mut self.initiators[number];
                let Some((target, len)) = dc.poll_transmit(self.now, &mut buf, host) else {
                    break;
                };
                let to = (0..self.targets.len()).find(|&t| target_address(t) == target);
                self.carry(
                    Node::Initiator(number),
                    Node::Target(to.unwrap()),
                    &buf[..len],
                );
            }
        }
        for number in 0..self.targets.len() {
            loop {
                let Target { dc, host, .. } = &mut self.targets[number];
                let Some((source, transmit)) = dc.poll_transmit(self.now, &mut buf, host) else {
                    break;
                };
                let to = Node::Initiator(usize::from(source.initiator.index()) - 1);
                self.carry(Node::Target(number), to, &buf[..transmit.len]);
            }
        }
    }

    /// Posts a random request.
    fn post(&mut self, number: usize) {
        let id = self.next_id;
        let rng = &mut self.rng;
        let initiator = &mut self.initiators[number];
        // Mostly the target of the previous request.
        let previous = initiator.posted.last().map(|id| self.fates[id].target);
        let target = match previous {
            Some(target) if rng.below(3) > 0 => target,
            _ => rng.below_len(self.targets.len()),
        };
        let memory = self.targets[target].memory;
        let place = |at: usize| RemoteAddr {
            stag: memory,
            to: SimHost::base(memory) + at as u64,
        };
        let local_at = (id % 128) * u64::from(BUFFER);
        let at = local_at as usize;
        let read_at = rng.below_len(READ_LEN - BUFFER as usize);
        let (op, length) = match rng.below(4) {
            0 | 1 => (SendOp::Send, 8 + rng.below(4000) as u32),
            2 => {
                let remote = place(number * 8);
                (SendOp::FetchAdd { remote, add: 1 }, 8)
            }
            _ => {
                let remote = place(READ_AT + read_at);
                (SendOp::Read { remote }, 1 + rng.below(4000) as u32)
            }
        };
        if op == SendOp::Send {
            let octets = &mut initiator.host.octets_mut(initiator.memory)[at..];
            octets[..8].copy_from_slice(&id.to_be_bytes());
            octets[8..length as usize].fill(id as u8);
        }
        let sge = Sge {
            addr: SimHost::base(initiator.memory) + local_at,
            length,
            lkey: initiator.memory,
        };
        let wr = SendWr {
            wr_id: id << 32 | (read_at as u64) << 16 | u64::from(length),
            op,
            imm: None,
            flags: SendFlags {
                signaled: true,
                ..SendFlags::default()
            },
            shared_queue: 0,
            payload: Payload::Sges(&[sge]),
        };
        let address = target_address(target);
        let posted = initiator
            .dc
            .post_send(self.now, address, &wr, &mut initiator.host);
        if posted.is_ok() {
            self.next_id += 1;
            initiator.to_post -= 1;
            initiator.posted.push(id);
            let fate = Fate {
                target,
                is_send: op == SendOp::Send,
                is_atomic: matches!(op, SendOp::FetchAdd { .. }),
                ..Fate::default()
            };
            self.fates.insert(id, fate);
        }
    }

    /// Checks the completions of an initiator.
    fn check_initiator(&mut self, number: usize) {
        let initiator = &mut self.initiators[number];
        while let Some(completion) = initiator.host.completions.pop_front() {
            let id = completion.wr_id >> 32;
            let length = (completion.wr_id & 0xffff) as usize;
            let read_at = (completion.wr_id >> 16 & 0xffff) as usize;
            let fate = self.fates.get_mut(&id).unwrap();
            assert_eq!(fate.status, None, "request {id} completes twice");
            fate.status = Some(completion.status);
            if completion.status != Status::Success {
                FAILED.fetch_add(1, Ordering::Relaxed);
                assert!(self.faults.restarts || self.faults.cuts, "{completion:?}");
                continue;
            }
            let at = (id % 128) as usize * BUFFER as usize;
            let octets = &initiator.host.octets(initiator.memory)[at..at + length];
            match completion.op {
                CompletionOp::Send => assert_eq!(fate.executed, 1, "request {id}"),
                CompletionOp::Read => {
                    let expected = (read_at..read_at + length).map(pattern);
                    assert!(octets.iter().copied().eq(expected), "read {id}");
                }
                CompletionOp::FetchAdd if !self.faults.restarts && !self.faults.cuts => {
                    let target = fate.target;
                    let before = |(other, fate): &(&u64, &Fate)| {
                        **other < id && fate.is_atomic && fate.target == target
                    };
                    let posted = initiator.posted.iter().map(|id| (id, &self.fates[id]));
                    let expected = posted.filter(before).count() as u64;
                    let old = u64::from_ne_bytes(octets.try_into().unwrap());
                    assert_eq!(old, expected, "atomic {id} runs once");
                }
                _ => {}
            }
        }
    }

    /// Checks what a target has received, and posts receive requests.
    fn check_target(&mut self, number: usize) {
        let target = &mut self.targets[number];
        while let Some(completion) = target.host.completions.pop_front() {
            target.to_repost.push(completion.wr_id);
            if completion.status != Status::Success {
                continue;
            }
            let at = completion.wr_id as usize * BUFFER as usize;
            let octets = &target.host.octets(target.buffers)[at..];
            let octets = &octets[..completion.byte_len as usize];
            let id = u64::from_be_bytes(octets[..8].try_into().unwrap());
            assert!(
                octets[8..].iter().all(|&octet| octet == id as u8),
                "Send {id}"
            );
            let fate = self.fates.get_mut(&id).unwrap();
            fate.executed += 1;
            assert_eq!(fate.executed, 1, "Send {id} is delivered twice");
            assert_eq!(fate.target, number);
            let posted = |initiator: &Initiator| initiator.posted.contains(&id);
            if let Some(sender) = self.initiators.iter().position(posted) {
                let last = self.last.insert((sender as u64, number), id);
                assert!(last < Some(id), "Send {id} after {last:?}");
            }
        }
        let full = target.to_repost.len() == 8;
        if !target.to_repost.is_empty() && (full || self.rng.below(3) == 0) {
            for wr_id in target.to_repost.drain(..) {
                let sge = Sge {
                    addr: SimHost::base(target.buffers) + wr_id * u64::from(BUFFER),
                    length: BUFFER,
                    lkey: target.buffers,
                };
                target.host.shared_recvs.push_back((wr_id, vec![sge]));
            }
        }
    }

    /// Cuts the network, or begins a process anew.
    fn break_something(&mut self) {
        if self.faults.cuts && self.rng.happens(300) {
            let ns = self.rng.below(6_000 * MS);
            self.cut_until = self.now.plus_ns(ns);
        }
        if self.faults.restarts && self.rng.happens(300) {
            let number = self.rng.below_len(self.targets.len());
            self.targets[number] = new_target(&mut self.rng, self.contexts_max);
        }
        if self.faults.restarts && self.rng.happens(300) {
            let number = self.rng.below_len(self.initiators.len());
            let linger_ns = 5 * MS;
            let to_post = self.initiators[number].to_post;
            self.initiators[number] = new_initiator(number, &mut self.rng, linger_ns);
            self.initiators[number].to_post = to_post;
        }
    }

    fn step(&mut self) {
        self.break_something();
        for number in 0..self.initiators.len() {
            let initiator = &self.initiators[number];
            if initiator.to_post > 0 && !initiator.dc.has_failed() && self.rng.below(4) == 0 {
                self.post(number);
            }
        }
        self.flush();
        for number in 0..self.initiators.len() {
            self.check_initiator(number);
        }
        for number in 0..self.targets.len() {
            self.check_target(number);
        }
        let mut next = self.now.plus_ns(100_000);
        let initiators = self.initiators.iter().map(|end| end.dc.next_deadline());
        let targets = self.targets.iter().map(|end| end.dc.next_deadline());
        for deadline in initiators.chain(targets).flatten() {
            next = next.earlier(deadline);
        }
        if let Some(Reverse((at, ..))) = self.flights.peek() {
            next = next.earlier(*at);
        }
        self.now = self.now.max(next);
        while let Some(Reverse((at, ..))) = self.flights.peek() {
            if *at > self.now {
                break;
            }
            let Reverse((_, _, to, from, octets)) = self.flights.pop().unwrap();
            self.deliver(to, from, &octets);
        }
        for Initiator { dc, host, .. } in &mut self.initiators {
            dc.handle_timeout(self.now, host);
        }
        for Target { dc, host, .. } in &mut self.targets {
            dc.handle_timeout(self.now, host);
        }
    }

    fn is_done(&self) -> bool {
        self.initiators.iter().all(|initiator| {
            let posted = initiator.to_post == 0 || initiator.dc.has_failed();
            posted && initiator.dc.sends_outstanding() == 0
        })
    }

    fn run(&mut self) {
        let end = self.now.plus_ns(120_000 * MS);
        while !self.is_done() {
            self.step();
            assert!(self.now < end, "requests are left after 120 s");
        }
        for number in 0..self.initiators.len() {
            self.check_initiator(number);
        }
        // What is still under way has no effect any more.
        let late = self.now.plus_ns(400 * MS);
        while self.now < late {
            self.step();
        }
        self.check_end();
    }

    fn check_end(&self) {
        for target in &self.targets {
            let stats = target.dc.stats();
            EVICTED.fetch_add(stats.evicted, Ordering::Relaxed);
            EXPIRED.fetch_add(stats.expired, Ordering::Relaxed);
            REFUSED.fetch_add(stats.refused, Ordering::Relaxed);
            BUSY.fetch_add(stats.busy, Ordering::Relaxed);
        }
        for (id, fate) in &self.fates {
            if fate.is_send && fate.status == Some(Status::Success) {
                assert_eq!(fate.executed, 1, "Send {id} is lost");
            }
        }
        for (number, target) in self.targets.iter().enumerate() {
            let mine = |fate: &&Fate| fate.is_atomic && fate.target == number;
            let posted = self.fates.values().filter(mine).count() as u64;
            assert!(target.host.atomics <= posted, "an atomic runs twice");
            if !self.faults.restarts && !self.faults.cuts {
                assert_eq!(target.host.atomics, posted);
            }
        }
    }
}

/// Runs so many seeds, and checks that contexts were evicted, refused and all in use.
fn run_seeds(count: u64) {
    for_each_seed(count, |seed| Sim::new(seed).run());
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "evicted {}, expired {}, refused {}, busy {}, failed requests {}",
        count(&EVICTED),
        count(&EXPIRED),
        count(&REFUSED),
        count(&BUSY),
        count(&FAILED)
    );
    if std::env::var_os("URDMA_SEED").is_none() {
        assert!(count(&EVICTED) > 0 && count(&REFUSED) > 0 && count(&BUSY) > 0);
    }
}

#[test]
fn dc_exchange_on_a_bad_network_runs_each_request_once() {
    run_seeds(400);
}

#[test]
#[ignore = "a minute; a part of make test-all"]
fn dc_ten_thousand_exchanges_run_each_request_once() {
    run_seeds(10_000);
}
