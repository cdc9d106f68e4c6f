//! Packet buffers.

use std::ffi::c_void;
use std::marker::PhantomData;
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

/// Reads or writes one field, by the offset that the C compiler gave it.
struct Field<T>(usize, PhantomData<T>);

impl<T: Copy> Field<T> {
    /// # Safety
    /// A field of type `T` is at this offset of `rte_mbuf`.
    const unsafe fn at(offset: dpdk_sys::urdma_mbuf_offsets) -> Self {
        Self(offset as usize, PhantomData)
    }

    #[inline]
    fn read(&self, mbuf: &Mbuf) -> T {
        // SAFETY: the field is inside the buffer's structure, which `mbuf` owns; pools live as long
        // as the process.
        unsafe { mbuf.0.byte_add(self.0).cast().read() }
    }

    #[inline]
    fn write(&self, mbuf: &mut Mbuf, value: T) {
        // SAFETY: the field is inside the buffer's structure, which `mbuf` owns; pools live as long
        // as the process.
        unsafe { mbuf.0.byte_add(self.0).cast().write(value) }
    }
}

// SAFETY: these are the types of DPDK's `struct rte_mbuf` (rte_mbuf_core.h).
const BUF_ADDR: Field<*mut u8> = unsafe { Field::at(dpdk_sys::URDMA_MBUF_BUF_ADDR) };
// SAFETY: these are the types of DPDK's `struct rte_mbuf` (rte_mbuf_core.h).
const BUF_LEN: Field<u16> = unsafe { Field::at(dpdk_sys::URDMA_MBUF_BUF_LEN) };
// SAFETY: these are the types of DPDK's `struct rte_mbuf` (rte_mbuf_core.h).
const DATA_OFF: Field<u16> = unsafe { Field::at(dpdk_sys::URDMA_MBUF_DATA_OFF) };
// SAFETY: these are the types of DPDK's `struct rte_mbuf` (rte_mbuf_core.h).
const DATA_LEN: Field<u16> = unsafe { Field::at(dpdk_sys::URDMA_MBUF_DATA_LEN) };
// SAFETY: these are the types of DPDK's `struct rte_mbuf` (rte_mbuf_core.h).
const NB_SEGS: Field<u16> = unsafe { Field::at(dpdk_sys::URDMA_MBUF_NB_SEGS) };
// SAFETY: these are the types of DPDK's `struct rte_mbuf` (rte_mbuf_core.h).
const PKT_LEN: Field<u32> = unsafe { Field::at(dpdk_sys::URDMA_MBUF_PKT_LEN) };

impl Mbuf {
    /// The packet's octets; the first part of them if it spans several buffers.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let offset = usize::from(DATA_OFF.read(self));
        // SAFETY: the offset is inside the buffer: DPDK guarantees that for received packets, and
        // `set_frame` for others.
        let start = unsafe { self.buffer_start().add(offset) };
        // SAFETY: `data_len` octets from there are inside the buffer, which `self` owns.
        unsafe { std::slice::from_raw_parts(start, usize::from(DATA_LEN.read(self))) }
    }

    /// Whether the packet is contained in this buffer.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        NB_SEGS.read(self) == 1
    }

    /// Octets of the buffer, headroom included.
    #[inline]
    pub fn buffer_octets(&self) -> usize {
        usize::from(BUF_LEN.read(self))
    }

    /// The start of the buffer.
    #[inline]
    pub fn buffer_start(&self) -> *mut u8 {
        BUF_ADDR.read(self)
    }

    /// Sets the packet to `octets` octets of the buffer from `offset` on, and returns them for
    /// writing; `None` if the buffer is too short.
    #[inline]
    pub fn set_frame(&mut self, offset: usize, octets: usize) -> Option<&mut [u8]> {
        if offset.checked_add(octets)? > self.buffer_octets() {
            return None;
        }
        let data_len = u16::try_from(octets).ok()?;
        DATA_OFF.write(self, u16::try_from(offset).ok()?);
        DATA_LEN.write(self, data_len);
        PKT_LEN.write(self, u32::from(data_len));
        // SAFETY: the offset was just checked against the buffer's length.
        let start = unsafe { self.buffer_start().add(offset) };
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
