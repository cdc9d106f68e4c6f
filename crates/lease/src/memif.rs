//! Packets in the rings of a net_memif queue pair, without the driver: what is sent is written
//! where the peer reads it, and what arrives is read where the peer wrote it. The driver would copy
//! each packet once more on either side, into a buffer of its own.
//!
//! Indices and descriptors are those of the memif protocol. A ring from client to server holds the
//! client's packets between `tail` (the server's) and `head` (the client's); one from server to
//! client holds empty buffers of the client's between `tail` (the server's) and `head` (the
//! client's), and packets below `tail`. How far this end has read stands in the driver's own note,
//! so that the primary goes on from there when it takes the pair back; what was not given back by
//! then is read again.
//!
//! As the driver does, this believes the peer's indices; where the peer says a packet lies is
//! checked against the shared memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk::QueueIndex;
use urdma_abi::lease::READABLE;
use urdma_underlay::MAX_HEADER_OCTETS;

/// The packet goes on in the next slot.
const FLAG_NEXT: u16 = 1;
const HEAD_AT: usize = 6;
const TAIL_AT: usize = 64;
const DESCRIPTORS_AT: usize = 128;

/// Octets that can be read of every frame, so that [`READABLE`] can of every datagram.
const READABLE_FRAME: u32 = 256;
const _: () = assert!(MAX_HEADER_OCTETS + READABLE <= READABLE_FRAME as usize);

/// Slots ahead of the one that is filled whose frames are taken from the peer's cache, and how many
/// lines of each: one message of 64 octets.
const SLOTS_AHEAD: u16 = 3;
#[cfg(target_arch = "x86_64")]
const SHORT_FRAME_LINES: usize = 3;

/// Fetches the headers of a frame, and of what it carries, from the peer's cache.
#[inline]
fn prefetch(frame: *const u8) {
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for line in 0..READABLE_FRAME as usize / LINE {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch never faults and changes no state of the program.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(frame.wrapping_add(line * LINE).cast()) };
    }
}

/// Takes the lines in which a short datagram and its headers will be written from the peer's cache.
/// Without it the stores wait for them one after the other, and the processor can hold back those
/// of two or three frames only.
#[inline]
fn prefetch_to_write(frame: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..SHORT_FRAME_LINES {
        let at = frame.wrapping_add(line * 64);
        // SAFETY: a prefetch never faults and changes no state of the program; processors without
        // it execute it as a no-op.
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

/// Grows when the driver maps the rings or unmaps them, which it does when it looks at the link.
pub(crate) fn changes() -> u32 {
    // SAFETY: a plain function.
    unsafe { urdma_lease_region_changes() }
}

impl Ring {
    fn head(&self) -> &AtomicU16 {
        // SAFETY: the ring is mapped, and aligned to a cache line; both ends change the index by
        // atomic operations only.
        unsafe { AtomicU16::from_ptr(self.start.add(HEAD_AT).cast()) }
    }

    fn tail(&self) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.start.add(TAIL_AT).cast()) }
    }

    #[inline]
    fn descriptor(&self, index: u16) -> *mut Descriptor {
        let slot = usize::from(index & (self.slots - 1));
        // SAFETY: the slot is below the number of slots, which `shim/memif.c` has checked against
        // the mapping.
        unsafe {
            self.start
                .add(DESCRIPTORS_AT)
                .cast::<Descriptor>()
                .add(slot)
        }
    }

    #[inline]
    fn read(&self, index: u16) -> Descriptor {
        // SAFETY: the descriptor is mapped and aligned; it is copied before anything in it is
        // looked at.
        unsafe { self.descriptor(index).read_volatile() }
    }
}

/// Names a buffer of the rings to the lease's user: odd, which no pointer to an mbuf is.
pub(crate) fn handle(index: u16) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::from(index) << 1 | 1)
}

/// The index that a handle names; none for an mbuf.
#[inline]
pub(crate) fn index_of(buffer: *mut c_void) -> Option<u16> {
    let address = buffer.addr();
    if address & 1 == 0 {
        return None;
    }
    u16::try_from(address >> 1).ok()
}

/// A packet that has arrived, or why it is none.
pub(crate) enum Arrived {
    Packet(u16, *const u8, usize),
    /// In more than one slot.
    Scattered,
    /// It lies outside the shared memory.
    Outside,
}

/// The rings of one queue pair.
pub(crate) struct Rings {
    base: *mut u8,
    octets: usize,
    /// Octets of a buffer, if they are this end's: it is the client.
    buffer_octets: u32,
    receive: Ring,
    /// As the driver's note.
    last: u16,
    /// Slots read since then, and how many of them hold packets that were not given back.
    read: u16,
    held: u16,
    /// Up to where packets are known to have arrived.
    arrived: u16,
    transmit: Ring,
    /// The next slot to be published; those behind it, up to `handed_out`, are being filled.
    next: u16,
    handed_out: u16,
    /// Of these, how many were neither sent nor given back.
    filling: u16,
    /// Up to where slots are known to be free.
    free_until: u16,
}

// SAFETY: the pointers lead to memory that stays mapped until the port looks at its link, which is
// done through the lease too.
unsafe impl Send for Rings {}

