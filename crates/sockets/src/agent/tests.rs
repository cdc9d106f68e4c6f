//! What the agent does for connections, both ends in this process.

use std::sync::mpsc;
use std::thread;

use urdma_socket_switch::close;

use super::*;
use crate::connection::{Connection, ON_THE_WORD};
use crate::futex;
use crate::host::tests::{ends, join_both, put, socket};

/// Both ends of a connection, the first of which has a descriptor.
fn ends_of(fd: c_int) -> [Arc<Connection>; 2] {
    let [mut one, other] = ends();
    one.fd = fd;
    join_both([&one, &other]);
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
    assert_eq!(put(&peer, b"octets"), Some(6));
    refuse(&peer);
    assert_eq!(put(&peer, b"by TCP"), Some(6));
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

#[test]
fn connection_whose_peer_closes_keeps_its_rings() {
    let (open, _peer, cell) = socket();
    let [one, other] = ends_of(open.as_raw_fd());
    has_rings(cell, &one);
    assert_eq!(put(&other, b"octets"), Some(6));
    let nothing = Window::NONE;
    assert!(close(&Call::new(&other, &nothing, 0)).is_ok());
    // Its agent finds the socket shut down before it forgets the connection.
    watched(&other).peer_is_gone();
    watched(&one).attend();
    assert_eq!(cell.seen().state(), State::Rings);
    cell.enter();
    cell.end(true);
    cell.leave();
}

/// Whether a thread of this process sleeps in the kernel.
fn is_asleep(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.starts_with(" S")
}

// Regression: a client slept forever whose server was killed in between.
#[test]
fn sleeper_is_woken_whose_peer_was_killed_when_it_was_about_to_wake_it() {
    let (open, _peer, _cell) = socket();
    let [end, peer] = ends_of(open.as_raw_fd());
    let word = end.block().word(Word::ReaderSleeps(peer.end));
    word.store(ON_THE_WORD, SeqCst);
    let (tell, told) = mpsc::channel();
    let sleeper = Arc::clone(&end);
    let sleeper = thread::spawn(move || {
        // SAFETY: the call has no argument.
        tell.send(unsafe { libc::gettid() }).unwrap();
        let word = sleeper.block().word(Word::ReaderSleeps(sleeper.end.peer()));
        // SAFETY: the thread is not cancelled.
        unsafe { futex::sleep(word, ON_THE_WORD, Some(Duration::from_secs(10))) }
    });
    let thread = told.recv().unwrap();
    // Its only sleep but that for the channel, which does not wait, is the futex's.
    let began = Instant::now();
    while !is_asleep(thread) && began.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(1));
    }
    // The peer takes the bit, and is killed.
    word.fetch_and(!ON_THE_WORD, SeqCst);
    peer.close();
    watched(&end).peer_is_gone();
    assert_eq!(sleeper.join().unwrap(), 0);
}

// Regression: the agent of another process was called.
#[test]
fn peers_of_another_urdmad_are_others() {
    let mut agent = Agent::new(Own::bell().unwrap());
    // SAFETY: a new descriptor.
    let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    let first = agent.peer_of(7, &bell).unwrap();
    assert!(Arc::ptr_eq(&first, &agent.peer_of(7, &bell).unwrap()));
    agent.lose_urdmad();
    assert!(!Arc::ptr_eq(&first, &agent.peer_of(7, &bell).unwrap()));
}
