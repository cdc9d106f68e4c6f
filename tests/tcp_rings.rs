//! TCP connections of one host over rings (doc/sockets.md).
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::libc;
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{kill, Signal};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::fstat;
use nix::unistd::Pid;
use urdma_harness::pair::is_ready;
use urdma_harness::process::{wait_until, Process};
use urdma_harness::programs::Ready;
use urdma_ipc::message::Event;
use urdma_ipc::{ControlClient, JoinedSocket, SocketReason};
use urdma_tests::rings::{at_the_end, client, file, from_call, output, reasons, shell, status};
use urdma_tests::{alone, ports, OneHost, SHORT};

#[path = "tcp-rings/cancelled.rs"]
mod cancelled;
#[cfg(target_arch = "x86_64")]
#[path = "tcp-rings/diagnosed.rs"]
mod diagnosed;
#[path = "tcp-rings/excluded.rs"]
mod excluded;
#[path = "tcp-rings/forks.rs"]
mod forks;
#[path = "tcp-rings/jumps.rs"]
mod jumps;

/// Both ends of a connection of this host.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    (one, other)
}

fn offer(client: &ControlClient, socket: &impl AsFd) -> u64 {
    let [bell, agent] = [EventFd::new().unwrap(), EventFd::new().unwrap()];
    let fds = [socket.as_fd(), bell.as_fd(), agent.as_fd()];
    client.offer_socket(fds).unwrap()
}

fn joined(client: &ControlClient) -> (JoinedSocket, Vec<OwnedFd>) {
    loop {
        match client.next_event(Some(SHORT)).unwrap().unwrap() {
            (Event::SocketJoined(joined), fds) => return (joined, fds),
            (Event::SocketWaits { .. }, _) => {}
            (event, _) => panic!("{event:?}"),
        }
    }
}

#[test]
fn ends_of_a_connection_get_the_same_memory() {
    let _alone = alone();
    let one = OneHost::up();
    let (here, there) = connection();
    let clients = [client(&one), client(&one)];
    let ids = [offer(&clients[0], &here), offer(&clients[1], &there)];
    let ends = [0, 1].map(|end| joined(&clients[end]));
    let place = |fd: &OwnedFd| fstat(fd).map(|of| (of.st_dev, of.st_ino)).unwrap();
    assert_eq!(place(&ends[0].1[0]), place(&ends[1].1[0]));
    assert_eq!([ends[0].0.offer, ends[1].0.offer], ids);
    assert_ne!(ends[0].0.is_first, ends[1].0.is_first);
    assert_eq!(ends[0].0.process, ends[1].0.peer_process);
    let status_now = status(&clients[0]);
    assert_eq!((status_now.joined, status_now.open), (1, 1));

    clients[0].forget_socket(ids[0]).unwrap();
    let [observer, leaving] = clients;
    drop(leaving);
    wait_until("the end", SHORT, || status(&observer).open == 0).unwrap();
    assert_eq!(status(&observer).joined, 1);
    one.down();
}

/// A connection whose first end lingers for an hour when it is closed, with octets that the other
/// one has not read.
fn lingering() -> (TcpStream, TcpStream) {
    let (mut here, there) = connection();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 3600,
    };
    setsockopt(&here, sockopt::Linger, &linger).unwrap();
    here.set_nonblocking(true).unwrap();
    while here.write(&[7; 1 << 16]).is_ok() {}
    (here, there)
}

/// Whether a process has the TCP socket with these addresses.
fn is_open(local: SocketAddr, remote: SocketAddr) -> bool {
    let ends = [local, remote].map(|end| format!("0100007F:{:04X}", end.port()));
    let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let mut sockets = sockets
        .lines()
        .filter(|line| line.contains(&ends.join(" ")));
    sockets.any(|line| line.split_whitespace().nth(9) != Some("0"))
}

