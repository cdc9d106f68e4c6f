//! The pool between its users and the device, and the driver that carries its actions out.

use std::collections::VecDeque;

use super::attempts::Attempts;
use super::device::{Broken, Device};
use super::model::Model;
use super::work::{check_work, excuse_flushed, fail, Local, Remote, STRIDE};
use super::{Finding, Rng};
use crate::fault::Fault;
use crate::{
    Access, Action, Config, Element, LocalRegion, NodeId, Operation, PhysicalId, Pool, PostError,
    Posted, RemoteRegion, Request, Status, UserId, ELEMENTS_MAX,
};

/// Of each region.
const REGION: u64 = 1 << 40;
const USERS: u64 = 3;
pub(super) const NODES: u64 = 3;
/// Actions in a row that follow from one another.
const ACTIONS_MAX: u32 = 1000;

/// What the checker has of a run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) pool: Pool,
    config: Config,
    pub(super) device: Device,
    pub(super) model: Model,
    pub(super) nodes: Vec<NodeId>,
    locals: Vec<Local>,
    pub(super) remotes: Vec<Remote>,
    /// Actions that the driver has not carried out.
    actions: VecDeque<Action>,
    /// Completions that the driver has polled and not handled.
    in_hand: VecDeque<(u64, Status)>,
    /// Whether the device refuses requests in ERR, which it flushes otherwise.
    refuses_in_error: bool,
    /// Whether a queue pair that works refuses what is posted next.
    pub(super) refuses_next: bool,
    /// Whether each of them does, from its first work request on.
    pub(super) refuses_all: bool,
    /// Those that have refused a work request.
    refused: Vec<PhysicalId>,
    /// Those that could not be connected.
    unreached: Vec<PhysicalId>,
    attempts: Attempts,
    /// When each node was added, or the last virtual queue pair to it was closed.
    pub(super) idle_since: [u64; NODES as usize],
    /// Counts these.
    clock: u64,
    next_serial: u64,
}

impl World {
    pub(super) fn new(config: &Config, fault: Option<Fault>, rng: &mut Rng) -> Self {
        let mut pool = Pool::new(config).unwrap();
        pool.faults.only = fault;
        let nodes = (0..NODES).map(|_| pool.add_node().unwrap()).collect();
        let mut world = Self {
            pool,
            config: *config,
            device: Device::new(config.sq_depth, config.cq_depth),
            model: Model::default(),
            nodes,
            locals: Vec::new(),
            remotes: Vec::new(),
            actions: VecDeque::new(),
            in_hand: VecDeque::new(),
            refuses_in_error: rng.percent(50),
            refuses_next: false,
            refuses_all: false,
            refused: Vec::new(),
            unreached: Vec::new(),
            attempts: Attempts::default(),
            idle_since: std::array::from_fn(|at| at as u64),
            clock: NODES,
            next_serial: 1,
        };
        for user in 0..USERS {
            world.add_local(UserId(user as u32), Access::ALL);
        }
        for node in 0..NODES as usize {
            world.add_remotes(node);
        }
        world
    }

    pub(super) fn add_remotes(&mut self, node: usize) {
        self.add_remote(node, Access::ALL);
        let read = Access {
            read: true,
            ..Access::default()
        };
        self.add_remote(node, read);
    }

    fn add_local(&mut self, user: UserId, access: Access) {
        let count = self.locals.len() as u64;
        let region = LocalRegion {
            user,
            addr: (count + 1) * 2 * REGION,
            len_octets: REGION,
            lkey: count as u32 + 1,
            access,
        };
        self.locals.push(Local {
            id: self.pool.add_local(region).unwrap(),
            region,
            is_usable: true,
            is_registered: true,
        });
    }

    fn add_remote(&mut self, node: usize, access: Access) {
        let count = self.remotes.len() as u64;
        let region = RemoteRegion {
            node: self.nodes[node],
            addr: (count + 1) * 2 * REGION,
            len_octets: REGION,
            rkey: count as u32 + 1,
            access,
        };
        self.remotes.push(Remote {
            id: self.pool.add_remote(region).unwrap(),
            region,
            is_known: true,
            is_valid: true,
        });
    }

