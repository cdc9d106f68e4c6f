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

/// A connection to a [`crate::Node`], for one request at a time.
#[derive(Debug)]
pub struct Own {
    /// Dropped before the memory that it accesses.
    cm: Id,
    region: Region,
    memory: Memory,
    queue: Rc<Queue>,
}

impl Own {
    /// Connects to the node at an address, with memory for reads of `len_octets`.
    ///
    /// # Errors
    /// If the node cannot be reached, or a call of verbs fails.
    pub fn connect(to: SocketAddr, len_octets: usize) -> Result<Self, Error> {
        let anchor = Id::new(Service::Connection)?;
        anchor.bind(SocketAddr::new(to.ip(), 0))?;
        let domain = Domain::new(anchor)?;
        let queue = Queue::new(&domain, 1)?;
        let memory = Memory::new(&domain, len_octets)?;
        let mut cm = Id::new(Service::Connection)?;
        cm.resolve_address(to)?;
        let until = Instant::now() + CONNECT_LIMIT;
        while Instant::now() < until {
            match cm.next_event()? {
                Some(Event::AddressResolved) => cm.resolve_route()?,
                Some(Event::RouteResolved) => {
                    cm.create_queue_pair(&domain, &queue, 1)?;
                    cm.connect(&[])?;
                }
                Some(Event::Established(private)) => {
                    let region = described::decode(&private);
                    return Ok(Self {
                        cm,
                        region: region.ok_or(Error::Unreachable(to))?,
                        memory,
                        queue,
                    });
                }
                Some(Event::Ended | Event::Rejected(_)) => break,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
        Err(Error::Unreachable(to))
    }

    /// Reads the first octets of the node's memory, and polls until that has ended.
    ///
    /// # Errors
    /// If a call of verbs fails, or the read is beyond the memory of either end.
    pub fn read(&mut self, len_octets: u32) -> Result<Status, Error> {
        let Region { rkey, addr, .. } = self.region;
        if len_octets as usize > self.memory.len_octets() {
            return Err(Error::Memory);
        }
        if !self.cm.read(0, &self.memory, (addr, rkey), len_octets) {
            return Err(Error::from_errno("ibv_post_send", libc::EINVAL));
        }
        let mut ended = None;
        while ended.is_none() {
            self.queue.poll(|_, status| ended = Some(status))?;
        }
        Ok(ended.unwrap_or(Status::Flushed))
    }
}
