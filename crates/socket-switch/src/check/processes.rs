//! The processes of both ends: the calls that their threads make, and what happens to them.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;

use super::world::{Caller, InProgress, Turns, World};
use super::{Finding, Rng};
use crate::{
    attend, close, demote, join, peek, recv, recv_at_once, resume, send, send_at_once,
    shutdown_write, Closing, Demotion, End, Event, Host, Owner, Received, Refused, Sent, Taken,
    Word,
};

/// A call that is in progress, or what has to be done when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Recv,
    ShutdownWrite,
    /// Both directions are TCP's during a call that only the kernel can do.
    Pause,
    Resume,
    /// exec of a program without the library.
    ExecStranger,
    /// A descriptor is given to a program without the library.
    Pass,
    /// close or exit.
    Leave,
    Agent,
    Join,
}

/// What a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Sent(Sent),
    Taken(Taken),
    Demoted(Demotion),
    Closed(Closing),
}

struct Call {
    kind: Kind,
    call: InProgress<Outcome>,
}

/// A thread of a process.
struct Actor {
    owner: Owner,
    call: Option<Call>,
}

/// A process with descriptors of one end. The last of its threads is the library's agent.
struct Process {
    end: End,
    has_library: bool,
    pauses: u64,
    /// Calls of agents that its agent has answered; none before its first.
    answered: Option<u64>,
    actors: Vec<Actor>,
}

/// Threads of a process, with the agent.
const THREADS: usize = 3;
const AGENT: usize = THREADS - 1;

pub(super) struct Processes {
    pub(super) world: Rc<RefCell<World>>,
    rng: Rng,
    all: Vec<Process>,
    last_owner: u64,
    longest: u64,
    /// How many of 1000 accesses of a thread that has a lock end its process.
    pub(super) killed_with_lock: u64,
    /// Octets that sends have returned, by the end that sends.
    sent: [u64; 2],
    /// How each end's stream ended.
    pub(super) ended: [Option<Taken>; 2],
    /// The tail of the incoming ring when the last process of an end left octets in it.
    left_ring_at: [Option<u64>; 2],
    /// The last process of an end has closed the socket while octets were in its incoming ring.
    has_closed_unread: [bool; 2],
    has_joined: [bool; 2],
}

pub(super) const ENDS: [End; 2] = [End::First, End::Second];

impl Processes {
    pub(super) fn new(mut rng: Rng) -> Self {
        let world = World::new(Rng::new(rng.bits()));
        let mut new = Self {
            world: Rc::new(RefCell::new(world)),
            longest: rng.between(1, 24),
            killed_with_lock: 0,
            rng,
            all: Vec::new(),
            last_owner: 0,
            sent: [0; 2],
            ended: [None; 2],
            left_ring_at: [None; 2],
            has_closed_unread: [false; 2],
            has_joined: [false; 2],
        };
        for end in ENDS {
            new.add_process(end, true);
        }
        new
    }

    fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    fn add_process(&mut self, end: End, has_library: bool) {
        let actors = (0..THREADS).map(|_| self.new_actor(end)).collect();
        self.all.push(Process {
            end,
            has_library,
            pauses: 0,
            answered: None,
            actors,
        });
    }

    fn new_actor(&mut self, end: End) -> Actor {
        self.last_owner += 1;
        let owner = Owner(self.last_owner);
        self.world().start_thread(owner, end);
        Actor { owner, call: None }
    }

    /// The threads of a process end where they are, and new ones begin: exec.
    fn replace_actors(&mut self, at: usize) {
        let end = self.all[at].end;
        for slot in 0..THREADS {
            let new = self.new_actor(end);
            let old = std::mem::replace(&mut self.all[at].actors[slot], new);
            self.world().threads.remove(&old.owner.0);
        }
        self.all[at].answered = None;
        self.report_end();
    }

    /// Threads have ended: the agents of both ends look.
    fn report_end(&mut self) {
        for calls in &mut self.world().agent_calls {
            *calls += 1;
        }
    }

