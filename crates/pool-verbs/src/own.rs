//! A reliable connection of a program's own, without a pool, with which virtual queue pairs are
//! compared.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use urdma_node_table::Region;
use urdma_pool::Status;

use crate::client::CONNECT_LIMIT;
use crate::described;
use crate::error::Error;
use crate::ffi::{Domain, Event, Id, Memory, Queue, Service};
use crate::metadata::Hello;
use crate::registration;

/// Reads that are posted at a time at most.
const DEPTH: u32 = 2;

/// A connection to a [`crate::Node`], for reads that are posted together, or to a
/// [`crate::MetadataService`].
#[derive(Debug)]
pub struct Own {
    /// Dropped before the memory that it accesses.
    cm: Id,
    region: Region,
    memory: Memory,
    queue: Rc<Queue>,
    /// Posted reads that have not ended.
    outstanding: u32,
    /// How the first one ended that failed.
    failed: Option<Status>,
}

/// A read of a [`crate::Node`]'s memory into that of an [`Own`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRead {
    /// The offset in the node's memory.
    pub from: u64,
    /// The offset in the own one.
    pub to: usize,
    /// How many octets.
    pub len_octets: usize,
}

/// What a connection needs that is being made.
struct Parts {
    cm: Id,
    memory: Memory,
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

impl Parts {
    /// The address is being resolved.
    fn new(to: SocketAddr, len_octets: usize) -> Result<Self, Error> {
        let anchor = Id::new(Service::Connection)?;
        anchor.bind(SocketAddr::new(to.ip(), 0))?;
        let domain = Domain::new(anchor)?;
        let cm = Id::new(Service::Connection)?;
        cm.resolve_address(to)?;
        Ok(Self {
            cm,
            memory: Memory::new(&domain, len_octets)?,
            queue: Queue::new(&domain, DEPTH)?,
            domain,
        })
    }

    fn connected(self, region: Region) -> Own {
        Own {
            cm: self.cm,
            region,
            memory: self.memory,
            queue: self.queue,
            outstanding: 0,
            failed: None,
        }
    }
}

impl Own {
    /// Connects to the node at an address, with memory for reads of `len_octets`.
    ///
    /// # Errors
    /// If the node cannot be reached, or a call of verbs fails.
    pub fn connect(to: SocketAddr, len_octets: usize) -> Result<Self, Error> {
        let mut parts = Parts::new(to, len_octets)?;
        let Parts {
            cm, queue, domain, ..
        } = &mut parts;
        let until = Instant::now() + CONNECT_LIMIT;
        while Instant::now() < until {
            match cm.next_event()? {
                Some(Event::AddressResolved) => cm.resolve_route()?,
                Some(Event::RouteResolved) => {
                    cm.create_queue_pair(domain, queue, DEPTH, 1)?;
                    cm.connect(&[])?;
                }
                Some(Event::Established(private)) => {
                    let region = described::decode(&private);
                    return Ok(parts.connected(region.ok_or(Error::Unreachable(to))?));
                }
                Some(Event::Ended | Event::Rejected(_)) => break,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
        Err(Error::Unreachable(to))
    }

    /// Connects to a metadata service as a client of it does, for one read of its table at a time.
    ///
    /// # Errors
    /// If the service cannot be reached or refuses, or a call of verbs fails.
    pub fn connect_to_service(service: SocketAddr, len_octets: usize) -> Result<Self, Error> {
        let mut parts = Parts::new(service, len_octets)?;
        let hello = Hello::Client.encode();
        let until = Instant::now() + CONNECT_LIMIT;
        loop {
            let objects = (&parts.domain, &parts.queue);
            let table = registration::connect(&mut parts.cm, objects, &hello, service, until)?;
            if let Some(table) = table {
                return Ok(parts.connected(table));
            }
            std::thread::yield_now();
        }
    }

    /// The length of the node's memory.
    pub fn offered_octets(&self) -> u64 {
        self.region.len_octets
    }

    /// Posts a read.
    ///
    /// # Errors
    /// If it is beyond the memory of either end, or the queue pair does not take it.
    pub fn post(&mut self, read: &OwnRead) -> Result<(), Error> {
        let region = self.region;
        let ends = (read.to.checked_add(read.len_octets))
            .zip(read.from.checked_add(read.len_octets as u64));
        let fits = ends
            .is_some_and(|(to, from)| to <= self.memory.len_octets() && from <= region.len_octets);
        let len_octets = u32::try_from(read.len_octets).map_err(|_| Error::Memory)?;
        if !fits {
            return Err(Error::Memory);
        }
        let to = (self.memory.addr() + read.to as u64, self.memory.keys().0);
        let from = (region.addr + read.from, region.rkey);
        if self.outstanding == DEPTH || !self.cm.read_to(0, to, from, len_octets) {
            return Err(Error::from_errno("ibv_post_send", libc::ENOMEM));
        }
        self.outstanding += 1;
        Ok(())
    }

    /// How the posted reads have ended, once all have; does not sleep.
    ///
    /// # Errors
    /// If a call of verbs fails.
    pub fn poll(&mut self) -> Result<Option<Status>, Error> {
        let (outstanding, failed) = (&mut self.outstanding, &mut self.failed);
        self.queue.poll(|_, status| {
            *outstanding -= 1;
            if status != Status::Success {
                failed.get_or_insert(status);
            }
        })?;
        let has_ended = self.outstanding == 0;
        Ok(has_ended.then(|| self.failed.take().unwrap_or(Status::Success)))
    }

    /// Reads the first octets of the node's memory, and polls until that has ended.
    ///
    /// # Errors
    /// As [`Own::post`].
    pub fn read(&mut self, len_octets: usize) -> Result<Status, Error> {
        self.post(&OwnRead {
            from: 0,
            to: 0,
            len_octets,
        })?;
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
        }
    }

    /// Copies octets out of the own memory.
    ///
    /// # Errors
    /// If the range is beyond it.
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        self.memory.read(offset, to)
    }
}
