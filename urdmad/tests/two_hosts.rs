//! Two instances joined by net_memif, without hugepages: forwarding both ways, neighbours,
//! connection requests, RESETs, capture.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use proto_trp::wire::trp::VERSION;
use proto_trp::wire::Meta;
use proto_trp::wire::{ConnectionId, Flags, PacketHead, PacketType, TrpHeader};
use support::{
    cm_port, cookie_in, eventually, expect_idle, fill, is_reject, meta, mount_small, request,
    request_with, udp_port, Daemon, Process, Scratch, LIMIT,
};
use urdma_ipc::capture::CaptureOptions;
use urdma_ipc::fault::{Direction, Impairment};
use urdma_ipc::{LeaseAnswer, Resolution};
use urdma_types::{source_port, Psn, Qpn, SlotId};

const A: &str = "127.0.0.1";
const B: &str = "127.0.0.2";

struct Hosts {
    a: Daemon,
    b: Daemon,
}

fn config(address: &str, role: &str, socket: &Path, extra: &str) -> String {
    format!(
        "address = [\"{address}\"]\n[port]\nkind = \"memif\"\nrole = \"{role}\"\nsocket = \
        \"{}\"\n{extra}",
        socket.display()
    )
}

fn start(scratch: &Scratch, extra: &str) -> Hosts {
    let socket = scratch.path().join("memif.sock");
    let a = Daemon::start(scratch.path(), "a", &config(A, "server", &socket, extra));
    let b = Daemon::start(scratch.path(), "b", &config(B, "client", &socket, extra));
    eventually("the link is up", || {
        [&a, &b]
            .into_iter()
            .all(|host| host.status().port.unwrap().link_up)
    });
    Hosts { a, b }
}

fn from_a_to_b(a: &mut Process, b: &mut Process, datagram: &[u8]) -> Meta {
    let there = meta(B, b.attached.slot);
    a.send(&there, datagram);
    let frame = b.receive().expect("nothing arrived");
    assert_eq!(frame.octets, datagram);
    frame.meta
}

#[test]
fn datagrams_pass_both_ways_and_nothing_is_left() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "mtu = 9000");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    assert_eq!(a.attached.mtu, 9000);
    // The first waits for ARP and must arrive all the same.
    let seen = from_a_to_b(&mut a, &mut b, b"first");
    assert_eq!(seen.remote_ip, meta(A, 0).remote_ip);
    assert_eq!(
        (seen.src_port, seen.dst_port, seen.ecn),
        (
            source_port(Qpn::new(a.slot(), 1)),
            udp_port(b.attached.slot),
            2
        )
    );
    b.send(&meta(A, a.attached.slot), &[9; 8972]);
    assert_eq!(a.receive().unwrap().octets, [9; 8972]);
    for length in [0, 1, 64, 1400, 8972] {
        from_a_to_b(&mut a, &mut b, &vec![5; length]);
    }
    a.send(&meta(B, b.attached.slot), &[9; 8973]);
    a.send(&meta("127.0.0.9", 1), b"no host");
    eventually("drops are counted", || {
        let data = hosts.a.status().counters.data;
        data["drop_tx_too_long"] == 1 && data["drop_tx_unreachable"] == 1
    });
    for host in [&hosts.a, &hosts.b] {
        let status = host.status();
        assert!(status.no_leases_because.unwrap().contains("lease_queues"));
        let pool = &status.port.unwrap().mbufs[0];
        assert!(pool.free > pool.total - 64, "{pool:?}");
    }
    drop((a, b));
    hosts.b.stop();
    hosts.a.stop();
    let mut left: Vec<_> = fs::read_dir(scratch.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["a.toml", "b.toml"]);
}

#[test]
fn packets_of_one_message_arrive_as_if_each_had_its_own() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "mtu = 9000");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    from_a_to_b(&mut a, &mut b, b"first");
    let own = Meta {
        src_port: source_port(Qpn::new(a.slot(), 1)),
        ..meta(B, b.attached.slot)
    };
    let octets: Vec<u8> = (0..60_000_u32)
        .map(|at| at.to_le_bytes()[0] | 0x80)
        .collect();
    for packet_octets in [256, 300, 1_000, 8_972, 9_001, 60_001] {
        let head = PacketHead {
            packet_octets,
            ..PacketHead::of(own)
        };
        assert!(a.try_send_as(&head, &octets));
        // Longer ones than the MTU are dropped, each for itself.
        let packets = octets.chunks(packet_octets.into());
        for packet in packets.filter(|packet| packet.len() <= 8_972) {
            assert_eq!(b.receive().expect("nothing arrived").octets, packet);
        }
    }
    // Several are for another host, and no packet is so short.
    let head = |to: Meta, packet_octets| PacketHead {
        packet_octets,
        ..PacketHead::of(Meta {
            src_port: own.src_port,
            ..to
        })
    };
    assert!(a.try_send_as(&head(meta(A, a.attached.slot), 256), &octets[..600]));
    eventually("packets for this host are dropped", || {
        hosts.a.status().counters.data["drop_not_for_daemon"] == 1
    });
    assert!(a.try_send_as(&head(own, 255), &octets[..600]));
    eventually("the process is disconnected", || {
        hosts.a.status().counters.data["corrupt_cells"] == 1
    });
}

