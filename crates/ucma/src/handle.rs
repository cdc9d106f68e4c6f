//! The numbers by which librdmacm and the stand-in name the objects of this crate.

/// An `rdma_cm_id`, as the commands name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CmId(pub u32);

/// A multicast group that an id has joined, as the commands name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MembershipId(pub(crate) u32);

/// An open rdma_cm file of one [`crate::Ucma`]; a number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileHandle(pub(crate) u64);
