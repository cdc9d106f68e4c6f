//! Messages to and from a node: credits, the messages of the pool itself that wait for them, and
//! the virtual queue pairs with Sends that do.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::config::Transport;
use crate::credit::{Class, Credit, Grant};
use crate::end::End;
use crate::fault::{Fault, Faults};
use crate::header::{EndId, Header, HeaderOctets, Label, Message};
use crate::meeting::{Meeting, Stage};
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
    /// Asks whether the node is there.
    Probe,
    /// There are no exchanges with the node any more.
    Leave,
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
    /// What there is in place of a connection, over initiators.
    pub(crate) meeting: Option<Meeting>,
}

/// The exchanges of a pool: of each connection, or of each node that initiators reach.
#[derive(Debug)]
pub(crate) struct Exchanges {
    /// Whether they are of nodes.
    are_of_nodes: bool,
    all: Vec<Option<Box<Exchange>>>,
    /// Over initiators: by what messages begin with.
    tokens: HashMap<u64, ExchangeId>,
    /// How many there are over initiators.
    count: u32,
}

impl Exchanges {
    pub(crate) fn new(transport: Transport) -> Self {
        Self {
            are_of_nodes: matches!(transport, Transport::Initiators { .. }),
            all: Vec::new(),
            tokens: HashMap::new(),
            count: 0,
        }
    }

    /// The exchange of virtual queue pairs that are bound to a shared queue pair and reach a node.
    pub(crate) fn id_of(&self, slot: u16, node: NodeId) -> ExchangeId {
        match self.are_of_nodes {
            true => ExchangeId(node.0.slot),
            false => ExchangeId(slot.into()),
        }
    }

    /// That of a connection; over initiators, connections have none.
    pub(crate) fn id_of_connection(&self, slot: u16) -> ExchangeId {
        match self.are_of_nodes {
            true => ExchangeId(OWN),
            false => ExchangeId(slot.into()),
        }
    }

    /// That of a node, over initiators, if there is one.
    pub(crate) fn id_of_node(&self, node: NodeId) -> Option<ExchangeId> {
        let id = ExchangeId(node.0.slot);
        let meeting = self.get(id)?.meeting.as_ref()?;
        (meeting.node == node).then_some(id)
    }

    /// How many there are over initiators.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ExchangeId, &Exchange)> + use<'_> {
        let all = (0..).zip(&self.all);
        all.filter_map(|(at, exchange)| Some((ExchangeId(at), exchange.as_deref()?)))
    }

    /// The same, to be changed.
    pub(crate) fn all_mut(
        &mut self,
    ) -> impl Iterator<Item = (ExchangeId, &mut Exchange)> + use<'_> {
        let all = (0..).zip(&mut self.all);
        all.filter_map(|(at, exchange)| Some((ExchangeId(at), exchange.as_deref_mut()?)))
    }

    /// Begins one over an initiator.
    pub(crate) fn add(&mut self, physical: u16, meeting: Meeting) -> ExchangeId {
        let id = ExchangeId(meeting.node.0.slot);
        *self.place(id.0 as usize) = Some(Box::new(Exchange {
            physical,
            meeting: Some(meeting),
            ..Exchange::default()
        }));
        self.count += 1;
        id
    }

    pub(crate) fn remove(&mut self, id: ExchangeId) {
        if let Some(place) = self.all.get_mut(id.0 as usize) {
            self.count -= u32::from(place.take().is_some());
        }
    }

    /// Messages that begin with a token are of an exchange.
    pub(crate) fn name(&mut self, token: u64, id: ExchangeId) {
        self.tokens.insert(token, id);
    }

    /// No message is any more that begins with a token.
    pub(crate) fn unname(&mut self, token: u64) {
        self.tokens.remove(&token);
    }

    /// The exchange of messages that begin with a token.
    pub(crate) fn named(&self, token: u64) -> Option<ExchangeId> {
        self.tokens.get(&token).copied()
    }

    fn place(&mut self, at: usize) -> &mut Option<Box<Exchange>> {
        if at >= self.all.len() {
            self.all.resize_with(at + 1, Option::default);
        }
        &mut self.all[at]
    }

    pub(crate) fn get(&self, id: ExchangeId) -> Option<&Exchange> {
        self.all.get(id.0 as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: ExchangeId) -> Option<&mut Exchange> {
        self.all.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// The exchange of the connection in a slot, which may be its first one.
    pub(crate) fn of_connection(&mut self, slot: u16) -> &mut Exchange {
        let exchange = self.place(slot.into()).get_or_insert_default();
        exchange.physical = slot;
        exchange
    }
}

/// Whether a message is sent again if it is lost with its connection. All others follow from the
/// states of ends.
pub(crate) fn is_close(control: &Control) -> bool {
    matches!(control, Control::Close(..))
}

impl Exchange {
    /// How far it is, over initiators.
    pub(crate) fn stage(&self) -> Option<Stage> {
        self.meeting.as_ref().map(|meeting| meeting.stage)
    }

    /// A virtual queue pair has no other end any more.
    pub(crate) fn remove_end(&mut self, id: VirtualId, now: u64) {
        self.ends.remove(&id);
        if let Some(meeting) = &mut self.meeting {
            meeting.idle_since = now;
        }
    }

    /// Whether messages are sent.
    pub(crate) fn may_send(&self) -> bool {
        let is_open = |stage| matches!(stage, Stage::Asking | Stage::Ready | Stage::Leaving);
        self.stage().is_none_or(is_open)
    }

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
    pub(crate) fn note_retired(&mut self) -> Option<Control> {
        self.sent.pop_front().flatten()
    }

    /// The next message of the pool itself, which is posted; none: the number of buffers.
    pub(crate) fn take(&mut self) -> Option<Control> {
        let control = match self.credit.permits(Class::Control) {
            true => self.controls.pop_front(),
            false => None,
        };
        let is_kept = |control: &Control| is_close(control) || self.meeting.is_some();
        self.sent.push_back(control.filter(is_kept));
        control
    }

    /// What a message begins with that is sent now, which takes a buffer of the node.
    pub(crate) fn header(&mut self, message: Message) -> HeaderOctets {
        self.credit.note_sent();
        let buffers = self.grant.announce();
        let label = self.meeting.as_mut().map(|meeting| {
            meeting.in_flight += 1;
            Label {
                token: meeting.told.map_or(0, |told| told.token),
                number: self.credit.number(),
            }
        });
        Header { buffers, message }.with_label(label)
    }

    /// A message has not been sent, or it is not known whether it has arrived: the next one has its
    /// number. `false`: over a connection, whose messages have none.
    pub(crate) fn take_back(&mut self, faults: Faults) -> bool {
        let Some(meeting) = &mut self.meeting else {
            return false;
        };
        meeting.in_flight -= 1;
        // What has ended has no numbers any more.
        if meeting.stage != Stage::Ended && !faults.has(Fault::NumbersNotTakenBack) {
            self.credit.take_back();
        }
        true
    }

    /// The messages of the pool itself whose arrival is not known, the oldest first.
    pub(crate) fn take_sent(&mut self) -> impl DoubleEndedIterator<Item = Control> + use<> {
        std::mem::take(&mut self.sent).into_iter().flatten()
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

    /// The last message of the pool itself was refused by the queue pair: what is sent again, if it
    /// is one of those.
    pub(crate) fn note_refused(&mut self) -> Option<Control> {
        self.sent.pop_back().flatten()
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
