//! Both halves of a channel.

use urdma_waiting::{Bells, PeerPage};

use crate::cell::CellOctets;
use crate::incoming::{Counts, Incoming, Next};
use crate::outgoing::{Kind, Left, Outgoing, Room};
use crate::region::OwnRegion;
use crate::steps::{Live, Steps};

/// What the peer has offered.
#[derive(Debug)]
struct Peer {
    incoming: Incoming,
    page: PeerPage,
    /// The sleep of the peer that a bell was rung for.
    rung_for: Option<u32>,
}

/// A channel to another process. It can send from the beginning, and receives when the peer's
/// regions have been attached.
///
/// A thread that polls calls [`Channel::next`] until nothing comes, then [`Channel::settle`], then,
/// if messages are outstanding, [`Channel::complete`], and last [`Channel::notify`].
#[derive(Debug)]
pub struct Channel<S: Steps = Live> {
    outgoing: Outgoing<S>,
    peer: Option<Peer>,
    /// Messages written, and settled, when the peer's park word was last read.
    notified: (u64, u64),
    /// See [`Channel::set_wake_at`].
    wake_at: u64,
}

impl Channel {
    /// A channel whose peer will receive what is written to `region`.
    pub fn new(region: OwnRegion) -> Self {
        Self::with_outgoing(Outgoing::new(region))
    }
}

impl<S: Steps> Channel<S> {
    /// A channel that sends with `outgoing`, to which nothing has been written.
    pub fn with_outgoing(outgoing: Outgoing<S>) -> Self {
        Self {
            notified: (outgoing.written(), outgoing.settled()),
            wake_at: outgoing.written(),
            outgoing,
            peer: None,
        }
    }

    /// Receives from now on, and wakes the peer if it sleeps.
    pub fn attach(&mut self, incoming: Incoming, page: PeerPage) {
        self.peer = Some(Peer {
            incoming,
            page,
            rung_for: None,
        });
        self.notify();
    }

    /// The half that writes.
    #[inline]
    pub fn outgoing(&self) -> &Outgoing<S> {
        &self.outgoing
    }

    /// The half that reads, if there is one: for payloads.
    #[inline]
    pub fn incoming(&self) -> Option<&Incoming> {
        self.peer.as_ref().map(|peer| &peer.incoming)
    }

    /// As [`Outgoing::has_room`].
    #[inline]
    pub fn has_room(&self, kind: Kind) -> bool {
        self.outgoing.has_room(kind)
    }

