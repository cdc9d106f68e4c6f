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

use std::mem::take;

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
    /// none before. None: it is to ask again later.
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
            let ends = self.exchanges.get_mut(id);
            for end in ends.map_or_else(Default::default, |found| take(&mut found.ends)) {
                self.fail_end(end, EndState::Closed, false);
            }
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
