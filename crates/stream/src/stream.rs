//! One end of a stream: both halves, the credits, and the end of it all.

mod copies;
mod lone;

use std::collections::VecDeque;

use crate::config::{Config, Stats};
use crate::credit::{Credits, Purpose, MIN_SLOTS};
use crate::error::{CallError, Failure, PeerError, SetupError, ABORT_PROTOCOL};
use crate::fault::{Fault, Faults};
use crate::receiver::RecvHalf;
use crate::sender::SendHalf;
use crate::transfer::Piece;
use crate::types::{Buffer, Choice, Clock, Event, Kind, Outcome, Part, RecvId, RingNo, SendId};
use crate::wire::{Body, Control, ControlOctets, Hello, Immediate};

/// A work request for the send queue of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// A SEND of these octets.
    Control(ControlOctets),
    /// An RDMA Write, with immediate data if the piece has some.
    Write(Piece),
}

/// What a work request that is not complete was.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Posted {
    Control,
    Finish,
    Piece,
    /// A piece, with the time at which it was posted.
    Timed(u64),
}

/// What the next work request can follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Everything.
    All,
    /// Sends. Since nothing was found in everything else, that has not changed.
    Sends,
    /// Nothing.
    Nothing,
}

/// One end of a stream. It has no clock, no socket and no thread.
///
/// The driver passes in what happens on the connection: [`Stream::handle_control`] for a message
/// received by SEND, [`Stream::handle_immediate`] for immediate data, [`Stream::handle_sent`] for
/// completions of its own work requests, in the order in which they happen. After each of these,
/// and after each call of the user, it drains [`Stream::poll_copy`], [`Stream::poll_ring`],
/// [`Stream::poll_transmit`], [`Stream::poll_failure`] and [`Stream::poll_event`], in this order,
/// until none returns anything; and again at [`Stream::poll_timeout`], if there is a time then.
///
/// `M` is the memory of a send or receive as the driver knows it: the stream keeps it while the
/// operation is in progress, and returns it with the event of its end.
///
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub struct Stream<M> {
    faults: Faults,
    due: Due,
    sender: SendHalf<M>,
    receiver: RecvHalf<M>,
    credits: Credits,
    send_depth: usize,
    posted: VecDeque<Posted>,
    events: VecDeque<Event<M>>,
    stop_due: bool,
    /// The code of an abort that is to be sent.
    abort_due: Option<u32>,
    failure: Option<Failure>,
    /// The driver has not learned of it.
    failure_due: bool,
    disconnected: bool,
    finish_complete: bool,
    /// How many messages this end had sent with FINISH.
    finish_number: Option<u64>,
    /// The peer has announced its end, and does not know yet that this end knows.
    final_update_due: bool,
    closed: bool,
    stats: Stats,
}

impl<M> Stream<M> {
    /// An end with this configuration, whose ring is `ring`, connected to the peer that sent
    /// `peer`. The peer has been sent `config.hello(ring)`.
    ///
    /// # Errors
    /// If the two ends cannot make a stream.
    pub fn new(config: &Config, ring: Buffer, peer: &Hello) -> Result<Self, SetupError> {
        Self::with_faults(config, ring, peer, Faults::default())
    }

    pub(crate) fn with_faults(
        config: &Config,
        ring: Buffer,
        peer: &Hello,
        faults: Faults,
    ) -> Result<Self, SetupError> {
        let own = config.hello(ring);
        check_setup(config, &own, peer)?;
        Ok(Self {
            faults,
            due: Due::All,
            sender: SendHalf::new(config, peer, faults),
            receiver: RecvHalf::new(config, &own, peer, faults),
            credits: Credits::new(own.recv_slots, peer.recv_slots),
            send_depth: config.send_depth,
            posted: VecDeque::new(),
            events: VecDeque::new(),
            stop_due: false,
            abort_due: None,
            failure: None,
            failure_due: false,
            disconnected: false,
            finish_complete: false,
            finish_number: None,
            final_update_due: false,
            closed: false,
            stats: Stats::default(),
        })
    }

    /// Queues a send of `len_octets` octets. Its memory is the stream's until [`Event::Sent`].
    ///
    /// # Errors
    /// If the length is not valid, the queue is full, or this half is finished; the memory comes
    /// back.
    pub fn send(&mut self, len_octets: u64, memory: M) -> Result<SendId, (CallError, M)> {
        let checked = self.check_open();
        if let Err(error) = checked.and_then(|()| self.sender.may_post(len_octets)) {
            return Err((error, memory));
        }
        let id = self.sender.post(len_octets, memory);
        if self.due == Due::Nothing {
            self.due = Due::Sends;
        }
        Ok(id)
    }

