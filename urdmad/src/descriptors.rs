//! Descriptors that clients send and are sent.

use std::os::fd::OwnedFd;

use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::resource::{getrlimit, Resource};
use nix::sys::stat::fstat;
use urdma_waiting::Waker;

/// The seals without which a region is not passed on: its length is fixed, and no descriptor of it
/// can be written through.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_FUTURE_WRITE);

/// Octets of the longest memory that is taken, nearly twice those of a flight recording. The last
/// one who unmaps it frees its pages, and may be a thread of urdmad or of another process.
const OCTETS_MAX: i64 = 16 << 20;

/// Whether a descriptor is of a memfd of bounded length whose descriptors cannot be written
/// through. Neither this nor closing it blocks.
pub(crate) fn is_region(fd: &OwnedFd) -> bool {
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
    seals.is_ok_and(|seals| seals.contains(SEALS))
        && fstat(fd).is_ok_and(|status| status.st_size <= OCTETS_MAX)
}

/// Whether descriptors are what a process offers: `regions` of memory and, if it has one, the
/// socket that wakes it.
pub(crate) fn are_offer(fds: &[OwnedFd], regions: usize) -> bool {
    let (memory, socket) = fds.split_at(regions.min(fds.len()));
    memory.len() == regions
        && memory.iter().all(is_region)
        && socket.len() <= 1
        && socket.iter().all(Waker::accepts)
}

/// Offers, of three descriptors each, that the processes of one user may leave unread: a quarter of
/// what the kernel lets urdmad have on the way, which is the limit of open files.
pub(crate) fn unread_max() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(limit, _)| limit);
    usize::try_from(limit / 12).unwrap_or(usize::MAX)
}
