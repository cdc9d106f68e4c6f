//! What the threads share, and the accesses that their calls make to it.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use urdma_types::Rng;

use super::tcp::Tcp;
use super::Finding;
use crate::{Block, End, Event, Host, Owner, Received, Refused, Rings, Waits, Word};

/// A thread that lives.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) end: End,
    waits_for: Option<Event>,
    is_rung: bool,
    /// Whether it last gave TCP octets of the ring, for which there is a reserve.
    is_returning: bool,
    /// The position behind what it has looked at in TCP.
    looked: u64,
    /// Octets copied out of the ring, and how far the ring is empty when they are taken.
    copied: Option<(u64, u64)>,
}

/// What happened in a run, or in all runs of a test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) tcp_octets: u64,
    pub(super) ring_octets: u64,
    pub(super) sent_at_once: u64,
    pub(super) taken_at_once: u64,
    pub(super) returned_octets: u64,
    pub(super) looked_octets: u64,
    pub(super) grown: u64,
    pub(super) settled_moves: u64,
    pub(super) locks_of_the_dead: u64,
    pub(super) stranded: u64,
    pub(super) ends: u64,
    pub(super) resets: u64,
}

impl Counts {
    fn fields(&mut self) -> [&mut u64; 12] {
        [
            &mut self.tcp_octets,
            &mut self.ring_octets,
            &mut self.sent_at_once,
            &mut self.taken_at_once,
            &mut self.returned_octets,
            &mut self.looked_octets,
            &mut self.grown,
            &mut self.settled_moves,
            &mut self.locks_of_the_dead,
            &mut self.stranded,
            &mut self.ends,
            &mut self.resets,
        ]
    }

    pub(super) fn add(&mut self, other: &Self) {
        let mut other = *other;
        for (sum, count) in self.fields().into_iter().zip(other.fields()) {
            *sum += *count;
        }
    }

    /// The smallest of the counts.
    pub(super) fn least(mut self) -> u64 {
        self.fields().into_iter().map(|count| *count).min().unwrap()
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) block: Block,
    /// The short and the long ring of each direction.
    rings: [[Vec<u64>; 2]; 2],
    pub(super) tcp: Tcp,
    pub(super) threads: HashMap<u64, Thread>,
    /// How often the agents of an end were called.
    pub(super) agent_calls: [u64; 2],
    /// Octets of users that were given to TCP, by the end that sends.
    by_tcp: [u64; 2],
    /// Octets that users have received, by the end that sends.
    pub(super) consumed: [u64; 2],
    pub(super) finding: Option<Finding>,
    pub(super) counts: Counts,
    pub(super) rng: Rng,
}

impl World {
    pub(super) fn new(mut rng: Rng) -> Self {
        let ring = rng.between(1, 16);
        let long = ring * rng.between(2, 4);
        let room = rng.between(1, 16);
        Self {
            block: Block::new(),
            rings: std::array::from_fn(|_| [ring, long].map(|len| vec![u64::MAX; len as usize])),
            tcp: Tcp::new(room, ring),
            threads: HashMap::new(),
            agent_calls: [0; 2],
            by_tcp: [0; 2],
            consumed: [0; 2],
            finding: None,
            counts: Counts::default(),
            rng,
        }
    }

    pub(super) fn start_thread(&mut self, owner: Owner, end: End) {
        let thread = Thread {
            end,
            waits_for: None,
            is_rung: false,
            is_returning: false,
            looked: 0,
            copied: None,
        };
        self.threads.insert(owner.0, thread);
    }

    fn thread(&mut self, owner: Owner) -> &mut Thread {
        self.threads.get_mut(&owner.0).unwrap()
    }

    pub(super) fn word(&self, word: Word) -> u64 {
        self.block.word(word).load(Relaxed)
    }

    /// How many octets a sender's sends have taken.
    pub(super) fn accepted(&self, sender: End) -> u64 {
        self.by_tcp[sender.index()] + self.word(Word::Head(sender))
    }

