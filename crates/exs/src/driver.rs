//! Executes what the protocol asks for, and passes on what happens on the connection.
//!
//! One completion queue serves both directions. It is armed only before the thread sleeps, so that
//! a sleeping end is woken at most once for all that has come until it polls.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use urdma_stream::Event as Told;
use urdma_stream::{
    CallError, Clock as _, Failure, Lone, Part, Piece, RecvId, RingNo, SendId, Stats, Stream,
    Transmit,
};

use crate::clock::Clock;
use crate::error::Error;
use crate::event::Event;
use crate::ffi;
use crate::ffi::cm::Event as CmEvent;
use crate::ffi::memory::{Buffer, Memory};
use crate::ffi::queue_pair::{Batch, Local, Operation};
use crate::ffi::verbs::{Completion, Found};
use crate::link::{of, Link, Of};
use crate::registrations::{Posted, Registrations};
use crate::rings::{copy_from, Rings};
use crate::spins::Spins;
use crate::told::ToldStream;

/// How long the ABORT of this end may take before the connection is ended without.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// How many times a turn looks for completions.
const TURN: usize = 64;

/// The longest receive that may be filled late: as many as are queued are a small part of a ring,
/// of which the peer waits for no less than an eighth.
const LATE_OCTETS: usize = 512;

/// Slots that are posted again, once they are this many, when nothing has come; fewer where there
/// are few, so that a message without a credit arrives, too, and is refused.
const SLOTS: usize = 16;
/// The part of all slots that this is at most.
const SLOTS_PART: usize = 8;

/// A send or receive that was not posted, with its buffer.
#[derive(Debug, ThisError)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    #[source]
    pub error: Error,
    /// The buffer, unchanged.
    pub buffer: Buffer,
}

impl From<(CallError, Posted)> for Refused {
    fn from((error, posted): (CallError, Posted)) -> Self {
        Self {
            error: error.into(),
            buffer: posted.buffer,
        }
    }
}

/// A failure of the stream before the connection is ended.
#[derive(Clone, Copy, Debug)]
struct Failing {
    failure: Failure,
    /// The number of the ABORT that is to be complete first.
    abort: Option<u64>,
    until: Instant,
}

/// One end: protocol and connection.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Dropped first, so that no device uses a buffer that is freed.
    link: Option<Link>,
    /// What the rings of a connection that has ended hold can still be received.
    rings: Rings,
    /// The oldest ring that is in use.
    oldest_ring: RingNo,
    stream: ToldStream,
    /// Whether this end has connected; the other end ends the connection.
    is_active: bool,
    batch: Batch,
    /// Slots of receives that are complete, to be posted again before the peer is told that they
    /// are free, and several by one call. What has come is answered first.
    free_slots: Vec<usize>,
    repost_from: usize,
    /// The number of the next work request of the send queue.
    next: u64,
    clock: Clock,
    /// Work requests since the last that was signaled.
    unsignaled: usize,
    signal_every: usize,
    /// The last FINISH or ABORT.
    last_end: Option<u64>,
    /// How long a thread that waits polls before it sleeps.
    poll: Duration,
    spins: Spins,
    is_armed: bool,
    /// The connection is broken; what was received before is still taken.
    is_lost: bool,
    failing: Option<Failing>,
    /// The last event, which is not taken, of a connection that has ended.
    failed: Option<Failure>,
    /// The call that has failed.
    cause: Option<Error>,
}

