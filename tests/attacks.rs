//! Frames of hostile hosts on the link, injected through a TAP port.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use proto_trp::wire::trp::HEADER_LEN;
use proto_trp::wire::{connection_id, ConnectionId, Flags, PacketType, ResetReason, TrpHeader};
use urdma_cm::wire::{Body, CommId, Cookie, Head, Message, Nonce, QpInfo, Req, MAX_MESSAGE};
use urdma_harness::instance::{Instance, LeasePolicy, Scratch};
use urdma_harness::link::RawLink;
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::{wait_until, Process};
use urdma_tests::{alone, ports, SHORT};
use urdma_types::{source_port, udp_port, PortSpace, Psn, Qpn, SlotId};
use urdma_underlay::{
    parse, Checksum, Ecn, LocalInterface, MacAddr, Neighbours, Route, Template, Timing, UdpPorts,
    MAX_HEADER_OCTETS, MAX_SOLICITATION_OCTETS,
};

/// The address of the instance.
const HOST: &str = "10.77.0.1";
/// The address of a host on the link that answers ARP.
const NEIGHBOUR: &str = "10.77.0.2";
/// The address of another host, which sends no frames.
const VICTIM: &str = "10.77.0.9";
/// An address that no host on the link has.
const ABSENT: &str = "10.77.0.50";
/// First PSN of the other hosts' queue pair.
const OWN_PSN: u32 = 0x1000;
const NEIGHBOUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// The MAC address of a host that claims addresses of others.
const ATTACKER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);
/// Time until a request is sent again.
const AGAIN: Duration = Duration::from_millis(100);

/// An instance with a TAP port, and the link.
struct Bed {
    host: Instance,
    mac: MacAddr,
    link: RawLink,
    /// How the neighbour answers ARP.
    neighbour: Neighbours,
    start: Instant,
    scratch: Scratch,
    spaces: Namespaces,
}

