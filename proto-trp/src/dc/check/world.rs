//! Initiators and targets over a network that loses, repeats and reorders, with fewer contexts than
//! initiators; in a part of the seeds paths are cut for a while, and targets and initiators begin
//! anew.
//!
//! A model checks that each Send is delivered and each atomic executed at most once, over all
//! incarnations of a target, and once if it succeeds; that Sends are delivered and Writes take
//! effect in order; that reads and atomics return the right octets; that no target has more
//! contexts than configured, of an address or of all; and that everything ends.

use super::super::fault::Faults;
use super::super::{
    DcArrival, DcInitiator, DcInitiatorConfig, DcTarget, DcTargetAddress, DcTargetConfig,
    DcTargetStats, DcVerdict,
};
use crate::conn::{
    Completion, CompletionOp, ConnConfig, Datagram, Payload, RemoteAddr, SendFlags, SendOp, SendWr,
    Sge, Status, HEAD_OCTETS,
};
use crate::sim::{Rights, SimHost};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr};
use urdma_types::{Qpn, Rng, SlotId, Time};

const MS: u64 = 1_000_000;
const DATAGRAM: usize = 1472;
const BUFFER: u32 = 4096;
/// How long an initiator waits for its peer with the acknowledge timeout 0 and 7 retries.
const SILENCE_NS: u64 = 4 * 4_096 * 8;
const KEY: u64 = 0xdc_0000_0001;
/// Memory of a target: a word for the atomics of each request, a buffer for the Writes of each
/// initiator, then octets to read.
const WORDS: usize = 512;
const WRITE_AT: usize = WORDS * 8;
const INITIATORS: usize = 7;
const READ_AT: usize = WRITE_AT + INITIATORS * BUFFER as usize;
const READ_LEN: usize = 16384;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Initiator(usize),
    Target(usize),
}

/// Impairments of the network, and whether paths are cut and processes restarted.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    loss_ppm: u32,
    duplicate_ppm: u32,
    late_ppm: u32,
    late_ns: u64,
    delay_ns: u64,
    cuts: bool,
    restarts: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
struct Fate {
    initiator: usize,
    target: usize,
    op: SendOp,
    length: usize,
    executed: u32,
    status: Option<Status>,
}

struct Initiator {
    dc: DcInitiator,
    host: SimHost,
    memory: u32,
    /// The target of the last request.
    last: Option<usize>,
    to_post: u32,
}

struct Target {
    dc: DcTarget,
    host: SimHost,
    memory: u32,
    buffers: u32,
    /// Receive requests that are to be posted again.
    to_repost: Vec<u64>,
    /// Atomics that are counted.
    counted: usize,
    /// The last Write of each initiator that has begun.
    written: [u64; INITIATORS],
}

/// Arrival, order, destination, origin, octets.
type Flight = (Time, u64, Node, Node, Vec<u8>);

pub(super) struct Sim {
    now: Time,
    rng: Rng,
    trouble: Trouble,
    faults: Faults,
    initiators: Vec<Initiator>,
    targets: Vec<Target>,
    contexts_max: usize,
    contexts_per_address_max: usize,
    /// The acknowledge timeout of initiators.
    timeout: u8,
    flights: BinaryHeap<Reverse<Flight>>,
    order: u64,
    /// Until when what initiators send, and what targets send, is lost.
    cut_until: [Time; 2],
    fates: BTreeMap<u64, Fate>,
    /// The last Send that was delivered from an initiator to a target.
    last: BTreeMap<(usize, usize), u64>,
    next_id: u64,
    failed: u64,
    stats: DcTargetStats,
}

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
        local: 0,
    }
}

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

fn new_initiator(
    number: usize,
    rng: &mut Rng,
    (linger_ns, timeout): (u64, u8),
    faults: Faults,
) -> Initiator {
    let mut host = SimHost::default();
    let memory = host.register(vec![0; 1 << 20], Rights::ALL);
    let config = DcInitiatorConfig {
        conn: ConnConfig {
            sq_depth: 16,
            seed: rng.bits(),
            ..ConnConfig::new(qpn(number))
        },
        max_datagram_octets: DATAGRAM as u32,
        timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        linger_ns,
        known_max: 1 + rng.below_len(2),
    };
    Initiator {
        dc: DcInitiator::faulty(config, faults),
        host,
        memory,
        last: None,
        to_post: 0,
    }
}

