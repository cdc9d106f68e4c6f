//! Who may touch which octets: every operation with every combination of rights, every kind of key,
//! and bounds at the edge. What is allowed works; what is not gives the documented completion at
//! both ends and changes no octet at either.

use urdma_engine::{
    Access, AsyncKind, QpModify, QpState, RemoteAddr, SendOp, Sge, Status, WindowBind,
};

use crate::rig::{engine, instance, until, End};

/// Octets of each end; the middle third is what the peer is offered.
const OCTETS: usize = 192;
const OFFERED: usize = 64;
/// What the memories hold before each operation.
const TARGET: u8 = 0x5a;
const SOURCE: u8 = 0xa7;
const WORD: u64 = u64::from_ne_bytes([TARGET; 8]);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
}

const OPS: [Op; 5] = [
    Op::Write,
    Op::Read,
    Op::CompareSwap,
    Op::FetchAdd,
    Op::AtomicWrite,
];

impl Op {
    fn needs(self) -> Access {
        match self {
            Op::Write | Op::AtomicWrite => Access::REMOTE_WRITE,
            Op::Read => Access::REMOTE_READ,
            Op::CompareSwap | Op::FetchAdd => Access::REMOTE_ATOMIC,
        }
    }

    fn is_word(self) -> bool {
        !matches!(self, Op::Write | Op::Read)
    }

    fn request(self, remote: RemoteAddr) -> SendOp {
        match self {
            Op::Write => SendOp::Write { remote },
            Op::Read => SendOp::Read { remote },
            Op::CompareSwap => SendOp::CompareSwap {
                remote,
                compare: WORD,
                swap: 1,
            },
            Op::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            Op::AtomicWrite => SendOp::AtomicWrite {
                remote,
                octets: [SOURCE; 8],
            },
        }
    }

    /// What the word or the octets at the target are afterwards.
    fn leaves(self, length: usize) -> Vec<u8> {
        match self {
            Op::Write | Op::AtomicWrite => vec![SOURCE; length],
            Op::Read => vec![TARGET; length],
            Op::CompareSwap => 1u64.to_ne_bytes().to_vec(),
            Op::FetchAdd => (WORD + 1).to_ne_bytes().to_vec(),
        }
    }

    /// What the initiator's octets are afterwards.
    fn brings(self) -> u8 {
        match self {
            Op::Write | Op::AtomicWrite => SOURCE,
            Op::Read | Op::CompareSwap | Op::FetchAdd => TARGET,
        }
    }
}

/// An initiator, and a target that offers the middle of its memory.
struct Bench {
    initiator: End,
    target: End,
    /// Another queue pair of the target's protection domain.
    sibling: End,
    /// A queue pair and a region of another protection domain of the target's process.
    stranger: End,
    psn: u32,
}

impl Bench {
    fn new() -> Self {
        let instance = instance();
        let initiator = End::new(engine(&instance, 1), OCTETS);
        let target = End::new(engine(&instance, 2), OCTETS);
        let sibling = End::in_domain(target.engine.clone(), target.pd, OCTETS);
        let stranger = End::new(target.engine.clone(), OCTETS);
        sibling.init(Access::all());
        sibling.connect(initiator.qp.number().to_u32());
        Self {
            initiator,
            target,
            sibling,
            stranger,
            psn: 0,
        }
    }

    /// Both ends in RTS again, with fresh memory and no events; the target grants `access`.
    fn reconnect(&mut self, access: Access) {
        self.psn += 1000;
        for end in [&mut self.initiator, &mut self.target] {
            let reset = QpModify {
                state: Some(QpState::Reset),
                ..QpModify::default()
            };
            end.engine.modify_qp(&end.qp, &reset).unwrap();
            end.init(access);
            end.events.0.lock().unwrap().clear();
        }
        self.initiator.memory.fill(SOURCE);
        self.target.memory.fill(TARGET);
        self.initiator
            .connect_at(self.target.qp.number().to_u32(), self.psn);
        self.target
            .connect_at(self.initiator.qp.number().to_u32(), self.psn);
    }

    /// A region over what the target offers.
    fn offer(&self, access: Access) -> u32 {
        let addr = self.target.remote(OFFERED).to;
        let engine = &self.target.engine;
        let keys = engine.register_mr(self.target.pd, addr, OFFERED as u64, addr, access);
        keys.unwrap().rkey
    }

    /// A window over what the target offers, bound by a request of `binder`.
    fn open(&self, binder: &End, is_type_2: bool, access: Access) -> u32 {
        let key = self.window(is_type_2);
        let bind = WindowBind {
            key,
            lkey: self.target.key,
            access: access.bits(),
            addr: self.target.remote(OFFERED).to,
            len: OFFERED as u64,
        };
        binder.post(50, SendOp::BindWindow(bind), &[]).unwrap();
        binder.expect(50, Status::Success);
        key
    }

