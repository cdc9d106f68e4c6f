//! Floods of connection requests beside honest connections between two hosts, whose rates with and
//! without the flood are compared in one run.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use urdma_cm::wire::{Body, CommId, Cookie, Head, Message, Nonce, QpInfo, Req, MAX_MESSAGE};
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy, Place, Scratch};
use urdma_harness::link::RawLink;
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::{wait_until, Process};
use urdma_tests::bridges::bridge;
use urdma_tests::sockets::{spaces, unassign, ADDRESSES};
use urdma_tests::{alone, SHORT};
use urdma_types::{source_port, udp_port, PortSpace, Psn, Qpn, SlotId};
use urdma_underlay::{Checksum, Ecn, MacAddr, Route, Template, UdpPorts};

/// The hosts: one with a port of kind `udp`, and one with a port of kind `tap`.
const SOCKETS: &str = ADDRESSES[0][0];
const TAP: &str = "10.77.0.102";
const ATTACKER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);
/// An interface of the attacker whose frames reach no host.
const SINK: &str = "sink0";
/// Addresses that no host has.
const ABSENT: u64 = 50;
/// Pairs of a measurement without the flood and one with it.
const ROUNDS: usize = 11;
const MEASURED_MS: &str = "400";
/// A flood of about 10,000 requests a second: as many as a user may send, of which each took a
/// place in a backlog.
const AT_ONCE: u64 = 10;
const PAUSE: Duration = Duration::from_millis(1);
/// The least share of their rate that honest connections keep.
const SHARE_MIN: f64 = 0.8;

struct Bed {
    hosts: [Instance; 2],
    scratch: Scratch,
    spaces: Namespaces,
}

impl Bed {
    fn up() -> Self {
        let scratch = Scratch::new("test").unwrap();
        let spaces = spaces(1500);
        let port = "[port]\nkind = \"tap\"\nnetdev = \"tap0\"\n";
        let tap = Instance::up_in(spaces.name(1), scratch.path(), "b", TAP, port).unwrap();
        unassign(&spaces, 1, ADDRESSES[1][0]);
        bridge(&spaces, 1, None);
        for end in 0..2 {
            let add = ["link", "add", SINK, "type", "veth", "peer", "name", "sink1"];
            spaces.ip(end, &add).unwrap();
            for netdev in [SINK, "sink1"] {
                spaces.ip(end, &["link", "set", netdev, "up"]).unwrap();
            }
        }
        let place = Place {
            namespace: Some(spaces.name(0).to_owned()),
            user: None,
        };
        let port = "[port]\nkind = \"udp\"\n";
        let sockets = Instance::up_at_place(place, scratch.path(), "a", &[SOCKETS], port).unwrap();
        Self {
            hosts: [sockets, tap],
            scratch,
            spaces,
        }
    }

    fn counter(&self, host: usize, name: &str) -> u64 {
        let status = self.hosts[host].status().unwrap();
        status["counters"]["data"][name].as_u64().unwrap()
    }

    fn mac(&self, host: usize) -> MacAddr {
        if host == 1 {
            let status = self.hosts[1].status().unwrap();
            return status["port"]["mac"].as_str().unwrap().parse().unwrap();
        }
        let path = format!("/sys/class/net/{}/address", self.spaces.netdev(0));
        let text = self.spaces.run(0, &["cat", &path]).unwrap();
        text.trim().parse().unwrap()
    }

    /// Connections a second from the other host to `server`, and the requests that the attacker
    /// sends to it meanwhile: to the host, or nowhere, so that the attacker takes as much time of
    /// the processors.
    fn rate(&self, server: usize, is_attacked: bool) -> (f64, u64) {
        let program = binary_dir().unwrap().join("urdma-perf-asleep");
        let program = program.to_str().unwrap();
        let socket = self.scratch.path().join("control");
        let _ = std::fs::remove_file(&socket);
        let socket = socket.to_str().unwrap();
        let start = |host: usize, argv: &[&str]| {
            let mut command = self.hosts[host].run(LeasePolicy::Never, argv).unwrap();
            Process::start(&mut command).unwrap()
        };
        let mut listening = start(server, &[program, "server", socket]);
        listening.wait_for_text("listening", SHORT).unwrap();
        let address = [SOCKETS, TAP][server];
        let work = [address, MEASURED_MS, "connections", "4", "1"];
        let argv = [&[program, "client", socket, "rdma"][..], &work].concat();
        let client = start(1 - server, &argv);
        let mut port = None;
        wait_until("the server listens", SHORT, || {
            let status = self.hosts[server].status().unwrap();
            let listener = &status["listeners"][0];
            port = listener["port"]
                .as_u64()
                .filter(|_| !listener["backlog"].is_null());
            port.is_some()
        })
        .unwrap();
        let port = u16::try_from(port.unwrap()).unwrap();
        let is_over = AtomicBool::new(false);
        let (ended, sent) = thread::scope(|scope| {
            let flood = scope.spawn(|| self.flood((server, port), is_attacked, &is_over));
            let ended = client.wait(10 * SHORT);
            is_over.store(true, Ordering::Relaxed);
            (ended.unwrap(), flood.join().unwrap())
        });
        assert!(ended.succeeded(), "{}", ended.describe());
        drop(listening);
        let line = ended.output.lines().next().unwrap();
        let value = line.split_whitespace().last().unwrap();
        let rate = value.parse();
        (rate.unwrap_or_else(|_| panic!("{}", ended.output)), sent)
    }