#[test]
fn stream_of_datagrams_arrives_in_order() {
    const COUNT: u32 = 20_000;
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    from_a_to_b(&mut a, &mut b, b"first");
    let (to, mut next, mut sent) = (meta(B, b.attached.slot), 0, 0);
    let mut datagram = [0; 1000];
    let start = Instant::now();
    while next < COUNT {
        assert!(
            start.elapsed() < 2 * LIMIT,
            "{next} of {COUNT}, b dropped {:?}",
            drops(&hosts.b)
        );
        // A window, as a connection would have: what is under way fits the rings.
        while sent < COUNT && sent - next < 64 {
            datagram[..4].copy_from_slice(&sent.to_be_bytes());
            if !a.try_send(&to, &datagram) {
                break;
            }
            sent += 1;
        }
        while let Some(frame) = b.poll() {
            let number = frame.octets.first_chunk().unwrap();
            assert_eq!(u32::from_be_bytes(*number), next);
            next += 1;
        }
        std::thread::yield_now();
    }
    println!("{COUNT} datagrams in {:?}", start.elapsed());
}

/// The counters of what a host has dropped.
fn drops(host: &Daemon) -> Vec<(String, u64)> {
    let data = host.status().counters.data.into_iter();
    data.filter(|(name, count)| name.starts_with("drop") && *count > 0)
        .collect()
}

#[test]
fn neighbours_are_resolved_and_absent_ones_given_up() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let client = hosts.a.client();
    assert_eq!(
        client.resolve(A.parse().unwrap()).unwrap(),
        Resolution::Local
    );
    let mac = hosts.b.status().port.unwrap().mac;
    // A host that is kept from answering for long counts as absent for a while.
    eventually("b is found", || {
        match client.resolve(B.parse().unwrap()).unwrap() {
            Resolution::Neighbour { mac: found, source } => {
                assert_eq!(urdma_underlay::MacAddr(found).to_string(), mac);
                assert_eq!(source.to_string(), A);
                true
            }
            Resolution::NoHost => false,
            Resolution::Local => panic!("that is another host"),
        }
    });
    let resolution = client.resolve("127.0.0.77".parse().unwrap()).unwrap();
    assert_eq!(resolution, Resolution::NoHost);
}

#[test]
fn requests_across_hosts_reach_the_listener_or_are_rejected() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    b.listen(1, cm_port(B, 7471));
    let source = format!("{A}:40000");
    let slot = a.attached.slot;
    a.send(&meta(B, 0), &request(&source, slot, &format!("{B}:7471")));
    let cookie = cookie_in(&a.receive().unwrap().octets);
    let listened = request_with(cookie, &source, slot, &format!("{B}:7471"));
    a.send(&meta(B, 0), &listened);
    let frame = b.receive().unwrap();
    assert_eq!(frame.octets, listened);
    let no_listener = request_with(cookie, &source, slot, &format!("{B}:7472"));
    a.send(&meta(B, 0), &no_listener);
    assert!(is_reject(&a.receive().unwrap().octets));
    let data = hosts.b.status().counters.data;
    assert_eq!((data["cm_requests"], data["cm_rejected"]), (1, 1));
    assert_eq!(data["cm_cookies"], 1);
}

