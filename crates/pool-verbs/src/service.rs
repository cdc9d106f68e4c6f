//! The metadata service: owns a table of nodes in registered memory, which clients read.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use urdma_node_table::{ChangeError, Geometry, NodeKey, Region, Table, Target, ENTRIES_PER_BUCKET};
use urdma_pool::Status;

use crate::error::Error;
use crate::ffi::{is_accepted, random, Domain, Event, Id, Memory, Queue, Service};
use crate::metadata::{encode_table, Hello, Refusal};
use crate::probe::{Probe, PROBE_EVERY, PROBE_LEN};

/// What a service bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most nodes, 1 to [`Limits::MAX`].
    pub nodes: u32,
    /// The most clients, 1 to [`Limits::MAX`].
    pub clients: u32,
}

impl Limits {
    /// Tenths of its entries that a full table has.
    const LOAD_TENTHS: u32 = 7;
    /// The most of either that any service has.
    pub const MAX: u32 = 1_000_000;

    fn buckets(&self) -> u32 {
        let entries = (self.nodes * 10).div_ceil(Self::LOAD_TENTHS);
        let per_bucket = u32::try_from(ENTRIES_PER_BUCKET).expect("two");
        entries.div_ceil(per_bucket).max(2)
    }
}

/// The memory of the table, which peers may only read.
#[derive(Debug)]
struct TableMemory(Memory);

impl urdma_node_table::Memory for TableMemory {
    fn len_words(&self) -> usize {
        self.0.len_octets() / 8
    }

    fn load(&self, index: usize) -> u64 {
        u64::from_be(self.0.word(index).load(Ordering::Relaxed))
    }

    fn store(&mut self, index: usize, word: u64) {
        self.0.word(index).store(word.to_be(), Ordering::Release);
    }
}

/// A node or a client that is connected.
#[derive(Debug)]
struct Peer {
    cm: Id,
    /// What it has registered; none of a client.
    node: Option<Registered>,
}

/// A node that has registered itself.
#[derive(Debug)]
struct Registered {
    key: NodeKey,
    probe: Probe,
}

/// The device and the listener among the tokens of the epoll set.
const DEVICE: u64 = 0;
const LISTENER: u64 = 1;
/// Events that are taken at once.
const EVENTS: usize = 64;

/// A metadata service.
///
/// A node is in the table for as long as its connection lasts. [`MetadataService::turn`] sleeps
/// until something happens.
#[derive(Debug)]
pub struct MetadataService {
    /// By token. Connections are dropped before the table.
    peers: HashMap<u64, Peer>,
    next_token: u64,
    listener: Id,
    epoll: Epoll,
    table: Table<TableMemory>,
    region: Region,
    limits: Limits,
    clients: u32,
    /// When probes are due.
    probe_at: Instant,
    /// Where probes read to.
    probed: Memory,
    queue: Rc<Queue>,
    domain: Rc<Domain>,
}

fn of_epoll(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::from_errno(call, errno as i32)
}

fn watch(epoll: &Epoll, descriptor: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
    let event = EpollEvent::new(EpollFlags::EPOLLIN, token);
    let added = epoll.add(descriptor, event);
    added.map_err(of_epoll("epoll_ctl"))
}

impl MetadataService {
    /// Listens at an address, with an empty table.
    ///
    /// # Errors
    /// If the limits are impossible, there is no device with the address, the port is in use, or
    /// memory cannot be registered.
    pub fn listen(at: SocketAddr, limits: Limits) -> Result<Self, Error> {
        if [limits.nodes, limits.clients]
            .iter()
            .any(|limit| !(1..=Limits::MAX).contains(limit))
        {
            return Err(Error::Limits);
        }
        let anchor = Id::new(Service::Connection)?;
        anchor.bind(SocketAddr::new(at.ip(), 0))?;
        let domain = Domain::new(anchor)?;
        let geometry = Geometry {
            epoch: u16::try_from(random()? % u64::from(u16::MAX)).unwrap_or(0) + 1,
            seed: random()?,
            buckets: limits.buckets(),
        };
        let len = usize::try_from(geometry.len_octets()).map_err(|_| Error::Limits)?;
        let memory = Memory::read_only(&domain, len)?;
        let region = memory.region();
        let table = Table::create(TableMemory(memory), geometry).map_err(|_| Error::Limits)?;
        let listener = Id::new(Service::Connection)?;
        listener.bind(at)?;
        listener.listen()?;
        let created = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let epoll = created.map_err(of_epoll("epoll_create1"))?;
        watch(&epoll, domain.descriptor(), DEVICE)?;
        watch(&epoll, listener.descriptor(), LISTENER)?;
        Ok(Self {
            peers: HashMap::new(),
            next_token: LISTENER + 1,
            listener,
            epoll,
            table,
            region,
            limits,
            clients: 0,
            probe_at: Instant::now(),
            probed: Memory::new(&domain, PROBE_LEN)?,
            queue: Queue::new(&domain, limits.nodes)?,
            domain,
        })
    }

    /// The nodes in the table.
    pub fn nodes(&self) -> u32 {
        self.table.len()
    }

    /// The clients.
    pub fn clients(&self) -> u32 {
        self.clients
    }

    /// Enters a node that does not register itself, and remains until the service ends.
    ///
    /// # Errors
    /// If the address is in the table, or the table is full.
    pub fn enter(&mut self, at: SocketAddr, target: Target) -> Result<(), Refusal> {
        self.register(NodeKey::new(at), target).map(drop)
    }

