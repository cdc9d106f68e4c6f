//! Random operations in both directions, and the model of their results.

use proto_trp::conn::{
    Completion, CompletionOp, Event, Payload, PostError, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, Sge, Status,
};
use std::collections::VecDeque;
use urdma_types::Rng;

use super::ends::Ends;
use super::host::{Rights, SimHost};
use super::world::World;

/// How much is exchanged, and how.
#[derive(Clone, Copy, Debug)]
pub struct ExchangePlan {
    /// Operations of each end.
    pub operations: usize,
    /// Octets of the longest message.
    pub max_len: usize,
    /// Receives are posted late, so that the peer runs into an empty receive queue.
    pub late_receives: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// One operation and everything that follows from it.
#[derive(Clone, Debug)]
struct Operation {
    kind: Kind,
    len: usize,
    imm: Option<u32>,
    flags: SendFlags,
    inline: bool,
    /// Offset in the source or sink region of the requester.
    local: usize,
    /// Offset in the inbox, export or words region of the peer.
    remote: usize,
    /// Old value that an atomic must give.
    original: u64,
}

/// A receive request and what must arrive in it.
#[derive(Clone, Debug)]
struct Receive {
    at: usize,
    capacity: usize,
    /// The peer's operation.
    operation: usize,
}

/// One end: its memory and its part of the plan.
#[derive(Debug)]
struct Side {
    source: u32,
    sink: u32,
    inbox: u32,
    export: u32,
    words: u32,
    buffers: u32,
    operations: Vec<Operation>,
    receives: Vec<Receive>,
    words_at_end: Vec<u64>,
    posted: usize,
    receives_posted: usize,
    received: usize,
    /// Sends that have failed, all those from one on.
    sends_failed: usize,
    receives_failed: usize,
    /// Signaled operations that have not completed.
    awaited: VecDeque<usize>,
    /// Writes of the peer before this operation have been checked.
    writes_checked: usize,
}

/// A planned exchange between the two ends of a world.
#[derive(Debug)]
pub struct Exchange {
    sides: [Side; 2],
    rng: Rng,
    late_receives: bool,
    /// The connection was broken on purpose: requests may fail.
    broken: bool,
}

/// How a connection is broken in the middle of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// An end is moved to ERROR by its application.
    Error(usize),
    /// The process of an end dies.
    Kill(usize),
    /// An end destroys its queue pair (FIN).
    Close(usize),
    /// The path is cut.
    Cut,
}

const WORDS: usize = 4;
/// Virtual time after which both ends of a broken connection have noticed.
const BROKEN_NS: u64 = 2_000_000_000;

/// A random length: mostly short, sometimes 0, sometimes long.
fn random_len(rng: &mut Rng, max: usize) -> usize {
    match rng.below(8) {
        0 => 0,
        1..=3 => rng.below_len(64.min(max) + 1),
        4..=6 => rng.below_len(max / 8 + 1),
        _ => rng.below_len(max + 1),
    }
}

