//! One instance without a port: attaching, datagrams, connection requests, death, limits.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use urdma_types::{slot_of_source_port, Ip16, Qpn, SlotId};

use proto_trp::wire::datagram::{DatagramHeader, HEADER_LEN};
use proto_trp::wire::Meta;
use support::{cm_port, eventually, is_reject, meta, request, Daemon, Process, Scratch, LIMIT};
use urdma_ipc::{
    ControlClient, ControlError, Event, ProcessReport, RefusalKind, Resolution, RunDir,
};

const HELPER: &str = "URDMAD_TEST_HELPER";

#[test]
fn start_without_port_shows_gids_and_leaves_nothing() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let gids = daemon
        .run_dir
        .sysfs()
        .join("class/infiniband/urdma0/ports/1/gids");
    let gid = std::fs::read_to_string(gids.join("1")).unwrap();
    assert_eq!(gid, "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
    daemon.stop();
}

#[test]
fn attach_gives_slots_gids_and_a_channel_that_carries_packets() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "address = [\"127.0.0.1\", \"::1\"]");
    let (mut a, mut b) = (daemon.attach(), daemon.attach());
    assert_ne!(a.slot(), b.slot());
    assert_eq!(a.attached.gids.len(), 3);
    assert_eq!(a.attached.mtu, 0);
    a.send(&meta("127.0.0.1", b.attached.slot), b"to b");
    assert_eq!(b.receive().unwrap().octets, b"to b");
    b.send(&meta("127.0.0.1", a.attached.slot), &[7; 9000]);
    assert_eq!(a.receive().unwrap().octets, [7; 9000]);
    let status = daemon.status();
    assert_eq!(status.slots.len(), 2);
    assert_eq!(
        status.slots[0].pid,
        i32::try_from(std::process::id()).unwrap()
    );
    daemon.stop();
}

/// A datagram to a multicast group.
fn to_group(group: IpAddr, sender: &Process, message: &[u8]) -> Vec<u8> {
    let header = DatagramHeader {
        destination_index: 0,
        qkey: 1,
        traffic_class: 0,
        source_qpn: Qpn::new(sender.slot(), 1).to_u32(),
        imm: None,
        solicited: false,
        source_gid: Ip16::new([127, 0, 0, 1].into()).0,
        destination_gid: Ip16::new(group).0,
    };
    let mut octets = [0; HEADER_LEN];
    header.encode(&mut octets).unwrap();
    [&octets[..], message].concat()
}

#[test]
fn members_of_a_group_get_copies_until_they_leave_or_end() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let [mut a, mut b, mut sender] = [(); 3].map(|()| daemon.attach());
    let group = IpAddr::from([239, 1, 2, 3]);
    for member in [&a, &b] {
        member.client.join_group(group).unwrap();
    }
    assert_eq!(
        b.client
            .join_group([10, 0, 0, 1].into())
            .unwrap_err()
            .errno(),
        nix::libc::EINVAL
    );
    let shown = daemon.status().groups;
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].group, shown[0].slots.len()), (group, 2));
    let where_to = Meta {
        dst_port: support::udp_port(0),
        ..meta("239.1.2.3", 0)
    };
    let first = to_group(group, &sender, &[7; 4096]);
    sender.send(&where_to, &first);
    for member in [&mut a, &mut b] {
        assert_eq!(member.receive().unwrap().octets, first);
    }
    // Each copy is taken in order, so what comes next says that nothing came in between.
    b.client.leave_group(group).unwrap();
    assert!(b.client.leave_group(group).is_err());
    let second = to_group(group, &sender, b"second");
    sender.send(&where_to, &second);
    assert_eq!(a.receive().unwrap().octets, second);
    b.client.join_group(group).unwrap();
    drop(a);
    eventually("the membership has ended", || {
        daemon.status().groups[0].slots == [b.attached.slot]
    });
    let third = to_group(group, &sender, b"third");
    sender.send(&where_to, &third);
    assert_eq!(b.receive().unwrap().octets, third);
    let data = daemon.status().counters.data;
    assert_eq!((data["group_datagrams"], data["group_copies"]), (3, 4));
    assert_eq!(data["drop_tx_no_port"], 0);
}

