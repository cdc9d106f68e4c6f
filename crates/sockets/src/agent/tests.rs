//! What the agent does for connections, both ends in this process.

use super::*;
use crate::connection::Connection;
use crate::host::tests::{call, ends, put, socket};
use urdma_socket_switch::join;

/// Both ends of a connection, the first of which has a descriptor.
fn ends_of(fd: c_int) -> [Arc<Connection>; 2] {
    let [mut one, other] = ends();
    one.fd = fd;
    for end in [&one, &other] {
        call(end, |call| Call::run(join(call))).unwrap();
    }
    [Arc::new(one), Arc::new(other)]
}

fn watched(connection: &Arc<Connection>) -> Watched {
    Watched::new(Arc::clone(connection), 0)
}

fn has_rings(cell: &Cell, connection: &Arc<Connection>) {
    cell.set_connection(Connection::into_raw(Arc::clone(connection)));
    assert!(cell.change(cell.seen(), State::Rings));
}

/// The peer of a connection moves to TCP for good.
fn refuse(peer: &Connection) {
    let refusals = peer.block().word(Word::Refusals(peer.end));
    refusals.fetch_add(leave::FOR_GOOD, SeqCst);
}

#[test]
fn connection_that_is_closed_does_not_take_the_rings_of_the_next_one() {
    let (open, _peer, cell) = socket();
    let fd = open.as_raw_fd();
    let [before, peer] = ends_of(fd);
    assert_eq!(put(&peer, b"octets"), Some(Ok(6)));
    refuse(&peer);
    assert_eq!(put(&peer, b"by TCP"), Some(Ok(6)));
    assert!(!peer.is_in_ring(peer.end));
    before.close();
    // The socket that has the number now.
    let [now, _] = ends_of(fd);
    has_rings(cell, &now);
    watched(&before).attend();
    assert_eq!(cell.seen().state(), State::Rings);
    // It is closed.
    cell.enter();
    cell.end(true);
    cell.leave();
}
