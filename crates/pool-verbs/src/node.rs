//! A node: memory that clients reach by the address at which it listens.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use urdma_node_table::Target;

use crate::described;
use crate::error::Error;
use crate::ffi::{self, random, Calls, Domain, Event, Foreign, Id, Memory, Queue, Service};
use crate::metadata::{Hello, SERVICES_MAX, TOO_MANY_SERVICES};
use crate::registration::Registration;

/// A target of dynamically connected transport, and where clients ask for it.
#[derive(Debug)]
struct Offered {
    target: ffi::Target,
    key: u64,
    listener: Id,
}

/// Memory that is offered at an address.
///
/// Clients access it by one-sided operations, over connections and, if [`Node::offer_target`] was
/// called, over dynamically connected transport. [`Node::turn`] accepts their connections, drops
/// those that have ended, and answers clients that ask for the target.
#[derive(Debug)]
pub struct Node {
    /// Connections and target are dropped first: then no client accesses the memory.
    clients: Vec<Id>,
    registrations: Vec<Registration>,
    offered: Option<Offered>,
    listener: Id,
    at: SocketAddr,
    memory: Memory,
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

impl Node {
    /// Offers `len_octets`, zero at first, at an address.
    ///
    /// # Errors
    /// If there is no device with the address, the port is in use, or memory cannot be registered.
    pub fn listen(at: SocketAddr, len_octets: usize) -> Result<Self, Error> {
        Self::with(at, |domain| Memory::new(domain, len_octets))
    }

    /// The same with memory of the caller.
    ///
    /// # Errors
    /// As of [`Self::listen`].
    pub fn listen_with(at: SocketAddr, memory: Foreign) -> Result<Self, Error> {
        Self::with(at, |domain| Memory::offer(domain, &memory))
    }

    fn with(
        at: SocketAddr,
        memory: impl FnOnce(&Rc<Domain>) -> Result<Memory, Error>,
    ) -> Result<Self, Error> {
        let anchor = Id::new(Service::Connection)?;
        anchor.bind(SocketAddr::new(at.ip(), 0))?;
        let domain = Domain::new(anchor)?;
        let listener = Id::new(Service::Connection)?;
        listener.bind(at)?;
        listener.listen()?;
        Ok(Self {
            clients: Vec::new(),
            registrations: Vec::new(),
            offered: None,
            listener,
            at,
            memory: memory(&domain)?,
            queue: Queue::new(&domain, 1)?,
            domain,
        })
    }

    /// Offers the memory over dynamically connected transport, too.
    ///
    /// # Errors
    /// If the device has none, or the port is in use by a datagram service.
    pub fn offer_target(&mut self) -> Result<(), Error> {
        let key = random()?;
        let target = ffi::Target::new(Calls::load()?, &self.domain, (&self.queue, 1), key)?;
        let listener = Id::new(Service::Datagram)?;
        listener.bind(self.at)?;
        listener.listen()?;
        self.offered = Some(Offered {
            target,
            key,
            listener,
        });
        Ok(())
    }

    /// Registers the target and the memory at metadata services, which clients may use: up to two,
    /// with the same nodes each. [`Self::turn`] connects, and again whenever a service has ended or
    /// has refused; the node is registered for as long as it lasts.
    ///
    /// # Errors
    /// If no target is offered, or there are more than two services.
    pub fn register(&mut self, services: &[SocketAddr]) -> Result<(), Error> {
        let offered = self.offered.as_ref();
        let offered = offered.ok_or(Error::Metadata("offer a target before registering a node"))?;
        if services.len() > SERVICES_MAX {
            return Err(Error::Metadata(TOO_MANY_SERVICES));
        }
        let number = offered.target.number();
        let target = Target::new(number, offered.key, self.memory.region());
        let target = target.ok_or(Error::Metadata("the number of the target has over 24 bits"))?;
        let hello = Hello::Node(self.at, target);
        let new = |at: &SocketAddr| Registration::new(&self.domain, *at, self.at, &hello);
        self.registrations = services.iter().map(new).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// At how many services the node is registered.
    pub fn registered(&self) -> usize {
        let complete = self.registrations.iter();
        complete
            .filter(|registration| registration.is_complete())
            .count()
    }

    /// Why the node is not registered at a service, if an attempt has failed.
    pub fn registration_error(&self) -> Option<&Error> {
        self.registrations.iter().find_map(Registration::error)
    }

    /// Copies octets into the memory.
    ///
    /// # Errors
    /// If the range is beyond it.
    pub fn write(&self, offset: usize, octets: &[u8]) -> Result<(), Error> {
        self.memory.write(offset, octets)
    }

    /// Connections of clients.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Has the calling thread do what clients ask for, if nothing else does it; a node that calls
    /// it again and again answers sooner.
    ///
    /// # Errors
    /// If a call of verbs fails.
    pub fn progress(&self) -> Result<(), Error> {
        self.queue.poll(|_, _| ()).map(drop)
    }

    /// Sleeps until something has come, but no longer than `limit`; then accepts clients that wait,
    /// and registers the node.
    ///
    /// # Errors
    /// As of [`Self::turn`].
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        let due = self.registrations.iter().map(Registration::due);
        let limit = limit.into_iter().chain(due).min();
        let timeout = limit.map_or(PollTimeout::NONE, |limit| {
            PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
        });
        if self.domain.is_removed() {
            return Err(Error::Removed);
        }
        let listeners = [
            Some(&self.listener),
            self.offered.as_ref().map(|o| &o.listener),
        ];
        let registering = self.registrations.iter().filter_map(Registration::id);
        let ids = listeners
            .into_iter()
            .flatten()
            .chain(&self.clients)
            .chain(registering);
        let mut descriptors: Vec<PollFd<'_>> = ids
            .map(Id::descriptor)
            .chain([self.domain.descriptor()])
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
            .collect();
        match poll(&mut descriptors, timeout) {
            Ok(_) | Err(Errno::EINTR) => self.turn(),
            Err(errno) => Err(Error::from_errno("poll", errno as i32)),
        }
    }

    /// Accepts clients that wait, and registers the node; does not sleep.
    ///
    /// # Errors
    /// If a client could not be accepted; the node remains. If the device was removed; then it does
    /// not.
    pub fn turn(&mut self) -> Result<(), Error> {
        if self.domain.is_removed() {
            return Err(Error::Removed);
        }
        self.clients.retain(|client| !client.has_ended());
        for registration in &mut self.registrations {
            registration.turn();
        }
        while let Some(event) = self.listener.next_event()? {
            if let Event::Request(client) = event {
                self.accept(client.id)?;
            }
        }
        let Some(offered) = &self.offered else {
            return Ok(());
        };
        while let Some(event) = offered.listener.next_event()? {
            if let Event::Request(client) = event {
                let described = described::encode_with_key(&self.memory.region(), offered.key);
                let answered = client.id.answer(&described, offered.target.number());
                ffi::is_accepted(answered)?;
            }
        }
        Ok(())
    }

    fn accept(&mut self, mut client: Id) -> Result<(), Error> {
        client.create_queue_pair(&self.domain, &self.queue, 1, 1)?;
        let accepted = client.accept(&described::encode(&self.memory.region()));
        if ffi::is_accepted(accepted)? {
            self.clients.push(client);
        }
        Ok(())
    }
}
