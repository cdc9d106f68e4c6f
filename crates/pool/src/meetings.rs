//! Exchanges over initiators: what becomes of them when the node is silent or leaves, and of
//! messages that are complete or lost.

use crate::credit::{Credit, Grant};
use crate::exchange::{Control, Exchange, ExchangeId};
use crate::fault::Fault;
use crate::header::Message;
use crate::meeting::Stage;
use crate::pool::Pool;
use crate::types::{Action, EndState, NodeId, VirtualId};

impl Pool {
    /// Has a message of a node answered. A node that does not take its answers has the connection
    /// fail, or what is exchanged with it end, since there is no end to them.
    pub(crate) fn answer(&mut self, id: ExchangeId, message: Message) {
        let Some(exchange) = self.exchanges.get(id) else {
            return;
        };
        if exchange.controls.len() < self.config.virtual_max as usize {
            self.send_own(id, Control::Answer(message));
        } else if exchange.meeting.is_some() {
            // Its initiator is that of others, too.
            self.fail_exchange(id);
        } else {
            self.begin_failing(exchange.physical);
        }
    }

    /// How far an exchange over initiators is.
    pub(crate) fn stage(&self, id: ExchangeId) -> Option<Stage> {
        self.exchanges.get(id).and_then(Exchange::stage)
    }

    /// The node of an exchange is silent, or cannot be reached: all virtual queue pairs of the
    /// exchange fail.
    pub(crate) fn fail_exchange(&mut self, id: ExchangeId) {
        self.close_ends(id, false);
        let exchange = self.exchanges.get_mut(id);
        let ready = exchange.filter(|exchange| exchange.stage() == Some(Stage::Ready));
        let Some(exchange) = ready else {
            return self.part(id, EndState::Closed);
        };
        exchange.controls.clear();
        let node = exchange.meeting.as_mut().map(|meeting| {
            meeting.stage = Stage::Silent;
            meeting.node
        });
        if let Some(node) = node {
            self.drop_incoming(node);
        }
    }

    /// Drops the requests of a node to open virtual queue pairs that no service has accepted.
    fn drop_incoming(&mut self, node: NodeId) {
        for waiting in self.messages.services.values_mut() {
            waiting.retain(|incoming| incoming.node != node);
        }
    }

    /// The exchanges with a node end: its end of each virtual queue pair is gone. Those that are
    /// being opened wait for the next one, unless the node refuses them.
    pub(crate) fn part(&mut self, id: ExchangeId, state: EndState) {
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        let Some(meeting) = &mut exchange.meeting else {
            return;
        };
        let (node, own) = (meeting.node, meeting.own.take());
        (meeting.stage, meeting.told) = (Stage::Ended, None);
        exchange.controls.clear();
        (exchange.credit, exchange.grant) = (Credit::default(), Grant::default());
        let ends = exchange.ends.clone();
        if let Some(own) = own.filter(|_| !self.faults.has(Fault::TokensKept)) {
            self.exchanges.unname(own.token);
        }
        for end in ends {
            let found = self.end_mut(end);
            let waits = found.is_some_and(|found| found.state == EndState::Opening);
            if !waits || state == EndState::Refused {
                self.fail_end(end, state, false);
            }
        }
        self.drop_incoming(node);
        self.finish(id);
    }

    /// If an exchange has ended, and no message is in flight: it is forgotten, or the node is asked
    /// again, since virtual queue pairs wait for it.
    fn finish(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        let has_ends = !exchange.ends.is_empty();
        let Some(meeting) = &mut exchange.meeting else {
            return;
        };
        if meeting.stage != Stage::Ended || meeting.in_flight > 0 {
            return;
        }
        let node = meeting.node;
        if has_ends {
            meeting.stage = Stage::Asking;
            self.actions.push_back(Action::Ask(node));
        } else {
            self.exchanges.remove(id);
            self.leave_node(node);
        }
    }

