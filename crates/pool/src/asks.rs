//! Exchanges over initiators: how they begin, and how they end.
//!
//! An initiator reaches each node, so that no message tells by its queue pair from which one it
//! comes, and no connection is made by which two pools could tell each other their shares. They do
//! so by a question and its answer. Both may ask at the same time: what each one tells is the same
//! in its question and in its answer, so that it does not matter which comes first, or twice.
//!
//! ```text
//!    none    -- a virtual queue pair is opened to a service --> Asking
//!    none    -- the node asks --> Ready
//!    Asking  -- the node answers, or asks --> Ready
//!    Asking  -- the node does not answer --> Ended; its virtual queue pairs fail
//!    Ready   -- it is the one that was used least recently --> Leaving
//!    Ready   -- the node leaves, or has begun anew --> Ended
//!    Ready   -- the node does not take a message --> Silent; its virtual queue pairs fail
//!    Silent  -- something comes from the node --> Leaving
//!    Silent  -- a virtual queue pair is opened to a service; the node asks --> Ended
//!    Leaving -- the node knows --> Ended
//!    Ended   -- no message is in flight --> Asking if virtual queue pairs wait for it, or none
//! ```
//!
//! The terms of a question serve one exchange. If they come again when it has ended, the question
//! is a copy that was late, or its node has not been told yet: it is to ask again later, by other
//! terms. If an answer has others than its node has told by a question of its own, two processes of
//! that node have told them. Which one is there is not known, so that the exchange ends.
//!
//! A message that was in flight when its initiator failed may have arrived. It takes a buffer of
//! the node's share then, and none if it has not. The next message has its number, by which the
//! node knows that it has counted it.

use crate::config::Transport;
use crate::credit::{Class, Credit, Grant, SHARE_MIN};
use crate::error::CallError;
use crate::exchange::{Control, Exchange, ExchangeId};
use crate::fault::Fault;
use crate::meeting::{Meeting, PoolTerms, Stage};
use crate::pool::Pool;
use crate::types::{Action, EndState, NodeId};

/// Probes in a row that a node may leave without an answer.
const PROBES_MAX: u8 = 3;

impl Pool {
    /// The exchange of a virtual queue pair that is opened to a node, which may be its first one.
    pub(crate) fn exchange_for(&mut self, node: NodeId) -> Result<ExchangeId, CallError> {
        match self.config.transport {
            Transport::Connections { .. } => {
                let physical = self.choose_physical(node)?;
                self.exchanges.of_connection(physical);
                Ok(self.exchanges.id_of_connection(physical))
            }
            Transport::Initiators { .. } => {
                let known = self.exchanges.id_of_node(node);
                if let Some(id) = known.filter(|id| self.stage(*id) == Some(Stage::Silent)) {
                    self.part(id, EndState::Closed);
                }
                if let Some(id) = self.exchanges.id_of_node(node) {
                    return Ok(id);
                }
                let id = self.meet(node)?;
                self.actions.push_back(Action::Ask(node));
                Ok(id)
            }
        }
    }

    /// Begins an exchange with a node over an initiator.
    fn meet(&mut self, node: NodeId) -> Result<ExchangeId, CallError> {
        let most = self.messages.config.map_or(0, |config| config.peers_max);
        if self.exchanges.count() >= most {
            return Err(CallError::Limit("nodes with which messages are exchanged"));
        }
        let physical = self.choose_unswitched(node)?;
        let known = self.nodes.get_mut(node.0).ok_or(CallError::Unknown)?;
        known.members += 1;
        let now = self.idle.tick();
        Ok(self.exchanges.add(physical, Meeting::new(node, now)))
    }

    /// What a node is told for [`Action::Ask`], with a random number that was told to none before.
    /// None: it is not to be asked any more.
    pub fn ask(&mut self, node: NodeId, token: u64) -> Option<PoolTerms> {
        let id = self.exchanges.id_of_node(node)?;
        let meeting = self.exchanges.get(id)?.meeting.as_ref()?;
        match meeting.stage == Stage::Asking && meeting.told.is_none() {
            true => self.own_terms(id, token),
            false => None,
        }
    }