    /// Whether a work request can be due.
    #[inline]
    pub fn is_transmit_due(&self) -> bool {
        self.due != Due::Nothing
    }

    /// Queues a receive into a buffer, which is in `memory`. Both are the stream's until
    /// [`Event::Received`]. With `waitall` it completes only when its buffer is full or no octet
    /// follows (MSG_WAITALL).
    ///
    /// # Errors
    /// If the buffer is not valid, the queue is full, or this end has stopped receiving; the memory
    /// comes back.
    #[inline]
    pub fn recv(
        &mut self,
        buffer: Buffer,
        memory: M,
        waitall: bool,
    ) -> Result<RecvId, (CallError, M)> {
        let checked = self.check_open();
        if let Err(error) = checked.and_then(|()| self.receiver.may_post(buffer)) {
            return Err((error, memory));
        }
        let id = self
            .receiver
            .post(buffer, memory, waitall, &mut self.events);
        // What follows from a copy, the copy finds.
        if self.receiver.may_advertise() {
            self.due = Due::All;
        }
        Ok(id)
    }

    /// Ends a send as soon as possible. The event says how many octets were transferred.
    ///
    /// # Errors
    /// If it is complete.
    pub fn cancel_send(&mut self, id: SendId) -> Result<(), CallError> {
        self.check_open()?;
        self.due = Due::All;
        self.sender.cancel(id, &mut self.events)
    }

    /// Ends a receive: at once if the peer cannot write into its buffer, else when the peer has
    /// given back its advert. It may complete with data before that.
    ///
    /// # Errors
    /// If it is complete.
    pub fn cancel_recv(&mut self, id: RecvId) -> Result<(), CallError> {
        self.check_open()?;
        self.due = Due::All;
        self.receiver.cancel(id, &mut self.events)
    }

    /// Finishes the sending half (SHUT_WR): what is queued is sent, then the peer learns the end.
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn finish(&mut self) -> Result<(), CallError> {
        self.check_open()?;
        self.due = Due::All;
        self.sender.finish();
        Ok(())
    }

    /// Finishes the receiving half (SHUT_RD): octets not delivered are dropped, receives end, and
    /// the sends of the peer end with [`Outcome::PeerStopped`].
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn stop(&mut self) -> Result<(), CallError> {
        self.check_open()?;
        if !self.receiver.is_stopped() {
            self.due = Due::All;
            self.receiver.stop(&mut self.events);
            self.stop_due = !self.receiver.is_finished();
            self.check_closed();
        }
        Ok(())
    }

    /// Finishes both halves. [`Event::Closed`] follows when the peer has finished, too.
    ///
    /// # Errors
    /// If the stream has failed.
    pub fn close(&mut self) -> Result<(), CallError> {
        self.stop()?;
        self.finish()
    }

    /// Gives the stream up. The peer is told before anything else is sent; sends and receives end
    /// with the connection, since only then the peer cannot write into their buffers.
    pub fn abort(&mut self, code: u32) {
        if self.failure.is_none() && !self.disconnected {
            self.abort_due = Some(code);
            self.fail(Failure::Aborted(code));
        }
    }

    /// A message has been received by SEND.
    ///
    /// # Errors
    /// If no correct peer sends it now; the stream has failed then.
    pub fn handle_control(
        &mut self,
        octets: &[u8],
        clock: &mut impl Clock,
    ) -> Result<(), PeerError> {
        if self.failure.is_some() {
            return Ok(());
        }
        if !self.faults.has(Fault::ControlsUnseen) {
            self.due = Due::All;
        }
        let received = self.credits.receive();
        let result = received.and_then(|()| self.control(octets, clock));
        self.judge(result)
    }

    /// Immediate data has been received, whose RDMA Write has placed `written_octets`.
    ///
    /// # Errors
    /// If no correct peer sends it now; the stream has failed then.
    #[inline]
    pub fn handle_immediate(&mut self, word: u32, written_octets: u32) -> Result<(), PeerError> {
        if self.failure.is_some() {
            return Ok(());
        }
        let result = self
            .credits
            .receive()
            .and_then(|()| self.immediate(word, written_octets));
        if self.credits.owes_update() || self.receiver.owes_message() {
            self.due = Due::All;
        }
        self.judge(result)
    }

