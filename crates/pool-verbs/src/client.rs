//! A client: virtual queue pairs to nodes, over queue pairs that it connects as they are needed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use urdma_pool::{
    Access, Action, Completion, Config, LocalRegion, LocalRegionId, NodeId, PhysicalId, Pool,
    Posted, RemoteRegion, RemoteRegionId, Request, Transport, UserId, VirtualId,
};

use crate::described::Described;
use crate::error::Error;
use crate::ffi::{Domain, Event, Id, Memory, Queue};

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Node {
    id: NodeId,
    address: SocketAddr,
    /// What it has described, and the region of the pool that stands for it.
    memory: Option<(Described, RemoteRegionId)>,
}

/// A shared queue pair.
#[derive(Debug)]
struct Shared {
    physical: PhysicalId,
    node: usize,
    cm: Id,
    /// When it is given up; none once it is connected.
    until: Option<Instant>,
}

/// Domain and completion queue, of the device by which the first node is reached.
#[derive(Debug)]
struct Device {
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

/// A pool of one process over verbs.
#[derive(Debug)]
pub struct Client {
    pool: Pool,
    config: Config,
    /// Dropped before the memory that they access.
    shared: Vec<Shared>,
    memory: HashMap<LocalRegionId, Memory>,
    nodes: Vec<Node>,
    device: Device,
}

impl Client {
    /// A client whose requests leave from the device that has this address.
    ///
    /// # Errors
    /// If there is no such device, or the configuration does not work.
    pub fn new(from: std::net::IpAddr, config: &Config) -> Result<Self, Error> {
        if matches!(config.transport, Transport::Initiators { .. }) {
            return Err(Error::Initiators);
        }
        let pool = Pool::new(config)?;
        let anchor = Id::new()?;
        anchor.bind(SocketAddr::new(from, 0))?;
        let domain = Domain::new(anchor)?;
        let queue = Queue::new(&domain, config.cq_depth)?;
        Ok(Self {
            pool,
            config: *config,
            shared: Vec::new(),
            memory: HashMap::new(),
            nodes: Vec::new(),
            device: Device { queue, domain },
        })
    }

    /// The core, with its counters.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Registers so many octets for a user.
    ///
    /// # Errors
    /// If they cannot be registered.
    pub fn register(&mut self, user: UserId, len_octets: usize) -> Result<LocalRegionId, Error> {
        let memory = Memory::new(&self.device.domain, len_octets)?;
        let (lkey, _) = memory.keys();
        let id = self.pool.add_local(LocalRegion {
            user,
            addr: memory.addr(),
            len_octets: len_octets as u64,
            lkey,
            access: Access::ALL,
        })?;
        self.memory.insert(id, memory);
        Ok(id)
    }

    fn memory(&self, id: LocalRegionId) -> Result<&Memory, Error> {
        self.memory.get(&id).ok_or(Error::Memory)
    }

    /// The first address of registered memory.
    ///
    /// # Errors
    /// If it is not registered.
    pub fn addr(&self, id: LocalRegionId) -> Result<u64, Error> {
        Ok(self.memory(id)?.addr())
    }

    /// Copies octets out of registered memory.
    ///
    /// # Errors
    /// If it is not registered, or the range is beyond it.
    pub fn read(&self, id: LocalRegionId, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        self.memory(id)?.read(offset, to)
    }

    /// Opens a virtual queue pair to the node at an address. It waits for the first connection to
    /// the node; all others take no message.
    ///
    /// # Errors
    /// If the node cannot be reached, or a limit is reached.
    pub fn open(
        &mut self,
        user: UserId,
        to: SocketAddr,
        depth: u32,
    ) -> Result<(VirtualId, RemoteRegionId, u64), Error> {
        let known = self.nodes.iter().position(|node| node.address == to);
        let at = match known {
            Some(at) => at,
            None => {
                let id = self.pool.add_node()?;
                self.nodes.push(Node {
                    id,
                    address: to,
                    memory: None,
                });
                self.nodes.len() - 1
            }
        };
        let opened = self
            .pool
            .open(user, self.nodes[at].id, depth, Access::ALL)?;
        self.settle()?;
        while self.nodes[at].memory.is_none() {
            if !self.shared.iter().any(|shared| shared.node == at) {
                self.pool.close(opened)?;
                return Err(Error::Unreachable(to));
            }
            self.turn()?;
            std::thread::yield_now();
        }
        let (described, region) = self.nodes[at].memory.ok_or(Error::Unreachable(to))?;
        Ok((opened, region, described.addr))
    }

    /// Closes a virtual queue pair.
    ///
    /// # Errors
    /// If it is closed.
    pub fn close(&mut self, id: VirtualId) -> Result<(), Error> {
        Ok(self.pool.close(id)?)
    }

    /// Makes a virtual queue pair ready again after an error.
    ///
    /// # Errors
    /// If it is closed.
    pub fn reset(&mut self, id: VirtualId) -> Result<(), Error> {
        Ok(self.pool.reset(id)?)
    }

    /// Posts a request.
    ///
    /// # Errors
    /// If it is refused.
    pub fn post(&mut self, id: VirtualId, request: &Request) -> Result<(), Error> {
        self.pool.post(id, request)?;
        self.settle()
    }