    /// What the node of an exchange is told: the same each time.
    fn own_terms(&mut self, id: ExchangeId, token: u64) -> Option<PoolTerms> {
        let config = self.messages.config?;
        let number = self.messages.next_number;
        let exchange = self.exchanges.get_mut(id)?;
        let meeting = exchange.meeting.as_mut()?;
        if let Some(own) = meeting.own {
            return Some(own);
        }
        let own = PoolTerms {
            epoch: config.epoch,
            number,
            token,
            share: config.share,
        };
        meeting.own = Some(own);
        exchange.grant = Grant::new(config.share);
        self.messages.next_number = number.wrapping_add(1);
        self.exchanges.name(token, id);
        Some(own)
    }

    /// A node asks to exchange messages: what it is told, with a random number that was told to
    /// none before. None: it is to ask again later. The driver hands over the messages that have
    /// arrived before it calls.
    ///
    /// # Errors
    /// If the pool exchanges no messages over initiators, the node is unknown, its question is one
    /// that was late, or there are as many exchanges as configured.
    pub fn handle_asked(
        &mut self,
        node: NodeId,
        terms: PoolTerms,
        token: u64,
    ) -> Result<Option<PoolTerms>, CallError> {
        self.book();
        self.messages.config.ok_or(CallError::NoMessages)?;
        if matches!(self.config.transport, Transport::Connections { .. }) {
            return Err(CallError::NoMessages);
        }
        let last = self.last_told(node);
        if last.is_some_and(|last| terms.is_older_than(&last)) {
            return Err(CallError::Unknown);
        }

        let known = self.exchanges.id_of_node(node);
        let may_agree = known.is_some_and(|id| self.may_agree(id, &terms));
        if last == Some(terms) && !may_agree {
            // It asks again as long as it does not know that the exchange by these has ended.
            if let Some(id) = known {
                self.note_heard(id);
            }
            return Ok(None);
        }
        if let Some(id) = known.filter(|_| !may_agree) {
            // It has begun anew, or has left.
            self.part(id, EndState::Closed);
        }
        let known = self.exchanges.id_of_node(node);
        let id = known.map_or_else(|| self.meet(node), Ok)?;
        if !self.may_agree(id, &terms) {
            return Ok(None);
        }
        let own = self.own_terms(id, token);
        self.agree(id, terms);
        Ok(own)
    }

    /// The last terms that a node has told by which messages were exchanged.
    fn last_told(&self, node: NodeId) -> Option<PoolTerms> {
        let told = self.nodes.get(node.0)?.told;
        told.filter(|_| !self.faults.has(Fault::LateQuestionsTaken))
    }

    /// Whether the terms of a node may be those of an exchange: it waits for new ones, or has them.
    fn may_agree(&self, id: ExchangeId, terms: &PoolTerms) -> bool {
        let meeting = self.exchanges.get(id).and_then(|found| found.meeting);
        let is_new = |node| {
            let last = self.last_told(node);
            last.is_none_or(|last| *terms != last && !terms.is_older_than(&last))
        };
        meeting.is_some_and(|meeting| match meeting.stage {
            Stage::Asking => is_new(meeting.node),
            Stage::Ready => meeting.told == Some(*terms),
            Stage::Silent | Stage::Leaving | Stage::Ended => false,
        })
    }

    /// The terms of a node are known. What waits for it is sent.
    fn agree(&mut self, id: ExchangeId, terms: PoolTerms) {
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        let Some(meeting) = &mut exchange.meeting else {
            return;
        };
        if meeting.stage != Stage::Asking {
            return;
        }
        (meeting.stage, meeting.told) = (Stage::Ready, Some(terms));
        if let Some(node) = self.nodes.get_mut(meeting.node.0) {
            node.told = Some(terms);
        }
        exchange.credit = Credit::new(terms.share);
        for opening in exchange.ends.clone() {
            self.send_own(id, Control::Open(opening));
        }
        self.feed(id);
    }