    /// The oldest `count` work requests are complete.
    #[inline]
    pub fn handle_sent(&mut self, count: usize, clock: &mut impl Clock) {
        for left in (0..count).rev() {
            match self.posted.pop_front() {
                Some(Posted::Piece) => self.sender.handle_written(&mut self.events),
                Some(Posted::Timed(at_ns)) => {
                    // The others may have been complete for long.
                    if left == 0 {
                        self.sender.sojourn().completed(at_ns, clock.now_ns());
                    }
                    self.sender.handle_written(&mut self.events);
                }
                Some(Posted::Finish) => {
                    self.finish_complete = true;
                    self.check_closed();
                }
                Some(Posted::Control) | None => {}
            }
        }
    }

    /// The connection has ended: neither end can write into the memory of the other any more. All
    /// sends and receives complete.
    ///
    /// The stream has not failed if nothing was left to be transferred. The octets of the ring can
    /// still be received then, and their end.
    pub fn handle_disconnected(&mut self) {
        self.disconnected = true;
        self.due = Due::All;
        self.abort_due = None;
        self.posted.clear();
        let failure = self.failure.unwrap_or(Failure::Disconnected);
        self.sender.fail(Outcome::Failed(failure), &mut self.events);
        let is_orderly = self.failure.is_none()
            && self.receiver.is_finished()
            && (self.finish_complete || self.sender.is_peer_stopped());
        if is_orderly {
            self.finish_complete = true;
            self.check_closed();
            return;
        }
        self.failure = Some(failure);
        self.receiver
            .retire_all(Outcome::Failed(failure), &mut self.events);
    }

    /// The length of a ring that the peer wishes. The driver answers by [`Stream::offer_ring`].
    #[inline]
    pub fn poll_ring(&self) -> Option<u64> {
        let wanted = self.receiver.ring_wanted()?;
        (self.failure.is_none() && !self.disconnected).then_some(wanted)
    }

    /// Offers the ring that [`Stream::poll_ring`] has told, or refuses it. Its number is one more
    /// than that of the last one offered.
    pub fn offer_ring(&mut self, ring: Option<Buffer>) {
        self.due = Due::All;
        self.receiver.ring().offer(ring);
    }

    /// The oldest ring in use: the peer writes into none before it, and copies are made from none
    /// before it.
    #[inline]
    pub fn oldest_ring(&self) -> RingNo {
        self.receiver.oldest_ring()
    }

    /// The next work request. The driver posts them in this order.
    #[inline]
    pub fn poll_transmit(&mut self, clock: &mut impl Clock) -> Option<Transmit> {
        match self.due {
            Due::Nothing => None,
            Due::Sends => self.next_of_sends(clock),
            Due::All => self.next_of_all(clock),
        }
    }

    /// The next work request if it can follow from anything.
    fn next_of_all(&mut self, clock: &mut impl Clock) -> Option<Transmit> {
        if self.disconnected || self.posted.len() >= self.send_depth {
            return None;
        }
        if let Some(code) = self.abort_due {
            let body = Body::Abort(code);
            self.abort_due = None;
            return self
                .permits(Purpose::Abort)
                .then(|| self.message(body, Posted::Control));
        }
        if self.failure.is_some() || self.is_full() {
            return None;
        }
        self.sender.prepare(&mut self.events);
        self.receiver.renew(&mut self.events);
        if self.permits(Purpose::Ordinary) {
            if let Some((body, posted)) = self.next_body() {
                return Some(self.message(body, posted));
            }
        }
        let owes = self.credits.owes_update() || self.receiver.owes_update();
        if (owes || self.final_update_due) && self.permits(Purpose::Update) {
            return Some(self.message(Body::Update, Posted::Control));
        }
        let write = self.next_write(clock);
        if write.is_none() {
            self.due = self.due_of_sends();
        }
        write
    }

    /// The next work request if it can follow from sends only.
    fn next_of_sends(&mut self, clock: &mut impl Clock) -> Option<Transmit> {
        if self.is_full() {
            return None;
        }
        self.sender.prepare(&mut self.events);
        if self.sender.owes_message() {
            self.due = Due::All;
            return self.next_of_all(clock);
        }
        let write = self.next_write(clock);
        // Now that a length was sent, another ring may be wished.
        self.due = match self.sender.owes_message() {
            true => Due::All,
            false => self.due_of_sends(),
        };
        write
    }

