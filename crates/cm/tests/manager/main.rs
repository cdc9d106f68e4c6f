//! The connection manager in single situations: two managers, and the test delivers each datagram.
//! `services` has listeners and where they are found, `cookies` requests that are asked for one,
//! `backlog` those that wait for the application, `over` connections that have ended.
#![allow(clippy::unwrap_used)]

mod backlog;
mod cookies;
mod over;
mod services;

use std::net::IpAddr;
use std::time::Duration;

use urdma_cm::wire::{Body, Message, MAX_MESSAGE};
use urdma_cm::{
    AcceptParams, Config, ConnId, ConnState, ConnectParams, ConnectionManager, Error, Event,
    LocalQp, Peer, PrivateData, RejReason,
};
use urdma_types::{PortSpace, RawQpn, SlotId, Time};

const S: Duration = Duration::from_secs(1);

/// The time `span` after the start of the test.
fn at(span: Duration) -> Time {
    Time::ZERO.plus(span)
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn slot(number: u8) -> SlotId {
    SlotId::new(number).unwrap()
}

fn qp(qpn: RawQpn) -> LocalQp {
    LocalQp {
        qpn,
        responder_resources: 3,
        initiator_depth: 5,
        ..LocalQp::default()
    }
}

/// Host 1 connects to a listener on host 2.
struct Pair {
    now: Time,
    a: ConnectionManager,
    b: ConnectionManager,
}

const QPN_A: RawQpn = RawQpn::new(0x01_0001).unwrap();
const QPN_B: RawQpn = RawQpn::new(0x02_0001).unwrap();

impl Pair {
    fn new() -> Self {
        let mut b = ConnectionManager::new(Config::new(slot(2), 22));
        for space in [PortSpace::TCP, PortSpace::UDP] {
            b.listen("0.0.0.0:7".parse().unwrap(), space, 2).unwrap();
        }
        Self {
            now: Time::ZERO,
            a: ConnectionManager::new(Config::new(slot(1), 11)),
            b,
        }
    }

    fn connect(&mut self) -> ConnId {
        self.connect_in(PortSpace::TCP)
    }

    fn connect_in(&mut self, port_space: PortSpace) -> ConnId {
        let params = ConnectParams {
            src: (ip(1), 1000).into(),
            dst: (ip(2), 7).into(),
            port_space,
            qp: qp(QPN_A),
            retry_count: 7,
            ack_timeout: 14,
            path_mtu: 3,
            private_data: PrivateData::EMPTY,
        };
        self.a.connect(self.now, &params)
    }

    /// The datagrams that one side has to send.
    fn outgoing(manager: &mut ConnectionManager) -> Vec<(Peer, Vec<u8>)> {
        let mut buf = [0; MAX_MESSAGE];
        let mut all = Vec::new();
        while let Some(out) = manager.poll_transmit(&mut buf) {
            all.push((out.to, buf[..out.len].to_vec()));
        }
        all
    }

    /// Delivers datagrams in both directions until none are left.
    fn carry(&mut self) {
        loop {
            let from_a = Self::outgoing(&mut self.a);
            let from_b = Self::outgoing(&mut self.b);
            if from_a.is_empty() && from_b.is_empty() {
                return;
            }
            for (_, octets) in from_a {
                self.b.handle_datagram(self.now, ip(1), &octets);
            }
            for (_, octets) in from_b {
                self.a.handle_datagram(self.now, ip(2), &octets);
            }
        }
    }

    fn request(&mut self) -> ConnId {
        match self.b.poll_event() {
            Some(Event::ConnectRequest(request)) => request.conn,
            other => panic!("{other:?}"),
        }
    }

    fn accept(&mut self, conn: ConnId, qp_ready: bool) -> Result<(), Error> {
        let params = AcceptParams {
            qp: qp(QPN_B),
            private_data: PrivateData::EMPTY,
            qp_ready,
        };
        self.b.accept(self.now, conn, &params)
    }

    /// Connects up to the RTU, which is sent but not delivered.
    fn up_to_rtu(&mut self) -> (ConnId, ConnId) {
        let a = self.connect();
        self.carry();
        let b = self.request();
        self.accept(b, true).unwrap();
        self.carry();
        assert!(matches!(self.a.poll_event(), Some(Event::Response { .. })));
        self.a.establish(self.now, a, true).unwrap();
        (a, b)
    }

    fn established(&mut self) -> (ConnId, ConnId) {
        let (a, b) = self.up_to_rtu();
        self.carry();
        assert!(matches!(
            self.b.poll_event(),
            Some(Event::Established { .. })
        ));
        (a, b)
    }
}

fn is_disconnected(event: Option<Event>) -> bool {
    matches!(
        event,
        Some(Event::Disconnected {
            timed_out: false,
            ..
        })
    )
}

#[test]
fn both_ends_learn_each_others_qp() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    let (at_a, at_b) = (pair.a.remote(a).unwrap(), pair.b.remote(b).unwrap());
    assert_eq!((at_a.qp.qpn, at_b.qp.qpn), (QPN_B, QPN_A));
    assert_eq!((at_a.qp.psn, at_b.qp.psn), (at_b.local_psn, at_a.local_psn));
    assert_eq!((at_a.peer.ip, at_a.peer.slot), (ip(2), slot(2)));
    assert_eq!((at_b.peer.ip, at_b.peer.slot), (ip(1), slot(1)));
    assert_eq!((at_a.path_mtu, at_b.retry_count), (3, 7));
}