    /// Sends requests to a host in the name of the other one and of absent ones; returns their
    /// number.
    fn flood(&self, (victim, port): (usize, u16), is_attacked: bool, is_over: &AtomicBool) -> u64 {
        let attacker = 1 - victim;
        let netdev = if is_attacked {
            self.spaces.netdev(attacker)
        } else {
            SINK
        };
        let link = RawLink::open(self.spaces.name(attacker), netdev).unwrap();
        let mac = self.mac(victim);
        let (to, real) = ([SOCKETS, TAP][victim], [TAP, SOCKETS][victim]);
        let mut nonce = 0;
        while !is_over.load(Ordering::Relaxed) {
            for _ in 0..AT_ONCE {
                nonce += 1;
                let absent = format!("10.77.0.{}", 150 + nonce % ABSENT);
                let from = if nonce % 2 == 0 { real } else { &absent };
                link.send(&frame(mac, from, (to, port), nonce)).unwrap();
            }
            thread::sleep(PAUSE);
        }
        nonce
    }
}

/// A request without a cookie, as a frame.
fn frame(mac: MacAddr, from: &str, (to, port): (&str, u16), nonce: u64) -> Vec<u8> {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let qpn = Qpn::new(SlotId::new(9).unwrap(), 1);
    let message = Message {
        head: Head {
            local_id: CommId(77),
            remote_id: CommId::NONE,
            nonce: Nonce(nonce),
            slot: qpn.slot(),
        },
        body: Body::Req(Req {
            qp: QpInfo {
                qpn: qpn.into(),
                psn: Psn::new(1),
                ..QpInfo::default()
            },
            retry_count: 7,
            ack_timeout: 14,
            path_mtu: 3,
            port_space: PortSpace::TCP,
            src: (from, 50_000).into(),
            dst: (to, port).into(),
            cookie: Cookie::NONE,
        }),
        private_data: &[],
    };
    let mut octets = [0; MAX_MESSAGE];
    let length = message.write(&mut octets);
    let template = Template::new(&Route {
        source_mac: ATTACKER_MAC,
        destination_mac: mac,
        source: from,
        destination: to,
        checksum: Checksum::Full,
    });
    let template = template.unwrap();
    let headers = template.header_octets();
    let mut frame = vec![0; headers + length];
    frame[headers..].copy_from_slice(&octets[..length]);
    let ports = UdpPorts {
        source: source_port(qpn),
        destination: udp_port(SlotId::DAEMON),
    };
    template.write(&mut frame, ports, Ecn::NotCapable).unwrap();
    frame
}

fn median(mut shares: Vec<f64>) -> f64 {
    shares.sort_by(f64::total_cmp);
    shares[shares.len() / 2]
}

#[test]
#[ignore = "make test-all"]
fn connections_keep_their_rate_beside_a_flood_of_requests() {
    let _alone = alone();
    let bed = Bed::up();
    for (victim, kind) in [(0, "udp"), (1, "tap")] {
        let (mut shares, mut arrived) = (Vec::new(), 0);
        for _ in 0..ROUNDS {
            let (alone, _) = bed.rate(victim, false);
            let (beside, sent) = bed.rate(victim, true);
            println!("{kind}: {alone:.0} a second, {beside:.0} beside {sent} requests");
            shares.push(beside / alone);
            arrived += sent;
        }
        let share = median(shares);
        println!("{kind}: {share:.2}");
        // On a port of kind `tap` absent senders are not asked: their Ethernet address is unknown.
        let asked = bed.counter(victim, "cm_cookies");
        assert!(asked >= arrived / 4, "{asked} of {arrived} arrived");
        assert!(share >= SHARE_MIN, "{kind}: {share}");
    }
    for host in bed.hosts {
        host.down().unwrap();
    }
    drop(bed.spaces);
}
