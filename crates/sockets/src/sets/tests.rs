use std::net::TcpStream;

use super::*;
use crate::host::tests::{ends, socket};
use crate::table::State;

/// A set, and a socket that is a member of it: its peer, and its cell.
fn member() -> (&'static Set, TcpStream, TcpStream, &'static Cell) {
    // SAFETY: no argument but a flag.
    let epfd = unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) };
    adopt(epfd, lent::forks());
    let set = known(epfd).unwrap();
    let (socket, peer, cell) = socket();
    let fd = socket.as_raw_fd();
    let mut event = epoll_event {
        events: libc::EPOLLIN.cast_unsigned(),
        u64: 1,
    };
    let add = (libc::EPOLL_CTL_ADD, fd);
    // SAFETY: an event.
    let added = unsafe { set.control(add, cell, None, &raw mut event) };
    assert_eq!(added, (0, true));
    (set, socket, peer, cell)
}

/// A connection for a descriptor, whose peer is not used.
fn connection_for(fd: c_int) -> Arc<Connection> {
    let [mut connection, _peer] = ends();
    connection.fd = fd;
    Arc::new(connection)
}

#[test]
fn socket_with_the_number_of_one_that_was_closed_does_not_get_its_rings() {
    let (set, socket, _peer, cell) = member();
    let fd = socket.as_raw_fd();
    let is_ringed = || set.with(|members| members.ready.source(fd).is_some());

    let connection = connection_for(fd);
    // The agent gave rings to the socket that had the number before.
    assert!(!join(&connection, cell));
    assert!(!is_ringed());
    // It gives them to this one.
    cell.set_connection(Connection::into_raw(Arc::clone(&connection)));
    let seen = cell.seen();
    assert!(cell.change(seen, State::Rings));
    assert!(join(&connection, cell));
    assert!(is_ringed());
    // The socket is closed.
    cell.enter();
    cell.end(true);
    part(fd, cell, true);
    assert!(!is_ringed());
    cell.leave();
}

#[test]
fn kernel_does_not_report_a_socket_that_was_closed_while_the_agent_moved_it_to_tcp() {
    let (set, socket, peer, cell) = member();
    let fd = socket.as_raw_fd();
    let connection = connection_for(fd);
    cell.set_connection(Connection::into_raw(Arc::clone(&connection)));
    assert!(cell.change(cell.seen(), State::Rings));
    assert!(join(&connection, cell));
    // That of the connection.
    let copy = socket.try_clone().unwrap();
    // The agent.
    cell.enter();
    cell.end(false);
    part(fd, cell, false);
    // The program.
    cell.enter();
    cell.end(true);
    part(fd, cell, true);
    cell.leave();
    drop(socket);
    // What the socket got.
    drop(peer);
    copy.peek(&mut [0]).unwrap();
    let mut event = epoll_event { events: 0, u64: 0 };
    // SAFETY: an event.
    let count = unsafe { real::epoll_pwait(set.fd, &raw mut event, 1, 0, null_mut()) };
    assert_eq!(count, 0);
    // The agent.
    cell.leave();
}

#[test]
fn wait_that_began_before_the_first_rings_does_not_report_their_registrations() {
    let (set, socket, _peer, cell) = member();
    let connection = connection_for(socket.as_raw_fd());
    assert!(set.begin_sleep_without_rings());
    // The agent, while the thread sleeps.
    cell.set_connection(Connection::into_raw(Arc::clone(&connection)));
    assert!(cell.change(cell.seen(), State::Rings));
    assert!(join(&connection, cell));
    assert_eq!(set.waiters.load(SeqCst), 1);
    let mut events = [epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: an array of four.
    let count = unsafe { real::epoll_pwait(set.fd, events.as_mut_ptr(), 4, 0, null_mut()) };
    assert!(count > 0);
    set.end_sleep();
    // SAFETY: the array of above.
    let mut found = unsafe { Events::new(events.as_mut_ptr(), 4) };
    assert!(set.is_ringed());
    set.sort(&mut found, usize::try_from(count).unwrap());
    // What the program has registered, once: the peer of the connection is gone.
    let data = events[..found.count()].iter().map(|event| event.u64);
    assert_eq!(data.collect::<Vec<_>>(), [1]);
    assert!(!set.begin_sleep_without_rings());
}