fn random_operations(plan: &ExchangePlan, rng: &mut Rng, reads: bool) -> Vec<Operation> {
    let mut words = [0u64; WORDS];
    let (mut local, mut inbox, mut sink) = (0, 0, 0);
    let mut operations = Vec::new();
    for index in 0..plan.operations {
        let choice = rng.below(if reads { 10 } else { 6 });
        let mut len = random_len(rng, plan.max_len);
        let word = rng.below_len(WORDS);
        let mut original = 0;
        let kind = match choice {
            0..=2 => Kind::Send,
            3..=5 => Kind::Write,
            6 | 7 => Kind::Read,
            8 => {
                let compare = if rng.below(2) == 0 {
                    words[word]
                } else {
                    rng.bits()
                };
                let swap = rng.bits();
                original = words[word];
                if compare == original {
                    words[word] = swap;
                }
                Kind::CompareSwap { compare, swap }
            }
            _ => {
                let add = rng.bits();
                original = words[word];
                words[word] = original.wrapping_add(add);
                Kind::FetchAdd { add }
            }
        };
        if matches!(kind, Kind::CompareSwap { .. } | Kind::FetchAdd { .. }) {
            len = 8;
        }
        let carries = matches!(kind, Kind::Send | Kind::Write);
        let inline = carries && len <= 128 && rng.below(2) == 0;
        let (from, to) = match kind {
            Kind::Send => (&mut local, None),
            Kind::Write => (&mut local, Some(&mut inbox)),
            _ => (&mut sink, None),
        };
        let operation = Operation {
            kind,
            len,
            imm: (carries && rng.below(3) == 0).then(|| rng.bits32()),
            flags: SendFlags {
                signaled: index + 1 == plan.operations || rng.below(3) > 0,
                fence: rng.below(8) == 0,
                solicited: rng.below(4) == 0,
            },
            inline,
            local: *from,
            remote: match (&to, kind) {
                (Some(at), _) => **at,
                (None, Kind::Read) => rng.below_len(plan.max_len),
                (None, _) => 8 * word,
            },
            original,
        };
        *from += len;
        if let Some(at) = to {
            *at += len;
        }
        operations.push(operation);
    }
    operations
}

/// Octets that the operations of `kind` move.
fn total(operations: &[Operation], wanted: impl Fn(Kind) -> bool) -> usize {
    let lens = operations.iter().filter(|op| wanted(op.kind));
    lens.map(|op| op.len).sum()
}

fn consumes_receive(op: &Operation) -> bool {
    op.kind == Kind::Send || (op.kind == Kind::Write && op.imm.is_some())
}

fn final_words(operations: &[Operation]) -> Vec<u64> {
    let mut words = vec![0; WORDS];
    for op in operations {
        let word = &mut words[(op.remote / 8).min(WORDS - 1)];
        match op.kind {
            Kind::FetchAdd { add } => *word = op.original.wrapping_add(add),
            Kind::CompareSwap { compare, swap } if compare == op.original => *word = swap,
            _ => {}
        }
    }
    words
}