    /// Sleeps until something happens, and does what follows from it.
    ///
    /// # Errors
    /// If a call fails; the service remains, and so do those that it serves. If the device was
    /// removed; then it does not.
    pub fn turn(&mut self) -> Result<(), Error> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, self.timeout()) {
            Err(Errno::EINTR) => 0,
            waited => waited.map_err(of_epoll("epoll_wait"))?,
        };
        for event in &events[..count] {
            match event.data() {
                DEVICE if self.domain.is_removed() => return Err(Error::Removed),
                DEVICE => {}
                LISTENER => self.take_requests()?,
                token => self.follow(token),
            }
        }
        self.probe()
    }

    /// How long nothing is due.
    fn timeout(&self) -> EpollTimeout {
        if self.table.is_empty() {
            return EpollTimeout::NONE;
        }
        // It is not woken up before its time, to find that nothing is due.
        let left = self.probe_at.saturating_duration_since(Instant::now());
        EpollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(EpollTimeout::NONE)
    }

    /// Probes nodes, and drops those that have not answered the last probe.
    fn probe(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now < self.probe_at {
            return Ok(());
        }
        self.probe_at = now + PROBE_EVERY;
        let mut gone = Vec::new();
        let peers = &mut self.peers;
        let mut take = |token, status| {
            let peer = peers.get_mut(&token).and_then(|peer| peer.node.as_mut());
            match peer {
                Some(node) if status == Status::Success => node.probe.answered(),
                _ => gone.push(token),
            }
        };
        while self.queue.poll(&mut take)? {}
        for (token, Peer { cm, node }) in &mut self.peers {
            let Some(node) = node else { continue };
            if !node.probe.send(now, *token, cm, &self.probed) {
                gone.push(*token);
            }
        }
        gone.into_iter().for_each(|token| self.drop_peer(token));
        Ok(())
    }

    /// Drops a peer whose connection has ended.
    fn follow(&mut self, token: u64) {
        let peer = self.peers.get(&token);
        if peer.is_some_and(|peer| peer.cm.has_ended()) {
            self.drop_peer(token);
        }
    }

    /// Drops a peer, with what it has registered.
    fn drop_peer(&mut self, token: u64) {
        match self.peers.remove(&token) {
            Some(Peer {
                node: Some(node), ..
            }) => self.remove(node.key),
            Some(Peer { node: None, .. }) => self.clients -= 1,
            None => {}
        }
    }

    fn remove(&mut self, key: NodeKey) {
        let removed = self.table.remove(key);
        debug_assert_eq!(
            removed,
            Ok(()),
            "a peer has the node for as long as it is there"
        );
    }

    fn take_requests(&mut self) -> Result<(), Error> {
        while let Some(event) = self.listener.next_event()? {
            let Event::Request(request) = event else {
                continue;
            };
            match self.admit(&request.private, request.from) {
                Ok(node) => self.accept(request.id, node)?,
                Err(refusal) => request.id.reject(&refusal.encode())?,
            }
        }
        Ok(())
    }

    /// Enters a node into the table, which it returns; none for a client.
    fn admit(
        &mut self,
        private: &[u8],
        from: Option<IpAddr>,
    ) -> Result<Option<Registered>, Refusal> {
        match Hello::decode(private)? {
            Hello::Client if self.clients >= self.limits.clients => Err(Refusal::Clients),
            Hello::Client => Ok(None),
            Hello::Node(at, _) if Some(at.ip()) != from.map(|from| from.to_canonical()) => {
                Err(Refusal::Host)
            }
            Hello::Node(at, target) => {
                let key = self.register(NodeKey::new(at), target)?;
                let probe = Probe::new(target.region());
                Ok(Some(Registered { key, probe }))
            }
        }
    }

    fn register(&mut self, key: NodeKey, target: Target) -> Result<NodeKey, Refusal> {
        if self.table.find(key).is_some() {
            return Err(Refusal::Taken);
        }
        if self.table.len() >= self.limits.nodes {
            return Err(Refusal::Nodes);
        }
        match self.table.insert(key, target) {
            Ok(_) => Ok(key),
            Err(ChangeError::Known) => Err(Refusal::Taken),
            Err(ChangeError::Full | ChangeError::Unknown) => Err(Refusal::Nodes),
        }
    }

    fn accept(&mut self, cm: Id, node: Option<Registered>) -> Result<(), Error> {
        let token = self.next_token;
        self.next_token += 1;
        self.clients += u32::from(node.is_none());
        self.peers.insert(token, Peer { cm, node });
        let accepted = self.try_accept(token);
        if !matches!(accepted, Ok(true)) {
            self.drop_peer(token);
        }
        accepted.map(drop)
    }

    /// `false`: the peer asks no more.
    fn try_accept(&mut self, token: u64) -> Result<bool, Error> {
        let Some(Peer { cm, .. }) = self.peers.get_mut(&token) else {
            return Ok(false);
        };
        watch(&self.epoll, cm.descriptor(), token)?;
        cm.create_queue_pair(&self.domain, &self.queue, 1, 1)?;
        is_accepted(cm.accept(&encode_table(&self.region)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_all_limits_have_a_load_of_seven_tenths_at_most() {
        for nodes in [1, 2, 3, 1000, Limits::MAX] {
            let buckets = Limits { nodes, clients: 1 }.buckets();
            assert!((2..=urdma_node_table::BUCKETS_MAX).contains(&buckets));
            let entries = u64::from(buckets) * ENTRIES_PER_BUCKET as u64;
            assert!(u64::from(nodes) * 10 <= entries * 7, "{nodes}: {buckets}");
        }
    }
}
