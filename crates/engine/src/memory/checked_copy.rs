//! Copies for keys that the fast check of `host.rs` refuses: memory whose pages may be missing,
//! the null region, and windows of one queue pair. A key that grants nothing is refused here.
//!
//! The kernel copies memory that is registered for on-demand paging (`process_vm_readv` and
//! `process_vm_writev` on this process). It brings in missing pages as a plain access would, and
//! returns an error where a plain access would end the process (doc/adr/0006-on-demand-paging.md).

#![allow(unsafe_code)]

use proto_trp::conn::{ProtectionError, RemoteAccess, RemoteAddr, Sge};

use super::address::pointer;
use super::populate::populate;
use crate::objects::mr::Place;
use crate::objects::qp_host::{ListKind, QpHost};

/// Where octets come from or go to.
#[derive(Clone, Copy)]
enum Direction {
    /// From application memory to ours.
    Out(*mut u8),
    /// From ours to application memory.
    In(*const u8),
}

/// Moves `len` octets between `place` and the engine's own memory.
///
/// # Safety
/// The pointer of `direction` is good for `len` octets; a place in plain memory has been found by
/// the region table.
unsafe fn transfer(place: Place, direction: Direction, len: usize) -> Result<(), ProtectionError> {
    match (place, direction) {
        // SAFETY: registered memory, and the caller's promise.
        (Place::Memory(at), Direction::Out(to)) => unsafe {
            std::ptr::copy_nonoverlapping(pointer(at).cast_const(), to, len);
        },
        // SAFETY: registered memory, and the caller's promise.
        (Place::Memory(at), Direction::In(from)) => unsafe {
            std::ptr::copy_nonoverlapping(from, pointer(at), len);
        },
        // SAFETY: the caller's promise.
        (Place::Null, Direction::Out(to)) => unsafe { to.write_bytes(0, len) },
        (Place::Null, Direction::In(_)) => {}
        // SAFETY: the caller's promise.
        (Place::OnDemand(at), direction) => unsafe { transfer_by_kernel(at, direction, len)? },
    }
    Ok(())
}

/// Has the kernel move `len` octets between `at`, which may be no memory, and ours.
///
/// # Safety
/// The pointer of `direction` is good for `len` octets.
unsafe fn transfer_by_kernel(
    at: u64,
    direction: Direction,
    len: usize,
) -> Result<(), ProtectionError> {
    let (own, writes) = match direction {
        Direction::Out(to) => (to, false),
        Direction::In(from) => (from.cast_mut(), true),
    };
    let vector = |base: *mut u8| libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    };
    let (local, remote) = (vector(own), vector(pointer(at)));
    // SAFETY: the kernel checks `remote`, and `own` is good for `len` octets; it is only read when
    // it is written from.
    let moved = unsafe {
        let process = libc::getpid();
        if writes {
            libc::process_vm_writev(process, &raw const local, 1, &raw const remote, 1, 0)
        } else {
            libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0)
        }
    };
    if usize::try_from(moved) == Ok(len) {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        // A sandbox that does not let processes do this even to themselves: look first, then touch.
        Some(libc::EPERM | libc::ENOSYS) if moved < 0 => {
            populate(at, len as u64, writes).map_err(|_| ProtectionError::Bounds)?;
            // SAFETY: the pages have just been there; the application must not take them away at
            // this moment.
            unsafe { transfer(Place::Memory(at), direction, len) }
        }
        _ => Err(ProtectionError::Bounds),
    }
}