/// A copy that urdmad keeps holds back the end of the connection. No close of urdmad's waits,
/// though it is the last one.
#[test]
fn offer_is_answered_when_urdmad_has_closed_the_socket() {
    let _alone = alone();
    let one = OneHost::up();
    let client = client(&one);
    let urdmad = Pid::from_raw(one.host.daemon_pid().unwrap().try_into().unwrap());
    for is_refused in [false, true].repeat(25) {
        let (here, mut there) = lingering();
        let ends = (here.local_addr().unwrap(), here.peer_addr().unwrap());
        if is_refused {
            there.shutdown(Shutdown::Write).unwrap();
        }
        kill(urdmad, Signal::SIGSTOP).unwrap();
        let offer = offer(&client, &here);
        drop(here);
        assert!(is_open(ends.0, ends.1));
        kill(urdmad, Signal::SIGCONT).unwrap();
        let expected = match is_refused {
            false => Event::SocketWaits { offer },
            true => Event::SocketRefused { offer },
        };
        let event = client.next_event(Some(SHORT)).unwrap().unwrap().0;
        assert_eq!(event, expected);
        assert!(!is_open(ends.0, ends.1));
        let mut read = Vec::new();
        there.read_to_end(&mut read).unwrap();
        assert!(read.len() > 1 << 16 && read.iter().all(|octet| *octet == 7));
        client.forget_socket(offer).unwrap();
    }
    one.down();
}

/// More than urdmad has closed at once.
#[test]
fn many_offers_at_once_are_all_answered() {
    const OFFERS: usize = 200;
    let _alone = alone();
    let one = OneHost::up();
    let urdmad = Pid::from_raw(one.host.daemon_pid().unwrap().try_into().unwrap());
    let clients = [client(&one), client(&one)];
    let (here, _there) = connection();
    kill(urdmad, Signal::SIGSTOP).unwrap();
    for client in &clients {
        for _ in 0..OFFERS {
            offer(client, &here);
        }
    }
    kill(urdmad, Signal::SIGCONT).unwrap();
    for client in &clients {
        for _ in 0..OFFERS {
            client.next_event(Some(SHORT)).unwrap().unwrap();
        }
    }
    one.down();
}

#[test]
fn socket_that_is_no_connection_is_refused_and_other_files_end_the_client() {
    let _alone = alone();
    let one = OneHost::up();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = client(&one);
    let id = offer(&other, &listener);
    let event = other.next_event(Some(SHORT)).unwrap().unwrap().0;
    assert_eq!(event, Event::SocketRefused { offer: id });

    let (socket, _peer) = connection();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (file, bell) = (File::open("/dev/null").unwrap(), EventFd::new().unwrap());
    for fds in [
        [socket.as_fd(), file.as_fd(), bell.as_fd()],
        [datagrams.as_fd(), bell.as_fd(), bell.as_fd()],
        [file.as_fd(), bell.as_fd(), bell.as_fd()],
    ] {
        let other = client(&one);
        other.offer_socket(fds).unwrap();
        assert!(other.next_event(Some(SHORT)).is_err());
    }
    one.down();
}

const ENDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings/ends.py");
const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings/cases.py");
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings/files.py");
const IDLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings/idle.py");

/// One end of `ends.py`.
fn end(one: &OneHost, words: &str) -> Process {
    shell(one, &format!("python3 {ENDS} {words}"))
}

fn listening(one: &OneHost, words: &str) -> Process {
    let mut process = end(one, words);
    process.wait_for_text("ready", SHORT).unwrap();
    process
}

/// `ends.py ping`, which begins when both ends have met.
fn ping(one: &OneHost, port: u16, trips: u64, go_on: &str) -> Process {
    meeting(one, &format!("ping {port} {trips}"), go_on)
}

/// One end, which begins when both have met.
fn meeting(one: &OneHost, words: &str, go_on: &str) -> Process {
    let begin = one.scratch.path().join("begin");
    let process = end(one, &format!("{words} {} {go_on}", begin.display()));
    let observer = client(one);
    wait_until("the meeting", SHORT, || status(&observer).joined > 0).unwrap();
    File::create(begin).unwrap();
    process
}

#[test]
fn round_trips_of_sleeping_ends_go_over_rings() {
    const TRIPS: u64 = 2000;
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("echo {port}"));
    let client = ping(&one, port, TRIPS, "/dev/null");
    assert!(output(client).contains("done"));
    assert!(output(server).contains(&format!("end after {}", 10 + 2 * TRIPS)));
    let status = at_the_end(&one);
    let octets = 2 * (10 + 2 * TRIPS) * 64;
    assert_eq!(status.joined, 1);
    // How soon the ends meet is urdmad's and the scheduler's.
    assert!((1..=octets).contains(&status.ring_octets), "{status:?}");
    one.down();
}