    fn window(&self, is_type_2: bool) -> u32 {
        let engine = &self.target.engine;
        engine.alloc_window(self.target.pd, is_type_2).unwrap()
    }

    /// Does `op` on `length` octets at `to`, and checks what comes of it.
    fn check(&self, op: Op, key: u32, to: u64, length: usize, allowed: bool, what: &str) {
        let what = format!("{op:?} of {length} octets: {what}");
        let (initiator, target) = (&self.initiator, &self.target);
        target.receive(9, &[target.sge(0, 8)]).unwrap();
        let list = [initiator.sge(0, length)];
        let list = if op == Op::AtomicWrite {
            &[]
        } else {
            &list[..]
        };
        let remote = RemoteAddr { stag: key, to };
        initiator.post(1, op.request(remote), list).unwrap();
        let status = initiator.wait(1)[0].completion.status;
        let mut expected = vec![TARGET; OCTETS];
        let mut brought = vec![SOURCE; OCTETS];
        if allowed {
            assert_eq!(status, Status::Success, "{what}");
            if length > 0 {
                let at = (to - target.remote(0).to) as usize;
                expected[at..at + length].copy_from_slice(&op.leaves(length));
            }
            brought[..length].fill(op.brings());
        } else {
            assert_eq!(status, Status::RemoteAccessError, "{what}");
            target.expect(9, Status::WorkRequestFlushed);
            let events = target.events.0.lock().unwrap();
            let told = |kind| events.iter().any(|event| event.kind == kind);
            assert!(told(AsyncKind::QpAccessError), "{what}: {events:?}");
        }
        for (end, wanted) in [(initiator, &brought), (target, &expected)] {
            let found: Vec<u8> = (0..OCTETS).map(|at| end.octet(at)).collect();
            assert_eq!(&found, wanted, "{what}");
        }
    }

    /// [`Bench::check`] of a word of what is offered.
    fn check_word(&self, op: Op, key: u32, allowed: bool, what: &str) {
        let to = self.target.remote(OFFERED + 8).to;
        self.check(op, key, to, 8, allowed, what);
    }
}

/// Every combination of the rights that verbs let a region have.
fn region_rights() -> impl Iterator<Item = Access> {
    let bits = Access::LOCAL_WRITE.union(Access::REMOTE).bits();
    (0..=bits).filter_map(Access::from_bits).filter(|access| {
        access.contains(Access::LOCAL_WRITE) || !access.intersects(Access::REMOTE_CHANGE)
    })
}

#[test]
fn every_operation_needs_its_right_of_the_region_and_of_the_queue_pair() {
    let mut bench = Bench::new();
    let remote = (0..8).filter_map(|bits| Access::from_bits(bits << 1));
    for granted in remote {
        for rights in region_rights() {
            let key = bench.offer(rights);
            for op in OPS {
                bench.reconnect(granted);
                let allowed = granted.contains(op.needs()) && rights.contains(op.needs());
                let what = format!("region {rights:?}, queue pair {granted:?}");
                bench.check_word(op, key, allowed, &what);
            }
            bench.target.engine.deregister_mr(key).unwrap();
        }
    }
}

#[test]
fn every_kind_of_key_opens_what_it_is_for_and_nothing_else() {
    type MakeKey = fn(&Bench) -> u32;
    let all = Access::all();
    let kinds: [(&str, bool, MakeKey); 10] = [
        ("a region", true, |bench| bench.offer(Access::all())),
        ("a region of another protection domain", false, |bench| {
            let addr = bench.target.remote(OFFERED).to;
            let (engine, pd) = (&bench.stranger.engine, bench.stranger.pd);
            let keys = engine.register_mr(pd, addr, OFFERED as u64, addr, Access::all());
            keys.unwrap().rkey
        }),
        ("a guessed key", false, |bench| {
            bench.offer(Access::all()) ^ 1
        }),
        ("the key of a region that has ended", false, |bench| {
            let key = bench.offer(Access::all());
            bench.target.engine.deregister_mr(key).unwrap();
            key
        }),
        ("a window of type 1", true, |bench| {
            bench.open(&bench.target, false, Access::REMOTE)
        }),
        ("a window of type 1 that is not bound", false, |bench| {
            bench.window(false)
        }),
        ("a window of type 2", true, |bench| {
            bench.open(&bench.target, true, Access::REMOTE)
        }),
        ("a window of type 2 that is not bound", false, |bench| {
            bench.window(true)
        }),
        ("a window of another queue pair", false, |bench| {
            bench.open(&bench.sibling, true, Access::REMOTE)
        }),
        ("an invalidated window", false, |bench| {
            let key = bench.open(&bench.target, true, Access::REMOTE);
            let invalidate = SendOp::LocalInvalidate { stag: key };
            bench.target.post(51, invalidate, &[]).unwrap();
            bench.target.expect(51, Status::Success);
            key
        }),
    ];
    let mut bench = Bench::new();
    for (what, allowed, key) in kinds {
        for op in OPS {
            bench.reconnect(all);
            let key = key(&bench);
            bench.check_word(op, key, allowed, what);
        }
    }
}