    /// A process ends; the kernel closes its descriptors.
    fn remove_process(&mut self, at: usize) {
        let process = self.all.swap_remove(at);
        let end = process.end;
        for actor in &process.actors {
            self.world().threads.remove(&actor.owner.0);
        }
        self.report_end();
        if self.all.iter().all(|other| other.end != end) {
            let mut world = self.world();
            let is_moving = world.word(Word::Moving(end.peer())) != 0;
            let has_left = world.in_ring(end.peer()) > 0 && !is_moving;
            let tail = world.word(Word::Tail(end.peer()));
            world.tcp.close(end);
            drop(world);
            self.left_ring_at[end.index()] = has_left.then_some(tail);
        }
    }

    /// A process closes the socket, and ends.
    fn close(&mut self, at: usize, closing: Closing) {
        let end = self.all[at].end;
        let has_left = self.world().in_ring(end.peer()) > 0;
        self.remove_process(at);
        if !self.is_alive(end) {
            self.has_closed_unread[end.index()] = has_left;
            if closing == Closing::Reset {
                self.world().tcp.reset();
            }
        }
    }

    pub(super) fn is_alive(&self, end: End) -> bool {
        self.all.iter().any(|process| process.end == end)
    }

    fn start(&mut self, at: usize, slot: usize, kind: Kind) {
        let process = &self.all[at];
        let caller = Caller {
            world: self.world.clone(),
            end: process.end,
            owner: process.actors[slot].owner,
        };
        // A program without the library has the kernel's calls, and so has one during a pause.
        let is_raw = !process.has_library || (process.pauses > 0 && self.rng.percent(50));
        let len = self.rng.between(1, self.longest);
        let may_upgrade = self.rng.percent(70);
        let does_wait = self.rng.percent(80);
        let is_at_once = self.rng.percent(70);
        // Its driver waits in the call.
        let call = match kind {
            Kind::Send if is_raw => caller.start(move |h| raw_send(h, len)),
            Kind::Recv if is_raw => caller.start(move |h| raw_recv(h, len)),
            Kind::ShutdownWrite if is_raw => caller.start(returns(|h| h.tcp_shutdown_write())),
            Kind::Send => caller.start(move |h| {
                if is_at_once && send_at_once(h, len) {
                    h.counts().sent_at_once += 1;
                    return Outcome::Sent(Sent::Octets(len));
                }
                Outcome::Sent(send(h, len, may_upgrade).unwrap())
            }),
            Kind::Recv if self.rng.percent(15) => {
                caller.start(move |h| Outcome::Taken(peek(h, len, does_wait).unwrap()))
            }
            Kind::Recv => caller.start(move |h| {
                let taken = if is_at_once {
                    recv_at_once(h, len)
                } else {
                    None
                };
                if let Some(taken) = taken {
                    h.counts().taken_at_once += 1;
                    return Outcome::Taken(Taken::Octets(taken));
                }
                Outcome::Taken(recv(h, len, does_wait).unwrap())
            }),
            Kind::Pause | Kind::ExecStranger | Kind::Pass => {
                caller.start(|h| Outcome::Demoted(demote(h).unwrap()))
            }
            Kind::ShutdownWrite => caller.start(returns(|h| shutdown_write(h).unwrap())),
            Kind::Resume => caller.start(returns(|h| resume(h))),
            Kind::Leave => caller.start(|h| Outcome::Closed(close(h).unwrap())),
            Kind::Agent => caller.start(returns(|h| attend(h).unwrap())),
            Kind::Join => caller.start(returns(|h| join(h))),
        };
        self.all[at].actors[slot].call = Some(Call { kind, call });
    }

    /// Starts the agents that were called.
    fn start_agents(&mut self) {
        for at in 0..self.all.len() {
            let end = self.all[at].end;
            let calls = self.world().agent_calls[end.index()];
            let process = &self.all[at];
            let is_called = process.answered != Some(calls);
            if process.has_library && is_called && process.actors[AGENT].call.is_none() {
                self.all[at].answered = Some(calls);
                self.start(at, AGENT, Kind::Agent);
            }
        }
    }

