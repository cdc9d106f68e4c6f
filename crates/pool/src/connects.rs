//! Connections that nodes ask this pool for, and what both ends are told when one is complete.
//!
//! Two pools may ask each other at the same time. Each could then take the other's request and give
//! its own up for it, or refuse it, and no connection would be left. So one of the two goes before
//! the other, by an order on which both agree: an end that goes before the one that asks refuses it
//! while it asks itself, and the one that was refused asks again later. The other end takes the
//! request, and its own is void.

use crate::config::Transport;
use crate::credit::{Credit, Grant, SHARE_MIN};
use crate::error::CallError;
use crate::exchange::{is_close, Control};
use crate::fault::Fault;
use crate::physical_qp::PhysicalQp;
use crate::pool::{has_places, Pool};
use crate::types::{ConnectionName, EndState, NodeId, PhysicalId, PhysicalState};

/// Connections to one node beyond `per_node` that it may ask for: its pool may have begun anew
/// while this end does not know yet that the connections of the pool before have ended.
const ASKED_MAX: usize = 8;

impl Pool {
    /// What the node is told of a queue pair when this end asks for a connection or accepts one.
    pub fn name_of(&self, id: PhysicalId) -> ConnectionName {
        ConnectionName {
            epoch: self.messages.config.map_or(0, |config| config.epoch),
            slot: id.slot,
            generation: id.generation,
        }
    }

    /// A node asks this pool to connect. The queue pair for it: the driver drops what it has for
    /// this id, an action to connect it included, creates another one, posts the Receives of a
    /// share and accepts. Then `handle_connected` and `handle_granted` follow, or
    /// `handle_abandoned`. None: the driver carries out the actions that there are and calls again,
    /// and if it is none again, refuses the request; the node asks again later.
    ///
    /// `goes_before` says whether this pool goes before the node, by an order of all pools. The
    /// driver hands over the messages that have arrived before it calls: they show that a
    /// connection was complete which the request replaces. A node that connects to itself needs two
    /// ids.
    ///
    /// # Errors
    /// If the pool exchanges no messages over connections, the node is unknown or has too many of
    /// them, or there is no place for a further one.
    pub fn handle_request(
        &mut self,
        node: NodeId,
        name: ConnectionName,
        goes_before: bool,
    ) -> Result<Option<PhysicalId>, CallError> {
        self.book();
        self.messages.config.ok_or(CallError::NoMessages)?;
        if matches!(self.config.transport, Transport::Initiators { .. }) {
            return Err(CallError::NoMessages);
        }
        let known = self.nodes.get(node.0).ok_or(CallError::Unknown)?;
        let slots = known.physicals.iter().copied();
        let named = slots.clone().find(|slot| self.is_named(*slot, name));
        if let Some(slot) = named {
            return Ok(self.replace(slot, name));
        }
        let of_state = |state| {
            let mut slots = slots.clone();
            slots.find(|slot| self.physicals[usize::from(*slot)].state == state)
        };
        let (asking, down) = (
            of_state(PhysicalState::Connecting),
            of_state(PhysicalState::Down),
        );
        let refuses = match goes_before {
            true => !self.faults.has(Fault::CrossingTaken),
            false => self.faults.has(Fault::CrossingRefused),
        };
        if asking.is_some() && refuses {
            return Ok(None);
        }
        let slot = match asking.or(down) {
            Some(slot) => slot,
            None => self.add_asked(node)?,
        };
        // A place that was taken from another node has a queue pair that is destroyed first.
        let is_there = self.physicals[usize::from(slot)].state != PhysicalState::Failing;
        Ok(is_there.then(|| self.begin_accepting(slot, name)))
    }

    /// Whether the other end of a queue pair was one of the same place as this one.
    fn is_named(&self, slot: u16, name: ConnectionName) -> bool {
        let shared = &self.physicals[usize::from(slot)];
        let has_other = matches!(
            shared.state,
            PhysicalState::Accepting | PhysicalState::Ready | PhysicalState::Failing
        );
        let other = self.other_of(slot).filter(|_| has_other);
        other.is_some_and(|other| (other.epoch, other.slot) == (name.epoch, name.slot))
    }

    /// How the node has named its end of a connection.
    fn other_of(&self, slot: u16) -> Option<ConnectionName> {
        self.exchanges
            .get(self.exchanges.id_of_connection(slot))?
            .other
    }

