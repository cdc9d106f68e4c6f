//! The region of the next process that attaches, which is created while nothing waits for urdmad.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use urdma_channel::{ChannelConfig, OwnRegion};
use urdma_memfd::MemoryError;
use urdma_types::SlotId;

/// A region that urdmad writes, and its descriptor for the process.
pub(super) type Region = (OwnRegion, OwnedFd);

/// How long after the last one a region is created. A process that has just attached is busy and
/// may share its processor with urdmad, since the kernel wakes the reader of a socket where the
/// sender runs: it would wait for the next process' region.
const DELAY: Duration = Duration::from_millis(3);

/// At most one region that no process has yet. It is the same for each slot.
#[derive(Debug)]
pub(crate) struct Spare {
    region: Option<Region>,
    due_at: Option<Instant>,
}

impl Spare {
    /// With a region, if there is memory for one.
    pub(crate) fn new() -> Self {
        Self {
            region: create().ok(),
            due_at: None,
        }
    }

    /// When [`prepare`](Self::prepare) is to create one.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// Creates one when it is due and none is there. Does not try again before one has been taken:
    /// the process that needs it is told why there is none.
    pub(super) fn prepare(&mut self, now: Instant) {
        if self.due_at.take_if(|due_at| *due_at <= now).is_some() {
            self.region = create().ok();
        }
    }

    /// The one that is there, else a new one.
    pub(super) fn take(&mut self, now: Instant) -> Result<Region, MemoryError> {
        self.due_at = Some(now + DELAY);
        match self.region.take() {
            Some(region) => Ok(region),
            None => create(),
        }
    }
}

fn create() -> Result<Region, MemoryError> {
    OwnRegion::create(&ChannelConfig::PACKETS, SlotId::DAEMON.number())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_process_gets_the_region_that_was_created_before_it_asked() {
        let mut spare = Spare::new();
        assert_eq!(spare.due_at(), None);
        let prepared = spare.region.as_ref().unwrap().1.as_raw_fd();
        let now = Instant::now();
        let (_region, fd) = spare.take(now).unwrap();
        assert_eq!(fd.as_raw_fd(), prepared);
        assert_eq!(spare.due_at(), Some(now + DELAY));
    }

    #[test]
    fn processes_that_attach_at_once_get_regions_of_their_own() {
        let mut spare = Spare::new();
        let now = Instant::now();
        let (_first, first) = spare.take(now).unwrap();
        let (_second, second) = spare.take(now).unwrap();
        let inode = |fd: &OwnedFd| nix::sys::stat::fstat(fd).unwrap().st_ino;
        assert_ne!(inode(&first), inode(&second));
        spare.prepare(now + DELAY);
        let (_third, third) = spare.take(now).unwrap();
        assert_ne!(inode(&third), inode(&first));
        assert_ne!(inode(&third), inode(&second));
    }

    #[test]
    fn the_next_region_is_not_created_while_processes_attach() {
        let mut spare = Spare::new();
        let now = Instant::now();
        let _first = spare.take(now).unwrap();
        spare.prepare(now);
        assert!(spare.region.is_none());
        let later = now + DELAY / 2;
        let _second = spare.take(later).unwrap();
        spare.prepare(now + DELAY);
        assert!(spare.region.is_none());
        spare.prepare(later + DELAY);
        assert!(spare.region.is_some());
        assert_eq!(spare.due_at(), None);
    }
}
