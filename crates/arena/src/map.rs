//! The memfd, its mapping, and references into it. Unsafe is fenced here and in `frame`, `short`
//! and `futex`.
//!
//! Frames and parkers refer to a mapping without counting references on the hot path. It lasts as
//! long as the process, or, for a process that may outlive the arena, as long as a [`MappedArena`].
//! The same arena opened twice is mapped once, so reopening a device does not grow the process. Its
//! size is sealed, so no access below that size can raise SIGBUS (short of the machine running out
//! of memory).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::delivery::DeliveryRecord;
use crate::frame::FrameHeader;
use crate::layout::{ArenaConfig, FrameIndex, Layout, LayoutError};
use crate::ring::Ring;
use crate::short::Shorts;
use crate::slot::{SlotEntry, SlotStatus, Witness};
use crate::sync::{AtomicU64, Ordering};
use urdma_types::SlotId;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    layout: Layout,
    fd: OwnedFd,
    device_inode: (u64, u64),
}

// SAFETY: the mapping is unmapped only when nothing refers to it; everything in it is reached
// through atomics or by a frame's only holder.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A mapping of this process, and how long it lasts.
struct Registered {
    mapping: NonNull<Mapping>,
    /// As many [`MappedArena`] there are.
    holders: usize,
    /// It lasts as long as the process.
    is_permanent: bool,
}

// SAFETY: the pointer leads to a `Mapping`, which may move between threads.
unsafe impl Send for Registered {}

impl Registered {
    fn mapping(&self) -> &'static Mapping {
        // SAFETY: it was boxed by `register` and is freed only by the last `MappedArena`, after
        // whose end nothing may refer to it.
        unsafe { self.mapping.as_ref() }
    }
}

/// Every arena this process has mapped.
static MAPPINGS: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// A mapped arena; a copyable handle, valid for the rest of the process unless it came from a
/// [`MappedArena`].
#[derive(Clone, Copy, Debug)]
pub struct Arena {
    mapping: &'static Mapping,
}

impl From<LayoutError> for io::Error {
    fn from(error: LayoutError) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(rc)
}