impl Exchange {
    /// Plans an exchange and registers its memory at both ends. `reads` allows reads and atomics.
    pub fn new<E: Ends>(ends: &mut E, plan: &ExchangePlan, reads: bool, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7ea5);
        let operations = [
            random_operations(plan, &mut rng, reads),
            random_operations(plan, &mut rng, reads),
        ];
        let mut sides = Vec::new();
        for end in 0..2 {
            let host = ends.host_mut(end);
            let side = Self::side(host, plan, &operations, end, &mut rng);
            sides.push(side);
        }
        let [a, b] = <[Side; 2]>::try_from(sides).expect("two sides");
        Self {
            sides: [a, b],
            rng,
            late_receives: plan.late_receives,
            broken: false,
        }
    }

    fn side(
        host: &mut SimHost,
        plan: &ExchangePlan,
        operations: &[Vec<Operation>; 2],
        end: usize,
        rng: &mut Rng,
    ) -> Side {
        let (own, peers) = (&operations[end], &operations[1 - end]);
        let mut receives = Vec::new();
        let mut at = 0;
        for (operation, op) in peers
            .iter()
            .enumerate()
            .filter(|(_, op)| consumes_receive(op))
        {
            let capacity = op.len + rng.below_len(32);
            receives.push(Receive {
                at,
                capacity,
                operation,
            });
            at += capacity;
        }
        let random = |len: usize, rng: &mut Rng| {
            let mut octets = vec![0; len];
            rng.fill(&mut octets);
            octets
        };
        let carries = |kind| matches!(kind, Kind::Send | Kind::Write);
        let source = random(total(own, carries), rng);
        let export = random(2 * plan.max_len, rng);
        let local = Rights {
            local_write: true,
            ..Rights::default()
        };
        let rights = |remote_write, remote_read, remote_atomic| Rights {
            local_write: false,
            remote_write,
            remote_read,
            remote_atomic,
        };
        let inbox_len = total(peers, |kind| kind == Kind::Write);
        Side {
            source: host.register(source, Rights::default()),
            sink: host.register(vec![0xee; total(own, |kind| !carries(kind))], local),
            inbox: host.register(vec![0xdd; inbox_len], rights(true, false, false)),
            export: host.register(export, rights(false, true, false)),
            words: host.register(vec![0; 8 * WORDS], rights(false, false, true)),
            buffers: host.register(vec![0xcc; at], local),
            words_at_end: final_words(peers),
            operations: own.clone(),
            receives,
            posted: 0,
            receives_posted: 0,
            received: 0,
            sends_failed: 0,
            receives_failed: 0,
            awaited: VecDeque::new(),
            writes_checked: 0,
        }
    }

    /// Whether every operation was posted and has completed as the model says.
    pub fn is_done<E: Ends>(&self, ends: &mut E) -> bool {
        (0..2).all(|end| {
            let side = &self.sides[end];
            side.posted == side.operations.len()
                && side.awaited.is_empty()
                && side.received == side.receives.len()
                && ends
                    .alive(end)
                    .is_some_and(|(conn, _)| conn.sends_outstanding() == 0)
        })
    }

    /// Posts what may be posted and checks what has completed.
    ///
    /// # Panics
    /// When a completion is not the one that the model expects.
    pub fn pump<E: Ends>(&mut self, ends: &mut E) {
        for end in 0..2 {
            self.check_completions(ends, end);
            if ends.alive(end).is_none() {
                continue;
            }
            self.post_receives(ends, end);
            self.post_sends(ends, end);
        }
    }

    fn post_receives<E: Ends>(&mut self, ends: &mut E, end: usize) {
        let side = &mut self.sides[end];
        while let Some(receive) = side.receives.get(side.receives_posted) {
            if self.late_receives && self.rng.below(40) != 0 {
                return;
            }
            let sges = split(side.buffers, receive.at, receive.capacity, &mut self.rng);
            let wr = RecvWr {
                wr_id: side.receives_posted as u64,
                sges: &sges,
            };
            let Some((conn, host)) = ends.alive(end) else {
                return;
            };
            match conn.post_recv(&wr, host) {
                Ok(()) => side.receives_posted += 1,
                Err(PostError::QueueFull) => return,
                Err(error) => panic!("post_recv: {error:?}"),
            }
        }
    }

    fn post_sends<E: Ends>(&mut self, ends: &mut E, end: usize) {
        while self.sides[end].posted < self.sides[end].operations.len() {
            if self.rng.below(4) == 0 {
                return;
            }
            let peer = &self.sides[1 - end];
            let (inbox, export, words) = (peer.inbox, peer.export, peer.words);
            let side = &mut self.sides[end];
            let op = &side.operations[side.posted];
            let at = |key: u32| RemoteAddr {
                stag: key,
                to: SimHost::base(key) + op.remote as u64,
            };
            let (wire_op, region) = match op.kind {
                Kind::Send => (SendOp::Send, side.source),
                Kind::Write => (SendOp::Write { remote: at(inbox) }, side.source),
                Kind::Read => (SendOp::Read { remote: at(export) }, side.sink),
                Kind::CompareSwap { compare, swap } => {
                    let remote = at(words);
                    let op = SendOp::CompareSwap {
                        remote,
                        compare,
                        swap,
                    };
                    (op, side.sink)
                }
                Kind::FetchAdd { add } => {
                    let remote = at(words);
                    (SendOp::FetchAdd { remote, add }, side.sink)
                }
            };
            let sges = split(region, op.local, op.len, &mut self.rng);
            let octets = op.inline.then(|| {
                let all = ends.host(end).octets(side.source);
                all[op.local..op.local + op.len].to_vec()
            });
            let parts = octets.as_ref().map(|octets| {
                let (a, b) = octets.split_at(octets.len() / 2);
                [a, b]
            });
            let wr = SendWr {
                wr_id: side.posted as u64,
                op: wire_op,
                imm: op.imm,
                flags: op.flags,
                shared_queue: 0,
                payload: match &parts {
                    Some([[], all]) => Payload::Inline(std::slice::from_ref(all)),
                    Some(parts) => Payload::Inline(parts),
                    None => Payload::Sges(&sges),
                },
            };
            match ends.post_send(end, &wr) {
                Ok(()) => {
                    if op.flags.signaled {
                        side.awaited.push_back(side.posted);
                    }
                    side.posted += 1;
                }
                // Not yet in RTS.
                Err(PostError::QueueFull | PostError::InvalidState) => return,
                Err(error) => panic!("post_send: {error:?}"),
            }
        }
    }

    fn check_completions<E: Ends>(&mut self, ends: &mut E, end: usize) {
        while let Some(completion) = ends.host_mut(end).completions.pop_front() {
            if completion.status != Status::Success {
                self.check_failure(end, &completion);
            } else if completion.is_send() {
                self.check_send(ends, end, &completion);
            } else {
                self.check_receive(ends, end, &completion);
            }
        }
        let events = &mut ends.host_mut(end).events;
        events.retain(|&event| event != Event::Established);
        assert!(self.broken || events.is_empty(), "{events:?}");
    }

    /// A request of a broken connection has failed: none after it has succeeded, and none fails
    /// twice.
    fn check_failure(&mut self, end: usize, completion: &Completion) {
        assert!(self.broken, "{completion:?}");
        let side = &mut self.sides[end];
        let index = usize::try_from(completion.wr_id).expect("an index");
        let (posted, failed, succeeded) = if completion.is_send() {
            let next = side.awaited.front().copied().unwrap_or(side.posted);
            (side.posted, &mut side.sends_failed, next)
        } else {
            (
                side.receives_posted,
                &mut side.receives_failed,
                side.received,
            )
        };
        let first = index - *failed;
        assert!(
            first <= succeeded && index < posted,
            "{completion:?} after {succeeded}"
        );
        *failed += 1;
        let may_be_first = matches!(
            completion.status,
            Status::RetryExceeded | Status::RnrRetryExceeded
        );
        let flushed = completion.status == Status::WorkRequestFlushed;
        assert!(flushed || (may_be_first && *failed == 1), "{completion:?}");
    }

    fn check_send<E: Ends>(&mut self, ends: &E, end: usize, completion: &Completion) {
        let side = &mut self.sides[end];
        let index = side.awaited.pop_front().expect("a completion is awaited");
        assert_eq!(completion.wr_id, index as u64, "completions out of order");
        let op = &side.operations[index];
        let expected = match op.kind {
            Kind::Send => CompletionOp::Send,
            Kind::Write => CompletionOp::Write,
            Kind::Read => CompletionOp::Read,
            Kind::CompareSwap { .. } => CompletionOp::CompareSwap,
            Kind::FetchAdd { .. } => CompletionOp::FetchAdd,
        };
        assert_eq!(completion.op, expected);
        assert_eq!(completion.byte_len as usize, op.len);
        self.check_sink(ends, end, index);
        self.check_delivered(ends, end, index);
    }

    /// The payload of a send or write that has completed is in its place at the peer.
    fn check_delivered<E: Ends>(&self, ends: &E, end: usize, index: usize) {
        let (side, peer) = (&self.sides[end], &self.sides[1 - end]);
        let op = &side.operations[index];
        let (region, at) = match op.kind {
            Kind::Write => (peer.inbox, op.remote),
            Kind::Send => {
                let mut receives = peer.receives.iter();
                let receive = receives.find(|receive| receive.operation == index);
                (peer.buffers, receive.expect("a receive request").at)
            }
            _ => return,
        };
        let got = &ends.host(1 - end).octets(region)[at..at + op.len];
        let sent = &ends.host(end).octets(side.source)[op.local..op.local + op.len];
        assert_eq!(got, sent, "operation {index} is complete");
    }

    /// A read or atomic that has completed has its answer in place.
    fn check_sink<E: Ends>(&self, ends: &E, end: usize, index: usize) {
        let (side, peer) = (&self.sides[end], &self.sides[1 - end]);
        let op = &side.operations[index];
        let sink = &ends.host(end).octets(side.sink);
        match op.kind {
            Kind::Read => {
                let export = ends.host(1 - end).octets(peer.export);
                let wanted = &export[op.remote..op.remote + op.len];
                assert_eq!(&sink[op.local..op.local + op.len], wanted, "read {index}");
            }
            Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => {
                let original = &sink[op.local..op.local + 8];
                assert_eq!(original, op.original.to_ne_bytes(), "atomic {index}");
            }
            Kind::Send | Kind::Write => {}
        }
    }

    fn check_receive<E: Ends>(&mut self, ends: &E, end: usize, completion: &Completion) {
        let peer_source = self.sides[1 - end].source;
        let source = ends.host(1 - end).octets(peer_source);
        let side = &self.sides[end];
        let receive = &side.receives[side.received];
        let op = &self.sides[1 - end].operations[receive.operation];
        assert_eq!(
            completion.wr_id, side.received as u64,
            "receives out of order"
        );
        assert_eq!(completion.byte_len as usize, op.len);
        assert_eq!(completion.imm, op.imm);
        assert_eq!(completion.solicited, op.flags.solicited);
        if op.kind == Kind::Send {
            assert_eq!(completion.op, CompletionOp::Recv);
            let buffers = ends.host(end).octets(side.buffers);
            let got = &buffers[receive.at..receive.at + op.len];
            assert_eq!(got, &source[op.local..op.local + op.len]);
            let rest = &buffers[receive.at + op.len..receive.at + receive.capacity];
            assert!(
                rest.iter().all(|&octet| octet == 0xcc),
                "beyond the message"
            );
        } else {
            assert_eq!(completion.op, CompletionOp::RecvWriteImm);
        }
        let upto = receive.operation;
        self.check_writes(ends, end, upto + 1);
        self.sides[end].received += 1;
    }

    /// Everything that the peer wrote before its operation `upto` is in place.
    fn check_writes<E: Ends>(&mut self, ends: &E, end: usize, upto: usize) {
        let peer = &self.sides[1 - end];
        let source = ends.host(1 - end).octets(peer.source);
        let side = &self.sides[end];
        let inbox = ends.host(end).octets(side.inbox);
        for op in &peer.operations[side.writes_checked..upto] {
            if op.kind == Kind::Write {
                let got = &inbox[op.remote..op.remote + op.len];
                assert_eq!(got, &source[op.local..op.local + op.len]);
            }
        }
        self.sides[end].writes_checked = upto;
    }

    /// Compares all memory with the model.
    ///
    /// # Panics
    /// When it differs.
    pub fn check_memory<E: Ends>(&mut self, ends: &E) {
        for end in 0..2 {
            for index in 0..self.sides[end].operations.len() {
                self.check_sink(ends, end, index);
            }
            let all = self.sides[1 - end].operations.len();
            self.check_writes(ends, end, all);
            let side = &self.sides[end];
            let words = ends.host(end).octets(side.words);
            let model: Vec<u8> = side
                .words_at_end
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect();
            assert_eq!(words, model, "atomics ran not exactly once");
        }
    }

    /// Runs a part of the exchange, breaks the connection, and looks at what is left.
    ///
    /// # Panics
    /// When a request is lost or ends twice, or memory holds what was not sent.
    pub fn run_and_break(&mut self, world: &mut World, after_ns: u64, how: Breakage) {
        world.run_until(after_ns, |world| {
            self.pump(world);
            false
        });
        self.expect_failures();
        match how {
            Breakage::Error(end) => {
                let (conn, host) = world.split(end);
                conn.to_error(host);
            }
            Breakage::Kill(end) => world.kill(end),
            Breakage::Close(end) => world.conn(end).close(),
            Breakage::Cut => world.blackout(u64::MAX),
        }
        world.run_until(BROKEN_NS, |world| {
            self.pump(world);
            false
        });
        self.check_broken(world);
    }

    /// From now on requests may fail.
    pub fn expect_failures(&mut self) {
        self.broken = true;
    }

    /// Looks at what is left of a broken connection, which ends here.
    ///
    /// # Panics
    /// When a request is lost or ends twice, or memory holds what was not sent.
    pub fn check_broken<E: Ends>(&mut self, ends: &mut E) {
        for end in 0..2 {
            if let Some((conn, host)) = ends.alive(end) {
                conn.to_error(host);
                self.check_completions(ends, end);
                let side = &self.sides[end];
                let unsuccessful = side
                    .awaited
                    .iter()
                    .all(|&op| op + side.sends_failed >= side.posted);
                assert!(unsuccessful, "a send was lost: {:?}", side.awaited);
                let ended = side.received + side.receives_failed;
                assert_eq!(ended, side.receives_posted, "a receive was lost");
            }
            self.check_partial_memory(ends, end);
        }
    }

    /// What the peer wrote is what it sent, as far as it came; its atomics ran in their order, each
    /// once.
    fn check_partial_memory<E: Ends>(&self, ends: &E, end: usize) {
        let (side, peer) = (&self.sides[end], &self.sides[1 - end]);
        let source = ends.host(1 - end).octets(peer.source);
        let inbox = ends.host(end).octets(side.inbox);
        for op in peer.operations.iter().filter(|op| op.kind == Kind::Write) {
            let got = &inbox[op.remote..op.remote + op.len];
            let sent = &source[op.local..op.local + op.len];
            let fits = got
                .iter()
                .zip(sent)
                .all(|(got, sent)| got == sent || *got == 0xdd);
            assert!(fits, "octets that were not sent");
        }
        let words = ends.host(end).octets(side.words);
        let reached = (0..=peer.operations.len()).any(|count| {
            let model = final_words(&peer.operations[..count]);
            words
                .chunks(8)
                .zip(model)
                .all(|(got, word)| got == word.to_ne_bytes())
        });
        assert!(reached, "atomics out of order or twice");
    }

    /// Runs the whole exchange.
    ///
    /// # Panics
    /// When it does not end within `limit_ns` or not as the model says.
    pub fn run(&mut self, world: &mut World, limit_ns: u64) {
        let done = world.run_until(limit_ns, |world| {
            self.pump(world);
            self.is_done(world)
        });
        assert!(done, "not done: {}\n{}", self.progress(), world.summary());
        self.check_memory(world);
    }

    /// How far both ends have come.
    pub fn progress(&self) -> String {
        let progress = self.sides.each_ref().map(|side| {
            (
                side.posted,
                side.awaited.front().copied(),
                side.receives_posted,
                side.received,
            )
        });
        format!("{progress:?}")
    }
}

/// A piece of a region as a list of one to three elements, some perhaps empty.
fn split(key: u32, at: usize, len: usize, rng: &mut Rng) -> Vec<Sge> {
    let mut cuts = vec![0, len];
    for _ in 0..rng.below(3) {
        cuts.push(rng.below_len(len + 1));
    }
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|cut| Sge {
            addr: SimHost::base(key) + (at + cut[0]) as u64,
            length: u32::try_from(cut[1] - cut[0]).unwrap_or(0),
            lkey: key,
        })
        .collect()
}
