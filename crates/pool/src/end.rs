//! What a virtual queue pair has for Sends and Receives: its other end, credits, and Receives.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::credit::{Announced, Covered};
use crate::fault::{Fault, Faults};
use crate::header::{EndId, Ends};
use crate::queued::Queued;
use crate::regions::{cut, Pieces};
use crate::types::{EndState, LocalRegionId, Received, Sge, Status, ELEMENTS_MAX};

/// A Receive of a user that waits for a message.
#[derive(Debug)]
struct Receive {
    id: u64,
    pieces: Pieces,
}

impl Receive {
    fn fits(&self, len_octets: u32) -> bool {
        let lengths = self.pieces.iter();
        let room: u64 = lengths.map(|piece| u64::from(piece.sge.len_octets)).sum();
        u64::from(len_octets) <= room
    }

    /// Where octets of a message go.
    fn places(&self, offset: u32, len_octets: u32) -> Places {
        let cut = cut(self.pieces.iter().copied(), offset, len_octets);
        cut.map(|piece| piece.sge).collect()
    }
}

/// A Receive of which the first segment has come.
#[derive(Debug)]
struct Filling {
    receive: Receive,
    /// Of the message.
    len_octets: u32,
    /// Octets that have come.
    filled: u32,
    /// Whether a message that the Send is taken waits to be sent.
    is_telling: bool,
}

/// Local memory that octets of a message are copied to.
pub(crate) type Places = ArrayVec<Sge, ELEMENTS_MAX>;

/// A Receive that a message has completed.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) status: Status,
    /// Where the octets go that have come last.
    pub(crate) to: Places,
    /// Its memory.
    pub(crate) pieces: Pieces,
}

/// What follows from the first segment of a Send.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is taken. Its octets go there, and the other end is told.
    Taken(Places),
    /// Its Receive is too short, and complete.
    TooLong(Pieces),
}

/// One end of two virtual queue pairs that exchange messages.
///
/// ```text
///    Opening  -- Accept --> Open
///    Opening  -- Refuse --> Refused
///    (accept) --> Accepted -- a message of the other end --> Open
///    any      -- Close, a failure, an error of a request --> Closed
/// ```
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) state: EndState,
    /// The service that is asked, by the end that opens.
    pub(crate) service: u32,
    /// How this end is named in messages.
    own: EndId,
    /// How the other one is; none while it is not known, and when it has ended.
    pub(crate) remote: Option<EndId>,
    /// Receives of this end, as the other one knows them.
    pub(crate) announced: Announced,
    /// Whether a message with their number waits to be sent.
    pub(crate) is_announcing: bool,
    /// Receives of the other end.
    pub(crate) covered: Covered,
    /// The number of the Send of the other end that is delivered next.
    pub(crate) expected: u32,
    /// The number behind that of the last Send of this end, of those that are longer than a
    /// message, that the other end has taken.
    taken: u32,
    /// The Send of the other end that was longer than its Receive, if that is why this end fails.
    pub(crate) refused: Option<u32>,
    /// Whether it is among those that wait for buffers of the node.
    pub(crate) is_starved: bool,
    /// Requests that were not posted when the other end was closed.
    pub(crate) unposted: VecDeque<Queued>,
    /// How the oldest of these ends.
    pub(crate) unposted_status: Status,
    filling: Option<Filling>,
    receives: VecDeque<Receive>,
    received: VecDeque<Received>,
    depth: u32,
}

impl End {
    pub(crate) fn new(own: EndId, service: u32, depth: u32) -> Self {
        Self {
            state: EndState::Opening,
            service,
            own,
            remote: None,
            announced: Announced::default(),
            is_announcing: false,
            covered: Covered::default(),
            expected: 0,
            taken: 0,
            refused: None,
            is_starved: false,
            unposted: VecDeque::new(),
            unposted_status: Status::Flushed,
            filling: None,
            receives: VecDeque::new(),
            received: VecDeque::new(),
            depth,
        }
    }

    /// How this end is named in messages.
    pub(crate) fn own(&self) -> EndId {
        self.own
    }

    /// The ends of a message that is sent now, if the other one is known.
    pub(crate) fn ends(&mut self) -> Option<Ends> {
        let destination = self.remote?;
        self.is_announcing = false;
        Some(Ends {
            destination,
            source: self.own,
            receives: self.announced.announce(),
        })
    }

    /// Whether the other end has a Receive for the Send with this number.
    pub(crate) fn covers(&self, sequence: u32, faults: Faults) -> bool {
        let is_covered = self.covered.covers(sequence) || faults.has(Fault::SendsUncovered);
        self.remote.is_some() && is_covered
    }

    /// Whether the other end has taken the Send with this number.
    pub(crate) fn is_taken(&self, sequence: u32, faults: Faults) -> bool {
        let ahead = self.taken.wrapping_sub(sequence);
        (ahead != 0 && ahead <= u32::MAX / 2) || faults.has(Fault::LastSegmentEarly)
    }

