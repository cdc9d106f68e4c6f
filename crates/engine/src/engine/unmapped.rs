//! Registered memory that the program has unmapped.
//!
//! A NIC holds the pages of a region: a peer that accesses what the program has unmapped changes
//! pages that the program no longer sees, and the program lives. The engine copies in a thread of
//! the program, where such an access is a fault. [`repair`], which the handler of SIGSEGV calls
//! first, maps empty pages there, and the copy goes on. They are unmapped when the region ends. See
//! doc/adr/0006-on-demand-paging.md.
//!
//! A fault is repaired if its page is not mapped at all, it is in the memory of a region, and the
//! thread holds the lock of an engine, as every thread that copies does. All others are the
//! program's.
//!
//! [`repair`] runs in the midst of any code of the thread. It takes no lock and allocates nothing.
//! It reads the table of regions of an engine whose lock the same thread holds: no other thread
//! changes the table, and the thread itself does not do so in the midst of a copy. An engine whose
//! lock is held is not dropped; that the locks of others are not freed while they are looked at
//! ([`end_of_region`]) is what [`LOOKING`] is for.
//!
//! The pages are a private mapping of `/dev/zero`, which is anonymous memory, at an offset that is
//! their address. Thus /proc/self/maps tells them from what the program may have mapped in their
//! place.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::siginfo_t;
use urdma_abi::faults::{self, Faults};
use urdma_abi::next::{errno, set_errno};

use crate::lock::SpinLock;
use crate::memory::address::pointer;
use crate::shard::Shard;

/// `si_code` of an access to what is not mapped.
const SEGV_MAPERR: c_int = 1;
const ZEROES: &std::ffi::CStr = c"/dev/zero";

/// The lock of an engine, or null, and the next one. It is never freed, and used again.
struct Watched {
    lock: AtomicPtr<SpinLock<Shard>>,
    next: Option<&'static Watched>,
}

/// The locks of the engines of the process.
static WATCHED: AtomicPtr<Watched> = AtomicPtr::new(null_mut());
/// Threads that look at [`WATCHED`].
static LOOKING: AtomicUsize = AtomicUsize::new(0);
/// Pages that were mapped.
static MAPPED: AtomicU64 = AtomicU64::new(0);
/// Those of them that were unmapped when their region ended.
static RELEASED: AtomicU64 = AtomicU64::new(0);
static PAGE_OCTETS: AtomicU64 = AtomicU64::new(4096);
/// In a process without the stand-in.
static FAULTS: Faults = Faults::new(on_fault, install);

unsafe extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the arguments of the handler.
    unsafe { FAULTS.handle(signal, info, context) };
}

unsafe fn install(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the arguments of the caller.
    unsafe { libc::sigaction(signal, new, old) }
}

/// Has faults of this process repaired from now on.
pub(crate) fn begin() {
    /// The process that has begun, which a forked child is not.
    static BEGUN_IN: AtomicI32 = AtomicI32::new(0);
    // SAFETY: no precondition.
    let process = unsafe { libc::getpid() };
    if BEGUN_IN.load(Ordering::Acquire) == process {
        return;
    }
    // SAFETY: no precondition.
    let octets = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_OCTETS.store(u64::try_from(octets).unwrap_or(4096), Ordering::Relaxed);
    if !faults::repair_in_standin(repair) {
        FAULTS.begin(repair);
    }
    BEGUN_IN.store(process, Ordering::Release);
}

fn watched() -> impl Iterator<Item = &'static Watched> {
    // SAFETY: null or one that is never freed.
    let first = unsafe { WATCHED.load(Ordering::Acquire).as_ref() };
    std::iter::successors(first, |watched| watched.next)
}

/// Threads that hold this lock are those of an engine. It does not move before [`forget`].
pub(crate) fn watch(lock: &SpinLock<Shard>) {
    static ADDING: Mutex<()> = Mutex::new(());
    let lock = std::ptr::from_ref(lock).cast_mut();
    let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
    let free = watched().find(|watched| watched.lock.load(Ordering::Relaxed).is_null());
    if let Some(free) = free {
        free.lock.store(lock, Ordering::SeqCst);
        return;
    }
    let added = Box::leak(Box::new(Watched {
        lock: AtomicPtr::new(lock),
        next: watched().next(),
    }));
    WATCHED.store(added, Ordering::Release);
}

/// The lock ends when this has returned.
pub(super) fn forget(lock: &SpinLock<Shard>) {
    let lock = std::ptr::from_ref(lock).cast_mut();
    if let Some(watched) = watched().find(|of| of.lock.load(Ordering::Relaxed) == lock) {
        watched.lock.store(null_mut(), Ordering::SeqCst);
        while LOOKING.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
}

/// Repairs a fault of the calling thread; 0 if it is the program's.
///
/// # Safety
/// Called by a handler of SIGSEGV with its argument, for a fault and not for a signal that a
/// process has sent.
unsafe extern "C" fn repair(info: *const siginfo_t) -> c_int {
    // SAFETY: the kernel's, as the caller promises.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    let end = match code {
        SEGV_MAPERR => end_of_region(address),
        _ => None,
    };
    let Some(end) = end else {
        return 0;
    };
    let before = errno();
    let is_mapped = map_from(address & !(page_octets() - 1), end);
    set_errno(before);
    c_int::from(is_mapped)
}