#[test]
fn connection_is_offered_from_the_call_that_is_named() {
    let _alone = alone();
    let one = OneHost::up();
    for (call, meetings) in [(0, 1), (2, 0)] {
        let before = at_the_end(&one).joined;
        let port = ports();
        let start = |words: &[&str]| {
            let argv: Vec<&str> = ["python3", ENDS].iter().chain(words).copied().collect();
            Process::start(&mut from_call(&one, call, &argv)).unwrap()
        };
        let port = port.to_string();
        let mut server = start(&["echo", &port]);
        server.wait_for_text("ready", SHORT).unwrap();
        output(start(&["once", &port]));
        assert!(output(server).contains("end after 1"));
        let joined = at_the_end(&one).joined - before;
        assert_eq!(joined, meetings, "from call {call}");
    }
    let mut command = one.host.run_over_rings(&["true"]).unwrap();
    command.env("URDMA_SOCKETS_FROM", "often");
    let ended = Process::start(&mut command).unwrap().wait(SHORT).unwrap();
    let says = "invalid value 'often' for '--sockets-from <CALL>'";
    assert!(ended.errors.contains(says), "{}", ended.describe());
    one.down();
}

/// Whether a process sleeps at each of many looks.
fn is_asleep(process: &Process) -> bool {
    let stat = format!("/proc/{}/stat", process.id());
    (0..50).all(|_| {
        std::thread::sleep(Duration::from_millis(2));
        let stat = std::fs::read_to_string(&stat).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    })
}

/// The direction is TCP's until then.
#[test]
fn receive_sleeps_until_the_first_octets() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports().to_string();
    let files = ["receive", "send"].map(|name| one.scratch.path().join(name));
    let start = |role: usize| {
        let name = ["receive", "send"][role];
        let argv = ["python3", IDLE, name, &port, files[role].to_str().unwrap()];
        Process::start(&mut from_call(&one, 0, &argv)).unwrap()
    };
    let mut server = start(0);
    server.wait_for_text("ready", SHORT).unwrap();
    let client = start(1);
    let observer = self::client(&one);
    wait_until("the meeting", SHORT, || status(&observer).joined > 0).unwrap();
    File::create(&files[0]).unwrap();
    server.wait_for_text("receives", SHORT).unwrap();
    wait_until("the sleep", SHORT, || is_asleep(&server)).unwrap();
    File::create(&files[1]).unwrap();
    assert!(output(server).contains("got 64"));
    output(client);
    one.down();
}

#[test]
fn close_ends_or_resets_a_connection_at_once() {
    let _alone = alone();
    let one = OneHost::up();
    for call in [0, 1] {
        let argv = ["python3", ENDS, "hang_up", "600"];
        let process = Process::start(&mut from_call(&one, call, &argv)).unwrap();
        assert!(output(process).contains("done"));
    }
    assert!(at_the_end(&one).joined > 0);
    one.down();
}

/// What `cases.py` prints of each case, by the name of the case.
fn cases(mut command: Command) -> Vec<String> {
    let outcomes = output(Process::start(&mut command).unwrap());
    let mut lines: Vec<String> = outcomes.lines().map(str::to_owned).collect();
    lines.retain(|line| !line.is_empty());
    lines
}

#[test]
fn calls_return_what_they_do_by_tcp() {
    let _alone = alone();
    let one = OneHost::up();
    let mut plain = Command::new("python3");
    plain.arg(CASES);
    let by_tcp = cases(plain);
    let over_rings = cases(from_call(&one, 0, &["python3", CASES, "--rings"]));
    assert_eq!(by_tcp, over_rings);
    // Each case has a connection whose ends have met, or two.
    let names = by_tcp.iter().filter_map(|line| line.split(' ').next());
    let count = names.collect::<BTreeSet<_>>().len() as u64;
    let status = at_the_end(&one);
    assert!(count > 40 && status.joined >= count, "{count}: {status:?}");
    // Most of the octets that go there before the case begins do not begin the rings.
    assert!(status.ring_octets >= count * 100, "{status:?}");
    one.down();
}