    pub(super) fn in_ring(&self, sender: End) -> u64 {
        let tail = self.word(Word::Tail(sender));
        self.word(Word::Head(sender)).wrapping_sub(tail)
    }

    pub(super) fn ring_len(&self, sender: End) -> u64 {
        let is_long = self.word(Word::LongFrom(sender)) != 0;
        self.rings[sender.index()][usize::from(is_long)].len() as u64
    }

    /// Where the octet is that was put at a position of a ring.
    fn place(&self, sender: End, at: u64) -> (usize, usize) {
        let from = self.word(Word::LongFrom(sender));
        let ring = usize::from(from != 0 && at >= from);
        let len = self.rings[sender.index()][ring].len() as u64;
        (ring, (at % len) as usize)
    }

    pub(super) fn find(&mut self, finding: impl Into<Finding>) {
        self.finding.get_or_insert(finding.into());
    }

    /// Compares octets with the model: the next ones of the stream.
    fn compare(&mut self, sender: End, octets: &[u64]) {
        self.compare_from(self.consumed[sender.index()], sender, octets);
    }

    fn compare_from(&mut self, next: u64, sender: End, octets: &[u64]) {
        for (position, &octet) in (next..).zip(octets) {
            if octet != position {
                self.find(format!("octet {octet} of {sender:?} instead of {position}"));
                return;
            }
        }
    }

    /// Whether a thread can run.
    pub(super) fn is_runnable(&self, owner: Owner) -> bool {
        let thread = &self.threads[&owner.0];
        let is_gone = self.tcp.is_gone(thread.end.peer());
        thread.is_rung
            || match thread.waits_for {
                None => true,
                Some(Event::Readable) => self.tcp.is_readable(thread.end),
                Some(Event::Writable) => {
                    let room = self.tcp.room(thread.end, thread.is_returning);
                    room != Err(Refused::WouldBlock)
                }
                Some(Event::Peer) => is_gone,
            }
    }

    /// Counts what a thread has copied out of the ring, once it has left the ring.
    fn note_taken(&mut self, owner: Owner, sender: End) {
        let tail = self.word(Word::Tail(sender));
        let thread = self.thread(owner);
        if let Some((octets, _)) = thread.copied.take_if(|(_, until)| *until == tail) {
            self.consumed[sender.index()] += octets;
        }
    }

    fn sleep(&mut self, owner: Owner, event: Event) {
        self.thread(owner).waits_for = Some(event);
    }

    fn awake(&mut self, owner: Owner) {
        let thread = self.thread(owner);
        thread.waits_for = None;
        thread.is_rung = false;
    }

    /// Octets of a ring.
    fn of_ring(&self, sender: End, at: u64, len: u64) -> Vec<u64> {
        let octet = |position: u64| {
            let (ring, place) = self.place(sender, position);
            self.rings[sender.index()][ring][place]
        };
        (at..at + len).map(octet).collect()
    }

    fn return_octets(&mut self, me: End, at: u64, len: u64) -> Result<u64, Refused> {
        if self.rng.percent(10) {
            return Err(Refused::WouldBlock);
        }
        let room = self.tcp.room(me, true)?.min(len);
        let len = self.rng.between(1, room);
        let octets = self.of_ring(me, at, len);
        self.tcp.send(me, octets.into_iter());
        self.counts.returned_octets += len;
        Ok(len)
    }
}

/// A thread that makes calls.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) end: End,
    pub(super) owner: Owner,
}

impl Caller {
    /// Begins a call, which makes no access before [`InProgress::run`].
    pub(super) fn start<T: 'static>(
        &self,
        call: impl FnOnce(&Turns<'_>) -> T + 'static,
    ) -> InProgress<T> {
        let caller = self.clone();
        let free = STACKS.with_borrow_mut(Vec::pop);
        let stack = free.unwrap_or_else(|| DefaultStack::new(STACK_OCTETS).unwrap());
        let run = move |yielder: &Yielder<(), ()>, ()| call(&Turns { caller, yielder });
        InProgress(Some(Coroutine::with_stack(stack, run)))
    }
}

