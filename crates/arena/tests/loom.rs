//! The ring, the state word and parking under every interleaving (with up to a few pre-emptions)
//! that the memory model allows: `RUSTFLAGS="--cfg loom" cargo test --release -p urdma-arena --test
//! loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use urdma_arena::layout::FrameIndex;
use urdma_arena::park::{self, Bell};
use urdma_arena::ring::{Descriptor, Peek, Ring};
use urdma_arena::short::{Producer, ShortRing, Taken, SHORT_CAPACITY};
use urdma_arena::state::{self, FrameState, Word};
use urdma_arena::steps::{Live, Steps};
use urdma_types::SlotId;

const CELLS: usize = 2;

fn slot(index: u8) -> SlotId {
    SlotId::new(index).unwrap()
}

fn entry(k: u16) -> Descriptor {
    Descriptor {
        frame: FrameIndex::new(slot(1), k),
        generation_low: 1,
    }
}

struct Memory {
    cells: Vec<AtomicU64>,
    tail: AtomicU64,
    frame: AtomicU64,
    park: AtomicU32,
    futex: (Mutex<()>, Condvar),
}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect(),
            tail: AtomicU64::new(0),
            frame: AtomicU64::new(Word::held(0, slot(1)).bits()),
            park: AtomicU32::new(park::RUNNING),
            futex: (Mutex::new(()), Condvar::new()),
        })
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.cells, &self.tail)
    }

    /// What FUTEX_WAIT does: compares and sleeps in one step.
    fn futex_wait(&self) {
        let guard = self.futex.0.lock().unwrap();
        if self.park.load(Ordering::SeqCst) == park::PARKED {
            drop(self.futex.1.wait(guard).unwrap());
        }
    }

    fn futex_wake(&self) {
        drop(self.futex.0.lock().unwrap());
        self.futex.1.notify_all();
    }
}

/// Takes up to `most` entries from `head` on; returns them and the new head.
fn drain(ring: Ring<'_>, mut head: u64, most: usize) -> (Vec<u16>, u64) {
    let mut seen = Vec::new();
    while seen.len() < most {
        match ring.peek(head) {
            Peek::Entry(descriptor) => {
                seen.push(descriptor.frame.k());
                ring.clear(head);
                head += 1;
            }
            Peek::Empty => break,
            Peek::Corrupt => panic!("corrupt cell"),
        }
    }
    (seen, head)
}

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

#[test]
fn ring_two_producers_and_a_consumer_each_entry_arrives_once() {
    model(3, || {
        let memory = Memory::new();
        let producers: Vec<_> = [10, 20]
            .map(|k| {
                let memory = memory.clone();
                thread::spawn(move || memory.ring().push::<Live>(entry(k)).is_ok())
            })
            .into();
        let (mut seen, head) = drain(memory.ring(), 0, 1);
        for producer in producers {
            assert!(producer.join().unwrap(), "two entries fit");
        }
        let (rest, head) = drain(memory.ring(), head, CELLS);
        seen.extend(rest);
        seen.sort_unstable();
        assert_eq!(seen, [10, 20]);
        assert_eq!(memory.ring().find_head(), head);
    });
}

#[test]
fn ring_at_the_end_of_a_lap_refuses_or_delivers_but_never_loses() {
    model(3, || {
        let memory = Memory::new();
        // One of two cells is taken, the tail is at the last cell of lap 0.
        memory.ring().push::<Live>(entry(1)).unwrap();
        let producers: Vec<_> = [10, 20]
            .map(|k| {
                let memory = memory.clone();
                thread::spawn(move || memory.ring().push::<Live>(entry(k)).is_ok().then_some(k))
            })
            .into();
        let (mut seen, head) = drain(memory.ring(), 0, 2);
        let mut sent: Vec<u16> = producers
            .into_iter()
            .filter_map(|p| p.join().unwrap())
            .collect();
        seen.extend(drain(memory.ring(), head, CELLS).0);
        assert_eq!(seen.remove(0), 1);
        seen.sort_unstable();
        sent.sort_unstable();
        assert_eq!(seen, sent);
        assert!(!sent.is_empty());
    });
}