#[test]
fn limits_of_time_leave_connections_on_rings() {
    let _alone = alone();
    let one = OneHost::up();
    let names = [
        "limit_of_a_receive",
        "limit_of_a_send_by_parts",
        "limit_of_all_waits",
        "limit_of_a_listener",
        "limits_and_signals",
    ];
    let argv = ["python3", CASES].into_iter().chain(names);
    let argv: Vec<&str> = argv.collect();
    assert!(!cases(from_call(&one, 0, &argv)).is_empty());
    let status = at_the_end(&one);
    assert_eq!(reasons(&client(&one)), []);
    assert_eq!(status.joined, names.len() as u64 + 1);
    one.down();
}

#[test]
fn threads_that_send_and_receive_at_once_keep_the_rings() {
    const OCTETS: u64 = 8 << 20;
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("echo {port}"));
    let client = meeting(&one, &format!("duplex {port} {OCTETS}"), "");
    assert!(output(client).contains("done"));
    output(server);
    let status = at_the_end(&one);
    assert!(status.ring_octets > OCTETS, "{status:?}");
    one.down();
}

#[test]
fn threads_that_sleep_in_any_call_of_one_connection_keep_the_rings() {
    const OCTETS: u64 = 4 << 20;
    let _alone = alone();
    let one = OneHost::up();
    for ways in [2, 3, 5, 6] {
        let before = at_the_end(&one);
        let port = ports();
        let server = listening(&one, &format!("herd {port} {OCTETS} {ways}"));
        let begin = one.scratch.path().join(format!("begin-{ways}"));
        let client = end(&one, &format!("feed {port} {OCTETS} {}", begin.display()));
        let observer = self::client(&one);
        let has_met = || status(&observer).joined > before.joined;
        wait_until("the meeting", SHORT, has_met).unwrap();
        File::create(begin).unwrap();
        assert!(output(client).contains("done"));
        assert!(output(server).contains("each has some"));
        let moved = at_the_end(&one).ring_octets - before.ring_octets;
        assert!(moved > OCTETS / 2, "{ways}: {moved}");
    }
    one.down();
}

/// Has two netcats move a file, by options of the one that listens and the other one; they meet.
fn netcats(one: &OneHost, program: &str, server: &str, client: &str) {
    let before = at_the_end(one);
    let port = ports();
    let server = shell(
        one,
        &format!("{program} {}", server.replace("PORT", &port.to_string())),
    );
    let listens = || is_ready(Ready::Tcp(port), &one.host);
    wait_until("a listener", SHORT, listens).unwrap();
    output(shell(one, &format!("{program} 127.0.0.1 {port} {client}")));
    output(server);
    // A direction stays with TCP while its send buffer is full, so few octets or most of them are
    // in the ring.
    let status = at_the_end(one);
    assert_eq!(status.joined, before.joined + 1, "{status:?}");
}

#[test]
fn netcat_moves_files_both_ways() {
    let _alone = alone();
    let one = OneHost::up();
    let [from, to] = ["sent", "got"].map(|name| one.scratch.path().join(name));
    let octets = file(&from);
    let check = || assert!(std::fs::read(&to).unwrap() == octets);
    let [from, to] = [from.display(), to.display()];
    netcats(
        &one,
        "nc",
        &format!("-l 127.0.0.1 PORT -N <{from}"),
        &format!("-d >{to}"),
    );
    check();
    netcats(
        &one,
        "nc",
        &format!("-l 127.0.0.1 PORT -d >{to}"),
        &format!("-N <{from}"),
    );
    check();
    // It waits in select.
    let listen = "-l -s 127.0.0.1 -p PORT";
    netcats(
        &one,
        "nc.traditional",
        &format!("{listen} -q 0 <{from}"),
        &format!("</dev/null >{to}"),
    );
    check();
    netcats(
        &one,
        "nc.traditional",
        &format!("{listen} </dev/null >{to}"),
        &format!("-q 0 <{from}"),
    );
    check();
    one.down();
}

