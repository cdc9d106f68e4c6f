//! A node: memory that clients reach by the address at which it listens.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::described::Described;
use crate::error::Error;
use crate::ffi::{Calls, Domain, Event, Id, Memory, Queue, Service, Target};

/// A target of dynamically connected transport, and where clients ask for it.
#[derive(Debug)]
struct Offered {
    target: Target,
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
    offered: Option<Offered>,
    listener: Id,
    at: SocketAddr,
    memory: Memory,
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

impl Node {
    /// Offers so many octets, zero at first, at an address.
    ///
    /// # Errors
    /// If there is no device with the address, the port is in use, or memory cannot be registered.
    pub fn listen(at: SocketAddr, len_octets: usize) -> Result<Self, Error> {
        let anchor = Id::new(Service::Connection)?;
        anchor.bind(SocketAddr::new(at.ip(), 0))?;
        let domain = Domain::new(anchor)?;
        let listener = Id::new(Service::Connection)?;
        listener.bind(at)?;
        listener.listen()?;
        Ok(Self {
            clients: Vec::new(),
            offered: None,
            listener,
            at,
            memory: Memory::new(&domain, len_octets)?,
            queue: Queue::new(&domain, 1)?,
            domain,
        })
    }

    /// Offers the memory over dynamically connected transport, too.
    ///
    /// # Errors
    /// If the device has none, or the port is in use by a datagram service.
    pub fn offer_target(&mut self) -> Result<(), Error> {
        let key = getrandom::u64().map_err(|error| Error::Call {
            call: "getrandom",
            error: error.into(),
        })?;
        let target = Target::new(Calls::load()?, &self.domain, &self.queue, key)?;
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

    /// Accepts clients that wait; does not sleep.
    ///
    /// # Errors
    /// If a client could not be accepted. The node remains.
    pub fn turn(&mut self) -> Result<(), Error> {
        self.clients.retain(|client| !has_ended(client));
        while let Some(event) = self.listener.next_event()? {
            if let Event::Request(client) = event {
                self.accept(client)?;
            }
        }
        let Some(offered) = &self.offered else {
            return Ok(());
        };
        while let Some(event) = offered.listener.next_event()? {
            if let Event::Request(client) = event {
                let described = self.described().encode_with_key(offered.key);
                client.answer(&described, offered.target.number())?;
            }
        }
        Ok(())
    }

    fn described(&self) -> Described {
        let (_, rkey) = self.memory.keys();
        Described {
            rkey,
            addr: self.memory.addr(),
            len_octets: self.memory.len_octets() as u64,
        }
    }

    fn accept(&mut self, mut client: Id) -> Result<(), Error> {
        client.create_queue_pair(&self.domain, &self.queue, 1)?;
        client.accept(&self.described().encode())?;
        self.clients.push(client);
        Ok(())
    }
}

fn has_ended(client: &Id) -> bool {
    loop {
        match client.next_event() {
            Ok(Some(Event::Ended)) | Err(_) => return true,
            Ok(Some(_)) => {}
            Ok(None) => return false,
        }
    }
}