    /// One access of a random thread that can run; false if there is none.
    pub(super) fn run_one(&mut self) -> Result<bool, Finding> {
        self.start_agents();
        let mut runnable = Vec::new();
        for (at, process) in self.all.iter().enumerate() {
            for (slot, actor) in process.actors.iter().enumerate() {
                if actor.call.is_some() && self.world().is_runnable(actor.owner) {
                    runnable.push((at, slot));
                }
            }
        }
        if runnable.is_empty() {
            return Ok(false);
        }
        let (at, slot) = runnable[self.rng.below_len(runnable.len())];
        // A thread often makes several accesses without interruption.
        for _ in 0..self.rng.between(1, 4) {
            let Some(call) = &mut self.all[at].actors[slot].call else {
                break;
            };
            if let Some(outcome) = call.call.run() {
                let kind = call.kind;
                self.all[at].actors[slot].call = None;
                self.finish(at, kind, outcome)?;
                break;
            }
            self.check()?;
            let owner = self.all[at].actors[slot].owner;
            if self.rng.below(1000) < self.killed_with_lock && self.has_lock(owner) {
                self.kill(at);
                break;
            }
            if !self.world().is_runnable(owner) {
                break;
            }
        }
        self.check().map(|()| true)
    }

    fn finish(&mut self, at: usize, kind: Kind, outcome: Outcome) -> Result<(), Finding> {
        let end = self.all[at].end;
        match outcome {
            Outcome::Sent(Sent::Octets(octets)) => self.sent[end.index()] += octets,
            Outcome::Taken(taken) => self.ended(end, taken)?,
            Outcome::Demoted(Demotion::Stranded) => {
                if self.is_alive(end.peer()) && !self.world().tcp.is_reset {
                    return Err("stranded beside a peer that lives".to_owned());
                }
                self.world().counts.stranded += 1;
                self.world().tcp.reset();
            }
            Outcome::Closed(closing) => self.close(at, closing),
            Outcome::Done | Outcome::Sent(Sent::Broken) | Outcome::Demoted(_) => {}
        }
        match kind {
            Kind::Pause => self.all[at].pauses += 1,
            Kind::ExecStranger => {
                self.replace_actors(at);
                self.all[at].has_library = false;
            }
            Kind::Pass => self.add_process(end, false),
            _ => {}
        }
        Ok(())
    }

    /// A stream ends as TCP ends it: all octets precede an end, and a reset has a cause.
    fn ended(&mut self, end: End, taken: Taken) -> Result<(), Finding> {
        let peer = end.peer();
        let mut world = self.world();
        let is_whole = world.consumed[peer.index()] == world.accepted(peer);
        let is_read = world.consumed[end.index()] == world.accepted(end);
        // Octets that were handed back since meet the closed socket a little later.
        let has_left = self.left_ring_at[peer.index()] == Some(world.word(Word::Tail(end)));
        let is_read_shut = world.tcp.is_read_shut[end.index()];
        match taken {
            Taken::Octets(_) | Taken::Nothing => return Ok(()),
            // It was reported at any time since, perhaps before the peer sent its end.
            Taken::End if is_read_shut => {}
            Taken::End => {
                world.counts.ends += 1;
                if !world.tcp.is_shut(peer) {
                    return Err("an end that the peer has not sent".to_owned());
                }
                // Octets that a thread has taken and not returned count when they leave the ring.
                if !is_whole {
                    return Err("an end before the last octet".to_owned());
                }
                if self.has_closed_unread[peer.index()] {
                    return Err("an end of a peer that has closed with octets unread".to_owned());
                }
                if has_left && self.is_first_end(end) && !world.tcp.is_reset {
                    return Err("an end of a peer that left octets unread".to_owned());
                }
            }
            Taken::Reset => {
                world.counts.resets += 1;
                if !world.tcp.is_reset && (is_read || self.is_alive(peer)) {
                    return Err("a reset without a cause".to_owned());
                }
            }
        }
        drop(world);
        self.ended[end.index()].get_or_insert(taken);
        Ok(())
    }

    fn is_first_end(&self, end: End) -> bool {
        self.ended[end.index()].is_none()
    }

