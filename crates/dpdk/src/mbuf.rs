//! Packet buffers.

use std::ffi::c_void;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::rte_mbuf;

/// Maximum number of buffers in a burst.
pub const MAX_BURST: usize = 32;

/// Buffers in the order of their packets.
pub type Burst = ArrayVec<Mbuf, MAX_BURST>;

/// A packet buffer of a pool, returned to it when dropped.
#[repr(transparent)]
#[derive(Debug)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an `Mbuf` owns its buffer, and pools may be used from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// The packet's octets; the first part of them if it spans several buffers.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let mbuf = self.fields();
        // SAFETY: the offset is inside the buffer: DPDK guarantees that for received packets, and
        // `set_frame` for others.
        let start = unsafe { mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off)) };
        // SAFETY: `data_len` octets from there are inside the buffer, which `self` owns.
        unsafe { std::slice::from_raw_parts(start, usize::from(mbuf.data_len)) }
    }

    /// Whether the packet is contained in this buffer.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.fields().nb_segs == 1
    }

    /// Octets of the buffer, headroom included.
    #[inline]
    pub fn buffer_octets(&self) -> usize {
        usize::from(self.fields().buf_len)
    }

    /// The start of the buffer.
    #[inline]
    pub fn buffer_start(&self) -> *mut u8 {
        self.fields().buf_addr.cast()
    }

    /// Sets the packet to `octets` octets of the buffer from `offset` on, and returns them for
    /// writing; `None` if the buffer is too short.
    #[inline]
    pub fn set_frame(&mut self, offset: usize, octets: usize) -> Option<&mut [u8]> {
        // SAFETY: `self` owns the buffer.
        let mbuf = unsafe { self.0.as_mut() };
        if offset.checked_add(octets)? > usize::from(mbuf.buf_len) {
            return None;
        }
        mbuf.data_off = u16::try_from(offset).ok()?;
        mbuf.data_len = u16::try_from(octets).ok()?;
        mbuf.pkt_len = u32::from(mbuf.data_len);
        // SAFETY: the offset was just checked against the buffer's length.
        let start = unsafe { mbuf.buf_addr.cast::<u8>().add(offset) };
        // SAFETY: so was its length; `&mut self` borrows the buffer.
        Some(unsafe { std::slice::from_raw_parts_mut(start, octets) })
    }

    /// Converts the buffer into a pointer, without freeing it; the inverse of [`Mbuf::from_raw`].
    #[inline]
    pub fn into_raw(self) -> *mut c_void {
        let pointer = self.0.as_ptr().cast();
        std::mem::forget(self);
        pointer
    }

    /// Restores a buffer from a pointer.
    ///
    /// # Safety
    /// `pointer` is a result of [`Mbuf::into_raw`] and has not been restored since.
    #[inline]
    pub unsafe fn from_raw(pointer: *mut c_void) -> Option<Self> {
        NonNull::new(pointer.cast()).map(Self)
    }

    #[inline]
    fn fields(&self) -> &rte_mbuf {
        // SAFETY: the pointer is that of a buffer that `self` owns; pools live as long as the
        // process.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        let mut pointer = self.0.as_ptr();
        // SAFETY: `self` owns the buffer, which is freed once.
        unsafe { dpdk_sys::urdma_mbuf_free_bulk(&mut pointer, 1) };
    }
}

/// Frees buffers in one call, which is faster than dropping them.
#[inline]
pub fn free_bulk<const N: usize>(mbufs: &mut ArrayVec<Mbuf, N>) {
    let count = u32::try_from(mbufs.len()).unwrap_or(u32::MAX);
    // SAFETY: the next call frees the buffers, so they must not be dropped.
    unsafe { mbufs.set_len(0) };
    // SAFETY: `Mbuf` is a transparent pointer; the array begins with `count` of them, which were
    // owned.
    unsafe { dpdk_sys::urdma_mbuf_free_bulk(mbufs.as_mut_ptr().cast(), count) };
}
