//! Users of several pools that open virtual queue pairs to each other's services, against a plain
//! model of what each end has sent and received.

use std::collections::VecDeque;

use super::pools::{Pools, USERS};
use super::work::fail;
use super::{Finding, Rng};
use crate::fault::Fault;
use crate::header::EndId;
use crate::{
    Access, Completion, Config, Depths, Element, EndState, MessageConfig, Operation, PostError,
    Received, Request, SendRequest, Status, UserId, VirtualId, VirtualState,
};

pub(super) const SERVICES: u32 = 2;

/// A Send.
#[derive(Clone, Debug)]
struct Sent {
    /// The number of its request, and how that has ended.
    id: u64,
    status: Option<Status>,
    octets: Vec<u8>,
    immediate: Option<u32>,
    /// Writes of the same end before it.
    writes: u64,
}

/// A Receive that is not complete.
#[derive(Debug)]
struct Waiting {
    id: u64,
    elements: Vec<(u64, usize)>,
}

/// A virtual queue pair.
#[derive(Debug)]
pub(super) struct End {
    pub(super) side: usize,
    pub(super) peer: usize,
    pub(super) id: VirtualId,
    user: UserId,
    service: u32,
    /// How messages name it.
    own: EndId,
    /// The other end.
    pub(super) pair: Option<usize>,
    sent: Vec<Sent>,
    writes: u64,
    pub(super) executed_writes: u64,
    /// Receives that were posted.
    receives: u64,
    waiting: VecDeque<Waiting>,
    pub(super) received: usize,
    /// Requests without a completion, all of which are signaled.
    requests: VecDeque<u64>,
    pub(super) is_open: bool,
    /// It may fail: its other end has, was closed or refused it, or a failure was its own.
    pub(super) is_excused: bool,
    /// One of its requests has.
    has_failed: bool,
    /// The message of the other end that was longer than its Receive.
    pub(super) too_long: Option<usize>,
    /// Messages that came in segments.
    pub(super) long: u64,
}

/// The users.
#[derive(Debug)]
pub(super) struct Users {
    pub(super) pools: Pools,
    pub(super) ends: Vec<End>,
    /// How many messages were changed.
    pub(super) lies: u64,
    pub(super) writes: bool,
    config: Config,
    next_serial: u64,
}

impl Users {
    pub(super) fn new(
        config: &Config,
        messages: &MessageConfig,
        sides: usize,
        fault: Option<Fault>,
    ) -> Self {
        let mut pools = Pools::new(config, messages, sides, fault);
        for side in &mut pools.sides {
            (0..SERVICES).for_each(|service| side.pool.listen(service).unwrap());
        }
        Self {
            pools,
            ends: Vec::new(),
            lies: 0,
            writes: false,
            config: *config,
            next_serial: 0,
        }
    }

    /// A side begins anew.
    pub(super) fn restart(&mut self, side: usize) {
        self.pools.restart(side);
        let pool = &mut self.pools.sides[side].pool;
        (0..SERVICES).for_each(|service| pool.listen(service).unwrap());
    }

    fn end(&mut self, side: usize, peer: usize, id: VirtualId, of: (UserId, u32)) -> usize {
        let own = self.pools.sides[side].pool.messages.end_id(id);
        self.ends.push(End {
            own,
            side,
            peer,
            id,
            user: of.0,
            service: of.1,
            pair: None,
            sent: Vec::new(),
            writes: 0,
            executed_writes: 0,
            receives: 0,
            waiting: VecDeque::new(),
            received: 0,
            requests: VecDeque::new(),
            is_open: true,
            is_excused: false,
            has_failed: false,
            too_long: None,
            long: 0,
        });
        self.ends.len() - 1
    }

    /// A virtual queue pair of the process that is there now.
    pub(super) fn index_of(&self, side: usize, id: VirtualId) -> Option<usize> {
        let is_it = |end: &End| end.side == side && end.id == id;
        self.ends.iter().rposition(is_it)
    }

    /// Whether a lie may concern an end.
    pub(super) fn is_lied_to(&self, at: usize) -> bool {
        let End { side, peer, .. } = self.ends[at];
        self.pools
            .liar
            .is_some_and(|liar| liar == side || liar == peer)
    }

