//! The meeting of both ends of a TCP connection of this host (doc/sockets.md): offers of sockets
//! are paired by mirrored addresses in one network namespace, and both ends get the same memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::resource::{getrlimit, Resource};
use nix::unistd::Uid;
use urdma_ipc::status::{SocketConnection, SocketProcess};
use urdma_ipc::{SocketReason, SocketRules, SocketStatus};
use urdma_socket_switch::{layout, Block, End};

use crate::fair;
use crate::slots::Token;

use self::reasons::Reasons;

mod reasons;

/// Connections of one user but the owner and root, those whose other end is unknown among them.
const PER_USER_MAX: usize = 256;
/// The part of the limit of open files that all connections may take.
const PART_OF_FILES: u64 = 8;
/// Open connections that a status lists.
const CONNECTIONS_LISTED_MAX: usize = 64;
/// Descriptors of an offer that waits: two bells.
const FDS_OF_OFFER: usize = 2;

/// A connection and its number in the process: urdmad's number of the process, the offer's id.
pub(crate) type OfferId = (Token, u64);

/// What identifies a socket of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The cookie of the network namespace.
    pub(crate) netns: u64,
    /// The address of the socket.
    pub(crate) local: SocketAddr,
    /// That of its peer.
    pub(crate) remote: SocketAddr,
}

impl Place {
    fn mirrored(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
            ..self
        }
    }
}

/// A socket that a process offers.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) id: OfferId,
    pub(crate) uid: u32,
    pub(crate) place: Place,
    /// The kernel's number of the socket.
    pub(crate) cookie: u64,
    /// The bells of the connection and of the process's agent.
    pub(crate) bells: [OwnedFd; 2],
}

/// What becomes of an offer.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The other end is not offered yet.
    Waits,
    /// The other end was offered.
    Joined(Box<Joined>),
}

/// Both ends of a connection: that which has waited, and the other one.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) waited: Offer,
    pub(crate) offer: Offer,
    /// The memory of block and rings.
    pub(crate) memory: OwnedFd,
    /// Whether the end that has waited is the first.
    pub(crate) is_waited_first: bool,
}

/// What is known of an offer.
#[derive(Debug, Clone, Copy)]
enum Known {
    Waits(Place),
    Joined(u64),
}

/// A connection whose ends have met.
#[derive(Debug)]
struct Connection {
    /// Its memory counts to this user, who offered the first end.
    uid: u32,
    memory: File,
    /// The processes and addresses of both ends; no process once it has left.
    ends: [(Option<OfferId>, SocketAddr); 2],
}

/// All offers and connections.
#[derive(Debug)]
pub(crate) struct Sockets {
    owner: u32,
    descriptors_max: usize,
    /// What the configuration excludes.
    excluded: SocketRules,
    /// Offers whose sockets are being closed, and what is known of their answers.
    closing: BTreeMap<OfferId, Result<Offer, SocketReason>>,
    waiting: HashMap<Place, Offer>,
    connections: BTreeMap<u64, Connection>,
    known: BTreeMap<OfferId, Known>,
    next: u64,
    counters: SocketStatus,
    reasons: Reasons,
}