/// The end of a region that has this octet, of an engine whose lock the calling thread holds.
fn end_of_region(address: u64) -> Option<u64> {
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let end = watched().find_map(|watched| {
        let lock = watched.lock.load(Ordering::SeqCst);
        // SAFETY: null or a lock that does not end while `LOOKING` is not 0.
        let held = unsafe { lock.as_ref() }.filter(|lock| lock.is_held_here())?;
        // SAFETY: the thread holds the lock, and is in a copy, which changes no table: see the
        // module.
        unsafe { (*held.value()).process.regions.end_of_memory_at(address) }
    });
    LOOKING.fetch_sub(1, Ordering::SeqCst);
    end
}

/// Maps empty pages from `page` on, to `end` if nothing is mapped in between and the process may
/// have as many, else fewer, at least one; false if the system refuses. One mapping has many pages,
/// since a process may have some 65,000 mappings.
fn map_from(page: u64, end: u64) -> bool {
    // SAFETY: a C string and numbers. Not by the C library's function, which is a cancellation
    // point and a hook.
    let zeroes = unsafe {
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, ZEROES.as_ptr(), flags, 0)
    };
    let mut pages = (end - page).div_ceil(page_octets());
    let mut outcome = map(page, pages, zeroes);
    while outcome.is_err() && pages > 1 {
        pages /= 2;
        outcome = map(page, pages, zeroes);
    }
    if zeroes >= 0 {
        // SAFETY: opened above.
        unsafe { libc::syscall(libc::SYS_close, zeroes) };
    }
    // If the page itself is there, another thread has mapped it, and the access is tried again.
    matches!(outcome, Ok(()) | Err(libc::EEXIST))
}

/// Maps pages of the file, or without it anonymous ones, which stay until the process ends.
///
/// # Errors
/// The errno.
fn map(page: u64, pages: u64, zeroes: libc::c_long) -> Result<(), c_int> {
    let (kind, offset) = match zeroes {
        0.. => (0, page),
        _ => (libc::MAP_ANONYMOUS, 0),
    };
    let octets = pages * page_octets();
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE | kind;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: replaces no mapping. What is not mapped there is neither of the engine nor, since it
    // is in a region that the program has unmapped, of another library's.
    let mapped =
        unsafe { libc::syscall(libc::SYS_mmap, page, octets, access, flags, zeroes, offset) };
    if mapped < 0 {
        return Err(errno());
    }
    if u64::try_from(mapped) != Ok(page) {
        // SAFETY: what a kernel before Linux 4.17 has just mapped elsewhere.
        unsafe { libc::syscall(libc::SYS_munmap, mapped, octets) };
        return Err(libc::ENOSYS);
    }
    MAPPED.fetch_add(pages, Ordering::Relaxed);
    Ok(())
}

fn page_octets() -> u64 {
    PAGE_OCTETS.load(Ordering::Relaxed)
}

/// Unmaps the pages that were mapped in the memory of a region, which has ended: (address, octets).
#[inline]
pub(crate) fn release(memory: Option<(u64, u64)>) {
    let has_any = mapped() != RELEASED.load(Ordering::Relaxed);
    if let Some(memory) = memory.filter(|_| has_any) {
        unmap_pages(memory);
    }
}

/// Pages that were mapped in this process.
#[inline]
pub(crate) fn mapped() -> u64 {
    MAPPED.load(Ordering::Relaxed)
}

#[cold]
fn unmap_pages((address, octets): (u64, u64)) {
    let page = page_octets();
    let (first, end) = (address & !(page - 1), address.saturating_add(octets));
    let end = end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    // Without the file they stay until the process ends.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (from, to) in maps.lines().filter_map(mapped_here) {
        let (from, to) = (from.max(first), to.min(end));
        let Some(octets) = to.checked_sub(from).filter(|octets| *octets > 0) else {
            continue;
        };
        let length = usize::try_from(octets).unwrap_or(0);
        // SAFETY: pages of this module, which only copies to and from the region have used.
        if unsafe { libc::munmap(pointer(from).cast(), length) } == 0 {
            RELEASED.fetch_add(octets / page, Ordering::Relaxed);
        }
    }
}

/// The range of a line of /proc/self/maps whose pages [`map`] has mapped.
fn mapped_here(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let (access, offset) = (words.next()?, words.next()?);
    let is_here = access == "rw-p" && offset == from && words.nth(2) == ZEROES.to_str().ok();
    Some((number(from)?, number(to)?)).filter(|_| is_here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_this_module_are_known_by_their_line() {
        let ours = "7f0000001000-7f0000003000 rw-p 7f0000001000 00:06 4    /dev/zero";
        assert_eq!(mapped_here(ours), Some((0x7f0000001000, 0x7f0000003000)));
        for other in [
            "7f0000001000-7f0000003000 rw-p 00000000 00:06 4    /dev/zero",
            "7f0000001000-7f0000003000 r--p 7f0000001000 00:06 4    /dev/zero",
            "7f0000001000-7f0000003000 rw-p 7f0000001000 00:06 4    /dev/null",
            "7f0000001000-7f0000003000 rw-p 00000000 00:00 0",
        ] {
            assert_eq!(mapped_here(other), None, "{other}");
        }
    }
}