/// Ends the thread, as SIGKILL would, at its first arrival at one label.
struct StopAt<const LABEL: usize>;
const LABELS: [&str; 6] = [
    "ring: tail seen",
    "ring: entry published",
    "ring: tail moved",
    "send: in flight",
    "short: written",
    "short: published",
];

impl<const LABEL: usize> Steps for StopAt<LABEL> {
    fn at(label: &'static str) {
        if label == LABELS[LABEL] {
            resume_unwind(Box::new(()));
        }
    }
}

fn dies(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

fn ring_with_a_producer_that_stops<S: Steps + 'static>(published: bool) {
    model(3, move || {
        let memory = Memory::new();
        let doomed = {
            let memory = memory.clone();
            thread::spawn(move || {
                dies(|| {
                    let _ = memory.ring().push::<S>(entry(10));
                });
            })
        };
        let other = {
            let memory = memory.clone();
            thread::spawn(move || memory.ring().push::<Live>(entry(20)).unwrap())
        };
        let (mut seen, mut head) = drain(memory.ring(), 0, 1);
        doomed.join().unwrap();
        other.join().unwrap();
        let rest = drain(memory.ring(), head, CELLS);
        seen.extend(rest.0);
        head = rest.1;
        // The ring goes on for another lap.
        memory.ring().push::<Live>(entry(30)).unwrap();
        memory.ring().push::<Live>(entry(31)).unwrap();
        seen.extend(drain(memory.ring(), head, CELLS).0);
        seen.sort_unstable();
        let expected: &[u16] = if published {
            &[10, 20, 30, 31]
        } else {
            &[20, 30, 31]
        };
        assert_eq!(seen, expected);
    });
}

#[test]
fn ring_producer_that_stops_before_its_claim_blocks_no_other() {
    ring_with_a_producer_that_stops::<StopAt<0>>(false);
}

#[test]
fn ring_producer_that_stops_before_moving_the_tail_blocks_no_other() {
    ring_with_a_producer_that_stops::<StopAt<1>>(true);
}

#[test]
fn ring_producer_that_stops_after_moving_the_tail_blocks_no_other() {
    ring_with_a_producer_that_stops::<StopAt<2>>(true);
}

/// What `Endpoint::send` does with the state word and the ring.
fn send<S: Steps>(memory: &Memory, from: SlotId, to: SlotId) {
    let generation = state::publish(&memory.frame, 0, from, to);
    S::at("send: in flight");
    memory
        .ring()
        .push::<S>(Descriptor {
            generation_low: 1,
            ..entry(0)
        })
        .unwrap();
    if park::ring_after_rmw(&memory.park) == Bell::Vacant {
        let _ = state::unpublish(&memory.frame, generation, from, to);
    }
}

/// What `Endpoint::recv` and `release` do; true when the frame was taken.
fn receive(memory: &Memory, me: SlotId, head: u64) -> bool {
    let Peek::Entry(descriptor) = memory.ring().peek(head) else {
        return false;
    };
    let taken = state::take(&memory.frame, descriptor.generation_low, me);
    memory.ring().clear(head);
    if let Some((_, generation)) = taken {
        state::release(&memory.frame, generation);
    }
    true
}

fn dead_sender_and_live_receiver<S: Steps + 'static>() {
    let (s, d) = (slot(1), slot(2));
    model(3, move || {
        let memory = Memory::new();
        let receiver = {
            let memory = memory.clone();
            thread::spawn(move || receive(&memory, d, 0))
        };
        let sender = {
            let memory = memory.clone();
            thread::spawn(move || dies(|| send::<S>(&memory, s, d)))
        };
        sender.join().unwrap();
        // What the reaper does for slot s.
        let seen = state::load(&memory.frame);
        let free = match seen.state() {
            FrameState::Held(holder) => holder == s,
            FrameState::InFlight { from, .. } => {
                from == s
                    && !memory.ring().contains(Descriptor {
                        generation_low: 1,
                        ..entry(0)
                    })
            }
            _ => false,
        };
        if free {
            state::reap(&memory.frame, seen);
        }
        if !receiver.join().unwrap() {
            receive(&memory, d, 0);
        }
        assert_eq!(state::load(&memory.frame).state(), FrameState::Free);
    });
}