fn stat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    let mut out = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the struct that the pointer names.
    check(unsafe { libc::fstat(fd.as_raw_fd(), out.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded, so the struct is filled.
    Ok(unsafe { out.assume_init() })
}

/// Reads the file's first words; reading takes less than mapping it for that.
fn read_at_start(fd: BorrowedFd<'_>, words: &mut [u64]) -> io::Result<()> {
    let octets = size_of_val(words);
    // SAFETY: pread writes at most `octets` octets, which is what the words have; any octets are
    // words.
    let read = unsafe { libc::pread(fd.as_raw_fd(), words.as_mut_ptr().cast(), octets, 0) };
    match usize::try_from(read) {
        Ok(read) if read == octets => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn map(fd: BorrowedFd<'_>, octets: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            octets,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            fd.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(explain(io::Error::last_os_error(), octets));
    }
    // A core dump would have all of it, gigabytes that are mostly other processes', and would
    // allocate every page that has no memory yet. Without the advice a dump is only longer. SAFETY:
    // the range has just been mapped; the advice changes no contents.
    unsafe { libc::madvise(at, octets, libc::MADV_DONTDUMP) };
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// Says what to do where a limit of addresses is too low.
fn explain(error: io::Error, octets: usize) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return error;
    }
    let megabytes = octets >> 20;
    let sentence = format!(
        "the limit of addresses (ulimit -v) has no room for its {megabytes} MB: raise it, or \
         lower `slots` or `[frames]` in the configuration"
    );
    io::Error::new(io::ErrorKind::OutOfMemory, sentence)
}

impl Arena {
    /// Makes a new arena and maps it. urdmad does this, once.
    ///
    /// # Errors
    /// A configuration out of range, or what the system calls say.
    pub fn create(config: &ArenaConfig) -> io::Result<Self> {
        let layout = Layout::new(config)?;
        // SAFETY: the name is a literal with its terminating zero.
        let raw = check(unsafe {
            libc::memfd_create(
                c"urdma-arena".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        })?;
        // SAFETY: memfd_create has just returned this descriptor, no other code has it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let octets =
            libc::off_t::try_from(layout.total()).map_err(|_| LayoutError::Config("too large"))?;
        // SAFETY: only changes the length of our own file.
        check(unsafe { libc::ftruncate(raw, octets) })?;
        // SAFETY: only seals our own file.
        check(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, SEALS) })?;
        let arena = Self::register(fd, layout, |known| known.is_permanent = true)?;
        for (index, word) in layout.header().into_iter().enumerate() {
            arena.header_word(index).store(word, Ordering::Release);
        }
        Ok(arena)
    }

    /// Maps an arena that another process made.
    ///
    /// # Errors
    /// `InvalidData` when it is not a sealed arena of this version whose length fits its header;
    /// otherwise what the system calls say.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        Self::open(fd, |known| known.is_permanent = true)
    }

    fn open(fd: OwnedFd, note: impl FnOnce(&mut Registered)) -> io::Result<Self> {
        // SAFETY: only reads the seals of a descriptor we own.
        let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the arena's size is not sealed",
            ));
        }
        let octets = u64::try_from(stat(fd.as_fd())?.st_size).unwrap_or(0);
        if octets < crate::layout::HEADER_OCTETS as u64 {
            return Err(LayoutError::Magic.into());
        }
        let mut header = [0u64; 4];
        read_at_start(fd.as_fd(), &mut header)?;
        Self::register(fd, Layout::from_header(header, octets)?, note)
    }

    /// Finds the mapping of a file, or makes it, and has noted how long it is needed.
    fn register(
        fd: OwnedFd,
        layout: Layout,
        note: impl FnOnce(&mut Registered),
    ) -> io::Result<Self> {
        let status = stat(fd.as_fd())?;
        let device_inode = (status.st_dev, status.st_ino);
        let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = mappings.iter_mut().find(|known| {
            let mapping = known.mapping();
            mapping.device_inode == device_inode && mapping.layout == layout
        });
        if let Some(known) = known {
            note(known);
            let mapping = known.mapping();
            return Ok(Self { mapping });
        }
        let base = map(fd.as_fd(), layout.total())?;
        let mapping = Box::new(Mapping {
            base,
            layout,
            fd,
            device_inode,
        });
        let mut new = Registered {
            mapping: NonNull::from(Box::leak(mapping)),
            holders: 0,
            is_permanent: false,
        };
        note(&mut new);
        let mapping = new.mapping();
        mappings.push(new);
        Ok(Self { mapping })
    }

    /// The memfd, to be passed to other processes.
    pub fn fd(&self) -> BorrowedFd<'static> {
        self.mapping.fd.as_fd()
    }

    /// Sizes and offsets.
    #[inline]
    pub fn layout(&self) -> &'static Layout {
        &self.mapping.layout
    }

    /// Every slot of this arena, slot 0 first.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> + Clone {
        let slots = self.layout().config().slots;
        (0..slots).filter_map(|index| u8::try_from(index).ok().and_then(SlotId::new))
    }

    /// Whether a process uses `slot` and is not known to be dead.
    #[inline]
    pub fn is_alive(&self, slot: SlotId) -> bool {
        self.entry(slot)
            .is_some_and(|entry| entry.public.park.load(Ordering::Relaxed) != crate::park::VACANT)
    }

    /// How often `slot` has been handed out anew; 0 when there is no such slot.
    #[inline]
    pub fn generation(&self, slot: SlotId) -> u32 {
        self.entry(slot)
            .map_or(0, |entry| entry.public.epoch.load(Ordering::Acquire))
    }

    /// How a peer finds out whether it can read the memory of the process in `slot`; None when that
    /// does not want to be read.
    pub fn witness(&self, slot: SlotId) -> Option<Witness> {
        self.entry(slot)?.public.witness()
    }

    /// Whether the process in `reader` says that it can read the memory of that in `slot`.
    #[inline]
    pub fn reads(&self, reader: SlotId, slot: SlotId) -> bool {
        self.entry(reader)
            .is_some_and(|entry| entry.public.reads(slot))
    }

    /// What the slot table says of `slot`, None when there is no such slot.
    pub fn status(&self, slot: SlotId) -> Option<SlotStatus> {
        let entry = self.entry(slot)?;
        let backlog = self
            .ring(slot)?
            .backlog(entry.owner.head.load(Ordering::Relaxed));
        Some(entry.status(backlog))
    }

    #[inline]
    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.mapping.layout.total());
        // SAFETY: every offset given comes from the layout, which was checked against the mapping's
        // length.
        unsafe { self.mapping.base.add(offset) }
    }

    fn header_word(&self, index: usize) -> &'static AtomicU64 {
        // SAFETY: the header's first words are within the first page, aligned, mapped for ever, and
        // valid in any bit pattern.
        unsafe { self.at(index * 8).cast().as_ref() }
    }

    #[inline]
    pub(crate) fn entry(&self, slot: SlotId) -> Option<&'static SlotEntry> {
        if !self.layout().has_slot(slot) {
            return None;
        }
        // SAFETY: the entry lies within the mapping at a multiple of 256; it consists of atomics,
        // valid in any bit pattern.
        Some(unsafe { self.at(self.layout().slot_at(slot)).cast().as_ref() })
    }

    #[inline]
    pub(crate) fn ring(&self, slot: SlotId) -> Option<Ring<'static>> {
        let entry = self.entry(slot)?;
        let cells = self.at(self.layout().ring_at(slot)).cast::<AtomicU64>();
        // SAFETY: `ring_cells` words from there are within the mapping, aligned, mapped for ever,
        // and valid in any bit pattern.
        let cells = unsafe {
            std::slice::from_raw_parts(cells.as_ptr(), self.layout().config().ring_cells as usize)
        };
        Some(Ring::new(cells, &entry.ring.tail))
    }

    /// The short rings of a slot.
    #[inline]
    pub(crate) fn shorts(&self, slot: SlotId) -> Option<&'static Shorts> {
        if !self.layout().has_slot(slot) {
            return None;
        }
        // SAFETY: they lie within the mapping at a multiple of a page, and are valid in any bit
        // pattern; their octets are guarded by their words.
        Some(unsafe { self.at(self.layout().shorts_at(slot)).cast().as_ref() })
    }

    /// The delivery record of a slot's queue pair, None when there is no such slot.
    pub fn delivery(&self, slot: SlotId, index: u16) -> Option<&'static DeliveryRecord> {
        if !self.layout().has_slot(slot) {
            return None;
        }
        let at = self.layout().delivery_at(slot, index);
        // SAFETY: the record lies within the mapping at a multiple of 8; it consists of atomics,
        // valid in any bit pattern.
        Some(unsafe { self.at(at).cast().as_ref() })
    }

    /// The packet that a slot's queue pair expects next of `stream`, of which it has taken all
    /// before; None when it has no record of that stream.
    pub fn delivered(&self, slot: SlotId, index: u16, stream: u32) -> Option<u32> {
        self.delivery(slot, index)?.next_of(stream)
    }

    /// The head of a frame, None when the index is not valid.
    #[inline]
    pub(crate) fn frame_header(&self, index: FrameIndex) -> Option<&'static FrameHeader> {
        // SAFETY: a valid frame lies within the mapping at a multiple of 64; its header consists of
        // atomics.
        self.layout()
            .frame_at(index)
            .map(|offset| unsafe { self.at(offset).cast().as_ref() })
    }

    /// Asks the kernel to have this range in memory before it is used; not having it only costs
    /// page faults later.
    pub(crate) fn prefault(&self, offset: usize, octets: usize) {
        const PAGE: usize = 4096;
        let start = offset / PAGE * PAGE;
        let end = (offset + octets).min(self.layout().total());
        // SAFETY: the range is within our mapping; populating changes no contents.
        unsafe {
            libc::madvise(
                self.at(start).as_ptr().cast(),
                end - start,
                libc::MADV_POPULATE_WRITE,
            )
        };
    }

    /// Octets of memory that the arena takes now; 0 when the system does not say.
    pub(crate) fn resident_octets(&self) -> u64 {
        const BLOCK: u64 = 512;
        stat(self.mapping.fd.as_fd())
            .ok()
            .and_then(|status| u64::try_from(status.st_blocks).ok())
            .map_or(0, |blocks| blocks * BLOCK)
    }

    /// Gives the memory of a page-aligned range back to the system; it reads as zeroes afterwards.
    pub(crate) fn punch_hole(&self, offset: usize, octets: usize) {
        let (Ok(offset), Ok(octets)) =
            (libc::off_t::try_from(offset), libc::off_t::try_from(octets))
        else {
            return;
        };
        // SAFETY: only changes the contents of our own file; failing leaves the memory in use,
        // which is harmless.
        unsafe {
            libc::fallocate(
                self.mapping.fd.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                offset,
                octets,
            )
        };
    }
}

