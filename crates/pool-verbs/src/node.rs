//! A node: memory that clients reach by the address at which it listens.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::described::Described;
use crate::error::Error;
use crate::ffi::{Domain, Event, Id, Memory, Queue};

/// Memory that is offered at an address.
///
/// Clients access it by one-sided operations. [`Node::turn`] accepts their connections and drops
/// those that have ended.
#[derive(Debug)]
pub struct Node {
    /// The connections are dropped first: then no client accesses the memory.
    clients: Vec<Id>,
    listener: Id,
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
        let anchor = Id::new()?;
        anchor.bind(SocketAddr::new(at.ip(), 0))?;
        let domain = Domain::new(anchor)?;
        let listener = Id::new()?;
        listener.bind(at)?;
        listener.listen()?;
        Ok(Self {
            clients: Vec::new(),
            listener,
            memory: Memory::new(&domain, len_octets)?,
            queue: Queue::new(&domain, 1)?,
            domain,
        })
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
        Ok(())
    }

    fn accept(&mut self, mut client: Id) -> Result<(), Error> {
        client.create_queue_pair(&self.domain, &self.queue, 1)?;
        let (_, rkey) = self.memory.keys();
        let described = Described {
            rkey,
            addr: self.memory.addr(),
            len_octets: self.memory.len_octets() as u64,
        };
        client.accept(&described.encode())?;
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