    /// A user opens a virtual queue pair.
    pub(super) fn open(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let (user, node) = (
            UserId(rng.below(USERS) as u32),
            self.nodes[rng.below(NODES) as usize],
        );
        let depth = rng.between(1, 8) as u32;
        let operations = match rng.percent(80) {
            true => Access::ALL,
            false => Access {
                read: true,
                ..Access::default()
            },
        };
        let opened = self.pool.open(user, node, depth, operations);
        let open = self.model.virtuals.iter().filter(|open| open.is_open);
        // The completion queue may serve no further queue pair, and each may have members.
        let served = (self.config.cq_depth / self.config.sq_depth) as usize;
        match opened {
            Ok(id) => self.model.open(id, (user, node), depth, operations),
            Err(error) if open.count() < served => return fail(format!("no place: {error}")),
            Err(_) => {}
        }
        Ok(())
    }

    /// Whether a virtual queue pair is open to a node.
    pub(super) fn is_used(&self, node: NodeId) -> bool {
        let mut virtuals = self.model.virtuals.iter();
        virtuals.any(|open| open.is_open && open.node == node)
    }

    pub(super) fn note_idle(&mut self, node: NodeId) {
        if !self.is_used(node) {
            let at = self.nodes.iter().position(|known| *known == node);
            self.idle_since[at.unwrap()] = self.clock;
            self.clock += 1;
        }
    }

    fn any_open(&self, rng: &mut Rng) -> Option<usize> {
        let count = self.model.virtuals.len() as u64;
        let at = rng.below(count.max(1)) as usize;
        self.model
            .virtuals
            .get(at)
            .filter(|open| open.is_open)
            .map(|_| at)
    }

    /// A user posts a request, which names what it may use or anything else.
    pub(super) fn post(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let Some(at) = self.any_open(rng) else {
            return Ok(());
        };
        let (user, node) = (self.model.virtuals[at].user, self.model.virtuals[at].node);
        let is_careful = rng.percent(85);
        let locals = self
            .locals
            .iter()
            .filter(|local| !is_careful || (local.region.user == user && local.is_usable));
        let remotes = self
            .remotes
            .iter()
            .filter(|remote| !is_careful || (remote.region.node == node && remote.is_known));
        let (locals, remotes): (Vec<_>, Vec<_>) = (locals.collect(), remotes.collect());
        if locals.is_empty() || remotes.is_empty() {
            return Ok(());
        }
        let remote = remotes[rng.below(remotes.len() as u64) as usize];
        let operation = match rng.below(6) {
            0..2 => Operation::Read,
            2..4 => Operation::Write,
            4 => Operation::FetchAdd { add: 1 },
            _ => Operation::CompareSwap {
                expected: 0,
                swap: 1,
            },
        };
        let serial = self.next_serial;
        let mut request = Request {
            id: serial,
            operation,
            remote: remote.id,
            remote_addr: remote.region.addr + serial * STRIDE,
            is_signaled: rng.percent(50),
        };
        let mut elements = self.elements(operation, &locals, is_careful, rng);
        let last = elements.last_mut().filter(|_| !is_careful);
        if let Some(last) = last {
            let beyond = REGION - rng.below(STRIDE);
            match rng.below(7) {
                0 => {
                    let of = locals.iter().find(|local| local.id == last.local);
                    last.addr = of.unwrap().region.addr + beyond;
                    last.len_octets = STRIDE as u32;
                }
                1 => {
                    request.remote_addr = remote.region.addr + beyond;
                    last.len_octets = STRIDE as u32;
                }
                2 => request.remote_addr = remote.region.addr.wrapping_sub(8 * rng.below(3)),
                3 => last.len_octets = rng.bits() as u32,
                4 => request.remote_addr = u64::MAX - rng.below(64),
                5 => last.len_octets = u32::MAX - rng.below(16) as u32,
                _ => {}
            }
        }
        let is_valid = self.is_valid(at, &request, &elements, remote);
        let posted = self
            .pool
            .post(self.model.virtuals[at].id, &request, &elements);
        self.judge(at, &request, &elements, is_valid, posted)
    }

