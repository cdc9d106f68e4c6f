//! Sends and Receives: the calls of users.

use std::net::SocketAddr;
use std::rc::Rc;

use urdma_pool::{
    Access, CallError, ConfigError, Depths, Element, EndState, MessageConfig, Received,
    RemoteRegionId, SendRequest, UserId, VirtualId,
};

use super::nodes::canonical;
use super::{Client, Exchange, OfferedTarget};
use crate::buffers::Buffers;
use crate::error::Error;
use crate::ffi::{random, Domain, Foreign, Id, Memory, Service, Target};

/// How a client exchanges messages. Clients that exchange them with each other have the same
/// `send_octets_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The longest Send that goes in one message; a longer one goes in segments of this length.
    pub send_octets_max: u32,
    /// Receives that are posted for each connection, 4 or more.
    pub share: u16,
    /// Virtual queue pairs that wait for a service to accept them; others are refused.
    pub backlog: u32,
    /// The length of the memory of this end that others may access by one-sided operations, zero at
    /// first; 0 if there is none.
    pub offered_octets: usize,
}

/// Other clients with which messages are exchanged at a time over initiators.
const PEERS_MAX: u32 = 256;

impl Default for Messages {
    fn default() -> Self {
        Self {
            send_octets_max: 4096,
            share: 32,
            backlog: 128,
            offered_octets: 0,
        }
    }
}

impl Client {
    /// Has the client exchange messages with others that do, so that its users may open virtual
    /// queue pairs with Sends and Receives. It listens at an address, by which the others know it,
    /// and connects from there. All of it makes progress in the calls of this client.
    ///
    /// # Errors
    /// If it has connected to a node before, or exchanges messages already; if the address names no
    /// host or no port, is that of another device, or is in use; if the configuration does not
    /// work, or memory cannot be registered.
    pub fn offer_messages(&mut self, at: SocketAddr, messages: &Messages) -> Result<(), Error> {
        self.offer(at, messages, |domain| match messages.offered_octets {
            0 => Ok(None),
            len_octets => Memory::new(domain, len_octets).map(Some),
        })
    }

    /// The same with memory of the caller that others may access, in place of
    /// [`Messages::offered_octets`].
    ///
    /// # Errors
    /// As of [`Self::offer_messages`].
    pub fn offer_messages_with(
        &mut self,
        at: SocketAddr,
        messages: &Messages,
        memory: Foreign,
    ) -> Result<(), Error> {
        self.offer(at, messages, |domain| {
            Memory::offer(domain, &memory).map(Some)
        })
    }

    fn offer(
        &mut self,
        at: SocketAddr,
        messages: &Messages,
        memory: impl FnOnce(&Rc<Domain>) -> Result<Option<Memory>, Error>,
    ) -> Result<(), Error> {
        if self.exchange.is_some() {
            return Err(ConfigError::MessagesOffered.into());
        }
        if self.pool.nodes() > 0 {
            return Err(Error::Messages(
                "offer messages before the first node is opened",
            ));
        }
        if at.ip().is_unspecified() || at.port() == 0 {
            return Err(Error::Messages(
                "listen at an address that names a host and a port",
            ));
        }
        let domain = &self.device.domain;
        let (elements, _) = domain.elements_max()?;
        if self.config.elements_max >= elements {
            // The header is an element, too.
            return Err(Error::Elements(elements - 1));
        }
        let header = u32::try_from(self.config.transport.header_octets()).unwrap_or(0);
        let [.., e3, e2, e1, e0] = random()?.to_be_bytes();
        let config = MessageConfig {
            epoch: u32::from_be_bytes([e3, e2, e1, e0]),
            buffer_octets: messages.send_octets_max.saturating_add(header),
            share: messages.share,
            backlog: messages.backlog,
            peers_max: PEERS_MAX,
        };
        let listener = Id::new(match self.calls {
            None => Service::Connection,
            Some(_) => Service::Datagram,
        })?;
        listener.bind(at)?;
        domain.expect(&listener)?;
        let sq_depth = self.config.sq_depth;
        let connections = match self.calls {
            None => self.config.cq_depth / sq_depth,
            // Two more: that of the next question, and for messages that come twice.
            Some(_) => PEERS_MAX + 2,
        };
        let offered = memory(domain)?;
        // The length of the queue follows from a configuration that is valid.
        self.pool.check_messages(&config)?;
        let of = (&config, self.config.transport);
        let buffers = Buffers::new(domain, of, sq_depth, connections)?;
        let target = self.calls.map(|calls| {
            let (receives, share) = buffers.receives();
            let depth = share.saturating_mul(connections);
            let key = random()?;
            let target = Target::new(calls, domain, (receives, depth), key)?;
            Ok::<_, Error>(OfferedTarget { target, key })
        });
        let target = target.transpose()?;
        listener.listen()?;
        self.pool.offer_messages(&config)?;
        self.exchange = Some(Exchange {
            at: canonical(at),
            config,
            listener,
            buffers,
            offered,
            target,
        });
        Ok(())
    }

    /// Offers a service, at which others open virtual queue pairs to this client.
    ///
    /// # Errors
    /// If it is offered, or the client exchanges no messages.
    pub fn listen(&mut self, service: u32) -> Result<(), Error> {
        Ok(self.pool.listen(service)?)
    }

