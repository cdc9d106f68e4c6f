use std::net::{TcpListener, TcpStream};

use super::*;
use crate::host::tests::ends;
use crate::table::State;

#[test]
fn socket_with_the_number_of_one_that_was_closed_does_not_get_its_rings() {
    // SAFETY: no argument but a flag.
    let epfd = unsafe { real::epoll_create1(libc::EPOLL_CLOEXEC) };
    adopt(epfd);
    let set = known(epfd).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let fd = socket.as_raw_fd();
    let cell = table::cell(fd).unwrap();
    cell.begin(fd, false);
    let mut event = epoll_event {
        events: libc::EPOLLIN.cast_unsigned(),
        u64: 1,
    };
    let add = (libc::EPOLL_CTL_ADD, fd);
    // SAFETY: an event.
    let added = unsafe { set.control(add, cell, None, &raw mut event) };
    assert_eq!(added, (0, true));
    let is_ringed = || set.with(|members| members.ready.source(fd).is_some());

    let [mut connection, _peer] = ends();
    connection.fd = fd;
    let connection = Arc::new(connection);
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
