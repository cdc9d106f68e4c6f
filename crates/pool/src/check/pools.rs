//! Pools that exchange messages: connections between them, whose device gives each message the
//! oldest Receive of the other end, and the driver of each.

use std::collections::{HashMap, VecDeque};

use super::connects::Ask;
use super::questions::Question;
use super::work::fail;
use super::{Finding, Rng};
use crate::exchange::ExchangeId;
use crate::fault::Fault;
use crate::header::{EndId, Header, Message};
use crate::physical_qp::parts_of;
use crate::{
    Access, Action, BufferAction, Config, ConnectionName, LocalRegion, LocalRegionId,
    MessageConfig, NodeId, Operation, PhysicalId, Pool, Posted, RemoteRegion, RemoteRegionId, Sge,
    Status, Transmit, Transport, UserId, VirtualId, HEADER_OCTETS,
};

pub(super) const USERS: u32 = 2;
/// Of each user's memory.
const REGION: u64 = 1 << 24;

/// A work request whose place is not free yet.
#[derive(Debug)]
struct Work {
    transmit: Transmit,
    elements: Vec<Sge>,
    is_executed: bool,
    is_acknowledged: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) id: PhysicalId,
    /// Of an initiator, its own side.
    pub(super) peer: usize,
    pub(super) is_initiator: bool,
    pub(super) link: u64,
    posted: VecDeque<Work>,
    /// Buffers of Receives.
    receives: VecDeque<u32>,
    pub(super) is_broken: bool,
    /// The side that did not answer.
    pub(super) silent: Option<usize>,
    /// What the other end has told, until this one knows that the connection is complete.
    pub(super) accepting: Option<ConnectionName>,
}

/// A pool with its driver.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) pool: Pool,
    /// By the other side.
    pub(super) nodes: Vec<NodeId>,
    /// Of each user.
    pub(super) locals: Vec<LocalRegionId>,
    pub(super) remotes: Vec<RemoteRegionId>,
    /// Keys of local memory that is registered.
    keys: HashMap<LocalRegionId, u32>,
    next_key: u32,
    memory: Vec<Vec<u8>>,
    pub(super) qps: Vec<Qp>,
    completions: VecDeque<(u64, Status)>,
    /// The completion queue of Receives, with what is in their buffers. They are of connections, or
    /// of the target.
    arrived: VecDeque<(Option<PhysicalId>, u32, Vec<u8>)>,
    /// Buffers of Receives of the target.
    receives: VecDeque<u32>,
    /// How many there are.
    target_buffers: u32,
    /// The process: its target has this name.
    pub(super) incarnation: u64,
    /// By the other side, the target to which its messages go.
    pub(super) routes: Vec<u64>,
    /// By the other side, whether it has taken a question of it that was late.
    pub(super) is_met_late: Vec<bool>,
    pub(super) actions: VecDeque<Action>,
    buffers: HashMap<u32, Vec<u8>>,
    next_buffer: u32,
    /// The octets of a user where a request has its own place.
    next_place: u64,
}

impl Side {
    fn new(config: &Config, messages: &MessageConfig, sides: usize, fault: Option<Fault>) -> Self {
        let mut pool = Pool::new(config).unwrap();
        pool.faults.only = fault;
        pool.offer_messages(messages).unwrap();
        let nodes: Vec<NodeId> = (0..sides).map(|_| pool.add_node().unwrap()).collect();
        let remote = |node| RemoteRegion {
            node,
            addr: 0,
            len_octets: REGION,
            rkey: 1,
            access: Access::ALL,
        };
        let remotes = nodes
            .iter()
            .map(|node| pool.add_remote(remote(*node)).unwrap());
        let remotes = remotes.collect();
        let mut side = Self {
            pool,
            nodes,
            locals: Vec::new(),
            remotes,
            keys: HashMap::new(),
            next_key: 0,
            memory: vec![Vec::new(); USERS as usize],
            qps: Vec::new(),
            completions: VecDeque::new(),
            arrived: VecDeque::new(),
            receives: VecDeque::new(),
            target_buffers: 0,
            incarnation: 0,
            routes: vec![0; sides],
            is_met_late: vec![false; sides],
            actions: VecDeque::new(),
            buffers: HashMap::new(),
            next_buffer: 0,
            next_place: 0,
        };
        for user in 0..USERS {
            let local = side.register(UserId(user));
            side.locals.push(local);
        }
        side
    }