    pub(super) fn open(&mut self, side: usize, peer: usize, rng: &mut Rng) -> Option<usize> {
        let (user, service) = (UserId(rng.bits32() % USERS), rng.bits32() % SERVICES);
        let depths = Depths {
            requests: rng.between(1, 8) as u32,
            receives: rng.between(1, 8) as u32,
        };
        let own = &mut self.pools.sides[side];
        let at = (own.nodes[peer], service);
        let id = own.pool.open_service(user, at, depths, Access::ALL).ok()?;
        Some(self.end(side, peer, id, (user, service)))
    }

    /// A service accepts one that waits, or refuses it.
    pub(super) fn accept(&mut self, side: usize, rng: &mut Rng) -> Result<Option<usize>, Finding> {
        let (user, service) = (UserId(rng.bits32() % USERS), rng.bits32() % SERVICES);
        let depths = Depths {
            requests: rng.between(1, 8) as u32,
            receives: rng.between(1, 8) as u32,
        };
        let own = &mut self.pools.sides[side].pool;
        let accepted = own.accept(service, user, depths, Access::ALL);
        let Ok(Some(id)) = accepted else {
            return Ok(None);
        };
        let member = own.virtuals.get(id.0).unwrap();
        let (node, remote) = (member.node, member.end.as_ref().unwrap().remote.unwrap());
        let nodes = &self.pools.sides[side].nodes;
        let peer = nodes.iter().position(|known| *known == node).unwrap();
        let opener = self.pools.sides[peer].pool.messages.virtual_id(remote);
        let at = self.end(side, peer, id, (user, service));
        // One that has ended, or was never there, has no pair.
        let opener = self.index_of(peer, opener).filter(|other| {
            let other = &self.ends[*other];
            other.peer == side && other.is_open
        });
        let Some(other) = opener else {
            self.ends[at].is_excused = true;
            return Ok(Some(at));
        };
        if self.ends[other].service != service && !self.is_lied_to(at) {
            return fail("another service accepts a virtual queue pair");
        }
        self.ends[at].pair = Some(other);
        // It asks again after a failure: one that was closed, or its process, may have accepted it.
        if self.ends[other].is_excused || self.ends[other].pair.is_some() {
            self.excuse(at);
        }
        self.ends[other].pair.get_or_insert(at);
        Ok(Some(at))
    }

    /// Notes who has accepted those that have asked.
    fn note_accepted(&mut self) {
        for (opener, accepted) in std::mem::take(&mut self.pools.accepted) {
            let of = |id: EndId| self.ends.iter().position(|end| end.own == id);
            if let (Some(opener), Some(accepted)) = (of(opener), of(accepted)) {
                self.ends[opener].pair = Some(accepted);
            }
        }
    }

    pub(super) fn refuse(&mut self, side: usize, rng: &mut Rng) {
        let service = rng.bits32() % SERVICES;
        let pool = &mut self.pools.sides[side].pool;
        let first = pool.messages.services[&service].front().copied();
        if pool.refuse(service) == Ok(true) {
            let first = first.unwrap();
            let nodes = &self.pools.sides[side].nodes;
            let peer = nodes.iter().position(|node| *node == first.node).unwrap();
            let opener = self.pools.sides[peer]
                .pool
                .messages
                .virtual_id(first.source);
            if let Some(at) = self.index_of(peer, opener) {
                self.ends[at].is_excused = true;
            }
        }
    }

    /// An end and its other one may fail.
    pub(super) fn excuse(&mut self, at: usize) {
        self.ends[at].is_excused = true;
        if let Some(pair) = self.ends[at].pair {
            self.ends[pair].is_excused = true;
        }
    }

    fn element(&mut self, at: usize, len: usize) -> (Element, (u64, usize)) {
        let End { side, user, .. } = self.ends[at];
        let side = &mut self.pools.sides[side];
        let addr = side.place(user, len);
        let element = Element {
            local: side.locals[user.0 as usize],
            addr,
            len_octets: len as u32,
        };
        (element, (addr, len))
    }

