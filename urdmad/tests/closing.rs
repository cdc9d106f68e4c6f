//! Clients that send descriptors whose last close takes as long as they choose.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::channel;

use nix::sys::signal::{kill, Signal};
use nix::sys::socket::{sendmsg, setsockopt, sockopt, ControlMessage, MsgFlags};
use nix::unistd::Pid;
use support::{eventually, Daemon, Scratch, LIMIT};
use urdma_ipc::message::{FromClient, Request};
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{ControlClient, PROTOCOL_VERSION};

/// A user that no machine has, and the connections that it may have.
const MEMBER: u32 = 64_001;
const PLACES: usize = 256;
/// Much longer than a test may take.
const LINGER_S: i32 = 3600;

/// A socket whose last close takes [`LINGER_S`] seconds, or until its peer is dropped.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: LINGER_S,
    };
    setsockopt(&socket, sockopt::Linger, &linger).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65_536]).is_ok() {}
    (socket, peer)
}

fn connect(daemon: &Daemon) -> PacketSocket {
    PacketSocket::connect(&daemon.run_dir.control_socket()).unwrap()
}

fn hello() -> FromClient {
    let request = Request::Hello {
        version: PROTOCOL_VERSION,
        program: "test".to_owned(),
    };
    FromClient { id: 1, request }
}

