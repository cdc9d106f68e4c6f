//! sendfile on both ends of a connection in this process.

use std::cell::RefCell;
use std::fs;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use urdma_socket_switch::layout::RING_OCTETS;

use super::*;
use crate::connection::Connection;
use crate::host::tests::{ends, join_both, take, take_all};
use crate::lent;
use crate::table::State;

/// An end that sends, whose descriptor is known as one that has rings, and its peer.
struct Pair {
    program: OwnedFd,
    fd: c_int,
    peer: Connection,
}

impl Pair {
    /// The socket does not wait.
    fn new() -> Self {
        let [one, peer] = ends();
        join_both([&one, &peer]);
        // SAFETY: the socket is open.
        let socket = unsafe { BorrowedFd::borrow_raw(one.socket()) };
        let program = socket.try_clone_to_owned().unwrap();
        let fd = program.as_raw_fd();
        // SAFETY: integers.
        unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        let cell = table::cell(fd).unwrap();
        cell.begin(fd, false, lent::forks());
        cell.set_connection(Connection::into_raw(Arc::new(one)));
        assert!(cell.change(cell.seen(), State::Rings));
        Self { program, fd, peer }
    }

    fn has_rings(&self) -> bool {
        table::cell(self.fd).unwrap().seen().state() == State::Rings
    }

    /// A call, the counts with which the kernel was asked, and its errno.
    fn send(
        &self,
        from: &impl AsRawFd,
        offset: Option<&mut off_t>,
        count: usize,
    ) -> (ssize_t, Vec<usize>, c_int) {
        let (fd, from) = (self.fd, from.as_raw_fd());
        let offset = offset.map_or(null_mut(), std::ptr::from_mut);
        let asked = RefCell::new(Vec::new());
        let kernel = |count| {
            asked.borrow_mut().push(count);
            // SAFETY: the arguments of the test.
            unsafe { libc::sendfile(fd, from, offset, count) }
        };
        // SAFETY: the arguments of the test.
        let sent = unsafe { send_file(fd, &File::new(from, offset), count, kernel) };
        (sent, asked.into_inner(), real::errno())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        leave::before_close(self.fd);
    }
}

/// A file whose number a socket of another test may have had, which the standard library has closed
/// without this one.
fn known<F: AsRawFd>(file: F) -> F {
    leave::before_close(file.as_raw_fd());
    file
}

/// A file of octets that differ.
fn file(len: usize) -> (fs::File, Vec<u8>) {
    use std::io::Write;
    // SAFETY: a name and a flag.
    let fd = unsafe { libc::memfd_create(c"file".as_ptr(), 0) };
    // SAFETY: a new descriptor.
    let mut file = known(unsafe { fs::File::from_raw_fd(fd) });
    let octets: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    file.write_all(&octets).unwrap();
    file.rewind().unwrap();
    (file, octets)
}

const LEN: usize = 3 * PIECE_OCTETS + 100;

#[test]
fn offset_or_position_follows_what_the_ring_has_taken() {
    let pair = Pair::new();
    let (mut from, octets) = file(LEN);
    let mut offset = 7;
    assert_eq!(pair.send(&from, Some(&mut offset), 1000).0, 1000);
    assert_eq!(offset, 1007);
    assert_eq!(from.stream_position().unwrap(), 0);
    let (sent, asked, _) = pair.send(&from, None, LEN + 1);
    assert_eq!((sent, asked.len()), (LEN as ssize_t, 0));
    assert_eq!(from.stream_position().unwrap(), LEN as u64);
    let expected = [&octets[7..1007], &octets[..]].concat();
    assert!(take_all(&pair.peer) == expected);
    assert!(pair.has_rings());
}

#[test]
fn full_ring_ends_the_call_with_what_it_has_taken() {
    let pair = Pair::new();
    let (mut from, octets) = file(2 * RING_OCTETS);
    let mut offset = 10;
    assert_eq!(
        pair.send(&from, Some(&mut offset), octets.len()).0,
        RING_OCTETS as ssize_t
    );
    assert_eq!(offset, 10 + RING_OCTETS as off_t);
    let (sent, _, errno) = pair.send(&from, Some(&mut offset), 1);
    assert_eq!(
        (sent, errno, offset),
        (-1, libc::EAGAIN, 10 + RING_OCTETS as off_t)
    );
    assert_eq!(take(&pair.peer, 100).unwrap(), &octets[10..110]);
    from.seek(SeekFrom::Start(50)).unwrap();
    assert_eq!(pair.send(&from, None, 1000).0, 100);
    assert_eq!(from.stream_position().unwrap(), 150);
    let expected = [&octets[110..10 + RING_OCTETS], &octets[50..150]].concat();
    assert!(take_all(&pair.peer) == expected);
    assert!(pair.has_rings());
}

#[test]
fn end_of_the_file_is_no_error_and_keeps_the_rings() {
    let pair = Pair::new();
    let (from, _) = file(100);
    let mut offset = 100;
    let (sent, asked, _) = pair.send(&from, Some(&mut offset), 10);
    assert_eq!((sent, asked), (0, vec![0]));
    assert_eq!(offset, 100);
    assert!(pair.has_rings());
}

#[test]
fn error_of_the_kernel_keeps_the_rings() {
    let pair = Pair::new();
    let (from, _) = file(100);
    let path = format!("/proc/self/fd/{}", from.as_raw_fd());
    let unreadable = known(fs::OpenOptions::new().write(true).open(path).unwrap());
    let (pipe, _write) = std::io::pipe().unwrap();
    let pipe = known(pipe);
    let failed = |(sent, _, errno): (ssize_t, Vec<usize>, c_int)| {
        assert_eq!(sent, -1);
        errno
    };
    assert_eq!(
        failed(pair.send(&unreadable, Some(&mut 0), 10)),
        libc::EBADF
    );
    assert_eq!(failed(pair.send(&pipe, None, 10)), libc::EINVAL);
    assert_eq!(failed(pair.send(&pipe, Some(&mut 0), 10)), libc::ESPIPE);
    assert_eq!(failed(pair.send(&pair.program, None, 10)), libc::EINVAL);
    assert_eq!(failed(pair.send(&from, Some(&mut -1), 10)), libc::EINVAL);
    assert_eq!(
        failed(pair.send(&from, Some(&mut 1), usize::MAX)),
        libc::EINVAL
    );
    assert_eq!(
        failed(pair.send(&from, Some(&mut { off_t::MAX }), 1)),
        libc::EINVAL
    );
    assert!(pair.has_rings());
}

#[test]
fn file_that_the_kernel_makes_when_it_is_read_is_the_kernels_to_send() {
    let pair = Pair::new();
    assert!(pair.send(&file(10).0, None, 10).0 == 10);
    let from = known(fs::File::open("/proc/self/stat").unwrap());
    let (_, asked, _) = pair.send(&from, None, 10);
    assert_eq!(asked, [0, 10]);
    assert!(!pair.has_rings());
}

#[test]
fn rest_of_a_file_is_the_kernels_when_the_rings_are_gone() {
    let pair = Pair::new();
    let (mut from, octets) = file(LEN);
    assert_eq!(pair.send(&from, None, 1000).0, 1000);
    leave::retire(pair.fd, Reason::Dup);
    let (sent, asked, _) = pair.send(&from, None, 1000);
    assert_eq!((sent, asked), (1000, vec![1000]));
    assert_eq!(from.stream_position().unwrap(), 2000);
    let mut got = Vec::new();
    while got.len() < 2000 {
        got.extend(take(&pair.peer, 2000).unwrap());
    }
    assert!(got == octets[..2000]);
}