    /// Registers the memory of a user.
    fn register(&mut self, user: UserId) -> LocalRegionId {
        let lkey = self.next_key;
        self.next_key += 1;
        let local = self.pool.add_local(LocalRegion {
            user,
            addr: u64::from(user.0) * REGION,
            len_octets: REGION,
            lkey,
            access: Access::ALL,
        });
        let local = local.unwrap();
        self.keys.insert(local, lkey);
        local
    }

    /// A user ends the registration of its memory, and registers it again.
    pub(super) fn register_anew(&mut self, user: UserId) {
        let before = self.locals[user.0 as usize];
        self.pool.remove_local(before).unwrap();
        self.locals[user.0 as usize] = self.register(user);
    }

    fn check_registered(&self, elements: &[Sge]) -> Result<(), Finding> {
        let is_registered = |element: &Sge| self.keys.values().any(|lkey| *lkey == element.lkey);
        match elements.iter().all(is_registered) {
            true => Ok(()),
            false => fail("memory is accessed that is not registered"),
        }
    }

    /// The address of `len` octets of a user that no other request names, which are 0.
    pub(super) fn place(&mut self, user: UserId, len: usize) -> u64 {
        let at = self.next_place;
        self.next_place += len as u64 + 1;
        let end = self.next_place as usize;
        self.memory[user.0 as usize].resize(end, 0);
        u64::from(user.0) * REGION + at
    }

    pub(super) fn octets(&mut self, addr: u64, len: usize) -> &mut [u8] {
        let (user, at) = ((addr / REGION) as usize, (addr % REGION) as usize);
        &mut self.memory[user][at..at + len]
    }

    fn gather(&mut self, elements: &[Sge]) -> Vec<u8> {
        let mut gathered = Vec::new();
        for element in elements {
            let octets = self.octets(element.addr, element.len_octets as usize);
            gathered.extend_from_slice(octets);
        }
        gathered
    }

    pub(super) fn qp(&self, id: PhysicalId) -> Option<usize> {
        self.qps.iter().position(|qp| qp.id == id)
    }

    /// The virtual queue pairs whose requests are in flight, in order.
    pub(super) fn in_flight(&self, at: usize) -> Vec<VirtualId> {
        let shared = &self.pool.physicals[usize::from(self.qps[at].id.slot)];
        let of = shared.in_flight.behind(0).map(|in_flight| in_flight.of);
        of.filter(|id| ExchangeId::of_own(*id).is_none()).collect()
    }