    /// The next completion, if there is one; does not sleep.
    ///
    /// # Errors
    /// If a call of verbs fails.
    pub fn poll(&mut self, id: VirtualId) -> Result<Option<Completion>, Error> {
        if let Some(completion) = self.pool.poll(id) {
            return Ok(Some(completion));
        }
        self.turn()?;
        Ok(self.pool.poll(id))
    }

    /// Takes what has come, and does what follows from it.
    fn turn(&mut self) -> Result<(), Error> {
        let pool = &mut self.pool;
        let handle = |wr_id, status| pool.handle_completion(wr_id, status);
        let found = self.device.queue.poll(handle)?;
        if !found {
            for at in (0..self.shared.len()).rev() {
                self.advance(at)?;
            }
        }
        self.settle()
    }

    /// Posts what the pool has, and carries its actions out.
    fn settle(&mut self) -> Result<(), Error> {
        loop {
            let shared = &self.shared;
            self.pool.transmit(|work| {
                let found = shared.iter().find(|one| one.physical == work.physical);
                match found.is_some_and(|found| found.cm.post(work)) {
                    true => Posted::Accepted,
                    false => Posted::Refused,
                }
            });
            let Some(action) = self.pool.poll_action() else {
                return Ok(());
            };
            match action {
                Action::Connect(physical, node) => self.connect(physical, node)?,
                Action::Create(physical) => self.pool.handle_unreachable(physical),
                Action::Destroy(physical) => self.destroy(physical)?,
                Action::Deregister(region) => {
                    self.memory.retain(|_, memory| memory.addr() != region.addr);
                }
            }
        }
    }

    fn connect(&mut self, physical: PhysicalId, node: NodeId) -> Result<(), Error> {
        let found = self.nodes.iter().position(|known| known.id == node);
        let cm = Id::new()?;
        let begun = found.map(|at| cm.resolve_address(self.nodes[at].address));
        match (found, begun) {
            (Some(node), Some(Ok(()))) => self.shared.push(Shared {
                physical,
                node,
                cm,
                until: Some(Instant::now() + CONNECT_LIMIT),
            }),
            _ => self.pool.handle_unreachable(physical),
        }
        Ok(())
    }

    fn destroy(&mut self, physical: PhysicalId) -> Result<(), Error> {
        let found = self.shared.iter().position(|one| one.physical == physical);
        if let Some(at) = found {
            self.shared[at].cm.break_connection();
            let pool = &mut self.pool;
            let mut handle = |wr_id, status| pool.handle_completion(wr_id, status);
            while self.device.queue.poll(&mut handle)? {}
            self.shared.swap_remove(at);
        }
        self.pool.handle_destroyed(physical);
        Ok(())
    }

    /// Takes the next events of a connection.
    fn advance(&mut self, at: usize) -> Result<(), Error> {
        while let Some(event) = self.shared[at].cm.next_event()? {
            let taken = match event {
                Event::AddressResolved => self.shared[at].cm.resolve_route(),
                Event::RouteResolved => self.begin(at),
                Event::Established(private) => self.established(at, &private),
                Event::Ended => Err(Error::Unreachable(self.nodes[self.shared[at].node].address)),
                Event::Request(_) | Event::Other => Ok(()),
            };
            if taken.is_err() {
                self.lost(at);
                return Ok(());
            }
        }
        let is_late = |until: Instant| until <= Instant::now();
        if self.shared[at].until.is_some_and(is_late) {
            self.lost(at);
        }
        Ok(())
    }

    fn begin(&mut self, at: usize) -> Result<(), Error> {
        let cm = &mut self.shared[at].cm;
        let Device { queue, domain } = &self.device;
        if !domain.is_of(cm)? {
            return Err(Error::from_errno("rdma_resolve_addr", libc::ENODEV));
        }
        cm.create_queue_pair(domain, queue, self.config.sq_depth)?;
        cm.connect()
    }

    fn established(&mut self, at: usize, private: &[u8]) -> Result<(), Error> {
        let Shared { physical, node, .. } = self.shared[at];
        let known = &mut self.nodes[node];
        let described = Described::decode(private).ok_or(Error::Unreachable(known.address))?;
        if let Some((_, region)) = known.memory.filter(|(before, _)| *before != described) {
            // The node has begun anew: requests for what it had are refused.
            self.pool.remove_remote(region)?;
            known.memory = None;
        }
        if known.memory.is_none() {
            let region = self.pool.add_remote(RemoteRegion {
                node: known.id,
                addr: described.addr,
                len_octets: described.len_octets,
                rkey: described.rkey,
                access: Access::ALL,
            })?;
            known.memory = Some((described, region));
        }
        self.shared[at].until = None;
        self.pool.handle_connected(physical);
        Ok(())
    }

    /// A connection is not made, or has ended.
    fn lost(&mut self, at: usize) {
        let Shared {
            physical, until, ..
        } = self.shared[at];
        if until.is_some() {
            self.shared.swap_remove(at);
            self.pool.handle_unreachable(physical);
        } else {
            self.pool.handle_broken(physical);
        }
    }
}