#[test]
fn resolve_without_port_knows_only_itself() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let client = daemon.client();
    assert_eq!(
        client.resolve([127, 0, 0, 1].into()).unwrap(),
        Resolution::Local
    );
    assert_eq!(
        client.resolve([10, 0, 0, 1].into()).unwrap(),
        Resolution::NoHost
    );
}

#[test]
fn request_for_a_listener_reaches_its_slot_and_otherwise_is_rejected() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (mut server, mut client) = (daemon.attach(), daemon.attach());
    assert_eq!(server.listen(1, cm_port("0.0.0.0", 7471)), 7471);
    let me = client.attached.slot;
    let listened = request("127.0.0.1:40000", me, "127.0.0.1:7471");
    client.send(&meta("127.0.0.1", 0), &listened);
    let frame = server.receive().unwrap();
    assert_eq!(frame.octets, listened);

    let no_listener = request("127.0.0.1:40000", me, "127.0.0.1:7472");
    client.send(&meta("127.0.0.1", 0), &no_listener);
    let frame = client.receive().unwrap();
    assert!(is_reject(&frame.octets));

    server.client.cm_release(1).unwrap();
    client.send(&meta("127.0.0.1", 0), &listened);
    assert!(is_reject(&client.receive().unwrap().octets));
    let data = daemon.status().counters.data;
    assert_eq!((data["cm_requests"], data["cm_rejected"]), (1, 2));
}

#[test]
fn request_for_a_port_that_is_bound_waits_for_its_listener() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (mut server, mut client) = (daemon.attach(), daemon.attach());
    let port = server.client.cm_bind_port(1, cm_port("0.0.0.0", 7471));
    assert_eq!(port.unwrap(), 7471);
    let wanted = request("127.0.0.1:40000", client.attached.slot, "127.0.0.1:7471");
    client.send(&meta("127.0.0.1", 0), &wanted);
    eventually("the request is left unanswered", || {
        daemon.status().counters.data["cm_unanswered"] == 1
    });
    server.client.cm_listen(1, 5).unwrap();
    client.send(&meta("127.0.0.1", 0), &wanted);
    assert_eq!(server.receive().unwrap().octets, wanted);
    assert_eq!(daemon.status().counters.data["cm_rejected"], 0);
}

#[test]
fn cm_ports_taken_or_foreign_are_refused_with_the_right_errno() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let (a, b) = (daemon.attach(), daemon.attach());
    let local = cm_port("127.0.0.1", 5000);
    a.listen(1, local);
    let taken = b.client.cm_bind_port(1, local).unwrap_err();
    assert_eq!(taken.errno(), nix::libc::EADDRINUSE);
    let taken = b.client.cm_bind_port(1, cm_port("0.0.0.0", 5000));
    assert_eq!(taken.unwrap_err().errno(), nix::libc::EADDRNOTAVAIL);
    let foreign = b.client.cm_bind_port(1, cm_port("10.0.0.1", 5000));
    let foreign = foreign.unwrap_err();
    assert_eq!(foreign.errno(), nix::libc::EADDRNOTAVAIL);
    assert!(foreign.to_string().contains("127.0.0.1"), "{foreign}");
    let ephemeral = b.client.cm_bind_port(1, cm_port("127.0.0.1", 0));
    assert!(ephemeral.unwrap() >= 32_768);
    b.client.cm_release(1).unwrap();
    assert!(b.client.cm_release(1).is_err());
    drop(a);
    eventually("the port of a dead process is free", || {
        b.client.cm_bind_port(2, local).is_ok()
    });
    let unattached = daemon.client().cm_bind_port(1, local);
    assert!(
        matches!(unattached, Err(ControlError::Refused(r)) if r.kind == RefusalKind::NotAttached)
    );
}

#[test]
fn slots_beyond_the_configured_are_refused() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(
        scratch.path(),
        "a",
        "slots = 2\n[quota]\nslots_per_user = 5",
    );
    let (first, _second) = (daemon.attach(), daemon.attach());
    let client = daemon.client();
    let refused = client.attach(false).unwrap_err();
    assert!(refused.to_string().contains("all 2 slots"), "{refused}");
    assert_eq!(refused.errno(), nix::libc::EMFILE);
    first.client.detach().unwrap();
    let (attached, _fd) = client.attach(false).unwrap();
    assert_eq!(attached.slot, 1);
    drop(client);
}