impl Driver {
    pub(crate) fn new(
        link: Link,
        stream: Stream<Posted>,
        send_depth: usize,
        poll: Duration,
        is_active: bool,
    ) -> Self {
        Self {
            repost_from: (link.slots() / SLOTS_PART).clamp(1, SLOTS),
            link: Some(link),
            rings: Rings::default(),
            oldest_ring: stream.oldest_ring(),
            stream: ToldStream::new(stream),
            is_active,
            batch: Batch::default(),
            free_slots: Vec::new(),
            next: 0,
            clock: Clock::new(),
            unsignaled: 0,
            signal_every: (send_depth / 4).max(1),
            last_end: None,
            poll,
            spins: Spins::default(),
            is_armed: false,
            is_lost: false,
            failing: None,
            failed: None,
            cause: None,
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stream.as_told().stats()
    }

    #[inline]
    pub(crate) fn send(&mut self, buffer: Buffer, len_octets: usize) -> Result<SendId, Refused> {
        // In a flow of short sends most are only queued.
        if self.stream.as_told().joins(len_octets as u64) && len_octets <= buffer.len() {
            let link = self.link.as_ref();
            if let Some(key) = link.and_then(|link| link.registrations.last_lkey(&buffer)) {
                let posted = Posted { buffer, key };
                return Ok(self.stream.join(len_octets as u64, posted));
            }
        }
        self.send_next(buffer, len_octets)
    }

    #[inline(never)]
    fn send_next(&mut self, buffer: Buffer, len_octets: usize) -> Result<SendId, Refused> {
        let posted = self.name(buffer, len_octets, Registrations::lkey)?;
        let len_octets = len_octets as u64;
        let lone = self.stream.as_told().lone(len_octets);
        let lone = lone.filter(|_| !self.is_lost);
        if let Some(lone) = lone {
            // The peer waits for it, and not for what the stream keeps of it.
            self.post_lone(&posted, len_octets, lone);
            self.clock.pass();
            let stream = &mut self.stream;
            return Ok(stream.send_lone(len_octets, posted, &mut self.clock));
        }
        let stream = self.stream.told(&mut self.clock);
        let id = stream.send(len_octets, posted)?;
        if !stream.is_gathering() {
            self.clock.pass();
            self.transmit();
            self.post();
        }
        Ok(id)
    }

    /// Posts the first octets of a buffer as one work request, before and after which no other is
    /// due.
    #[inline]
    fn post_lone(&mut self, posted: &Posted, len_octets: u64, lone: Lone) {
        let local = Local {
            addr: posted.buffer.addr(),
            len_octets: u32::try_from(len_octets).expect("a lone send is short"),
            lkey: posted.key,
        };
        let operation = Operation::Write {
            addr: lone.addr,
            rkey: lone.rkey,
            immediate: Some(lone.immediate),
        };
        let id = self.next;
        self.next += 1;
        self.unsignaled = 0;
        if let Some(link) = &self.link {
            let posted = link.post_one(id, local, operation);
            self.note(posted);
        }
    }

    #[inline]
    pub(crate) fn recv(
        &mut self,
        buffer: Buffer,
        len_octets: usize,
        waitall: bool,
    ) -> Result<RecvId, Refused> {
        let posted = self.name(buffer, len_octets, Registrations::rkey)?;
        let advertised = urdma_stream::Buffer {
            addr: posted.buffer.addr(),
            len_octets: len_octets as u64,
            rkey: posted.key,
        };
        let id = self.stream.recv(advertised, posted, waitall)?;
        let stream = self.stream.as_told();
        if stream.is_receive_due() {
            // The user takes the events first, and posts receives for them. Those get what the ring
            // holds by one turn then, before an event is missed.
            let may_wait = len_octets <= LATE_OCTETS && !stream.is_transmit_due();
            if !(may_wait && self.has_event()) {
                self.settle();
            }
        }
        Ok(id)
    }

    /// Finds the key of a buffer that has this number of octets.
    #[inline]
    fn name(
        &mut self,
        buffer: Buffer,
        len_octets: usize,
        key_of: impl FnOnce(&mut Registrations, &Buffer) -> Result<u32, Error>,
    ) -> Result<Posted, Refused> {
        let key = match &mut self.link {
            _ if len_octets > buffer.len() => Err(CallError::BadBuffer.into()),
            Some(link) => key_of(&mut link.registrations, &buffer),
            // The stream refuses it, or completes it without the peer.
            None => Ok(0),
        };
        match key {
            Ok(key) => Ok(Posted { buffer, key }),
            Err(error) => Err(Refused { error, buffer }),
        }
    }

    /// A call of the user that posts nothing.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce(&mut Stream<Posted>) -> T) -> T {
        let result = call(self.stream.told(&mut self.clock));
        self.settle();
        result
    }

