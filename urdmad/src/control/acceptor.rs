//! The listening socket and the pause after a failed accept(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd::Uid;
use urdma_ipc::packet::{PacketListener, PacketSocket};

use super::places::Places;
use crate::config::Quota;

/// Pause after a failed accept(2).
const PAUSE: Duration = Duration::from_millis(100);
/// Pause while the closing thread has too much to do, which never takes long.
const PAUSE_FOR_CLOSING: Duration = Duration::from_millis(5);

/// The listening socket. A spare descriptor is closed to accept and refuse a connection when the
/// process has no other left: a connection that stayed in the backlog would keep poll(2) from
/// sleeping.
pub(super) struct Acceptor<'a> {
    listener: &'a PacketListener,
    spare: Option<OwnedFd>,
    pub(super) places: Places,
    /// The last connection was accepted by means of the spare descriptor.
    pub(super) is_short: bool,
    /// No connection is accepted before this time.
    opens_at: Option<Instant>,
}

impl<'a> Acceptor<'a> {
    pub(super) fn new(listener: &'a PacketListener, quota: &Quota) -> Self {
        let mut acceptor = Self {
            listener,
            spare: None,
            places: Places::new(quota, Uid::effective().as_raw()),
            is_short: false,
            opens_at: None,
        };
        acceptor.keep_spare();
        acceptor
    }

    /// The events to poll for at `now` and, in a pause, until when. Both are of one time: a pause
    /// that ended between them would leave neither.
    pub(super) fn poll_for(&self, now: Instant) -> (PollFlags, Option<Instant>) {
        match self.opens_at.filter(|opens_at| now < *opens_at) {
            Some(opens_at) => (PollFlags::empty(), Some(opens_at)),
            None => (PollFlags::POLLIN, None),
        }
    }

    /// Ends the pause.
    pub(super) fn open(&mut self) {
        self.opens_at = None;
        self.is_short = false;
        self.keep_spare();
    }

    /// Accepts nothing until refused connections are closed.
    pub(super) fn wait_for_closing(&mut self) {
        self.pause(PAUSE_FOR_CLOSING);
    }

    fn pause(&mut self, pause: Duration) {
        self.opens_at = Some(Instant::now() + pause);
    }

    pub(super) fn accept(&self) -> Result<PacketSocket, Errno> {
        self.listener.accept()
    }

    /// Opens the spare descriptor again.
    fn keep_spare(&mut self) {
        if self.spare.is_none() {
            self.spare = self.listener.as_fd().try_clone_to_owned().ok();
        }
    }

    /// Accepts a connection, to be refused, by means of the spare descriptor. If that fails or the
    /// backlog is empty, a pause begins.
    pub(super) fn accept_surplus(&mut self) -> Option<PacketSocket> {
        self.spare = None;
        self.is_short = true;
        let accepted = self.listener.accept();
        if accepted.is_err() {
            self.pause(PAUSE);
            self.keep_spare();
        }
        accepted.ok()
    }
}

impl AsFd for Acceptor<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use urdma_harness::instance::Scratch;

    use super::*;

    // A pause that ended between the two left urdmad asleep while a connection waited.
    #[test]
    fn listener_is_polled_or_has_a_time_from_which_it_is() {
        let scratch = Scratch::new("acceptor").unwrap();
        let listener = PacketListener::bind(&scratch.path().join("control")).unwrap();
        let mut acceptor = Acceptor::new(&listener, &Quota::default());
        let accepts = (PollFlags::POLLIN, None);
        let now = Instant::now();
        assert_eq!(acceptor.poll_for(now), accepts);
        acceptor.wait_for_closing();
        let ends = acceptor.opens_at.unwrap();
        assert!(ends >= now + PAUSE_FOR_CLOSING);
        assert_eq!(acceptor.poll_for(now), (PollFlags::empty(), Some(ends)));
        assert_eq!(acceptor.poll_for(ends), accepts);
    }
}