#[test]
fn request_without_the_cookie_of_its_sender_reaches_no_process() {
    const REQUESTS: u64 = 100;
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let (mut a, mut other, mut b) = (hosts.a.attach(), hosts.a.attach(), hosts.b.attach());
    b.listen(1, cm_port(B, 7471));
    let (source, destination) = (format!("{A}:40000"), format!("{B}:7471"));
    // To urdmad, and to the listener's process as one that has answered before.
    for to in [0, b.attached.slot] {
        for _ in 0..REQUESTS {
            a.send(
                &meta(B, to),
                &request(&source, a.attached.slot, &destination),
            );
            cookie_in(&a.receive().unwrap().octets);
        }
        other.send(
            &meta(B, to),
            &request(&source, other.attached.slot, &destination),
        );
        let others = cookie_in(&other.receive().unwrap().octets);
        let stolen = request_with(others, &source, a.attached.slot, &destination);
        a.send(&meta(B, to), &stolen);
        let own = cookie_in(&a.receive().unwrap().octets);
        let data = hosts.b.status().counters.data;
        assert_eq!(data["cm_requests"], u64::from(to != 0));
        let wanted = request_with(own, &source, a.attached.slot, &destination);
        a.send(&meta(B, to), &wanted);
        assert_eq!(b.receive().unwrap().octets, wanted);
    }
    let data = hosts.b.status().counters.data;
    assert_eq!(
        (data["cm_requests"], data["cm_cookies"]),
        (2, 2 * REQUESTS + 4)
    );
}

fn probe(kind: PacketType) -> [u8; 16] {
    let header = TrpHeader {
        kind,
        flags: Flags::NONE,
        destination_index: 5,
        connection_id: ConnectionId::from_u32(0xfeed_beef),
        window: u8::from(kind != PacketType::Reset),
        psn: Psn::new(1),
        ack: Psn::new(2),
        extension_words: 0,
    };
    let mut octets = [0; 16];
    header.encode(&mut octets).unwrap();
    octets
}

#[test]
fn datagram_for_an_unattached_slot_is_answered_with_reset_and_a_reset_is_not() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let mut a = hosts.a.attach();
    let sender = Qpn::new(SlotId::new(a.attached.slot).unwrap(), 1);
    let to = Meta {
        src_port: source_port(sender),
        ..meta(B, 200)
    };
    a.send(&to, &probe(PacketType::Probe));
    let frame = a.receive().unwrap();
    let answer = frame.octets;
    let header = TrpHeader::parse(&answer, answer.len()).unwrap();
    assert_eq!(header.kind, PacketType::Reset);
    assert_eq!(header.connection_id.to_u32(), 0xfeed_beef);
    for datagram in [&probe(PacketType::Reset)[..], b"no TRP at all"] {
        a.send(&to, datagram);
    }
    eventually("all three have arrived", || {
        hosts.b.status().counters.data["drop_rx_unattached_slot"] == 3
    });
    assert_eq!(hosts.b.status().counters.data["resets_sent"], 1);
    eventually("a flood is limited", || {
        for _ in 0..1000 {
            while a.poll().is_some() {}
            // All frames may be under way for a moment.
            let _ = a.try_send(&to, &probe(PacketType::Probe));
            std::thread::yield_now();
        }
        hosts.b.status().counters.data["drop_reset_limit"] > 0
    });
}

// A process may end when its application has a completion, before it has acknowledged anything.
#[test]
fn reset_for_a_process_that_has_ended_says_what_it_had_received() {
    const NEXT: u32 = 777;
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let (mut a, b) = (hosts.a.attach(), hosts.b.attach());
    b.records.of(5).begin(0xfeed_beef, NEXT);
    let to = meta(B, b.attached.slot);
    b.client.detach().unwrap();
    let header = TrpHeader::parse(&probe(PacketType::Probe), 16).unwrap();
    a.send(&to, &probe(header.kind));
    let answer = a.receive().unwrap().octets;
    let reset = TrpHeader::parse(&answer, answer.len()).unwrap();
    assert_eq!((reset.kind, reset.ack.to_u32()), (PacketType::Reset, NEXT));
}

#[test]
fn packets_that_a_process_wrote_before_it_ended_leave() {
    const COUNT: u8 = 100;
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    from_a_to_b(&mut a, &mut b, b"first");
    let to = meta(B, b.attached.slot);
    for number in 0..COUNT {
        let mut packet = [0; 200];
        packet[1] = number;
        assert!(a.try_send(&to, &packet));
    }
    drop(a);
    for number in 0..COUNT {
        assert_eq!(b.receive().unwrap().octets[1], number);
    }
}

#[test]
fn process_that_takes_nothing_does_not_keep_others_from_receiving() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let mut a = hosts.a.attach();
    let (stopped, mut b) = (hosts.b.attach(), hosts.b.attach());
    from_a_to_b(&mut a, &mut b, b"first");
    let to = meta(B, stopped.attached.slot);
    eventually("the process that takes nothing is behind", || {
        (0..64).all(|_| a.try_send(&to, &[1; 1000])) && {
            let data = hosts.b.status().counters.data;
            data["drop_rx_slot_behind"] > 0
        }
    });
    for _ in 0..10 {
        let there = meta(B, b.attached.slot);
        a.send(&there, b"more");
        assert_eq!(b.receive().unwrap().octets, b"more");
    }
}