    /// Elements of a message of a length, or of the next Receive.
    fn elements(
        &mut self,
        at: usize,
        len: usize,
        rng: &mut Rng,
    ) -> (Vec<Element>, Vec<(u64, usize)>) {
        let first = rng.below_len(len + 1);
        let most = u64::from(self.config.elements_max);
        let lens = match rng.between(1, most) {
            1 => vec![len],
            _ => vec![first, len - first],
        };
        lens.into_iter().map(|len| self.element(at, len)).unzip()
    }

    pub(super) fn send(&mut self, at: usize, rng: &mut Rng) -> Result<(), Finding> {
        let most = self.config.message_octets_max;
        let segment = self.pools.send_octets_max() as usize;
        let len = match rng.below(20) {
            0 => most as usize + rng.below_len(2),
            1 => segment + rng.below_len(2),
            2..=5 => rng.below_len(most as usize),
            _ => rng.below_len(segment / 2),
        };
        let mut octets = vec![0; len];
        rng.fill(&mut octets);
        let (elements, places) = self.elements(at, len, rng);
        let End { side, id, .. } = self.ends[at];
        let mut rest = &octets[..];
        for (addr, len) in places {
            let (first, others) = rest.split_at(len);
            self.pools.sides[side]
                .octets(addr, len)
                .copy_from_slice(first);
            rest = others;
        }
        let serial = self.next_serial;
        let immediate = rng.percent(50).then(|| rng.bits32());
        let request = SendRequest {
            id: serial,
            immediate,
            is_signaled: true,
        };
        let pool = &mut self.pools.sides[side].pool;
        let posted = pool.post_send(id, &request, &elements);
        let is_long = len > most as usize;
        match posted {
            Ok(()) if is_long => return fail("a Send is taken that is longer than configured"),
            Ok(()) => {}
            Err(PostError::Length) if is_long => return Ok(()),
            Err(PostError::QueueFull | PostError::InvalidState) => return Ok(()),
            Err(error) => return fail(format!("a Send is refused: {error}")),
        }
        self.next_serial += 1;
        let end = &mut self.ends[at];
        end.requests.push_back(serial);
        end.sent.push(Sent {
            id: serial,
            status: None,
            octets,
            immediate,
            writes: end.writes,
        });
        Ok(())
    }

    /// A Write, which is to be placed before later Sends are received.
    pub(super) fn write(&mut self, at: usize) {
        let (element, _) = self.element(at, 8);
        let End { side, peer, id, .. } = self.ends[at];
        let side = &mut self.pools.sides[side];
        let request = Request {
            id: self.next_serial,
            operation: Operation::Write,
            remote: side.remotes[peer],
            remote_addr: 0,
            is_signaled: true,
        };
        if side.pool.post(id, &request, &[element]).is_ok() {
            self.next_serial += 1;
            self.ends[at].writes += 1;
            self.ends[at].requests.push_back(request.id);
        }
    }

    pub(super) fn receive(&mut self, at: usize, rng: &mut Rng) -> Result<(), Finding> {
        let most = self.config.message_octets_max as usize;
        // Now and then, one is shorter than the message.
        let len = match rng.percent(4) {
            true => rng.below_len(most),
            false => most,
        };
        let (elements, places) = self.elements(at, len, rng);
        let End { side, id, .. } = self.ends[at];
        let serial = self.next_serial;
        match self.pools.sides[side]
            .pool
            .post_receive(id, serial, &elements)
        {
            Ok(()) => {}
            Err(PostError::ReceiveQueueFull | PostError::InvalidState) => return Ok(()),
            Err(error) => return fail(format!("a Receive is refused: {error}")),
        }
        self.next_serial += 1;
        self.ends[at].receives += 1;
        self.ends[at].waiting.push_back(Waiting {
            id: serial,
            elements: places,
        });
        Ok(())
    }

    pub(super) fn close(&mut self, at: usize) -> Result<(), Finding> {
        let End { side, id, .. } = self.ends[at];
        self.poll(at)?;
        let closed = self.pools.sides[side].pool.close(id);
        closed.map_err(|error| error.to_string())?;
        self.excuse(at);
        self.ends[at].is_open = false;
        Ok(())
    }