    /// What holds at every moment.
    fn check(&self) -> Result<(), Finding> {
        let world = self.world();
        if let Some(finding) = &world.finding {
            return Err(finding.clone());
        }
        for sender in ENDS {
            if self.sent[sender.index()] > world.accepted(sender) {
                return Err("a send has returned octets that were not published".to_owned());
            }
            if world.in_ring(sender) > world.ring_len(sender) {
                return Err("the ring holds more than its length".to_owned());
            }
        }
        let is_raw = |process: &Process| !process.has_library || process.pauses > 0;
        let is_tcp = ENDS.map(|end| world.word(Word::Mode(end))) == [0; 2];
        if self.all.iter().any(is_raw) && !is_tcp && !world.tcp.is_reset {
            return Err("a ring beside calls of the kernel".to_owned());
        }
        Ok(())
    }

    /// A random process with an idle thread, and that thread.
    fn idle(&mut self) -> Option<(usize, usize)> {
        let at = self.rng.below_len(self.all.len());
        let slot = self.rng.below_len(AGENT);
        let is_idle = self.all.get(at)?.actors[slot].call.is_none();
        is_idle.then_some((at, slot))
    }

    /// A random thread starts a send or a receive.
    pub(super) fn start_transfer(&mut self, sends_percent: u64) {
        if let Some((at, slot)) = self.idle() {
            let is_send = self.rng.percent(sends_percent);
            let kind = if is_send { Kind::Send } else { Kind::Recv };
            self.start(at, slot, kind);
        }
    }

    /// A random thread starts a demotion that is temporary.
    pub(super) fn start_pause(&mut self) {
        if let Some((at, slot)) = self.idle() {
            if self.all[at].has_library {
                self.start(at, slot, Kind::Pause);
            }
        }
    }

    /// The library of an end gets the shared words.
    pub(super) fn join(&mut self, end: End) {
        let joins = |process: &Process| process.end == end && process.has_library;
        let at = self.all.iter().position(joins);
        if let (Some(at), false) = (at, self.has_joined[end.index()]) {
            if self.all[at].actors[0].call.is_none() {
                self.has_joined[end.index()] = true;
                self.start(at, 0, Kind::Join);
            }
        }
    }

    /// Something happens to a random process.
    pub(super) fn incident(&mut self) {
        let Some((at, slot)) = self.idle() else {
            return;
        };
        let process = &self.all[at];
        let (end, has_library) = (process.end, process.has_library);
        let siblings = self.all.iter().filter(|other| other.end == end).count();
        match self.rng.below(100) {
            0..50 if siblings < 3 => self.add_process(end, has_library),
            0..60 if has_library => self.replace_actors(at),
            60..62 if has_library => self.start(at, slot, Kind::ExecStranger),
            62..64 if has_library => self.start(at, slot, Kind::Pass),
            70..71 => self.start(at, slot, Kind::ShutdownWrite),
            71..72 => self.world().tcp.is_read_shut[end.index()] = true,
            72..73 if has_library && process.pauses == 0 => self.start(at, slot, Kind::Leave),
            75..85 if has_library && siblings > 1 => self.start(at, slot, Kind::Leave),
            85.. => self.kill(at),
            _ => {}
        }
    }

    /// Kills a process. The end of an end stops most of what could happen, and is rare.
    fn kill(&mut self, at: usize) {
        let end = self.all[at].end;
        let siblings = self.all.iter().filter(|other| other.end == end).count();
        if siblings > 1 || self.rng.percent(10) {
            self.remove_process(at);
        }
    }

    fn has_lock(&self, owner: Owner) -> bool {
        let world = self.world();
        let mut words = ENDS
            .iter()
            .flat_map(|&end| [Word::Writer(end), Word::Reader(end)]);
        words.any(|word| world.word(word) == owner.0)
    }

    /// A process that has paused returns to rings.
    pub(super) fn resume_any(&mut self) {
        for at in 0..self.all.len() {
            let process = &self.all[at];
            // Calls of the kernel that are in progress belong to the pause.
            let is_idle = process.actors.iter().all(|actor| actor.call.is_none());
            if process.pauses > 0 && is_idle {
                self.all[at].pauses -= 1;
                self.start(at, 0, Kind::Resume);
            }
        }
    }

    /// A process of each end forks: its child has threads that nothing blocks.
    pub(super) fn fork_each(&mut self) {
        for end in ENDS {
            if let Some(parent) = self.all.iter().find(|process| process.end == end) {
                let has_library = parent.has_library;
                self.add_process(end, has_library);
            }
        }
    }

