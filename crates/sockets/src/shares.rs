//! Memory that a process shares with a child that it forks: which of both has closed a socket that
//! both had at the fork.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// One of the two processes that have a share, as a bit of the octet of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Side {
    Parent = 1,
    Child = 2,
}

/// A third process has the socket.
const IS_ELSEWHERE: u8 = 4;

/// An octet for each descriptor: the processes that may have its socket, 0 for one that was not
/// this process's alone at the fork.
#[derive(Debug)]
pub(crate) struct Share {
    octets: NonNull<AtomicU8>,
    len: usize,
    /// The descriptors that the child was given.
    lent: Vec<c_int>,
}

// SAFETY: the octets are atomic, and mapped as long as the value lives.
unsafe impl Send for Share {}

impl Share {
    /// Memory for the descriptors below `len`; `None` for 0, and without memory.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let place = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
        let is_there = place != libc::MAP_FAILED;
        let octets = NonNull::new(place.cast()).filter(|_| is_there)?;
        Some(Self {
            octets,
            len,
            lent: Vec::new(),
        })
    }

    fn octet(&self, fd: c_int) -> Option<&AtomicU8> {
        let at = usize::try_from(fd).ok().filter(|at| *at < self.len)?;
        // SAFETY: in the mapping, which lives as long as `self`.
        Some(unsafe { self.octets.add(at).as_ref() })
    }

    /// The child gets a socket that is its parent's alone.
    pub(crate) fn lend(&mut self, fd: c_int) {
        if let Some(octet) = self.octet(fd) {
            octet.store(Side::Parent as u8 | Side::Child as u8, SeqCst);
            self.lent.push(fd);
        }
    }

    /// A third process gets what both processes have: none of both has that alone from now on.
    pub(crate) fn lend_on(&self) {
        let both = Side::Parent as u8 | Side::Child as u8;
        let octets = self.lent.iter().filter_map(|fd| self.octet(*fd));
        for octet in octets.filter(|octet| octet.load(SeqCst) & both == both) {
            octet.fetch_or(IS_ELSEWHERE, SeqCst);
        }
    }

    /// A process closes its only descriptor of a socket.
    pub(crate) fn give_back(&self, fd: c_int, side: Side) {
        if let Some(octet) = self.octet(fd) {
            octet.fetch_and(!(side as u8), SeqCst);
        }
    }

    /// Whether a process may have the socket.
    pub(crate) fn is_lent(&self, fd: c_int, side: Side) -> bool {
        let has = |octet: &AtomicU8| octet.load(SeqCst) & side as u8 != 0;
        self.octet(fd).is_some_and(has)
    }

    /// Whether a process alone has the socket.
    pub(crate) fn is_of(&self, fd: c_int, side: Side) -> bool {
        let is_of = |octet: &AtomicU8| octet.load(SeqCst) == side as u8;
        self.octet(fd).is_some_and(is_of)
    }

    /// Children that are forked from now on do not map it.
    pub(crate) fn keep_from_children(&self) {
        let place: *mut c_void = self.octets.as_ptr().cast();
        // SAFETY: the mapping.
        unsafe { libc::madvise(place, self.len, libc::MADV_DONTFORK) };
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // SAFETY: the mapping, which nothing uses any more.
        unsafe { libc::munmap(self.octets.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests;