#[test]
fn packets_inside_the_host_leave_room_for_those_of_the_port() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let (mut a, mut local) = (hosts.a.attach(), hosts.b.attach());
    let (stopped, mut b) = (hosts.b.attach(), hosts.b.attach());
    from_a_to_b(&mut a, &mut b, b"first");
    let to = meta(B, stopped.attached.slot);
    eventually(
        "the process takes no more from processes of its host",
        || {
            (0..64).all(|_| local.try_send(&to, &[1; 1000])) && {
                let data = hosts.b.status().counters.data;
                data["drop_not_for_daemon"] > 0
            }
        },
    );
    for _ in 0..100 {
        a.send(&to, &[2; 1000]);
    }
    a.send(&meta(B, b.attached.slot), b"last");
    assert_eq!(b.receive().unwrap().octets, b"last");
    assert_eq!(hosts.b.status().counters.data["drop_rx_slot_behind"], 0);
}

#[test]
fn capture_is_filtered_and_divided_into_files() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "checksum = true");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    let client = hosts.a.client();
    let mut capture = |name: &str, options: CaptureOptions| {
        let file = scratch.path().join(format!("{name}.pcapng"));
        client.capture_start(file.clone(), options).unwrap();
        for _ in 0..20 {
            from_a_to_b(&mut a, &mut b, b"captured");
        }
        (client.capture_stop().unwrap(), file)
    };
    // They are no messages of connection management.
    let only_cm = CaptureOptions {
        only_cm: true,
        ..CaptureOptions::default()
    };
    let (counts, _) = capture("cm", only_cm);
    assert_eq!(counts.frames, 0, "{counts:?}");
    assert!(counts.filtered >= 20, "{counts:?}");
    let host = |host: &str| CaptureOptions {
        host: Some(host.parse().unwrap()),
        ..CaptureOptions::default()
    };
    assert!(capture("b", host(B)).0.frames >= 20);
    assert_eq!(capture("nobody", host("192.0.2.99")).0.frames, 0);
    let (counts, first) = capture(
        "divided",
        CaptureOptions {
            file_octets: Some(500),
            files: Some(2),
            ..CaptureOptions::default()
        },
    );
    assert!(counts.frames >= 20 && counts.files > 3, "{counts:?}");
    let path = |number: u32| format!("{}.{number}", first.display());
    assert!(!first.exists() && !std::path::Path::new(&path(counts.files - 3)).exists());
    for number in [counts.files - 2, counts.files - 1] {
        let octets = std::fs::metadata(path(number)).unwrap().len();
        assert!((100..1000).contains(&octets), "{number}: {octets}");
    }
}

#[test]
fn capture_holds_what_passes_and_tshark_reads_it() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "checksum = true");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    let file = scratch.path().join("a.pcapng");
    let client = hosts.a.client();
    client
        .capture_start(file.clone(), CaptureOptions::default())
        .unwrap();
    assert!(
        client
            .capture_start(file.clone(), CaptureOptions::default())
            .is_err(),
        "one at a time"
    );
    for _ in 0..5 {
        from_a_to_b(&mut a, &mut b, b"captured");
    }
    let counts = client.capture_stop().unwrap();
    assert!(counts.frames >= 5 && counts.dropped == 0, "{counts:?}");
    let output = Command::new("tshark")
        .args([
            "-r",
            file.to_str().unwrap(),
            "-T",
            "fields",
            "-e",
            "udp.dstport",
        ])
        .args([
            "-o",
            "udp.check_checksum:TRUE",
            "-Y",
            "udp.checksum.status == 1",
        ])
        .output()
        .unwrap();
    let ports = String::from_utf8(output.stdout).unwrap();
    let expected = udp_port(b.attached.slot).to_string();
    assert_eq!(
        ports.lines().filter(|port| **port == expected).count(),
        5,
        "{ports}"
    );
}