#[test]
fn curl_gets_a_file_of_http_server() {
    let _alone = alone();
    let one = OneHost::up();
    let dir = one.scratch.path();
    let octets = file(&dir.join("sent"));
    let port = ports();
    let from = dir.display();
    // Else a busy machine may run the agents when the file is sent.
    let start = |line: String| {
        let words: Vec<&str> = line.split(' ').collect();
        Process::start(&mut from_call(&one, 0, &words)).unwrap()
    };
    let line = format!("python3 -u -m http.server --bind 127.0.0.1 --directory {from} {port}");
    let mut server = start(line);
    server.wait_for_text("Serving", SHORT).unwrap();
    let got = format!("{from}/got");
    output(start(format!(
        "curl -sS -o {got} http://127.0.0.1:{port}/sent"
    )));
    assert!(std::fs::read(dir.join("got")).unwrap() == octets);
    let status = at_the_end(&one);
    assert_eq!(status.joined, 1, "{status:?}");
    server.signal(Signal::SIGTERM).unwrap();
    one.down();
}

/// What a sender of `files.py` prints; `start` starts an end, and `met` is called between.
fn sent_files(folder: &Path, start: impl Fn(&str) -> Process, met: impl Fn(u64)) -> String {
    std::fs::create_dir(folder).unwrap();
    let (port, begin) = (ports(), folder.join("begin"));
    let mut taker = start(&format!("{FILES} take {port}"));
    taker.wait_for_text("ready", SHORT).unwrap();
    let (folder, begin) = (folder.display(), begin.display());
    let sender = start(&format!("{FILES} send {port} {folder} {begin}"));
    for (connections, suffix) in [(2, ""), (4, "-again")] {
        met(connections);
        File::create(format!("{begin}{suffix}")).unwrap();
    }
    let said = output(sender);
    output(taker);
    said
}

#[test]
fn sendfile_by_rings_returns_and_leaves_what_it_does_by_tcp() {
    let _alone = alone();
    let one = OneHost::up();
    let folder = |name: &str| one.scratch.path().join(name);
    let plain = |words: &str| {
        let mut command = Command::new("python3");
        Process::start(command.args(words.split_whitespace())).unwrap()
    };
    let by_tcp = sent_files(&folder("tcp"), plain, |_| ());
    assert!(by_tcp.ends_with("done\n"), "{by_tcp}");
    let observer = self::client(&one);
    let over_rings = |words: &str| shell(&one, &format!("python3 {words}"));
    let by_rings = sent_files(&folder("rings"), over_rings, |connections| {
        let have_met = || status(&observer).joined == connections;
        wait_until("the meetings", SHORT, have_met).unwrap();
    });
    assert_eq!(by_rings, by_tcp);
    assert_eq!(reasons(&observer), [(SocketReason::Splice, 1)]);
    // The files that are larger than any buffer.
    assert!(at_the_end(&one).ring_octets > 32 << 20);
    one.down();
}

#[test]
fn octets_stay_in_order_around_calls_of_the_kernel() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("serve {port}"));
    assert!(output(end(&one, &format!("change {port} 300"))).contains("done"));
    assert!(output(server).contains("served"));
    let status = at_the_end(&one);
    assert!(
        status.joined > 6 && status.ring_octets > 1 << 14,
        "{status:?}"
    );
    one.down();
}

#[test]
fn status_says_why_connections_move_to_tcp() {
    const NUMBER: u64 = 5;
    /// The one whose socket is not offered by one end.
    const LIMITED: u64 = 3;
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("serve {port} {NUMBER}"));
    let dir = one.scratch.path();
    let client = end(&one, &format!("reasons {port} {}", dir.display()));
    let observer = self::client(&one);
    let mut joined = 0;
    for number in 0..NUMBER {
        joined += u64::from(number != LIMITED);
        let is_there = || status(&observer).joined == joined;
        wait_until("the meeting", SHORT, is_there).unwrap();
        File::create(dir.join(number.to_string())).unwrap();
    }
    output(client);
    output(server);
    let expected = [
        SocketReason::PeerAbsent,
        SocketReason::Option,
        SocketReason::Flags,
        SocketReason::Ioctl,
        SocketReason::Dup,
        SocketReason::Exec,
    ];
    let expected = expected.map(|reason| (reason, 1));
    let are_counted = || reasons(&observer) == expected;
    if let Err(error) = wait_until("the counts", SHORT, are_counted) {
        panic!("{error}: {:?}", reasons(&observer));
    }
    let mut command = one.host.subcommand("status").unwrap();
    let shown = output(Process::start(&mut command).unwrap());
    let lines = shown.lines().filter(|line| line.starts_with("sockets_"));
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let expected = expected.map(|(reason, count)| format!("sockets_{} {count}", reason.name()));
    assert_eq!(lines.collect::<Vec<_>>(), expected);
    one.down();
}

