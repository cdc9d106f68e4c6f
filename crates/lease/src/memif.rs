//! Access to the rings of a net_memif queue pair without the driver: packets are written to and
//! read from the shared memory directly. The driver would copy each packet once more on either
//! side, from and to a buffer of its own.
//!
//! Indices and descriptors are those of the memif protocol. A ring from client to server holds
//! packets between `tail` (written by the server) and `head` (written by the client). A ring from
//! server to client holds empty buffers of the client between `tail` (written by the server) and
//! `head` (written by the client), and packets below `tail`. The index up to which this end has
//! read is stored in the driver's structure, so that the primary continues there when it reclaims
//! the pair; packets that were not freed by then are read again.
//!
//! As in the driver, the peer's indices are trusted; the locations of packets are checked against
//! the bounds of the shared memory.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{fence, AtomicU16, Ordering};

use dpdk::QueueIndex;
use urdma_abi::lease::READABLE;
use urdma_abi::spared::Mark;
use urdma_underlay::MAX_HEADER_OCTETS;

/// Flag of a descriptor: the packet continues in the next slot.
const FLAG_NEXT: u16 = 1;
/// Flag of a ring: the receiver polls, and needs no interrupt.
const FLAG_MASK_INTERRUPT: u16 = 1;
const FLAGS_AT: usize = 4;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;
const DESCRIPTORS_AT: usize = 128;

/// Octets that are readable in every frame, so that [`READABLE`] are in every datagram.
const READABLE_FRAME: u32 = 256;
const _: () = assert!(MAX_HEADER_OCTETS + READABLE <= READABLE_FRAME as usize);

/// How many slots ahead of the current one are prefetched for writing, and how many cache lines of
/// each: those of a message of 64 octets.
const SLOTS_AHEAD: u16 = 3;
#[cfg(target_arch = "x86_64")]
const SHORT_FRAME_LINES: usize = 3;

/// Prefetches the headers of a frame and of its datagram from the peer's cache.
#[inline]
fn prefetch(frame: *const u8) {
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for line in 0..READABLE_FRAME as usize / LINE {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch never faults and has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(frame.wrapping_add(line * LINE).cast()) };
    }
}

/// Prefetches the lines of a short datagram and its headers for writing, from the peer's cache.
/// Without it the stores miss the cache one after the other, and the store buffer holds those of
/// two or three frames only.
#[inline]
fn prefetch_to_write(frame: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..SHORT_FRAME_LINES {
        let at = frame.wrapping_add(line * 64);
        // SAFETY: a prefetch never faults and has no visible effect; processors without the
        // instruction execute it as a no-op.
        unsafe {
            std::arch::asm!(
                "prefetchw [{at}]",
                at = in(reg) at,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    flags: u16,
    region: u16,
    length: u32,
    offset: u32,
    metadata: u32,
}

/// As in `shim/memif.c`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ring {
    start: *mut u8,
    last: *mut u16,
    slots: u16,
    is_client_to_server: u16,
}

#[repr(C)]
struct Found {
    base: *mut u8,
    octets: usize,
    receive: Ring,
    transmit: Ring,
}

extern "C" {
    /// Of `shim/memif.c`.
    fn urdma_lease_memif_rings(port: u16, pair: u16, found: *mut Found) -> i32;
    /// Of `shim/memif.c`.
    fn urdma_lease_region_changes() -> u32;
}

/// A counter of mappings and unmappings of the rings, which the driver performs in link checks.
pub(crate) fn changes() -> u32 {
    // SAFETY: a plain function.
    unsafe { urdma_lease_region_changes() }
}

impl Ring {
    fn head(&self) -> &AtomicU16 {
        // SAFETY: the ring is mapped and aligned to a cache line; both ends access the index by
        // atomic operations only.
        unsafe { AtomicU16::from_ptr(self.start.add(HEAD_AT).cast()) }
    }

    /// The flags, which the receiver writes.
    fn flags(&self) -> &AtomicU16 {
        // SAFETY: the ring is mapped and aligned to a cache line; both ends access the index by
        // atomic operations only.
        unsafe { AtomicU16::from_ptr(self.start.add(FLAGS_AT).cast()) }
    }

    fn tail(&self) -> &AtomicU16 {
        // SAFETY: the ring is mapped and aligned to a cache line; both ends access the index by
        // atomic operations only.
        unsafe { AtomicU16::from_ptr(self.start.add(TAIL_AT).cast()) }
    }

    #[inline]
    fn descriptor(&self, index: u16) -> *mut Descriptor {
        let slot = usize::from(index & (self.slots - 1));
        // SAFETY: the slot is below the number of slots, which `shim/memif.c` has checked to be
        // inside the mapping.
        unsafe {
            self.start
                .add(DESCRIPTORS_AT)
                .cast::<Descriptor>()
                .add(slot)
        }
    }

    #[inline]
    fn read(&self, index: u16) -> Descriptor {
        // SAFETY: the descriptor is mapped and aligned; it is copied before its fields are used.
        unsafe { self.descriptor(index).read_volatile() }
    }
}

/// The handle of a buffer of the rings: an odd number, which no pointer to an mbuf is.
pub(crate) fn handle(index: u16) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::from(index) << 1 | 1)
}