    /// The scatter-gather list of the next request: parts of its own places in some of `locals`.
    fn elements(
        &self,
        operation: Operation,
        locals: &[&Local],
        is_careful: bool,
        rng: &mut Rng,
    ) -> Vec<Element> {
        let most = u64::from(match operation {
            Operation::Read => self.config.elements_max.min(self.config.read_elements_max),
            _ => self.config.elements_max,
        });
        let count = match rng.percent(60) {
            true => 1,
            false if rng.percent(10) => rng.below(ELEMENTS_MAX as u64 + 2),
            false if is_careful && operation.is_atomic() => 1,
            false if is_careful => rng.below(most + 1),
            false => rng.below(ELEMENTS_MAX as u64 + 2),
        };
        let part = STRIDE / count.max(1);
        let new = |n| {
            let local = locals[rng.below(locals.len() as u64) as usize];
            Element {
                local: local.id,
                addr: local.region.addr + self.next_serial * STRIDE + n * part,
                len_octets: match operation.is_atomic() {
                    true => 8,
                    false => rng.below(part) as u32,
                },
            }
        };
        (0..count).map(new).collect()
    }

    /// Whether the request may be posted, as the regions say.
    fn is_valid(
        &self,
        at: usize,
        request: &Request,
        elements: &[Element],
        remote: &Remote,
    ) -> bool {
        let poster = &self.model.virtuals[at];
        let lengths = elements
            .iter()
            .map(|element| u128::from(element.len_octets));
        let len: u128 = lengths.sum();
        let is_in = |addr: u64, at: u64, len: u128| {
            let (begin, at) = (u128::from(addr), u128::from(at));
            at >= begin && at + len <= begin + u128::from(REGION)
        };
        let is_own = |element: &Element| {
            let of = self.locals.iter().find(|local| local.id == element.local);
            of.is_some_and(|local| {
                local.region.user == poster.user
                    && local.is_usable
                    && is_in(local.region.addr, element.addr, element.len_octets.into())
            })
        };
        let has_right = |access: Access| match request.operation {
            Operation::Read => access.read,
            Operation::Write => access.write,
            _ => access.atomic,
        };
        let has_shape = match request.operation {
            Operation::Read => elements.len() <= self.config.read_elements_max as usize,
            Operation::Write => true,
            _ => elements.len() == 1 && len == 8 && request.remote_addr.is_multiple_of(8),
        };
        has_shape
            && elements.len() <= self.config.elements_max as usize
            && elements.iter().all(is_own)
            && remote.region.node == poster.node
            && remote.is_known
            && is_in(remote.region.addr, request.remote_addr, len)
            && has_right(remote.region.access)
            && has_right(poster.operations)
            && len <= u128::from(self.config.message_octets_max)
    }

    fn judge(
        &mut self,
        at: usize,
        request: &Request,
        elements: &[Element],
        is_valid: bool,
        posted: Result<(), PostError>,
    ) -> Result<(), Finding> {
        match posted {
            Ok(()) if !is_valid => fail(format!("{request:?} with {elements:?} is taken")),
            Ok(()) => {
                self.next_serial += 1;
                self.model.taken(at, request, elements)
            }
            // It has failed, which its user may not have polled yet.
            Err(PostError::InvalidState) => Ok(()),
            Err(PostError::QueueFull) if is_valid && self.model.may_be_full(at) => Ok(()),
            Err(error) if is_valid => {
                fail(format!("{request:?} with {elements:?} is refused: {error}"))
            }
            Err(_) => Ok(()),
        }
    }

    /// The driver posts what the pool has.
    pub(super) fn transmit(&mut self) -> Result<(), Finding> {
        let mut finding = Ok(());
        let Self {
            pool,
            device,
            model,
            locals,
            remotes,
            config,
            refuses_in_error,
            refuses_next,
            refuses_all,
            refused,
            ..
        } = self;
        pool.transmit(|work, elements| {
            let qp = device.queue_pairs.iter().find(|qp| qp.id == work.physical);
            let broken = qp.and_then(|qp| qp.broken);
            if *refuses_in_error && broken.is_some() {
                refused.push(work.physical);
                return Posted::Refused;
            }
            if *refuses_all || std::mem::take(refuses_next) {
                refused.push(work.physical);
                return Posted::Refused;
            }
            let request = (work, elements);
            let posted = check_work(request, device, model, (locals, remotes), config);
            let posted = posted.and_then(|serial| {
                device.post(request, serial)?;
                excuse_flushed(model, device, serial, work, broken);
                Ok(())
            });
            if finding.is_ok() {
                finding = posted;
            }
            Posted::Accepted
        });
        finding?;
        while let Some(action) = self.pool.poll_action() {
            self.actions.push_back(action);
        }
        self.tails_are_signaled()
    }

