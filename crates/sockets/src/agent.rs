//! The agent: a thread that offers sockets to urdmad, gives them their rings, and acts for this
//! process while its other threads do not call.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libc::pollfd;
use urdma_abi::cancel::Disabled;
use urdma_ipc::{ControlClient, Event, JoinedSocket, RunDir};
use urdma_socket_switch::{attend, is_over, End, Over, Word};

use crate::begin::joined;
use crate::connection::{self, Connection, Parts, ARRIVAL_LIMIT};
use crate::host::Call;
use crate::octets::Window;
use crate::own::{Marked, Own, Spin};
use crate::peer::Peer;
use crate::reasons::{self, Reason};
use crate::signals::Masked;
use crate::table::{self, Cell, State};
use crate::{bell, leave, limits, own, process, real, sets, spawned};

/// How long the agent waits for room in TCP, milliseconds.
const LOOK_MS: c_int = 1;
/// How long it waits for an event that has arrived.
const EVENT_LIMIT: Duration = Duration::from_millis(1);
/// Time between two attempts to reach urdmad.
const PAUSE: Duration = Duration::from_secs(1);

const NONE: u8 = 0;
const STARTING: u8 = 1;
const RUNS: u8 = 2;

static PHASE: AtomicU8 = AtomicU8::new(NONE);
/// What the agent is asked for.
struct Asked {
    /// The sockets to be offered: descriptor and generation.
    sockets: Vec<(c_int, u64)>,
    /// The agent, while it has no thread ([`Agent::park`]).
    parked: Option<Agent>,
}

static ASKED: Spin<Asked> = Spin::new(Asked {
    sockets: Vec::new(),
    parked: None,
});

/// A socket is to be offered, if both of its ends are on this host.
#[cold]
pub(crate) fn ask(fd: c_int, cell: &Cell, generation: u64) {
    let _uncancelled = Disabled::new();
    let _masked = Masked::sleeping();
    let before = real::errno();
    let is_lent = || cell.is_lent(fd) || sets::is_lent(cell);
    let ends = addresses(fd).filter(|ends| are_of_this_host(*ends));
    let has_reason = |reason| {
        stays_with_tcp(cell, (generation, State::Alone), Some(reason));
        // urdmad gets to know it.
        if reasons::has_early() && is_running() {
            bell::notice();
        }
    };
    // A system may give another protocol to sockets of TCP (MPTCP).
    if process::run_dir().is_none() || !connection::is_tcp(fd) {
        cell.advance(generation, State::Alone, State::Kernel);
    } else if ends.is_none() {
        stays_with_tcp(cell, (generation, State::Alone), Some(Reason::OtherHost));
    } else if ends.is_some_and(process::is_excluded) {
        has_reason(Reason::Excluded);
    } else if has_least_octets(fd) {
        has_reason(Reason::Option);
    } else if is_lent() {
        cell.restart();
    } else if is_running() {
        // A call that finds the list in use, or the agent parked, leaves this to the next one.
        let asked = ASKED.try_with(|asked| {
            if PHASE.load(SeqCst) != RUNS {
                return;
            }
            let is_first = cell.advance(generation, State::Alone, State::Offered);
            if is_first.is_none() {
                return;
            }
            // A fork that has begun before has not seen the new state.
            if is_lent() {
                cell.advance(generation, State::Offered, State::Alone);
            } else if has_least_octets(fd) {
                // Another thread has set them after they were looked at.
                stays_with_tcp(cell, (generation, State::Offered), Some(Reason::Option));
            } else {
                limits::note_of(fd);
                asked.sockets.push((fd, generation));
            }
        });
        if asked.is_some() {
            bell::notice();
        }
    }
    real::set_errno(before);
}

/// Whether the agent runs; it is started if it does not.
fn is_running() -> bool {
    if PHASE
        .compare_exchange(NONE, STARTING, SeqCst, SeqCst)
        .is_ok()
    {
        let parked = ASKED.with(|asked| asked.parked.take());
        reasons::set_parked(-1);
        let agent = parked.or_else(|| Own::bell().map(Agent::new));
        let started = agent.is_some_and(|agent| {
            bell::set(agent.bell.as_raw_fd());
            let thread = std::thread::Builder::new().name("urdma-sockets".to_owned());
            thread.spawn(move || agent.run()).is_ok()
        });
        PHASE.store(if started { RUNS } else { NONE }, SeqCst);
    }
    PHASE.load(SeqCst) == RUNS
}

