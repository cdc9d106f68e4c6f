//! Packet buffers.

use std::ffi::c_void;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::rte_mbuf;

/// Buffers in one burst at most.
pub const MAX_BURST: usize = 32;

/// Some buffers, in the order of their packets.
pub type Burst = ArrayVec<Mbuf, MAX_BURST>;

/// A packet buffer of a pool; goes back when it is dropped.
#[repr(transparent)]
#[derive(Debug)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: a buffer belongs to whoever holds it; pools may be used from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// The packet's octets, or the first part of them when it is in several buffers.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let mbuf = self.fields();
        // SAFETY: the offset lies in the buffer, which DPDK keeps so for received and `set_frame`
        // for own packets.
        let start = unsafe { mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off)) };
        // SAFETY: `data_len` octets from there are in the buffer and ours alone.
        unsafe { std::slice::from_raw_parts(start, usize::from(mbuf.data_len)) }
    }

    /// Whether the packet is whole in this one buffer.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.fields().nb_segs == 1
    }

    /// Octets of the buffer: headroom and room for data.
    #[inline]
    pub fn buffer_octets(&self) -> usize {
        usize::from(self.fields().buf_len)
    }

    /// Where the buffer starts.
    #[inline]
    pub fn buffer_start(&self) -> *mut u8 {
        self.fields().buf_addr.cast()
    }

    /// Makes `octets` octets of the buffer from `offset` on the packet, and returns them to be
    /// filled; `None` when the buffer is not that long.
    #[inline]
    pub fn set_frame(&mut self, offset: usize, octets: usize) -> Option<&mut [u8]> {
        // SAFETY: the buffer is ours alone.
        let mbuf = unsafe { self.0.as_mut() };
        if offset.checked_add(octets)? > usize::from(mbuf.buf_len) {
            return None;
        }
        mbuf.data_off = u16::try_from(offset).ok()?;
        mbuf.data_len = u16::try_from(octets).ok()?;
        mbuf.pkt_len = u32::from(mbuf.data_len);
        // SAFETY: the offset was just checked against the buffer's length.
        let start = unsafe { mbuf.buf_addr.cast::<u8>().add(offset) };
        // SAFETY: so were the octets from there on, which belong to us as long as the buffer does.
        Some(unsafe { std::slice::from_raw_parts_mut(start, octets) })
    }

    /// Gives the buffer away as a pointer that [`Mbuf::from_raw`] takes back.
    #[inline]
    pub fn into_raw(self) -> *mut c_void {
        let pointer = self.0.as_ptr().cast();
        std::mem::forget(self);
        pointer
    }

    /// Takes a buffer back that was given away.
    ///
    /// # Safety
    /// `pointer` came from [`Mbuf::into_raw`] and was not taken back since.
    #[inline]
    pub unsafe fn from_raw(pointer: *mut c_void) -> Option<Self> {
        NonNull::new(pointer.cast()).map(Self)
    }

    #[inline]
    fn fields(&self) -> &rte_mbuf {
        // SAFETY: the pointer is that of a buffer of a pool that lives as long as the process, and
        // ours alone.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        let mut pointer = self.0.as_ptr();
        // SAFETY: one buffer that is ours is given back.
        unsafe { dpdk_sys::urdma_mbuf_free_bulk(&mut pointer, 1) };
    }
}

/// Gives buffers back in one call, which is faster than dropping them.
#[inline]
pub fn free_bulk<const N: usize>(mbufs: &mut ArrayVec<Mbuf, N>) {
    let count = u32::try_from(mbufs.len()).unwrap_or(u32::MAX);
    // SAFETY: the buffers are given away by the next line, so that nobody frees them twice.
    unsafe { mbufs.set_len(0) };
    // SAFETY: `Mbuf` is a transparent pointer, and `count` of them are there, which were ours.
    unsafe { dpdk_sys::urdma_mbuf_free_bulk(mbufs.as_mut_ptr().cast(), count) };
}
