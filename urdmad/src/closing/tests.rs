use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const USER: u32 = 64_001;

fn closer() -> Closer {
    Closer::start(Arc::new(Shared::new().unwrap())).unwrap()
}

/// A socket that lingers for an hour, with octets that its peer has not read, and the peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 3600,
    };
    setsockopt(&one, sockopt::Linger, &linger).unwrap();
    one.set_nonblocking(true).unwrap();
    while one.write(&[7; 1 << 16]).is_ok() {}
    (one, other)
}

/// Waits until `count` offers are closed, and returns them.
fn closed(closer: &Closer, count: usize) -> Vec<OfferId> {
    let begin = Instant::now();
    let mut closed = Vec::new();
    while closed.len() < count {
        assert!(begin.elapsed() < LIMIT, "{} of {count}", closed.len());
        closed.extend(closer.closed());
        thread::yield_now();
    }
    closed.sort_unstable();
    closed
}

/// Whether a process has a TCP socket with these addresses.
fn has_socket(local: SocketAddr, remote: SocketAddr) -> bool {
    let hex = |address: SocketAddr| format!("0100007F:{:04X}", address.port());
    let inode = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let ends = format!("{} {}", hex(local), hex(remote));
    let found = inode.lines().filter(|line| line.contains(&ends));
    let mut inodes = found.map(|line| line.split_whitespace().nth(9).unwrap().to_owned());
    inodes.any(|inode| inode != "0")
}

#[test]
fn lingering_sockets_are_closed_at_once_by_threads_that_end() {
    const COUNT: u64 = 200;
    let closer = closer();
    let mut peers = Vec::new();
    for number in 0..COUNT {
        let (one, other) = lingering();
        let ends = (one.local_addr().unwrap(), one.peer_addr().unwrap());
        closer.close_offered(USER, one.into(), (1, number));
        peers.push((other, ends));
        // Alone, and with others.
        if number % 3 == 0 {
            closed(&closer, 0);
            thread::yield_now();
        }
    }
    let all: Vec<OfferId> = (0..COUNT).map(|number| (1, number)).collect();
    assert_eq!(closed(&closer, all.len()), all);
    for (_, (local, remote)) in &peers {
        assert!(!has_socket(*local, *remote));
    }
    // Nothing that was sent is lost.
    let mut read = Vec::new();
    peers[0].0.read_to_end(&mut read).unwrap();
    assert!(read.len() > 1 << 16 && read.iter().all(|octet| *octet == 7));
}

#[test]
fn offer_is_reported_when_the_socket_is_closed() {
    let closer = closer();
    for number in 0..300 {
        let (one, _other) = lingering();
        let ends = (one.local_addr().unwrap(), one.peer_addr().unwrap());
        assert!(has_socket(ends.0, ends.1));
        closer.close_offered(USER, one.into(), (1, number));
        assert_eq!(closed(&closer, 1), [(1, number)]);
        assert!(!has_socket(ends.0, ends.1), "{number}");
    }
}

#[test]
fn user_with_many_sockets_that_are_not_closed_yet_is_crowded() {
    let closer = closer();
    let places: Vec<_> = (0..OFFERS_MAX)
        .map(|_| closer.take_place((Some(USER), true)))
        .collect();
    assert!(closer.is_crowded(USER) && !closer.is_crowded(USER + 1));
    assert!(closer.users().is_empty());
    let _client = closer.take_place((Some(USER), false));
    assert_eq!(closer.users(), [USER]);
    drop(places);
    assert!(!closer.is_crowded(USER));
}