impl QpHost<'_> {
    /// Finds every piece of `len` octets from `offset` of the list, then moves them all.
    fn transfer_list(
        &self,
        list: ListKind,
        sges: &[Sge],
        offset: u64,
        len: usize,
        direction_at: impl Fn(usize) -> Direction,
    ) -> Result<(), ProtectionError> {
        let asker = (list.pd(self.qp), self.qp.number().to_u32());
        for moves in [false, true] {
            let (mut skip, mut done) = (offset, 0);
            for sge in sges {
                let length = u64::from(sge.length);
                if skip >= length || done == len {
                    skip -= skip.min(length);
                    continue;
                }
                let octets = (length - skip).min((len - done) as u64);
                let at = sge.addr.checked_add(skip).ok_or(ProtectionError::Wrap)?;
                let place = self
                    .regions
                    .find(sge.lkey, at, octets, asker, list.needs())?;
                // `octets` is at most `len - done`.
                let octets = usize::try_from(octets).map_err(|_| ProtectionError::Bounds)?;
                if moves {
                    // SAFETY: the callers' pointers are good for `len` octets, and the pieces are
                    // no more; the place was just found.
                    unsafe { transfer(place, direction_at(done), octets)? };
                }
                done += octets;
                skip = 0;
            }
            if done != len {
                return Err(ProtectionError::Bounds);
            }
        }
        Ok(())
    }

    #[cold]
    pub(super) fn gather_checked(
        &self,
        sges: &[Sge],
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), ProtectionError> {
        let to = out.as_mut_ptr();
        self.transfer_list(ListKind::Source, sges, offset, out.len(), |at| {
            // SAFETY: `at` is within `out`.
            Direction::Out(unsafe { to.add(at) })
        })
    }

    /// `from` is good for `len` octets.
    #[cold]
    pub(super) fn scatter_checked(
        &self,
        list: ListKind,
        sges: &[Sge],
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), ProtectionError> {
        self.transfer_list(list, sges, offset, len, |at| {
            // SAFETY: `at` is below `len`.
            Direction::In(unsafe { from.add(at) })
        })
    }

    /// Where memory is that the peer names, if its queue pair grants it that access.
    pub(super) fn find_remote(
        &self,
        remote: RemoteAddr,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Place, ProtectionError> {
        let needed = Self::rights(access);
        if !self.access.contains(needed) {
            return Err(ProtectionError::Access);
        }
        let asker = (self.qp.pd(), self.qp.number().to_u32());
        self.regions
            .find(remote.stag, remote.to, len, asker, needed)
    }

    /// # Safety
    /// `from` is good for `len` octets.
    #[cold]
    pub(super) unsafe fn write_checked(
        &self,
        remote: RemoteAddr,
        from: *const u8,
        len: usize,
    ) -> Result<(), ProtectionError> {
        let place = self.find_remote(remote, len as u64, RemoteAccess::Write)?;
        // SAFETY: the caller's promise; the place was just found.
        unsafe { transfer(place, Direction::In(from), len) }
    }

    #[cold]
    pub(super) fn read_checked(
        &self,
        remote: RemoteAddr,
        out: &mut [u8],
    ) -> Result<(), ProtectionError> {
        let place = self.find_remote(remote, out.len() as u64, RemoteAccess::Read)?;
        // SAFETY: a slice is good for its length; the place was just found.
        unsafe { transfer(place, Direction::Out(out.as_mut_ptr()), out.len()) }
    }

    /// The word that an atomic of the peer works on; it is there at this moment.
    #[cold]
    pub(super) fn word_checked(
        &self,
        remote: RemoteAddr,
        access: RemoteAccess,
    ) -> Result<u64, ProtectionError> {
        match self.find_remote(remote, 8, access)? {
            Place::Memory(at) => Ok(at),
            Place::OnDemand(at) => {
                populate(at, 8, true).map_err(|_| ProtectionError::Bounds)?;
                Ok(at)
            }
            Place::Null => Err(ProtectionError::Access),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Two pages, the second of which is a hole when `has_hole`.
    fn pages(protection: i32, has_hole: bool) -> u64 {
        // SAFETY: a new anonymous mapping, of which a page is given back.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            if has_hole {
                libc::munmap(start.byte_add(PAGE), PAGE);
            }
            start as u64
        }
    }

    fn read(at: u64, len: usize) -> Result<Vec<u8>, ProtectionError> {
        let mut octets = vec![0xee; len];
        // SAFETY: a vector is good for its length.
        unsafe {
            transfer(
                Place::OnDemand(at),
                Direction::Out(octets.as_mut_ptr()),
                len,
            )?
        };
        Ok(octets)
    }

    fn write(at: u64, octets: &[u8]) -> Result<(), ProtectionError> {
        // SAFETY: a slice is good for its length.
        unsafe {
            transfer(
                Place::OnDemand(at),
                Direction::In(octets.as_ptr()),
                octets.len(),
            )
        }
    }

    #[test]
    fn on_demand_memory_that_was_never_touched_is_filled_and_read() {
        let at = pages(libc::PROT_READ | libc::PROT_WRITE, false) + PAGE as u64 - 3;
        assert_eq!(read(at, 6), Ok(vec![0; 6]));
        assert_eq!(write(at, b"across"), Ok(()));
        assert_eq!(read(at, 6), Ok(b"across".to_vec()));
    }

    #[test]
    fn on_demand_hole_or_missing_right_is_an_error_and_no_crash() {
        let hole = pages(libc::PROT_READ | libc::PROT_WRITE, true) + PAGE as u64 - 3;
        assert_eq!(read(hole, 6), Err(ProtectionError::Bounds));
        assert_eq!(write(hole, b"across"), Err(ProtectionError::Bounds));
        assert_eq!(write(u64::MAX - 8, b"octets"), Err(ProtectionError::Bounds));
        let read_only = pages(libc::PROT_READ, false);
        assert_eq!(read(read_only, 6), Ok(vec![0; 6]));
        assert_eq!(write(read_only, b"octets"), Err(ProtectionError::Bounds));
    }

    #[test]
    fn null_region_reads_as_zeroes_and_swallows_what_is_written() {
        let mut octets = [7u8; 4];
        // SAFETY: the array is good for its length.
        unsafe {
            transfer(Place::Null, Direction::In(octets.as_ptr()), 4).unwrap();
            transfer(Place::Null, Direction::Out(octets.as_mut_ptr()), 4).unwrap();
        }
        assert_eq!(octets, [0; 4]);
    }
}