/// A fork is about to happen.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn before_fork() {
    ASKED.lock();
    own::before_fork();
}

/// It has happened.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn after_fork() {
    own::after_fork();
    ASKED.unlock();
}

/// It has happened, and this is the child, which has no agent.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn in_child() {
    own::in_child();
    ASKED.unlock();
    ASKED.with(|asked| {
        asked.sockets.clear();
        // Its descriptors are closed, and a child frees no memory.
        std::mem::forget(asked.parked.take());
    });
    bell::set(-1);
    PHASE.store(NONE, SeqCst);
}

/// The addresses of both ends.
fn addresses(fd: c_int) -> Option<[SocketAddr; 2]> {
    // SAFETY: the program is in a call on the descriptor; it is not closed here.
    let stream = std::mem::ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    Some([stream.local_addr().ok()?, stream.peer_addr().ok()?])
}

/// Whether the addresses of both ends are the same, or both are of the loopback interface.
fn are_of_this_host(ends: [SocketAddr; 2]) -> bool {
    let [local, remote] = ends.map(|end| end.ip().to_canonical());
    local == remote || [local, remote].iter().all(IpAddr::is_loopback)
}

/// Whether receives wait for several octets (SO_RCVLOWAT), which the socket may have from its
/// listener.
fn has_least_octets(fd: c_int) -> bool {
    connection::int_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) != Some(1)
}

/// A socket that urdmad knows.
struct Offered {
    fd: c_int,
    generation: u64,
    bell: Own,
}

/// A connection with rings.
struct Watched {
    connection: Arc<Connection>,
    offer: u64,
    /// Until the peer is gone.
    is_watched: bool,
    /// The last attempt to hand back octets found no room.
    is_behind: bool,
    /// The connection is TCP's soon: a sender is at work, or octets that were handed back are on
    /// their way.
    is_late: bool,
    /// Since when they are on their way.
    late_since: Option<Instant>,
}

/// The connection to urdmad. Declared in the order in which they are dropped.
struct Urdmad {
    _marked: Marked,
    client: ControlClient,
}

struct Agent {
    bell: Own,
    urdmad: Option<Urdmad>,
    tried: Option<Instant>,
    offers: HashMap<u64, Offered>,
    connections: Vec<Watched>,
    /// The processes of peers, by the numbers of the urdmad that runs.
    peers: HashMap<u64, Weak<Peer>>,
    /// The memory in which reasons are counted.
    reasons: Option<reasons::Memory>,
    has_offered: bool,
}

impl Agent {
    fn new(bell: Own) -> Self {
        Self {
            bell,
            urdmad: None,
            tried: None,
            offers: HashMap::new(),
            connections: Vec::new(),
            peers: HashMap::new(),
            reasons: None,
            has_offered: false,
        }
    }

    fn run(mut self) {
        // Of the time without a thread.
        self.take_events();
        loop {
            let (is_told, gone) = self.wait();
            for index in gone {
                self.connections[index].peer_is_gone();
            }
            let asked = ASKED.with(|asked| std::mem::take(&mut asked.sockets));
            for (fd, generation) in asked {
                self.offer(fd, generation);
            }
            if is_told {
                self.take_events();
            }
            retire(spawned::handed_on());
            if reasons::has_early() {
                // urdmad gets to know them.
                self.urdmad();
            }
            self.attend();
            self.forget();
            match self.park() {
                Some(agent) => self = agent,
                None => return,
            }
        }
    }

    /// An agent that has offered nothing ends its thread when urdmad knows the counts: in a process
    /// of one thread, system calls on files are shorter. The next offer starts it again, and the
    /// next reason after the end of urdmad. Returns the agent if it stays.
    fn park(self) -> Option<Self> {
        let urdmad = self.urdmad.as_ref();
        let Some(urdmad) = urdmad.map(|urdmad| urdmad.client.as_fd().as_raw_fd()) else {
            return Some(self);
        };
        if self.has_offered || reasons::has_early() {
            return Some(self);
        }
        // The thread that has started this one has not said so yet.
        while PHASE.load(SeqCst) == STARTING {
            std::thread::yield_now();
        }
        ASKED.with(|asked| {
            if !asked.sockets.is_empty() || spawned::has_any() {
                return Some(self);
            }
            bell::set(-1);
            reasons::set_parked(urdmad);
            asked.parked = Some(self);
            PHASE.store(NONE, SeqCst);
            None
        })
    }