#[test]
fn socket_whose_peer_has_no_rings_is_counted() {
    let _alone = alone();
    let one = OneHost::up();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let begin = one.scratch.path().join("begin");
    let client = end(
        &one,
        &format!("ping {port} 50 {} /dev/null", begin.display()),
    );
    let (mut socket, _) = listener.accept().unwrap();
    let echo = std::thread::spawn(move || {
        let mut octets = [0; 1 << 10];
        loop {
            match socket.read(&mut octets).unwrap() {
                0 => break,
                count => socket.write_all(&octets[..count]).unwrap(),
            }
        }
    });
    let observer = self::client(&one);
    wait_until("the offer", SHORT, || status(&observer).waiting == 1).unwrap();
    File::create(begin).unwrap();
    assert!(output(client).contains("done"));
    echo.join().unwrap();
    let is_counted = || reasons(&observer) == [(SocketReason::PeerAbsent, 1)];
    wait_until("the count", SHORT, is_counted).unwrap();
    one.down();
}

#[test]
fn connections_of_epoll_poll_and_select_have_rings() {
    const CONNECTIONS: u64 = 40;
    const MESSAGES: u64 = 20;
    let _alone = alone();
    let one = OneHost::up();
    let kinds = [
        "level",
        "edge",
        "once",
        "threads",
        "SelectSelector",
        "PollSelector",
        "tasks",
    ];
    for trigger in kinds {
        let before = at_the_end(&one);
        let port = ports();
        let server = match trigger {
            "threads" => format!("crowd {port} {CONNECTIONS}"),
            "tasks" => format!("serve_tasks {port} {CONNECTIONS}"),
            "SelectSelector" | "PollSelector" => format!("choose {port} {CONNECTIONS} {trigger}"),
            trigger => format!("events {port} {CONNECTIONS} {trigger}"),
        };
        let server = listening(&one, &server);
        let begin = one.scratch.path().join(trigger);
        let words = format!("visit {port} {CONNECTIONS} {MESSAGES} {}", begin.display());
        let client = end(&one, &words);
        let observer = self::client(&one);
        let joined = || status(&observer).joined - before.joined;
        wait_until("the meetings", SHORT, || joined() == CONNECTIONS).unwrap();
        File::create(begin).unwrap();
        assert!(output(client).contains("done"));
        assert!(output(server).contains("served"));
        let moved = at_the_end(&one).ring_octets - before.ring_octets;
        // The mean message has 76 KB; both ways.
        assert!(
            moved > CONNECTIONS * MESSAGES * (100 << 10),
            "{trigger}: {moved}"
        );
    }
    one.down();
}

#[test]
fn rings_come_back_when_a_forked_child_has_ended() {
    const TRIPS: u64 = 500;
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let dir = one.scratch.path().display().to_string();
    let make = |name: &str| File::create(one.scratch.path().join(name)).unwrap();
    let mut server = listening(&one, &format!("branch {port} {dir}/fork {dir}/end"));
    let files: Vec<String> = (0..4).map(|stage| format!("{dir}/stage-{stage}")).collect();
    let words = format!("stages {port} {TRIPS} {}", files.join(" "));
    let mut client = end(&one, &words);
    let observer = self::client(&one);
    let mut stage = |number: usize| {
        make(&format!("stage-{number}"));
        let done = format!("stage {number}");
        client.wait_for_text(&done, SHORT).unwrap();
        status(&observer).ring_octets
    };
    wait_until("the meeting", SHORT, || status(&observer).joined == 1).unwrap();
    let with_rings = stage(0);
    assert!(with_rings >= TRIPS * 64, "{with_rings}");
    make("fork");
    let with_child = stage(1);
    // A message to the server is in the ring when it forks, and its answer.
    assert!(with_child <= with_rings + 4 * 64, "{with_child}");
    assert_eq!(status(&observer).joined, 1);
    make("end");
    server.wait_for_text("ended", SHORT).unwrap();
    stage(2);
    wait_until("the meeting", SHORT, || status(&observer).joined == 2).unwrap();
    let before = status(&observer).ring_octets;
    let again = stage(3);
    assert!(again >= before + TRIPS * 64, "{before} {again}");
    output(client);
    output(server);
    one.down();
}