impl Rings {
    /// The rings of a pair, if it is one of net_memif's whose buffers hold frames of
    /// `frame_octets`.
    pub(crate) fn find(port: u16, pair: QueueIndex, frame_octets: usize) -> Option<Self> {
        let mut found = std::mem::MaybeUninit::<Found>::uninit();
        // SAFETY: the pair exists; there is room for what is found.
        if unsafe { urdma_lease_memif_rings(port, pair.0, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the function has filled it in.
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
        };
        rings.begin();
        // A server writes into buffers of the client's; those that hold packets do not show how
        // long they are.
        let fits = |index| rings.room(&rings.transmit.read(index)) as usize >= frame_octets;
        (0..rings.transmit.slots).any(fits).then_some(rings)
    }

    /// Takes the indices from the rings.
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
            // A client's driver lays its buffers out one behind the other.
            let [first, second] = [0, 1].map(|index| self.transmit.read(index).offset);
            self.buffer_octets = second.wrapping_sub(first);
        }
        self.give_empty();
    }

    /// Whether the connection is still the one that the rings were found in: a new one begins at 0.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.note() == self.last
    }

    /// Whether packets were taken and not given back.
    pub(crate) fn is_held(&self) -> bool {
        self.held > 0
    }

    #[inline]
    fn note(&self) -> u16 {
        // SAFETY: the driver's note, which nobody else uses while the pair is lent.
        unsafe { self.receive.last.read_volatile() }
    }

    /// Where `octets` octets of a descriptor's buffer are, if they are in the shared memory.
    #[inline]
    fn place(&self, descriptor: &Descriptor, octets: u32) -> Option<*mut u8> {
        let (offset, octets) = (descriptor.offset as usize, octets as usize);
        let is_inside = descriptor.region == 0 && octets <= self.octets.wrapping_sub(offset);
        // SAFETY: the offset is inside the mapping.
        (is_inside && offset <= self.octets).then(|| unsafe { self.base.add(offset) })
    }

    /// The next packet that has arrived; it is the caller's until [`Rings::give_back`].
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
        // More than the frame is looked at when it is short.
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

    /// Packets are given back; once all are, the peer gets the slots.
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
        // SAFETY: as for reading it.
        unsafe { self.receive.last.write_volatile(last) };
        self.last = last;
        self.give_empty();
    }

    /// A client gives the server all slots that hold no packet.
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
            // SAFETY: the slot is this end's until the index is published below.
            unsafe { (&raw mut (*descriptor).length).write_volatile(self.buffer_octets) };
            head = head.wrapping_add(1);
        }
        self.receive.head().store(head, Ordering::Release);
    }

    /// Room in the buffer of a slot to be sent.
    #[inline]
    fn room(&self, descriptor: &Descriptor) -> u32 {
        if self.transmit.is_client_to_server != 0 {
            self.buffer_octets
        } else {
            descriptor.length
        }
    }

    /// The next slot to fill, with where its frame begins; it has room for `octets` octets.
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

    /// The slots after this one are likely to be filled next.
    #[inline]
    fn prefetch_after(&self, index: u16) {
        if self.free_until.wrapping_sub(index) > SLOTS_AHEAD {
            let descriptor = self.transmit.descriptor(index.wrapping_add(SLOTS_AHEAD));
            // SAFETY: mapped and aligned; where it says is not dereferenced.
            let offset = unsafe { (&raw const (*descriptor).offset).read_volatile() };
            prefetch_to_write(self.base.wrapping_add(offset as usize));
        }
    }

    /// Gives a slot back unsent.
    #[inline]
    pub(crate) fn discard(&mut self, index: u16) {
        self.filling = self.filling.saturating_sub(1);
        if index.wrapping_add(1) == self.handed_out {
            self.handed_out = index;
        }
        self.reuse();
    }

    /// Where the frame in a slot is, of so many octets.
    #[inline]
    pub(crate) fn frame(&mut self, index: u16, octets: usize) -> Option<&mut [u8]> {
        let octets_32 = u32::try_from(octets).ok()?;
        let descriptor = self.transmit.read(index);
        if self.room(&descriptor) < octets_32 {
            return None;
        }
        let start = self.place(&descriptor, octets_32)?;
        // SAFETY: the octets are in the shared memory, and the peer does not look at them before
        // the slot is published.
        Some(unsafe { std::slice::from_raw_parts_mut(start, octets) })
    }

    /// The frame in a slot is complete; [`Rings::publish`] sends it.
    #[inline]
    pub(crate) fn complete(&mut self, index: u16, octets: u32) {
        let next = self.next;
        if index != next {
            self.move_up(index, octets);
        }
        let descriptor = self.transmit.descriptor(next);
        // SAFETY: the slot is this end's until it is published.
        unsafe { (&raw mut (*descriptor).length).write_volatile(octets) };
        // SAFETY: as above.
        unsafe { (&raw mut (*descriptor).flags).write_volatile(0) };
        self.next = next.wrapping_add(1);
        self.filling = self.filling.saturating_sub(1);
    }

    /// Slots before this one were given back unsent, and packets have no gaps: its frame moves
    /// there.
    #[cold]
    fn move_up(&mut self, index: u16, octets: u32) {
        let (from, to) = (self.transmit.read(index), self.transmit.read(self.next));
        if let (Some(from), Some(to)) = (self.place(&from, octets), self.place(&to, octets)) {
            // SAFETY: both are in the shared memory and this end's; the buffers of two slots may
            // overlap if the peer made them so.
            unsafe { std::ptr::copy(from, to, octets as usize) };
        }
    }

    /// Sends what is complete.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let sent = if self.transmit.is_client_to_server != 0 {
            self.transmit.head()
        } else {
            self.transmit.tail()
        };
        sent.store(self.next, Ordering::Release);
        self.reuse();
    }

    /// With nothing being filled, slots that were given back are the next again.
    #[inline]
    fn reuse(&mut self) {
        if self.filling == 0 {
            self.handed_out = self.next;
        }
    }
}