    /// Waits for something to do: whether urdmad has sent something, and which connections have an
    /// end or an error.
    fn wait(&self) -> (bool, Vec<usize>) {
        bell::turn();
        let entry = |fd: c_int, events| pollfd {
            fd,
            events,
            revents: 0,
        };
        let urdmad = self.urdmad.as_ref().map(|urdmad| urdmad.client.as_fd());
        let mut list = vec![
            entry(self.bell.as_raw_fd(), libc::POLLIN),
            entry(urdmad.map_or(-1, |fd| fd.as_raw_fd()), libc::POLLIN),
        ];
        list.extend(self.connections.iter().map(|watched| {
            let fd = watched.connection.socket();
            entry(if watched.is_watched { fd } else { -1 }, libc::POLLRDHUP)
        }));
        let mut watched = self.connections.iter();
        let is_behind = watched.any(|watched| watched.is_behind || watched.is_late);
        let limit = if is_behind { LOOK_MS } else { -1 };
        let count = list.len() as libc::nfds_t;
        // SAFETY: a list of `count` entries.
        unsafe { real::poll(list.as_mut_ptr(), count, limit) };
        bell::turn();
        if list[0].revents != 0 {
            bell::silence(self.bell.as_raw_fd());
        }
        let ended = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let gone = list[2..].iter().enumerate();
        let gone = gone.filter(|(_, entry)| entry.revents & ended != 0);
        (list[1].revents != 0, gone.map(|(index, _)| index).collect())
    }

    /// The connection to urdmad, which is made if there is none.
    fn urdmad(&mut self) -> Option<&ControlClient> {
        let is_late = self.tried.is_none_or(|tried| tried.elapsed() > PAUSE);
        if self.urdmad.is_none() && is_late {
            self.tried = Some(Instant::now());
            let dir = RunDir::at(process::run_dir()?);
            let client = ControlClient::connect(&dir, &program()).ok()?;
            let _marked = Marked::new(client.as_fd().as_raw_fd());
            self.reasons = self.reasons.take().or_else(reasons::Memory::new);
            if let Some(memory) = &self.reasons {
                client.offer_reasons(memory.as_fd()).ok()?;
            }
            self.urdmad = Some(Urdmad { _marked, client });
        }
        if let (Some(_), Some(memory)) = (&self.urdmad, &self.reasons) {
            memory.share();
        }
        self.urdmad.as_ref().map(|urdmad| &urdmad.client)
    }

    fn offer(&mut self, fd: c_int, generation: u64) {
        self.has_offered = true;
        // An offer of before a fork is over.
        let offers = self.offers.iter();
        let earlier = offers.filter(|(_, offered)| offered.fd == fd);
        let earlier: Vec<u64> = earlier.map(|(id, _)| *id).collect();
        for id in earlier {
            self.offers.remove(&id);
            self.tell_forgotten(id);
        }
        if let Err(reason) = self.try_offer(fd, generation) {
            offered_stays(fd, generation, Some(reason));
        }
    }

    fn try_offer(&mut self, fd: c_int, generation: u64) -> Result<(), Reason> {
        let bell = Own::bell().ok_or(Reason::NoDescriptor)?;
        let agent = self.bell.as_raw_fd();
        let client = self.urdmad().ok_or(Reason::UrdmadGone)?;
        let socket = copy_of(fd, generation).ok_or(Reason::NoDescriptor)?;
        let borrow = |fd: c_int| {
            // SAFETY: open as long as this function runs.
            unsafe { BorrowedFd::borrow_raw(fd) }
        };
        let fds = [socket.as_raw_fd(), bell.as_raw_fd(), agent].map(borrow);
        let sent = client.offer_socket(fds);
        let id = sent.map_err(|_| Reason::UrdmadGone)?;
        let offered = Offered {
            fd,
            generation,
            bell,
        };
        self.offers.insert(id, offered);
        Ok(())
    }

    /// Connections go on; sockets that wait stay with TCP.
    fn lose_urdmad(&mut self) {
        self.urdmad = None;
        self.tried = None;
        // The next one gives their numbers to other processes.
        self.peers.clear();
        reasons::restart();
        for (_, offered) in self.offers.drain() {
            let reason = Some(Reason::UrdmadGone);
            offered_stays(offered.fd, offered.generation, reason);
        }
    }

    fn take_events(&mut self) {
        while let Some(urdmad) = &self.urdmad {
            match urdmad.client.next_event(Some(EVENT_LIMIT)) {
                Ok(Some((event, fds))) => self.take(event, fds),
                Ok(None) => return,
                Err(_) => self.lose_urdmad(),
            }
        }
    }

