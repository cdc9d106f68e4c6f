//! The places of a listener for requests that its application has not received.

use std::time::Duration;

use urdma_cm::wire::{Body, CommId, Cookie, Head, Message, Nonce, QpInfo, Req, MAX_MESSAGE};
use urdma_cm::{Config, ConnId, ConnectionManager, Event, RejReason};
use urdma_types::{PortSpace, Psn, Time};

use crate::{at, ip, slot, Pair, QPN_A, S};

const BACKLOG: u32 = 8;
const TARGET: u8 = 2;

struct Listener {
    now: Time,
    manager: ConnectionManager,
}

impl Listener {
    fn new() -> Self {
        let mut manager = ConnectionManager::new(Config::new(slot(2), 22));
        let any = "0.0.0.0:7".parse().unwrap();
        manager.listen(any, PortSpace::TCP, BACKLOG).unwrap();
        Self {
            now: Time::ZERO,
            manager,
        }
    }

    /// A request of a process of host `from`; returns whether it waits for the application.
    fn ask(&mut self, from: u8, process: u8, nonce: u64) -> bool {
        let before = self.manager.counters().backlog_full;
        let req = Req {
            qp: QpInfo {
                qpn: QPN_A,
                psn: Psn::new(1),
                ..QpInfo::default()
            },
            retry_count: 7,
            ack_timeout: 14,
            path_mtu: 3,
            port_space: PortSpace::TCP,
            src: (ip(from), 1000).into(),
            dst: (ip(TARGET), 7).into(),
            cookie: Cookie::NONE,
        };
        self.hear(from, process, nonce, CommId::NONE, Body::Req(req));
        self.manager.counters().backlog_full == before
    }

    fn hear(&mut self, from: u8, process: u8, nonce: u64, to: CommId, body: Body) {
        let message = Message {
            head: Head {
                local_id: CommId(9),
                remote_id: to,
                nonce: Nonce(nonce),
                slot: slot(process),
            },
            body,
            private_data: &[],
        };
        let mut octets = [0; MAX_MESSAGE];
        let length = message.write(&mut octets);
        self.manager
            .handle_datagram(self.now, ip(from), &octets[..length]);
    }

    /// As many requests of a host as are taken.
    fn fill(&mut self, from: u8, process: u8) -> usize {
        let nonces = u64::from(process) << 32..;
        nonces
            .take_while(|&nonce| self.ask(from, process, nonce))
            .count()
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.plus(span);
        self.manager.handle_timeout(self.now);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.manager.poll_event()).collect()
    }
}

fn requests(events: &[Event]) -> Vec<ConnId> {
    let request = |event: &Event| match event {
        Event::ConnectRequest(request) => Some(request.conn),
        _ => None,
    };
    events.iter().filter_map(request).collect()
}

fn withdrawn(events: &[Event]) -> usize {
    let is = |event: &&Event| matches!(event, Event::Withdrawn { .. });
    events.iter().filter(is).count()
}

#[test]
fn host_that_fills_its_share_leaves_places_for_others() {
    let mut listener = Listener::new();
    let taken: Vec<usize> = (10..14).map(|host| listener.fill(host, 1)).collect();
    assert_eq!(taken, [8, 4, 2, 1]);
    // All slots of a host share its part.
    assert_eq!(listener.fill(10, 2), 0);
    let requests = requests(&listener.events());
    for conn in &requests[..8] {
        listener.manager.take_request(*conn);
    }
    assert_eq!(listener.fill(10, 3), 5);
}

#[test]
fn processes_that_connect_within_the_host_have_shares_of_their_own() {
    let mut listener = Listener::new();
    let taken: Vec<usize> = (3..6).map(|slot| listener.fill(TARGET, slot)).collect();
    assert_eq!(taken, [8, 4, 2]);
    assert_eq!(listener.fill(10, 1), 1);
}

#[test]
fn request_that_is_not_repeated_leaves_its_place() {
    let mut listener = Listener::new();
    assert_eq!(listener.fill(10, 1), 8);
    listener.pass(6 * S);
    // One that is repeated stays.
    assert!(listener.ask(10, 1, 1 << 32));
    listener.pass(5 * S);
    let events = listener.events();
    assert_eq!((requests(&events).len(), withdrawn(&events)), (8, 7));
    assert_eq!(listener.manager.connections(), 1);
    assert_eq!(listener.fill(10, 2), 7);
}

#[test]
fn request_that_is_repeated_for_ever_leaves_its_place_after_the_patience_of_its_sender() {
    let mut listener = Listener::new();
    while listener.now < at(59 * S) {
        assert!(listener.ask(10, 1, 1));
        listener.pass(S);
    }
    assert_eq!(withdrawn(&listener.events()), 0);
    listener.pass(S);
    assert_eq!(withdrawn(&listener.events()), 1);
    assert_eq!(listener.manager.connections(), 0);
}

/// A sender that withdraws what it has sent cannot make more events wait than there are places.
#[test]
fn withdrawn_request_keeps_its_place_until_its_event_is_received() {
    let mut listener = Listener::new();
    for nonce in 0..1000 {
        listener.ask(10, 1, nonce);
        if requests(&listener.events()).is_empty() {
            continue;
        }
        listener.ask(10, 1, nonce);
        let mut octets = [0; MAX_MESSAGE];
        let sent = listener.manager.poll_transmit(&mut octets).unwrap();
        let mra = Message::parse(&octets[..sent.len]).unwrap();
        let reason = Body::Rej(RejReason::TIMEOUT);
        listener.hear(10, 1, nonce, mra.head.local_id, reason);
        assert!(matches!(
            listener.manager.poll_event(),
            Some(Event::Rejected { .. })
        ));
    }
    assert_eq!(listener.manager.connections(), 8);
    listener.pass(11 * S);
    assert_eq!(listener.manager.connections(), 0);
    assert_eq!(listener.fill(10, 1), 8);
}

#[test]
fn received_request_waits_for_ever() {
    let mut pair = Pair::new();
    pair.connect();
    pair.carry();
    let request = pair.request();
    pair.b.take_request(request);
    assert_eq!(pair.b.next_deadline(), None);
    pair.now = at(1000 * S);
    pair.b.handle_timeout(pair.now);
    assert!(pair.b.poll_event().is_none());
    pair.accept(request, true).unwrap();
}