    /// The next event; sleeps for at most so long. `None`: there is none, or the connection has
    /// ended.
    #[inline]
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        match self.stream.poll_complete() {
            Some(told) => Ok(Some(told.into())),
            None => self.wait_for_event(limit),
        }
    }

    fn wait_for_event(&mut self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        // What the stream has not been told of may have an event.
        self.stream.tell(&mut self.clock);
        self.copy_late();
        let mut idle_since = None;
        let may_spin = !self.poll.is_zero() && limit != Some(Duration::ZERO);
        let mut looks = None;
        // From the first moment without anything to do on. A clock read for each event takes a
        // tenth of a short message's time.
        let mut until = None;
        loop {
            if self.has_event() {
                return Ok(self.pop_event());
            }
            if self.link.is_none() {
                return self.cause.take().map_or(Ok(None), Err);
            }
            if self.advance() || self.has_event() || self.link.is_none() {
                idle_since = None;
                if let Some(looks) = looks.take() {
                    self.spins.found(&looks);
                }
                continue;
            }
            let looks = looks.get_or_insert_with(|| self.spins.begin());
            if may_spin && !self.is_armed && self.spins.again(looks) {
                // Without a pause of the processor, which takes about as long as the look.
                continue;
            }
            let now = Instant::now();
            let until =
                *until.get_or_insert_with(|| limit.and_then(|limit| now.checked_add(limit)));
            let is_late = until.is_some_and(|until| now >= until);
            let since = *idle_since.get_or_insert(now);
            let may_yield = !looks.must_sleep() && now.duration_since(since) < self.poll;
            if !self.is_armed && !is_late && may_yield {
                looks.yielded();
                std::thread::yield_now();
                continue;
            }
            if !self.rest(until) && is_late {
                return Ok(None);
            }
        }
    }

    #[inline]
    fn has_event(&self) -> bool {
        self.stream.as_told().has_event() || self.failed.is_some()
    }

    /// An event that is there, without executing the protocol. It is no part of a poll that finds
    /// none.
    #[inline(never)]
    pub(crate) fn pop_event(&mut self) -> Option<Event> {
        match self.stream.poll_complete() {
            Some(told) => Some(told.into()),
            None => self.pop_other_event(),
        }
    }

    /// An event that is not of an operation that has ended in its turn.
    #[inline(never)]
    fn pop_other_event(&mut self) -> Option<Event> {
        let Some(told) = self.stream.poll_event() else {
            return self.pop_late_event();
        };
        if matches!(told, Told::Closed) {
            // They hold nothing.
            self.rings = Rings::default();
        }
        Some(told.into())
    }

    /// An event of what the stream has not been told of or what is not copied, or the last one.
    #[inline(never)]
    fn pop_late_event(&mut self) -> Option<Event> {
        let is_told = self.stream.tell(&mut self.clock);
        match self.copy_late() || is_told {
            true => self.pop_event(),
            false => self.failed.take().map(Event::Failed),
        }
    }

    /// Makes the copies that have waited for events to be taken; whether there were any.
    #[inline]
    fn copy_late(&mut self) -> bool {
        let has_copy = self.stream.as_told().has_copy();
        if has_copy {
            self.settle();
        }
        has_copy
    }

    /// Executes the protocol without sleeping, as far as a turn permits. `true`: nothing is left to
    /// be done until a descriptor can be read or the deadline has passed.
    pub(crate) fn turn(&mut self) -> bool {
        self.copy_late();
        for _ in 0..TURN {
            self.stream.tell(&mut self.clock);
            if self.link.is_none() {
                return true;
            }
            if !self.advance() && !self.rest(Some(Instant::now())) {
                return true;
            }
        }
        false
    }

    /// The descriptors that can be read when there is something to do; none of a connection that
    /// has ended.
    pub(crate) fn fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.link.as_ref().map(Link::fds)
    }

    /// When a turn is due although no descriptor can be read: a failing connection is ended in any
    /// case, or a transfer no longer waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let abort_limit = self.failing.map(|failing| failing.until);
        let timeout = self.stream.as_told().poll_timeout();
        let timeout = timeout.and_then(|at_ns| self.clock.at(at_ns));
        abort_limit.into_iter().chain(timeout).min()
    }

    /// Whether short sends wait for others.
    pub(crate) fn is_gathering(&self) -> bool {
        self.link.is_some() && self.stream.as_told().is_gathering()
    }

    /// Sends short sends that wait for others; whether there were any.
    pub(crate) fn flush(&mut self) -> bool {
        let was_gathering = self.is_gathering();
        if was_gathering {
            self.stream.told(&mut self.clock).stop_gathering();
            self.settle();
        }
        was_gathering
    }

    /// Whether the connection is to be ended by a turn.
    pub(crate) fn is_ending(&self) -> bool {
        self.link.is_some() && (self.is_lost || self.failing.is_some())
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.link.as_ref()?.id().peer()
    }

    /// Ends the registration of memory; `false` if an operation uses it.
    pub(crate) fn forget(&mut self, memory: &Memory) -> bool {
        let is_of = |posted: &Posted| Arc::ptr_eq(posted.buffer.pages(), memory.pages());
        let is_used = self.stream.told(&mut self.clock).memory().any(is_of);
        if let Some(link) = self.link.as_mut().filter(|_| !is_used) {
            link.registrations.forget(memory.pages());
        }
        !is_used
    }

    /// Ends the connection if it is not ended; buffers of operations are returned by events.
    pub(crate) fn end(&mut self) {
        let Some(link) = self.link.take() else {
            return;
        };
        // It fails only if the connection has ended.
        let _ = link.id().disconnect();
        self.rings = link.into_rings();
        let stream = self.stream.told(&mut self.clock);
        if stream.is_drained() {
            self.rings = Rings::default();
        }
        self.batch.clear();
        stream.handle_disconnected();
        self.drain();
        let stream = self.stream.as_told();
        if stream.is_closed() || stream.is_complete() {
            self.cause = None;
            return;
        }
        self.rings = Rings::default();
        self.failed = Some(self.failing.map_or(Failure::Disconnected, |f| f.failure));
    }

    /// Waits until the other end has ended a connection on which everything is finished.
    pub(crate) fn linger(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        while self.stream.as_told().is_complete() && self.link.is_some() && Instant::now() < until {
            while self.pop_event().is_some() {}
            if !self.advance() {
                self.rest(Some(until));
            }
        }
    }

    /// Takes completions and does what follows from them; whether there were any.
    fn advance(&mut self) -> bool {
        let mut found = Found::new();
        let Some(link) = &self.link else {
            return false;
        };
        if let Err(error) = link.poll(&mut found) {
            self.lose(error);
        }
        match found.is_empty() {
            true => self.advance_idle(),
            false => self.advance_by(&found),
        }
        !found.is_empty()
    }

    /// Does what follows from completions. It is no part of a poll that finds none, which is to be
    /// short.
    #[inline(never)]
    fn advance_by(&mut self, found: &Found) {
        self.clock.pass();
        let mut left = found.len();
        let mut is_due = false;
        for completion in found.iter() {
            left -= 1;
            is_due |= self.handle(&completion, left == 0);
        }
        if is_due || self.stream.as_told().is_transmit_due() {
            self.settle();
        }
        if self.failing.is_some() {
            self.end_if_due(false);
        }
    }

    /// Does what is due when nothing has come.
    fn advance_idle(&mut self) {
        if self.free_slots.len() >= self.repost_from {
            self.repost();
        }
        if let Some(at_ns) = self.stream.as_told().poll_timeout() {
            self.clock.pass();
            if at_ns <= self.clock.now_ns() {
                self.settle();
            }
        }
        self.end_if_due(true);
    }

    /// The connection is lost if a call fails.
    fn note<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.lose(error)).ok()
    }

    /// A call has failed.
    #[cold]
    fn lose(&mut self, error: Error) {
        self.is_lost = true;
        self.cause.get_or_insert(error);
    }

    /// Does what a completion is for; whether more than work requests can follow from it.
    ///
    /// If the last completion is of a transfer that completes a receive, the user may answer that
    /// at once, and the stream learns of the sends before it afterwards. The peer waits for the
    /// answer, and not for what the stream keeps of sends.
    #[inline]
    fn handle(&mut self, completion: &Completion, is_last: bool) -> bool {
        let Some(link) = self.link.as_ref().filter(|_| completion.ok) else {
            self.is_lost = true;
            return true;
        };
        match of(completion) {
            Of::Receive(slot) => {
                self.free_slots.push(slot);
                let len_octets = completion.len_octets;
                // What the peer does wrong is told by an event of the stream.
                let _ = match completion.immediate {
                    Some(word) => {
                        let copy = copy_from(link.rings());
                        if self.stream.receive_lone(word, len_octets, is_last, copy) {
                            return false;
                        }
                        let stream = self.stream.told(&mut self.clock);
                        stream.handle_immediate(word, len_octets)
                    }
                    None => {
                        let message = link.message(slot);
                        let message = &message[..message.len().min(len_octets as usize)];
                        let stream = self.stream.told(&mut self.clock);
                        stream.handle_control(message, &mut self.clock)
                    }
                };
                true
            }
            Of::Send(number) => {
                self.stream.complete(number);
                if is_last {
                    self.stream.tell(&mut self.clock);
                }
                false
            }
        }
    }

    /// Executes what follows from a call of the user or from completions.
    fn settle(&mut self) {
        self.drain();
        self.post();
        // The next call of `wait` ends a connection that is lost.
    }

    fn drain(&mut self) {
        let rings = self.link.as_ref().map_or(&self.rings, Link::rings);
        let stream = self.stream.told(&mut self.clock);
        stream.poll_copies(copy_from(rings));
        self.change_rings();
        if self.stream.as_told().is_transmit_due() {
            self.transmit();
        }
        let stream = self.stream.told(&mut self.clock);
        if let Some(failure) = stream.poll_failure() {
            self.fail(failure);
        }
    }

    /// Makes the work requests that are due.
    fn transmit(&mut self) {
        while !self.is_lost {
            let stream = self.stream.told(&mut self.clock);
            let Some(transmit) = stream.poll_transmit(&mut self.clock) else {
                return;
            };
            self.request(&transmit);
            if self.batch.is_full() {
                self.post();
            }
        }
    }

    /// Frees rings that are no longer in use, and makes the one that the peer asks for.
    fn change_rings(&mut self) {
        let Some(link) = &mut self.link else {
            return;
        };
        let oldest = self.stream.as_told().oldest_ring();
        if oldest != self.oldest_ring {
            self.oldest_ring = oldest;
            link.free_rings(oldest);
        }
        if let Some(octets) = self.stream.as_told().poll_ring() {
            // Without memory for it, the peer goes on with the ring that it has.
            let ring = link.add_ring(octets).ok();
            self.stream.told(&mut self.clock).offer_ring(ring);
        }
    }

    /// Makes a work request, which is posted with others.
    fn request(&mut self, transmit: &Transmit) {
        if matches!(transmit, Transmit::Control(_)) {
            // It tells the peer that the slots are free.
            self.repost();
        }
        let Some(link) = &mut self.link else {
            return;
        };
        let id = self.next;
        self.next += 1;
        let must_signal = match transmit {
            Transmit::Control(message) => {
                message.ends() || self.stream.as_told().is_peer_finished()
            }
            Transmit::Write(piece) => piece.immediate.is_some(),
        };
        self.unsignaled += 1;
        let signaled = must_signal || self.unsignaled >= self.signal_every;
        if signaled {
            self.unsignaled = 0;
        }
        match transmit {
            Transmit::Control(message) => {
                if message.ends() {
                    self.last_end = Some(id);
                }
                self.batch.carry(link.control(id, message));
                self.batch.push(id, Operation::Send, signaled);
            }
            Transmit::Write(piece) => {
                let batch = &mut self.batch;
                let carry = |part: Part, posted: &Posted| batch.carry(posted.octets(&part));
                self.stream.as_told().each_part(piece, carry);
                self.batch.push(id, write_of(piece), signaled);
            }
        }
    }

    /// Posts the slots of receives that are complete again.
    fn repost(&mut self) {
        if let Some(link) = self.link.as_ref().filter(|_| !self.free_slots.is_empty()) {
            let posted = link.post_recvs(self.free_slots.drain(..));
            self.note(posted);
        }
    }

    fn post(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if let Some(link) = &self.link {
            let posted = link.post(&mut self.batch);
            self.note(posted);
        }
        self.batch.clear();
    }

    fn fail(&mut self, failure: Failure) {
        let told_by_peer = matches!(failure, Failure::Reset(_));
        self.failing = Some(Failing {
            failure,
            abort: self.last_end.filter(|_| !told_by_peer),
            until: Instant::now() + ABORT_LIMIT,
        });
    }

    /// Ends the connection when nothing is to be sent or taken any more.
    fn end_if_due(&mut self, is_drained: bool) {
        let has_failed = self.failing.is_some_and(|failing| {
            let is_sent = failing.abort.is_none_or(|abort| self.stream.knows(abort));
            is_sent || Instant::now() >= failing.until
        });
        // The peer learns from the last message of this end that its own end has arrived.
        let is_finished = !self.is_active && self.stream.as_told().is_settled();
        if has_failed || (is_drained && (self.is_lost || is_finished)) {
            self.end();
        }
    }

    /// Arms the queue, or sleeps if it is armed; whether there may be something to do.
    fn rest(&mut self, until: Option<Instant>) -> bool {
        // The user posts nothing while this thread sleeps, which is rounded to milliseconds.
        if self.flush() {
            return true;
        }
        let Some(link) = &self.link else {
            return true;
        };
        if !self.is_armed {
            let armed = link.arm();
            self.is_armed = self.note(armed).is_some();
            // What has come before is polled once more.
            return true;
        }
        let until = until.into_iter().chain(self.deadline()).min();
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
        let slept = ffi::sleep(link.fds(), limit);
        let [completions, news] = self.note(slept).unwrap_or([false; 2]);
        if completions {
            self.is_armed = !self.link.as_ref().is_some_and(Link::take_event);
        }
        if news {
            self.take_news();
        }
        completions || news
    }

    /// Takes the events of connection management.
    fn take_news(&mut self) {
        while let Some(link) = &self.link {
            let event = link.id().next_event();
            match self.note(event).flatten() {
                Some(CmEvent::Disconnected) => self.is_lost = true,
                Some(_) => {}
                None => return,
            }
        }
    }
}

fn write_of(piece: &Piece) -> Operation {
    Operation::Write {
        addr: piece.addr,
        rkey: piece.rkey,
        immediate: piece.immediate,
    }
}
