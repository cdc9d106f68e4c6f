mod sleeps;

use std::net::TcpStream;

use super::*;
use crate::host::tests::{ends, socket};
use crate::leave;

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

#[test]
fn file_with_the_number_of_a_socket_that_was_closed_is_no_member() {
    let (set, socket, _peer, cell) = member();
    let fd = socket.as_raw_fd();
    // No call is in progress, as short connections end, or one is.
    for calls in [0, 1] {
        cell.begin(fd, false, lent::forks());
        let mut event = epoll_event { events: 1, u64: 2 };
        let change = if calls == 0 {
            libc::EPOLL_CTL_MOD
        } else {
            libc::EPOLL_CTL_ADD
        };
        cell.set.replace((calls == 0).then_some(set.fd));
        // SAFETY: an event.
        let done = unsafe { set.control_alone((change, fd), cell, &raw mut event) };
        assert_eq!(done, Some(0));
        (0..calls).for_each(|_| _ = cell.enter());
        leave::before_close(fd);
        (0..calls).for_each(|_| cell.leave());
        assert_eq!(cell.seen().state(), State::Kernel);
        assert!(cell.set.get().is_none());
        assert!(set.with(|members| members.others.is_empty()));
        // The kernel's part of a close.
        assert!(set.ask(libc::EPOLL_CTL_DEL, fd, 0, 0));
    }
}

#[test]
fn socket_that_was_not_offered_is_noted_with_its_interest_alone() {
    let (set, socket, _peer, cell) = member();
    let fd = socket.as_raw_fd();
    let control = |op, data, cell| {
        let mut event = epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: data,
        };
        // SAFETY: an event.
        unsafe { set.control_alone((op, fd), cell, &raw mut event) }
    };
    let noted = || {
        let event = set.with(|members| members.others.get(fd));
        event.map(|event| event.u64)
    };
    assert_eq!(control(libc::EPOLL_CTL_MOD, 7, cell), Some(0));
    assert_eq!(noted(), Some(7));
    // A second registration, and what the kernel refuses.
    assert_eq!(control(libc::EPOLL_CTL_ADD, 8, cell), None);
    assert_eq!(control(9, 8, cell), Some(-1));
    assert_eq!((noted(), cell.set.get()), (Some(7), Some(set.fd)));
    assert_eq!(control(libc::EPOLL_CTL_DEL, 0, cell), Some(0));
    assert_eq!((noted(), cell.set.get()), (None, None));
    assert_eq!(control(libc::EPOLL_CTL_DEL, 0, cell), None);
    assert_eq!(control(libc::EPOLL_CTL_ADD, 9, cell), Some(0));
    assert_eq!((noted(), cell.set.get()), (Some(9), Some(set.fd)));
    // It is the agent's to give it rings, or was closed, and the call is to look again.
    for state in [State::Offered, State::Ready, State::Rings, State::Kernel] {
        assert!(cell.change(cell.seen(), state));
        assert_eq!(control(libc::EPOLL_CTL_MOD, 10, cell), None);
        assert_eq!((noted(), cell.set.get()), (Some(9), Some(set.fd)));
    }
    cell.begin(fd, false, lent::forks());
    // The kernel has it already, which this library does not know.
    assert_eq!(control(libc::EPOLL_CTL_ADD, 11, cell), Some(-1));
    assert_eq!(cell.set.get(), None);
}