    /// Posts what the pool has, in the order of the contract.
    fn turn(&mut self, config: &Config) -> Result<(), Finding> {
        while let Some(action) = self.pool.poll_buffer_action() {
            match action {
                BufferAction::Copy { buffer, elements } => {
                    self.check_registered(&elements)?;
                    let header = config.transport.header_octets();
                    let mut from = self.buffers[&buffer][header..].to_vec();
                    for element in elements {
                        let rest = from.split_off(element.len_octets as usize);
                        let len = from.len();
                        self.octets(element.addr, len).copy_from_slice(&from);
                        from = rest;
                    }
                    if !from.is_empty() {
                        return fail("a message is not copied to its end");
                    }
                }
                BufferAction::Post { physical, buffer } => {
                    self.buffers.remove(&buffer);
                    if let Some(at) = self.qp(physical) {
                        self.qps[at].receives.push_back(buffer);
                    }
                }
                BufferAction::PostToTarget { buffer } => {
                    self.buffers.remove(&buffer);
                    self.receives.push_back(buffer);
                }
            }
        }
        let (pool, qps) = (&mut self.pool, &mut self.qps);
        let mut finding = Ok(());
        let mut flushed = Vec::new();
        pool.transmit(|work, elements| {
            let Some(qp) = qps.iter_mut().find(|qp| qp.id == work.physical) else {
                finding = fail("a work request for a queue pair that does not exist");
                return Posted::Refused;
            };
            if qp.posted.len() == config.sq_depth as usize {
                finding = fail("the send queue overflows");
            }
            if qp.is_broken {
                flushed.push((work.wr_id, Status::Flushed));
            }
            qp.posted.push_back(Work {
                transmit: *work,
                elements: elements.to_vec(),
                is_executed: false,
                is_acknowledged: false,
            });
            Posted::Accepted
        });
        self.completions.extend(flushed);
        while let Some(action) = self.pool.poll_action() {
            self.actions.push_back(action);
        }
        for qp in self.qps.iter().filter(|qp| !qp.is_broken) {
            let last = qp.posted.back();
            if last.is_some_and(|last| !last.transmit.is_signaled) {
                return fail("the last request of a queue pair is not signaled");
            }
        }
        finding
    }

    /// The driver hands over a completion; whether there was one.
    pub(super) fn handle_one(&mut self) -> bool {
        let Some((wr_id, status)) = self.completions.pop_front() else {
            return false;
        };
        if status == Status::Success {
            for qp in &mut self.qps {
                let place = qp
                    .posted
                    .iter()
                    .position(|work| work.transmit.wr_id == wr_id);
                qp.posted.drain(..place.map_or(0, |place| place + 1));
            }
        }
        self.pool.handle_completion(wr_id, status);
        true
    }

    /// The oldest executed work request of a queue pair is acknowledged.
    pub(super) fn acknowledge(&mut self, at: usize) {
        let Some(qp) = self.qps.get_mut(at).filter(|qp| !qp.is_broken) else {
            return;
        };
        let next = qp.posted.iter_mut().find(|work| !work.is_acknowledged);
        if let Some(next) = next.filter(|next| next.is_executed) {
            next.is_acknowledged = true;
            if next.transmit.is_signaled {
                let done = (next.transmit.wr_id, Status::Success);
                self.completions.push_back(done);
            }
        }
    }

    /// A queue pair with the Receives of a share.
    pub(super) fn add_qp(&mut self, id: PhysicalId, peer: usize, link: u64, share: u16) {
        let first = self.next_buffer;
        self.next_buffer += u32::from(share);
        self.qps.push(Qp {
            id,
            peer,
            is_initiator: false,
            link,
            posted: VecDeque::new(),
            receives: (first..self.next_buffer).collect(),
            is_broken: false,
            silent: None,
            accepting: None,
        });
    }

    /// Posts the Receives for a further exchange. There are those of one more, for messages that
    /// come twice.
    pub(super) fn reserve(&mut self, share: u16) {
        let needed = (self.pool.exchanges.count() + 2) * u32::from(share);
        while self.target_buffers < needed {
            self.receives.push_back(self.next_buffer);
            self.next_buffer += 1;
            self.target_buffers += 1;
        }
    }

    /// Whether all buffers of the target are posted.
    pub(super) fn has_all_receives(&self) -> bool {
        self.receives.len() == self.target_buffers as usize
    }

    /// The oldest work request of a queue pair that is not acknowledged: the node, and whether it
    /// was executed.
    pub(super) fn oldest(&self, at: usize) -> Option<(usize, bool)> {
        let mut posted = self.qps[at].posted.iter();
        let oldest = posted.find(|work| !work.is_acknowledged)?;
        Some((self.index_of(oldest.transmit.node)?, oldest.is_executed))
    }