    /// A user polls both queues until they are empty.
    pub(super) fn poll(&mut self, at: usize) -> Result<(), Finding> {
        self.note_accepted();
        let End {
            side, id, is_open, ..
        } = self.ends[at];
        if !is_open {
            return Ok(());
        }
        self.poll_received(at)?;
        while let Some(done) = self.pools.sides[side].pool.poll(id) {
            self.completed(at, &done)?;
        }
        let pool = &self.pools.sides[side].pool;
        if pool.state(id) == Some(VirtualState::Error) {
            self.note_failed(at)?;
        }
        Ok(())
    }

    fn poll_received(&mut self, at: usize) -> Result<(), Finding> {
        let End { side, id, .. } = self.ends[at];
        while let Some(received) = self.pools.sides[side].pool.poll_received(id) {
            self.received(at, &received)?;
        }
        Ok(())
    }

    fn note_failed(&mut self, at: usize) -> Result<(), Finding> {
        // A message may be longer than its Receive, which is not polled yet.
        if let Some(pair) = self.ends[at].pair.filter(|_| !self.ends[at].is_excused) {
            self.poll_received(pair)?;
        }
        let end = &self.ends[at];
        let state_of = |end: &End| self.pools.sides[end.side].pool.end_state(end.id);
        let (state, refused) = (state_of(end), Some(EndState::Refused));
        // Too many have waited for the service. Over initiators, it may have been asked again,
        // since the first message was not known to have arrived, and have accepted then. Either
        // end may be polled first.
        let is_met = self.pools.label_octets() > 0;
        let pair = end.pair.filter(|_| is_met).map(|pair| &self.ends[pair]);
        let is_alone = end.pair.is_none() || is_met;
        let is_refused = state == refused && is_alone || pair.and_then(state_of) == refused;
        if !end.is_excused && !is_refused && !self.is_lied_to(at) {
            return fail(format!("end {at} fails without a reason"));
        }
        if !matches!(state, Some(EndState::Closed | EndState::Refused)) {
            return fail(format!("end {at} is {state:?} after an error"));
        }
        self.excuse(at);
        Ok(())
    }

    fn received(&mut self, at: usize, received: &Received) -> Result<(), Finding> {
        let waiting = self.ends[at].waiting.pop_front();
        let waiting = waiting.filter(|waiting| waiting.id == received.id);
        let waiting = waiting.ok_or("a Receive completes out of order")?;
        if received.status == Status::Flushed {
            return self.note_failed(at);
        }
        let number = self.ends[at].received;
        self.ends[at].received += 1;
        let place: usize = waiting.elements.iter().map(|(_, len)| len).sum();
        let mut octets = Vec::new();
        for (addr, len) in waiting.elements {
            let side = &mut self.pools.sides[self.ends[at].side];
            octets.extend_from_slice(side.octets(addr, len));
        }
        let len = received.len_octets as usize;
        let pair = self.ends[at].pair;
        let Some(pair) = pair.filter(|_| !self.is_lied_to(at)) else {
            let is_allowed = self.is_lied_to(at);
            return is_allowed
                .then_some(())
                .ok_or("a message comes from nowhere".to_owned());
        };
        let other = &self.ends[pair];
        let sent = other.sent.get(number).ok_or("a message was not sent")?;
        if received.status == Status::LocalLength {
            let is_long = place < sent.octets.len();
            self.ends[at].too_long = Some(number);
            self.excuse(at);
            return match is_long && octets.iter().all(|octet| *octet == 0) {
                true => Ok(()),
                false => fail("a message is not longer than its Receive, or was copied"),
            };
        }
        if received.status != Status::Success || len != sent.octets.len() {
            return fail(format!("end {at} receives {received:?}, not {sent:?}"));
        }
        if octets[..len] != sent.octets || received.immediate != sent.immediate {
            return fail(format!(
                "end {at} receives another message than its {number}th"
            ));
        }
        if octets[len..].iter().any(|octet| *octet != 0) {
            return fail("a message is copied beyond its length");
        }
        if other.executed_writes < sent.writes {
            return fail("a Send is received before an earlier Write is placed");
        }
        self.ends[at].long += u64::from(len > self.pools.send_octets_max() as usize);
        Ok(())
    }