#[test]
fn frame_of_a_sender_dead_before_the_claim_is_freed() {
    dead_sender_and_live_receiver::<StopAt<3>>();
    dead_sender_and_live_receiver::<StopAt<0>>();
}

#[test]
fn frame_of_a_sender_dead_after_the_claim_is_delivered_and_freed() {
    dead_sender_and_live_receiver::<StopAt<1>>();
    dead_sender_and_live_receiver::<StopAt<2>>();
}

#[test]
fn frame_to_a_dead_receiver_is_freed_or_comes_back() {
    let (s, d) = (slot(1), slot(2));
    model(3, move || {
        let memory = Memory::new();
        let sender = {
            let memory = memory.clone();
            thread::spawn(move || send::<Live>(&memory, s, d))
        };
        // What the reaper does for slot d.
        memory.park.store(park::VACANT, Ordering::SeqCst);
        loom::sync::atomic::fence(Ordering::SeqCst);
        let seen = state::load(&memory.frame);
        if matches!(seen.state(), FrameState::InFlight { to, .. } if to == d) {
            state::reap(&memory.frame, seen);
        }
        sender.join().unwrap();
        let end = state::load(&memory.frame).state();
        assert!(
            end == FrameState::Free || end == FrameState::Held(s),
            "{end:?}"
        );
    });
}

#[test]
fn receiver_and_a_sender_that_takes_back_exactly_one_gets_the_frame() {
    let (s, d) = (slot(1), slot(2));
    model(3, move || {
        let memory = Memory::new();
        let generation = state::publish(&memory.frame, 0, s, d);
        let receiver = {
            let memory = memory.clone();
            thread::spawn(move || state::take(&memory.frame, 1, d).is_some())
        };
        let back = state::unpublish(&memory.frame, generation, s, d);
        assert_ne!(receiver.join().unwrap(), back);
    });
}

#[test]
fn parking_consumer_never_misses_an_entry() {
    model(3, || {
        let memory = Memory::new();
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                memory.ring().push::<Live>(entry(10)).unwrap();
                if park::ring_after_rmw(&memory.park) == Bell::MustWake {
                    memory.futex_wake();
                }
            })
        };
        // A lost wake-up is a deadlock, which the model reports.
        while memory.ring().is_empty_at(0) {
            assert!(park::announce(&memory.park));
            if memory.ring().is_empty_at(0) {
                memory.futex_wait();
            }
            park::cancel(&memory.park);
        }
        producer.join().unwrap();
    });
}

#[test]
fn parking_consumer_never_misses_a_reason_of_its_own_process() {
    model(3, || {
        let memory = Memory::new();
        let flag = Arc::new(AtomicU32::new(0));
        let other = {
            let (memory, flag) = (memory.clone(), flag.clone());
            thread::spawn(move || {
                flag.store(1, Ordering::Relaxed);
                if park::ring(&memory.park) == Bell::MustWake {
                    memory.futex_wake();
                }
            })
        };
        while flag.load(Ordering::Relaxed) == 0 {
            assert!(park::announce(&memory.park));
            if flag.load(Ordering::Relaxed) == 0 {
                memory.futex_wait();
            }
            park::cancel(&memory.park);
        }
        other.join().unwrap();
    });
}