    /// The side that a node is.
    pub(super) fn index_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| *known == node)
    }

    pub(super) fn break_qp(&mut self, at: usize, first: Status) {
        let qp = &mut self.qps[at];
        if std::mem::replace(&mut qp.is_broken, true) {
            return;
        }
        let mut status = first;
        for work in qp.posted.iter().filter(|work| !work.is_acknowledged) {
            self.completions.push_back((work.transmit.wr_id, status));
            status = Status::Flushed;
        }
    }
}

/// What happens to a message on its way.
pub(super) type Change<'a> = &'a mut dyn FnMut(&mut Vec<u8>);

/// All sides.
#[derive(Debug)]
pub(super) struct Pools {
    pub(super) sides: Vec<Side>,
    config: Config,
    pub(super) messages: MessageConfig,
    fault: Option<Fault>,
    /// Requests to connect that have not ended.
    pub(super) asks: Vec<Ask>,
    /// Questions that have not ended, over initiators.
    pub(super) questions: Vec<Question>,
    /// The side whose messages, questions and answers are changed on their way.
    pub(super) liar: Option<usize>,
    pub(super) next_token: u64,
    /// Sides that have given up asking, and whom.
    pub(super) given_up: Vec<(usize, usize)>,
    pub(super) next_link: u64,
    /// Requests that were given up for one of the peer.
    pub(super) crossed: u64,
    /// Connections that were accepted and given up before they were complete.
    pub(super) abandoned: u64,
    next_epoch: u32,
    /// Who has asked, and who was said to have accepted it.
    pub(super) accepted: Vec<(EndId, EndId)>,
    /// Over initiators: questions that crossed, that were late, that found no place, for which an
    /// exchange before had to end, and nodes that were found silent.
    pub(super) met: [u64; 5],
    /// Messages and Writes that were executed.
    pub(super) executed: [u64; 2],
}

impl Pools {
    pub(super) fn new(
        config: &Config,
        messages: &MessageConfig,
        count: usize,
        fault: Option<Fault>,
    ) -> Self {
        let mut pools = Self {
            sides: Vec::new(),
            config: *config,
            messages: *messages,
            fault,
            asks: Vec::new(),
            questions: Vec::new(),
            liar: None,
            next_token: 0,
            given_up: Vec::new(),
            next_link: 0,
            crossed: 0,
            abandoned: 0,
            next_epoch: messages.epoch,
            accepted: Vec::new(),
            met: [0; 5],
            executed: [0; 2],
        };
        for _ in 0..count {
            let side = pools.new_side(count);
            pools.sides.push(side);
        }
        pools
    }

    fn new_side(&mut self, count: usize) -> Side {
        self.next_epoch = self.next_epoch.wrapping_add(1 << 20);
        let messages = MessageConfig {
            epoch: self.next_epoch,
            ..self.messages
        };
        let mut side = Side::new(&self.config, &messages, count, self.fault);
        self.next_link += 1;
        side.incarnation = self.next_link;
        side
    }

    /// The longest Send that goes in one message.
    pub(super) fn send_octets_max(&self) -> u32 {
        self.messages.send_octets_max(self.config.transport)
    }

    pub(super) fn turn(&mut self) -> Result<(), Finding> {
        let config = self.config;
        self.sides
            .iter_mut()
            .try_for_each(|side| side.turn(&config))
    }

    /// The other end of a connection, if it exists.
    pub(super) fn other_end(&self, side: usize, at: usize) -> Option<(usize, usize)> {
        let Qp { peer, link, .. } = self.sides[side].qps[at];
        let other = self.sides[peer].qps.iter();
        let mut other = other.zip(0..).filter(|(qp, _)| qp.link == link);
        let (_, found) = match peer == side {
            true => other.find(|(_, other)| *other != at)?,
            false => other.next()?,
        };
        Some((peer, found))
    }