    /// The other end has taken the Send with this number; whether that was not known.
    pub(crate) fn note_taken(&mut self, sequence: u32) -> bool {
        let is_new = !self.is_taken(sequence, Faults::default());
        if is_new {
            self.taken = sequence.wrapping_add(1);
        }
        is_new
    }

    /// Check 2, for Receives.
    pub(crate) fn is_full(&self) -> bool {
        let filling = usize::from(self.filling.is_some());
        self.receives.len() + self.received.len() + filling >= self.depth as usize
    }

    pub(crate) fn push(&mut self, id: u64, pieces: Pieces) {
        self.receives.push_back(Receive { id, pieces });
        self.announced.note_posted();
    }

    /// Whether the other end is to be told of the Receives, and a message about them is not waiting
    /// yet; it is then.
    pub(crate) fn begin_announcing(&mut self) -> bool {
        let is_due = self.remote.is_some() && self.announced.is_due(self.receives.len());
        is_due && !std::mem::replace(&mut self.is_announcing, true)
    }

    fn complete(&mut self, id: u64, status: Status, len_octets: u32, immediate: Option<u32>) {
        self.expected = self.expected.wrapping_add(1);
        self.received.push_back(Received {
            id,
            status,
            len_octets,
            immediate,
        });
    }

    /// A message, or the last segment of one, completes a Receive: the oldest, or the one that is
    /// being filled. None: there is no such Receive, or octets of the message are missing.
    pub(crate) fn deliver(
        &mut self,
        len_octets: u32,
        immediate: Option<u32>,
        faults: Faults,
    ) -> Option<Delivered> {
        let (receive, before, len) = match self.filling.take() {
            Some(filling) => {
                let left = filling.len_octets - filling.filled;
                if left != len_octets {
                    self.filling = Some(filling);
                    return None;
                }
                (filling.receive, filling.filled, filling.len_octets)
            }
            None => (self.receives.pop_front()?, 0, len_octets),
        };
        let status = match receive.fits(len) || faults.has(Fault::LongMessagesCut) {
            true => Status::Success,
            false => Status::LocalLength,
        };
        self.complete(receive.id, status, len, immediate);
        Some(Delivered {
            status,
            to: receive.places(before, len_octets),
            pieces: receive.pieces,
        })
    }

    /// The first segment of a Send has come. None: there is no Receive for it, or the segment is
    /// all of the Send.
    pub(crate) fn begin(&mut self, len_octets: u32, segment_octets: u32) -> Option<Begun> {
        if segment_octets >= len_octets {
            return None;
        }
        let receive = self.receives.pop_front()?;
        if !receive.fits(len_octets) {
            self.refused = Some(self.expected);
            self.complete(receive.id, Status::LocalLength, len_octets, None);
            return Some(Begun::TooLong(receive.pieces));
        }
        let to = receive.places(0, segment_octets);
        self.filling = Some(Filling {
            receive,
            len_octets,
            filled: segment_octets,
            is_telling: false,
        });
        Some(Begun::Taken(to))
    }

    /// A further segment has come, which is not the last one: where its octets go, or none, if they
    /// have come before. `Err`: octets before it are missing, or it is not possible.
    pub(crate) fn fill(
        &mut self,
        offset: u32,
        segment_octets: u32,
        faults: Faults,
    ) -> Result<Option<Places>, ()> {
        let filling = self.filling.as_mut().ok_or(())?;
        let is_repeated = offset < filling.filled;
        if is_repeated && !faults.has(Fault::SegmentsCountedTwice) {
            return Ok(None);
        }
        let left = filling.len_octets - filling.filled;
        if !is_repeated && offset != filling.filled || segment_octets >= left {
            return Err(());
        }
        filling.filled += segment_octets;
        Ok(Some(filling.receive.places(offset, segment_octets)))
    }

    /// Whether a Send of the other end has begun to come.
    pub(crate) fn is_filling(&self) -> bool {
        self.filling.is_some()
    }

    /// Whether the other end is to be told that its Send is taken, and no such message waits yet;
    /// one does then.
    pub(crate) fn begin_telling(&mut self) -> bool {
        let filling = self.filling.as_mut();
        filling.is_some_and(|filling| !std::mem::replace(&mut filling.is_telling, true))
    }

    /// The messages that wait to be sent are lost.
    pub(crate) fn forget_telling(&mut self) {
        if let Some(filling) = &mut self.filling {
            filling.is_telling = false;
        }
    }

    /// The Send that is taken, of which the other end is told now.
    pub(crate) fn tell_taken(&mut self) -> Option<u32> {
        self.filling.as_mut()?.is_telling = false;
        Some(self.expected)
    }

    /// All Receives that wait end.
    pub(crate) fn flush(&mut self, mut release: impl FnMut(LocalRegionId)) {
        let filling = self.filling.take().map(|filling| filling.receive);
        for Receive { id, pieces } in filling.into_iter().chain(self.receives.drain(..)) {
            pieces.iter().for_each(|piece| release(piece.local));
            self.received.push_back(Received {
                id,
                status: Status::Flushed,
                len_octets: 0,
                immediate: None,
            });
        }
    }

    pub(crate) fn poll(&mut self) -> Option<Received> {
        self.received.pop_front()
    }
}
