//! Connections that have ended and were destroyed.

use urdma_cm::wire::{Body, Head, Kind};

use super::*;

fn kind_of(octets: &[u8]) -> Kind {
    Message::parse(octets).unwrap().body.kind()
}

fn bytes_of(message: &Message<'_>) -> Vec<u8> {
    let mut octets = [0; MAX_MESSAGE];
    let len = message.write(&mut octets);
    octets[..len].to_vec()
}

/// Both ends of a connection have ended and destroyed it: the pair, the REQ and the DREQ of its
/// active end, and the REP.
fn over() -> (Pair, [Vec<u8>; 3]) {
    let mut pair = Pair::new();
    let a = pair.connect();
    let req = Pair::outgoing(&mut pair.a).remove(0).1;
    pair.b.handle_datagram(pair.now, ip(1), &req);
    let b = pair.request();
    pair.accept(b, true).unwrap();
    let rep = Pair::outgoing(&mut pair.b).remove(0).1;
    pair.a.handle_datagram(pair.now, ip(2), &rep);
    pair.a.poll_event().unwrap();
    pair.a.establish(pair.now, a, true).unwrap();
    pair.carry();
    pair.a.disconnect(pair.now, a).unwrap();
    let dreq = Pair::outgoing(&mut pair.a).remove(0).1;
    // One end destroys it before it has ended, the other one afterwards.
    pair.a.destroy(pair.now, a);
    pair.b.handle_datagram(pair.now, ip(1), &dreq);
    pair.carry();
    while pair.b.poll_event().is_some() {}
    pair.b.destroy(pair.now, b);
    assert_eq!(pair.a.state(a), Some(ConnState::TimeWait));
    assert_eq!(pair.b.state(b), Some(ConnState::TimeWait));
    (pair, [req, dreq, rep])
}

#[test]
fn late_messages_are_answered_without_the_limit_for_strangers() {
    let (mut pair, [req, dreq, rep]) = over();
    for _ in 0..1000 {
        pair.b.handle_datagram(pair.now, ip(1), &dreq);
        let answers = Pair::outgoing(&mut pair.b);
        assert_eq!(answers.len(), 1);
        assert_eq!(
            answers[0].0,
            Peer {
                ip: ip(1),
                slot: slot(1)
            }
        );
        let drep = Message::parse(&answers[0].1).unwrap();
        let asked = Message::parse(&dreq).unwrap();
        assert_eq!(drep.body, Body::Drep);
        let Head {
            local_id,
            remote_id,
            nonce,
            ..
        } = asked.head;
        assert_eq!(
            (drep.head.local_id, drep.head.remote_id),
            (remote_id, local_id)
        );
        assert_eq!((drep.head.nonce, drep.head.slot), (nonce, slot(2)));
        // The active end drops it, as a duplicate.
        pair.a.handle_datagram(pair.now, ip(2), &answers[0].1);

        pair.a.handle_datagram(pair.now, ip(2), &rep);
        let answers = Pair::outgoing(&mut pair.a);
        assert_eq!(answers.len(), 1);
        assert_eq!(kind_of(&answers[0].1), Kind::Rej);
    }
    // The repeated REQ makes no second connection.
    pair.b.handle_datagram(pair.now, ip(1), &req);
    assert!(Pair::outgoing(&mut pair.b).is_empty() && pair.b.poll_event().is_none());
    let [a, b] = [pair.a.counters(), pair.b.counters()];
    assert_eq!((a.stray, b.stray, a.unanswered, b.unanswered), (0, 0, 0, 0));
    assert_eq!((a.duplicates, b.duplicates), (1000, 1001));
}

#[test]
fn late_message_of_another_nonce_or_queue_pair_has_no_effect() {
    let (mut pair, [_, dreq, _]) = over();
    let mut message = Message::parse(&dreq).unwrap();
    message.body = Body::Dreq(QPN_A);
    pair.b.handle_datagram(pair.now, ip(1), &bytes_of(&message));
    assert!(Pair::outgoing(&mut pair.b).is_empty());
    assert_eq!(pair.b.counters().stray, 1);

    let mut message = Message::parse(&dreq).unwrap();
    message.head.nonce.0 ^= 1;
    pair.b.handle_datagram(pair.now, ip(1), &bytes_of(&message));
    assert_eq!(pair.b.counters().stray, 2);
    // It is a stranger's, to whom a DREP is due.
    assert_eq!(kind_of(&Pair::outgoing(&mut pair.b)[0].1), Kind::Drep);
}

#[test]
fn ended_connections_are_forgotten_in_time_and_others_stay() {
    let (mut pair, _) = over();
    pair.now = pair.now.plus(S / 4);
    assert_eq!((pair.a.connections(), pair.b.connections()), (1, 1));
    let (a, _) = pair.established();
    assert_eq!(pair.a.state(a), Some(ConnState::Established));
    pair.now = pair.now.plus(S);
    pair.a.handle_timeout(pair.now);
    pair.b.handle_timeout(pair.now);
    assert_eq!((pair.a.connections(), pair.b.connections()), (1, 1));
    assert_eq!(pair.a.state(a), Some(ConnState::Established));
}

#[test]
fn time_wait_ends_and_everything_is_forgotten() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.disconnect(pair.now, a).unwrap();
    pair.carry();
    assert!(is_disconnected(pair.a.poll_event()));
    pair.b.destroy(pair.now, b);
    assert_eq!(pair.b.connections(), 1);
    pair.now = pair.now.plus(S);
    pair.a.handle_timeout(pair.now);
    pair.b.handle_timeout(pair.now);
    assert!(matches!(pair.a.poll_event(), Some(Event::TimeWaitExit { conn }) if conn == a));
    assert_eq!((pair.a.connections(), pair.b.connections()), (1, 0));
    pair.a.destroy(pair.now, a);
    assert_eq!(pair.a.connections(), 0);
}
