//! A client: virtual queue pairs to nodes, over queue pairs that it connects as they are needed.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use urdma_node_table::{Answer, NodeKey, Region, Target};
use urdma_pool::{
    Access, Action, Completion, Config, Element, LocalRegion, LocalRegionId, NodeId, PhysicalId,
    Pool, Posted, RemoteRegion, RemoteRegionId, Request, Status, Transmit, Transport, UserId,
    VirtualId,
};

use crate::described;
use crate::error::Error;
use crate::ffi::{
    self, path_to, Calls, Domain, Event, Foreign, Handle, Id, Initiator, Memory, Queue, Route,
    Service,
};
use crate::metadata::{SERVICES_MAX, TOO_MANY_SERVICES};
use crate::replica::Replica;

/// How long a connection may take.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Node {
    id: NodeId,
    address: SocketAddr,
    /// What it has described, and the region of the pool that stands for it.
    memory: Option<(Region, RemoteRegionId)>,
    /// Its target, for initiators.
    route: Option<Route>,
    /// Its target has not answered, or the node has refused a request: what is known of it is
    /// learned again before the next virtual queue pair is opened.
    is_doubtful: bool,
    /// What a table had of it when that was last used.
    by_table: Option<Target>,
    /// How often tables were believed since the node was asked itself.
    tables_believed: u8,
}

impl Node {
    fn new(id: NodeId, address: SocketAddr) -> Self {
        Self {
            id,
            address,
            memory: None,
            route: None,
            is_doubtful: false,
            by_table: None,
            tables_believed: 0,
        }
    }
}

/// How often in a row a node is learned from tables, if requests to it fail.
const TABLES_BELIEVED_MAX: u8 = 2;
/// How long [`Client::use_metadata`] waits for the services.
const METADATA_LIMIT: Duration = Duration::from_secs(1);

/// Where a client has learned of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// From the table of a metadata service.
    pub by_table: u64,
    /// From the node itself.
    pub by_asking: u64,
}

/// A shared queue pair.
#[derive(Debug)]
struct Shared {
    physical: PhysicalId,
    link: Link,
}

#[derive(Debug)]
enum Link {
    Connection {
        /// The index of the node.
        node: usize,
        cm: Id,
        /// When it is given up; none once it is connected.
        until: Option<Instant>,
    },
    Initiator(Initiator),
}

impl Link {
    /// Posts a work request; `false`: the queue pair does not take it.
    fn post(&self, work: &Transmit, nodes: &[Node]) -> bool {
        match self {
            Self::Connection { cm, .. } => cm.post(work),
            Self::Initiator(initiator) => {
                let node = nodes.get(work.node.index());
                let route = node.and_then(|node| node.route.as_ref());
                route.is_some_and(|route| initiator.post(work, route))
            }
        }
    }

    fn break_connection(&self) {
        match self {
            Self::Connection { cm, .. } => cm.break_connection(),
            Self::Initiator(initiator) => initiator.break_connection(),
        }
    }
}

/// Turns without a completion between two looks for events of connections, each of which is a
/// system call. Requests on a connection that has ended fail without them.
const EVENTS_EVERY: u32 = 1024;

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
    /// By the index of the pool. The place of one that was removed has it until it is used again.
    nodes: Vec<Node>,
    known: HashMap<SocketAddr, usize>,
    /// Those that have not answered a request, or refused one, in the completions that were polled
    /// last.
    silent: Vec<NodeId>,
    /// Turns without a completion.
    idle_turns: u32,
    /// How initiators are created; none over connections.
    calls: Option<Calls>,
    replicas: Vec<Replica>,
    /// How the hosts of nodes in tables are reached.
    hosts: HashMap<IpAddr, Rc<Handle>>,
    learned: Learned,
    from: IpAddr,
    device: Device,
}

impl Client {
    /// A client whose requests leave from the device that has this address.
    ///
    /// # Errors
    /// If there is no such device, or the configuration does not work.
    pub fn new(from: IpAddr, config: &Config) -> Result<Self, Error> {
        config.validate()?;
        let calls = match config.transport {
            Transport::Connections { .. } => None,
            Transport::Initiators { .. } => Some(Calls::load()?),
        };
        let anchor = Id::new(Service::Connection)?;
        anchor.bind(SocketAddr::new(from, 0))?;
        let domain = Domain::new(anchor)?;
        let (elements, read_elements) = domain.elements_max()?;
        if config.elements_max > elements {
            return Err(Error::Elements(elements));
        }
        let config = Config {
            read_elements_max: config.read_elements_max.min(read_elements),
            ..*config
        };
        let queue = Queue::new(&domain, config.cq_depth)?;
        Ok(Self {
            pool: Pool::new(&config)?,
            config,
            shared: Vec::new(),
            memory: HashMap::new(),
            nodes: Vec::new(),
            known: HashMap::new(),
            silent: Vec::new(),
            idle_turns: 0,
            calls,
            replicas: Vec::new(),
            hosts: HashMap::new(),
            learned: Learned::default(),
            from,
            device: Device { queue, domain },
        })
    }