/// Sends a packet; the connection may have ended.
fn send(socket: &PacketSocket, octets: &[u8], fds: &[BorrowedFd<'_>]) {
    let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    let octets = [IoSlice::new(octets)];
    let _ = sendmsg::<()>(socket.as_fd().as_raw_fd(), &octets, &rights, flags, None);
}

/// Fails unless urdmad answers a new client.
fn expect_answer(daemon: &Daemon, when: &str) {
    let (answered, answer) = channel();
    let run_dir = daemon.run_dir.clone();
    std::thread::spawn(move || {
        let status = ControlClient::connect(&run_dir, "test").and_then(|client| client.status());
        answered.send(status.map(|_| ())).unwrap();
    });
    let answer = answer.recv_timeout(LIMIT);
    assert!(matches!(answer, Ok(Ok(()))), "{when}: {answer:?}");
}

/// As [`Daemon::stop`], but within a limit.
fn stop(mut daemon: Daemon) {
    daemon.client().shutdown().unwrap();
    eventually("urdmad ends", || daemon.child.try_wait().unwrap().is_some());
    assert!(!daemon.run_dir.path().exists());
}

/// Does something while urdmad is stopped, so that the last close of what it sends is urdmad's.
fn while_stopped(daemon: &Daemon, action: impl FnOnce()) {
    let pid = Pid::from_raw(i32::try_from(daemon.child.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    action();
    kill(pid, Signal::SIGCONT).unwrap();
}

/// What a client sends with a socket that lingers, and urdmad must not close by itself.
type Attack = fn(&PacketSocket, &[BorrowedFd<'_>]);

const ATTACKS: [(&str, Attack); 6] = [
    ("a packet that is too long", |socket, fds| {
        send(socket, &[b'x'; 9000], fds);
    }),
    ("a packet without octets", |socket, fds| {
        send(socket, &[], fds);
    }),
    (
        "a packet behind one that ends the connection",
        |socket, fds| {
            send(socket, b"garbage", &[]);
            send(socket, &[], &[]);
            send(socket, b"unread", fds);
        },
    ),
    ("a packet with many descriptors", |socket, fds| {
        send(socket, b"many", &fds.repeat(200));
    }),
    ("a request with descriptors", |socket, fds| {
        socket.send(&hello(), fds).unwrap();
    }),
    ("a packet behind a request for an address", |socket, fds| {
        socket.send(&hello(), &[]).unwrap();
        for id in 2..5 {
            let ip = "127.0.0.9".parse().unwrap();
            let request = Request::Resolve { ip };
            socket.send(&FromClient { id, request }, &[]).unwrap();
        }
        send(socket, b"garbage", &[]);
        send(socket, b"unread", fds);
    }),
];

// The control thread waited in close(2), and the data thread after a request for an address.
#[test]
fn sockets_that_linger_make_urdmad_wait_in_no_packet() {
    let scratch = Scratch::new();
    let port = "[port]\nkind = \"udp\"\n";
    let config = format!("address = [\"127.0.0.1\"]\n{port}");
    let daemon = Daemon::start(scratch.path(), "a", &config);
    let mut peers = Vec::new();
    for (what, attack) in ATTACKS {
        while_stopped(&daemon, || {
            let (socket, peer) = lingering();
            peers.push(peer);
            attack(&connect(&daemon), &[socket.as_fd()]);
        });
        expect_answer(&daemon, what);
    }
    let remote = "127.0.0.9".parse().unwrap();
    daemon.client().resolve(remote).unwrap();
    stop(daemon);
}

fn admit_everybody(scratch: &Scratch, daemon: &Daemon) {
    for (path, mode) in [
        (scratch.path(), 0o755),
        (daemon.run_dir.path(), 0o755),
        (&daemon.run_dir.control_socket(), 0o666),
    ] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Does something in a thread that is another user's.
fn as_member<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(move || {
            // SAFETY: the call takes three integers. Made past the C library it changes this thread
            // only.
            let outcome = unsafe { libc::syscall(libc::SYS_setresuid, -1, MEMBER, -1) };
            assert_eq!(outcome, 0);
            action()
        });
        acting.join().unwrap()
    })
}

/// As many connections of the member as there are places.
fn hold_all(daemon: &Daemon) -> Vec<ControlClient> {
    as_member(|| {
        let connect = || ControlClient::connect(&daemon.run_dir, "test").ok();
        std::iter::from_fn(connect).collect()
    })
}

// 253 descriptors and a thread stayed for each connection, whose place was free again: 79
// connections reached the limit of open files.
#[test]
fn place_of_a_client_stays_taken_until_what_it_has_sent_is_closed() {
    const CLIENTS: usize = 40;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    admit_everybody(&scratch, &daemon);
    let open_files = || {
        let fds = format!("/proc/{}/fd", daemon.child.id());
        fs::read_dir(fds).unwrap().count()
    };
    let before = open_files();
    // Has each client send copies of one socket, and waits until all are disconnected.
    let send_to_all = |copies: usize| {
        let (socket, peer) = lingering();
        let mut clients = Vec::new();
        while_stopped(&daemon, || {
            for _ in 0..CLIENTS {
                let client = as_member(|| connect(&daemon));
                let fds = vec![socket.as_fd(); copies];
                client.send(&hello(), &fds).unwrap();
                clients.push(client);
            }
            drop(socket);
        });
        for client in clients {
            assert!(client.recv(&mut [0; 4096]).unwrap().is_none());
        }
        peer
    };
    let mut peers = vec![send_to_all(1), send_to_all(253)];
    // Of each packet with one descriptor that one, of each of the others four.
    let held = 5 * CLIENTS;
    eventually("sockets are closed", || open_files() <= before + held);
    expect_answer(&daemon, "while sockets linger");
    // The last close does not linger if it is that of a thread which closes sockets.
    eventually("a last close lingers, and a place is taken", || {
        peers.push(send_to_all(1));
        hold_all(&daemon).len() < PLACES
    });
    drop(peers);
    eventually("all closes end", || hold_all(&daemon).len() == PLACES);
    eventually("nothing is left", || open_files() <= before);
    stop(daemon);
}

// A connection that is refused was closed with what it had sent.
#[test]
fn refused_clients_make_urdmad_neither_wait_nor_hold_descriptors() {
    /// Fewer than the backlog has room for.
    const REFUSED: usize = 100;
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    admit_everybody(&scratch, &daemon);
    let held = hold_all(&daemon);
    assert_eq!(held.len(), PLACES);
    let open_files = || {
        let fds = format!("/proc/{}/fd", daemon.child.id());
        fs::read_dir(fds).unwrap().count()
    };
    let before = open_files();
    let mut peers = Vec::new();
    for _ in 0..3 {
        while_stopped(&daemon, || {
            for _ in 0..REFUSED {
                let (socket, peer) = lingering();
                peers.push(peer);
                let client = as_member(|| connect(&daemon));
                send(&client, b"unread", &[socket.as_fd()]);
            }
        });
        expect_answer(&daemon, "refused clients");
    }
    eventually("refused connections are closed", || open_files() <= before);
    drop(held);
    stop(daemon);
}