/// More than a call needs.
const STACK_OCTETS: usize = 64 * 1024;

thread_local! {
    /// Stacks of calls that have ended.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// A call that has not returned; one that is dropped ends where it is. It is there until then.
pub(super) struct InProgress<T>(Option<Coroutine<(), (), T>>);

impl<T> InProgress<T> {
    /// Goes on until before the next access; what the call returns, if it does.
    pub(super) fn run(&mut self) -> Option<T> {
        match self.0.as_mut()?.resume(()) {
            CoroutineResult::Return(returned) => Some(returned),
            CoroutineResult::Yield(()) => None,
        }
    }
}

impl<T> Drop for InProgress<T> {
    fn drop(&mut self) {
        if let Some(mut call) = self.0.take() {
            call.force_unwind();
            STACKS.with_borrow_mut(|stacks| stacks.push(call.into_stack()));
        }
    }
}

/// The accesses of one call.
pub(super) struct Turns<'a> {
    caller: Caller,
    yielder: &'a Yielder<(), ()>,
}

impl Turns<'_> {
    /// What has happened, for a call to add to.
    pub(super) fn counts(&self) -> RefMut<'_, Counts> {
        RefMut::map(self.caller.world.borrow_mut(), |world| &mut world.counts)
    }

    /// The world, when it is this thread's turn.
    fn turn(&self) -> RefMut<'_, World> {
        self.yielder.suspend(());
        self.caller.world.borrow_mut()
    }
}

impl Rings for Turns<'_> {
    fn end(&self) -> End {
        self.caller.end
    }

    fn owner(&self) -> Owner {
        self.caller.owner
    }

    fn ring_len_octets(&self) -> u64 {
        self.caller.world.borrow().rings[0][0].len() as u64
    }

    fn long_ring_len_octets(&self) -> u64 {
        self.caller.world.borrow().rings[0][1].len() as u64
    }

    fn now(&self) -> u64 {
        self.turn().rng.bits()
    }

    fn load(&self, word: Word) -> u64 {
        self.turn().word(word)
    }

    fn store(&self, word: Word, value: u64) {
        let mut world = self.turn();
        world.block.word(word).store(value, Relaxed);
        match word {
            Word::Tail(sender) if sender != self.caller.end => {
                world.note_taken(self.caller.owner, sender)
            }
            _ => {}
        }
    }

    fn swap(&self, word: Word, value: u64) -> u64 {
        self.turn().block.word(word).swap(value, Relaxed)
    }

    fn compare_exchange(&self, word: Word, old: u64, new: u64) -> Result<(), u64> {
        let mut world = self.turn();
        let atomic = world.block.word(word);
        let result = atomic.compare_exchange(old, new, Relaxed, Relaxed);
        if result.is_ok() && old != 0 {
            world.counts.locks_of_the_dead += 1;
            let moving = match word {
                Word::Reader(sender) => world.word(Word::Moving(sender)),
                _ => 0,
            };
            world.counts.settled_moves += moving;
        }
        result.map(|_| ())
    }

    fn is_known_to_end(&self) -> bool {
        let mut world = self.turn();
        let has_ended = world.tcp.is_reset || world.tcp.pipe(self.caller.end.peer()).end_arrived;
        has_ended && world.rng.percent(50)
    }

    fn copy_in(&self, at: u64, len_octets: u64) {
        let mut world = self.turn();
        let next = world.accepted(self.caller.end);
        for offset in 0..len_octets {
            let (ring, place) = world.place(self.caller.end, at + offset);
            world.rings[self.caller.end.index()][ring][place] = next + offset;
        }
        world.counts.ring_octets += len_octets;
    }

    fn copy_out(&self, at: u64, len_octets: u64) {
        let mut world = self.turn();
        let peer = self.caller.end.peer();
        let octets = world.of_ring(peer, at, len_octets);
        world.compare(peer, &octets);
        let thread = world.thread(self.caller.owner);
        thread.copied = Some((len_octets, at + len_octets));
    }

    fn wake(&self, end: End) {
        let mut world = self.turn();
        for thread in world.threads.values_mut() {
            thread.is_rung |= thread.end == end;
        }
    }
}

