//! TCP connections of one host over rings (doc/sockets.md).
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::eventfd::EventFd;
use nix::sys::stat::fstat;
use urdma_harness::process::wait_until;
use urdma_ipc::message::Event;
use urdma_ipc::{ControlClient, JoinedSocket, RunDir, SocketStatus};
use urdma_tests::{alone, OneHost, SHORT};

/// Both ends of a connection of this host.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    (one, other)
}

fn client(one: &OneHost) -> ControlClient {
    ControlClient::connect(&RunDir::at(one.host.run_dir()), "test").unwrap()
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

fn status(client: &ControlClient) -> SocketStatus {
    client.status().unwrap().sockets
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

#[test]
fn file_that_is_no_connection_is_refused_and_other_bells_end_the_client() {
    let _alone = alone();
    let one = OneHost::up();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = client(&one);
    let id = offer(&other, &listener);
    let event = other.next_event(Some(SHORT)).unwrap().unwrap().0;
    assert_eq!(event, Event::SocketRefused { offer: id });

    let file = File::open("/dev/null").unwrap();
    let (socket, _peer) = connection();
    let fds = [socket.as_fd(), file.as_fd(), file.as_fd()];
    other.offer_socket(fds).unwrap();
    assert!(other.next_event(Some(SHORT)).is_err());
    one.down();
}