fn new_target(rng: &mut Rng, contexts_max: usize, of_address_max: usize, faults: Faults) -> Target {
    let mut host = SimHost::default();
    let mut octets = vec![0; READ_AT + READ_LEN];
    for (at, octet) in octets[READ_AT..].iter_mut().enumerate() {
        *octet = pattern(at);
    }
    let memory = host.register(octets, Rights::ALL);
    let count = 8;
    let buffers = host.register(vec![0; count * BUFFER as usize], Rights::ALL);
    let config = DcTargetConfig {
        number: qpn(0x100),
        key: KEY,
        contexts_max,
        contexts_per_address_max: of_address_max,
        max_datagram_octets: DATAGRAM as u32,
        window_packets: 256,
        max_recv_sge: 1,
        min_rnr_timer: 1 + (rng.below(12) as u8),
        secret: [rng.bits(), rng.bits()],
    };
    Target {
        dc: DcTarget::faulty(config, faults),
        host,
        memory,
        buffers,
        to_repost: (0..count as u64).collect(),
        counted: 0,
        written: [0; INITIATORS],
    }
}

impl Sim {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        let mut rng = Rng::new(seed);
        let is_rough = seed % 4 == 3;
        let trouble = Trouble {
            loss_ppm: rng.below(100_000) as u32,
            duplicate_ppm: rng.below(100_000) as u32,
            late_ppm: rng.below(100_000) as u32,
            late_ns: [300_000, 20 * MS, 200 * MS][rng.below_len(3)],
            delay_ns: 2_000 + rng.below(100_000),
            cuts: is_rough && rng.below(2) == 0,
            restarts: is_rough,
        };
        let contexts_max = 1 + rng.below_len(4);
        let contexts_per_address_max = 1 + rng.below_len(contexts_max);
        let linger_ns = [50_000, 5 * MS, 5_000 * MS][rng.below_len(3)];
        // Without trouble no request fails, however long its initiator waits for a context.
        let timeout = if is_rough {
            [9, 11, 14][rng.below_len(3)]
        } else {
            18
        };
        let initiators = 2 + rng.below_len(5);
        let targets = 1 + rng.below_len(3);
        let initiators = (0..initiators)
            .map(|number| new_initiator(number, &mut rng, (linger_ns, timeout), faults))
            .collect::<Vec<_>>();
        let targets = (0..targets)
            .map(|_| new_target(&mut rng, contexts_max, contexts_per_address_max, faults))
            .collect();
        let mut sim = Self {
            now: Time::from_ns(MS),
            rng,
            trouble,
            faults,
            initiators,
            targets,
            contexts_max,
            contexts_per_address_max,
            timeout,
            flights: BinaryHeap::new(),
            order: 0,
            cut_until: [Time::ZERO; 2],
            fates: BTreeMap::new(),
            last: BTreeMap::new(),
            next_id: 1,
            failed: 0,
            stats: DcTargetStats::default(),
        };
        for initiator in &mut sim.initiators {
            initiator.to_post = 4 + sim.rng.below(16) as u32;
        }
        sim
    }

    fn carry(&mut self, from: Node, to: Node, octets: &[u8]) {
        let direction = usize::from(matches!(from, Node::Target(_)));
        if self.now < self.cut_until[direction] || self.rng.happens(self.trouble.loss_ppm) {
            return;
        }
        for _ in 0..1 + u32::from(self.rng.happens(self.trouble.duplicate_ppm)) {
            let mut delay_ns = self.trouble.delay_ns;
            if self.rng.happens(self.trouble.late_ppm) {
                delay_ns += self.rng.below(self.trouble.late_ns);
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
        let arrival = DcArrival {
            address,
            sender: qpn(0).slot(),
            local: 0,
        };
        match to {
            Node::Initiator(number) => {
                let Initiator { dc, host, .. } = &mut self.initiators[number];
                if let Some(reset) = dc.handle_datagram(now, &arrival, &datagram, host) {
                    let mut buf = [0; HEAD_OCTETS];
                    let len = reset.encode(&mut buf).unwrap();
                    self.carry(to, from, &buf[..len]);
                }
            }
            Node::Target(number) => {
                let Target { dc, host, .. } = &mut self.targets[number];
                let verdict = dc.handle_datagram(now, &arrival, &datagram, host);
                assert!(dc.contexts() <= self.contexts_max, "too many contexts");
                let of_address = dc.contexts_at(address);
                let is_bound = of_address <= self.contexts_per_address_max;
                assert!(is_bound, "too many contexts of an address");
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
        let target = match initiator.last {
            Some(target) if rng.below(3) > 0 => target,
            _ => rng.below_len(self.targets.len()),
        };
        let memory = self.targets[target].memory;
        let place = |at: usize| RemoteAddr {
            stag: memory,
            to: SimHost::base(memory) + at as u64,
        };
        let word = place(id as usize % WORDS * 8);
        let buffer = place(WRITE_AT + number * BUFFER as usize);
        let read = place(READ_AT + rng.below_len(READ_LEN - BUFFER as usize));
        let long = 8 + rng.below_len(4000);
        let swap = SendOp::CompareSwap {
            remote: word,
            compare: 0,
            swap: id,
        };
        let add = SendOp::FetchAdd {
            remote: word,
            add: 1,
        };
        let (op, length) = match rng.below(8) {
            0..=2 => (SendOp::Send, long),
            3 => (add, 8),
            4 => (swap, 8),
            5 => (SendOp::Write { remote: buffer }, long),
            _ => (SendOp::Read { remote: read }, long),
        };
        let local_at = id % 128 * u64::from(BUFFER);
        if matches!(op, SendOp::Send | SendOp::Write { .. }) {
            let octets = &mut initiator.host.octets_mut(initiator.memory)[local_at as usize..];
            octets[..8].copy_from_slice(&id.to_be_bytes());
            octets[8..length].fill(id as u8);
        }
        let sge = Sge {
            addr: SimHost::base(initiator.memory) + local_at,
            length: length as u32,
            lkey: initiator.memory,
        };
        let wr = SendWr {
            wr_id: id,
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
            initiator.last = Some(target);
            let fate = Fate {
                initiator: number,
                target,
                op,
                length,
                executed: 0,
                status: None,
            };
            self.fates.insert(id, fate);
        }
    }

    /// Checks the completions of an initiator.
    fn check_initiator(&mut self, number: usize) {
        while let Some(completion) = self.initiators[number].host.completions.pop_front() {
            let id = completion.wr_id;
            let fate = self.fates.get_mut(&id).unwrap();
            assert_eq!(fate.status, None, "request {id} completes twice");
            fate.status = Some(completion.status);
            if completion.status == Status::Success {
                self.check_success(number, &completion);
                continue;
            }
            self.failed += 1;
            assert!(self.trouble.restarts || self.trouble.cuts, "{completion:?}");
            let is_end = matches!(
                completion.status,
                Status::RetryExceeded | Status::WorkRequestFlushed
            );
            assert!(is_end, "{completion:?}");
        }
    }

    fn check_success(&self, number: usize, completion: &Completion) {
        let id = completion.wr_id;
        let fate = &self.fates[&id];
        let initiator = &self.initiators[number];
        let at = (id % 128) as usize * BUFFER as usize;
        let octets = &initiator.host.octets(initiator.memory)[at..at + fate.length];
        match (completion.op, fate.op) {
            (CompletionOp::Read, SendOp::Read { remote }) => {
                let base = SimHost::base(self.targets[fate.target].memory) + READ_AT as u64;
                let from = (remote.to - base) as usize;
                let expected = (from..from + fate.length).map(pattern);
                assert!(octets.iter().copied().eq(expected), "read {id}");
            }
            (CompletionOp::FetchAdd | CompletionOp::CompareSwap, _) => {
                assert_eq!(octets, [0; 8], "atomic {id} has run before");
                assert_eq!(fate.executed, 1, "atomic {id}");
            }
            (CompletionOp::Write, _) => {
                let written = self.targets[fate.target].written[number];
                let has_begun_anew = self.trouble.restarts;
                assert!(written >= id || has_begun_anew, "Write {id}");
            }
            (CompletionOp::Send, _) => assert_eq!(fate.executed, 1, "Send {id}"),
            (op, _) => panic!("{op:?}"),
        }
    }

    /// Counts the atomics and Writes that a target has executed.
    fn count_effects(&mut self, number: usize) {
        let target = &mut self.targets[number];
        let base = SimHost::base(target.memory);
        for at in &target.host.atomics[target.counted..] {
            let id = (at - base) / 8;
            let fate = self.fates.get_mut(&id).unwrap();
            fate.executed += 1;
            assert_eq!(fate.executed, 1, "atomic {id} runs twice");
            assert_eq!(fate.target, number);
        }
        target.counted = target.host.atomics.len();
        let memory = target.host.octets(target.memory);
        for (initiator, written) in target.written.iter_mut().enumerate() {
            let at = WRITE_AT + initiator * BUFFER as usize;
            let id = u64::from_be_bytes(memory[at..at + 8].try_into().unwrap());
            assert!(id >= *written, "Write {id} after {written}");
            *written = id;
        }
    }

    /// Checks what a target has received and executed, and posts receive requests.
    fn check_target(&mut self, number: usize) {
        self.count_effects(number);
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
            let last = self.last.insert((fate.initiator, number), id);
            assert!(last < Some(id), "Send {id} after {last:?}");
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
        if self.trouble.cuts && self.rng.happens(300) {
            // Up to three times what an initiator waits.
            let end = self
                .now
                .plus_ns(self.rng.below((3 * SILENCE_NS) << self.timeout));
            match self.rng.below(3) {
                0 => self.cut_until = [end; 2],
                _ => self.cut_until[self.rng.below_len(2)] = end,
            }
        }
        if self.trouble.restarts && self.rng.happens(300) {
            let number = self.rng.below_len(self.targets.len());
            // Nothing of what it has executed is forgotten.
            self.check_target(number);
            self.retire_stats(number);
            let max = (self.contexts_max, self.contexts_per_address_max);
            self.targets[number] = new_target(&mut self.rng, max.0, max.1, self.faults);
        }
        if self.trouble.restarts && self.rng.happens(300) {
            let number = self.rng.below_len(self.initiators.len());
            let linger_ns = 5 * MS;
            let to_post = self.initiators[number].to_post;
            self.initiators[number] = new_initiator(
                number,
                &mut self.rng,
                (linger_ns, self.timeout),
                self.faults,
            );
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
        // What is complete has been executed.
        for number in 0..self.targets.len() {
            self.check_target(number);
        }
        for number in 0..self.initiators.len() {
            self.check_initiator(number);
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

    /// Runs until everything has ended; returns the counters of all targets and the number of
    /// requests that have failed.
    pub(super) fn run(mut self) -> (DcTargetStats, u64) {
        let end = self.now.plus_ns(120_000 * MS);
        while !self.is_done() {
            self.step();
            assert!(self.now < end, "requests are left after 120 s");
        }
        for number in 0..self.targets.len() {
            self.check_target(number);
        }
        for number in 0..self.initiators.len() {
            self.check_initiator(number);
        }
        // What is still under way has no effect any more.
        let late = self.now.plus_ns(400 * MS);
        while self.now < late {
            self.step();
        }
        for number in 0..self.targets.len() {
            self.check_target(number);
            self.retire_stats(number);
        }
        self.check_end();
        (self.stats, self.failed)
    }

    /// Adds the counters of a target to those of all.
    fn retire_stats(&mut self, number: usize) {
        let of_target = self.targets[number].dc.stats();
        self.stats.evicted += of_target.evicted;
        self.stats.expired += of_target.expired;
        self.stats.refused += of_target.refused;
        self.stats.busy += of_target.busy;
    }

    fn check_end(&self) {
        let is_smooth = !self.trouble.restarts && !self.trouble.cuts;
        for (id, fate) in &self.fates {
            let is_counted = !matches!(fate.op, SendOp::Read { .. } | SendOp::Write { .. });
            if is_counted && (is_smooth || fate.status == Some(Status::Success)) {
                assert_eq!(fate.executed, 1, "request {id} is lost");
            }
        }
        // The last Write of each initiator is there from its first octet to its last.
        for (number, target) in self.targets.iter().enumerate().filter(|_| is_smooth) {
            for initiator in 0..self.initiators.len() {
                let is_of = |fate: &&Fate| {
                    let is_write = matches!(fate.op, SendOp::Write { .. });
                    is_write && fate.initiator == initiator && fate.target == number
                };
                let mut writes = self.fates.iter().rev();
                let Some((id, fate)) = writes.find(|(_, fate)| is_of(fate)) else {
                    continue;
                };
                let at = WRITE_AT + initiator * BUFFER as usize;
                let octets = &target.host.octets(target.memory)[at..at + fate.length];
                assert_eq!(octets[..8], id.to_be_bytes());
                assert!(octets[8..].iter().all(|&octet| octet == *id as u8));
            }
        }
    }
}