    /// As [`Outgoing::begin`].
    ///
    /// # Panics
    /// As there.
    #[inline]
    pub fn begin(&mut self, kind: Kind, payload_octets: usize) -> Option<Room<'_, S>> {
        self.outgoing.begin(kind, payload_octets)
    }

    /// As [`Channel::begin`] for a work request, on a channel on which nothing is answered: reads
    /// the peer's counts if there is no room otherwise.
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn begin_unanswered(&mut self, payload_octets: usize) -> Option<Room<'_, S>> {
        let frame = match self.outgoing.frame_for(Kind::Work, payload_octets) {
            Some(frame) => frame,
            None => {
                self.complete_unanswered();
                self.outgoing.frame_for(Kind::Work, payload_octets)?
            }
        };
        Some(self.outgoing.room_with(frame, payload_octets))
    }

    /// As [`Outgoing::resume`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn resume(&mut self, left: Left) -> Room<'_, S> {
        self.outgoing.resume(left)
    }

    /// As [`Outgoing::begin_in_cell`].
    #[inline(always)]
    pub fn begin_in_cell(&mut self) -> Option<Room<'_, S>> {
        self.outgoing.begin_in_cell()
    }

    /// Takes the next message, as [`Incoming::next`], and hands the owners of what its count covers
    /// to `completed`, which is all before the message. The message before this one must have been
    /// processed. Takes none while there is no room for an answer to it.
    pub fn next(&mut self, out: &mut CellOctets, completed: impl FnMut(u32)) -> Next {
        let next = self.take(out);
        if let Some(position) = self.settled_by(&next) {
            self.outgoing.settle_to(position, completed);
        }
        next
    }

    /// As [`Channel::next`], but completes nothing: [`Channel::settled_by`] says what is to be
    /// completed before the message is processed.
    #[inline(always)]
    pub fn take(&mut self, out: &mut CellOctets) -> Next {
        // C7-1
        //# A receiver MUST take a message only while its outgoing region has room for an answer.
        let has_room = self.outgoing.has_room(Kind::Answer);
        match &mut self.peer {
            Some(peer) if has_room => peer.incoming.next(out),
            _ => Next::Empty,
        }
    }

    /// The position before which the count of a message that was taken settles what was written.
    /// All before it is completed, by [`Channel::settle_run`], before the message is processed.
    #[inline(always)]
    pub fn settled_by(&self, next: &Next) -> Option<u64> {
        match *next {
            // C5-3: the answers to these are before the message.
            Next::Message { count, .. } => self.outgoing.position_of_count(count),
            _ => None,
        }
    }

    /// As [`Outgoing::settle_run`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn settle_run(&mut self, position: u64) -> Option<(u32, u64)> {
        self.outgoing.settle_run(position)
    }

    /// Counts all messages that were taken as settled: their effects, or the answers that refuse
    /// them, are visible. To be called before the application can observe a completion of them.
    #[inline(always)]
    pub fn settle(&mut self) {
        let taken = self.incoming().map_or(0, Incoming::taken);
        if taken > self.outgoing.settled() {
            // C5-1
            //# A receiver MUST store the counts after it has settled a message and before its
            //# application can observe the completion: a process may end at any time after that,
            //# and its peer must learn that the message arrived.
            self.outgoing.store_counts(taken);
        }
    }

    /// As [`Channel::settle`], of all messages but the last that was taken: before an answer to
    /// that one is written, so that the answer's count has what it does not refuse.
    pub fn settle_before_last(&mut self) {
        let taken = self.incoming().map_or(0, Incoming::taken);
        if taken > self.outgoing.settled() + 1 {
            // C5-1
            //# A receiver MUST store the counts after it has settled a message and before its
            //# application can observe the completion: a process may end at any time after that,
            //# and its peer must learn that the message arrived.
            self.outgoing.store_counts(taken - 1);
        }
    }

    /// Reads the peer's counts: frees cells and frames, and hands the owners of settled messages to
    /// `completed`, unless messages must be taken first.
    pub fn complete(&mut self, completed: impl FnMut(u32)) {
        if let Some(position) = self.settled_by_counts() {
            self.outgoing.settle_to(position, completed);
        }
    }

    /// As [`Channel::complete`], but completes nothing: returns the position before which all is to
    /// be completed, by [`Channel::settle_run`].
    #[inline(always)]
    pub fn settled_by_counts(&mut self) -> Option<u64> {
        let incoming = &self.peer.as_ref()?.incoming;
        let Counts { settled, written } = incoming.counts();
        let position = self.outgoing.position_of(settled)?;
        // C5-3
        //# A sender that reads counts MUST process the incoming messages up to `written` before it
        //# completes what `settled` covers: the answers that refuse some of these messages are
        //# among them.
        if incoming.has_reached(written) {
            return Some(position);
        }
        self.outgoing.free_to(position);
        None
    }

    /// Whether the peer has settled messages that are not completed.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| {
            let settled = peer.incoming.counts().settled;
            self.outgoing.position_of(settled).is_some()
        })
    }

    /// As [`Channel::complete`], for a channel on which nothing is answered, so that messages need
    /// not be taken first.
    #[inline]
    pub fn complete_unanswered(&mut self) {
        let Some(Peer { incoming, .. }) = &self.peer else {
            return;
        };
        if let Some(position) = self.outgoing.position_of(incoming.counts().settled) {
            self.outgoing.settle_to(position, |_| ());
        }
    }

    /// Says, before this process sleeps, that it must be woken when `settled` messages are settled,
    /// as [`Room::publish`] counts them; None if it does not wait for that. Without room for an
    /// answer it is woken when there is some.
    pub fn set_wake_at(&mut self, settled: Option<u64>) {
        // One more than was written is never settled.
        let never = self.outgoing.written() + 1;
        self.wake_at = settled.unwrap_or(never);
        if !self.has_room(Kind::Answer) {
            self.wake_at = self.wake_at.min(self.outgoing.freed() + 1);
        }
        // C6-3
        //# A sleeper whose application does not wait for the completion of sends stores a position
        //# that is far ahead.
        self.outgoing.store_wake_at(self.wake_at);
    }

    /// Has the next sleep end when the peer rings its bell.
    #[inline]
    pub fn listen(&self, bells: &mut Bells) {
        if let Some(peer) = &self.peer {
            peer.incoming.listen(bells);
        }
    }

    /// Whether a message waits, or a corrupt cell; for a look at a channel on which little comes.
    #[inline]
    pub fn has_message(&self) -> bool {
        let peer = self.peer.as_ref();
        peer.is_some_and(|peer| peer.incoming.has_message())
    }

    /// Whether there is a message that may be taken, or counts that this process waits for.
    pub fn has_work(&self) -> bool {
        let Some(Peer { incoming, .. }) = &self.peer else {
            return false;
        };
        if self.has_room(Kind::Answer) && incoming.has_message() {
            return true;
        }
        let Counts { settled, written } = incoming.counts();
        let outgoing = &self.outgoing;
        outgoing.position_of(settled).is_some_and(|position| {
            let frees_or_completes = position > outgoing.freed() || incoming.has_reached(written);
            position >= self.wake_at && frees_or_completes
        })
    }

    /// Wakes the peer if it sleeps and waits for what was written or settled since the last call;
    /// returns whether it did.
    #[inline(always)]
    pub fn notify(&mut self) -> bool {
        let Some(Peer {
            incoming,
            page,
            rung_for,
        }) = &mut self.peer
        else {
            return false;
        };
        let (written, settled) = (self.outgoing.written(), self.outgoing.settled());
        let (written_before, settled_before) = self.notified;
        if written == written_before && settled == settled_before {
            return false;
        }
        self.notified = (written, settled);
        // C6-3
        //# A sleeper whose application does not wait for the completion of sends stores a position
        //# that is far ahead.
        let is_expected = || written > written_before || incoming.wants_to_know(settled);
        let Some(sleep) = page.sleep_to_end() else {
            return false;
        };
        let wakes = *rung_for != Some(sleep) && is_expected();
        if wakes {
            *rung_for = Some(sleep);
            if !page.wake_from_call(sleep) {
                self.outgoing.ring_bell();
            }
        }
        wakes
    }
}