    /// What a work request can follow from if nothing is found in all but sends.
    fn due_of_sends(&self) -> Due {
        match self.sender.has_unsent() {
            true => Due::Sends,
            false => Due::Nothing,
        }
    }

    /// Whether no work request but an abort may be posted, for which one place is kept.
    fn is_full(&self) -> bool {
        self.posted.len() + 1 >= self.send_depth
    }

    /// When [`Stream::poll_transmit`] is to be called again if nothing happens before: a transfer
    /// waits for an advert until then, or short sends for others.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.sender.waits_until()
    }

    /// Whether short sends wait for others that carry them along; while they do, the stream need
    /// not be drained after a send. A driver whose user posts nothing for a while, as before it
    /// sleeps, calls [`Stream::stop_gathering`].
    #[inline]
    pub fn is_gathering(&self) -> bool {
        self.sender.is_gathering()
    }

    /// Whether anything but events can follow from receives that were posted since the stream was
    /// drained; if not, it need not be drained after them.
    #[inline]
    pub fn is_receive_due(&self) -> bool {
        // An advert that is due has made it so.
        self.due == Due::All || !self.receiver.is_drained()
    }

    /// Short sends that wait for others are transmitted by the next [`Stream::poll_transmit`].
    pub fn stop_gathering(&mut self) {
        if self.is_gathering() {
            self.sender.stop_gathering();
        }
    }

    /// The next event for the user.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event<M>> {
        self.poll_complete().or_else(|| self.events.pop_front())
    }

    /// The same if it is of a send or receive that has ended in its turn, as most are.
    #[inline]
    pub fn poll_complete(&mut self) -> Option<Event<M>> {
        // Those of sends come first, so that one precedes that of the peer's answer.
        if self.sender.has_complete() {
            return self.sender.take_complete();
        }
        if self.receiver.has_complete() {
            return self.receiver.take_complete();
        }
        None
    }

    /// Whether there is an event for the user.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.sender.has_complete() || self.receiver.has_complete() || !self.events.is_empty()
    }

    /// The failure of the stream, once. The driver disconnects and then calls
    /// [`Stream::handle_disconnected`], which completes all sends and receives.
    #[inline]
    pub fn poll_failure(&mut self) -> Option<Failure> {
        match std::mem::take(&mut self.failure_due) {
            true => self.failure,
            false => None,
        }
    }

    /// What the sends and receives in progress were posted with.
    pub fn memory(&self) -> impl Iterator<Item = &M> {
        self.sender.memory().chain(self.receiver.memory())
    }

    /// Calls `take` for each part of the work request that [`Stream::poll_transmit`] has just told,
    /// with what its send was posted with.
    #[inline]
    pub fn each_part(&self, piece: &Piece, take: impl FnMut(Part, &M)) {
        self.sender.each_part(&piece.parts, take);
    }

    /// Whether the peer has announced the end of its octets. Each work request of this end is to be
    /// signaled from then on, since any of them may be the last.
    pub fn is_peer_finished(&self) -> bool {
        self.receiver.is_finished()
    }

    /// Whether both ends have announced their ends, and know it: the peer has all messages of this
    /// end, with what they say of its own. The connection may be ended; octets that the ring holds
    /// can be received afterwards.
    pub fn is_settled(&self) -> bool {
        self.is_complete() && self.posted.is_empty() && !self.final_update_due
    }

    /// Whether each end has received the other's FINISH.
    pub fn is_complete(&self) -> bool {
        self.failure.is_none() && self.finish_complete && self.receiver.is_finished()
    }

    /// Whether [`Event::Closed`] is among the events so far.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the ring holds no octets.
    pub fn is_drained(&self) -> bool {
        self.receiver.is_drained()
    }

    /// What this end has counted.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    fn permits(&self, purpose: Purpose) -> bool {
        self.credits.permits(purpose) || self.faults.has(Fault::NoCredit)
    }

    /// The control message that is to be sent next, but for one that only returns credits.
    fn next_body(&mut self) -> Option<(Body, Posted)> {
        if self.stop_due {
            self.stop_due = false;
            return Some((Body::Stop, Posted::Control));
        }
        if let Some(from) = self.sender.withdrawn_due() {
            self.sender.withdrawn_said();
            return Some((Body::Withdrawn(from), Posted::Control));
        }
        if let Some(from) = self.receiver.withdrawal_due() {
            self.receiver.withdrawal_said();
            return Some((Body::Withdraw(from), Posted::Control));
        }
        if let Some(body) = self.next_of_rings() {
            return Some((body, Posted::Control));
        }
        if let Some(end) = self.sender.finish_due() {
            self.sender.finish_said();
            return Some((Body::Finish(end), Posted::Finish));
        }
        if let Some(position) = self.sender.pause_due() {
            self.sender.pause_said();
            self.stats.pauses += 1;
            return Some((Body::Pause(position), Posted::Control));
        }
        if let Some(advert) = self.receiver.next_advert(&mut self.stats) {
            return Some((Body::Advert(advert), Posted::Control));
        }
        if self.receiver.resume_due() {
            self.receiver.resume_said();
            return Some((Body::Resume, Posted::Control));
        }
        None
    }

    /// The message about rings that is to be sent next.
    fn next_of_rings(&mut self) -> Option<Body> {
        if let Some(number) = self.sender.taken_due() {
            self.sender.taken_said(&mut self.stats);
            return Some(Body::Taken(number));
        }
        if let Some((number, ring)) = self.receiver.ring().ring_due() {
            self.receiver.ring().ring_said();
            return Some(Body::Ring(number, ring));
        }
        if let Some(octets) = self.sender.want_due() {
            self.sender.want_said();
            return Some(Body::Want(octets));
        }
        None
    }

    fn message(&mut self, body: Body, posted: Posted) -> Transmit {
        self.credits.take();
        self.posted.push_back(posted);
        self.stats.controls_sent += 1;
        if matches!(body, Body::Finish(_)) {
            self.finish_number = Some(self.credits.sent());
        }
        self.final_update_due = false;
        let control = Control {
            received: self.credits.announce(),
            emptied: self.receiver.ring().announce(),
            body,
        };
        Transmit::Control(control.encode())
    }

    fn next_write(&mut self, clock: &mut impl Clock) -> Option<Transmit> {
        if !self.permits(Purpose::Ordinary) {
            return None;
        }
        let piece = self.sender.next_piece(clock, &mut self.stats)?;
        self.posts(piece.len_octets, piece.immediate.is_some(), clock);
        Some(Transmit::Write(piece))
    }

    /// A piece of this length is posted, the last one of its transfer or not.
    #[inline]
    fn posts(&mut self, len_octets: u32, is_last: bool, clock: &mut impl Clock) {
        if is_last {
            self.credits.take();
        }
        let posted = match self.sender.is_timed(len_octets) {
            true => {
                let now_ns = clock.now_ns();
                if is_last {
                    self.sender.sojourn().posted(self.credits.sent(), now_ns);
                }
                Posted::Timed(now_ns)
            }
            false => Posted::Piece,
        };
        self.posted.push_back(posted);
    }

    fn control(&mut self, octets: &[u8], clock: &mut impl Clock) -> Result<(), PeerError> {
        let control = Control::decode(octets)?;
        self.credits.give_back(control.received)?;
        let received = self.credits.returned();
        self.sender.sojourn().answered(received, clock);
        self.sender.handle_emptied(control.emptied, clock)?;
        // The acknowledgement of FINISH may be lost with the connection that the peer has ended.
        if self.finish_number.is_some_and(|number| number <= received) {
            self.finish_complete = true;
            self.check_closed();
        }
        match control.body {
            Body::Update => {}
            Body::Advert(advert) => self.sender.handle_advert(advert, &mut self.stats)?,
            Body::Withdraw(from) => self.sender.handle_withdraw(from)?,
            Body::Withdrawn(from) => self.receiver.handle_withdrawn(from, &mut self.events)?,
            Body::Finish(end) => {
                self.receiver.handle_finish(end, &mut self.events)?;
                self.final_update_due = true;
                self.check_closed();
            }
            Body::Stop => self.sender.peer_stopped(&mut self.events),
            Body::Pause(position) => self.receiver.handle_pause(position)?,
            Body::Resume => self.sender.handle_resume()?,
            Body::Want(octets) => self.receiver.handle_want(octets)?,
            Body::Ring(number, ring) => self.sender.handle_ring(number, ring)?,
            Body::Taken(number) => self.receiver.handle_taken(number)?,
            Body::Abort(code) => self.fail(Failure::Reset(code)),
        }
        Ok(())
    }

    #[inline]
    fn immediate(&mut self, word: u32, written_octets: u32) -> Result<(), PeerError> {
        let immediate = Immediate::decode(word)?;
        let (Immediate::Direct(len) | Immediate::Indirect(len)) = immediate;
        // The last piece of a transfer is a part of it, and has octets if the transfer has.
        if written_octets > len || (written_octets == 0) != (len == 0) {
            return Err(PeerError::FalseLength);
        }
        match immediate {
            Immediate::Direct(len) => self
                .receiver
                .handle_direct(u64::from(len), &mut self.events),
            Immediate::Indirect(len) => self
                .receiver
                .handle_indirect(u64::from(len), &mut self.events),
        }
    }

    fn judge(&mut self, result: Result<(), PeerError>) -> Result<(), PeerError> {
        if let Err(error) = result {
            self.stats.refused += 1;
            self.abort_due = Some(ABORT_PROTOCOL);
            self.fail(Failure::Peer(error));
        }
        result
    }

    fn fail(&mut self, failure: Failure) {
        self.due = Due::All;
        self.sender.stop_gathering();
        self.failure = Some(failure);
        self.failure_due = true;
    }

    fn check_open(&self) -> Result<(), CallError> {
        match self.failure {
            Some(_) => Err(CallError::Failed),
            None => Ok(()),
        }
    }

    #[inline]
    fn check_closed(&mut self) {
        if self.finish_complete && self.is_complete() && !self.closed {
            self.close_both();
        }
    }

    /// Each end has received the other's FINISH.
    #[inline(never)]
    fn close_both(&mut self) {
        // The peer has what precedes FINISH, whether or not that is complete.
        for posted in &mut self.posted {
            let replaced = std::mem::replace(posted, Posted::Control);
            if matches!(replaced, Posted::Piece | Posted::Timed(_)) {
                self.sender.handle_written(&mut self.events);
            }
        }
        if self.receiver.is_drained() {
            self.closed = true;
            self.events.push_back(Event::Closed);
        }
    }

    /// The sending half, which the caller may change.
    #[cfg(test)]
    pub(crate) fn sender(&mut self) -> &mut SendHalf<M> {
        self.due = Due::All;
        &mut self.sender
    }

    /// [`Stream::poll_transmit`], and whether that ends as it would if everything were looked at.
    #[cfg(test)]
    pub(crate) fn poll_transmit_twice(&mut self, now_ns: u64) -> (Option<Transmit>, bool)
    where
        M: Clone + PartialEq,
    {
        let mut other = self.clone();
        other.due = Due::All;
        let next = self.poll_transmit(&mut { now_ns });
        let is_same = other.poll_transmit(&mut { now_ns }) == next;
        other.due = self.due;
        (next, is_same && other == *self)
    }

    /// Whether everything is looked at for the next work request.
    #[cfg(test)]
    pub(crate) fn is_all_due(&self) -> bool {
        self.due == Due::All
    }

    #[cfg(test)]
    pub(crate) fn receiver(&self) -> &RecvHalf<M> {
        &self.receiver
    }
}

fn check_setup(config: &Config, own: &Hello, peer: &Hello) -> Result<(), SetupError> {
    if own.kind != peer.kind {
        return Err(SetupError::Kind);
    }
    let opposed = |a: &Hello, b: &Hello| a.choice == Choice::Direct && b.choice == Choice::Indirect;
    if opposed(own, peer) || opposed(peer, own) {
        return Err(SetupError::Choice);
    }
    if own.kind == Kind::Messages && [own.choice, peer.choice].contains(&Choice::Indirect) {
        return Err(SetupError::Choice);
    }
    let ring_needed = |a: &Hello| a.choice == Choice::Indirect && a.ring.len_octets == 0;
    let limits = [config.send_depth / 2, config.max_sends, config.gather_max];
    let few = |hello: &Hello| hello.recv_slots < MIN_SLOTS || hello.max_adverts == 0;
    let unreachable = !own.ring.is_addressable();
    if few(own) || few(peer) || limits.contains(&0) || unreachable {
        return Err(SetupError::Limit);
    }
    if ring_needed(own) || ring_needed(peer) {
        return Err(SetupError::Limit);
    }
    Ok(())
}