#[test]
fn other_version_is_told_which_one_urdmad_has() {
    use urdma_ipc::message::{FromClient, FromDaemon, Request};
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let socket =
        urdma_ipc::packet::PacketSocket::connect(&daemon.run_dir.control_socket()).unwrap();
    let request = Request::Hello {
        version: 999,
        program: "old".into(),
    };
    socket.send(&FromClient { id: 1, request }, &[]).unwrap();
    let answer: FromDaemon = socket
        .recv(&mut [0; 4096])
        .unwrap()
        .unwrap()
        .parse()
        .unwrap();
    let FromDaemon::Answer {
        result: Err(refusal),
        ..
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert_eq!(
        refusal.kind,
        RefusalKind::VersionMismatch {
            theirs: urdma_ipc::PROTOCOL_VERSION
        }
    );
}

#[test]
fn garbage_on_the_control_socket_ends_only_that_connection() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let good = daemon.client();
    let socket =
        urdma_ipc::packet::PacketSocket::connect(&daemon.run_dir.control_socket()).unwrap();
    socket.send(&"what?", &[]).unwrap();
    assert!(matches!(socket.recv(&mut [0; 4096]), Ok(None) | Err(_)));
    assert!(good.status().is_ok());
}

#[test]
fn status_shows_what_processes_report() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let process = daemon.attach();
    let report = ProcessReport {
        qps: 3,
        ..ProcessReport::default()
    };
    // urdmad waits a tenth of a second for the answer: a process may come too late, once.
    eventually("a report is shown", || {
        let asker = daemon.client();
        let asked = std::thread::spawn(move || asker.status().unwrap());
        let event = process.next_event();
        assert_eq!(event, Some(Event::ReportWanted));
        process.client.report(report.clone()).unwrap();
        let shown = asked.join().unwrap().slots[0].report.clone();
        assert!(shown.is_none() || shown == Some(report.clone()));
        shown.is_some()
    });
    // Who does not answer is shown without.
    assert_eq!(daemon.status().slots[0].report, None);
}

#[test]
fn calls_from_threads_and_events_share_one_client() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let process = daemon.attach();
    let client = &process.client;
    std::thread::scope(|scope| {
        let events = scope.spawn(|| {
            let mut gone = 0;
            while gone < 5 {
                match client.next_event(Some(LIMIT)).unwrap().unwrap().0 {
                    Event::SlotGone { .. } => gone += 1,
                    other => panic!("{other:?}"),
                }
            }
        });
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(
                        client.resolve([127, 0, 0, 1].into()).unwrap(),
                        Resolution::Local
                    );
                }
            });
        }
        for _ in 0..5 {
            drop(daemon.attach());
        }
        events.join().unwrap();
    });
}

#[test]
fn shutdown_tells_the_processes_and_removes_everything() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let process = daemon.attach();
    let run_dir = daemon.run_dir.clone();
    daemon.stop();
    assert_eq!(process.next_event(), Some(Event::Shutdown));
    assert!(matches!(
        process.client.next_event(Some(LIMIT)),
        Err(ControlError::Gone)
    ));
    let error = ControlClient::connect(&run_dir, "test").unwrap_err();
    assert!(matches!(error, ControlError::NoDaemon { .. }), "{error}");
    assert!(error.to_string().contains("urdma up"), "{error}");
    assert_eq!(
        std::fs::read_dir(scratch.path()).unwrap().count(),
        1,
        "only the configuration"
    );
}

#[test]
fn unknown_instance_is_told_which_exist() {
    let scratch = Scratch::new();
    let _daemon = Daemon::start(scratch.path(), "here", "");
    let error =
        ControlClient::connect(&RunDir::at(scratch.path().join("there")), "test").unwrap_err();
    assert!(error.to_string().contains("here"), "{error}");
    assert!(matches!(error, ControlError::UnknownInstance { .. }));
}

