//! Random clients and schedules; the faults that they must find.

use std::collections::{HashMap, HashSet};
use std::panic::{catch_unwind, AssertUnwindSafe};

use urdma_types::{seeds, Rng};

use super::device::{Memory, Posted};
use super::history::{Did, Event, History, Value};
use super::Finding;
use crate::fault::{Fault, Faults};
use crate::geometry::BUCKET_SLOTS;
use crate::slot::Slot;
use crate::{Blocks, Geometry, Operation, OperationError, Outcome, Step, HEADER_LEN};

/// Octets of the longest value.
const VALUE_LEN: usize = 24;
const VALUES: usize = 1024;
const KEYS: usize = 400;
const STEPS: u64 = 3000;
/// Operations on one key, and those of them without an end, after which no client begins another
/// one: the search for an order takes long otherwise.
const EVENTS: usize = 40;
const UNKNOWN: usize = 4;
const SLOTS: usize = 2 * BUCKET_SLOTS;

/// Each value repeats its number, so that parts of two of them are neither.
static VALUE_OCTETS: [[u8; VALUE_LEN]; VALUES] = {
    let mut values = [[0; VALUE_LEN]; VALUES];
    let mut n = 0;
    while n < VALUES {
        let mut at = 0;
        while at < VALUE_LEN {
            values[n][at] = (n % 251) as u8;
            values[n][at + 1] = (n / 251) as u8;
            at += 2;
        }
        n += 1;
    }
    values
};

static KEY_OCTETS: [[u8; 2]; KEYS] = {
    let mut keys = [[0; 2]; KEYS];
    let mut n = 0;
    while n < KEYS {
        keys[n] = (n as u16).to_ne_bytes();
        n += 1;
    }
    keys
};

fn value_of(value: Value) -> &'static [u8] {
    &VALUE_OCTETS[usize::from(value)][..VALUE_LEN - usize::from(value % 3) * 8]
}

fn number_of(octets: &[u8]) -> Option<Value> {
    let [low, high, ..] = *octets else {
        return None;
    };
    let value = u16::from(high) * 251 + u16::from(low);
    (usize::from(value) < VALUES && value_of(value) == octets).then_some(value)
}

/// An operation of a client.
struct Running {
    operation: Operation<'static>,
    key: usize,
    event: Event,
}

/// A client.
struct Client {
    blocks: Blocks,
    posted: Posted,
    running: Option<Running>,
}

struct World {
    geometry: Geometry,
    memory: Memory,
    clients: Vec<Client>,
    /// Keys that clients use, and what they did with each.
    keys: Vec<&'static [u8]>,
    histories: Vec<History>,
    values: Value,
    now: u64,
    crashes: u64,
    contended: u64,
    full: u64,
    attempts_max: u32,
    faults: Faults,
}