    /// Idle threads receive, and one of each end says that nothing more is sent.
    pub(super) fn start_last_calls(&mut self) {
        for at in 0..self.all.len() {
            let end = self.all[at].end;
            let is_shut = self.world().tcp.is_shut(end);
            let shuts = self.calls(end).any(|kind| kind == Kind::ShutdownWrite);
            if !is_shut && !shuts && self.all[at].actors[0].call.is_none() {
                self.start(at, 0, Kind::ShutdownWrite);
            }
            if self.all[at].actors[1].call.is_none() && !self.is_drained(end) {
                self.start(at, 1, Kind::Recv);
            }
        }
    }

    fn calls(&self, end: End) -> impl Iterator<Item = Kind> + '_ {
        let processes = self.all.iter().filter(move |process| process.end == end);
        let actors = processes.flat_map(|process| &process.actors);
        actors.filter_map(|actor| Some(actor.call.as_ref()?.kind))
    }

    /// Whether an end has everything that it can get.
    pub(super) fn is_drained(&self, end: End) -> bool {
        let world = self.world();
        let peer = end.peer();
        let is_whole = world.consumed[peer.index()] == world.accepted(peer);
        let has_end = world.tcp.is_shut(peer) && is_whole;
        self.ended[end.index()].is_some() && (has_end || world.tcp.is_reset)
    }

    pub(super) fn is_idle(&self) -> bool {
        ENDS.iter().all(|&end| self.calls(end).next().is_none())
    }

    /// Whether each thread that sleeps has a reason; nothing is on its way.
    pub(super) fn check_sleepers(&self) -> Result<(), Finding> {
        for end in ENDS {
            for kind in self.calls(end) {
                let world = self.world();
                let peer = end.peer();
                let is_tcp_full = world.tcp.room(end, false) == Err(Refused::WouldBlock);
                let is_reserve_full = world.tcp.room(end, true) == Err(Refused::WouldBlock);
                let is_peer_full = world.tcp.room(peer, true) == Err(Refused::WouldBlock);
                let is_ring_full = world.in_ring(end) == world.ring_len(end);
                let is_reasonable = match kind {
                    Kind::Recv => world.consumed[peer.index()] == world.accepted(peer),
                    Kind::Send => is_tcp_full || (is_ring_full && !world.tcp.is_gone(peer)),
                    Kind::ShutdownWrite | Kind::Leave | Kind::Agent => is_reserve_full,
                    Kind::Pause | Kind::Pass | Kind::ExecStranger => {
                        is_reserve_full || is_peer_full
                    }
                    Kind::Resume | Kind::Join => false,
                };
                if !is_reasonable {
                    return Err(format!("{kind:?} of {end:?} sleeps without a reason"));
                }
            }
        }
        Ok(())
    }

    /// Where everything stands.
    pub(super) fn describe(&self) -> String {
        let calls = ENDS.map(|end| self.calls(end).collect::<Vec<_>>());
        format!("{calls:?} {:?}", self.world())
    }
}

fn returns(
    call: impl FnOnce(&Turns<'_>) + 'static,
) -> impl FnOnce(&Turns<'_>) -> Outcome + 'static {
    |h| {
        call(h);
        Outcome::Done
    }
}

/// send(2) of a program without the library.
fn raw_send(h: &Turns<'_>, len: u64) -> Outcome {
    loop {
        match h.tcp_send(len) {
            Err(Refused::WouldBlock) => h.wait(Event::Writable).unwrap(),
            Ok(octets) => return Outcome::Sent(Sent::Octets(octets)),
            Err(Refused::Broken) => return Outcome::Sent(Sent::Broken),
        }
    }
}

/// recv(2) of a program without the library.
fn raw_recv(h: &Turns<'_>, len: u64) -> Outcome {
    loop {
        return Outcome::Taken(match h.tcp_recv(len) {
            Received::Octets(octets) => Taken::Octets(octets),
            Received::End => Taken::End,
            Received::Reset => Taken::Reset,
            Received::WouldBlock => {
                h.wait(Event::Readable).unwrap();
                continue;
            }
        });
    }
}