#[test]
fn programs_that_are_started_leave_connections_on_rings() {
    const TRIPS: u64 = 500;
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("spawning {port}"));
    assert!(output(ping(&one, port, TRIPS, "/dev/null")).contains("done"));
    output(server);
    let status = at_the_end(&one);
    let octets = 2 * 2 * TRIPS * 64;
    assert!(status.ring_octets > octets / 10 * 9, "{status:?}");
    one.down();
}

#[test]
fn redis_has_rings_before_and_after_it_saves() {
    const KEYS: u64 = 60;
    let _alone = alone();
    let one = OneHost::up();
    let dir = one.scratch.path();
    let port = ports();
    // The program is the server by another name, in a package that does not start one.
    std::os::unix::fs::symlink("/usr/bin/redis-check-rdb", dir.join("redis-server")).unwrap();
    let options = "--bind 127.0.0.1 --save '' --dir";
    let dir = dir.display();
    let line = format!("{dir}/redis-server --port {port} {options} {dir}");
    let mut server = shell(&one, &line);
    server.wait_for_text("Ready to accept", SHORT).unwrap();
    let mut client = meeting(&one, &format!("keys {port} {KEYS}"), "");
    client.wait_for_text("saved", SHORT).unwrap();
    let observer = self::client(&one);
    wait_until("the meeting", SHORT, || status(&observer).joined == 2).unwrap();
    let before = status(&observer).ring_octets;
    assert!(before > KEYS * (70 << 10), "{before}");
    File::create(one.scratch.path().join("begin-again")).unwrap();
    assert!(output(client).contains("done"));
    let again = at_the_end(&one).ring_octets - before;
    assert!(again > KEYS * (30 << 10), "{again}");

    let line = format!("redis-benchmark -p {port} -t set,get -c 8 -n 20000 -d 1000 -q");
    output(shell(&one, &line));
    let status = at_the_end(&one);
    assert!(status.joined > 2 + 8, "{status:?}");
    server.signal(Signal::SIGTERM).unwrap();
    output(server);
    one.down();
}

#[test]
fn peer_of_a_killed_program_gets_what_was_sent_and_then_the_end() {
    const OCTETS: usize = 40 << 10;
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("drain {port}"));
    let mut client = meeting(&one, &format!("pour {port} {OCTETS}"), "");
    client.wait_for_text("octets", SHORT).unwrap();
    client.signal(Signal::SIGKILL).unwrap();
    let printed = client.printed();
    let sent = printed.split_whitespace().nth(1).unwrap();
    assert!(output(server).contains(&format!("end after {sent} ")));
    let status = at_the_end(&one);
    assert!(status.ring_octets > 1 << 10, "{status:?}");
    one.down();
}

#[test]
fn sleeping_peer_of_a_killed_program_gets_the_end() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("echo {port}"));
    let mut client = ping(&one, port, 500, "block");
    client.wait_for_text("half", SHORT).unwrap();
    server.signal(Signal::SIGKILL).unwrap();
    assert!(output(client).contains("got b''"));
    assert!(at_the_end(&one).ring_octets > 1 << 14);
    one.down();
}

#[test]
fn connection_goes_on_without_urdmad() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let server = listening(&one, &format!("echo {port}"));
    let go = one.scratch.path().join("go");
    let mut client = ping(&one, port, 500, &go.display().to_string());
    client.wait_for_text("half", SHORT).unwrap();
    assert!(status(&self::client(&one)).ring_octets > 1 << 14);
    one.host.kill_and_restart().unwrap();
    File::create(&go).unwrap();
    assert!(output(client).contains("done"));
    assert!(output(server).contains("end after 1010"));
    one.down();
}