    /// What is posted is followed by a signaled request.
    fn tails_are_signaled(&self) -> Result<(), Finding> {
        for qp in self
            .device
            .queue_pairs
            .iter()
            .filter(|qp| qp.broken.is_none())
        {
            if qp.posted.back().is_some_and(|last| !last.work.is_signaled) {
                return fail("the last request of a queue pair is not signaled");
            }
        }
        Ok(())
    }

    /// The driver carries out the next action.
    pub(super) fn act(&mut self, rng: &mut Rng, has_faults: bool) -> Result<(), Finding> {
        match self.actions.pop_front() {
            None => {}
            Some(Action::Connect(id, node)) => self.create(id, Some(node), has_faults, rng)?,
            Some(Action::Create(id)) => self.create(id, None, has_faults, rng)?,
            Some(Action::Destroy(id)) => self.destroy(id, rng)?,
            Some(Action::Ask(_)) => return fail("a node is asked to exchange messages"),
            Some(Action::Deregister(id)) => {
                let local = self.locals.iter_mut().find(|local| local.id == id);
                let local = local.ok_or("unknown memory is deregistered")?;
                let was_registered = std::mem::replace(&mut local.is_registered, false);
                let posted = self.device.queue_pairs.iter().flat_map(|qp| &qp.posted);
                let mut elements = posted.flat_map(|posted| &posted.elements);
                let is_used = elements.any(|element| element.lkey == local.region.lkey);
                if !was_registered || local.is_usable || is_used {
                    return fail("memory is deregistered twice, or in use");
                }
            }
        }
        Ok(())
    }

    /// A queue pair is connected or created, unless it cannot be.
    fn create(
        &mut self,
        id: PhysicalId,
        node: Option<NodeId>,
        has_faults: bool,
        rng: &mut Rng,
    ) -> Result<(), Finding> {
        let switched = node.zip(self.config.switching);
        if let Some((node, switching)) = switched {
            self.attempts.check(node, &switching)?;
        }
        let likely = if switched.is_some() { 30 } else { 10 };
        if has_faults && rng.percent(likely) {
            match switched {
                // Requests go on over initiators.
                Some((node, _)) => self.attempts.note_failure(node),
                None => self.excuse_node(node, Status::RetryExceeded),
            }
            self.pool.handle_unreachable(id);
            self.unreached.push(id);
            return Ok(());
        }
        self.device.create(id, node);
        self.pool.handle_connected(id);
        self.device.check_count(&self.config, node)
    }

    /// Windows end.
    pub(super) fn end_windows(&mut self, windows: u32) {
        self.attempts.window += u64::from(windows);
        self.pool.end_windows(windows);
    }

    /// No node is used any more: those of a pool of initiators go back to these.
    fn go_back(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let Some(switching) = self.config.switching else {
            return Ok(());
        };
        for _ in 0..=switching.quiet_windows {
            self.end_windows(1);
            self.transmit()?;
            while !self.actions.is_empty() {
                self.act(rng, false)?;
                self.transmit()?;
            }
        }
        match self.device.queue_pairs.iter().any(|qp| qp.node.is_some()) {
            true => fail("a node that is not used keeps its connection"),
            false => Ok(()),
        }
    }

    fn destroy(&mut self, id: PhysicalId, rng: &mut Rng) -> Result<(), Finding> {
        let at = self.device.queue_pairs.iter().position(|qp| qp.id == id);
        let Some(at) = at else {
            self.pool.handle_destroyed(id);
            return match self.unreached.contains(&id) {
                true => Ok(()),
                false => fail("a queue pair is destroyed that does not exist"),
            };
        };
        self.break_one(at, Broken::Event)?;
        if rng.percent(70) {
            while self.poll() {}
            while self.handle_one() {}
        } else {
            // Completions are lost: what they would have said is not known.
            let node = self.device.queue_pairs[at].node;
            self.excuse_node(node, Status::Flushed);
        }
        let destroyed = self.device.destroy(id).unwrap();
        if self.refused.contains(&id) {
            // If nothing was posted to it and to the one before, all that wait fail.
            self.excuse_node(destroyed.node, Status::RetryExceeded);
        }
        self.pool.handle_destroyed(id);
        for posted in &destroyed.posted {
            let owner = self.model.owner(posted.serial);
            if owner.is_some_and(|owner| !owner.is_open) {
                self.model.end(posted.serial);
            }
        }
        Ok(())
    }