/// Keys of which two have the same fingerprint.
fn random_keys(geometry: &Geometry, count: usize, rng: &mut Rng) -> Vec<&'static [u8]> {
    let first = rng.below_len(KEYS);
    let all = (0..KEYS).map(|n| &KEY_OCTETS[(first + n) % KEYS][..]);
    let mut by_fingerprint = HashMap::new();
    let twins = all.clone().find_map(|key| {
        let fingerprint = geometry.places(key).fingerprint;
        Some((by_fingerprint.insert(fingerprint, key)?, key))
    });
    let twins = twins.into_iter().flat_map(|(one, other)| [one, other]);
    let mut keys: Vec<_> = twins.collect();
    for key in all {
        if keys.len() < count.max(2) && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

impl World {
    fn new(faults: Faults, rng: &mut Rng) -> Self {
        let geometry = Geometry {
            seed: rng.bits(),
            buckets: rng.between(2, 3) as u32,
            blocks: 4000,
            block_octets: 56,
            extent_blocks: rng.between(1, 3) as u32,
        };
        let mut words = vec![0; geometry.len_octets() as usize / 8];
        let header = geometry.header().unwrap();
        for (word, octets) in words.iter_mut().zip(header.chunks_exact(8)) {
            *word = u64::from_ne_bytes(octets.try_into().unwrap());
        }
        assert_eq!(Geometry::new(&header, geometry.len_octets()), Ok(geometry));
        let keys = random_keys(&geometry, [2, 3, 6, 24][rng.below_len(4)], rng);
        let mut world = Self {
            geometry,
            memory: Memory { words },
            clients: Vec::new(),
            histories: vec![History::default(); keys.len()],
            keys,
            values: 0,
            now: 0,
            crashes: 0,
            contended: 0,
            full: 0,
            attempts_max: [3, 256][rng.below_len(2)],
            faults,
        };
        for _ in 0..rng.between(2, 5) {
            let client = world.client();
            world.clients.push(client);
        }
        world
    }

    fn client(&self) -> Client {
        Client {
            blocks: Blocks::with(self.faults),
            posted: Posted::new(self.geometry.buffer_len()),
            running: None,
        }
    }

    /// Has a client begin an operation.
    fn begin(&mut self, at: usize, key: usize, did: Did) {
        let (geometry, octets) = (&self.geometry, self.keys[key]);
        let operation = match did {
            Did::Get(_) => Operation::get(geometry, octets),
            Did::Put(value, _) => Operation::put(geometry, octets, value_of(value)).unwrap(),
            Did::Delete(_) => Operation::delete(geometry, octets),
        };
        let operation = operation.with(self.faults, self.attempts_max);
        self.now += 1;
        let event = Event {
            begin: self.now,
            end: None,
            did,
        };
        let client = &mut self.clients[at];
        client.posted.post(operation.requests());
        client.running = Some(Running {
            operation,
            key,
            event,
        });
    }

    fn begin_any(&mut self, at: usize, rng: &mut Rng) {
        let key = rng.below_len(self.keys.len());
        let is_possible = usize::from(self.values) + 1 < VALUES - SLOTS;
        let events = &self.histories[key].events;
        let unknown = events.iter().filter(|event| event.end.is_none()).count();
        if !is_possible || events.len() >= EVENTS || unknown >= UNKNOWN {
            return;
        }
        let did = match rng.below(10) {
            0..4 => Did::Get(None),
            4..8 => {
                self.values += 1;
                Did::Put(self.values, None)
            }
            _ => Did::Delete(None),
        };
        self.begin(at, key, did);
    }

    /// Executes a word of a client's requests, and hands them over if they are complete.
    fn step(&mut self, at: usize, rng: &mut Rng) -> Result<(), Finding> {
        let client = &mut self.clients[at];
        let Some(running) = &mut client.running else {
            return Ok(());
        };
        client.posted.step(&mut self.memory, rng);
        if !client.posted.is_complete() {
            return Ok(());
        }
        let handled = running
            .operation
            .handle(&mut client.blocks, &mut client.posted.buffer);
        let did = match (handled, running.event.did) {
            (Ok(Step::Requests), _) => {
                client.posted.post(running.operation.requests());
                return Ok(());
            }
            (Ok(Step::Done(Outcome::Absent)), Did::Get(_)) => Did::Get(None),
            (Ok(Step::Done(Outcome::Found(octets))), Did::Get(_)) => {
                let value = number_of(octets).ok_or_else(|| format!("no value: {octets:?}"))?;
                Did::Get(Some(value))
            }
            (Ok(Step::Done(Outcome::Stored { replaced })), Did::Put(value, _)) => {
                Did::Put(value, Some(replaced))
            }
            (Ok(Step::Done(Outcome::Deleted { found })), Did::Delete(_)) => {
                Did::Delete(Some(found))
            }
            (Err(error @ (OperationError::Contended | OperationError::Full)), _) => {
                self.contended += u64::from(error == OperationError::Contended);
                self.full += u64::from(error == OperationError::Full);
                client.running = None;
                return Ok(());
            }
            (handled, did) => return Err(format!("{did:?} ends with {handled:?}")),
        };
        self.now += 1;
        let mut event = running.event;
        (event.end, event.did) = (Some(self.now), did);
        self.histories[running.key].events.push(event);
        client.running = None;
        Ok(())
    }

    /// Ends a client at once; another one begins.
    fn crash(&mut self, at: usize) {
        let new = self.client();
        let old = std::mem::replace(&mut self.clients[at], new);
        self.crashes += 1;
        if let Some(Running { key, event, .. }) = old.running {
            if !matches!(event.did, Did::Get(_)) {
                self.histories[key].events.push(event);
            }
        }
    }

    /// Has a client end an operation, while no other one works. Its outcome.
    fn finish(&mut self, at: usize, rng: &mut Rng) -> Result<(), Finding> {
        let words_max = 1_000_000;
        for _ in 0..words_max {
            if self.clients[at].running.is_none() {
                return Ok(());
            }
            self.step(at, rng)?;
        }
        Err("an operation does not end".into())
    }

    fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let first = 2 * HEADER_LEN / 8;
        let count = self.geometry.buckets as usize * BUCKET_SLOTS;
        let words = &self.memory.words[first..first + count];
        words.iter().filter_map(|word| Slot::decode(*word))
    }

    /// Nothing runs: each block is in one place, and, if no client has crashed, none is lost.
    fn account(&self) -> Result<(), Finding> {
        let mut used = HashSet::new();
        let free = self
            .clients
            .iter()
            .flat_map(|client| client.blocks.indices());
        let free: Vec<u32> = free.collect();
        let taken = self.memory.words[HEADER_LEN / 8] * u64::from(self.geometry.extent_blocks);
        let mut tentative = 0;
        for slot in self.slots() {
            tentative += u64::from(slot.is_tentative());
            // A client that has crashed, or has lost its slot, may have left it.
            if !slot.is_tentative() && !used.insert(slot.id().index) {
                return Err(format!("{slot:?}: its block is in two slots"));
            }
        }
        for block in free {
            if !used.insert(block) {
                return Err(format!("block {block} is free twice, or in use"));
            }
        }
        if self.crashes == 0 && (used.len() as u64 != taken || tentative > 0) {
            return Err(format!(
                "{} blocks of {taken} are left, {tentative} slots are tentative",
                used.len()
            ));
        }
        Ok(())
    }

    /// All operations end; then a client that is alone can use every slot.
    fn drain(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        for at in 0..self.clients.len() {
            self.finish(at, rng)?;
        }
        self.account()?;
        for key in 0..self.keys.len() {
            self.begin(0, key, Did::Get(None));
            self.finish(0, rng)?;
        }
        for history in &self.histories {
            if !history.is_linearizable() {
                return Err(format!("no register does this: {history:?}"));
            }
        }
        for key in 0..self.keys.len() {
            self.begin(0, key, Did::Delete(None));
            self.finish(0, rng)?;
        }
        self.full = 0;
        let places = self.geometry.places(self.keys[0]).buckets;
        for key in 0..self.keys.len().min(SLOTS) {
            if self.geometry.buckets == 2 || self.geometry.places(self.keys[key]).buckets == places
            {
                self.values += 1;
                self.begin(0, key, Did::Put(self.values, None));
                self.finish(0, rng)?;
            }
        }
        match self.full {
            0 => self.account(),
            _ => Err("a store without keys is full".into()),
        }
    }
}

