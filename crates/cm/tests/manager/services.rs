//! Listeners, and where processes find them.

use urdma_cm::wire::{reject_no_listener, ReqRoute, MAX_MESSAGE};
use urdma_cm::{Config, ConnState, ConnectionManager, Error, Event, Peer};
use urdma_types::{PortSpace, SlotId};

use crate::{at, ip, is_disconnected, slot, Pair, S};

#[test]
fn second_listener_at_the_same_place_is_refused() {
    let mut pair = Pair::new();
    let addr = "0.0.0.0:7".parse().unwrap();
    assert_eq!(
        pair.b.listen(addr, PortSpace::TCP, 1),
        Err(Error::AddrInUse)
    );
    assert!(pair.b.listen(addr, PortSpace::IPOIB, 1).is_ok());
}

// R9-15
//# While a slot has an established connection to an address and port, it SHOULD send a REQ to
//# these, in any port space, again when slot 0 refuses it with reason 8, for a few seconds.
#[test]
fn service_between_two_listeners_is_asked_again() {
    for space in [PortSpace::TCP, PortSpace::UDP] {
        let mut pair = Pair::new();
        pair.established();
        pair.b = ConnectionManager::new(Config::new(slot(2), 33));
        let second = pair.connect_in(space);
        pair.carry();
        assert!(pair.a.poll_event().is_none());
        pair.b
            .listen("0.0.0.0:7".parse().unwrap(), space, 1)
            .unwrap();
        pair.now = pair.a.next_deadline().unwrap();
        assert!(pair.now < at(S / 100));
        pair.a.handle_timeout(pair.now);
        pair.carry();
        pair.request();
        pair.a.destroy(pair.now, second);
    }
}

// R9-15
//# While a slot has an established connection to an address and port, it SHOULD send a REQ to
//# these, in any port space, again when slot 0 refuses it with reason 8, for a few seconds.
#[test]
fn service_whose_last_connection_has_ended_is_not_asked_again() {
    let mut pair = Pair::new();
    let connections = [pair.established(), pair.established()];
    for (open, (a, b)) in [(1, connections[0]), (0, connections[1])] {
        pair.a.disconnect(pair.now, a).unwrap();
        pair.carry();
        assert!(is_disconnected(pair.a.poll_event()) && is_disconnected(pair.b.poll_event()));
        assert_eq!(pair.b.state(b), Some(ConnState::TimeWait));
        let listening = std::mem::replace(
            &mut pair.b,
            ConnectionManager::new(Config::new(slot(2), 33)),
        );
        let another = pair.connect();
        pair.carry();
        let event = pair.a.poll_event();
        assert_eq!(event.is_none(), open == 1, "{open} open: {event:?}");
        pair.a.destroy(pair.now, another);
        pair.b = listening;
    }
}

#[test]
fn repeated_req_that_finds_no_listener_does_not_undo_the_rep() {
    for is_established in [false, true] {
        let mut pair = Pair::new();
        let a = pair.connect();
        let (_, req) = Pair::outgoing(&mut pair.a).remove(0);
        pair.b.handle_datagram(pair.now, ip(1), &req);
        let b = pair.request();
        pair.accept(b, true).unwrap();
        pair.carry();
        assert!(matches!(pair.a.poll_event(), Some(Event::Response { .. })));
        if is_established {
            pair.a.establish(pair.now, a, true).unwrap();
            pair.carry();
        }
        let mut rej = [0; MAX_MESSAGE];
        let len = reject_no_listener(&ReqRoute::parse(&req).unwrap(), &mut rej);
        pair.a.handle_datagram(pair.now, ip(2), &rej[..len]);
        assert!(pair.a.poll_event().is_none());
        if !is_established {
            pair.a.establish(pair.now, a, true).unwrap();
            pair.carry();
        }
        let event = pair.b.poll_event();
        assert!(matches!(event, Some(Event::Established { .. })));
        assert_eq!(pair.a.state(a), Some(ConnState::Established));
    }
}

#[test]
fn service_that_stays_away_is_rejected_within_four_seconds() {
    let mut pair = Pair::new();
    pair.established();
    pair.b = ConnectionManager::new(Config::new(slot(2), 33));
    let second = pair.connect();
    loop {
        pair.carry();
        if let Some(event) = pair.a.poll_event() {
            assert!(matches!(event, Event::Rejected { conn, .. } if conn == second));
            break;
        }
        pair.now = pair.a.next_deadline().unwrap();
        pair.a.handle_timeout(pair.now);
    }
    assert!(pair.now < at(4 * S), "{:?}", pair.now);
}

