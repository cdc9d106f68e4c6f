//! Access to a frame's octets by its holder.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::bits::{low16, low32, low8};
use crate::layout::{FrameIndex, FRAME_DATA_OFFSET, FRAME_HEADER, FRAME_HEADROOM, SMALL_CAPACITY};
use crate::state;
use crate::sync::{prefetch_read, prefetch_write, AtomicU16, AtomicU32, AtomicU64, Ordering};
use urdma_types::{Ip16, SlotId};

/// Datagrams that a frame can hold behind its first one.
pub const FOLLOWERS_MAX: usize = 14;
/// In place of the first follower's length: there are no followers, but payload outside the frame,
/// which the next entries describe.
const REFERS: u16 = u16::MAX;
/// Likewise: there are no followers, and the datagram came from another host, given in the
/// metadata.
const PASSED_ON: u16 = u16::MAX - 1;
/// A datagram that follows another one begins at a multiple of this.
const FOLLOWER_ALIGN: usize = 16;

/// The first 64 octets of a frame.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct FrameHeader {
    pub(crate) state: AtomicU64,
    len: AtomicU32,
    ports: AtomicU32,
    ip: [AtomicU64; 2],
    ecn: AtomicU32,
    /// Octets of each datagram behind the first one; the first 0 ends them.
    followers: [AtomicU16; FOLLOWERS_MAX],
}

const _: () = assert!(size_of::<FrameHeader>() == FRAME_HEADER);

/// Metadata of a datagram that enters or leaves the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The other host's address; IPv4 as `::ffff:a.b.c.d`.
    pub remote_ip: Ip16,
    /// UDP source port, host order.
    pub src_port: u16,
    /// UDP destination port, host order.
    pub dst_port: u16,
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// The source address, or the destination of a received datagram: index of its GID on this
    /// host; 255 for a group.
    pub gid_index: u8,
}

/// A frame with more than datagrams for its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Payload of its only datagram lies outside the frame.
    Referring(Referred),
    /// Its only datagram came from another host, given in the metadata, by a queue of the port that
    /// the sender of the frame polls.
    PassedOn,
}

/// Payload outside the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Referred {
    /// Octets of payload.
    pub octets: u32,
    /// Entries at the end of the frame's datagram that locate the payload, at least 1.
    pub entries: u8,
}

/// A frame that this process holds; its header stays mapped.
#[derive(Debug)]
pub(crate) struct HeldFrame {
    pub(crate) header: &'static FrameHeader,
    pub(crate) index: FrameIndex,
    pub(crate) generation: u32,
    capacity: u32,
}

impl HeldFrame {
    #[inline]
    pub(crate) fn new(
        header: &'static FrameHeader,
        index: FrameIndex,
        generation: u32,
        capacity: u32,
    ) -> Self {
        Self {
            header,
            index,
            generation,
            capacity,
        }
    }

    /// The same frame again, for an owner that hands it over.
    #[inline]
    fn reference(&self) -> Self {
        Self::new(self.header, self.index, self.generation, self.capacity)
    }

    #[inline]
    fn data(&self) -> NonNull<u8> {
        // SAFETY: a frame is FRAME_DATA_OFFSET + capacity octets long, all mapped; the mapping is
        // one allocation.
        unsafe {
            NonNull::from(self.header)
                .cast::<u8>()
                .add(FRAME_DATA_OFFSET)
        }
    }
}

impl FrameHeader {
    /// Prefetches the lines that a receiver of this frame reads first.
    #[inline]
    pub(crate) fn prefetch_for_receiver(&self) {
        let at = std::ptr::from_ref(self).cast::<u8>();
        prefetch_write(at);
        prefetch_read(at.wrapping_add(FRAME_DATA_OFFSET));
        prefetch_read(at.wrapping_add(FRAME_DATA_OFFSET + 64));
    }

    /// Prefetches the lines that the next sender of this frame writes first.
    #[inline]
    pub(crate) fn prefetch_for_sender(&self) {
        let at = std::ptr::from_ref(self).cast::<u8>();
        prefetch_write(at);
        prefetch_write(at.wrapping_add(FRAME_DATA_OFFSET));
        prefetch_write(at.wrapping_add(FRAME_DATA_OFFSET + 64));
    }
}

/// A frame to be filled and sent. Dropped unsent, it returns to its owner.
#[derive(Debug)]
#[must_use = "a frame that is not sent was allocated in vain"]
pub struct TxFrame {
    held: HeldFrame,
    followers: u8,
}

/// The start of a datagram that follows one that ends at `end`.
#[inline]
fn follows(end: usize) -> usize {
    end.next_multiple_of(FOLLOWER_ALIGN)
}

impl TxFrame {
    #[inline]
    pub(crate) fn new(held: HeldFrame) -> Self {
        Self::with_followers(held, 0)
    }

    /// As [`TxFrame::new`], with this many datagrams behind the first one.
    #[inline]
    pub(crate) fn with_followers(held: HeldFrame, followers: u8) -> Self {
        Self { held, followers }
    }

