//! Calls of the switch over sockets and memory of the kernel, both ends in this process.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use urdma_socket_switch::layout::{first_octets, MEMORY_OCTETS};
use urdma_socket_switch::{
    attend, demote, join, peek, recv, send, settle, Demotion, Sent, Taken, Waits,
};

use super::*;
use crate::connection::{int_option, Parts};
use crate::lent;
use crate::octets::Octets;
use crate::own::Own;
use crate::peer::Peer;
use crate::table::{self, Cell};

/// Names of processes.
const NUMBERS: [u64; 2] = [7, 9];

fn memory() -> OwnedFd {
    use std::os::unix::fs::FileExt;
    // SAFETY: a name and a flag.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING) };
    // SAFETY: a new descriptor.
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.set_len(MEMORY_OCTETS as u64).unwrap();
    file.write_all_at(&first_octets(), 0).unwrap();
    // SAFETY: integers.
    unsafe {
        libc::fcntl(
            fd,
            libc::F_ADD_SEALS,
            libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
        )
    };
    file.into()
}

/// Both sockets of a connection of TCP.
fn tcp_pair() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (passive, _) = listener.accept().unwrap();
    [active, passive]
}

/// A new socket of this process, its peer, and its cell.
pub(crate) fn socket() -> (TcpStream, TcpStream, &'static Cell) {
    let [socket, peer] = tcp_pair();
    let fd = socket.as_raw_fd();
    let cell = table::cell(fd).unwrap();
    cell.begin(fd, false, lent::forks());
    (socket, peer, cell)
}

/// Both ends of a connection, neither of which has joined.
pub(crate) fn ends() -> [Connection; 2] {
    let [active, passive] = tcp_pair();
    let memory = memory();
    let bells = [Own::bell().unwrap(), Own::bell().unwrap()];
    let [first, second] = [(active, false), (passive, true)];
    [(first, 0), (second, 1)].map(|((socket, is_accepted), index)| {
        let bell = |index: usize| {
            // SAFETY: the bell lives here.
            let bell = unsafe { std::os::fd::BorrowedFd::borrow_raw(bell_fd(&bells[index])) };
            Own::copy(bell).unwrap()
        };
        let parts = Parts {
            memory: memory.try_clone().unwrap(),
            socket: Own::copy(socket.as_fd()).unwrap(),
            bell: bell(index),
            peer_bell: bell(1 - index),
            peer: Arc::new(Peer::new(bell(1 - index))),
            end: [End::First, End::Second][index],
            process: NUMBERS[index],
            peer_process: NUMBERS[1 - index],
            is_accepted,
            fd: -1,
        };
        Connection::new(parts).unwrap()
    })
}

fn bell_fd(bell: &Own) -> c_int {
    use std::os::fd::AsRawFd;
    bell.as_raw_fd()
}