    /// All that reach a node, or any one if none is given, may fail so.
    fn excuse_node(&mut self, node: Option<NodeId>, status: Status) {
        for at in 0..self.model.virtuals.len() {
            if node.is_none_or(|node| self.model.virtuals[at].node == node) {
                self.model.excuse(at, status);
            }
        }
    }

    /// All that have requests on a queue pair which must not be repeated may fail so.
    fn excuse_all(&mut self, at: usize, status: Status) {
        for posted in &self.device.queue_pairs[at].posted {
            if posted.work.operation.has_effect() {
                let owner = self.model.owner_index(posted.serial).unwrap();
                self.model.excuse(owner, status);
            }
        }
    }

    /// The node of the oldest request does not answer: the owner of that request may fail so, and
    /// those that have sent requests to the node.
    fn excuse_silence(&mut self, at: usize) {
        let sent = self.device.sent(at);
        let owners: Vec<usize> = sent
            .map(|posted| self.model.owner_index(posted.serial).unwrap())
            .collect();
        let has_effect = |owner: &usize| {
            let mut posted = self.device.queue_pairs[at].posted.iter();
            posted.any(|posted| {
                self.model.owner_index(posted.serial) == Some(*owner)
                    && posted.work.operation.has_effect()
            })
        };
        let first = owners.first().copied();
        let others = owners.iter().copied().filter(has_effect);
        let excused: Vec<usize> = first.into_iter().chain(others).collect();
        for owner in excused {
            self.model.excuse(owner, Status::RetryExceeded);
        }
    }

    /// A queue pair enters ERR.
    pub(super) fn break_one(&mut self, at: usize, why: Broken) -> Result<(), Finding> {
        if self.device.queue_pairs[at].broken.is_some() {
            return Ok(());
        }
        match why {
            // A refusal is the fault of the one whose request it is.
            Broken::Refusal => {}
            Broken::Event => self.excuse_all(at, Status::Flushed),
            Broken::Silence => self.excuse_silence(at),
        }
        self.device.break_one(at, why)
    }

    /// A queue pair breaks for a random reason, of which an event may tell.
    pub(super) fn break_any(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let count = self.device.queue_pairs.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let at = rng.below(count) as usize;
        let has_sent = self.device.sent(at).next().is_some();
        // Only one who is asked can be silent.
        let why = match has_sent && rng.percent(50) {
            true => Broken::Silence,
            false => Broken::Event,
        };
        let id = self.device.queue_pairs[at].id;
        self.break_one(at, why)?;
        if why == Broken::Event && rng.percent(50) {
            self.pool.handle_broken(id);
        }
        Ok(())
    }

    /// A node executes the next request, or refuses it.
    pub(super) fn execute(&mut self, rng: &mut Rng) -> Result<bool, Finding> {
        let count = self.device.queue_pairs.len() as u64;
        let at = rng.below(count.max(1)) as usize;
        let Some(next) = self.device.next_to_execute(at).cloned() else {
            return Ok(false);
        };
        let remote = &self.remotes[next.work.rkey as usize - 1];
        if remote.is_valid {
            self.device.note_executed(at);
            self.model.executed(next.serial)?;
            return Ok(true);
        }
        // Those before it are acknowledged first.
        while self.device.acknowledge(at)? {}
        assert!(self.device.is_next_oldest(at));
        self.model.refused(next.serial);
        self.break_one(at, Broken::Refusal)?;
        Ok(true)
    }

    pub(super) fn acknowledge(&mut self, rng: &mut Rng) -> Result<bool, Finding> {
        match self.device.queue_pairs.len() as u64 {
            0 => Ok(false),
            count => self.device.acknowledge(rng.below(count) as usize),
        }
    }

    /// The driver polls a completion; whether there was one.
    pub(super) fn poll(&mut self) -> bool {
        let polled = self.device.poll();
        self.in_hand.extend(polled);
        polled.is_some()
    }

    /// The driver hands a completion to the pool; whether it had one.
    pub(super) fn handle_one(&mut self) -> bool {
        let Some((wr_id, status)) = self.in_hand.pop_front() else {
            return false;
        };
        self.pool.handle_completion(wr_id, status);
        true
    }

