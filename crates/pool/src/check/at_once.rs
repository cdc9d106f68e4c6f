//! A pool whose requests are posted at once beside one whose requests all wait for a turn: under
//! random schedules, both have the same posted to each queue pair, and the same completions.

use std::collections::{HashMap, VecDeque};

use super::schedules::random_config;
use super::work::fail;
use super::{choose, finds, for_each_seed, Finding, Rng};
use crate::fault::Fault;
use crate::{
    Access, Action, Config, Element, LocalRegion, LocalRegionId, NodeId, Operation, PhysicalId,
    Pool, PostWork, Posted, RemoteRegion, RemoteRegionId, Request, Sge, Status, Transmit, UserId,
    VirtualId,
};

const STEPS: u32 = 300;
const NODES: usize = 2;
const LOCALS: usize = 3;
/// Of each region.
const REGION: u64 = 1 << 20;
const USER: UserId = UserId(0);
/// Virtual queue pairs that are open at most.
const OPEN_MAX: usize = 5;

type Log = HashMap<PhysicalId, Vec<(Transmit, Vec<Sge>)>>;

/// A pool, and what it has had posted since the last comparison.
struct Side {
    pool: Pool,
    log: Log,
}

/// Notes a work request; one of 32 is refused, the same by both pools.
fn take(log: &mut Log, work: &Transmit, elements: &[Sge]) -> Posted {
    let posted = log.entry(work.physical).or_default();
    posted.push((*work, elements.to_vec()));
    match is_refused(work.wr_id) {
        true => Posted::Refused,
        false => Posted::Accepted,
    }
}

/// Notes the work request that is posted at once.
struct AtOnce<'a> {
    log: &'a mut Log,
    has_posted: &'a mut bool,
}

impl PostWork for AtOnce<'_> {
    fn post_work(&mut self, work: &Transmit, elements: &[Sge]) -> Posted {
        *self.has_posted = true;
        take(self.log, work, elements)
    }
}

fn is_refused(wr_id: u64) -> bool {
    Rng::new(wr_id).below(32) == 0
}

impl Side {
    fn new(config: &Config, fault: Option<Fault>) -> Self {
        let mut pool = Pool::new(config).unwrap();
        pool.faults.only = fault;
        let log = Log::new();
        Self { pool, log }
    }

    fn transmit(&mut self) {
        let log = &mut self.log;
        self.pool
            .transmit(|work, elements| take(log, work, elements));
    }
}

/// Both pools: the first posts at once what it may.
struct Pair {
    sides: [Side; 2],
    nodes: Vec<NodeId>,
    locals: Vec<LocalRegionId>,
    remotes: Vec<RemoteRegionId>,
    open: Vec<(VirtualId, usize)>,
    actions: VecDeque<Action>,
    /// The work requests that each queue pair has taken, and whether they are signaled.
    posted: HashMap<PhysicalId, VecDeque<(u64, bool)>>,
    next: u64,
    at_once: u64,
    /// Requests that have completed without being in a queue.
    lone: u64,
}

impl Pair {
    fn new(config: &Config, fault: Option<Fault>) -> Result<Self, Finding> {
        let mut pair = Self {
            sides: [Side::new(config, fault), Side::new(config, None)],
            nodes: Vec::new(),
            locals: Vec::new(),
            remotes: Vec::new(),
            open: Vec::new(),
            actions: VecDeque::new(),
            posted: HashMap::new(),
            next: 1,
            at_once: 0,
            lone: 0,
        };
        let (addr, len_octets, access) = (0, REGION, Access::ALL);
        for _ in 0..NODES {
            let node = pair.both(|pool| pool.add_node())?.unwrap();
            let region = RemoteRegion {
                node,
                addr,
                len_octets,
                rkey: 1,
                access,
            };
            let remote = pair.both(|pool| pool.add_remote(region))?.unwrap();
            pair.nodes.push(node);
            pair.remotes.push(remote);
        }
        for lkey in 0..LOCALS as u32 {
            let local = pair.add_local(lkey)?;
            pair.locals.push(local);
        }
        Ok(pair)
    }

    fn add_local(&mut self, lkey: u32) -> Result<LocalRegionId, Finding> {
        let region = LocalRegion {
            user: USER,
            addr: 0,
            len_octets: REGION,
            lkey,
            access: Access::ALL,
        };
        Ok(self.both(|pool| pool.add_local(region))?.unwrap())
    }