    /// Datagrams behind the first one.
    #[inline]
    pub(crate) fn followers(&self) -> u8 {
        self.followers
    }

    #[inline]
    pub(crate) fn into_held(self) -> HeldFrame {
        ManuallyDrop::new(self).held.reference()
    }

    /// Longest datagram that fits, in octets.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.held.capacity as usize
    }

    /// The room for the datagram; its content is arbitrary.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: the octets are within the frame, which is HELD by us: no process that keeps to
        // the protocol touches them, and whatever a process that does not keep to it writes there
        // is as valid as any other octets.
        unsafe {
            std::slice::from_raw_parts_mut(self.held.data().as_ptr(), self.held.capacity as usize)
        }
    }

    /// The room before the datagram, for headers, ending where the datagram begins.
    #[inline]
    pub fn headroom_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data_mut`; the headroom lies between the header and the data.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.held.data().as_ptr().sub(FRAME_HEADROOM),
                FRAME_HEADROOM,
            )
        }
    }

    /// Writes the metadata; needed only for a frame to slot 0 or from slot 0.
    #[inline]
    pub fn set_meta(&mut self, meta: &Meta) {
        let header = self.held.header;
        let [low, high] = halves(meta.remote_ip.0);
        header.ports.store(
            u32::from(meta.src_port) | u32::from(meta.dst_port) << 16,
            Ordering::Relaxed,
        );
        header.ip[0].store(low, Ordering::Relaxed);
        header.ip[1].store(high, Ordering::Relaxed);
        header.ecn.store(
            u32::from(meta.ecn) | u32::from(meta.gid_index) << 8,
            Ordering::Relaxed,
        );
    }

    /// Marks the only datagram as one from another host, given in the metadata.
    pub fn pass_on(&mut self, meta: &Meta) {
        self.set_meta(meta);
        self.held.header.followers[0].store(PASSED_ON, Ordering::Relaxed);
        self.followers = 1;
    }

    /// The offset at which the next datagram may be written, after the last one, which ends at
    /// `end`; `None` when the frame can hold no more.
    #[inline]
    pub fn next_at(&self, end: usize) -> Option<usize> {
        let at = follows(end);
        (usize::from(self.followers) < FOLLOWERS_MAX && at < self.capacity()).then_some(at)
    }

    /// Prefetches for writing the two cache lines at `at`, counted from the start of the room, if
    /// they belong to the frame.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        if at + 128 <= self.capacity() {
            let at = self.held.data().as_ptr().cast_const().wrapping_add(at);
            prefetch_write(at);
            prefetch_write(at.wrapping_add(64));
        }
    }

    /// Adds the datagram of `len` octets that was written where [`TxFrame::next_at`] said.
    ///
    /// # Panics
    /// When there was no room for it, it is empty or longer than a small frame.
    #[inline]
    pub fn add_follower(&mut self, len: usize) {
        assert!((1..=SMALL_CAPACITY).contains(&len), "not a short datagram");
        let at = usize::from(self.followers);
        self.held.header.followers[at].store(low16(len as u64), Ordering::Relaxed);
        self.followers += 1;
    }

    /// Marks payload of the only datagram as lying outside the frame. The layout of the entries is
    /// the users' affair.
    pub fn refer(&mut self, referred: Referred) {
        let octets = u64::from(referred.octets);
        let words = [
            REFERS,
            referred.entries.into(),
            low16(octets),
            low16(octets >> 16),
        ];
        for (place, word) in self.held.header.followers.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.followers = 4;
    }

    #[inline]
    pub(crate) fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "datagram longer than its frame");
        let len = low32(len as u64); // a capacity is far below 2^32
        let header = self.held.header;
        header.len.store(len, Ordering::Relaxed);
        if let Some(end) = header.followers.get(usize::from(self.followers)) {
            end.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for TxFrame {
    fn drop(&mut self) {
        state::release(&self.held.header.state, self.held.generation);
    }
}

/// A received frame. It returns to its owner when dropped or by [`crate::EndpointWith::release`].
///
/// Its contents may change while it is read, if a process misbehaves: copy, then validate the copy.
#[derive(Debug)]
pub struct RxFrame {
    held: HeldFrame,
    len: u32,
    from: SlotId,
}

impl RxFrame {
    /// `None` when the length in the frame is above its capacity.
    #[inline]
    pub(crate) fn new(held: HeldFrame, from: SlotId) -> Result<Self, HeldFrame> {
        let len = held.header.len.load(Ordering::Relaxed);
        if len > held.capacity {
            return Err(held);
        }
        Ok(Self { held, len, from })
    }

    #[inline]
    pub(crate) fn into_held(self) -> HeldFrame {
        ManuallyDrop::new(self).held.reference()
    }

    /// Octets of the datagram; at most the frame's capacity.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a datagram, not a collection
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The datagrams behind the first one: the offset of each from [`RxFrame::data_ptr`], and its
    /// length. All lie within the frame.
    #[inline]
    pub fn followers(&self) -> Followers<'_> {
        Followers {
            lens: &self.held.header.followers,
            end: self.len(),
            capacity: self.capacity(),
        }
    }

    /// Prefetches the two cache lines at `at`, counted from [`RxFrame::data_ptr`].
    #[inline]
    pub fn prefetch(&self, at: usize) {
        let at = self.data_ptr().wrapping_add(at);
        prefetch_read(at);
        prefetch_read(at.wrapping_add(64));
    }

    /// Octets at [`RxFrame::data_ptr`] that belong to the frame.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.held.capacity as usize
    }

    /// What the frame has beside datagrams of the slot that published it.
    #[inline]
    pub fn special(&self) -> Option<Special> {
        let [mark, entries, low, high, ..] = &self.held.header.followers;
        match mark.load(Ordering::Relaxed) {
            REFERS => Some(Special::Referring(Referred {
                octets: u32::from(low.load(Ordering::Relaxed))
                    | u32::from(high.load(Ordering::Relaxed)) << 16,
                entries: low8(entries.load(Ordering::Relaxed).into()),
            })),
            PASSED_ON => Some(Special::PassedOn),
            _ => None,
        }
    }

    /// The slot that published it.
    #[inline]
    pub fn from(&self) -> SlotId {
        self.from
    }

    /// A copy of the metadata; meaningful for a frame from slot 0 or at slot 0.
    #[inline]
    pub fn meta(&self) -> Meta {
        let header = self.held.header;
        let ports = header.ports.load(Ordering::Relaxed);
        let low = u128::from(header.ip[0].load(Ordering::Relaxed));
        let high = u128::from(header.ip[1].load(Ordering::Relaxed));
        let ecn = u64::from(header.ecn.load(Ordering::Relaxed));
        Meta {
            remote_ip: Ip16((high << 64 | low).to_le_bytes()),
            src_port: low16(ports.into()),
            dst_port: low16((ports >> 16).into()),
            ecn: low8(ecn) & 3,
            gid_index: low8(ecn >> 8),
        }
    }

    /// Copies the first octets of the datagram, up to 128; returns how many.
    #[inline]
    pub fn copy_head(&self, head: &mut [u8; 128]) -> usize {
        let len = self.len().min(head.len());
        // A constant length is two or four vector moves; the frame is at least 128 octets beyond
        // the data's start whatever `len` is. SAFETY: every frame has at least 128 octets of
        // capacity; source and destination do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(self.held.data().as_ptr(), head.as_mut_ptr(), head.len())
        };
        len
    }

    /// Copies `out.len()` octets from offset `at` of the datagram; false, without a copy, when they
    /// are not all within it.
    #[inline]
    #[must_use]
    pub fn copy_to_slice(&self, at: usize, out: &mut [u8]) -> bool {
        // SAFETY: a slice may be written over its whole length.
        unsafe { self.copy_to(at, out.as_mut_ptr(), out.len()) }
    }

    /// Copies `octets` octets from offset `at` of the datagram to `out`; false, without a copy,
    /// when they are not all within it.
    ///
    /// # Safety
    /// `out` must be valid for writes of `octets` octets and not lie in the arena.
    #[inline]
    #[must_use]
    pub unsafe fn copy_to(&self, at: usize, out: *mut u8, octets: usize) -> bool {
        let within = at.checked_add(octets).is_some_and(|end| end <= self.len());
        if within {
            // SAFETY: at + octets <= len <= capacity, so the source is within the frame, which we
            // hold.
            let source = unsafe { self.held.data().as_ptr().add(at) };
            // SAFETY: the source is readable as said above, the destination by the caller's
            // promise.
            unsafe { std::ptr::copy_nonoverlapping(source, out, octets) };
        }
        within
    }

    /// The datagram's address, readable for [`RxFrame::len`] octets while this frame lives; for DMA
    /// and capture. Read each octet once.
    #[inline]
    pub fn data_ptr(&self) -> *const u8 {
        self.held.data().as_ptr()
    }
}

impl Drop for RxFrame {
    #[inline]
    fn drop(&mut self) {
        state::release(&self.held.header.state, self.held.generation);
    }
}

/// See [`RxFrame::followers`].
#[derive(Debug)]
pub struct Followers<'a> {
    lens: &'a [AtomicU16],
    end: usize,
    capacity: usize,
}

impl Iterator for Followers<'_> {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        let (first, rest) = self.lens.split_first()?;
        let len = usize::from(first.load(Ordering::Relaxed));
        let at = follows(self.end);
        // Lengths that do not fit were written by a process that violates the protocol.
        if len == 0 || at + len > self.capacity {
            return None;
        }
        self.lens = rest;
        self.end = at + len;
        Some((at, len))
    }
}

#[inline]
fn halves(ip: [u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = ip;
    [
        u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        u64::from_le_bytes([i, j, k, l, m, n, o, p]),
    ]
}