    /// Ends a service. Those that wait for it are refused; those that it has accepted stay.
    ///
    /// # Errors
    /// If it is not offered, or a call of verbs fails.
    pub fn end_service(&mut self, service: u32) -> Result<(), Error> {
        self.pool.end_service(service)?;
        self.settle_messages()
    }

    /// Refuses the one that has waited the longest for a service; whether there was one.
    ///
    /// # Errors
    /// As those of [`Client::end_service`].
    pub fn refuse(&mut self, service: u32) -> Result<bool, Error> {
        let was_there = self.pool.refuse(service)?;
        self.settle_messages().map(|()| was_there)
    }

    /// Opens a virtual queue pair to a service of the client that listens at an address, with
    /// Sends, Receives and one-sided operations. It waits for nothing, and takes requests at once:
    /// Sends wait until the service has accepted it. [`Client::end_state`] says what has become of
    /// it.
    ///
    /// # Errors
    /// If the client exchanges no messages, or the address is its own; if a limit is reached, no
    /// connection can be begun, or the device was removed. Nothing is left open then.
    pub fn open_service(
        &mut self,
        user: UserId,
        to: (SocketAddr, u32),
        depths: Depths,
    ) -> Result<VirtualId, Error> {
        let (address, service) = to;
        if self
            .exchange
            .as_ref()
            .is_some_and(|own| own.at == canonical(address))
        {
            return Err(Error::Messages("a client opens no service of its own"));
        }
        let at = self.node_at(address)?;
        let to = (self.nodes[at].id, service);
        let opened = self.pool.open_service(user, to, depths, Access::ALL);
        if matches!(opened, Err(CallError::Limit(_))) {
            // There may be room for the next one.
            self.pool.end_idle_exchange();
        }
        let opened = opened?;
        let settled = self.settle_for(at);
        let settled = self.device.domain.explain(settled);
        if settled.is_err() {
            self.pool.close(opened)?;
        }
        settled.map(|()| opened)
    }

    /// Accepts the one that has waited the longest for a service: a virtual queue pair of this end;
    /// none if none waits. Does not sleep.
    ///
    /// # Errors
    /// If the service is not offered, or a limit is reached, after which it waits on; if a call of
    /// verbs fails, or the device was removed.
    pub fn accept(
        &mut self,
        service: u32,
        user: UserId,
        depths: Depths,
    ) -> Result<Option<VirtualId>, Error> {
        self.progress()?;
        let accepted = self.pool.accept(service, user, depths, Access::ALL)?;
        self.settle_messages().map(|()| accepted)
    }

    /// What has become of a virtual queue pair with Sends and Receives; none of another one.
    pub fn end_state(&self, id: VirtualId) -> Option<EndState> {
        self.pool.end_state(id)
    }

    /// The memory that the other end's client offers: its region, first address and length, once
    /// they are known.
    pub fn offered_by_peer(&self, id: VirtualId) -> Option<(RemoteRegionId, u64, u64)> {
        let node = self.pool.node(id)?;
        let (described, region) = self.nodes.get(node.index())?.memory?;
        Some((region, described.addr, described.len_octets))
    }

    /// Copies octets out of the memory that this client offers.
    ///
    /// # Errors
    /// If it offers none, or the range is beyond it.
    pub fn read_offered(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let exchange = self.exchange.as_ref();
        let offered = exchange.and_then(|exchange| exchange.offered.as_ref());
        offered.ok_or(Error::Memory)?.read(offset, to)
    }

    /// Posts a Send with its scatter-gather list, of at most `Config::message_octets_max`. It waits
    /// until the other end has a Receive, and is complete when it has arrived at the other client;
    /// [`Client::poll`] returns the completion.
    ///
    /// # Errors
    /// If it is refused, or the device was removed.
    pub fn post_send(
        &mut self,
        id: VirtualId,
        request: &SendRequest,
        elements: &[Element],
    ) -> Result<(), Error> {
        self.pool.post_send(id, request, elements)?;
        self.settle_messages()
    }

    /// Posts a Receive with a number and its scatter-gather list, which the next Send of the other
    /// end fills.
    ///
    /// # Errors
    /// If it is refused, or the device was removed.
    pub fn post_receive(
        &mut self,
        id: VirtualId,
        number: u64,
        elements: &[Element],
    ) -> Result<(), Error> {
        self.pool.post_receive(id, number, elements)?;
        self.settle_messages()
    }

    /// The next Receive of a virtual queue pair that is complete, if there is one; does not sleep.
    ///
    /// # Errors
    /// If a call of verbs fails, or the device was removed.
    pub fn poll_received(&mut self, id: VirtualId) -> Result<Option<Received>, Error> {
        if let Some(received) = self.pool.poll_received(id) {
            return Ok(Some(received));
        }
        self.progress()?;
        Ok(self.pool.poll_received(id))
    }

    /// Takes what has come, for all users: a client that offers a service and polls nothing else
    /// calls it again and again. Does not sleep.
    ///
    /// # Errors
    /// If a call of verbs fails, or the device was removed.
    pub fn progress(&mut self) -> Result<(), Error> {
        let turned = self.turn();
        self.device.domain.explain(turned).map(drop)
    }

    fn settle_messages(&mut self) -> Result<(), Error> {
        let settled = self.settle();
        self.device.domain.explain(settled)
    }
}