/// Runs one schedule, with a fault if one is given.
fn run(seed: u64, fault: Option<Fault>) -> Result<World, Finding> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let mut world = World::new(Faults { only: fault }, rng);
    let crashes_ppm = [0, 1_000, 10_000][rng.below_len(3)];
    let begins_percent = [5, 30, 100][rng.below_len(3)];
    // Words that a client executes before another one does.
    let burst = [1, 4, 40][rng.below_len(3)];
    for _ in 0..STEPS {
        let at = rng.below_len(world.clients.len());
        if world.clients[at].running.is_none() && rng.percent(begins_percent) {
            world.begin_any(at, rng);
        }
        for _ in 0..rng.between(1, burst) {
            world.step(at, rng)?;
        }
        if rng.happens(crashes_ppm) {
            world.crash(at);
        }
    }
    world.drain(rng)?;
    Ok(world)
}

#[test]
fn random_schedules_do_what_a_register_does() {
    for seed in seeds(1500) {
        if let Err(finding) = run(seed, None).map(drop) {
            panic!("{finding}; to see this again: URDMA_SEED={seed} cargo test -p urdma-store");
        }
    }
}

#[test]
fn random_schedules_reach_what_they_are_for() {
    let (mut crashes, mut contended, mut operations) = (0, 0, 0);
    for seed in 0..100 {
        let world = run(seed, None).unwrap();
        crashes += world.crashes;
        contended += world.contended;
        let events = world.histories.iter().map(|history| history.events.len());
        operations += events.sum::<usize>();
    }
    assert!(crashes > 100 && contended > 10 && operations > 3000);
}

/// Whether one of some seeds finds the fault.
fn is_found(fault: Fault) -> bool {
    (0..1500).any(|seed| {
        let found = catch_unwind(AssertUnwindSafe(|| run(seed, Some(fault)).map(drop)));
        !matches!(found, Ok(Ok(())))
    })
}

#[test]
fn each_deliberate_fault_is_found() {
    let faults = [
        Fault::CommittedAtOnce,
        Fault::NotReadAgain,
        Fault::TentativeIgnored,
        Fault::TentativeRead,
        Fault::NotWithdrawn,
        Fault::IncarnationIgnored,
        Fault::IncarnationKept,
        Fault::DigestIgnored,
        Fault::KeyIgnored,
        Fault::CommitUnchecked,
        Fault::ReplacementUnchecked,
        Fault::ReplacedKept,
        Fault::KilledTaken,
        Fault::FreedEarly,
        Fault::OneBucket,
        Fault::TentativeKept,
        Fault::AbandonedKept,
    ];
    let missed: Vec<_> = faults
        .into_iter()
        .filter(|fault| !is_found(*fault))
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