// Part of a frame was left in the file, and the number of frames was not said.
#[test]
fn capture_into_a_full_disk_ends_with_a_whole_frame() {
    let scratch = Scratch::new();
    let small = scratch.path().join("small");
    std::fs::create_dir(&small).unwrap();
    mount_small(&small);
    let hosts = start(&scratch, "");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    let file = small.join("a.pcapng");
    let client = hosts.a.client();
    client
        .capture_start(file.clone(), CaptureOptions::default())
        .unwrap();
    from_a_to_b(&mut a, &mut b, b"captured");
    fill(&small);
    eventually("the capture ends", || {
        for _ in 0..20 {
            from_a_to_b(&mut a, &mut b, &[3; 1000]);
        }
        hosts.a.log().contains("has ended after")
    });
    let why = client.capture_stop().unwrap_err().to_string();
    assert!(why.contains("No space left"), "{why}");
    let output = Command::new("tshark").arg("-r").arg(&file).output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let frames = String::from_utf8_lossy(&output.stdout).lines().count();
    assert!(
        why.contains(&format!("has the first {frames} frames")),
        "{frames}: {why}"
    );
    from_a_to_b(&mut a, &mut b, b"the port goes on");
}

#[test]
fn faults_begin_and_end_at_run_time_and_keep_leases_away() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    let client = hosts.a.client();
    let set = |impairment| client.set_faults(Direction::Out, impairment, Some(7));
    from_a_to_b(&mut a, &mut b, b"first");

    set(Impairment {
        loss_ppm: 1_000_000,
        ..Impairment::default()
    })
    .unwrap();
    let there = meta(B, b.attached.slot);
    a.send(&there, b"lost");
    eventually("it is lost", || {
        let faults = hosts.a.status().faults.unwrap();
        assert!(faults.inbound.is_none() && faults.seed == 7);
        faults.outbound.unwrap().counts.lost == 1
    });
    let (attached, _fd) = hosts.a.client().attach(true).unwrap();
    match attached.lease {
        LeaseAnswer::Refused(reason) => assert!(reason.contains("urdma fault --off"), "{reason}"),
        other => panic!("{other:?}"),
    }

    let delay = Duration::from_millis(300);
    set(Impairment {
        delay_ns: delay.as_nanos().try_into().unwrap(),
        ..Impairment::default()
    })
    .unwrap();
    let sent = Instant::now();
    from_a_to_b(&mut a, &mut b, b"late");
    assert!(sent.elapsed() >= delay);

    let corrupting = set(Impairment {
        corrupt_ppm: 1,
        ..Impairment::default()
    });
    let said = corrupting.unwrap_err().to_string();
    assert!(said.contains("checksum = true"), "{said}");

    set(Impairment::default()).unwrap();
    assert_eq!(hosts.a.status().faults.unwrap().outbound, None);
    from_a_to_b(&mut a, &mut b, b"last");
}

#[test]
fn lease_without_hugepages_is_refused_with_a_reason_and_forwarding_works() {
    let scratch = Scratch::new();
    // More than any machine has free: 64 GB.
    let hosts = start(&scratch, "lease_queues = 1\nhugepages_mb = 65536");
    let client = hosts.a.client();
    let (attached, _fd) = client.attach(true).unwrap();
    let LeaseAnswer::Refused(reason) = attached.lease else {
        panic!("{:?}", attached.lease)
    };
    assert!(reason.contains("hugepages"), "{reason}");
    let (mut a, mut b) = (hosts.a.attach(), hosts.b.attach());
    from_a_to_b(&mut a, &mut b, b"forwarded");
}

#[test]
fn idle_daemon_with_a_port_sleeps_most_of_the_time() {
    let scratch = Scratch::new();
    let hosts = start(&scratch, "");
    expect_idle(hosts.a.child.id(), 1000);
}

#[test]
fn host_of_another_version_is_named_in_the_status() {
    let scratch = Scratch::new();
    let config = "address = [\"127.9.3.1\"]\n[port]\nkind = \"udp\"\n";
    let daemon = Daemon::start(scratch.path(), "a", config);
    let other = std::net::UdpSocket::bind("127.9.3.2:0").unwrap();
    let notes = || daemon.status().port.unwrap().notes;
    let send = |first: u8| {
        let mut packet = [0; 64];
        packet[0] = first;
        other
            .send_to(&packet, ("127.9.3.1", urdma_types::PORT_BASE))
            .unwrap();
    };
    let count = |name: &str| daemon.status().counters.data[name];
    send(VERSION << 4);
    eventually("a packet of no use is dropped", || {
        count("drop_not_for_daemon") == 1
    });
    assert_eq!(notes(), [""; 0]);
    send((VERSION + 1) << 4);
    eventually("the host is named", || !notes().is_empty());
    let said = notes().concat();
    for words in ["127.9.3.2", "version 2", "the same version of urdma"] {
        assert!(said.contains(words), "no {words}: {said}");
    }
    assert_eq!(count("drop_rx_other_version"), 1);
    // Anybody could have sent that packet in the name of the host, which sends others.
    send(VERSION << 4);
    eventually("the host is cleared", || notes().is_empty());
}
