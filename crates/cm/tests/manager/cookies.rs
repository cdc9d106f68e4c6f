//! The side of a process that is asked for a cookie.

use urdma_cm::wire::{answer_cookie, Body, Cookie, Message, Req, ReqRoute, MAX_MESSAGE};
use urdma_cm::{ConnState, ConnectionManager, Event, Peer};
use urdma_types::PortSpace;

use crate::{ip, Pair};

/// The only REQ that one side has to send, and where.
fn only_req(manager: &mut ConnectionManager) -> (Peer, Vec<u8>) {
    let mut all = Pair::outgoing(manager);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn cookie_of(req: &[u8]) -> Cookie {
    ReqRoute::parse(req).unwrap().cookie
}

/// The COOKIE that answers a REQ.
fn cookie_for(req: &[u8], cookie: u32) -> Vec<u8> {
    let mut buf = [0; MAX_MESSAGE];
    let route = ReqRoute::parse(req).unwrap();
    let len = answer_cookie(&route, Cookie(cookie), &mut buf);
    buf[..len].to_vec()
}

#[test]
fn request_is_sent_again_at_once_with_the_cookie_and_is_otherwise_the_same() {
    let mut pair = Pair::new();
    let conn = pair.connect();
    let (to, first) = only_req(&mut pair.a);
    assert_eq!(cookie_of(&first), Cookie::NONE);
    let deadline = pair.a.next_deadline();
    pair.a
        .handle_datagram(pair.now, ip(2), &cookie_for(&first, 5));
    let (again_to, again) = only_req(&mut pair.a);
    assert_eq!((again_to, cookie_of(&again)), (to, Cookie(5)));
    let parsed = |octets| {
        let message = Message::parse(octets).unwrap();
        let Body::Req(req) = message.body else {
            panic!("{message:?}");
        };
        (
            message.head,
            Req {
                cookie: Cookie::NONE,
                ..req
            },
        )
    };
    assert_eq!(parsed(&first), parsed(&again));
    assert_eq!(pair.a.next_deadline(), deadline);
    // A copy of the COOKIE has no effect, nor has one of a REQ that was not sent.
    pair.a
        .handle_datagram(pair.now, ip(2), &cookie_for(&first, 5));
    let mut foreign = cookie_for(&first, 6);
    foreign[12] ^= 1;
    pair.a.handle_datagram(pair.now, ip(2), &foreign);
    assert!(Pair::outgoing(&mut pair.a).is_empty());
    assert_eq!(pair.a.counters().duplicates, 1);
    assert_eq!(pair.a.counters().stray, 1);
    pair.b.handle_datagram(pair.now, ip(1), &again);
    let request = pair.request();
    pair.accept(request, true).unwrap();
    pair.carry();
    assert_eq!(pair.a.state(conn), Some(ConnState::RepRcvd));
    // It came too late.
    pair.a
        .handle_datagram(pair.now, ip(2), &cookie_for(&first, 7));
    assert!(Pair::outgoing(&mut pair.a).is_empty());
}

#[test]
fn known_cookie_is_in_the_next_request_to_the_host_and_is_replaced() {
    let mut pair = Pair::new();
    pair.connect();
    let (_, first) = only_req(&mut pair.a);
    pair.a
        .handle_datagram(pair.now, ip(2), &cookie_for(&first, 5));
    only_req(&mut pair.a);
    pair.connect_in(PortSpace::UDP);
    let (_, second) = only_req(&mut pair.a);
    assert_eq!(cookie_of(&second), Cookie(5));
    pair.a
        .handle_datagram(pair.now, ip(2), &cookie_for(&second, 6));
    assert_eq!(cookie_of(&only_req(&mut pair.a).1), Cookie(6));
    pair.connect();
    assert_eq!(cookie_of(&only_req(&mut pair.a).1), Cookie(6));
}

/// A host whose cookies are never the right ones costs as many transmissions as a silent one, and
/// one more for each.
#[test]
fn one_cookie_is_answered_for_each_transmission() {
    let mut pair = Pair::new();
    pair.connect();
    let (mut sent, mut cookie) = (0, 0);
    while !matches!(pair.a.poll_event(), Some(Event::Unreachable { .. })) {
        let reqs = Pair::outgoing(&mut pair.a);
        sent += reqs.len();
        for (_, req) in &reqs {
            for _ in 0..3 {
                cookie += 1;
                pair.a
                    .handle_datagram(pair.now, ip(2), &cookie_for(req, cookie));
            }
        }
        if reqs.is_empty() {
            pair.now = pair.a.next_deadline().unwrap();
            pair.a.handle_timeout(pair.now);
        }
    }
    assert_eq!(sent, 14);
}