    fn completed(&mut self, at: usize, done: &Completion) -> Result<(), Finding> {
        let expected = self.ends[at].requests.pop_front();
        if expected != Some(done.id) {
            return fail(format!("{done:?} in place of {expected:?}"));
        }
        let mut sent = self.ends[at].sent.iter_mut();
        if let Some(sent) = sent.rfind(|sent| sent.id == done.id) {
            sent.status = Some(done.status);
        }
        if done.status != Status::Success {
            self.ends[at].has_failed = true;
            return self.note_failed(at);
        }
        match self.ends[at].has_failed {
            true => fail("a request succeeds behind one that has failed"),
            false => Ok(()),
        }
    }

    /// Whether the user of an end may go on.
    fn is_ready(&self, at: usize) -> bool {
        let End { side, id, .. } = self.ends[at];
        self.ends[at].is_open && self.pools.sides[side].pool.state(id) == Some(VirtualState::Ready)
    }

    /// Both ends of a pair have ended, or none, and what has ended has given everything back.
    fn ends_are_even(&self) -> Result<(), Finding> {
        for (at, end) in self.ends.iter().enumerate() {
            if !end.is_open || self.is_lied_to(at) {
                continue;
            }
            let is_ready = self.is_ready(at);
            let has_nothing = end.waiting.is_empty() && end.requests.is_empty();
            if !is_ready && !has_nothing {
                return fail(format!(
                    "end {at} has failed, and not all that it had has ended"
                ));
            }
            // The service may have begun anew before it had accepted this one.
            let state = self.pools.sides[end.side].pool.end_state(end.id);
            let is_opening = state == Some(EndState::Opening);
            if is_ready && !is_opening && end.pair.is_some_and(|pair| !self.is_ready(pair)) {
                return fail(format!("end {at} goes on without the other one"));
            }
        }
        Ok(())
    }

    /// How the Send ended that was longer than its Receive, if it was longer than a message and
    /// its user was told.
    pub(super) fn refused(&self, at: usize) -> Option<Status> {
        let other = &self.ends[self.ends[at].pair?];
        let sent = &other.sent[self.ends[at].too_long?];
        let is_long = sent.octets.len() > self.pools.send_octets_max() as usize;
        // Its own end may have failed at the same time.
        let is_known = is_long && other.too_long.is_none() && !self.is_lied_to(at);
        sent.status.filter(|_| is_known)
    }

    /// A Send that is longer than its Receive ends with an error that says so, unless connections
    /// break, and never succeeds.
    pub(super) fn refused_are_told(&self, may_break: bool) -> Result<(), Finding> {
        for at in 0..self.ends.len() {
            match self.refused(at) {
                None | Some(Status::RemoteInvalidRequest) => {}
                Some(status) if may_break && status != Status::Success => {}
                Some(status) => {
                    return fail(format!(
                        "a Send that end {at} has refused ends with {status:?}"
                    ))
                }
            }
        }
        Ok(())
    }

    /// Of pairs that have not failed, what could be received has been.
    pub(super) fn all_done(&self) -> Result<(), Finding> {
        self.ends_are_even()?;
        for (at, end) in self.ends.iter().enumerate() {
            if !end.is_open || end.is_excused || self.is_lied_to(at) {
                continue;
            }
            let state = self.pools.sides[end.side].pool.end_state(end.id);
            let Some(pair) = end.pair.map(|pair| &self.ends[pair]) else {
                // It was opened, and waits for its service.
                if state != Some(EndState::Opening) {
                    return fail(format!("end {at} is {state:?} without another one"));
                }
                continue;
            };
            if !matches!(state, Some(EndState::Open | EndState::Accepted)) {
                return fail(format!("end {at} is {state:?}"));
            }
            let possible = (end.receives as usize).min(pair.sent.len());
            if end.received != possible {
                return fail(format!("end {at} received {} of {possible}", end.received));
            }
            let is_blocked = end.sent.len() > pair.receives as usize;
            if !is_blocked && !end.requests.is_empty() {
                return fail(format!("a request of end {at} does not end"));
            }
        }
        Ok(())
    }
}