/// Runs one attempt of a call on some octets.
fn with<T>(connection: &Connection, octets: &mut [u8], run: impl FnOnce(&Call<'_>) -> T) -> T {
    let part = iovec {
        iov_base: octets.as_mut_ptr().cast(),
        iov_len: octets.len(),
    };
    // SAFETY: an array of one part, which lives as long as the call.
    let octets = unsafe { Octets::new(&raw const part, 1) }.unwrap();
    run(&Call::new(connection, &octets.after(0), 0))
}

pub(crate) fn put(connection: &Connection, octets: &[u8]) -> Option<u64> {
    let len = octets.len() as u64;
    let run = |call: &Call<'_>| send(call, len, true);
    match with(connection, &mut octets.to_vec(), run) {
        Ok(Sent::Octets(sent)) => Some(sent),
        Ok(Sent::Broken) | Err(Waits(_)) => None,
    }
}

pub(crate) fn take(connection: &Connection, len: usize) -> Option<Vec<u8>> {
    let mut octets = vec![0; len];
    let run = |call: &Call<'_>| recv(call, len as u64, true);
    let Ok(Taken::Octets(taken)) = with(connection, &mut octets, run) else {
        return None;
    };
    octets.truncate(usize::try_from(taken).unwrap());
    Some(octets)
}

/// The same in as many calls as find something.
pub(crate) fn take_all(connection: &Connection) -> Vec<u8> {
    std::iter::from_fn(|| take(connection, RING_OCTETS))
        .flatten()
        .collect()
}

pub(crate) fn call<T>(connection: &Connection, run: impl FnOnce(&Call<'_>) -> T) -> T {
    with(connection, &mut [0], run)
}

/// Both ends join: their octets go to the rings from the next send on.
pub(crate) fn join_both(ends: [&Connection; 2]) {
    for end in ends {
        call(end, |call| join(call));
    }
}

/// The octets of the first end go by TCP again, and go on to.
fn leave_ring(first: &Connection) {
    call(first, |call| settle(call)).unwrap();
    let refusals = first.block().word(Word::Refusals(End::First));
    refusals.store(1, SeqCst);
}

#[test]
fn octets_of_tcp_precede_those_of_the_ring() {
    let [one, other] = ends();
    assert_eq!(put(&one, b"by TCP"), Some(6));
    assert!(!one.is_in_ring(End::First));
    join_both([&one, &other]);
    assert_eq!(other.readable(), 6);
    assert_eq!(put(&one, b", and by the ring"), Some(17));
    assert!(one.is_in_ring(End::First));
    assert_eq!(other.readable(), 6 + 17);
    assert_eq!(take(&other, 100).unwrap(), b"by TCP");
    assert_eq!(other.readable(), 17);
    assert_eq!(take(&other, 100).unwrap(), b", and by the ring");
    assert_eq!(take(&other, 100), None);
    // The end that has accepted counts its octets without a SYN.
    assert_eq!(put(&other, b"back"), Some(4));
    assert!(other.is_in_ring(End::Second));
    assert_eq!(take(&one, 100).unwrap(), b"back");
}

/// Has TCP hold octets back.
fn cork(connection: &Connection) {
    let cork: c_int = 1;
    let at = (&raw const cork).cast();
    // SAFETY: the option is an int.
    let rc = unsafe {
        libc::setsockopt(
            connection.socket(),
            libc::IPPROTO_TCP,
            libc::TCP_CORK,
            at,
            4,
        )
    };
    assert_eq!(rc, 0);
}

#[test]
fn octets_that_tcp_holds_back_are_sent_when_the_ring_gets_more() {
    let [one, other] = ends();
    cork(&one);
    assert_eq!(put(&one, b"held back"), Some(9));
    assert_eq!(take(&other, 100), None);
    join_both([&one, &other]);
    assert_eq!(put(&one, b", not this"), Some(10));
    assert_eq!(take(&other, 100).unwrap(), b"held back");
    assert_eq!(take(&other, 100).unwrap(), b", not this");
    // It still does.
    leave_ring(&one);
    assert_eq!(put(&one, b"held back"), Some(9));
    assert_eq!(take(&other, 100), None);
}

#[test]
fn cork_that_was_set_beside_the_ring_holds_back_what_goes_by_tcp() {
    let [one, other] = ends();
    join_both([&one, &other]);
    assert_eq!(put(&one, b"in the ring"), Some(11));
    let of_kernel = || int_option(one.socket(), libc::IPPROTO_TCP, libc::TCP_CORK);
    one.set_cork(false);
    one.set_cork(true);
    assert_eq!(of_kernel(), Some(0));
    assert_eq!(take(&other, 100).unwrap(), b"in the ring");
    leave_ring(&one);
    assert_eq!(put(&one, b"held back"), Some(9));
    assert_eq!(take(&other, 100), None);
    assert_eq!(of_kernel(), Some(1));
    one.set_cork(false);
    assert_eq!(of_kernel(), Some(0));
    assert_eq!(take(&other, 100).unwrap(), b"held back");
}

#[test]
fn tcp_holds_back_nothing_that_was_in_the_ring() {
    let [one, other] = ends();
    join_both([&one, &other]);
    cork(&one);
    assert_eq!(put(&one, b"in the ring"), Some(11));
    call(&one, |call| settle(call)).unwrap();
    assert!(!one.is_in_ring(End::First));
    assert_eq!(take(&other, 100).unwrap(), b"in the ring");
}

#[test]
fn ring_takes_no_more_than_it_has_and_goes_round() {
    let [one, other] = ends();
    join_both([&one, &other]);
    let octets: Vec<u8> = (0..RING_OCTETS + 100).map(|at| (at % 251) as u8).collect();
    for _ in 0..3 {
        let mut done = 0;
        while let Some(sent) = put(&one, &octets[done..]) {
            // The receiver sees a piece while the next one is copied.
            assert_eq!(sent, RING_OCTETS as u64 / 4);
            done += RING_OCTETS / 4;
        }
        assert_eq!(done, RING_OCTETS);
        assert_eq!(take(&other, 100).unwrap(), &octets[..100]);
        assert_eq!(put(&one, &octets[RING_OCTETS..]), Some(100));
        let piece = take(&other, RING_OCTETS).unwrap();
        assert_eq!(piece, &octets[100..][..RING_OCTETS / 4]);
        assert_eq!(take_all(&other), &octets[100 + RING_OCTETS / 4..]);
    }
}

/// Both ends of a connection with a direction that has gone on in its long ring: the octets that
/// it has, and the positions of the first and of the first in the long ring.
fn grown() -> ([Connection; 2], Vec<u8>, [u64; 2]) {
    let [one, other] = ends();
    join_both([&one, &other]);
    let octets: Vec<u8> = (0..LONG_RING_OCTETS).map(|at| (at % 251) as u8).collect();
    let long_from = || one.load(Word::LongFrom(End::First));
    let mut given = 0;
    while given < LONG_AFTER_OCTETS {
        // A receiver that keeps up leaves the ring short.
        given += put(&one, &octets[..RING_OCTETS / 4 - 1]).unwrap();
        assert_eq!(take_all(&other).len(), RING_OCTETS / 4 - 1);
    }
    assert_eq!(
        (one.ring_len(End::First), long_from()),
        (RING_OCTETS as u64, 0)
    );
    let mut done = 0;
    while let Some(sent) = put(&one, &octets[done..]) {
        done += usize::try_from(sent).unwrap();
    }
    assert_eq!(done, LONG_RING_OCTETS);
    let long_from = long_from();
    ([one, other], octets, [given, long_from])
}

#[test]
fn ring_of_a_long_stream_that_has_no_room_becomes_longer() {
    let ([one, other], octets, [first, long_from]) = grown();
    assert!(long_from > first && long_from <= first + RING_OCTETS as u64);
    assert_eq!(one.ring_len(End::Second), RING_OCTETS as u64);
    assert_eq!(take_all(&other), octets);
    for _ in 0..3 {
        let sent = put(&one, &octets).unwrap();
        assert_eq!(sent, LONG_RING_OCTETS as u64 / 4);
        assert_eq!(take_all(&other), &octets[..LONG_RING_OCTETS / 4]);
    }
}

#[test]
fn demotion_gives_tcp_what_both_rings_of_a_direction_have() {
    let ([one, other], octets, _) = grown();
    assert_eq!(call(&one, |call| demote(call)), Ok(Demotion::Done));
    assert!(!one.is_in_ring(End::First));
    let mut taken = Vec::new();
    while taken.len() < octets.len() {
        other.wait_for_arrival();
        taken.extend(take_all(&other));
    }
    assert_eq!(taken, octets);
}

#[test]
fn ring_stays_short_if_the_socket_does_not_take_a_longer_one() {
    let [one, other] = ends();
    join_both([&one, &other]);
    let octets = vec![1; RING_OCTETS];
    let mut given = put(&one, &octets).unwrap();
    let size = c_int::try_from(3 * RING_OCTETS).unwrap();
    // SAFETY: the option is an int.
    let set = unsafe {
        let at = (&raw const size).cast();
        libc::setsockopt(one.socket(), libc::SOL_SOCKET, libc::SO_SNDBUF, at, 4)
    };
    assert_eq!(set, 0);
    while given < 2 * LONG_AFTER_OCTETS {
        while let Some(sent) = put(&one, &octets) {
            given += sent;
        }
        take_all(&other);
    }
    assert_eq!(one.load(Word::LongFrom(End::First)), 0);
}

#[test]
fn demotion_gives_tcp_what_the_ring_has() {
    let [one, other] = ends();
    join_both([&one, &other]);
    assert_eq!(put(&one, b"in the ring"), Some(11));
    assert_eq!(call(&one, |call| demote(call)), Ok(Demotion::Done));
    assert!(!one.is_in_ring(End::First));
    assert_eq!(put(&one, b" and by TCP"), Some(11));
    assert_eq!(take(&other, 100).unwrap(), b"in the ring and by TCP");
}

#[test]
fn octets_in_the_ring_of_a_direction_by_tcp_let_a_receive_sleep() {
    let [one, _other] = ends();
    let head = one.block().word(Word::Head(End::Second));
    head.store(1, SeqCst);
    assert_eq!(take(&one, 100), None);
}

#[test]
fn octets_in_the_ring_of_a_direction_by_tcp_do_not_keep_a_look_from_the_end() {
    let [one, other] = ends();
    let head = one.block().word(Word::Head(End::Second));
    head.store(1, SeqCst);
    drop(other);
    let found = call(&one, |call| peek(call, 1, true));
    assert_eq!(found, Ok(Taken::End));
}

/// What a hostile peer may write to a word.
fn hostile(random: &mut u64) -> u64 {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let value = *random >> 33;
    match value % 8 {
        0 => 0,
        1 => 1,
        2 => RING_OCTETS as u64,
        3 => RING_OCTETS as u64 + 1,
        4 => u64::MAX,
        5 => value << 32,
        6 => NUMBERS[1] << 24 | 1,
        _ => value % (2 * RING_OCTETS as u64),
    }
}

#[test]
fn no_word_of_a_hostile_peer_reaches_beyond_ring_and_buffer() {
    const LEN: usize = 100;
    let mut random = 38;
    for _ in 0..300 {
        let [one, _other] = ends();
        for _ in 0..10 {
            for sender in [End::First, End::Second] {
                for word in [
                    Word::Writer(sender),
                    Word::Mode(sender),
                    Word::TcpUntil(sender),
                    Word::Head(sender),
                    Word::LongFrom(sender),
                    Word::SeenTail(sender),
                    Word::MovingTail(sender),
                    Word::MovingUntil(sender),
                    Word::Moving(sender),
                    Word::Reader(sender),
                    Word::Tail(sender),
                    Word::Drained(sender),
                    Word::Refusals(sender),
                ] {
                    let value = hostile(&mut random);
                    one.block().word(word).store(value, SeqCst);
                }
                // A lock of the peer's process stays with it while it lives.
                for word in [Word::Writer(sender), Word::Reader(sender)] {
                    let held = NUMBERS.contains(&process::of_owner(Owner(one.load(word))));
                    if held {
                        one.block().word(word).store(0, SeqCst);
                    }
                }
            }
            let mut octets = vec![7; 3 * LEN];
            let (buffer, len) = (&mut octets[LEN..2 * LEN], LEN as u64);
            with(&one, buffer, |call| {
                _ = recv(call, len, true);
                _ = send(call, len, true);
                _ = attend(call);
                _ = settle(call);
            });
            assert!(octets[..LEN]
                .iter()
                .chain(&octets[2 * LEN..])
                .all(|octet| *octet == 7));
        }
    }
}

#[test]
fn octets_that_are_handed_back_do_not_wait_for_an_acknowledgement() {
    let [one, other] = ends();
    // From the answer on, `other` delays its acknowledgements, and TCP holds back short segments.
    assert_eq!(put(&one, b"request"), Some(7));
    assert_eq!(take(&other, 100).unwrap(), b"request");
    assert_eq!(put(&other, b"answer"), Some(6));
    assert_eq!(take(&one, 100).unwrap(), b"answer");
    assert_eq!(put(&one, b"first"), Some(5));
    join_both([&one, &other]);
    assert_eq!(put(&one, b", second"), Some(8));
    call(&one, |call| demote(call)).unwrap();
    assert_eq!(take(&other, 100).unwrap(), b"first, second");
}