    /// The node asks again for a connection that it has had. A request that was late is refused.
    fn replace(&mut self, slot: u16, name: ConnectionName) -> Option<PhysicalId> {
        let before = self.other_of(slot).map_or(0, |other| other.generation);
        let newer = name.generation.wrapping_sub(before);
        let is_late = newer > u16::MAX / 2;
        match self.physicals[usize::from(slot)].state {
            PhysicalState::Accepting if !is_late => Some(self.begin_accepting(slot, name)),
            PhysicalState::Ready if !is_late && newer > 0 => {
                self.begin_failing(slot);
                None
            }
            _ => None,
        }
    }

    fn begin_accepting(&mut self, slot: u16, name: ConnectionName) -> PhysicalId {
        let now = self.idle.tick();
        let shared = &mut self.physicals[usize::from(slot)];
        if shared.members == 0 {
            shared.idle_since = now;
        }
        shared.state = PhysicalState::Accepting;
        self.exchanges.of_connection(slot).other = Some(name);
        shared.id()
    }

    /// One more place for a connection to a node, which may be that of one without members.
    fn add_asked(&mut self, node: NodeId) -> Result<u16, CallError> {
        let limit = CallError::Limit("connections that a node asks for");
        let most = self.config.per_node() + ASKED_MAX;
        let known = self.nodes.get_mut(node.0).ok_or(CallError::Unknown)?;
        if known.physicals.len() >= most {
            return Err(limit);
        }
        let slot = u16::try_from(self.physicals.len()).ok();
        let slot = slot.filter(|_| has_places(&self.config, self.physicals.len()));
        let Some(slot) = slot.filter(|_| self.idle.vacant.is_empty()) else {
            return self.take_idle_physical(node);
        };
        known.physicals.push(slot);
        self.physicals.push(PhysicalQp::new(slot, Some(node)));
        Ok(slot)
    }

    /// A node has given up the connection for which it had asked, before it was complete. If it is
    /// needed here, this end asks for it.
    pub fn handle_abandoned(&mut self, id: PhysicalId) {
        self.book();
        if self.physical_state(id) != Some(PhysicalState::Accepting) {
            return;
        }
        let shared = &mut self.physicals[usize::from(id.slot)];
        shared.state = PhysicalState::Down;
        match shared.members {
            0 => self.forget_connection(id.slot),
            _ => self.connect(id.slot),
        }
    }

