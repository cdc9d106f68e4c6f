//! Calls of users and of the driver for Sends and Receives.

use std::collections::VecDeque;

use crate::config::MessageConfig;
use crate::end::End;
use crate::error::{CallError, ConfigError, PostError};
use crate::exchange::{Control, ExchangeId};
use crate::fault::Fault;
use crate::header::Message;
use crate::pool::Pool;
use crate::queued::Queued;
use crate::regions::{length_of, Piece, Pieces};
use crate::services::Incoming;
use crate::slots::Id;
use crate::types::{
    Access, BufferAction, Depths, Element, EndState, NodeId, Operation, Received, RemoteRegionId,
    Request, SendRequest, UserId, VirtualId, VirtualState,
};
use crate::virtual_qp::VirtualQp;

/// A request that names no memory of a node.
fn send_of(request: &SendRequest) -> Request {
    let nothing = RemoteRegionId(Id {
        slot: u32::MAX,
        generation: 0,
    });
    Request {
        id: request.id,
        operation: Operation::Send {
            immediate: request.immediate,
        },
        remote: nothing,
        remote_addr: 0,
        is_signaled: request.is_signaled,
    }
}

impl Pool {
    /// Has the pool exchange messages, so that its virtual queue pairs may have Sends and Receives.
    ///
    /// # Errors
    /// If the configuration does not work, or it was told before.
    pub fn offer_messages(&mut self, config: &MessageConfig) -> Result<(), ConfigError> {
        self.check_messages(config)?;
        self.messages.config = Some(*config);
        self.messages.segment_octets = config.send_octets_max(self.config.transport);
        Ok(())
    }

    /// Whether [`Self::offer_messages`] would take this configuration.
    ///
    /// # Errors
    /// Those of that call.
    pub fn check_messages(&self, config: &MessageConfig) -> Result<(), ConfigError> {
        match self.messages.config {
            Some(_) => Err(ConfigError::MessagesOffered),
            None => config.validate(self.config.transport),
        }
    }

    /// Offers a service, at which nodes open virtual queue pairs to this pool.
    ///
    /// # Errors
    /// If it is offered, or the pool exchanges no messages.
    pub fn listen(&mut self, service: u32) -> Result<(), CallError> {
        self.messages.config.ok_or(CallError::NoMessages)?;
        if self.messages.services.contains_key(&service) {
            return Err(CallError::ServiceInUse);
        }
        self.messages.services.insert(service, VecDeque::new());
        Ok(())
    }

    /// Ends a service. Those that wait for it are refused; those that it has accepted stay.
    ///
    /// # Errors
    /// If it is not offered.
    pub fn end_service(&mut self, service: u32) -> Result<(), CallError> {
        self.book();
        let ended = self.messages.services.remove(&service);
        for incoming in ended.ok_or(CallError::Unknown)? {
            self.refuse_one(&incoming);
        }
        Ok(())
    }

    /// Refuses the one that has waited the longest for a service; whether there was one.
    ///
    /// # Errors
    /// If the service is not offered.
    pub fn refuse(&mut self, service: u32) -> Result<bool, CallError> {
        self.book();
        let waiting = self.messages.services.get_mut(&service);
        let first = waiting.ok_or(CallError::Unknown)?.pop_front();
        if let Some(incoming) = &first {
            self.refuse_one(incoming);
        }
        Ok(first.is_some())
    }

    fn refuse_one(&mut self, incoming: &Incoming) {
        let Incoming {
            exchange, source, ..
        } = *incoming;
        if self.reaches(exchange, incoming.node) {
            let destination = source;
            self.answer(exchange, Message::Refuse { destination });
        }
    }