    /// Learns of nodes from the tables of metadata services, up to two, instead of asking the
    /// nodes. It waits for up to a second until one has answered or none can. Those that do not
    /// answer then are connected to again, a second apart, while unknown nodes are opened.
    ///
    /// # Errors
    /// If there are more than two services, or the pool is over connections, each of which learns
    /// everything from its node.
    pub fn use_metadata(&mut self, services: &[SocketAddr]) -> Result<(), Error> {
        if services.len() > SERVICES_MAX {
            return Err(Error::Metadata(TOO_MANY_SERVICES));
        }
        if self.calls.is_none() {
            return Err(Error::Metadata(
                "a pool over connections has no use for metadata services: take initiators",
            ));
        }
        self.replicas = services.iter().copied().map(Replica::new).collect();
        let until = Instant::now() + METADATA_LIMIT;
        loop {
            self.turn_replicas();
            let ready = self.replicas.iter().any(Replica::is_ready);
            let may_become = self.replicas.iter().any(Replica::is_connecting);
            if ready || !may_become || Instant::now() >= until {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    fn turn_replicas(&mut self) {
        for replica in &mut self.replicas {
            replica.turn(&self.device.domain);
        }
    }

    /// Why a metadata service was last given up, if one was.
    pub fn metadata_error(&self) -> Option<&Error> {
        self.replicas.iter().find_map(Replica::error)
    }

    /// Where the client has learned of nodes.
    pub fn learned(&self) -> Learned {
        self.learned
    }

    /// What the tables of the metadata services have of the node at an address, in order; of those
    /// that cannot be asked nothing.
    pub fn look_up(&mut self, address: SocketAddr) -> Vec<Answer> {
        let key = NodeKey::new(address);
        self.turn_replicas();
        let replicas = self.replicas.iter_mut();
        replicas
            .filter_map(|replica| replica.look_up(key))
            .collect()
    }

    /// The core, with its counters.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Registers `len_octets`, zero at first, for a user.
    ///
    /// # Errors
    /// If they cannot be registered.
    pub fn register(&mut self, user: UserId, len_octets: usize) -> Result<LocalRegionId, Error> {
        let memory = Memory::new(&self.device.domain, len_octets)?;
        self.add_local(user, memory)
    }

    /// Registers memory of the caller for a user. Peers are not told its key.
    ///
    /// # Errors
    /// If it cannot be registered.
    pub fn register_foreign(
        &mut self,
        user: UserId,
        memory: Foreign,
    ) -> Result<LocalRegionId, Error> {
        let memory = Memory::local(&self.device.domain, &memory)?;
        self.add_local(user, memory)
    }

    fn add_local(&mut self, user: UserId, memory: Memory) -> Result<LocalRegionId, Error> {
        let (lkey, _) = memory.keys();
        let id = self.pool.add_local(LocalRegion {
            user,
            addr: memory.addr(),
            len_octets: memory.len_octets() as u64,
            lkey,
            access: Access::ALL,
        })?;
        self.memory.insert(id, memory);
        Ok(id)
    }

    /// Ends the registration of memory. Waits for the requests that use it.
    ///
    /// # Errors
    /// If it is not registered, or a call of verbs fails.
    pub fn deregister(&mut self, id: LocalRegionId) -> Result<(), Error> {
        self.pool.remove_local(id)?;
        let settled = self.settle();
        self.device.domain.explain(settled)?;
        while self.memory.contains_key(&id) {
            let turned = self.turn();
            self.device.domain.explain(turned)?;
            std::thread::yield_now();
        }
        Ok(())
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

    /// Copies octets into registered memory.
    ///
    /// # Errors
    /// If it is not registered, or the range is beyond it.
    pub fn write(&self, id: LocalRegionId, offset: usize, octets: &[u8]) -> Result<(), Error> {
        self.memory(id)?.write(offset, octets)
    }

    /// Opens a virtual queue pair to the node at an address. If the node is not known, it waits for
    /// the first connection to it, for a READ of a metadata service's table, or for the answer of
    /// the node; if it is, no message is sent. At most `nodes_max` nodes are known: the least
    /// recently used one that has no virtual queue pair is forgotten for another one.
    ///
    /// # Errors
    /// If the node cannot be reached, the device was removed, or a limit is reached. Nothing is
    /// left open then.
    pub fn open(
        &mut self,
        user: UserId,
        to: SocketAddr,
        depth: u32,
    ) -> Result<(VirtualId, RemoteRegionId, u64), Error> {
        let opened = self.try_open(user, to, depth);
        self.device.domain.explain(opened)
    }

    fn try_open(
        &mut self,
        user: UserId,
        to: SocketAddr,
        depth: u32,
    ) -> Result<(VirtualId, RemoteRegionId, u64), Error> {
        let at = self.node_at(to)?;
        let node = &self.nodes[at];
        if self.calls.is_some() && (node.route.is_none() || node.is_doubtful) {
            self.learn(at)?;
        }
        let opened = self
            .pool
            .open(user, self.nodes[at].id, depth, Access::ALL)?;
        let described = self.wait_for_description(at);
        if described.is_err() {
            self.pool.close(opened)?;
        }
        let (described, region) = described?;
        Ok((opened, region, described.addr))
    }

    /// The node at an address, which may be new.
    fn node_at(&mut self, address: SocketAddr) -> Result<usize, Error> {
        if let Some(at) = self.known.get(&address) {
            return Ok(*at);
        }
        if self.pool.nodes() >= self.config.nodes_max as usize {
            self.forget_idle_node()?;
        }
        // The place of one that was forgotten is used again once its connections are destroyed.
        self.settle()?;
        let id = self.pool.add_node()?;
        let (at, node) = (id.index(), Node::new(id, address));
        match self.nodes.get_mut(at) {
            Some(place) => *place = node,
            None => self.nodes.push(node),
        }
        self.known.insert(address, at);
        Ok(at)
    }

    /// Forgets the least recently used node, if there is one without virtual queue pairs.
    fn forget_idle_node(&mut self) -> Result<(), Error> {
        let Some(id) = self.pool.remove_idle_node() else {
            return Ok(());
        };
        let node = &mut self.nodes[id.index()];
        let address = node.address;
        self.known.remove(&address);
        node.route = None;
        if let Some((_, region)) = node.memory.take() {
            self.pool.remove_remote(region)?;
        }
        let host = address.ip();
        if self
            .hosts
            .get(&host)
            .is_some_and(|handle| Rc::strong_count(handle) == 1)
        {
            self.hosts.remove(&host);
        }
        Ok(())
    }

    /// What a node has described, after the first connection to it.
    fn wait_for_description(&mut self, at: usize) -> Result<(Region, RemoteRegionId), Error> {
        self.settle()?;
        loop {
            if let Some(described) = self.nodes[at].memory {
                return Ok(described);
            }
            let is_of = |shared: &Shared| match shared.link {
                Link::Connection { node, .. } => node == at,
                Link::Initiator(_) => false,
            };
            if !self.shared.iter().any(is_of) {
                return Err(Error::Unreachable(self.nodes[at].address));
            }
            self.turn()?;
            std::thread::yield_now();
        }
    }

    /// Learns of a node, from the first table that has something new of it, or from the node.
    fn learn(&mut self, at: usize) -> Result<(), Error> {
        let node = &self.nodes[at];
        let (address, known) = (node.address, node.by_table);
        if node.tables_believed < TABLES_BELIEVED_MAX {
            let key = NodeKey::new(address);
            for n in 0..self.replicas.len() {
                let replica = &mut self.replicas[n];
                // Events are a system call. A READ of a service that has ended fails without them.
                if !replica.is_ready() {
                    replica.turn(&self.device.domain);
                }
                if let Some(Answer::Found(found)) = replica.look_up(key) {
                    // What has failed is not tried again.
                    if Some(found.target) != known && self.believe(at, found.target)? {
                        return Ok(());
                    }
                }
            }
        }
        self.ask(at)
    }

    /// Takes what a table has of a node; `false` if its host cannot be reached so.
    fn believe(&mut self, at: usize, target: Target) -> Result<bool, Error> {
        let host = self.nodes[at].address.ip();
        let handle = match self.hosts.get(&host) {
            Some(handle) => Rc::clone(handle),
            None => {
                let domain = &self.device.domain;
                let Some(path) = path_to(domain, self.from, host)? else {
                    return Ok(false);
                };
                let Ok(handle) = Handle::new(domain, path) else {
                    return Ok(false);
                };
                self.hosts.insert(host, Rc::clone(&handle));
                handle
            }
        };
        self.describe(at, target.region())?;
        let node = &mut self.nodes[at];
        node.route = Some(Route {
            handle,
            number: target.number(),
            key: target.access_key(),
        });
        (node.is_doubtful, node.by_table) = (false, Some(target));
        node.tables_believed += 1;
        self.learned.by_table += 1;
        Ok(true)
    }

    /// Asks a node for its target.
    fn ask(&mut self, at: usize) -> Result<(), Error> {
        let address = self.nodes[at].address;
        let cm = Id::new(Service::Datagram)?;
        cm.resolve_address(address)?;
        let until = Instant::now() + CONNECT_LIMIT;
        while Instant::now() < until {
            match cm.next_event()? {
                Some(Event::AddressResolved) => cm.resolve_route()?,
                Some(Event::RouteResolved) => {
                    self.device.domain.expect(&cm)?;
                    cm.connect(&[])?;
                }
                Some(Event::Answer(answer)) => return self.answered(at, &answer),
                Some(Event::Ended | Event::Rejected(_)) => break,
                Some(_) => {}
                None => {
                    self.turn()?;
                    std::thread::yield_now();
                }
            }
        }
        Err(Error::Unreachable(address))
    }

    fn answered(&mut self, at: usize, answer: &ffi::Answer) -> Result<(), Error> {
        let (described, key) = described::decode_with_key(&answer.private)
            .ok_or(Error::Unreachable(self.nodes[at].address))?;
        let handle = Handle::new(&self.device.domain, answer.path)?;
        self.describe(at, described)?;
        let node = &mut self.nodes[at];
        node.route = Some(Route {
            handle,
            number: answer.number,
            key,
        });
        (node.is_doubtful, node.tables_believed) = (false, 0);
        self.learned.by_asking += 1;
        Ok(())
    }

    /// Notes what a node describes.
    fn describe(&mut self, at: usize, described: Region) -> Result<(), Error> {
        let known = &mut self.nodes[at];
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
        Ok(())
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

    /// Posts a request with its scatter-gather list.
    ///
    /// # Errors
    /// If it is refused, or the device was removed.
    pub fn post(
        &mut self,
        id: VirtualId,
        request: &Request,
        elements: &[Element],
    ) -> Result<(), Error> {
        self.pool.post(id, request, elements)?;
        let settled = self.settle();
        self.device.domain.explain(settled)
    }

    /// The next completion, if there is one; does not sleep.
    ///
    /// # Errors
    /// If a call of verbs fails, or the device was removed.
    pub fn poll(&mut self, id: VirtualId) -> Result<Option<Completion>, Error> {
        if let Some(completion) = self.pool.poll(id) {
            return Ok(Some(completion));
        }
        let turned = self.turn();
        match self.device.domain.explain(turned)? {
            true => Ok(self.pool.poll(id)),
            false => Ok(None),
        }
    }

    /// Takes what has come, and does what follows from it; whether there may be completions.
    fn turn(&mut self) -> Result<bool, Error> {
        if !self.poll_queue()? {
            self.idle_turns = self.idle_turns.wrapping_add(1);
            if !self.idle_turns.is_multiple_of(EVENTS_EVERY) && !self.is_connecting() {
                // Nothing has come, and each request was handed over when it was posted.
                return Ok(false);
            }
            for at in (0..self.shared.len()).rev() {
                self.advance(at)?;
            }
        }
        self.settle().map(|()| true)
    }

    fn is_connecting(&self) -> bool {
        let is_new = |shared: &Shared| match shared.link {
            Link::Connection { until, .. } => until.is_some(),
            Link::Initiator(_) => false,
        };
        self.shared.iter().any(is_new)
    }

    /// Hands completions to the pool; whether there were any.
    fn poll_queue(&mut self) -> Result<bool, Error> {
        let (pool, silent) = (&mut self.pool, &mut self.silent);
        let nodes = &self.nodes;
        let found = self.device.queue.poll(|wr_id, status| {
            match status {
                Status::RetryExceeded => silent.extend(pool.node_of(wr_id)),
                // A table may have described other memory than the node's.
                Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => {
                    let node = pool.node_of(wr_id);
                    silent.extend(node.filter(|node| nodes[node.index()].tables_believed > 0));
                }
                _ => {}
            }
            pool.handle_completion(wr_id, status);
        });
        while let Some(id) = self.silent.pop() {
            let node = &mut self.nodes[id.index()];
            // Another one may have the place of one that was forgotten.
            node.is_doubtful |= node.id == id;
        }
        found
    }

    /// Posts what the pool has, and carries its actions out.
    fn settle(&mut self) -> Result<(), Error> {
        loop {
            let (shared, nodes) = (&self.shared, &self.nodes);
            self.pool.transmit(|work| {
                let found = shared.iter().find(|one| one.physical == work.physical);
                match found.is_some_and(|found| found.link.post(work, nodes)) {
                    true => Posted::Accepted,
                    false => Posted::Refused,
                }
            });
            let Some(action) = self.pool.poll_action() else {
                return Ok(());
            };
            match action {
                Action::Connect(physical, node) => self.connect(physical, node)?,
                Action::Create(physical) => self.create(physical)?,
                Action::Destroy(physical) => self.destroy(physical)?,
                Action::Deregister(id) => drop(self.memory.remove(&id)),
            }
        }
    }

    fn connect(&mut self, physical: PhysicalId, node: NodeId) -> Result<(), Error> {
        let node = node.index();
        let begun = Id::new(Service::Connection).and_then(|cm| {
            let resolved = cm.resolve_address(self.nodes[node].address);
            resolved.map(|()| cm)
        });
        let cm = match begun {
            Ok(cm) => cm,
            Err(error) => {
                self.pool.handle_unreachable(physical);
                return Err(error);
            }
        };
        let until = Some(Instant::now() + CONNECT_LIMIT);
        let link = Link::Connection { node, cm, until };
        self.shared.push(Shared { physical, link });
        Ok(())
    }

    fn create(&mut self, physical: PhysicalId) -> Result<(), Error> {
        let Device { queue, domain } = &self.device;
        let (depth, elements) = (self.config.sq_depth, self.config.elements_max);
        let calls = self.calls.map_or_else(Calls::load, Ok);
        let created = calls.and_then(|calls| Initiator::new(calls, domain, queue, depth, elements));
        match created {
            Ok(initiator) => {
                let link = Link::Initiator(initiator);
                self.shared.push(Shared { physical, link });
                self.pool.handle_connected(physical);
                Ok(())
            }
            Err(error) => {
                self.pool.handle_unreachable(physical);
                Err(error)
            }
        }
    }

    fn destroy(&mut self, physical: PhysicalId) -> Result<(), Error> {
        let found = self.shared.iter().position(|one| one.physical == physical);
        if let Some(at) = found {
            self.shared[at].link.break_connection();
            while self.poll_queue()? {}
            self.shared.swap_remove(at);
        }
        self.pool.handle_destroyed(physical);
        Ok(())
    }

    /// Takes the next events of a connection.
    fn advance(&mut self, at: usize) -> Result<(), Error> {
        loop {
            let Link::Connection { node, cm, until } = &self.shared[at].link else {
                return Ok(());
            };
            let (node, until) = (*node, *until);
            let taken = match cm.next_event()? {
                Some(Event::AddressResolved) => cm.resolve_route(),
                Some(Event::RouteResolved) => self.begin(at),
                Some(Event::Established(private)) => self.established(at, node, &private),
                Some(Event::Ended | Event::Rejected(_)) => {
                    Err(Error::Unreachable(self.nodes[node].address))
                }
                Some(Event::Request(_) | Event::Answer(_) | Event::Other) => Ok(()),
                None if until.is_some_and(|until| until <= Instant::now()) => {
                    Err(Error::Unreachable(self.nodes[node].address))
                }
                None => return Ok(()),
            };
            if taken.is_err() {
                self.lost(at, until.is_some());
                return Ok(());
            }
        }
    }

    fn begin(&mut self, at: usize) -> Result<(), Error> {
        if let Link::Connection { cm, .. } = &mut self.shared[at].link {
            self.device.domain.expect(cm)?;
            let Device { queue, domain } = &self.device;
            cm.create_queue_pair(
                domain,
                queue,
                self.config.sq_depth,
                self.config.elements_max,
            )?;
            cm.connect(&[])?;
        }
        Ok(())
    }

    fn established(&mut self, at: usize, node: usize, private: &[u8]) -> Result<(), Error> {
        let address = self.nodes[node].address;
        let described = described::decode(private).ok_or(Error::Unreachable(address))?;
        self.describe(node, described)?;
        if let Link::Connection { until, .. } = &mut self.shared[at].link {
            *until = None;
        }
        self.pool.handle_connected(self.shared[at].physical);
        Ok(())
    }

    /// A connection is not made, or has ended.
    fn lost(&mut self, at: usize, is_new: bool) {
        let physical = self.shared[at].physical;
        if is_new {
            self.shared.swap_remove(at);
            self.pool.handle_unreachable(physical);
        } else {
            self.pool.handle_broken(physical);
        }
    }
}
