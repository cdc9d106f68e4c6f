//! Messages that arrive at the target of this pool, from any node.

use crate::arrivals::Arrival;
use crate::credit::Taken;
use crate::exchange::ExchangeId;
use crate::fault::Fault;
use crate::header::Label;
use crate::pool::Pool;
use crate::types::BufferAction;

impl Pool {
    /// A Receive of the target is complete: a message of `len_octets` is in a buffer. `first` has
    /// its first octets, as many as there are up to [`crate::HEADER_OCTETS_MAX`]. As of
    /// [`Pool::handle_message`], messages are handed over in the order in which they have arrived.
    pub fn handle_target_message(&mut self, buffer: u32, first: &[u8], len_octets: usize) {
        self.book();
        let labelled = Label::decode(first).ok();
        let named = labelled.and_then(|(label, rest)| {
            let id = self.exchanges.named(label.token)?;
            Some((label, rest, id))
        });
        let exchange = named.and_then(|(label, rest, id)| {
            let exchange = self.exchanges.get_mut(id)?;
            let node = exchange.meeting.as_mut().map(|meeting| {
                meeting.unheard = 0;
                meeting.node
            })?;
            let taken = match self.faults.has(Fault::NumbersIgnored) {
                true => [Taken::Never, Taken::First][usize::from(exchange.grant.take())],
                false => exchange.grant.take_numbered(label.number),
            };
            Some((id, node, taken, rest))
        });
        let Some((id, node, taken, rest)) =
            exchange.filter(|(_, _, taken, _)| *taken != Taken::Never)
        else {
            self.stats.dropped += 1;
            return self.post_to_target(buffer);
        };
        let arrival = Arrival {
            exchange: id,
            node,
            buffer,
        };
        let label_octets = first.len() - rest.len();
        self.handle_arrival(&arrival, rest, len_octets.saturating_sub(label_octets));
        self.post_to_target(buffer);
        self.note_taken(id, taken);
        self.note_heard(id);
    }

    /// The buffer of a message has been emptied.
    fn note_taken(&mut self, id: ExchangeId, taken: Taken) {
        let Some(exchange) = self.exchanges.get_mut(id) else {
            return;
        };
        let is_named = exchange
            .meeting
            .is_some_and(|meeting| meeting.own.is_some());
        // One that has come again takes no buffer of the share.
        if taken == Taken::First && is_named {
            exchange.grant.note_posted();
        }
        self.list_own(id);
    }

    fn post_to_target(&mut self, buffer: u32) {
        let post = BufferAction::PostToTarget { buffer };
        self.messages.actions.push_back(post);
    }
}