    /// Opens a virtual queue pair to a service of a node, with Sends, Receives and these one-sided
    /// operations. It takes requests at once: Sends wait until the service has accepted it.
    ///
    /// # Errors
    /// As those of [`Pool::open`], or if the pool exchanges no messages.
    pub fn open_service(
        &mut self,
        user: UserId,
        (node, service): (NodeId, u32),
        depths: Depths,
        operations: Access,
    ) -> Result<VirtualId, CallError> {
        self.book();
        self.messages.config.ok_or(CallError::NoMessages)?;
        self.check_open(depths.requests)?;
        let exchange = self.exchange_for(node)?;
        let found = self.exchanges.get(exchange).ok_or(CallError::Unknown)?;
        let physical = found.physical;
        if found.controls.len() >= self.config.virtual_max as usize {
            return Err(CallError::Limit("messages that wait for the node"));
        }
        let limits = (depths.requests, self.config.in_flight_max);
        let opened = VirtualQp::new(user, node, physical, limits, operations);
        let id = self.bind(opened)?;
        self.add_end(id, service, depths.receives);
        if self.is_met(exchange) {
            self.tell_other(id, Control::Open(id));
        }
        Ok(id)
    }

    fn add_end(&mut self, id: VirtualId, service: u32, depth: u32) {
        let end = End::new(self.messages.end_id(id), service, depth);
        if let Some(member) = self.virtuals.get_mut(id.0) {
            member.end = Some(Box::new(end));
        }
        if let Some(exchange) = self.exchange_of(id) {
            exchange.ends.insert(id);
        }
    }

    /// Whether an exchange is still one with a node.
    fn reaches(&self, id: ExchangeId, node: NodeId) -> bool {
        self.exchanges.get(id).is_some_and(|found| {
            let known = found.meeting.as_ref().map(|meeting| meeting.node);
            known.or(self.physicals[usize::from(found.physical)].node) == Some(node)
        })
    }

    /// Accepts the one that has waited the longest for a service: a virtual queue pair of this end.
    ///
    /// # Errors
    /// If the service is not offered, or a limit is reached; then it waits on.
    pub fn accept(
        &mut self,
        service: u32,
        user: UserId,
        depths: Depths,
        operations: Access,
    ) -> Result<Option<VirtualId>, CallError> {
        self.book();
        self.check_open(depths.requests)?;
        let Some(incoming) = self.next_incoming(service)? else {
            return Ok(None);
        };
        let Incoming {
            exchange,
            node,
            source,
            ..
        } = incoming;
        let physical = self.exchanges.get(exchange).ok_or(CallError::Unknown)?;
        let id = self.bind(VirtualQp::new(
            user,
            node,
            physical.physical,
            (depths.requests, self.config.in_flight_max),
            operations,
        ))?;
        self.add_end(id, service, depths.receives);
        self.messages.by_remote.insert((node, source), id);
        if let Some(end) = self.end_mut(id) {
            (end.state, end.remote) = (EndState::Accepted, Some(source));
            end.covered.handle_announced(incoming.receives);
        }
        self.tell_other(id, Control::Accept(id));
        Ok(Some(id))
    }

    /// Takes out the one that has waited the longest for a service.
    fn next_incoming(&mut self, service: u32) -> Result<Option<Incoming>, CallError> {
        loop {
            let waiting = self.messages.services.get_mut(&service);
            let first = waiting.ok_or(CallError::Unknown)?.pop_front();
            // The places of connections may be those of other nodes by now.
            match first {
                Some(first) if !self.reaches(first.exchange, first.node) => {}
                first => return Ok(first),
            }
        }
    }

    /// The state of a virtual queue pair that has Sends and Receives.
    pub fn end_state(&self, id: VirtualId) -> Option<EndState> {
        let end = self.virtuals.get(id.0)?.end.as_ref()?;
        Some(end.state)
    }

    /// Takes a Send with its scatter-gather list, of at most `Config::message_octets_max`. It waits
    /// until the other end has a Receive, and is complete when it has arrived at the other pool.
    /// One that is longer than [`MessageConfig::send_octets_max`] goes in segments.
    ///
    /// # Errors
    /// If it is refused; then it has no effect.
    pub fn post_send(
        &mut self,
        id: VirtualId,
        request: &SendRequest,
        elements: &[Element],
    ) -> Result<(), PostError> {
        self.book();
        let taken = self.check_send(id, &send_of(request), elements);
        taken.inspect_err(|_| self.stats.refused += 1)?;
        self.list(id);
        Ok(())
    }