#[test]
fn silent_peer_is_unreachable_within_eight_seconds() {
    let mut pair = Pair::new();
    let conn = pair.connect();
    let mut sent = 0;
    loop {
        sent += Pair::outgoing(&mut pair.a).len();
        if let Some(event) = pair.a.poll_event() {
            assert!(matches!(event, Event::Unreachable { conn: c } if c == conn));
            break;
        }
        pair.now = pair.a.next_deadline().unwrap();
        pair.a.handle_timeout(pair.now);
    }
    assert!(
        pair.now > at(4 * S) && pair.now < at(8 * S),
        "{:?}",
        pair.now
    );
    assert_eq!(sent, 7);
    pair.a.destroy(pair.now, conn);
}

#[test]
fn no_listener_is_rejected_at_once() {
    let mut pair = Pair::new();
    pair.b = ConnectionManager::new(Config::new(slot(2), 22));
    pair.connect();
    pair.carry();
    match pair.a.poll_event() {
        Some(Event::Rejected { reason, .. }) => assert_eq!(reason, RejReason::INVALID_SERVICE_ID),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rep_waits_until_the_qp_is_ready() {
    let mut pair = Pair::new();
    pair.connect();
    pair.carry();
    let b = pair.request();
    pair.accept(b, false).unwrap();
    assert!(Pair::outgoing(&mut pair.b).is_empty());
    assert_eq!(pair.b.state(b), Some(ConnState::RepGated));
    pair.b.qp_ready(pair.now, RawQpn::new(0x02_0077).unwrap());
    assert!(Pair::outgoing(&mut pair.b).is_empty());
    pair.b.qp_ready(pair.now, QPN_B);
    assert_eq!(Pair::outgoing(&mut pair.b).len(), 1);
}

#[test]
fn rtu_waits_until_the_qp_is_ready() {
    let mut pair = Pair::new();
    let a = pair.connect();
    pair.carry();
    let b = pair.request();
    pair.accept(b, true).unwrap();
    pair.carry();
    pair.a.establish(pair.now, a, false).unwrap();
    assert!(Pair::outgoing(&mut pair.a).is_empty());
    pair.a.qp_ready(pair.now, QPN_A);
    pair.carry();
    assert!(matches!(
        pair.b.poll_event(),
        Some(Event::Established { .. })
    ));
}

#[test]
fn slow_application_is_waited_for() {
    let mut pair = Pair::new();
    let a = pair.connect();
    pair.carry();
    let b = pair.request();
    while pair.now < at(30 * S) {
        pair.now = pair.a.next_deadline().unwrap();
        pair.a.handle_timeout(pair.now);
        pair.carry();
        assert!(pair.a.poll_event().is_none());
    }
    pair.accept(b, true).unwrap();
    pair.carry();
    assert!(matches!(pair.a.poll_event(), Some(Event::Response { conn, .. }) if conn == a));
}

#[test]
fn lost_rtu_is_healed_by_data() {
    let mut pair = Pair::new();
    let (_, b) = pair.up_to_rtu();
    assert_eq!(Pair::outgoing(&mut pair.a).len(), 1);
    pair.b.qp_data(QPN_B);
    assert!(matches!(pair.b.poll_event(), Some(Event::Established { conn }) if conn == b));
    pair.b.qp_data(QPN_B);
    assert!(pair.b.poll_event().is_none());
}

#[test]
fn lost_rtu_is_healed_by_the_repeated_rep() {
    let mut pair = Pair::new();
    pair.up_to_rtu();
    assert_eq!(Pair::outgoing(&mut pair.a).len(), 1);
    pair.now = pair.b.next_deadline().unwrap();
    pair.b.handle_timeout(pair.now);
    pair.carry();
    assert!(matches!(
        pair.b.poll_event(),
        Some(Event::Established { .. })
    ));
}

#[test]
fn lost_rtu_and_disconnect_give_established_then_disconnected() {
    let mut pair = Pair::new();
    let (a, _) = pair.up_to_rtu();
    Pair::outgoing(&mut pair.a);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.carry();
    assert!(matches!(
        pair.b.poll_event(),
        Some(Event::Established { .. })
    ));
    assert!(is_disconnected(pair.b.poll_event()));
    assert!(is_disconnected(pair.a.poll_event()));
}

#[test]
fn disconnect_by_one_side_is_heard_by_both() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.b.disconnect(pair.now, b).unwrap();
    pair.carry();
    assert!(is_disconnected(pair.a.poll_event()) && is_disconnected(pair.b.poll_event()));
    assert_eq!(pair.a.disconnect(pair.now, a), Ok(()));
    pair.carry();
    assert!(pair.a.poll_event().is_none());
}

#[test]
fn disconnect_by_both_at_once_is_heard_once_by_each() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.disconnect(pair.now, a).unwrap();
    pair.b.disconnect(pair.now, b).unwrap();
    pair.carry();
    assert!(is_disconnected(pair.a.poll_event()) && is_disconnected(pair.b.poll_event()));
    assert!(pair.a.poll_event().is_none() && pair.b.poll_event().is_none());
}