impl Sockets {
    /// None yet.
    pub(crate) fn new(excluded: SocketRules) -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(limit, _)| limit);
        let descriptors_max = usize::try_from(limit / PART_OF_FILES).unwrap_or(usize::MAX);
        Self {
            excluded,
            ..Self::within(descriptors_max)
        }
    }

    fn within(descriptors_max: usize) -> Self {
        Self {
            owner: Uid::effective().as_raw(),
            descriptors_max,
            excluded: SocketRules::default(),
            closing: BTreeMap::new(),
            waiting: HashMap::new(),
            connections: BTreeMap::new(),
            known: BTreeMap::new(),
            next: 0,
            counters: SocketStatus::default(),
            reasons: Reasons::default(),
        }
    }

    /// Counts an offer that is refused.
    fn refuse(&mut self, reason: SocketReason) {
        self.counters.offered += 1;
        self.counters.refused += 1;
        self.reasons.count(reason);
    }

    /// Both ends of a connection have met, and cannot have its memory.
    pub(crate) fn part(&mut self, ends: [OfferId; 2]) {
        for id in ends {
            self.forget(id);
            self.reasons.count(SocketReason::NoRoom);
        }
    }

    /// Takes the memory in which a process counts its reasons, which was checked. False if it has
    /// some already.
    pub(crate) fn add_reasons(&mut self, token: Token, memory: OwnedFd) -> bool {
        self.reasons.add(token, memory)
    }

    /// Takes an offer whose socket is about to be closed, or the reason of its refusal. It is
    /// answered afterwards.
    pub(crate) fn expect(&mut self, id: OfferId, offer: Result<Offer, SocketReason>) {
        // A process that uses a number again has no use for the earlier offer.
        self.forget(id);
        let offer = offer.and_then(|offer| self.check(&offer).map(|()| offer));
        self.closing.insert(id, offer);
    }

    /// The socket of an offer is closed: what becomes of it, or why the connection stays with TCP.
    /// None if the process has no use for it any more.
    pub(crate) fn closed(&mut self, id: OfferId) -> Option<Result<Outcome, SocketReason>> {
        let offer = self.closing.remove(&id)?;
        let outcome = offer.and_then(|offer| self.take(offer));
        match &outcome {
            Ok(_) => self.counters.offered += 1,
            Err(reason) => self.refuse(*reason),
        }
        Some(outcome)
    }

    /// Whether an offer may have rings, and there is room for it.
    fn check(&self, offer: &Offer) -> Result<(), SocketReason> {
        let place = offer.place;
        if self.excluded.exclude([place.local, place.remote]) {
            return Err(SocketReason::Excluded);
        }
        let is_again = |earlier: &Offer| earlier.cookie == offer.cookie;
        if place == place.mirrored() || self.offers_in_closing().any(is_again) {
            return Err(SocketReason::NotConnected);
        }
        if self.waiting.contains_key(&place.mirrored()) {
            return Ok(());
        }
        if self.descriptors() + FDS_OF_OFFER > self.descriptors_max {
            return Err(SocketReason::NoRoom);
        }
        let is_member = offer.uid != 0 && offer.uid != self.owner;
        let of_user = self.of_user(offer.uid);
        if is_member && of_user >= PER_USER_MAX {
            return Err(SocketReason::TooMany);
        }
        let free = (self.descriptors_max - self.descriptors()) / FDS_OF_OFFER;
        if is_member && !fair::may_take(of_user, free) {
            return Err(SocketReason::NoRoom);
        }
        Ok(())
    }

    fn offers_in_closing(&self) -> impl Iterator<Item = &Offer> {
        self.closing.values().flatten()
    }

    fn take(&mut self, offer: Offer) -> Result<Outcome, SocketReason> {
        let place = offer.place;
        if let Some(waited) = self.waiting.remove(&place.mirrored()) {
            return self.join(waited, offer);
        }
        if let Some(earlier) = self.waiting.get(&place) {
            // The same socket again, or one that has its addresses after it.
            if earlier.cookie == offer.cookie {
                return Err(SocketReason::NotConnected);
            }
            let id = earlier.id;
            self.forget(id);
        }
        self.known.insert(offer.id, Known::Waits(place));
        self.waiting.insert(place, offer);
        Ok(Outcome::Waits)
    }

    fn join(&mut self, waited: Offer, offer: Offer) -> Result<Outcome, SocketReason> {
        self.known.remove(&waited.id);
        let memory = new_memory().map_err(|_| SocketReason::NoRoom)?;
        let kept = memory.try_clone().map_err(|_| SocketReason::NoRoom)?;
        let connection = Connection {
            uid: waited.uid,
            memory: File::from(kept),
            ends: [&waited, &offer].map(|end| (Some(end.id), end.place.local)),
        };
        self.connections.insert(self.next, connection);
        for id in [waited.id, offer.id] {
            self.known.insert(id, Known::Joined(self.next));
        }
        self.next += 1;
        self.counters.joined += 1;
        let is_waited_first = waited.place.local < offer.place.local;
        Ok(Outcome::Joined(Box::new(Joined {
            waited,
            offer,
            memory,
            is_waited_first,
        })))
    }

    fn descriptors(&self) -> usize {
        let offers = self.waiting.len() + self.offers_in_closing().count();
        offers * FDS_OF_OFFER + self.connections.len()
    }

    fn of_user(&self, uid: u32) -> usize {
        let offers = self.waiting.values().chain(self.offers_in_closing());
        let offers = offers.map(|offer| offer.uid);
        let open = self.connections.values().map(|connection| connection.uid);
        offers.chain(open).filter(|user| *user == uid).count()
    }

    /// The process has no use for an offer any more.
    pub(crate) fn forget(&mut self, id: OfferId) {
        self.closing.remove(&id);
        match self.known.remove(&id) {
            None => {}
            Some(Known::Waits(place)) => {
                self.waiting.remove(&place);
            }
            Some(Known::Joined(number)) => self.leave(number, id),
        }
    }

    /// The process has ended.
    pub(crate) fn forget_all(&mut self, token: Token) {
        self.closing.retain(|(process, _), _| *process != token);
        let of_process = self.known.range((token, 0)..=(token, u64::MAX));
        let ids: Vec<OfferId> = of_process.map(|(id, _)| *id).collect();
        for id in ids {
            self.forget(id);
        }
        self.reasons.end(token);
    }

    /// One end of a connection has no process any more. With the last, its octets are counted.
    fn leave(&mut self, number: u64, id: OfferId) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        for (end, _) in &mut connection.ends {
            end.take_if(|end| *end == id);
        }
        if connection.ends.iter().all(|(end, _)| end.is_none()) {
            self.counters.ring_octets += connection.ring_octets();
            self.connections.remove(&number);
        }
    }

    /// For `urdma status`. `program_of` says which program a process is, and its process id.
    pub(crate) fn status(
        &self,
        program_of: impl Fn(Token) -> Option<(i32, String)>,
    ) -> SocketStatus {
        let open = self.connections.values().map(Connection::ring_octets);
        SocketStatus {
            waiting: self.waiting.len() as u64,
            open: self.connections.len() as u64,
            ring_octets: open.fold(self.counters.ring_octets, u64::saturating_add),
            reasons: self.reasons.status(),
            connections: self.busiest(&program_of),
            processes: self.processes(&program_of),
            ..self.counters.clone()
        }
    }

    /// The open connections that have moved the most octets.
    fn busiest(
        &self,
        program_of: &impl Fn(Token) -> Option<(i32, String)>,
    ) -> Vec<SocketConnection> {
        let pid_of = |(token, _): OfferId| program_of(token).map(|(pid, _)| pid);
        let listed = |(number, connection): (&u64, &Connection)| SocketConnection {
            number: *number,
            addresses: connection.ends.map(|(_, address)| address),
            pids: connection
                .ends
                .map(|(end, _)| end.and_then(pid_of).unwrap_or(0)),
            ring_octets: connection.ring_octets(),
            is_on_rings: connection.is_on_rings(),
        };
        let mut all: Vec<_> = self.connections.iter().map(listed).collect();
        all.sort_by_key(|connection| std::cmp::Reverse(connection.ring_octets));
        all.truncate(CONNECTIONS_LISTED_MAX);
        all
    }

    /// The processes that have offered sockets or counted reasons.
    fn processes(
        &self,
        program_of: &impl Fn(Token) -> Option<(i32, String)>,
    ) -> Vec<SocketProcess> {
        let mut all = BTreeMap::<Token, SocketProcess>::new();
        for ((token, _), known) in &self.known {
            let process = all.entry(*token).or_default();
            match known {
                Known::Waits(_) => process.waiting += 1,
                Known::Joined(_) => process.open += 1,
            }
        }
        for (token, reasons) in self.reasons.of_processes() {
            all.entry(token).or_default().reasons = reasons;
        }
        let named = |(token, process)| {
            let (pid, program) = program_of(token)?;
            Some(SocketProcess {
                pid,
                program,
                ..process
            })
        };
        all.into_iter().filter_map(named).collect()
    }
}