    fn check_send(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
    ) -> Result<(), PostError> {
        let poster = self.virtuals.get_mut(id.0).ok_or(PostError::Closed)?;
        poster.end.as_ref().ok_or(PostError::OneSided)?;
        if poster.state != VirtualState::Ready {
            return Err(PostError::InvalidState);
        }
        if elements.len() > self.config.elements_max as usize {
            return Err(PostError::Elements);
        }
        let len_octets = length_of(elements)?;
        if len_octets > self.config.message_octets_max {
            return Err(PostError::Length);
        }
        let used = (elements, &mut self.regions);
        let checked = poster.use_elements(request, (0, len_octets), used, self.faults)?;
        self.regions.use_only(checked.pieces);
        poster.push(Queued::new(request, checked));
        Ok(())
    }

    /// Takes a Receive, which the next Send of the other end fills.
    ///
    /// # Errors
    /// If it is refused; then it has no effect.
    pub fn post_receive(
        &mut self,
        id: VirtualId,
        number: u64,
        elements: &[Element],
    ) -> Result<(), PostError> {
        self.book();
        let taken = self.check_receive(id, number, elements);
        match taken {
            Ok(()) => self.announce_receives(id),
            Err(_) => self.stats.refused += 1,
        }
        taken
    }

    fn check_receive(
        &mut self,
        id: VirtualId,
        number: u64,
        elements: &[Element],
    ) -> Result<(), PostError> {
        let poster = self.virtuals.get_mut(id.0).ok_or(PostError::Closed)?;
        let end = poster.end.as_mut().ok_or(PostError::OneSided)?;
        if poster.state != VirtualState::Ready {
            return Err(PostError::InvalidState);
        }
        if elements.len() > self.config.elements_max as usize {
            return Err(PostError::Elements);
        }
        let regions = &mut self.regions;
        // As the destination of a READ, its elements are written.
        let of = (poster.user, Operation::Read);
        if end.is_full() {
            return Err(PostError::ReceiveQueueFull);
        }
        let mut others = Pieces::new();
        let lkey = regions.use_elements(of, elements, self.faults, |other| others.push(other))?;
        let first = elements.first().map(|first| Piece::new(first, lkey));
        let pieces = first.into_iter().chain(others).collect();
        end.push(number, pieces);
        Ok(())
    }

    /// Has the other end told of Receives, if that is due.
    pub(crate) fn announce_receives(&mut self, id: VirtualId) {
        let end = self.end_mut(id);
        if end.is_some_and(End::begin_announcing) && !self.faults.has(Fault::ReceivesUnannounced) {
            self.tell_other(id, Control::Receives(id));
        }
    }

    /// The next Receive of a virtual queue pair that is complete.
    pub fn poll_received(&mut self, id: VirtualId) -> Option<Received> {
        self.end_mut(id)?.poll()
    }

    /// What the driver is to do next with a buffer.
    pub fn poll_buffer_action(&mut self) -> Option<BufferAction> {
        self.messages.actions.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Status, Transport};

    const MESSAGES: MessageConfig = MessageConfig {
        epoch: 1,
        buffer_octets: 4096,
        share: 8,
        backlog: 1,
        peers_max: 1,
    };
    const DEPTHS: Depths = Depths {
        requests: 1,
        receives: 1,
    };
    const SEND: SendRequest = SendRequest {
        id: 1,
        immediate: None,
        is_signaled: true,
    };

    fn pool() -> (Pool, NodeId) {
        let mut pool = Pool::new(&Config::default()).unwrap();
        let node = pool.add_node().unwrap();
        (pool, node)
    }