#[test]
fn disconnect_unanswered_ends_within_two_seconds() {
    let mut pair = Pair::new();
    let (a, _) = pair.established();
    pair.a.disconnect(pair.now, a).unwrap();
    let event = loop {
        Pair::outgoing(&mut pair.a);
        if let Some(event) = pair.a.poll_event() {
            break event;
        }
        pair.now = pair.a.next_deadline().unwrap();
        pair.a.handle_timeout(pair.now);
    };
    assert!(matches!(
        event,
        Event::Disconnected {
            timed_out: true,
            ..
        }
    ));
    assert!(pair.now < at(2 * S));
}

#[test]
fn peer_that_dies_disconnects() {
    let mut pair = Pair::new();
    let (_, b) = pair.established();
    pair.b.peer_gone(
        pair.now,
        Peer {
            ip: ip(1),
            slot: slot(9),
        },
    );
    assert!(pair.b.poll_event().is_none());
    pair.b.peer_gone(
        pair.now,
        Peer {
            ip: ip(1),
            slot: slot(1),
        },
    );
    assert!(is_disconnected(pair.b.poll_event()));
    assert_eq!(pair.b.state(b), Some(ConnState::TimeWait));
    pair.a.qp_gone(pair.now, QPN_A);
    assert!(is_disconnected(pair.a.poll_event()));
    pair.a.qp_gone(pair.now, QPN_A);
    assert!(pair.a.poll_event().is_none());
}

#[test]
fn repeated_req_is_answered_again_and_reported_once() {
    let mut pair = Pair::new();
    pair.connect();
    let (_, req) = Pair::outgoing(&mut pair.a).remove(0);
    for _ in 0..3 {
        pair.b.handle_datagram(pair.now, ip(1), &req);
    }
    let b = pair.request();
    assert!(pair.b.poll_event().is_none());
    assert_eq!(Pair::outgoing(&mut pair.b).len(), 2);
    let reason = RejReason::CONSUMER_DEFINED;
    pair.b
        .reject(pair.now, b, reason, &PrivateData::new(b"why").unwrap())
        .unwrap();
    pair.b.handle_datagram(pair.now, ip(1), &req);
    let answers = Pair::outgoing(&mut pair.b);
    assert_eq!(answers.len(), 2);
    for (to, octets) in answers {
        assert_eq!(
            to,
            Peer {
                ip: ip(1),
                slot: slot(1)
            }
        );
        let message = Message::parse(&octets).unwrap();
        assert_eq!(
            (message.body, message.private_data),
            (Body::Rej(reason), &b"why"[..])
        );
    }
}

#[test]
fn full_backlog_drops_and_recovers() {
    let mut pair = Pair::new();
    let conns: Vec<ConnId> = (0..3).map(|_| pair.connect()).collect();
    pair.carry();
    let first = pair.request();
    pair.request();
    assert!(pair.b.poll_event().is_none());
    assert_eq!(pair.b.counters().backlog_full, 1);
    pair.b.take_request(first);
    pair.now = pair.a.next_deadline().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.carry();
    pair.request();
    assert_eq!(conns.len(), 3);
}

#[test]
fn client_that_gave_up_makes_accept_fail_late() {
    let mut pair = Pair::new();
    let a = pair.connect();
    pair.carry();
    let b = pair.request();
    pair.a.destroy(pair.now, a);
    pair.accept(b, true).unwrap();
    pair.carry();
    assert!(matches!(pair.b.poll_event(), Some(Event::Rejected { .. })));
    pair.b.destroy(pair.now, b);
}

