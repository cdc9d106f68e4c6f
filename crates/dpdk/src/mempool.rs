//! Pools of packet buffers.

use std::ffi::CString;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::rte_mempool;

use crate::{Burst, Eal, Error, Mbuf, Process, MAX_BURST};

/// Octets in front of a received packet in its buffer.
pub const HEADROOM_OCTETS: usize = dpdk_sys::RTE_PKTMBUF_HEADROOM as usize;

/// Every pool is made with these functions, by name: a number would mean different ones in
/// processes that loaded other drivers (doc/adr/0003-dpdk-linking.md).
const OPS: &std::ffi::CStr = c"ring_mp_mc";

/// What a pool is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How many buffers; 2^n - 1 uses memory best.
    pub buffers: u32,
    /// How many buffers a thread keeps for itself, up to 512.
    pub cache: u32,
    /// Octets of each buffer including [`HEADROOM_OCTETS`].
    pub buffer_octets: u16,
}

/// A pool of packet buffers. It stays when this is dropped, as long as DPDK runs.
#[derive(Clone, Debug)]
pub struct Mempool {
    pointer: NonNull<rte_mempool>,
    _eal: Eal,
}

// SAFETY: pools made with OPS may be used by any number of threads at once.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Makes a pool that secondaries find by its name (up to 25 octets).
    ///
    /// # Errors
    /// `EEXIST`, `ENOMEM` (the primary's memory is too small), or `EINVAL`.
    pub fn create(eal: &Eal, name: &str, config: &PoolConfig) -> Result<Self, Error> {
        let what = format!("cannot make a pool of {} buffers", config.buffers);
        let c_name = c_name(name)?;
        // SAFETY: DPDK runs, and the strings live during the call.
        let pointer = unsafe {
            dpdk_sys::rte_pktmbuf_pool_create_by_ops(
                c_name.as_ptr(),
                config.buffers,
                config.cache,
                0,
                config.buffer_octets,
                -1,
                OPS.as_ptr(),
            )
        };
        Ok(Self {
            pointer: NonNull::new(pointer).ok_or_else(|| Error::last(&what))?,
            _eal: eal.clone(),
        })
    }

    /// Finds a pool that the primary made with [`Mempool::create`].
    ///
    /// # Errors
    /// `ENOENT` when there is none with this name.
    pub fn lookup(eal: &Eal, name: &str) -> Result<Self, Error> {
        let what = format!("cannot find the pool {name}");
        let c_name = c_name(name)?;
        // SAFETY: DPDK runs, and the string lives during the call.
        let pointer = unsafe { dpdk_sys::rte_mempool_lookup(c_name.as_ptr()) };
        let pointer = NonNull::new(pointer).ok_or_else(|| Error::last(&what))?;
        if eal.process() == Process::Secondary {
            // SAFETY: the pool exists, and no other thread of this process uses one yet that this
            // could disturb: all pools have the same functions.
            let result = unsafe { dpdk_sys::urdma_pool_bind(pointer.as_ptr(), OPS.as_ptr()) };
            Error::check(&what, result)?;
        }
        Ok(Self {
            pointer,
            _eal: eal.clone(),
        })
    }

    /// How many buffers there are.
    pub fn buffers(&self) -> u32 {
        // SAFETY: the pool exists; its size never changes.
        unsafe { dpdk_sys::urdma_pool_size(self.pointer.as_ptr()) }
    }

    /// How many buffers are in the pool or in caches of its users; not exact while others use it.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool exists; the function only reads counters.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.pointer.as_ptr()) }
    }

    /// Octets of each buffer including headroom.
    pub fn buffer_octets(&self) -> u16 {
        // SAFETY: the pool exists; the size never changes.
        unsafe { dpdk_sys::urdma_pool_data_room(self.pointer.as_ptr()) }
    }

    /// Adds `count` buffers to the burst, all or none; false when the pool or the burst has not
    /// enough.
    #[inline]
    pub fn alloc_bulk(&self, burst: &mut Burst, count: usize) -> bool {
        let held = burst.len();
        if count > MAX_BURST - held {
            return false;
        }
        let Ok(number) = u32::try_from(count) else {
            return false;
        };
        // SAFETY: behind the burst's last element is room for `count` more, checked above.
        let free = unsafe { burst.as_mut_ptr().add(held) };
        // SAFETY: the pool exists; `Mbuf` is a transparent pointer; the function fills `count` of
        // them or none.
        let result =
            unsafe { dpdk_sys::urdma_mbuf_alloc_bulk(self.pointer.as_ptr(), free.cast(), number) };
        if result != 0 {
            return false;
        }
        // SAFETY: `count` more elements were just filled with buffers that are ours.
        unsafe { burst.set_len(held + count) };
        true
    }

    /// One buffer, if there is one left.
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut burst: Burst = ArrayVec::new();
        self.alloc_bulk(&mut burst, 1);
        burst.pop()
    }

    /// Puts every buffer back, wherever it was: for a pool whose only user died.
    ///
    /// # Safety
    /// No thread of any process uses the pool, no [`Mbuf`] of it is left in this one, and no driver
    /// holds any.
    pub(crate) unsafe fn rebuild(&self) -> Result<(), Error> {
        // SAFETY: the pool exists and was made with OPS; the caller keeps everybody else away.
        let result = unsafe { dpdk_sys::urdma_pool_rebuild(self.pointer.as_ptr()) };
        Error::check("cannot rebuild a pool", result).map(|_| ())
    }

    pub(crate) fn as_ptr(&self) -> *mut rte_mempool {
        self.pointer.as_ptr()
    }
}

fn c_name(name: &str) -> Result<CString, Error> {
    CString::new(name).map_err(|_| Error::new(libc::EINVAL, "a name contains a zero octet"))
}