    #[test]
    fn pool_without_messages_refuses_services() {
        let (mut pool, node) = pool();
        let user = UserId(0);
        let refused = Err(CallError::NoMessages);
        assert_eq!(pool.listen(1), refused);
        let opened = pool.open_service(user, (node, 1), DEPTHS, Access::ALL);
        assert_eq!(opened.map(drop), refused);
        assert_eq!(pool.refuse(1), Err(CallError::Unknown));
        let accepted = pool.accept(1, user, DEPTHS, Access::ALL);
        assert_eq!(accepted, Err(CallError::Unknown));
        let one_sided = pool.open(user, node, 1, Access::ALL).unwrap();
        assert_eq!(pool.end_state(one_sided), None);
        let refused = Err(PostError::OneSided);
        assert_eq!(pool.post_send(one_sided, &SEND, &[]), refused);
        assert_eq!(pool.post_receive(one_sided, 1, &[]), refused);
        assert_eq!(pool.reset(one_sided), Ok(()));
    }

    #[test]
    fn configuration_that_does_not_work_is_refused() {
        let (mut pool, _) = pool();
        let mut expect = |config: MessageConfig, error| {
            assert_eq!(pool.offer_messages(&config), error);
        };
        let share = |share| MessageConfig { share, ..MESSAGES };
        expect(share(3), Err(ConfigError::Share(3)));
        expect(share(20_000), Err(ConfigError::Share(20_000)));
        let buffer_octets = 32;
        let buffer = MessageConfig {
            buffer_octets,
            ..MESSAGES
        };
        expect(buffer, Err(ConfigError::Buffer(buffer_octets)));
        let backlog = MessageConfig {
            backlog: 0,
            ..MESSAGES
        };
        expect(backlog, Err(ConfigError::Zero("backlog")));
        expect(MESSAGES, Ok(()));
        expect(MESSAGES, Err(ConfigError::MessagesOffered));
        let initiators = Config {
            transport: Transport::Initiators { count: 1 },
            ..Config::default()
        };
        let mut pool = Pool::new(&initiators).unwrap();
        let buffer_octets = 48;
        let buffer = MessageConfig {
            buffer_octets,
            ..MESSAGES
        };
        let refused = pool.offer_messages(&buffer);
        assert_eq!(refused, Err(ConfigError::Buffer(buffer_octets)));
        let peers = MessageConfig {
            peers_max: 0,
            ..MESSAGES
        };
        let refused = pool.offer_messages(&peers);
        assert_eq!(refused, Err(ConfigError::Zero("peers_max")));
    }

    #[test]
    fn virtual_queue_pair_to_a_node_without_messages_is_refused() {
        let (mut pool, node) = pool();
        pool.offer_messages(&MESSAGES).unwrap();
        assert_eq!(pool.listen(1), Ok(()));
        assert_eq!(pool.listen(1), Err(CallError::ServiceInUse));
        let user = UserId(0);
        assert_eq!(pool.accept(1, user, DEPTHS, Access::ALL), Ok(None));
        let opened = pool.open_service(user, (node, 1), DEPTHS, Access::ALL);
        let opened = opened.unwrap();
        assert_eq!(pool.end_state(opened), Some(EndState::Opening));
        assert_eq!(pool.post_send(opened, &SEND, &[]), Ok(()));
        let full = Err(PostError::QueueFull);
        assert_eq!(pool.post_send(opened, &SEND, &[]), full);
        assert_eq!(pool.post_receive(opened, 2, &[]), Ok(()));
        let full = Err(PostError::ReceiveQueueFull);
        assert_eq!(pool.post_receive(opened, 3, &[]), full);
        let slot = pool.virtuals.get(opened.0).unwrap().physical;
        let physical = pool.physicals[usize::from(slot)].id();
        pool.handle_connected(physical);
        let name = pool.name_of(physical);
        pool.handle_granted(physical, 0, name);
        assert_eq!(pool.end_state(opened), Some(EndState::Refused));
        assert_eq!(pool.reset(opened), Err(CallError::TwoEnded));
        let send = pool.poll(opened).unwrap();
        assert_eq!((send.id, send.status), (1, Status::RetryExceeded));
        let receive = pool.poll_received(opened).unwrap();
        assert_eq!((receive.id, receive.status), (2, Status::Flushed));
        let refused = Err(PostError::InvalidState);
        assert_eq!(pool.post_send(opened, &SEND, &[]), refused);
        assert_eq!(pool.end_service(1), Ok(()));
        assert_eq!(pool.end_service(1), Err(CallError::Unknown));
    }
}