/// Keeps an arena mapped; when the last one of a process is dropped the arena is unmapped, unless
/// it was also opened by [`Arena::from_fd`] or made here.
#[derive(Debug)]
pub struct MappedArena {
    arena: Arena,
}

impl MappedArena {
    /// As [`Arena::from_fd`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Nothing that comes from [`MappedArena::arena`] (endpoints, parkers, frames, records, copies
    /// of the handle) may be used when this has been dropped.
    pub unsafe fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let arena = Arena::open(fd, |known| known.holders += 1)?;
        Ok(Self { arena })
    }

    /// The arena.
    pub fn arena(&self) -> Arena {
        self.arena
    }
}

impl Drop for MappedArena {
    fn drop(&mut self) {
        let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = mappings
            .iter_mut()
            .position(|known| std::ptr::eq(known.mapping(), self.arena.mapping));
        let Some(at) = known else {
            return;
        };
        mappings[at].holders -= 1;
        if mappings[at].holders > 0 || mappings[at].is_permanent {
            return;
        }
        let last = mappings.swap_remove(at);
        drop(mappings);
        // SAFETY: `register` leaked this box; it has just left the list, and nothing else refers to
        // it, as the code that opened the arena guarantees.
        let mapping = unsafe { Box::from_raw(last.mapping.as_ptr()) };
        // SAFETY: this range was mapped by `register`, and nothing refers to it any more.
        unsafe { libc::munmap(mapping.base.as_ptr().cast(), mapping.layout.total()) };
        let Mapping {
            fd, device_inode, ..
        } = *mapping;
        let is_ours = stat(fd.as_fd()).is_ok_and(|now| (now.st_dev, now.st_ino) == device_inode);
        if !is_ours {
            // The program has closed it, and the number may be that of another file of its own.
            std::mem::forget(fd);
        }
    }
}
