//! A client: virtual queue pairs to nodes, over queue pairs that it connects as they are needed.
//!
//! Files, each of which uses only those before it: `links`, nodes, shared queue pairs, and
//! questions; this one, with the memory of the client and of nodes; `questions`, how they are
//! asked; `drive`, what the pool posts and does; `nodes`; `asked`, requests of other pools;
//! `answers`, which take the place of requests over initiators; `events` of connections; `learn`,
//! of nodes that initiators reach; `calls` of users; `messages`, the calls for Sends and Receives.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use urdma_node_table::Region;
use urdma_pool::{
    Access, Config, LocalRegion, LocalRegionId, MessageConfig, NodeId, Pool, RemoteRegion,
    Transport, UserId,
};

pub(crate) use self::links::CONNECT_LIMIT;
use self::links::{Node, Question, SharedPairs};
pub use self::messages::Messages;
use crate::away::Away;
use crate::buffers::Buffers;
use crate::error::Error;
use crate::ffi::{Calls, Domain, Foreign, Handle, Id, Memory, Queue, Service, Target};
use crate::replica::Replica;

mod answers;
mod asked;
mod calls;
mod drive;
mod events;
mod learn;
mod links;
mod messages;
mod nodes;
mod questions;

/// Turns between two looks for events of connections, each of which is a system call, if none is
/// being made. Requests on a connection that has ended fail without them.
const EVENTS_EVERY: u32 = 1024;

/// Turns between two looks at the clock, if nodes may be switched to connections.
const WINDOWS_EVERY: u32 = 64;

/// Where a client has learned of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// From the table of a metadata service.
    pub by_table: u64,
    /// From the node itself.
    pub by_asking: u64,
}

/// Domain and completion queue, of the device by which the first node is reached.
#[derive(Debug)]
struct Device {
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

/// What a client has for messages.
#[derive(Debug)]
struct Exchange {
    /// Where it listens.
    at: SocketAddr,
    config: MessageConfig,
    listener: Id,
    buffers: Buffers,
    /// What others may access.
    offered: Option<Memory>,
    /// Where messages arrive, over initiators.
    target: Option<OfferedTarget>,
}

/// The target of a client over initiators.
#[derive(Debug)]
struct OfferedTarget {
    target: Target,
    key: u64,
}

/// A pool of one process over verbs.
#[derive(Debug)]
pub struct Client {
    pool: Pool,
    config: Config,
    /// Dropped before the memory that they access.
    shared: SharedPairs,
    /// Other clients that are asked to exchange messages.
    questions: Vec<Question>,
    /// When silent ones were last asked whether they are there.
    probed: Instant,
    /// None if it exchanges no messages.
    exchange: Option<Exchange>,
    memory: HashMap<LocalRegionId, Memory>,
    /// The memory that has a key.
    keys: HashMap<u32, LocalRegionId>,
    /// By the index of the pool. The place of one that was removed has it until it is used again.
    nodes: Vec<Node>,
    known: HashMap<SocketAddr, usize>,
    /// What reaches those that initiators have reached, and are not among `nodes`.
    away: Away,
    /// The node to which the last virtual queue pair was closed last, if initiators reach it.
    idle: Option<NodeId>,
    /// Why a shared queue pair could not be created last, and the node to which it was to be
    /// connected, if it was not an initiator.
    failure: Option<(Option<NodeId>, Error)>,
    /// How often it was looked for what has come.
    turns: u32,
    /// A connection may be being made.
    may_connect: bool,
    /// It is time to look for what no completion tells of when these bits of `turns` are zero.
    turns_mask: u32,
    /// How initiators are created; none over connections.
    calls: Option<Calls>,
    replicas: Vec<Replica>,
    /// How the hosts of nodes in tables are reached.
    hosts: HashMap<IpAddr, Rc<Handle>>,
    learned: Learned,
    /// When the pool was last told of windows that have ended.
    windows_ended: Instant,
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
            shared: SharedPairs::default(),
            questions: Vec::new(),
            probed: Instant::now(),
            exchange: None,
            memory: HashMap::new(),
            keys: HashMap::new(),
            nodes: Vec::new(),
            known: HashMap::new(),
            away: Away::default(),
            idle: None,
            failure: None,
            turns: 0,
            may_connect: false,
            turns_mask: match config.switching {
                None => EVENTS_EVERY - 1,
                Some(_) => WINDOWS_EVERY - 1,
            },
            calls,
            replicas: Vec::new(),
            hosts: HashMap::new(),
            learned: Learned::default(),
            windows_ended: Instant::now(),
            from,
            device: Device { queue, domain },
        })
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
        self.keys.insert(lkey, id);
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

    /// Copies octets into registered memory.
    ///
    /// # Errors
    /// If it is not registered, or the range is beyond it.
    pub fn write(&self, id: LocalRegionId, offset: usize, octets: &[u8]) -> Result<(), Error> {
        self.memory(id)?.write(offset, octets)
    }

    /// Notes what a node describes.
    fn describe(&mut self, at: usize, described: Region) -> Result<(), Error> {
        let known = &mut self.nodes[at];
        if let Some((_, region)) = known.memory.filter(|(before, _)| *before != described) {
            // The node has begun anew: requests for what it had are refused, and its target is
            // another one.
            self.pool.remove_remote(region)?;
            (known.memory, known.is_doubtful) = (None, true);
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
}