/// A datagram that the host sent.
struct Seen {
    to: IpAddr,
    destination_mac: MacAddr,
    ports: UdpPorts,
    octets: Vec<u8>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Bed {
    fn up() -> Self {
        let scratch = Scratch::new("test").unwrap();
        let spaces = Namespaces::new().unwrap();
        let port = "[port]\nkind = \"tap\"\nnetdev = \"tap0\"\n";
        let host = Instance::up_in(spaces.name(0), scratch.path(), "a", HOST, port).unwrap();
        spaces.ip(0, &["link", "set", "tap0", "up"]).unwrap();
        let status = host.status().unwrap();
        let link = RawLink::open(spaces.name(0), "tap0").unwrap();
        let local = LocalInterface::new(NEIGHBOUR_MAC, &[ip(NEIGHBOUR), ip(VICTIM)]).unwrap();
        Self {
            mac: status["port"]["mac"].as_str().unwrap().parse().unwrap(),
            host,
            link,
            neighbour: Neighbours::new(local, Timing::default()),
            start: Instant::now(),
            scratch,
            spaces,
        }
    }

    fn counter(&self, name: &str) -> u64 {
        let status = self.host.status().unwrap();
        let value = status["counters"]["data"][name].as_u64();
        value.unwrap_or_else(|| panic!("no counter {name}: {status}"))
    }

    /// Sends a datagram with the source address `source`, which may be forged.
    fn send(&self, source: IpAddr, ports: UdpPorts, datagram: &[u8]) {
        let template = Template::new(&Route {
            source_mac: NEIGHBOUR_MAC,
            destination_mac: self.mac,
            source,
            destination: ip(HOST),
            checksum: Checksum::Full,
        });
        let template = template.unwrap();
        let headers = template.header_octets();
        let mut frame = vec![0; headers + datagram.len()];
        frame[headers..].copy_from_slice(datagram);
        template.write(&mut frame, ports, Ecn::NotCapable).unwrap();
        self.link.send(&frame).unwrap();
    }

    /// The host's next datagram before `until`. Meanwhile the neighbour answers ARP.
    fn next(&mut self, until: Instant) -> Option<Seen> {
        let mut buffer = [0; MAX_HEADER_OCTETS + 65_536];
        loop {
            let frame = self.link.receive(&mut buffer, until)?;
            let now_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap();
            if frame[..6] != self.mac.0 && frame[6..12] == self.mac.0 {
                if frame[0] & 1 == 1 || frame[..6] == NEIGHBOUR_MAC.0 {
                    self.neighbour.handle_frame(now_ns, frame);
                }
                let mut answer = [0; MAX_SOLICITATION_OCTETS];
                while let Some(octets) = self.neighbour.poll_transmit(now_ns, &mut answer) {
                    self.link.send(&answer[..octets]).unwrap();
                }
                if let Some(seen) = seen(frame) {
                    return Some(seen);
                }
            }
        }
    }

    /// Sends 1000 datagrams of `flood` from the neighbour repeatedly, discarding the host's
    /// packets, until `is_over`.
    fn flood_until(
        &mut self,
        what: &str,
        to: SlotId,
        flood: impl Fn(u32) -> Vec<u8>,
        is_over: impl Fn(&Self) -> bool,
    ) {
        wait_until(what, SHORT, || {
            for number in 0..1000 {
                self.send(ip(NEIGHBOUR), ports_to(to), &flood(number));
            }
            while self.next(Instant::now()).is_some() {}
            is_over(self)
        })
        .unwrap();
    }

    /// Waits until urdmad has dropped `dropped` requests of hosts that do not answer ARP, and
    /// checks that no listener has received one.
    fn expect_unresolved(&self, dropped: u64) {
        wait_until("the requests are judged", SHORT, || {
            self.counter("cm_requests") != 0 || self.counter("drop_request_unresolved") >= dropped
        })
        .unwrap();
        assert_eq!(self.counter("cm_requests"), 0);
    }

    /// Calls `ask` repeatedly until a datagram arrives for which `is_answer` holds.
    fn ask(&mut self, ask: impl Fn(&Self), is_answer: impl Fn(&Seen) -> bool) -> Option<Seen> {
        let end = Instant::now() + SHORT;
        while Instant::now() < end {
            ask(self);
            let until = Instant::now() + AGAIN;
            while let Some(seen) = self.next(until) {
                if is_answer(&seen) {
                    return Some(seen);
                }
            }
        }
        None
    }

    /// The cookie of the host for the neighbour.
    fn cookie(&mut self) -> Cookie {
        const NONCE: u64 = 1 << 63;
        let asked = request(NEIGHBOUR, 1, NONCE, Cookie::NONE);
        let ask = |bed: &Self| bed.send(ip(NEIGHBOUR), ports_to(SlotId::DAEMON), &asked);
        let is_cookie = |seen: &Seen| matches!(answer_to(seen, NONCE), Some(Body::Cookie(_)));
        let answer = self.ask(ask, is_cookie);
        match answer.and_then(|seen| answer_to(&seen, NONCE)) {
            Some(Body::Cookie(cookie)) => cookie,
            _ => panic!("no cookie: {}", self.host.status().unwrap()),
        }
    }

    /// Starts a program that listens; returns it and its slot.
    fn listener(&self, port: u16) -> (Process, SlotId) {
        let (number, port) = (port, port.to_string());
        let argv = ["rping", "-s", "-P", "-a", HOST, "-p", &port];
        let slots = |status: &serde_json::Value| {
            let slots = status["slots"].as_array().unwrap().clone();
            let numbers = slots.iter().map(|slot| slot["slot"].as_u64().unwrap());
            numbers.collect::<Vec<_>>()
        };
        let before = slots(&self.host.status().unwrap());
        let process =
            Process::start(&mut self.host.run(LeasePolicy::Never, &argv).unwrap()).unwrap();
        let mut slot = None;
        wait_until("listening", SHORT, || {
            let status = self.host.status().unwrap();
            let listeners = status["listeners"].as_array().unwrap();
            let is_there = listeners
                .iter()
                .any(|listener| listener["port"] == number && !listener["backlog"].is_null());
            slot = slots(&status)
                .into_iter()
                .find(|slot| !before.contains(slot));
            is_there
        })
        .unwrap();
        let slot = u8::try_from(slot.unwrap()).unwrap();
        (process, SlotId::new(slot).unwrap())
    }

    fn down(self) {
        self.host.down().unwrap();
        drop((self.spaces, self.scratch));
    }
}

/// The datagram in a frame that the host sent.
fn seen(frame: &[u8]) -> Option<Seen> {
    let destination_mac = MacAddr(frame[..6].try_into().unwrap());
    let to = IpAddr::from(<[u8; 4]>::try_from(frame.get(30..34)?).unwrap());
    let receiver = LocalInterface::new(destination_mac, &[to]).ok()?;
    let received = parse(frame, &receiver).ok()?;
    Some(Seen {
        to,
        destination_mac,
        ports: UdpPorts {
            source: received.source_port,
            destination: received.destination_port,
        },
        octets: frame[received.payload.clone()].to_vec(),
    })
}

fn slot(number: u8) -> SlotId {
    SlotId::new(number).unwrap()
}

/// The queue pair of other hosts.
fn own_qpn() -> Qpn {
    Qpn::new(slot(1), 1)
}

/// The ports from another host's queue pair to a slot.
fn ports_to(to: SlotId) -> UdpPorts {
    UdpPorts {
        source: source_port(own_qpn()),
        destination: udp_port(to),
    }
}

/// A packet of an unknown connection to a queue pair that does not exist.
fn stray(id: u32) -> Vec<u8> {
    written(&TrpHeader {
        kind: PacketType::Probe,
        flags: Flags::default(),
        destination_index: 0x7777,
        connection_id: ConnectionId::from_u32(id),
        window: 1,
        psn: Psn::new(5),
        ack: Psn::new(5),
        extension_words: 0,
    })
}

fn written(header: &TrpHeader) -> Vec<u8> {
    let mut octets = [0; HEADER_LEN];
    header.encode(&mut octets).unwrap();
    octets.to_vec()
}

/// A connection request to a port of the host, with the source address `from` and slot 1.
fn request(from: &str, port: u16, nonce: u64, cookie: Cookie) -> Vec<u8> {
    let message = Message {
        head: Head {
            local_id: CommId(77),
            remote_id: CommId::NONE,
            nonce: Nonce(nonce),
            slot: slot(1),
        },
        body: Body::Req(Req {
            qp: QpInfo {
                qpn: own_qpn().into(),
                psn: Psn::new(OWN_PSN),
                ..QpInfo::default()
            },
            retry_count: 7,
            ack_timeout: 14,
            path_mtu: 3,
            port_space: PortSpace::TCP,
            src: (ip(from), 50_000).into(),
            dst: (ip(HOST), port).into(),
            cookie,
        }),
        private_data: &[0; 16],
    };
    let mut octets = [0; MAX_MESSAGE];
    let length = message.write(&mut octets);
    octets[..length].to_vec()
}

/// The connection management message in a datagram, if its nonce is `nonce`.
fn answer_to(seen: &Seen, nonce: u64) -> Option<Body> {
    let message = Message::parse(&seen.octets).ok()?;
    (message.head.nonce == Nonce(nonce)).then_some(message.body)
}

/// The TRP header of a datagram.
fn header(seen: &Seen) -> Option<TrpHeader> {
    TrpHeader::parse(&seen.octets, seen.octets.len()).ok()
}

/// Whether the datagram is the RESET that answers [`stray`].
fn is_reset(seen: &Seen, id: u32) -> bool {
    header(seen).is_some_and(|header| {
        header.kind == PacketType::Reset && header.connection_id == ConnectionId::from_u32(id)
    })
}

#[test]
fn processes_that_are_stopped_leave_frames_for_others() {
    const JUNK: usize = 600;
    const QUESTIONS: u32 = 20;
    let _alone = alone();
    let mut bed = Bed::up();
    let port = ports();
    let stopped = [0, 1].map(|number| bed.listener(port + number));
    let (living, slot) = bed.listener(port + 2);
    let answers = |bed: &mut Bed, questions: u32| {
        for id in 1..=questions {
            let ask = |bed: &Bed| bed.send(ip(NEIGHBOUR), ports_to(slot), &stray(id));
            bed.ask(ask, |seen| is_reset(seen, id))
                .unwrap_or_else(|| panic!("no answer: {}", bed.host.status().unwrap()));
        }
    };
    answers(&mut bed, 1);
    for (process, _) in &stopped {
        process.signal(Signal::SIGSTOP).unwrap();
    }
    let junk = vec![0xff; 1000];
    for _ in 0..JUNK {
        for (_, slot) in &stopped {
            bed.send(ip(NEIGHBOUR), ports_to(*slot), &junk);
        }
    }
    answers(&mut bed, QUESTIONS);
    for (process, _) in stopped {
        process.signal(Signal::SIGCONT).unwrap();
    }
    drop(living);
    bed.down();
}

#[test]
fn request_that_names_another_host_than_it_comes_from_is_not_answered() {
    const FORGED: u64 = 10;
    let _alone = alone();
    let mut bed = Bed::up();
    let port = ports();
    let to_daemon = ports_to(SlotId::DAEMON);
    for nonce in 0..FORGED {
        bed.send(
            ip(NEIGHBOUR),
            to_daemon,
            &request(VICTIM, port, nonce, Cookie::NONE),
        );
        // The other host answers ARP requests.
        let until = Instant::now() + AGAIN;
        while let Some(seen) = bed.next(until) {
            assert_eq!(seen.to, ip(NEIGHBOUR));
        }
    }
    let wanted = request(NEIGHBOUR, port, FORGED, bed.cookie());
    let ask = |bed: &Bed| bed.send(ip(NEIGHBOUR), to_daemon, &wanted);
    let refused = bed.ask(ask, |seen| {
        assert_eq!((seen.to, seen.ports.source), (ip(NEIGHBOUR), 21_504));
        matches!(answer_to(seen, FORGED), Some(Body::Rej(_)))
    });
    assert!(refused.is_some(), "{}", bed.host.status().unwrap());
    assert_eq!(bed.counter("drop_request_source"), FORGED);
    bed.down();
}

#[test]
fn flood_of_requests_makes_a_limited_number_of_refusals() {
    let _alone = alone();
    let mut bed = Bed::up();
    let port = ports();
    let cookie = bed.cookie();
    let flood = |nonce| request(NEIGHBOUR, port, u64::from(nonce), cookie);
    bed.flood_until("a refusal is left out", SlotId::DAEMON, flood, |bed| {
        bed.counter("drop_reject_limit") > 0
    });
    assert!(bed.counter("cm_rejected") > bed.counter("drop_reject_limit"));
    bed.down();
}

#[test]
fn flood_of_packets_to_no_queue_pair_makes_a_limited_number_of_resets() {
    let _alone = alone();
    let mut bed = Bed::up();
    let (listener, slot) = bed.listener(ports());
    bed.flood_until("a RESET is left out", slot, stray, |bed| {
        let status = bed.host.status().unwrap();
        let left_out = &status["slots"][0]["report"]["counters"]["resets_left_out"];
        left_out.as_u64().is_some_and(|count| count > 0)
    });
    drop(listener);
    bed.down();
}

#[test]
fn request_of_a_host_that_does_not_answer_arp_is_not_handed_to_the_listener() {
    let _alone = alone();
    let mut bed = Bed::up();
    let port = ports();
    let (listener, _) = bed.listener(port);
    let to_daemon = ports_to(SlotId::DAEMON);
    bed.send(
        ip(ABSENT),
        to_daemon,
        &request(ABSENT, port, 1, Cookie::NONE),
    );
    bed.expect_unresolved(1);
    let wanted = request(NEIGHBOUR, port, 2, bed.cookie());
    let ask = |bed: &Bed| bed.send(ip(NEIGHBOUR), to_daemon, &wanted);
    let accepted = bed.ask(ask, |seen| matches!(answer_to(seen, 2), Some(Body::Rep(_))));
    assert!(accepted.is_some(), "{}", bed.host.status().unwrap());
    drop(listener);
    bed.down();
}

// Regression: each request that rping accepted failed after 1.5 s, and its threads used one
// another's ids (rdma-core 44 has one place for all children), so that it crashed.
#[test]
fn flood_of_requests_from_made_up_hosts_leaves_the_listener_alone() {
    const FORGED: u64 = 1000;
    let _alone = alone();
    let mut bed = Bed::up();
    let port = ports();
    let (mut listener, _) = bed.listener(port);
    let to_daemon = ports_to(SlotId::DAEMON);
    for nonce in 0..FORGED {
        let source = format!("10.77.0.{}", 50 + nonce % 10);
        let forged = request(&source, port, nonce, Cookie::NONE);
        bed.send(ip(&source), to_daemon, &forged);
    }
    // The link may lose some of them.
    bed.expect_unresolved(FORGED / 10);
    Connected::to(&mut bed, port);
    assert!(listener.is_running());
    bed.down();
}

/// Requests that name a host that answers ARP, but does not receive the answers to them.
#[test]
fn flood_of_requests_in_the_name_of_another_host_leaves_the_listener_alone() {
    let _alone = alone();
    let mut bed = Bed::up();
    let port = ports();
    let (mut listener, slot) = bed.listener(port);
    let flood = |nonce| request(NEIGHBOUR, port, u64::from(nonce), Cookie(nonce));
    for (to, answers) in [(SlotId::DAEMON, 1000), (slot, 2000)] {
        bed.flood_until("cookies are asked for", to, flood, |bed| {
            bed.counter("cm_cookies") >= answers
        });
    }
    assert_eq!(bed.counter("cm_requests"), 0);
    Connected::to(&mut bed, port);
    assert!(listener.is_running());
    bed.down();
}

/// A connection between the neighbour and a program on the host.
struct Connected {
    /// The program's queue pair.
    qpn: Qpn,
    /// The id of the neighbour's stream.
    id: ConnectionId,
    /// First PSN of the program's stream.
    psn: Psn,
}

impl Connected {
    /// Connects the neighbour to a port of the host.
    fn to(bed: &mut Bed, port: u16) -> Self {
        const NONCE: u64 = 7;
        let to_daemon = ports_to(SlotId::DAEMON);
        let wanted = request(NEIGHBOUR, port, NONCE, bed.cookie());
        let ask = |bed: &Bed| bed.send(ip(NEIGHBOUR), to_daemon, &wanted);
        let accepted = bed.ask(ask, |seen| {
            matches!(answer_to(seen, NONCE), Some(Body::Rep(_)))
        });
        let accepted = accepted.unwrap_or_else(|| panic!("{}", bed.host.status().unwrap()));
        let Some(Body::Rep(qp)) = answer_to(&accepted, NONCE) else {
            unreachable!()
        };
        let qpn = qp.qpn.to_qpn().unwrap();
        let connected = Self {
            qpn,
            id: connection_id(own_qpn(), qpn, Psn::new(OWN_PSN)),
            psn: qp.psn,
        };
        let head = Message::parse(&accepted.octets).unwrap().head;
        let ready = Message {
            head: Head {
                local_id: head.remote_id,
                remote_id: head.local_id,
                slot: slot(1),
                ..head
            },
            body: Body::Rtu,
            private_data: &[],
        };
        let mut octets = [0; MAX_MESSAGE];
        let length = ready.write(&mut octets);
        bed.send(ip(NEIGHBOUR), ports_to(qpn.slot()), &octets[..length]);
        connected.expect_alive(bed);
        connected
    }