impl Connection {
    /// Octets that were put into its rings. Both processes can write any number there.
    fn ring_octets(&self) -> u64 {
        [End::First, End::Second]
            .into_iter()
            .map(|sender| {
                let mut head = [0; 8];
                let at = Block::head_at(sender) as u64;
                let read = self.memory.read_exact_at(&mut head, at);
                read.map_or(0, |()| u64::from_ne_bytes(head))
            })
            .fold(0, u64::saturating_add)
    }

    /// Whether no end refuses rings: what the memory begins with.
    fn is_on_rings(&self) -> bool {
        let mut refusals = layout::first_octets();
        let read = self.memory.read_exact_at(&mut refusals, 0);
        read.is_ok() && refusals.iter().all(|octet| *octet == 0)
    }
}

/// Memory for block and rings, whose length is fixed.
fn new_memory() -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memory = File::from(memfd_create(c"urdma-socket", flags)?);
    memory.set_len(layout::MEMORY_OCTETS as u64)?;
    memory.write_all_at(&layout::first_octets(), 0)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(memory.into())
}

impl Offer {
    /// The bells, in the order in which they are passed.
    pub(crate) fn bells(&self) -> [BorrowedFd<'_>; 2] {
        [self.bells[0].as_fd(), self.bells[1].as_fd()]
    }
}

#[cfg(test)]
mod tests;