#[test]
fn datagram_service_answers_once_and_no_connection_follows() {
    let mut pair = Pair::new();
    let a = pair.connect_in(PortSpace::UDP);
    pair.carry();
    let b = pair.request();
    // The answer does not wait for the queue pair.
    pair.accept(b, false).unwrap();
    pair.carry();
    match pair.a.poll_event() {
        Some(Event::Response { qp, .. }) => assert_eq!(qp.qpn, QPN_B),
        other => panic!("{other:?}"),
    }
    assert_eq!(pair.a.state(a), Some(ConnState::Closed));
    pair.a.destroy(pair.now, a);
    pair.b.destroy(pair.now, b);
    pair.carry();
    assert!(pair.a.poll_event().is_none() && pair.b.poll_event().is_none());
    while let Some(at) = pair.b.next_deadline() {
        pair.b.handle_timeout(at);
    }
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
    assert!(pair.b.poll_event().is_none());
}

#[test]
fn datagram_service_whose_answer_was_lost_answers_the_repeated_request() {
    let mut pair = Pair::new();
    pair.connect_in(PortSpace::UDP);
    pair.carry();
    let b = pair.request();
    pair.accept(b, true).unwrap();
    // The answer is lost, and the service has destroyed the id.
    assert_eq!(Pair::outgoing(&mut pair.b).len(), 1);
    pair.b.destroy(pair.now, b);
    pair.now = pair.a.next_deadline().unwrap();
    pair.a.handle_timeout(pair.now);
    pair.carry();
    assert!(matches!(pair.a.poll_event(), Some(Event::Response { .. })));
    assert!(pair.b.poll_event().is_none());
}

#[test]
fn forged_nonce_is_ignored() {
    let mut pair = Pair::new();
    let (a, b) = pair.established();
    pair.a.disconnect(pair.now, a).unwrap();
    let (_, mut dreq) = Pair::outgoing(&mut pair.a).remove(0);
    dreq[12] ^= 1;
    pair.b.handle_datagram(pair.now, ip(1), &dreq);
    assert_eq!(pair.b.state(b), Some(ConnState::Established));
    assert!(pair.b.poll_event().is_none());
}

#[test]
fn flood_of_requests_without_a_listener_gets_a_limited_number_of_rejections() {
    let mut pair = Pair::new();
    pair.connect();
    let mut request = Pair::outgoing(&mut pair.a).remove(0).1;
    let mut stranger = ConnectionManager::new(Config::new(slot(2), 33));
    for nonce in 0..1000_u64 {
        request[12..20].copy_from_slice(&nonce.to_be_bytes());
        stranger.handle_datagram(Time::ZERO, ip(1), &request);
    }
    let refusals = Pair::outgoing(&mut stranger).len();
    assert!((1..100).contains(&refusals), "{refusals}");
    assert_eq!(stranger.counters().stray, 1000);
    stranger.handle_datagram(at(S), ip(1), &request);
    assert_eq!(Pair::outgoing(&mut stranger).len(), 1);
}

#[test]
fn random_messages_in_every_state_leave_the_engine_whole() {
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut random = move |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 11).unwrap() % end
    };
    for round in 0..2000 {
        let mut pair = Pair::new();
        let a = pair.connect();
        let mut seen = Pair::outgoing(&mut pair.a);
        for step in 0..40 {
            // A recorded message of either direction, with a few octets changed.
            let mut octets = seen[random(seen.len())].1.clone();
            for _ in 0..random(4) {
                let at = random(octets.len());
                octets[at] ^= 1 << random(8);
            }
            if random(4) == 0 {
                octets[1] = u8::try_from(random(9)).unwrap();
            }
            let manager = if random(2) == 0 {
                &mut pair.a
            } else {
                &mut pair.b
            };
            manager.handle_datagram(pair.now, ip(9), &octets);
            while let Some(event) = pair.b.poll_event() {
                if let Event::ConnectRequest(request) = event {
                    let _ = pair.accept(request.conn, random(2) == 0);
                }
            }
            while let Some(event) = pair.a.poll_event() {
                if let Event::Response { conn, .. } = event {
                    let _ = pair.a.establish(pair.now, conn, random(2) == 0);
                }
            }
            pair.now = pair.now.plus(S / 50);
            pair.a.handle_timeout(pair.now);
            pair.b.handle_timeout(pair.now);
            seen.extend(Pair::outgoing(&mut pair.a));
            seen.extend(Pair::outgoing(&mut pair.b));
            assert!(seen.len() < 400, "round {round}, step {step}: an echo");
        }
        pair.a.destroy(pair.now, a);
        for _ in 0..50 {
            pair.now = pair.now.plus(S);
            pair.a.handle_timeout(pair.now);
            Pair::outgoing(&mut pair.a);
        }
        assert_eq!(pair.a.connections(), 0, "round {round}");
    }
}