    /// Other local memory takes the place of one that ends.
    fn change_memory(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let at = rng.below(LOCALS as u64) as usize;
        let ended = self.locals[at];
        self.both(|pool| pool.remove_local(ended))?.unwrap();
        self.locals[at] = self.add_local(at as u32)?;
        Ok(())
    }

    /// What a call returns, if both pools return the same.
    fn both<T: PartialEq>(&mut self, mut call: impl FnMut(&mut Pool) -> T) -> Result<T, Finding> {
        let [first, second] = &mut self.sides;
        let (returned, other) = (call(&mut first.pool), call(&mut second.pool));
        match returned == other {
            true => Ok(returned),
            false => fail("the pools answer a call differently"),
        }
    }

    fn post(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        if self.open.is_empty() {
            return Ok(());
        }
        let (id, node) = self.open[rng.below(self.open.len() as u64) as usize];
        let operation = match rng.below(3) {
            0 => Operation::Read,
            1 => Operation::Write,
            _ => Operation::FetchAdd { add: 1 },
        };
        let request = Request {
            id: self.next,
            operation,
            remote: self.remotes[node],
            remote_addr: 8 * rng.below(64),
            is_signaled: rng.percent(70),
        };
        self.next += 1;
        let count = match operation {
            Operation::FetchAdd { .. } => 1,
            // One, as a rule.
            _ => [1, 1, 1, 0, 2][rng.below(5) as usize],
        };
        let elements = (0..count).map(|_| Element {
            local: self.locals[rng.below(LOCALS as u64) as usize],
            addr: rng.below(1 << 10),
            len_octets: match operation {
                Operation::FetchAdd { .. } => 8,
                _ => rng.below(1 << 13) as u32,
            },
        });
        let elements: Vec<Element> = elements.collect();
        let [first, second] = &mut self.sides;
        let mut is_at_once = false;
        let driver = AtOnce {
            log: &mut first.log,
            has_posted: &mut is_at_once,
        };
        let taken = first.pool.post_at_once(id, &request, &elements, driver);
        if taken != second.pool.post(id, &request, &elements) {
            return fail("the pools check a request differently");
        }
        self.at_once += u64::from(is_at_once);
        match is_at_once || rng.percent(50) {
            true => self.transmit(),
            false => Ok(()),
        }
    }

    /// Has both pools post what they may, which is the same.
    fn transmit(&mut self) -> Result<(), Finding> {
        let [first, second] = &mut self.sides;
        first.transmit();
        second.transmit();
        let log = std::mem::take(&mut first.log);
        if log != std::mem::take(&mut second.log) {
            return fail(format!("{log:?} differs from what turns have posted"));
        }
        for (physical, works) in log {
            let works = works.iter().map(|(work, _)| (work.wr_id, work.is_signaled));
            let taken = works.filter(|(wr_id, _)| !is_refused(*wr_id));
            self.posted.entry(physical).or_default().extend(taken);
        }
        // Queue pairs take turns, which those skip that post at once.
        let [first, second] = self.sides.each_mut().map(|side| {
            let actions = std::iter::from_fn(|| side.pool.poll_action());
            let mut actions: Vec<Action> = actions.collect();
            actions.sort_unstable_by_key(|action| format!("{action:?}"));
            actions
        });
        if first != second {
            return fail(format!("{first:?} is to be done, with turns {second:?}"));
        }
        self.actions.extend(first);
        match self.sides[0].pool.stats() == self.sides[1].pool.stats() {
            true => Ok(()),
            false => fail("the pools have counted differently"),
        }
    }

    /// The driver carries an action out.
    fn act(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        match self.actions.pop_front() {
            Some(Action::Connect(id, _) | Action::Create(id)) => match rng.percent(85) {
                true => self.both(|pool| pool.handle_connected(id)),
                false => self.both(|pool| pool.handle_unreachable(id)),
            },
            Some(Action::Destroy(id)) => {
                self.posted.remove(&id);
                self.both(|pool| pool.handle_destroyed(id))
            }
            Some(Action::Ask(_)) => fail("a node is asked to exchange messages"),
            Some(Action::Deregister(_)) | None => Ok(()),
        }
    }