    fn take(&mut self, event: Event, fds: Vec<OwnedFd>) {
        match event {
            Event::SocketWaits { offer } => {
                if let Some(Offered { fd, generation, .. }) = self.offers.get(&offer) {
                    if let Some(cell) = table::cell(*fd) {
                        cell.advance(*generation, State::Offered, State::Waits);
                    }
                }
            }
            Event::SocketRefused { offer } => {
                if let Some(offered) = self.offers.remove(&offer) {
                    // urdmad has counted why.
                    offered_stays(offered.fd, offered.generation, None);
                }
            }
            Event::SocketJoined(joined) => {
                let Some(offered) = self.offers.remove(&joined.offer) else {
                    return;
                };
                let (fd, generation) = (offered.fd, offered.generation);
                if self.join(joined, offered, fds).is_none() {
                    offered_stays(fd, generation, Some(Reason::NoDescriptor));
                    self.tell_forgotten(joined.offer);
                }
            }
            _ => {}
        }
    }

    /// Gives a socket its rings.
    fn join(&mut self, joined: JoinedSocket, offered: Offered, fds: Vec<OwnedFd>) -> Option<()> {
        let Offered {
            fd,
            generation,
            bell,
        } = offered;
        let [memory, peer_bell, agent_bell] = <[OwnedFd; 3]>::try_from(fds).ok()?;
        let cell = table::cell(fd)?;
        let connection = Connection::new(Parts {
            memory,
            socket: copy_of(fd, generation)?,
            bell,
            peer_bell: Own::copy(peer_bell.as_fd())?,
            peer: self.peer_of(joined.peer_process, &agent_bell)?,
            end: if joined.is_first {
                End::First
            } else {
                End::Second
            },
            process: joined.process,
            peer_process: joined.peer_process,
            is_accepted: cell.is_accepted(),
            fd,
        });
        let connection = Arc::new(connection.ok()?);
        let pointer = Connection::into_raw(Arc::clone(&connection));
        cell.set_connection(pointer);
        if !give(cell, generation, &connection) {
            let pointer = cell.set_connection(null_mut());
            // SAFETY: the pointer of above, if no other thread has taken it.
            drop(unsafe { Connection::from_raw(pointer) });
            return None;
        }
        self.connections
            .push(Watched::new(connection, joined.offer));
        Some(())
    }

    /// The process of a peer, whose agent has a bell; one for all connections to it.
    fn peer_of(&mut self, process: u64, bell: &OwnedFd) -> Option<Arc<Peer>> {
        self.peers.retain(|_, peer| peer.strong_count() > 0);
        if let Some(known) = self.peers.get(&process).and_then(Weak::upgrade) {
            return Some(known);
        }
        let peer = Arc::new(Peer::new(Own::copy(bell.as_fd())?));
        self.peers.insert(process, Arc::downgrade(&peer));
        Some(peer)
    }

    /// Does for each connection what the peer or the end of a thread requires.
    fn attend(&mut self) {
        for watched in &mut self.connections {
            watched.attend();
        }
    }

    /// Forgets what was closed, or is the kernel's.
    fn forget(&mut self) {
        let mut forgotten = Vec::new();
        self.offers.retain(|id, offered| {
            let stays = is_state(
                offered.fd,
                offered.generation,
                &[State::Offered, State::Waits],
            );
            if !stays {
                forgotten.push(*id);
            }
            stays
        });
        self.connections.retain(|watched| {
            let is_open = watched.connection.with_socket(|| ()).is_some();
            if !is_open {
                forgotten.push(watched.offer);
            }
            is_open
        });
        for id in forgotten {
            self.tell_forgotten(id);
        }
    }

    fn tell_forgotten(&self, offer: u64) {
        if let Some(urdmad) = &self.urdmad {
            // If it cannot be sent, urdmad forgets with the end of the connection to it.
            let _ = urdmad.client.forget_socket(offer);
        }
    }
}

impl Watched {
    fn new(connection: Arc<Connection>, offer: u64) -> Self {
        Self {
            connection,
            offer,
            is_watched: true,
            is_behind: false,
            is_late: false,
            late_since: None,
        }
    }

