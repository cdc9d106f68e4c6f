//! Memory that is written without regard for any rule, and the system calls by which a process
//! could reach the memory of others.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{fence, Ordering};

use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::mman::{mmap, mprotect, munmap, MapFlags, ProtFlags};
use nix::unistd::ftruncate;

/// The seals that urdmad asks for.
pub(crate) const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_FUTURE_WRITE);

/// A memfd of zeroes with these seals.
pub(crate) fn memfd(octets: usize, seals: SealFlag, flags: MFdFlags) -> nix::Result<OwnedFd> {
    let flags = flags | MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
    let fd = memfd_create(c"urdma-hostile", flags)?;
    ftruncate(&fd, i64::try_from(octets).unwrap_or(i64::MAX))?;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}

/// A shared mapping of a file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<c_void>,
    octets: usize,
}

// SAFETY: the memory is mapped until the last owner drops this, whichever thread that is.
unsafe impl Send for Memory {}
// SAFETY: every access is volatile; races between threads are what the program is for.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps the first octets of a file.
    pub(crate) fn map(fd: BorrowedFd<'_>, octets: usize, access: ProtFlags) -> nix::Result<Self> {
        let length = NonZeroUsize::new(octets).ok_or(nix::Error::EINVAL)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self { base, octets })
    }

    /// A memfd of its own that this process can write and others only read.
    pub(crate) fn create(octets: usize) -> nix::Result<(Self, OwnedFd)> {
        let fd = memfd(octets, SealFlag::empty(), MFdFlags::empty())?;
        let memory = Self::map(
            fd.as_fd(),
            octets,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        )?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS))?;
        Ok((memory, fd))
    }

    /// Its length.
    pub(crate) fn octets(&self) -> usize {
        self.octets
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset.is_multiple_of(align_of::<T>()));
        assert!(offset + size_of::<T>() <= self.octets);
        self.base.as_ptr().cast::<u8>().wrapping_add(offset).cast()
    }

    /// Stores a word after everything that was stored before.
    pub(crate) fn store64(&self, offset: usize, value: u64) {
        fence(Ordering::Release);
        // SAFETY: aligned and within the mapping, which its callers made writable.
        unsafe { self.at::<u64>(offset).write_volatile(value) };
    }

    /// Stores a half word.
    pub(crate) fn store32(&self, offset: usize, value: u32) {
        fence(Ordering::Release);
        // SAFETY: aligned and within the mapping, which its callers made writable.
        unsafe { self.at::<u32>(offset).write_volatile(value) };
    }

    /// Stores an octet.
    pub(crate) fn store8(&self, offset: usize, value: u8) {
        // SAFETY: aligned and within the mapping, which its callers made writable.
        unsafe { self.at::<u8>(offset).write_volatile(value) };
    }

    /// Stores octets.
    pub(crate) fn store(&self, offset: usize, octets: &[u8]) {
        for (at, octet) in octets.iter().enumerate() {
            self.store8(offset + at, *octet);
        }
    }

    /// Loads a word.
    pub(crate) fn load64(&self, offset: usize) -> u64 {
        // SAFETY: aligned and within the mapping.
        let value = unsafe { self.at::<u64>(offset).read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    /// Wakes those that wait on a word.
    pub(crate) fn wake(&self, offset: usize) {
        let word = self.at::<u32>(offset);
        // SAFETY: FUTEX_WAKE only compares the address of the word.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Whether the mapping can be made writable.
    pub(crate) fn can_become_writable(&self) -> bool {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping of this object, to which no reference exists.
        unsafe { mprotect(self.base, self.octets, access) }.is_ok()
    }

    /// Whether the pages can be taken out of the file.
    pub(crate) fn can_be_removed(&self) -> bool {
        // SAFETY: a mapping of this object, to which no reference exists.
        unsafe { libc::madvise(self.base.as_ptr(), self.octets, libc::MADV_REMOVE) == 0 }
    }

    /// The address of its first octet.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base, self.octets) };
    }
}

/// Whether a call of the kernel succeeded.
fn is_done(rc: libc::c_long) -> bool {
    rc >= 0
}

/// Whether this process can follow another one.
pub(crate) fn can_trace(pid: i32) -> bool {
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: PTRACE_SEIZE changes no memory of this process.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, none, none) };
    is_done(seized)
}

/// Whether memory of another process can be read, or written, at an address.
pub(crate) fn can_copy(pid: i32, at: u64, is_write: bool) -> bool {
    let mut octets = [0u8; 8];
    let own = libc::iovec {
        iov_base: octets.as_mut_ptr().cast(),
        iov_len: octets.len(),
    };
    let other = libc::iovec {
        iov_base: at as *mut c_void,
        iov_len: octets.len(),
    };
    // SAFETY: our list names eight octets of ours; the kernel checks the address of the other's.
    let copied = unsafe {
        if is_write {
            libc::process_vm_writev(pid, &raw const own, 1, &raw const other, 1, 0)
        } else {
            libc::process_vm_readv(pid, &raw const own, 1, &raw const other, 1, 0)
        }
    };
    copied > 0
}

/// Whether a descriptor of another process can be taken.
pub(crate) fn can_take_descriptor(pid: i32, number: i32) -> bool {
    // SAFETY: pidfd_open takes two integers.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if !is_done(pidfd) {
        return false;
    }
    // SAFETY: pidfd_getfd takes three integers.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, number, 0) };
    // The descriptors end with the process.
    is_done(taken)
}

/// Whether bytes of another file can be moved to a descriptor in the kernel.
pub(crate) fn can_splice_into(fd: BorrowedFd<'_>) -> bool {
    let Ok(source) = std::fs::File::open("/proc/self/exe") else {
        return false;
    };
    let mut offset = 0;
    // SAFETY: the offset is a variable of ours.
    let moved = unsafe { libc::sendfile(fd.as_raw_fd(), source.as_raw_fd(), &raw mut offset, 64) };
    moved > 0
}