    /// The other end of a connection has told the driver its share of buffers and its name; the
    /// driver has told it those of this pool. It follows `handle_connected`. A share that is too
    /// small is that of a node which exchanges no messages: virtual queue pairs to its services are
    /// refused.
    pub fn handle_granted(&mut self, id: PhysicalId, share: u16, name: ConnectionName) {
        self.book();
        let Some(config) = self.messages.config else {
            return;
        };
        if self.physical_state(id) != Some(PhysicalState::Ready) {
            return;
        }
        let exchange = self.exchanges.of_connection(id.slot);
        exchange.other = Some(name);
        if share < SHARE_MIN {
            for end in std::mem::take(&mut exchange.ends) {
                self.fail_end(end, EndState::Refused, false);
            }
            return;
        }
        (exchange.credit, exchange.grant) = (Credit::new(share), Grant::new(config.share));
        exchange.controls.retain(is_close);
        // What the other ends have to know, in case that they do not.
        for id in exchange.ends.clone() {
            let faults = self.faults;
            if faults.has(Fault::EndsNotToldAgain) {
                break;
            }
            let Some(end) = self.end_mut(id) else {
                continue;
            };
            if end.state == EndState::Opening {
                self.tell_other(id, Control::Open(id));
                continue;
            }
            end.is_announcing = true;
            end.forget_telling();
            let is_taking = end.begin_telling() && !faults.has(Fault::TakenNotToldAgain);
            if end.state == EndState::Accepted {
                self.tell_other(id, Control::Accept(id));
            }
            self.tell_other(id, Control::Receives(id));
            if is_taking {
                self.tell_other(id, Control::Taken(id));
            }
        }
        self.feed(self.exchanges.id_of_connection(id.slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{EndId, Header, Message, HEADER_OCTETS};
    use crate::{Access, Action, Config, Depths, MessageConfig, UserId};

    const MESSAGES: MessageConfig = MessageConfig {
        epoch: 1,
        buffer_octets: 4096,
        share: 8,
        backlog: 1,
        peers_max: 1,
    };

    fn pool() -> (Pool, NodeId) {
        let mut pool = Pool::new(&Config::default()).unwrap();
        let node = pool.add_node().unwrap();
        (pool, node)
    }

    fn offering() -> (Pool, NodeId) {
        let (mut pool, node) = pool();
        pool.offer_messages(&MESSAGES).unwrap();
        (pool, node)
    }

    fn name(slot: u16, generation: u16) -> ConnectionName {
        ConnectionName {
            epoch: 9,
            slot,
            generation,
        }
    }

    #[test]
    fn node_has_as_many_connections_as_it_may_ask_for() {
        let (mut pool, node) = pool();
        let refused = Err(CallError::NoMessages);
        assert_eq!(pool.handle_request(node, name(0, 0), false), refused);
        let (mut pool, node) = offering();
        for slot in 0..9 {
            let accepted = pool.handle_request(node, name(slot, 0), false);
            pool.handle_connected(accepted.unwrap().unwrap());
        }
        let limit = CallError::Limit("connections that a node asks for");
        assert_eq!(pool.handle_request(node, name(9, 0), false), Err(limit));
        let other = pool.add_node().unwrap();
        assert!(matches!(
            pool.handle_request(other, name(0, 0), false),
            Ok(Some(_))
        ));
    }

    #[test]
    fn end_that_goes_before_refuses_only_while_it_asks() {
        let (mut pool, node) = offering();
        pool.open(UserId(0), node, 1, Access::ALL).unwrap();
        let Some(Action::Connect(own, _)) = pool.poll_action() else {
            panic!("it does not connect");
        };
        assert_eq!(pool.handle_request(node, name(0, 0), true), Ok(None));
        pool.handle_unreachable(own);
        let taken = pool.handle_request(node, name(0, 0), true);
        assert_eq!(taken, Ok(Some(own)));
        assert_eq!(pool.physical_state(own), Some(PhysicalState::Accepting));
        // A user needs the connection, which the node gives up.
        pool.handle_abandoned(own);
        assert_eq!(pool.poll_action(), Some(Action::Connect(own, node)));
        // The other end does not go before.
        let taken = pool.handle_request(node, name(0, 0), false);
        assert_eq!(taken, Ok(Some(own)));
    }

    /// A message that was on its way when the connection of its node gave its place to another one.
    #[test]
    fn message_of_a_node_does_not_count_for_the_next_one_in_its_place() {
        let one = Config {
            cq_depth: Config::default().sq_depth,
            ..Config::default()
        };
        let mut pool = Pool::new(&one).unwrap();
        pool.offer_messages(&MESSAGES).unwrap();
        pool.listen(1).unwrap();
        let nodes = [pool.add_node().unwrap(), pool.add_node().unwrap()];
        let before = pool.handle_request(nodes[0], name(0, 0), true);
        let before = before.unwrap().unwrap();
        pool.handle_connected(before);
        pool.handle_granted(before, 8, name(0, 0));
        pool.open(UserId(0), nodes[1], 1, Access::ALL).unwrap();
        assert_eq!(pool.poll_action(), Some(Action::Destroy(before)));
        let open = Header {
            buffers: 8,
            message: Message::Open {
                service: 1,
                source: EndId(7),
                receives: 0,
            },
        };
        pool.handle_message(before, 0, &open.encode(), HEADER_OCTETS);
        pool.handle_destroyed(before);
        assert_eq!(pool.stats().dropped, 1);
        let depths = Depths {
            requests: 1,
            receives: 1,
        };
        let accepted = pool.accept(1, UserId(0), depths, Access::ALL);
        assert_eq!(accepted, Ok(None));
    }

    #[test]
    fn later_request_for_a_place_replaces_its_connection() {
        let (mut pool, node) = offering();
        let accepted = pool.handle_request(node, name(0, 5), true);
        let accepted = accepted.unwrap().unwrap();
        // The node has given the first one up, and asks again.
        let again = pool.handle_request(node, name(0, 5), true);
        assert_eq!(again, Ok(Some(accepted)));
        pool.handle_connected(accepted);
        pool.handle_granted(accepted, 8, name(0, 5));
        for late in [name(0, 4), name(0, 5)] {
            assert_eq!(pool.handle_request(node, late, true), Ok(None));
        }
        assert_eq!(pool.physical_state(accepted), Some(PhysicalState::Ready));
        assert_eq!(pool.handle_request(node, name(0, 6), true), Ok(None));
        assert_eq!(pool.poll_action(), Some(Action::Destroy(accepted)));
        pool.handle_destroyed(accepted);
        let replaced = pool.handle_request(node, name(0, 6), true);
        let replaced = replaced.unwrap().unwrap();
        assert_eq!((replaced.slot, replaced.generation), (accepted.slot, 1));
    }
}