    fn attend(&mut self) {
        let connection = &self.connection;
        let nothing = Window::NONE;
        let call = Call::new(connection, &nothing, 0);
        let done = connection.with_socket(|| attend(&call));
        self.is_behind = matches!(done, Some(Err(_)));
        self.is_late = false;
        // A peer that has used rings and refuses them now does not use these again. Another
        // connection may have the descriptor by now.
        let was_used = connection.was_in_ring.load(SeqCst)
            || connection.load(Word::Head(connection.end.peer())) != 0;
        let cell = table::cell(connection.fd).filter(|cell| cell.has(connection));
        let Some(cell) = cell.filter(|_| was_used) else {
            return;
        };
        match is_over(&call) {
            Over::Yes => {}
            over => {
                self.is_late = over == Over::NotYet;
                return;
            }
        }
        let has_arrived = connection.with_socket(|| connection.has_arrived());
        let since = *self.late_since.get_or_insert_with(Instant::now);
        if has_arrived == Some(false) && since.elapsed() < ARRIVAL_LIMIT {
            // A receive of the kernel's would not find them.
            self.is_late = true;
            return;
        }
        let refusals = connection.load(Word::Refusals(connection.end.peer()));
        let entered = cell.enter();
        if cell.has(connection) {
            connection.settle_cork();
            if refusals < leave::FOR_GOOD {
                leave::pause_cell(connection.fd, cell);
            } else {
                cell.end(false);
                sets::part(connection.fd, cell, false);
            }
        }
        cell.leave_since(entered);
    }

    /// The peer has closed its socket, or was killed: what the outgoing ring has is given to TCP,
    /// which answers as it does. Or this end closes, which does so itself: the peer does not move
    /// to TCP, and its set reports the end in its place.
    fn peer_is_gone(&mut self) {
        self.is_watched = false;
        let connection = &self.connection;
        connection.with_socket(|| connection.look_for_peer());
        if connection.load(Word::Closes(connection.end)) == 0 {
            let refusals = Word::Refusals(connection.end);
            connection.block().word(refusals).fetch_add(1, SeqCst);
        }
        connection.wake_own();
    }
}

/// Gives the cell its state: rings at once if no call is in progress, else from the next call on.
fn give(cell: &'static Cell, generation: u64, connection: &Connection) -> bool {
    loop {
        let seen = cell.seen();
        let is_waiting = matches!(seen.state(), State::Offered | State::Waits);
        if seen.generation() != generation || !is_waiting {
            return false;
        }
        let state = if seen.users() == 0 {
            State::Rings
        } else {
            State::Ready
        };
        if cell.change(seen, state) {
            if state == State::Rings {
                joined(cell, connection);
            }
            return true;
        }
    }
}

fn is_state(fd: c_int, generation: u64, states: &[State]) -> bool {
    table::cell(fd).is_some_and(|cell| {
        let seen = cell.seen();
        seen.generation() == generation && states.contains(&seen.state())
    })
}

/// A socket gets no rings, if it has a generation and a state; urdmad has counted it without a
/// reason.
fn stays_with_tcp(cell: &Cell, (generation, state): (u64, State), reason: Option<Reason>) {
    let is_done = cell.advance(generation, state, State::Kernel).is_some();
    if let Some(reason) = reason.filter(|_| is_done) {
        reasons::count(reason);
    }
}

/// The same of a socket that is offered.
fn offered_stays(fd: c_int, generation: u64, reason: Option<Reason>) {
    for state in [State::Offered, State::Waits] {
        if let Some(cell) = table::cell(fd) {
            stays_with_tcp(cell, (generation, state), reason);
        }
    }
}

/// A copy of a socket, unless it was closed.
fn copy_of(fd: c_int, generation: u64) -> Option<Own> {
    // SAFETY: if the program has closed it, the number is no or another file's, whose copy is
    // dropped.
    let copy = Own::copy(unsafe { BorrowedFd::borrow_raw(fd) })?;
    is_state(fd, generation, &[State::Offered, State::Waits]).then_some(copy)
}

/// Moves descriptors to TCP. That may wait for the agent of a peer, which may wait for this one:
/// another thread does it.
fn retire(fds: Vec<c_int>) {
    if fds.is_empty() {
        return;
    }
    let list = fds.clone();
    let thread = std::thread::Builder::new().name("urdma-sockets".to_owned());
    let started = thread.spawn(move || list.into_iter().for_each(hand_on));
    if started.is_err() {
        fds.into_iter().for_each(hand_on);
    }
}

fn hand_on(fd: c_int) {
    leave::retire(fd, Reason::Inherited);
}

/// The name of the program.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests;