    /// Where the next work request of a queue pair is executed, and the queue pair there of a
    /// connection; none if it is not now.
    fn destination(&self, side: usize, at: usize) -> Option<(usize, Option<usize>)> {
        let from = &self.sides[side];
        let qp = &from.qps[at];
        if !qp.is_initiator {
            let (peer, other) = self.other_end(side, at)?;
            return Some((peer, Some(other)));
        }
        let next = qp.posted.iter().find(|work| !work.is_executed)?;
        let node = next.transmit.node;
        // An initiator sends nothing to a node before all requests to the one before are complete.
        let mut before = qp.posted.iter().take_while(|work| work.is_executed);
        let is_free = before.all(|work| work.is_acknowledged || work.transmit.node == node);
        let peer = from.index_of(node).filter(|_| is_free)?;
        (from.routes[peer] == self.sides[peer].incarnation).then_some((peer, None))
    }

    /// Octets before the header of a message.
    pub(super) fn label_octets(&self) -> usize {
        self.config.transport.header_octets() - HEADER_OCTETS
    }

    /// Whether the oldest work request of an initiator goes to a process that has ended.
    pub(super) fn is_stale(&self, side: usize, at: usize) -> bool {
        let from = &self.sides[side];
        let qp = &from.qps[at];
        let oldest = from.oldest(at).filter(|_| qp.is_initiator && !qp.is_broken);
        oldest.is_some_and(|(peer, is_executed)| {
            !is_executed && from.routes[peer] != self.sides[peer].incarnation
        })
    }

    /// The next work request of a queue pair is executed at the other end. `Err(None)`: there is no
    /// Receive for the message.
    pub(super) fn execute(
        &mut self,
        side: usize,
        at: usize,
        change: Change<'_>,
    ) -> Result<Option<Operation>, Option<Finding>> {
        let Some((peer, other)) = self.destination(side, at) else {
            return Ok(None);
        };
        let qp = &mut self.sides[side].qps[at];
        let next = qp.posted.iter_mut().find(|work| !work.is_executed);
        let Some(next) = next.filter(|_| !qp.is_broken) else {
            return Ok(None);
        };
        if other.is_none() && next.transmit.header.is_some() && self.sides[peer].receives.is_empty()
        {
            return Err(None);
        }
        let qp = &mut self.sides[side].qps[at];
        let next = qp.posted.iter_mut().find(|work| !work.is_executed);
        let next = next.expect("it was found before");
        next.is_executed = true;
        let (work, elements) = (next.transmit, next.elements.clone());
        let Some(header) = work.header else {
            self.executed[1] += 1;
            return Ok(Some(work.operation));
        };
        self.executed[0] += 1;
        self.sides[side].check_registered(&elements).map_err(Some)?;
        let mut message = header.to_vec();
        message.extend(self.sides[side].gather(&elements));
        if message.len() > self.messages.buffer_octets as usize {
            return Err(Some("a message is longer than a buffer".to_owned()));
        }
        change(&mut message);
        let to = &mut self.sides[peer];
        let (id, receives) = match other {
            Some(other) => (Some(to.qps[other].id), &mut to.qps[other].receives),
            None => (None, &mut to.receives),
        };
        let buffer = receives.pop_front().ok_or(None)?;
        to.arrived.push_back((id, buffer, message));
        Ok(Some(work.operation))
    }

    /// Whose work request a queue pair executes next.
    pub(super) fn next_owner(&self, side: usize, at: usize) -> Option<VirtualId> {
        let side = &self.sides[side];
        let mut posted = side.qps[at].posted.iter();
        let next = posted.find(|work| !work.is_executed)?;
        let (slot, _, number) = parts_of(next.transmit.wr_id);
        let shared = &side.pool.physicals[usize::from(slot)];
        let in_flight = shared.in_flight.get(shared.place_of(number)?)?;
        Some(in_flight.of)
    }