#[test]
fn killed_process_gives_everything_back() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let mut peer = daemon.attach();
    for round in 0..10 {
        let mut child = helper("exchange", &daemon.run_dir, peer.attached.slot);
        // In the middle of an exchange: it has sent, holds frames, and has some in its ring.
        let mut received = 0;
        let from = loop {
            let packet = peer.receive().expect("the helper sends");
            let from = slot_of_source_port(packet.meta.src_port).unwrap();
            peer.try_send(&meta("127.0.0.1", from.number()), &[0; 2000]);
            received += 1;
            if received > 100 + 37 * round {
                break from;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        // A request for the status makes urdmad request a report from the peer, too.
        let next = || peer.next_event();
        let mut events = std::iter::repeat_with(next);
        let event = events.find(|event| *event != Some(Event::ReportWanted));
        let event = event.flatten();
        let slot = from.number();
        assert!(
            matches!(event, Some(Event::SlotGone { slot: gone, .. }) if gone == slot),
            "{event:?}"
        );
        while peer.poll().is_some() {}
        let after = daemon.status();
        assert_eq!(after.slots.len(), 1);
        assert_eq!(after.listeners.len(), 0);
    }
    let counters = daemon.status().counters;
    assert_eq!(counters.reaped, 10);
}

#[test]
fn killed_process_whose_child_keeps_the_socket_is_noticed() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let watcher = daemon.attach();
    let mut child = helper("fork", &daemon.run_dir, 0);
    // It says the pid of its child when it is attached.
    let said = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .find_map(|line| Some(line.unwrap().split_once("pid ")?.1.to_owned()));
    child.kill().unwrap();
    child.wait().unwrap();
    let event = watcher.next_event();
    let pid = said.unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
    assert!(matches!(event, Some(Event::SlotGone { .. })), "{event:?}");
}

/// This test program again, as another process that runs [`helper_process`].
fn helper(what: &str, run_dir: &RunDir, peer: u8) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_process", "--nocapture"])
        .env(
            HELPER,
            format!("{what}:{peer}:{}", run_dir.path().display()),
        )
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap()
}

/// No test of its own: what the processes that are killed do.
#[test]
fn helper_process() {
    let Ok(wanted) = std::env::var(HELPER) else {
        return;
    };
    let mut parts = wanted.splitn(3, ':');
    let what = parts.next().unwrap();
    let peer = SlotId::new(parts.next().unwrap().parse().unwrap()).unwrap();
    let mut process = Process::attach(&RunDir::at(parts.next().unwrap()));
    if what == "fork" {
        // The control socket; those that the standard library makes for spawning come later.
        let sockets: Vec<i32> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                std::fs::read_link(path)
                    .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
            })
            .map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
            .collect();
        let mut sleeper = Command::new("sleep");
        // SAFETY: fcntl is async-signal-safe and only clears a flag of descriptors that stay open.
        unsafe {
            sleeper.pre_exec(move || {
                for fd in &sockets {
                    nix::fcntl::fcntl(
                        std::os::fd::BorrowedFd::borrow_raw(*fd),
                        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
                    )?;
                }
                Ok(())
            });
        }
        let mut child = sleeper.arg("60").spawn().unwrap();
        println!("pid {}", child.id());
        child.wait().unwrap();
        return;
    }
    process.listen(1, cm_port("0.0.0.0", 0));
    loop {
        process.try_send(&meta("127.0.0.1", peer.number()), &[0; 2000]);
        process.poll();
        std::thread::yield_now();
    }
}

#[test]
fn requests_of_one_user_beyond_the_quota_are_dropped_and_counted() {
    const FLOOD: usize = 50;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "[quota]\nrequests_per_second = 1");
    let mut flooder = daemon.attach();
    let request = request("127.0.0.1:50000", flooder.attached.slot, "127.0.0.1:7174");
    for _ in 0..FLOOD {
        flooder.send(&meta("127.0.0.1", 0), &request);
    }
    eventually("every request is answered or dropped", || {
        let data = daemon.status().counters.data;
        data["cm_rejected"] + data["drop_request_limit"] == FLOOD as u64
    });
    assert!(daemon.status().counters.data["drop_request_limit"] > 0);
    assert!(is_reject(&flooder.receive().unwrap().octets));
    daemon.stop();
}