    /// A user polls a virtual queue pair until it is empty; one that has failed is reset.
    pub(super) fn poll_user(&mut self, at: usize) -> Result<(), Finding> {
        let id = self.model.virtuals[at].id;
        if !self.model.virtuals[at].is_open {
            return Ok(());
        }
        while let Some(completion) = self.pool.poll(id) {
            self.model.polled(at, &completion)?;
        }
        if self.model.is_failed(at) {
            self.model.reset(at)?;
            self.pool.reset(id).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(super) fn poll_any(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        match self.any_open(rng) {
            Some(at) => self.poll_user(at),
            None => Ok(()),
        }
    }

    /// A user closes a virtual queue pair.
    pub(super) fn close_any(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let Some(at) = self.any_open(rng) else {
            return Ok(());
        };
        let (id, node) = (self.model.virtuals[at].id, self.model.virtuals[at].node);
        self.pool.close(id).map_err(|error| error.to_string())?;
        if self.pool.post(id, &self.some_request(), &[]) != Err(PostError::Closed) {
            return fail("a virtual queue pair takes requests after it was closed");
        }
        let device = &self.device;
        self.model.closed(at, |serial| {
            let mut all = device.queue_pairs.iter().flat_map(|qp| &qp.posted);
            all.any(|posted| posted.serial == serial)
        });
        self.note_idle(node);
        Ok(())
    }

    fn some_request(&self) -> Request {
        Request {
            id: 0,
            operation: Operation::Read,
            remote: self.remotes[0].id,
            remote_addr: 0,
            is_signaled: true,
        }
    }

    /// Memory comes and goes, at this end and at the nodes, which tell of it later.
    pub(super) fn change_memory(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        let at = rng.below(self.locals.len() as u64) as usize;
        match rng.below(3) {
            0 if self.locals[at].is_usable => {
                self.locals[at].is_usable = false;
                let ended = self.pool.remove_local(self.locals[at].id);
                ended.map_err(|error| error.to_string())?;
                self.add_local(self.locals[at].region.user, Access::ALL);
            }
            1 => {
                let at = rng.below(self.remotes.len() as u64) as usize;
                if std::mem::replace(&mut self.remotes[at].is_valid, false) {
                    let node = self.remotes[at].region.node;
                    let node = self.nodes.iter().position(|known| *known == node);
                    self.add_remote(node.unwrap(), self.remotes[at].region.access);
                }
            }
            _ => {
                let stale = |remote: &&mut Remote| remote.is_known && !remote.is_valid;
                if let Some(remote) = self.remotes.iter_mut().find(stale) {
                    remote.is_known = false;
                    let id = remote.id;
                    let ended = self.pool.remove_remote(id);
                    ended.map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Until nothing happens any more: everything has ended, and memory can be deregistered.
    pub(super) fn drain(&mut self, rng: &mut Rng) -> Result<(), Finding> {
        for _ in 0..400 {
            self.transmit()?;
            let mut left = ACTIONS_MAX;
            while !self.actions.is_empty() {
                self.act(rng, false)?;
                self.transmit()?;
                left -= 1;
                if left == 0 {
                    return fail("there is always something to do");
                }
            }
            for _ in 0..40 {
                self.execute(rng)?;
                self.acknowledge(rng)?;
            }
            while self.poll() {}
            while self.handle_one() {}
            for at in 0..self.model.virtuals.len() {
                self.poll_user(at)?;
            }
        }
        self.model.all_done()?;
        self.go_back(rng)?;
        for open in self.model.virtuals.iter().filter(|open| open.is_open) {
            if self.pool.outstanding(open.id) > 0 {
                return fail("the place of a request is not given back");
            }
        }
        for at in 0..self.locals.len() {
            if std::mem::replace(&mut self.locals[at].is_usable, false) {
                let ended = self.pool.remove_local(self.locals[at].id);
                ended.map_err(|error| error.to_string())?;
            }
        }
        self.transmit()?;
        while !self.actions.is_empty() {
            self.act(rng, false)?;
        }
        match self.locals.iter().any(|local| local.is_registered) {
            true => fail("memory that no request uses stays registered"),
            false => Ok(()),
        }
    }

    pub(super) fn completions(&self) -> usize {
        self.device.completions()
    }
}