/// The index in a handle; `None` for an mbuf.
#[inline]
pub(crate) fn index_of(buffer: *mut c_void) -> Option<u16> {
    let address = buffer.addr();
    if address & 1 == 0 {
        return None;
    }
    u16::try_from(address >> 1).ok()
}

/// A received packet, or the reason to drop it.
pub(crate) enum Arrived {
    Packet(u16, *const u8, usize),
    /// It spans more than one slot.
    Scattered,
    /// It is outside of the shared memory.
    Outside,
}

/// The rings of one queue pair.
pub(crate) struct Rings {
    base: *mut u8,
    octets: usize,
    /// Octets of a buffer, if this end is the client, which owns the buffers.
    buffer_octets: u32,
    receive: Ring,
    /// The index up to which slots are freed, as in the driver's structure.
    last: u16,
    /// Slots read since then, and how many of them hold packets that are not freed.
    read: u16,
    held: u16,
    /// The last known index up to which packets have arrived.
    arrived: u16,
    transmit: Ring,
    /// The next slot to publish; those from it up to `handed_out` are being filled.
    next: u16,
    handed_out: u16,
    /// How many of these are neither sent nor freed.
    filling: u16,
    /// The last known index up to which slots are free.
    free_until: u16,
    /// The descriptor that interrupts the peer.
    peer: Option<(Mark, File)>,
}

// SAFETY: the memory stays mapped until the next check of the link, which the same lease performs.
unsafe impl Send for Rings {}