    /// A packet of the neighbour's stream that consumes no PSN.
    fn packet(&self, kind: PacketType, psn: u32) -> TrpHeader {
        TrpHeader {
            kind,
            flags: Flags::default(),
            destination_index: self.qpn.index(),
            connection_id: self.id,
            window: 1,
            psn: Psn::new(psn),
            ack: self.psn,
            extension_words: 0,
        }
    }

    fn probe(&self) -> Vec<u8> {
        written(&self.packet(PacketType::Probe, OWN_PSN))
    }

    /// The RESET with which the neighbour's process would report that its queue pair is gone.
    fn reset(&self) -> Vec<u8> {
        let offender = TrpHeader {
            destination_index: own_qpn().index(),
            ..self.packet(PacketType::Probe, OWN_PSN)
        };
        written(&TrpHeader::reset_for(&offender, ResetReason::NoQueuePair).unwrap())
    }

    /// A Terminate of the neighbour.
    fn terminate(&self, psn: u32) -> Vec<u8> {
        let mut octets = written(&self.packet(PacketType::Data, psn));
        // DDP: untagged, last, version 1; RDMAP: version 1, Terminate; queue 2, message 1, offset
        // 0; 0.0.00 without headers.
        octets.extend([0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
        octets.extend([0, 0, 0, 0]);
        octets
    }

    /// Checks that the host reports no end of the connection for a moment, and that the program's
    /// queue pair then answers.
    fn expect_alive(&self, bed: &mut Bed) {
        let until = Instant::now() + AGAIN;
        while let Some(seen) = bed.next(until) {
            assert!(!self.is_end(&seen), "{:?}", seen.octets);
        }
        let probe = self.probe();
        let ask = |bed: &Bed| bed.send(ip(NEIGHBOUR), ports_to(self.qpn.slot()), &probe);
        let answered = bed.ask(ask, |seen| {
            assert!(!self.is_end(seen), "{:?}", seen.octets);
            header(seen).is_some_and(|header| header.kind == PacketType::Ack)
        });
        assert!(answered.is_some(), "{}", bed.host.status().unwrap());
    }

    /// Whether the datagram acknowledges the end of the neighbour's stream, or reports that the
    /// program's queue pair is gone.
    fn is_end(&self, seen: &Seen) -> bool {
        if let Ok(message) = Message::parse(&seen.octets) {
            return matches!(message.body, Body::Dreq(_));
        }
        header(seen)
            .is_some_and(|header| matches!(header.kind, PacketType::FinAck | PacketType::Reset))
    }
}

/// Forged senders: another address, and another source port.
fn forgeries(to: SlotId) -> [(IpAddr, UdpPorts); 2] {
    let other_port = UdpPorts {
        source: source_port(Qpn::new(slot(2), 1)),
        ..ports_to(to)
    };
    [(ip(VICTIM), ports_to(to)), (ip(NEIGHBOUR), other_port)]
}

/// Connects, sends a packet with the right connection id and PSN from forged senders, and with
/// wrong PSNs, and checks that it has no effect until the neighbour itself sends it.
fn forged_end_is_ignored(
    packet: impl Fn(&Connected, u32) -> Vec<u8>,
    port_of_end: impl Fn(SlotId) -> UdpPorts,
    wrong_psns: &[u32],
) {
    let _alone = alone();
    let mut bed = Bed::up();
    let port = ports();
    let (listener, slot) = bed.listener(port);
    let connected = Connected::to(&mut bed, port);
    for (source, ports) in forgeries(slot) {
        bed.send(source, ports, &packet(&connected, OWN_PSN));
        connected.expect_alive(&mut bed);
    }
    for psn in wrong_psns {
        bed.send(ip(NEIGHBOUR), port_of_end(slot), &packet(&connected, *psn));
        connected.expect_alive(&mut bed);
    }
    let end = packet(&connected, OWN_PSN);
    let ask = |bed: &Bed| {
        bed.send(ip(NEIGHBOUR), port_of_end(slot), &end);
        bed.send(ip(NEIGHBOUR), ports_to(slot), &connected.probe());
    };
    let ended = bed.ask(ask, |seen| connected.is_end(seen));
    assert!(ended.is_some(), "{}", bed.host.status().unwrap());
    drop(listener);
    bed.down();
}

/// PSNs before and beyond the window.
const WRONG_PSNS: [u32; 3] = [OWN_PSN - 1, OWN_PSN + 70_000, OWN_PSN + 0x80_0000];

#[test]
fn fin_from_elsewhere_or_outside_the_window_is_ignored() {
    let fin = |connected: &Connected, psn| written(&connected.packet(PacketType::Fin, psn));
    forged_end_is_ignored(fin, ports_to, &WRONG_PSNS);
}

#[test]
fn terminate_from_elsewhere_or_outside_the_window_is_ignored() {
    forged_end_is_ignored(Connected::terminate, ports_to, &WRONG_PSNS);
}

#[test]
fn reset_from_elsewhere_is_ignored() {
    let from_slot = |to| UdpPorts {
        source: source_port(Qpn::new(slot(1), 0)),
        ..ports_to(to)
    };
    forged_end_is_ignored(|connected, _| connected.reset(), from_slot, &[]);
}

/// ARP frames with which a host at [`ATTACKER_MAC`] claims the neighbour's address.
fn claims(make: impl FnOnce(&mut Neighbours)) -> Vec<Vec<u8>> {
    let local = LocalInterface::new(ATTACKER_MAC, &[ip(NEIGHBOUR)]).unwrap();
    let mut attacker = Neighbours::new(local, Timing::default());
    make(&mut attacker);
    let mut frames = Vec::new();
    let mut frame = [0; MAX_SOLICITATION_OCTETS];
    while let Some(octets) = attacker.poll_transmit(0, &mut frame) {
        frames.push(frame[..octets].to_vec());
    }
    frames
}

#[test]
fn false_arp_does_not_turn_packets_away_from_a_neighbour_that_answers() {
    let _alone = alone();
    let mut bed = Bed::up();
    let (listener, slot) = bed.listener(ports());
    let expect_answers = |bed: &mut Bed, ids: std::ops::Range<u32>| {
        for id in ids {
            let ask = |bed: &Bed| bed.send(ip(NEIGHBOUR), ports_to(slot), &stray(id));
            let seen = bed.ask(ask, |seen| is_reset(seen, id)).unwrap();
            assert_eq!(seen.destination_mac, NEIGHBOUR_MAC);
        }
    };
    expect_answers(&mut bed, 0..2);
    let announced = claims(Neighbours::announce);
    let asked = claims(|attacker| {
        attacker.resolve(0, ip(HOST));
    });
    for (turn, frame) in (1_u32..).zip(announced.iter().chain(&asked)) {
        bed.link.send(frame).unwrap();
        wait_until("the claim has arrived", SHORT, || {
            bed.counter("rx_neighbour") > u64::from(turn)
        })
        .unwrap();
        expect_answers(&mut bed, turn * 10..turn * 10 + 5);
    }
    drop(listener);
    bed.down();
}