    /// A node has answered what it was asked; whether messages are exchanged by these terms.
    pub fn handle_answered(&mut self, node: NodeId, asked: PoolTerms, terms: PoolTerms) -> bool {
        self.book();
        let Some(id) = self.asked(node, asked) else {
            return false;
        };
        let stage = self.stage(id);
        if !matches!(stage, Some(Stage::Asking | Stage::Ready)) {
            return false;
        }
        if terms.share < SHARE_MIN {
            self.part(id, EndState::Refused);
            return false;
        }
        let is_agreed = self.may_agree(id, &terms);
        let last = self.last_told(node);
        if is_agreed {
            self.agree(id, terms);
        } else if stage == Some(Stage::Asking)
            || last.is_none_or(|last| !terms.is_older_than(&last))
        {
            // It has begun anew since it has asked, or does not know that the exchange by these
            // has ended.
            self.part(id, EndState::Closed);
        }
        is_agreed
    }

    /// The exchange for which a node was asked, if it is still that.
    fn asked(&self, node: NodeId, asked: PoolTerms) -> Option<ExchangeId> {
        let id = self.exchanges.id_of_node(node)?;
        let meeting = self.exchanges.get(id)?.meeting?;
        (meeting.own == Some(asked)).then_some(id)
    }

    /// A node has not answered what it was asked: the virtual queue pairs that wait for it fail. If
    /// it has asked meanwhile, they do not.
    pub fn handle_unanswered(&mut self, node: NodeId, asked: PoolTerms) {
        self.book();
        let id = self.asked(node, asked);
        if let Some(id) = id.filter(|id| self.stage(*id) == Some(Stage::Asking)) {
            self.fail_exchange(id);
        }
    }

    /// Ends the exchanges with the node that has had no virtual queue pair to a service for the
    /// longest time, of those that have none: whether one ends. It has ended when the node knows.
    pub fn end_idle_exchange(&mut self) -> bool {
        self.book();
        let incoming = self.messages.services.values().flatten();
        let waiting: Vec<NodeId> = incoming.map(|incoming| incoming.node).collect();
        let is_idle = |exchange: &Exchange, meeting: &Meeting| match meeting.stage {
            Stage::Ready => {
                exchange.ends.is_empty()
                    && exchange.controls.is_empty()
                    && exchange.credit.permits(Class::Control)
                    && !waiting.contains(&meeting.node)
            }
            Stage::Silent => true,
            Stage::Asking | Stage::Leaving | Stage::Ended => false,
        };
        let all = self.exchanges.all();
        let all = all.filter_map(|(id, exchange)| {
            let meeting = exchange.meeting.as_ref()?;
            let order = (meeting.stage == Stage::Ready, meeting.idle_since);
            is_idle(exchange, meeting).then_some((order, id))
        });
        let longest = all.min_by_key(|(order, _)| *order);
        if let Some((_, id)) = longest {
            self.send_leave(id);
        }
        longest.is_some()
    }

    /// Nodes with which messages are exchanged over initiators, or were and are being told.
    pub fn exchanges(&self) -> u32 {
        self.exchanges.count()
    }

    /// Whether a node is being told that exchanges with it end.
    pub fn is_leaving(&self) -> bool {
        let mut all = self.exchanges.all();
        all.any(|(_, exchange)| exchange.stage() == Some(Stage::Leaving))
    }

    /// Ends the exchanges with all nodes, which are told so. No virtual queue pair to a service is
    /// to be opened any more.
    pub fn end_exchanges(&mut self) {
        self.book();
        let all = self.exchanges.all();
        let ready = all.filter(|(_, exchange)| exchange.stage() == Some(Stage::Ready));
        let ready: Vec<ExchangeId> = ready.map(|(id, _)| id).collect();
        for id in ready {
            self.close_ends(id, false);
            self.send_leave(id);
        }
    }

    /// Something has come from the node of an exchange.
    pub(crate) fn note_heard(&mut self, id: ExchangeId) {
        if self.stage(id) == Some(Stage::Silent) {
            self.send_leave(id);
        }
    }

    /// Tells the node of an exchange without virtual queue pairs that it ends.
    pub(crate) fn send_leave(&mut self, id: ExchangeId) {
        let exchange = self.exchanges.get_mut(id);
        let may_send = |found: &&mut Exchange| found.credit.permits(Class::Control);
        let Some(exchange) = exchange.filter(may_send) else {
            // It cannot be told.
            return self.part(id, EndState::Closed);
        };
        if let Some(meeting) = &mut exchange.meeting {
            meeting.stage = Stage::Leaving;
            self.send_own(id, Control::Leave);
        }
    }