impl Rings {
    /// The rings of a pair, if its driver is net_memif and its buffers hold frames of
    /// `frame_octets`.
    pub(crate) fn find(port: u16, pair: QueueIndex, frame_octets: usize) -> Option<Self> {
        let mut found = std::mem::MaybeUninit::<Found>::uninit();
        // SAFETY: the pair exists, and the pointer is to a local variable.
        if unsafe { urdma_lease_memif_rings(port, pair.0, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the function has initialized it.
        let found = unsafe { found.assume_init() };
        let mut rings = Self {
            base: found.base,
            octets: found.octets,
            buffer_octets: 0,
            receive: found.receive,
            last: 0,
            read: 0,
            held: 0,
            arrived: 0,
            transmit: found.transmit,
            next: 0,
            handed_out: 0,
            filling: 0,
            free_until: 0,
            peer: None,
        };
        rings.begin();
        // A server writes into buffers of the client. The descriptor of a buffer with a packet does
        // not state the length of the buffer.
        let fits = |index| rings.room(&rings.transmit.read(index)) as usize >= frame_octets;
        (0..rings.transmit.slots).any(fits).then_some(rings)
    }

    /// Initialises the indices from the rings.
    fn begin(&mut self) {
        let sent = if self.transmit.is_client_to_server != 0 {
            self.transmit.head()
        } else {
            self.transmit.tail()
        };
        self.next = sent.load(Ordering::Relaxed);
        self.handed_out = self.next;
        self.free_until = self.next;
        self.last = self.note();
        self.arrived = self.last;
        if self.transmit.is_client_to_server != 0 {
            // The driver of a client places its buffers consecutively.
            let [first, second] = [0, 1].map(|index| self.transmit.read(index).offset);
            self.buffer_octets = second.wrapping_sub(first);
        }
        self.give_empty();
    }

    /// Whether the connection is still the one of the rings: the indices of a new one begin at 0.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.note() == self.last
    }

    /// Whether packets were received and not freed.
    pub(crate) fn is_held(&self) -> bool {
        self.held > 0
    }

    #[inline]
    fn note(&self) -> u16 {
        // SAFETY: a field of the driver's structure, which only this process uses while it has the
        // lease.
        unsafe { self.receive.last.read_volatile() }
    }

    /// The address of `octets` octets of a descriptor's buffer, if they are in the shared memory.
    #[inline]
    fn place(&self, descriptor: &Descriptor, octets: u32) -> Option<*mut u8> {
        let (offset, octets) = (descriptor.offset as usize, octets as usize);
        let is_inside = descriptor.region == 0 && octets <= self.octets.wrapping_sub(offset);
        // SAFETY: the offset is within the mapping.
        (is_inside && offset <= self.octets).then(|| unsafe { self.base.add(offset) })
    }

    /// The next received packet, which the caller owns until [`Rings::give_back`].
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Arrived> {
        let at = self.last.wrapping_add(self.read);
        if at == self.arrived {
            let written = if self.receive.is_client_to_server != 0 {
                self.receive.head()
            } else {
                self.receive.tail()
            };
            self.arrived = written.load(Ordering::Acquire);
            if at == self.arrived {
                self.give_empty();
                return None;
            }
        }
        let descriptor = self.receive.read(at);
        self.read = self.read.wrapping_add(1);
        if descriptor.flags & FLAG_NEXT != 0 {
            self.skip_rest();
            return Some(Arrived::Scattered);
        }
        // The caller may read more octets than a short frame has.
        let readable = descriptor.length.max(READABLE_FRAME);
        let Some(place) = self.place(&descriptor, readable) else {
            return Some(Arrived::Outside);
        };
        prefetch(place);
        self.held += 1;
        Some(Arrived::Packet(at, place, descriptor.length as usize))
    }

    #[cold]
    fn skip_rest(&mut self) {
        let mut at = self.last.wrapping_add(self.read);
        while at != self.arrived {
            let more = self.receive.read(at).flags & FLAG_NEXT != 0;
            self.read = self.read.wrapping_add(1);
            if !more {
                break;
            }
            at = at.wrapping_add(1);
        }
    }

    /// Frees packets; once all are freed, the slots are returned to the peer.
    #[inline]
    pub(crate) fn give_back(&mut self, packets: u16) {
        self.held = self.held.saturating_sub(packets);
        if self.held > 0 {
            return;
        }
        let last = self.last.wrapping_add(self.read);
        self.read = 0;
        if self.receive.is_client_to_server != 0 {
            self.receive.tail().store(last, Ordering::Release);
        }
        // SAFETY: as when the field is read.
        unsafe { self.receive.last.write_volatile(last) };
        self.last = last;
        self.give_empty();
    }

    /// Publishes all slots without a packet to the server, if this end is the client.
    #[inline]
    fn give_empty(&mut self) {
        if self.receive.is_client_to_server != 0 {
            return;
        }
        let mut head = self.receive.head().load(Ordering::Relaxed);
        let full = self.last.wrapping_add(self.receive.slots);
        if head == full {
            return;
        }
        while head != full {
            let descriptor = self.receive.descriptor(head);
            // SAFETY: this end owns the slot until the index is published below.
            unsafe { (&raw mut (*descriptor).length).write_volatile(self.buffer_octets) };
            head = head.wrapping_add(1);
        }
        self.receive.head().store(head, Ordering::Release);
    }

    /// The room in the buffer of a slot to send.
    #[inline]
    fn room(&self, descriptor: &Descriptor) -> u32 {
        if self.transmit.is_client_to_server != 0 {
            self.buffer_octets
        } else {
            descriptor.length
        }
    }

    /// The next slot to fill, and the start of its frame, which has room for `octets` octets.
    #[inline]
    pub(crate) fn reserve(&mut self, octets: u32) -> Option<(u16, *mut u8)> {
        if self.handed_out == self.free_until {
            self.free_until = if self.transmit.is_client_to_server != 0 {
                let read = self.transmit.tail().load(Ordering::Acquire);
                read.wrapping_add(self.transmit.slots)
            } else {
                self.transmit.head().load(Ordering::Acquire)
            };
            if self.handed_out == self.free_until {
                return None;
            }
        }
        let index = self.handed_out;
        let descriptor = self.transmit.read(index);
        if self.room(&descriptor) < octets {
            return None;
        }
        let place = self.place(&descriptor, octets)?;
        self.handed_out = index.wrapping_add(1);
        self.filling += 1;
        self.prefetch_after(index);
        Some((index, place))
    }

    /// Prefetches the slots after this one, which are likely to be filled next.
    #[inline]
    fn prefetch_after(&self, index: u16) {
        if self.free_until.wrapping_sub(index) > SLOTS_AHEAD {
            let descriptor = self.transmit.descriptor(index.wrapping_add(SLOTS_AHEAD));
            // SAFETY: the descriptor is mapped and aligned; the address in it is not dereferenced.
            let offset = unsafe { (&raw const (*descriptor).offset).read_volatile() };
            prefetch_to_write(self.base.wrapping_add(offset as usize));
        }
    }

    /// Frees a slot unsent.
    #[inline]
    pub(crate) fn discard(&mut self, index: u16) {
        self.filling = self.filling.saturating_sub(1);
        if index.wrapping_add(1) == self.handed_out {
            self.handed_out = index;
        }
        self.reuse();
    }

    /// The address of the frame of `octets` octets in a slot.
    #[inline]
    pub(crate) fn frame(&mut self, index: u16, octets: usize) -> Option<&mut [u8]> {
        let octets_32 = u32::try_from(octets).ok()?;
        let descriptor = self.transmit.read(index);
        if self.room(&descriptor) < octets_32 {
            return None;
        }
        let start = self.place(&descriptor, octets_32)?;
        // SAFETY: the octets are in the shared memory, and the peer does not read them before the
        // slot is published.
        Some(unsafe { std::slice::from_raw_parts_mut(start, octets) })
    }

    /// Marks the frame in a slot as complete; [`Rings::publish`] sends it.
    #[inline]
    pub(crate) fn complete(&mut self, index: u16, octets: u32) {
        let next = self.next;
        if index != next {
            self.move_up(index, octets);
        }
        let descriptor = self.transmit.descriptor(next);
        // SAFETY: this end owns the slot until it is published.
        unsafe { (&raw mut (*descriptor).length).write_volatile(octets) };
        // SAFETY: this end owns the slot until it is published.
        unsafe { (&raw mut (*descriptor).flags).write_volatile(0) };
        self.next = next.wrapping_add(1);
        self.filling = self.filling.saturating_sub(1);
    }

    /// Moves the frame of a slot to an earlier slot that was freed unsent, since packets occupy
    /// slots without gaps.
    #[cold]
    fn move_up(&mut self, index: u16, octets: u32) {
        let (from, to) = (self.transmit.read(index), self.transmit.read(self.next));
        if let (Some(from), Some(to)) = (self.place(&from, octets), self.place(&to, octets)) {
            // SAFETY: both are in the shared memory, and this end owns them; the buffers of two
            // slots may overlap if the peer has set them so.
            unsafe { std::ptr::copy(from, to, octets as usize) };
        }
    }

    /// Sends the complete frames.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let sent = if self.transmit.is_client_to_server != 0 {
            self.transmit.head()
        } else {
            self.transmit.tail()
        };
        sent.store(self.next, Ordering::Release);
        if self.peer.is_some() {
            // Either this end sees that interrupts are unmasked, or the peer sees the frames.
            fence(Ordering::SeqCst);
            if self.transmit.flags().load(Ordering::Relaxed) & FLAG_MASK_INTERRUPT == 0 {
                self.interrupt();
            }
        }
        self.reuse();
    }

    /// Names the descriptor that interrupts the peer.
    pub(crate) fn interrupt_by(&mut self, peer: File) {
        self.peer = Some((Mark::new(peer.as_raw_fd()), peer));
    }

    #[cold]
    fn interrupt(&mut self) {
        if let Some((_, peer)) = self.peer.as_mut() {
            // An eventfd that does not block fails only when it is readable already.
            let _ = peer.write(&1u64.to_ne_bytes());
        }
    }

    /// Has the peer interrupt this end from now on; whether packets have arrived before.
    pub(crate) fn unmask(&self) -> bool {
        self.receive.flags().store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let written = if self.receive.is_client_to_server != 0 {
            self.receive.head()
        } else {
            self.receive.tail()
        };
        written.load(Ordering::Acquire) != self.last.wrapping_add(self.read)
    }

    /// Has the peer interrupt this end no longer.
    pub(crate) fn mask(&self) {
        let flags = self.receive.flags();
        flags.store(FLAG_MASK_INTERRUPT, Ordering::Relaxed);
    }

    /// If no slot is being filled, makes the slots that were freed unsent the next again.
    #[inline]
    fn reuse(&mut self) {
        if self.filling == 0 {
            self.handed_out = self.next;
        }
    }
}