    /// A message is complete.
    #[inline(never)]
    pub(crate) fn note_message_retired(&mut self, node: NodeId, of: VirtualId) {
        let own = ExchangeId::of_own(of);
        let Some(id) = own.or_else(|| self.exchanges.id_of_node(node)) else {
            return;
        };
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        let control = own.and_then(|_| exchange.note_retired());
        if let Some(meeting) = &mut exchange.meeting {
            meeting.in_flight -= 1;
        }
        match control {
            Some(Control::Leave) => self.part(id, EndState::Closed),
            _ => self.finish(id),
        }
    }

    /// A message over an initiator is not known to have arrived: it is as if it had not been sent.
    pub(crate) fn take_message_back(&mut self, node: NodeId) -> Option<ExchangeId> {
        let id = self.exchanges.id_of_node(node)?;
        let faults = self.faults;
        let exchange = self.exchanges.get_mut(id)?;
        exchange.take_back(faults).then_some(id)
    }

    /// What the node of an exchange was told by messages that are not known to have arrived is told
    /// again.
    pub(crate) fn tell_again(&mut self, id: ExchangeId) {
        let sent = self.exchanges.get_mut(id).map(Exchange::take_sent);
        let is_over = self.faults.has(Fault::OwnNotRepeated);
        for control in sent.into_iter().flatten().rev().filter(|_| !is_over) {
            self.tell_again_of(id, control);
        }
        let exchange = self.exchanges.get_mut(id);
        let is_told = |_: &&mut Exchange| !self.faults.has(Fault::CountsNotRepeated);
        if let Some(exchange) = exchange.filter(is_told) {
            exchange.grant.forget_announced();
        }
        self.list_own(id);
        self.finish(id);
    }

    /// A message of the pool itself is sent again, before others.
    pub(crate) fn tell_again_of(&mut self, id: ExchangeId, control: Control) {
        let (Control::Accept(of) | Control::Receives(of) | Control::Taken(of)) = control else {
            return self.send_first(id, control);
        };
        if let Some(end) = self.end_mut(of) {
            // It has told the number of Receives, too, which is told even if the rest is known.
            end.is_announcing = true;
            if let Control::Taken(_) = control {
                end.begin_telling();
            }
        }
        self.send_first(id, Control::Receives(of));
        if control != Control::Receives(of) {
            self.send_first(id, control);
        }
    }

    /// A message of the pool itself is sent before others.
    fn send_first(&mut self, id: ExchangeId, control: Control) {
        let exchange = self.exchanges.get_mut(id);
        if let Some(exchange) = exchange.filter(|found| found.may_send()) {
            exchange.controls.push_front(control);
        }
    }

    /// All virtual queue pairs to services fail that are bound to an initiator.
    pub(crate) fn fail_exchanges(&mut self, slot: u16) {
        let all = self.exchanges.all();
        let over = all.filter(|(_, exchange)| exchange.physical == slot);
        let over: Vec<ExchangeId> = over.map(|(id, _)| id).collect();
        for id in over {
            self.fail_exchange(id);
        }
    }

    /// The pool of a node has no exchange with this one any more.
    pub(crate) fn handle_leave(&mut self, id: ExchangeId) {
        match self.stage(id) {
            Some(_) => self.part(id, EndState::Closed),
            // A connection ends otherwise.
            None => self.stats.dropped += 1,
        }
    }

    /// Whether messages of an exchange are for virtual queue pairs.
    pub(crate) fn is_heard(&self, id: ExchangeId) -> bool {
        !matches!(self.stage(id), Some(Stage::Silent | Stage::Leaving))
    }

    /// Whether messages of a virtual queue pair to a service are sent now.
    pub(crate) fn is_met(&self, id: ExchangeId) -> bool {
        let exchange = self.exchanges.get(id);
        exchange.is_some_and(|found| found.stage().is_none_or(|stage| stage == Stage::Ready))
    }
}