    /// The oldest signaled work request of a queue pair has its completion; one of `one_in` has
    /// failed.
    fn complete(&mut self, one_in: u64, rng: &mut Rng) -> Result<(), Finding> {
        let mut ids: Vec<PhysicalId> = self.posted.keys().copied().collect();
        ids.sort_unstable_by_key(|id| (id.slot, id.generation));
        if ids.is_empty() {
            return Ok(());
        }
        let id = ids[rng.below(ids.len() as u64) as usize];
        let posted = self.posted.get_mut(&id).unwrap();
        let signaled = posted.iter().position(|(_, is_signaled)| *is_signaled);
        let Some((wr_id, _)) = signaled.and_then(|at| posted.drain(..=at).next_back()) else {
            return Ok(());
        };
        let failures = [Status::RemoteAccess, Status::RetryExceeded, Status::Flushed];
        let status = match rng.below(one_in) {
            0 => failures[rng.below(3) as usize],
            _ => Status::Success,
        };
        let node = self.both(|pool| pool.node_of(wr_id))?;
        if node.is_none() {
            return fail("a work request is not known that is in flight");
        }
        self.both(|pool| pool.handle_completion(wr_id, status))?;
        let lone = self.sides[0].pool.lone;
        self.lone += u64::from(lone.is_some_and(|lone| lone.is_complete));
        Ok(())
    }

    fn open(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        if self.open.len() < OPEN_MAX {
            let at = rng.below(NODES as u64) as usize;
            let (node, depth) = (self.nodes[at], rng.between(1, 8) as u32);
            let opened = self.both(|pool| pool.open(USER, node, depth, Access::ALL))?;
            self.open.extend(opened.ok().map(|id| (id, at)));
        }
        Ok(())
    }

    /// A user polls a virtual queue pair until it is empty, and may close it then.
    fn poll(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = rng.below(self.open.len() as u64) as usize;
        let (id, _) = self.open[at];
        self.both(|pool| pool.outstanding(id))?;
        while self.both(|pool| pool.poll(id))?.is_some() {}
        if rng.percent(80) {
            self.both(|pool| pool.reset(id))?.unwrap();
        }
        if rng.percent(5) {
            self.open.swap_remove(at);
            self.both(|pool| pool.close(id))?.unwrap();
        }
        Ok(())
    }
}

/// Runs one schedule, with a fault of the first pool if one is given; how many requests were posted
/// at once, and how many of these were in no queue.
fn run(seed: u64, fault: Option<Fault>) -> Result<[u64; 2], Finding> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let mut pair = Pair::new(&random_config(rng), fault)?;
    // In half of the schedules, most requests are posted when nothing precedes them.
    let (posts, polls, one_in) = [(60, 30, 13), (30, 120, 200)][rng.below(2) as usize];
    let weights = [10, posts, 30, 60, polls, 3, 3];
    for _ in 0..STEPS {
        match choose(&weights, rng) {
            0 => pair.open(rng)?,
            1 => {
                pair.post(rng)?;
                // Often, nothing else happens before its completion.
                if pair.sides[0].pool.lone.is_some() && rng.percent(70) {
                    pair.complete(one_in, rng)?;
                }
            }
            2 => pair.act(rng)?,
            3 => pair.complete(one_in, rng)?,
            4 => pair.poll(rng)?,
            5 => pair.change_memory(rng)?,
            _ => {
                let windows = rng.between(1, 3) as u32;
                pair.both(|pool| pool.end_windows(windows))?;
            }
        }
        if rng.percent(80) {
            pair.transmit()?;
        }
    }
    Ok([pair.at_once, pair.lone])
}

#[test]
fn requests_are_posted_at_once_as_turns_would_have_them() {
    for_each_seed(2000, |seed| run(seed, None).map(drop));
    let counts = (0..100).map(|seed| run(seed, None).unwrap());
    let [at_once, lone] = counts.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
    assert!(at_once > 1000, "{at_once} requests were posted at once");
    assert!(lone > 200, "{lone} were in no queue");
}

finds! {
    run:
    finds_skipped_turns: TurnsSkipped,
    finds_forgotten_lone: LoneForgotten,
    finds_unused_memory: LoneUsesNothing,
    finds_lone_polled_by_any: LonePolledByAny,
    finds_kept_number: LoneNumberKept,
    finds_lone_success: LoneAlwaysSucceeds,
}
