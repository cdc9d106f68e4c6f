//! Receive interrupts of a net_memif pair: the peer writes to an eventfd unless the flags of its
//! ring say that this end polls.
//!
//! DPDK has no receive interrupts in a secondary. The primary passes the eventfd instead
//! (`shim/interrupts.c` of dpdk-sys). It changes when the peer reconnects; the epoll set that the
//! caller waits on stays.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use dpdk::QueueIndex;
use urdma_abi::spared::Spared;

extern "C" {
    /// Of `shim/memif.c`.
    fn urdma_lease_interrupts(port: u16, pair: u16, descriptors: *mut i32) -> i32;
}

/// The interrupts of a pair.
pub(crate) struct Interrupts {
    set: Spared,
    /// The eventfd of the current connection, a member of the set.
    receive: Option<Spared>,
}

impl Interrupts {
    /// An empty set.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: the call has just opened it.
            set: unsafe { OwnedFd::from_raw_fd(set) }.into(),
            receive: None,
        })
    }

    /// The set, if there are interrupts now.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.receive.as_ref().map(|_| self.set.as_raw_fd())
    }

    /// Forgets the eventfd of an earlier connection.
    pub(crate) fn end(&mut self) {
        if let Some(old) = self.receive.take() {
            // The primary may have the file open, so that closing would leave it in the set.
            self.control(libc::EPOLL_CTL_DEL, &old);
        }
    }

    /// Gets the eventfds of a new connection; returns the one that interrupts the peer.
    pub(crate) fn begin(&mut self, port: u16, pair: QueueIndex) -> Option<File> {
        self.end();
        let mut descriptors = [-1; 2];
        // SAFETY: there is room for two.
        if unsafe { urdma_lease_interrupts(port, pair.0, descriptors.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the message has just opened both.
        let [receive, peer] = descriptors.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        let receive = Spared::from(receive);
        if self.control(libc::EPOLL_CTL_ADD, &receive) {
            self.receive = Some(receive);
            self.discard_events();
        }
        Some(peer.into())
    }

    /// Takes the event of an eventfd that was written to before it became a member. Events of other
    /// members are level-triggered.
    fn discard_events(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        // SAFETY: there is room for two events.
        unsafe { libc::epoll_wait(self.set.as_raw_fd(), events.as_mut_ptr(), 2, 0) };
    }

    /// Adds or removes a member, of which each write is one event: it need not be read.
    fn control(&self, operation: i32, member: &Spared) -> bool {
        let events = (libc::EPOLLIN | libc::EPOLLET).cast_unsigned();
        let mut event = libc::epoll_event { events, u64: 0 };
        let (set, member) = (self.set.as_raw_fd(), member.as_raw_fd());
        // SAFETY: the event is valid during the call.
        unsafe { libc::epoll_ctl(set, operation, member, &raw mut event) == 0 }
    }
}