    /// Asks each node from which nothing has come since the last call whether it is there, if
    /// virtual queue pairs to it wait. If nothing has come since four calls, they fail.
    pub fn probe_silent(&mut self) {
        self.book();
        let mut silent = Vec::new();
        for (id, exchange) in self.exchanges.all_mut() {
            let (has_ends, is_sending) = (!exchange.ends.is_empty(), !exchange.controls.is_empty());
            let Some(meeting) = &mut exchange.meeting else {
                continue;
            };
            if !has_ends || meeting.stage != Stage::Ready {
                meeting.unheard = 0;
                continue;
            }
            if meeting.unheard > 0 {
                silent.push((id, meeting.unheard, is_sending));
            }
            meeting.unheard = meeting.unheard.saturating_add(1);
        }
        for (id, unheard, is_sending) in silent {
            if unheard > PROBES_MAX {
                self.fail_exchange(id);
            } else if !is_sending {
                self.send_own(id, Control::Probe);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{Header, Label, Message};
    use crate::{Access, Config, Depths, MessageConfig, Posted, Status, UserId, VirtualId};

    const SERVICE: u32 = 1;
    const SHARE: u16 = 8;
    const DEPTHS: Depths = Depths {
        requests: 1,
        receives: 1,
    };

    /// A pool of an initiator that knows three nodes.
    fn pool(peers_max: u32) -> (Pool, [NodeId; 3]) {
        let transport = Transport::Initiators { count: 1 };
        let config = Config {
            transport,
            ..Config::default()
        };
        let mut pool = Pool::new(&config).unwrap();
        let messages = MessageConfig {
            epoch: 1,
            buffer_octets: 4096,
            share: SHARE,
            backlog: 1,
            peers_max,
        };
        pool.offer_messages(&messages).unwrap();
        pool.listen(SERVICE).unwrap();
        let nodes = [(); 3].map(|()| pool.add_node().unwrap());
        (pool, nodes)
    }

    /// What a node tells by its question of this number.
    fn terms(number: u32) -> PoolTerms {
        PoolTerms {
            epoch: 2,
            number,
            token: number.into(),
            share: SHARE,
        }
    }

    fn open(pool: &mut Pool, node: NodeId) -> Result<VirtualId, CallError> {
        pool.open_service(UserId(0), (node, SERVICE), DEPTHS, Access::ALL)
    }

    fn stage_with(pool: &Pool, node: NodeId) -> Option<Stage> {
        pool.stage(pool.exchanges.id_of_node(node)?)
    }

    /// Creates what the pool wants, and has all arrive that it sends: what that is, and to whom.
    fn sent(pool: &mut Pool) -> Vec<(NodeId, Vec<u8>)> {
        while let Some(action) = pool.poll_action() {
            if let Action::Create(id) = action {
                pool.handle_connected(id);
            }
        }
        let (mut sent, mut posted) = (Vec::new(), Vec::new());
        pool.transmit(|work, _| {
            posted.push(work.wr_id);
            let header = work.header.unwrap();
            sent.push((work.node, header.to_vec()));
            Posted::Accepted
        });
        for wr_id in posted {
            pool.handle_completion(wr_id, Status::Success);
        }
        sent
    }

    /// The first message arrives of a node that was told these terms.
    fn deliver_probe(pool: &mut Pool, told: &PoolTerms) {
        let label = Label {
            token: told.token,
            number: 1,
        };
        let header = Header {
            buffers: SHARE,
            message: Message::Probe,
        };
        let octets = header.with_label(Some(label));
        pool.handle_target_message(0, &octets, octets.len());
    }

    fn message_of(octets: &[u8]) -> Message {
        let (_, rest) = Label::decode(octets).unwrap();
        Header::decode(rest, rest.len()).unwrap().0.message
    }

    /// Has what one pool sends arrive at the other one, and so on.
    fn carry(pools: [&mut Pool; 2]) {
        let [one, other] = pools;
        let mut is_moving = true;
        while is_moving {
            let (there, back) = (sent(one), sent(other));
            is_moving = !there.is_empty() || !back.is_empty();
            for (_, octets) in there {
                other.handle_target_message(0, &octets, octets.len());
            }
            for (_, octets) in back {
                one.handle_target_message(0, &octets, octets.len());
            }
        }
    }

    #[test]
    fn silent_node_from_which_something_comes_is_told() {
        let (mut pool, [node, ..]) = pool(1);
        let own = pool.handle_asked(node, terms(0), 5).unwrap().unwrap();
        let end = open(&mut pool, node).unwrap();
        sent(&mut pool);
        for _ in 0..=PROBES_MAX {
            assert_eq!(pool.end_state(end), Some(EndState::Opening));
            pool.probe_silent();
            sent(&mut pool);
        }
        pool.probe_silent();
        assert_eq!(pool.end_state(end), Some(EndState::Closed));
        assert_eq!(stage_with(&pool, node), Some(Stage::Silent));
        assert_eq!(sent(&mut pool), []);
        deliver_probe(&mut pool, &own);
        assert_eq!(stage_with(&pool, node), Some(Stage::Leaving));
        let told = sent(&mut pool);
        let told: Vec<_> = told
            .iter()
            .map(|(to, sent)| (*to, message_of(sent)))
            .collect();
        assert_eq!(told, [(node, Message::Leave)]);
        assert_eq!(stage_with(&pool, node), None);
    }

    #[test]
    fn silent_node_that_asks_again_is_told() {
        let (mut pool, [node, ..]) = pool(1);
        pool.handle_asked(node, terms(0), 5).unwrap().unwrap();
        let id = pool.exchanges.id_of_node(node).unwrap();
        pool.fail_exchange(id);
        assert_eq!(stage_with(&pool, node), Some(Stage::Silent));
        assert_eq!(pool.handle_asked(node, terms(0), 6), Ok(None));
        let told = sent(&mut pool);
        assert!(matches!(&told[..], [(_, told)] if message_of(told) == Message::Leave));
        assert!(pool.handle_asked(node, terms(1), 7).unwrap().is_some());
    }

    #[test]
    fn answer_to_a_question_before_is_ignored() {
        let (mut pool, [node, ..]) = pool(1);
        let failing = open(&mut pool, node).unwrap();
        let before = pool.ask(node, 5).unwrap();
        pool.handle_unanswered(node, before);
        assert_eq!(pool.end_state(failing), Some(EndState::Closed));
        let waiting = open(&mut pool, node).unwrap();
        let own = pool.ask(node, 6).unwrap();
        assert!(before.is_older_than(&own));
        assert!(!pool.handle_answered(node, before, terms(0)));
        pool.handle_unanswered(node, before);
        assert_eq!(stage_with(&pool, node), Some(Stage::Asking));
        assert_eq!(pool.end_state(waiting), Some(EndState::Opening));
        assert!(pool.handle_answered(node, own, terms(0)));
        assert_eq!(stage_with(&pool, node), Some(Stage::Ready));
    }

    #[test]
    fn question_that_is_late_is_refused() {
        let (mut pool, [node, ..]) = pool(1);
        let own = pool.handle_asked(node, terms(5), 1).unwrap();
        assert_eq!(
            pool.handle_asked(node, terms(4), 2),
            Err(CallError::Unknown)
        );
        // A copy has the same answer.
        assert_eq!(pool.handle_asked(node, terms(5), 3), Ok(own));
        assert_eq!(stage_with(&pool, node), Some(Stage::Ready));
    }

    #[test]
    fn question_that_comes_again_begins_no_other_exchange() {
        let (mut pool, [node, ..]) = pool(1);
        pool.handle_asked(node, terms(5), 1).unwrap().unwrap();
        assert!(pool.end_idle_exchange());
        assert_eq!(pool.handle_asked(node, terms(5), 2), Ok(None));
        assert_eq!(stage_with(&pool, node), Some(Stage::Leaving));
        sent(&mut pool);
        assert_eq!(stage_with(&pool, node), None);
        assert_eq!(pool.handle_asked(node, terms(5), 3), Ok(None));
        assert_eq!(
            pool.handle_asked(node, terms(4), 4),
            Err(CallError::Unknown)
        );
        assert_eq!(stage_with(&pool, node), None);
        assert!(pool.handle_asked(node, terms(6), 5).unwrap().is_some());
        assert_eq!(stage_with(&pool, node), Some(Stage::Ready));
    }

    #[test]
    fn answer_by_terms_of_an_exchange_before_has_the_node_asked_again() {
        let (mut pool, [node, ..]) = pool(1);
        pool.handle_asked(node, terms(5), 1).unwrap().unwrap();
        assert!(pool.end_idle_exchange());
        sent(&mut pool);
        let end = open(&mut pool, node).unwrap();
        let asked = pool.ask(node, 2).unwrap();
        assert!(!pool.handle_answered(node, asked, terms(5)));
        assert_eq!(pool.end_state(end), Some(EndState::Opening));
        let asked = pool.ask(node, 3).unwrap();
        assert!(pool.handle_answered(node, asked, terms(6)));
    }

    #[test]
    fn message_of_an_exchange_that_has_ended_is_dropped() {
        for fault in [None, Some(Fault::TokensKept)] {
            let (mut pool, [node, ..]) = pool(1);
            pool.faults.only = fault;
            let own = pool.handle_asked(node, terms(0), 5).unwrap().unwrap();
            assert!(pool.end_idle_exchange());
            sent(&mut pool);
            pool.handle_asked(node, terms(1), 6).unwrap().unwrap();
            deliver_probe(&mut pool, &own);
            let is_dropped = pool.stats().dropped == 1;
            assert_eq!(is_dropped, fault.is_none());
        }
    }

    #[test]
    fn exchange_that_has_been_idle_for_the_longest_time_ends_first() {
        let (mut pool, [used, again, idle]) = pool(3);
        for (node, token) in [used, again, idle].into_iter().zip(1..) {
            pool.handle_asked(node, terms(0), token).unwrap().unwrap();
        }
        open(&mut pool, used).unwrap();
        let closed = open(&mut pool, again).unwrap();
        sent(&mut pool);
        pool.close(closed).unwrap();
        for node in [idle, again] {
            assert!(pool.end_idle_exchange());
            assert_eq!(stage_with(&pool, node), Some(Stage::Leaving));
        }
        assert!(!pool.end_idle_exchange());
        assert_eq!(stage_with(&pool, used), Some(Stage::Ready));
    }

    #[test]
    fn there_are_as_many_exchanges_as_configured() {
        let (mut pool, [first, second, third]) = pool(2);
        pool.handle_asked(first, terms(0), 1).unwrap().unwrap();
        open(&mut pool, second).unwrap();
        let most = CallError::Limit("nodes with which messages are exchanged");
        assert_eq!(pool.handle_asked(third, terms(0), 2), Err(most));
        assert_eq!(open(&mut pool, third), Err(most));
        // One that ends has its place until the node knows.
        assert!(pool.end_idle_exchange());
        assert_eq!(pool.handle_asked(third, terms(0), 3), Err(most));
        sent(&mut pool);
        assert!(pool.handle_asked(third, terms(0), 4).unwrap().is_some());
    }

    #[test]
    fn both_ends_fail_when_a_pool_ends_its_exchanges() {
        let (mut opener, [to, ..]) = pool(1);
        let (mut service, [from, ..]) = pool(1);
        let opened = open(&mut opener, to).unwrap();
        let asked = opener.ask(to, 1).unwrap();
        let answer = service.handle_asked(from, asked, 2).unwrap().unwrap();
        assert!(opener.handle_answered(to, asked, answer));
        carry([&mut opener, &mut service]);
        let accepted = service.accept(SERVICE, UserId(0), DEPTHS, Access::ALL);
        let accepted = accepted.unwrap().unwrap();
        carry([&mut opener, &mut service]);
        let states =
            |opener: &Pool, service: &Pool| [opener.end_state(opened), service.end_state(accepted)];
        assert_eq!(states(&opener, &service), [Some(EndState::Open); 2]);
        service.end_exchanges();
        carry([&mut opener, &mut service]);
        assert_eq!(states(&opener, &service), [Some(EndState::Closed); 2]);
        assert_eq!(
            (stage_with(&opener, to), stage_with(&service, from)),
            (None, None)
        );
    }
}