#[test]
fn parking_two_producers_the_consumer_sees_both() {
    model(2, || {
        let memory = Memory::new();
        let producers: Vec<_> = [10, 20]
            .map(|k| {
                let memory = memory.clone();
                thread::spawn(move || {
                    memory.ring().push::<Live>(entry(k)).unwrap();
                    if park::ring_after_rmw(&memory.park) == Bell::MustWake {
                        memory.futex_wake();
                    }
                })
            })
            .into();
        let (mut seen, mut head) = (0, 0);
        while seen < 2 {
            let (entries, next) = drain(memory.ring(), head, CELLS);
            seen += entries.len();
            head = next;
            if seen < 2 && entries.is_empty() {
                assert!(park::announce(&memory.park));
                if memory.ring().is_empty_at(head) {
                    memory.futex_wait();
                }
                park::cancel(&memory.park);
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

/// Pushes a datagram of `len` octets, each of them `octet`.
fn push_short<S: Steps>(producer: &mut Producer<'_>, octet: u8, len: usize) -> bool {
    let octets = [octet; SHORT_CAPACITY];
    producer.push::<S>(slot(1), &octets, len).is_ok()
}

/// Takes what is there; the first octet of each, all of whose octets are the same.
fn take_shorts(ring: &ShortRing, head: &mut u32) -> Vec<u8> {
    let mut seen = Vec::new();
    let mut out = [0; SHORT_CAPACITY];
    loop {
        match ring.take(head, &mut out) {
            Taken::Empty => return seen,
            Taken::Short { from, len } => {
                assert_eq!(from, slot(1));
                assert!(out[..len].iter().all(|octet| *octet == out[0]));
                seen.push(out[0]);
            }
            Taken::Corrupt => panic!("corrupt cell"),
        }
    }
}

#[test]
fn short_ring_delivers_in_order_and_never_overwrites() {
    model(3, || {
        let ring = Arc::new(ShortRing::default());
        let producer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let mut producer = Producer::new(&ring);
                // One more than there are cells.
                (1..=3)
                    .filter(|octet| push_short::<Live>(&mut producer, *octet, SHORT_CAPACITY))
                    .collect::<Vec<u8>>()
            })
        };
        let mut head = 0;
        let mut seen = take_shorts(&ring, &mut head);
        let sent = producer.join().unwrap();
        seen.extend(take_shorts(&ring, &mut head));
        assert_eq!(seen, sent);
        assert!(sent.len() >= 2, "two fit");
        assert_eq!(ring.skip(), head);
    });
}

/// A producer that stops is followed by another, while the consumer takes what is there.
fn short_ring_with_a_producer_that_stops<S: Steps + 'static>(published: bool) {
    model(3, move || {
        let ring = Arc::new(ShortRing::default());
        let producers = {
            let ring = ring.clone();
            thread::spawn(move || {
                dies(|| {
                    push_short::<S>(&mut Producer::new(&ring), 10, 8);
                });
                // Only when it is known to be dead does the next one come.
                assert!(push_short::<Live>(&mut Producer::new(&ring), 20, 8));
            })
        };
        let mut head = 0;
        let mut seen = take_shorts(&ring, &mut head);
        producers.join().unwrap();
        seen.extend(take_shorts(&ring, &mut head));
        let expected: &[u8] = if published { &[10, 20] } else { &[20] };
        assert_eq!(seen, expected);
    });
}

#[test]
fn short_datagram_half_written_by_a_dead_process_is_not_received() {
    short_ring_with_a_producer_that_stops::<StopAt<4>>(false);
}

#[test]
fn short_datagram_of_the_dead_is_delivered_once_published() {
    short_ring_with_a_producer_that_stops::<StopAt<5>>(true);
}

#[test]
fn short_datagram_is_not_overtaken_by_a_frame() {
    model(3, || {
        let memory = Memory::new();
        let short = Arc::new(ShortRing::default());
        let producer = {
            let (memory, short) = (memory.clone(), short.clone());
            thread::spawn(move || {
                assert!(push_short::<Live>(&mut Producer::new(&short), 10, 1));
                memory.ring().push::<Live>(entry(20)).unwrap();
            })
        };
        // What `Endpoint::recv_any` does.
        let mut head = 0;
        let mut seen = take_shorts(&short, &mut head);
        if memory.ring().peek(0) != Peek::Empty {
            seen.extend(take_shorts(&short, &mut head));
            assert_eq!(seen, [10], "the frame comes next");
        }
        producer.join().unwrap();
    });
}

#[test]
fn parking_consumer_never_misses_a_short_datagram() {
    model(3, || {
        let memory = Memory::new();
        let ring = Arc::new(ShortRing::default());
        let producer = {
            let (memory, ring) = (memory.clone(), ring.clone());
            thread::spawn(move || {
                assert!(push_short::<Live>(&mut Producer::new(&ring), 10, 1));
                if park::ring(&memory.park) == Bell::MustWake {
                    memory.futex_wake();
                }
            })
        };
        // A lost wake-up is a deadlock, which the model reports.
        while !ring.has_entry() {
            assert!(park::announce(&memory.park));
            if !ring.has_entry() {
                memory.futex_wait();
            }
            park::cancel(&memory.park);
        }
        producer.join().unwrap();
    });
}

/// What the provider has between the ring and an application that sleeps in a completion channel.
struct Completions {
    memory: Arc<Memory>,
    /// The engine's lock.
    engine: Mutex<()>,
    /// How far the ring was read; written under the engine's lock.
    head: AtomicU64,
    /// The completion queue: what waits in it, and whether it is armed.
    queue: Mutex<(usize, bool)>,
    /// Events in the channel.
    channel: (Mutex<usize>, Condvar),
    has_ended: AtomicU32,
}

impl Completions {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(),
            engine: Mutex::new(()),
            head: AtomicU64::new(0),
            queue: Mutex::new((0, false)),
            channel: (Mutex::new(0), Condvar::new()),
            has_ended: AtomicU32::new(0),
        })
    }

    fn has_work(&self) -> bool {
        let head = self.head.load(Ordering::Acquire);
        !self.memory.ring().is_empty_at(head)
    }

    fn ring_bell(&self) {
        if park::ring(&self.memory.park) == Bell::MustWake {
            self.memory.futex_wake();
        }
    }

    /// `Shard::progress` and `Cq::push`, under the engine's lock: what has come is completed.
    fn progress(&self) {
        let head = self.head.load(Ordering::Relaxed);
        let (seen, head) = drain(self.memory.ring(), head, CELLS);
        self.head.store(head, Ordering::Release);
        let mut queue = self.queue.lock().unwrap();
        queue.0 += seen.len();
        if !seen.is_empty() && std::mem::take(&mut queue.1) {
            *self.channel.0.lock().unwrap() += 1;
            self.channel.1.notify_one();
        }
    }

    /// `ibv_poll_cq`: makes progress if no other thread does at the moment.
    fn poll(&self) -> usize {
        if self.queue.lock().unwrap().0 == 0 {
            if let Ok(_engine) = self.engine.try_lock() {
                self.progress();
            }
        }
        std::mem::take(&mut self.queue.lock().unwrap().0)
    }

    /// `ibv_req_notify_cq`: the thread of the process, which naps, has to be woken from now on
    /// (`Parker::hand_over`).
    fn arm(&self) {
        self.queue.lock().unwrap().1 = true;
        let _engine = self.engine.lock().unwrap();
        if park::announce(&self.memory.park) && self.has_work() {
            self.ring_bell();
        }
    }

    /// The process' own thread: a nap, which ends by itself, then it sleeps until the bell.
    fn run_thread(&self) {
        let mut naps = true;
        while self.has_ended.load(Ordering::Acquire) == 0 {
            {
                let _engine = self.engine.lock().unwrap();
                self.progress();
            }
            if std::mem::take(&mut naps) {
                continue;
            }
            assert!(park::announce(&self.memory.park));
            if !self.has_work() && self.has_ended.load(Ordering::Acquire) == 0 {
                self.memory.futex_wait();
            }
            park::cancel(&self.memory.park);
        }
    }
}

#[test]
fn application_that_arms_its_queue_polls_once_and_sleeps_is_woken() {
    model(2, || {
        let process = Completions::new();
        let thread = {
            let process = process.clone();
            thread::spawn(move || process.run_thread())
        };
        let sender = {
            let memory = process.memory.clone();
            thread::spawn(move || {
                memory.ring().push::<Live>(entry(10)).unwrap();
                if park::ring_after_rmw(&memory.park) == Bell::MustWake {
                    memory.futex_wake();
                }
            })
        };
        process.arm();
        if process.poll() == 0 {
            let mut events = process.channel.0.lock().unwrap();
            while *events == 0 {
                // A lost wake-up is a deadlock, which the model reports.
                events = process.channel.1.wait(events).unwrap();
            }
            drop(events);
            assert_eq!(process.poll(), 1);
        }
        process.has_ended.store(1, Ordering::Release);
        process.ring_bell();
        sender.join().unwrap();
        thread.join().unwrap();
    });
}
