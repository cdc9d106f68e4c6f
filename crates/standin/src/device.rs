//! The device files that the stand-in plays.

/// A device file that the stand-in plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// `/dev/infiniband/uverbs0`
    Uverbs,
    /// `/dev/infiniband/rdma_cm`
    RdmaCm,
}

impl Device {
    /// Device number: uverbs0 that of `/dev/null`, which it is behind the scenes and which the sysfs
    /// tree names; rdma_cm one of the misc devices.
    pub(crate) fn number(self) -> libc::dev_t {
        match self {
            Self::Uverbs => libc::makedev(1, 3),
            Self::RdmaCm => libc::makedev(10, 58),
        }
    }
}
