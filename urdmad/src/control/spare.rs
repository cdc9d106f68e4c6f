//! The region of the next process that attaches, which is created while nothing waits for urdmad.

use std::os::fd::OwnedFd;
use std::time::Duration;

use urdma_channel::{ChannelConfig, OwnRegion};
use urdma_memfd::MemoryError;
use urdma_types::SlotId;

/// A region that urdmad writes, and its descriptor for the process.
pub(super) type Region = (OwnRegion, OwnedFd);

/// How long nothing is to be asked of urdmad before it creates a region. A process that has just
/// attached is busy and may share its processor with urdmad, since the kernel wakes the reader of a
/// socket where the sender runs: it would wait for the next process' region.
pub(super) const REST: Duration = Duration::from_millis(10);

/// At most one region that no process has yet. It is the same for each slot.
#[derive(Debug)]
pub(crate) struct Spare {
    region: Option<Region>,
    is_wanted: bool,
}

impl Spare {
    /// With a region, if there is memory for one.
    pub(crate) fn new() -> Self {
        Self {
            region: create().ok(),
            is_wanted: false,
        }
    }

    /// Whether [`prepare`](Self::prepare) would create one.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Creates one if none is there. Does not try again before one has been taken: the process that
    /// needs it is told why there is none.
    pub(super) fn prepare(&mut self) {
        if std::mem::take(&mut self.is_wanted) {
            self.region = create().ok();
        }
    }

    /// The one that is there, else a new one.
    pub(super) fn take(&mut self) -> Result<Region, MemoryError> {
        self.is_wanted = true;
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
        assert!(!spare.is_wanted());
        let prepared = spare.region.as_ref().unwrap().1.as_raw_fd();
        let (_region, fd) = spare.take().unwrap();
        assert_eq!(fd.as_raw_fd(), prepared);
        assert!(spare.is_wanted());
    }

    #[test]
    fn processes_that_attach_at_once_get_regions_of_their_own() {
        let mut spare = Spare::new();
        let (_first, first) = spare.take().unwrap();
        let (_second, second) = spare.take().unwrap();
        let inode = |fd: &OwnedFd| nix::sys::stat::fstat(fd).unwrap().st_ino;
        assert_ne!(inode(&first), inode(&second));
        spare.prepare();
        let (_third, third) = spare.take().unwrap();
        assert_ne!(inode(&third), inode(&first));
        assert_ne!(inode(&third), inode(&second));
    }
}
