//! What a virtual queue pair has for Sends and Receives: its other end, credits, and Receives.

use std::collections::VecDeque;

use crate::credit::{Announced, Covered};
use crate::fault::{Fault, Faults};
use crate::header::{EndId, Ends};
use crate::queued::Queued;
use crate::regions::Pieces;
use crate::types::{EndState, LocalRegionId, Received, Status};

/// A Receive of a user that waits for a message.
#[derive(Debug)]
struct Receive {
    id: u64,
    pieces: Pieces,
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
    /// Whether it is among those that wait for buffers of the node.
    pub(crate) is_starved: bool,
    /// Requests that were not posted when the other end was closed.
    pub(crate) unposted: VecDeque<Queued>,
    /// How the oldest of these ends.
    pub(crate) unposted_status: Status,
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
            is_starved: false,
            unposted: VecDeque::new(),
            unposted_status: Status::Flushed,
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

    /// Check 2, for Receives.
    pub(crate) fn is_full(&self) -> bool {
        self.receives.len() + self.received.len() >= self.depth as usize
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

    /// A message completes the oldest Receive, if there is one: how, and the elements that it
    /// fills, which are cut to its length.
    pub(crate) fn deliver(
        &mut self,
        len_octets: u32,
        immediate: Option<u32>,
        faults: Faults,
    ) -> Option<(Status, Pieces)> {
        let Receive { id, mut pieces } = self.receives.pop_front()?;
        let mut left = len_octets;
        for piece in &mut pieces {
            piece.sge.len_octets = piece.sge.len_octets.min(left);
            left -= piece.sge.len_octets;
        }
        let status = match left == 0 || faults.has(Fault::LongMessagesCut) {
            true => Status::Success,
            false => Status::LocalLength,
        };
        self.expected = self.expected.wrapping_add(1);
        self.received.push_back(Received {
            id,
            status,
            len_octets,
            immediate,
        });
        Some((status, pieces))
    }

    /// All Receives that wait end.
    pub(crate) fn flush(&mut self, mut release: impl FnMut(LocalRegionId)) {
        for Receive { id, pieces } in self.receives.drain(..) {
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