    /// The driver of a side hands over a message; whether there was one.
    pub(super) fn arrive(&mut self, side: usize) -> bool {
        let share = self.messages.share;
        let side = &mut self.sides[side];
        let Some((id, buffer, message)) = side.arrived.pop_front() else {
            return false;
        };
        let header = self.config.transport.header_octets();
        let first = &message[..message.len().min(header)];
        let len = message.len();
        match id {
            Some(id) => {
                // It comes before the event that the connection is complete.
                side.complete(id, share);
                side.pool.handle_message(id, buffer, first, len);
            }
            None => side.pool.handle_target_message(buffer, first, len),
        }
        let label = header - HEADER_OCTETS;
        let decoded = first
            .get(label..)
            .map(|first| Header::decode(first, len - label));
        if let Some(Ok((header, _))) = decoded {
            if let Message::Accept(ends) = header.message {
                let opener = side.pool.messages.virtual_id(ends.destination);
                let member = side.pool.virtuals.get(opener.0);
                let end = member.and_then(|member| member.end.as_ref());
                if end.is_some_and(|end| end.remote == Some(ends.source)) {
                    self.accepted.push((ends.destination, ends.source));
                }
            }
        }
        side.buffers.insert(buffer, message);
        true
    }

    /// Both ends of a connection enter ERR, this one with a status for its oldest request.
    pub(super) fn break_link(&mut self, side: usize, at: usize, first: Status) {
        let other = self.other_end(side, at);
        self.sides[side].break_qp(at, first);
        if let Some((peer, other)) = other {
            self.sides[peer].break_qp(other, Status::Flushed);
        }
    }

    /// The driver of a side carries out its next action, if there is one.
    pub(super) fn act(&mut self, side: usize, is_reachable: bool) -> Result<(), Finding> {
        match self.sides[side].actions.pop_front() {
            Some(Action::Connect(id, node)) => self.ask(side, id, node, is_reachable),
            Some(Action::Destroy(id)) => self.destroy(side, id),
            Some(Action::Create(id)) => self.create(side, id, is_reachable),
            Some(Action::Ask(node)) => self.question(side, node, is_reachable),
            Some(Action::Deregister(id)) => {
                let was_registered = self.sides[side].keys.remove(&id).is_some();
                let once = was_registered.then_some(());
                once.ok_or("memory is deregistered twice".to_owned())
            }
            None => Ok(()),
        }
    }

    fn create(&mut self, side: usize, id: PhysicalId, is_possible: bool) -> Result<(), Finding> {
        if let Transport::Connections { .. } = self.config.transport {
            return fail("an initiator is created");
        }
        let own = &mut self.sides[side];
        if !is_possible {
            own.pool.handle_unreachable(id);
            return Ok(());
        }
        own.add_qp(id, side, self.next_link, 0);
        self.next_link += 1;
        own.qps.last_mut().expect("it was added").is_initiator = true;
        own.pool.handle_connected(id);
        Ok(())
    }

    fn destroy(&mut self, side: usize, id: PhysicalId) -> Result<(), Finding> {
        self.give_up(side, id, None)?;
        if let Some(at) = self.sides[side].qp(id) {
            self.break_link(side, at, Status::Flushed);
            while self.arrive(side) {}
            while self.sides[side].handle_one() {}
            let config = self.config;
            self.sides[side].turn(&config)?;
            while self.sides[side].handle_one() {}
            self.sides[side].qps.remove(at);
        }
        self.sides[side].pool.handle_destroyed(id);
        Ok(())
    }

    /// A side ends, and another process takes its place.
    pub(super) fn restart(&mut self, side: usize) {
        while !self.sides[side].qps.is_empty() {
            self.break_link(side, 0, Status::Flushed);
            self.sides[side].qps.remove(0);
        }
        self.end_asks(side);
        let count = self.sides.len();
        self.sides[side] = self.new_side(count);
    }

    pub(super) fn any_qp(&self, rng: &mut Rng) -> Option<(usize, usize)> {
        let side = rng.below_len(self.sides.len());
        let count = self.sides[side].qps.len();
        (count > 0).then(|| (side, rng.below_len(count)))
    }
}