impl Host for Turns<'_> {
    fn may_grow(&self, _given_octets: u64) -> bool {
        let mut world = self.turn();
        let may = world.tcp.has_reserve(self.caller.end) && world.rng.percent(20);
        if may {
            let reserve = world.rings[self.caller.end.index()][1].len();
            world.tcp.raise(self.caller.end, reserve as u64);
            world.counts.grown += 1;
        }
        may
    }

    fn add(&self, word: Word, value: u64) {
        let world = self.turn();
        world.block.word(word).fetch_add(value, Relaxed);
    }

    fn is_dead(&self, owner: Owner) -> bool {
        !self.turn().threads.contains_key(&owner.0)
    }

    fn relax(&self) {
        self.turn();
    }

    fn tcp_send(&self, len_octets: u64) -> Result<u64, Refused> {
        let mut world = self.turn();
        world.thread(self.caller.owner).is_returning = false;
        let room = world.tcp.room(self.caller.end, false)?;
        let len = world.rng.between(1, room.min(len_octets));
        let next = world.accepted(self.caller.end);
        let octets: Vec<u64> = (next..next + len).collect();
        world.tcp.send(self.caller.end, octets.into_iter());
        world.by_tcp[self.caller.end.index()] += len;
        world.counts.tcp_octets += len;
        Ok(len)
    }

    fn tcp_return(&self, at: u64, len_octets: u64) -> Result<u64, Refused> {
        let mut world = self.turn();
        world.thread(self.caller.owner).is_returning = true;
        world.return_octets(self.caller.end, at, len_octets)
    }

    fn tcp_recv(&self, len_octets: u64) -> Received {
        let mut world = self.turn();
        let (received, octets) = world.tcp.recv(self.caller.end, len_octets);
        let peer = self.caller.end.peer();
        world.compare(peer, &octets);
        world.consumed[peer.index()] += octets.len() as u64;
        received
    }

    fn tcp_peek(&self, len_octets: u64) -> Received {
        let mut world = self.turn();
        let (received, octets) = world.tcp.peek(self.caller.end, len_octets);
        let peer = self.caller.end.peer();
        world.compare(peer, &octets);
        let behind = world.consumed[peer.index()] + octets.len() as u64;
        world.thread(self.caller.owner).looked = behind;
        received
    }

    fn tcp_sent(&self, end: End) -> u64 {
        self.turn().tcp.pipe(end).sent
    }

    fn tcp_taken(&self) -> u64 {
        self.turn().tcp.pipe(self.caller.end.peer()).taken
    }

    fn tcp_has_reserve(&self) -> bool {
        self.turn().tcp.has_reserve(self.caller.end)
    }

    fn tcp_shutdown_write(&self) {
        self.turn().tcp.shutdown_write(self.caller.end);
    }

    fn is_peer_gone(&self) -> bool {
        self.turn().tcp.is_gone(self.caller.end.peer())
    }

    fn is_reset(&self) -> bool {
        self.turn().tcp.is_reset
    }

    fn look_out(&self, at: u64, len_octets: u64, _skip: u64) {
        let mut world = self.turn();
        let peer = self.caller.end.peer();
        let octets = world.of_ring(peer, at, len_octets);
        let next = world.thread(self.caller.owner).looked;
        world.compare_from(next, peer, &octets);
        world.counts.looked_octets += len_octets;
    }

    fn call_agents(&self, end: End) {
        self.turn().agent_calls[end.index()] += 1;
    }

    fn wait(&self, event: Event) -> Result<(), Waits> {
        self.turn().sleep(self.caller.owner, event);
        self.turn().awake(self.caller.owner);
        Ok(())
    }
}
