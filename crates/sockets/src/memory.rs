//! The mapped memory of a connection: the block and the rings.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{copy_nonoverlapping, null_mut, NonNull};

use urdma_socket_switch::layout::{octet_at, MEMORY_OCTETS};
use urdma_socket_switch::{Block, End, Word};

/// Where it is. A copy is not used any more when it is unmapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory(NonNull<u8>);

// SAFETY: the memory is shared with another process anyway: its words are atomic, and its rings are
// only copied from and to.
unsafe impl Send for Memory {}
// SAFETY: the memory is shared with another process anyway: its words are atomic, and its rings are
// only copied from and to.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps a file, whose length must be that of block and rings.
    pub(crate) fn map(file: &OwnedFd) -> io::Result<Self> {
        let fd = file.as_raw_fd();
        // SAFETY: all zeroes is a valid `stat`.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is writable.
        let rc = unsafe { libc::fstat(fd, &raw mut status) };
        // SAFETY: the command takes no argument.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        let is_ours = usize::try_from(status.st_size) == Ok(MEMORY_OCTETS);
        if rc < 0 || !is_ours || seals & fixed != fixed {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let place = unsafe {
            libc::mmap(
                null_mut(),
                MEMORY_OCTETS,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let place = NonNull::new(place.cast());
        place
            .map(Self)
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// It is not used any more.
    pub(crate) unsafe fn unmap(self) {
        // SAFETY: the mapping of `map`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), MEMORY_OCTETS) };
    }

    /// # Safety
    /// It is mapped for the lifetime.
    #[inline(always)]
    pub(crate) unsafe fn block<'a>(self) -> &'a Block {
        // SAFETY: the mapping has a block at 0, aligned to a page. All of its fields are atomic.
        unsafe { self.0.cast::<Block>().as_ref() }
    }

    /// The place in a ring of a position, and how many octets follow there, at least one.
    ///
    /// # Safety
    /// It is mapped.
    #[inline(always)]
    pub(crate) unsafe fn place(self, sender: End, at: u64) -> (*mut u8, usize) {
        // SAFETY: as for the caller.
        let long_from = unsafe { self.block() }.load(Word::LongFrom(sender));
        let (at, following) = octet_at(sender, long_from, at);
        // SAFETY: in the mapping, for any numbers.
        (unsafe { self.0.as_ptr().add(at) }, following)
    }

    /// Copies octets into the ring of `sender`, from position `at` on.
    ///
    /// # Safety
    /// It is mapped, and `from` has `len` octets.
    #[inline(always)]
    pub(crate) unsafe fn copy_in(self, sender: End, at: u64, from: *const u8, len: usize) {
        // SAFETY: `step` octets of the caller's, and of the ring.
        let copy = |place, done, step| unsafe { copy_nonoverlapping(from.add(done), place, step) };
        // SAFETY: as for the caller.
        unsafe { self.each_piece(sender, at, len, copy) };
    }

    /// Copies octets out of the ring of `sender`, from position `at` on.
    ///
    /// # Safety
    /// It is mapped, and `to` has room for `len` octets.
    #[inline(always)]
    pub(crate) unsafe fn copy_out(self, sender: End, at: u64, to: *mut u8, len: usize) {
        // SAFETY: `step` octets of the ring, and of the caller's buffer.
        let copy = |place: *mut u8, done, step| unsafe {
            copy_nonoverlapping(place.cast_const(), to.add(done), step);
        };
        // SAFETY: as for the caller.
        unsafe { self.each_piece(sender, at, len, copy) };
    }

    /// Calls `copy` for each piece of the ring that has some of the `len` octets from position `at`
    /// on: its place, how many octets were before it, and how many it has. As a rule there is one.
    ///
    /// # Safety
    /// It is mapped.
    #[inline(always)]
    unsafe fn each_piece(
        self,
        sender: End,
        at: u64,
        len: usize,
        copy: impl Fn(*mut u8, usize, usize),
    ) {
        // SAFETY: as for the caller.
        let (place, room) = unsafe { self.place(sender, at) };
        if len <= room {
            copy(place, 0, len);
        } else {
            // SAFETY: as for the caller.
            unsafe { self.each_of_several_pieces(sender, at, len, copy) };
        }
    }

    /// The same by a loop.
    #[cold]
    #[inline(never)]
    unsafe fn each_of_several_pieces(
        self,
        sender: End,
        at: u64,
        len: usize,
        copy: impl Fn(*mut u8, usize, usize),
    ) {
        let mut done = 0;
        while done < len {
            // SAFETY: as for the caller.
            let (place, room) = unsafe { self.place(sender, at.wrapping_add(done as u64)) };
            let step = room.min(len - done);
            copy(place, done, step);
            done += step;
        }
    }
}
