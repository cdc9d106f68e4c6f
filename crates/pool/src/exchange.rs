//! Messages to and from a node: credits, the messages of the pool itself that wait for them, and
//! the virtual queue pairs with Sends that do.

use std::collections::{BTreeSet, VecDeque};

use crate::credit::{Class, Credit, Grant};
use crate::end::End;
use crate::fault::{Fault, Faults};
use crate::header::{EndId, Message};
use crate::queued::Segment;
use crate::slots::Id;
use crate::types::{ConnectionName, NodeId, VirtualId};

/// The slot that stands for the pool itself where a virtual queue pair is named that has a turn or
/// a request in flight: it is greater than the number of places of any table.
const OWN: u32 = u32::MAX;

/// Names an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeId(u32);

impl ExchangeId {
    /// That of a connection.
    pub(crate) fn of_connection(slot: u16) -> Self {
        Self(slot.into())
    }

    /// What stands for the pool itself in the place of a virtual queue pair.
    pub(crate) fn own(self) -> VirtualId {
        VirtualId(Id {
            slot: OWN,
            generation: self.0,
        })
    }

    /// The exchange of the pool itself; none of a virtual queue pair.
    pub(crate) fn of_own(id: VirtualId) -> Option<Self> {
        let Id { slot, generation } = id.0;
        (slot == OWN).then_some(Self(generation))
    }
}

/// A message of the pool itself that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Asks for the other end of this one.
    Open(VirtualId),
    /// This one is the other end.
    Accept(VirtualId),
    /// Tells how many Receives this one has.
    Receives(VirtualId),
    /// A Send of the other end is taken, of which the first segment has come.
    Taken(VirtualId),
    /// Answers a message.
    Answer(Message),
    /// The second one has ended, which the first one, at the node, does not know; the Send of the
    /// first one that was longer than its Receive.
    Close(EndId, EndId, Option<u32>),
}

/// What a connection, or a node that initiators reach, has for messages.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// The slot of the shared queue pair to which they are posted.
    pub(crate) physical: u16,
    pub(crate) credit: Credit,
    pub(crate) grant: Grant,
    pub(crate) controls: VecDeque<Control>,
    /// The messages of the pool itself that are in flight; of them, those that are sent again to a
    /// replacement.
    sent: VecDeque<Option<Control>>,
    /// Virtual queue pairs whose Sends wait for buffers.
    starved: Vec<VirtualId>,
    /// Virtual queue pairs with another end.
    pub(crate) ends: BTreeSet<VirtualId>,
    /// Whether the pool itself has a turn.
    has_turn: bool,
    /// The other end of the queue pair, as its pool names it.
    pub(crate) other: Option<ConnectionName>,
}

/// The exchanges of a pool: of each connection, or of each node that initiators reach.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    all: Vec<Option<Box<Exchange>>>,
}

impl Exchanges {
    /// The exchange of virtual queue pairs that are bound to a shared queue pair and reach a node.
    pub(crate) fn id_of(&self, slot: u16, _node: NodeId) -> ExchangeId {
        ExchangeId::of_connection(slot)
    }

    pub(crate) fn get(&self, id: ExchangeId) -> Option<&Exchange> {
        self.all.get(id.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: ExchangeId) -> Option<&mut Exchange> {
        self.all.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// The exchange of the connection in a slot, which may be its first one.
    pub(crate) fn of_connection(&mut self, slot: u16) -> &mut Exchange {
        let at = usize::from(slot);
        if at >= self.all.len() {
            self.all.resize_with(at + 1, Option::default);
        }
        let exchange = self.all[at].get_or_insert_default();
        exchange.physical = slot;
        exchange
    }
}

/// Whether a message is sent again if it is lost. All others follow from the states of ends.
pub(crate) fn is_close(control: &Control) -> bool {
    matches!(control, Control::Close(..))
}

impl Exchange {
    /// Whether the next Send of a virtual queue pair may be posted; one that waits for buffers is
    /// noted.
    #[inline(never)]
    pub(crate) fn permits_send(
        &mut self,
        id: VirtualId,
        end: &mut End,
        (sequence, segment): (u32, Segment),
        faults: Faults,
    ) -> bool {
        let is_last = segment == Segment::Last;
        if !end.covers(sequence, faults) || is_last && !end.is_taken(sequence, faults) {
            return false;
        }
        let class = match faults.has(Fault::ReserveUsed) {
            true => Class::Buffers,
            false => Class::User,
        };
        let is_permitted = self.credit.permits(class) || faults.has(Fault::BuffersUncounted);
        if !is_permitted && !std::mem::replace(&mut end.is_starved, true) {
            self.starved.push(id);
        }
        is_permitted
    }

    /// A message of the pool itself is complete.
    pub(crate) fn note_retired(&mut self) {
        self.sent.pop_front();
    }

    /// The next message of the pool itself, which is posted; none: the number of buffers.
    pub(crate) fn take(&mut self) -> Option<Control> {
        let control = match self.credit.permits(Class::Control) {
            true => self.controls.pop_front(),
            false => None,
        };
        self.sent.push_back(control.filter(is_close));
        self.credit.note_sent();
        control
    }

    /// Those that wait for buffers do not any more.
    pub(crate) fn take_starved(&mut self) -> Vec<VirtualId> {
        std::mem::take(&mut self.starved)
    }

    /// Whether the pool itself gets a turn, which it has not yet.
    pub(crate) fn begin_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.has_turn, true)
    }

    pub(crate) fn end_turn(&mut self) {
        self.has_turn = false;
    }

    /// The last message of the pool itself was refused by the queue pair: it is sent again if it is
    /// one of those.
    pub(crate) fn note_refused(&mut self) {
        if let Some(control) = self.sent.pop_back().flatten() {
            self.controls.push_front(control);
        }
    }

    pub(crate) fn is_buffers_due(&self) -> bool {
        self.grant.is_due() && self.credit.permits(Class::Buffers)
    }

    /// Nothing is sent to the node any more; what it would have to know.
    pub(crate) fn forget(&mut self) -> VecDeque<Control> {
        let sent = self.sent.iter_mut().filter_map(Option::take);
        let waiting = self.controls.drain(..).filter(is_close);
        sent.chain(waiting).collect()
    }

    /// The queue pair is destroyed: credits end with it, and what was in flight is not known. The
    /// other end is told again of what it has to know; the rest follows from the states of ends.
    pub(crate) fn reset(&mut self) {
        self.controls = self.forget();
        self.sent.clear();
        (self.credit, self.grant) = (Credit::default(), Grant::default());
        self.other = None;
    }
}