/// The slots to which REQs are sent.
fn slots_of(sent: &[(Peer, Vec<u8>)]) -> Vec<SlotId> {
    let requests = sent
        .iter()
        .filter(|(_, octets)| ReqRoute::parse(octets).is_some());
    requests.map(|(to, _)| to.slot).collect()
}

#[test]
fn request_to_a_listener_that_has_answered_goes_to_its_slot() {
    let mut pair = Pair::new();
    pair.connect();
    let sent = Pair::outgoing(&mut pair.a);
    assert_eq!(slots_of(&sent), [SlotId::DAEMON]);
    let mut pair = Pair::new();
    pair.established();
    pair.connect();
    let sent = Pair::outgoing(&mut pair.a);
    assert_eq!(slots_of(&sent), [slot(2)]);
    // What was sent is lost.
    pair.now = pair.a.next_deadline().unwrap();
    pair.a.handle_timeout(pair.now);
    assert_eq!(
        slots_of(&Pair::outgoing(&mut pair.a)),
        [SlotId::DAEMON],
        "repeated"
    );
    // Another port space is another service.
    pair.connect_in(PortSpace::UDP);
    assert_eq!(
        slots_of(&Pair::outgoing(&mut pair.a)),
        [SlotId::DAEMON],
        "UDP"
    );
    pair.a.peer_gone(
        pair.now,
        Peer {
            ip: ip(2),
            slot: slot(2),
        },
    );
    pair.connect();
    assert_eq!(
        slots_of(&Pair::outgoing(&mut pair.a)),
        [SlotId::DAEMON],
        "gone"
    );
}

#[test]
fn request_to_a_slot_without_the_listener_is_sent_to_slot_0() {
    let mut pair = Pair::new();
    let (a, _) = pair.established();
    pair.a.disconnect(pair.now, a).unwrap();
    pair.carry();
    assert!(is_disconnected(pair.a.poll_event()));
    // The slot's next process does not listen.
    pair.b = ConnectionManager::new(Config::new(slot(2), 23));
    let second = pair.connect();
    let sent = Pair::outgoing(&mut pair.a);
    assert_eq!(slots_of(&sent), [slot(2)]);
    pair.b.handle_datagram(pair.now, ip(1), &sent[0].1);
    for (_, octets) in Pair::outgoing(&mut pair.b) {
        pair.a.handle_datagram(pair.now, ip(2), &octets);
    }
    let sent = Pair::outgoing(&mut pair.a);
    assert_eq!(slots_of(&sent), [SlotId::DAEMON]);
    assert_eq!(pair.a.state(second), Some(ConnState::ReqSent));
    // Slot 0 has no listener either.
    let route = ReqRoute::parse(&sent[0].1).unwrap();
    let mut refusal = [0; MAX_MESSAGE];
    let len = reject_no_listener(&route, &mut refusal);
    pair.a.handle_datagram(pair.now, ip(2), &refusal[..len]);
    assert!(matches!(pair.a.poll_event(), Some(Event::Rejected { .. })));
}

#[test]
fn requests_to_a_listener_that_has_not_answered_are_few_until_it_does() {
    let mut pair = Pair::new();
    for _ in 0..100 {
        pair.connect();
    }
    let first = Pair::outgoing(&mut pair.a);
    assert_eq!(slots_of(&first), [SlotId::DAEMON; 32]);
    pair.b.handle_datagram(pair.now, ip(1), &first[0].1);
    let request = pair.request();
    pair.accept(request, true).unwrap();
    for (_, octets) in Pair::outgoing(&mut pair.b) {
        pair.a.handle_datagram(pair.now, ip(2), &octets);
    }
    assert_eq!(slots_of(&Pair::outgoing(&mut pair.a)), [slot(2); 68]);
}

#[test]
fn requests_that_were_held_are_sent_after_a_retry_time_without_an_answer() {
    let mut pair = Pair::new();
    for _ in 0..40 {
        pair.connect();
    }
    Pair::outgoing(&mut pair.a);
    pair.now = pair.a.next_deadline().unwrap();
    pair.a.handle_timeout(pair.now);
    assert_eq!(slots_of(&Pair::outgoing(&mut pair.a)).len(), 40);
}