#[test]
fn every_right_of_a_window_counts() {
    let mut bench = Bench::new();
    for is_type_2 in [false, true] {
        for rights in (0..8).filter_map(|bits| Access::from_bits(bits << 1)) {
            for op in OPS {
                bench.reconnect(Access::all());
                let key = bench.open(&bench.target, is_type_2, rights);
                let allowed = rights.contains(op.needs());
                bench.check_word(op, key, allowed, &format!("window {rights:?}"));
            }
        }
    }
}

#[test]
fn bounds_hold_to_the_octet() {
    let mut bench = Bench::new();
    for by_window in [false, true] {
        for op in OPS {
            let first = bench.target.remote(OFFERED).to;
            let words = [
                (first, 8, true),
                (first + 56, 8, true),
                (first + 64, 8, false),
                (first - 8, 8, false),
                (u64::MAX - 7, 8, false),
                (0, 8, false),
            ];
            let octets = [
                (first, 64, true),
                (first, 65, false),
                (first + 1, 64, false),
                (first - 1, 64, false),
                (first + 63, 1, true),
                (first + 64, 1, false),
                // The sum of address and length does not fit 64 bits.
                (u64::MAX - 3, 8, false),
                (u64::MAX, 1, false),
                // No octet: nothing is looked at.
                (u64::MAX, 0, true),
            ];
            let cases = if op.is_word() {
                &words[..]
            } else {
                &octets[..]
            };
            for &(to, length, allowed) in cases {
                bench.reconnect(Access::all());
                let key = if by_window {
                    bench.open(&bench.target, true, Access::REMOTE)
                } else {
                    bench.offer(Access::all())
                };
                let what = format!("at offset {} of what is offered", to.wrapping_sub(first));
                bench.check(op, key, to, length, allowed, &what);
            }
        }
    }
}

#[test]
fn lists_of_this_end_are_checked_as_strictly() {
    let mut bench = Bench::new();
    let own = Bench::offer;
    type Spoil = fn(&Bench, Sge) -> Sge;
    let cases: [(&str, Spoil); 5] = [
        ("another protection domain", |bench, sge| Sge {
            lkey: bench.stranger.key,
            addr: bench.stranger.remote(0).to,
            ..sge
        }),
        ("a guessed key", |_, sge| Sge {
            lkey: sge.lkey ^ 1,
            ..sge
        }),
        ("one octet too many", |_, sge| Sge {
            length: OFFERED as u32 + 1,
            ..sge
        }),
        ("an octet before", |_, sge| Sge {
            addr: sge.addr - 1,
            ..sge
        }),
        ("address and length that do not fit 64 bits", |_, sge| Sge {
            addr: u64::MAX - 3,
            ..sge
        }),
    ];
    for (what, spoil) in cases {
        for is_sink in [false, true] {
            bench.reconnect(Access::all());
            let sge = Sge {
                addr: bench.target.remote(OFFERED).to,
                length: 8,
                lkey: own(&bench, Access::all()),
            };
            let spoilt = spoil(&bench, sge);
            let op = if is_sink {
                SendOp::Read {
                    remote: bench.initiator.remote(0),
                }
            } else {
                SendOp::Write {
                    remote: bench.initiator.remote(0),
                }
            };
            bench.target.post(1, op, &[spoilt]).unwrap();
            let status = bench.target.wait(1)[0].completion.status;
            assert_eq!(status, Status::LocalProtectionError, "{what}, {is_sink}");
            assert!(bench.initiator.memory.iter().all(|&octet| octet == SOURCE));
            assert!(bench.target.memory.iter().all(|&octet| octet == TARGET));
        }
    }
}

#[test]
fn message_is_not_written_where_this_end_may_not_write() {
    let mut bench = Bench::new();
    bench.reconnect(Access::all());
    let read_only = Sge {
        addr: bench.target.remote(OFFERED).to,
        length: 64,
        lkey: bench.offer(Access::REMOTE_READ),
    };
    bench.target.receive(2, &[read_only]).unwrap();
    let list = [bench.initiator.sge(0, 8)];
    bench.initiator.post(1, SendOp::Send, &list).unwrap();
    bench.target.expect(2, Status::LocalProtectionError);
    bench.initiator.expect(1, Status::RemoteOperationError);
    assert!(bench.target.memory.iter().all(|&octet| octet == TARGET));
    until("the target in ERR", || {
        bench.target.engine.query_qp(&bench.target.qp).0 == QpState::Error
    });
}
