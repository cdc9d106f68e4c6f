//! The device files that the stand-in provides.

/// A device file that the stand-in provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// `/dev/infiniband/uverbs0`
    Uverbs,
    /// `/dev/infiniband/rdma_cm`
    RdmaCm,
}

impl Device {
    /// Device number: for uverbs0 that of `/dev/null`, which backs the file and which the sysfs
    /// tree names; for rdma_cm that of a misc device.
    pub(crate) fn number(self) -> libc::dev_t {
        match self {
            Self::Uverbs => libc::makedev(1, 3),
            Self::RdmaCm => libc::makedev(10, 58),
        }
    }
}
