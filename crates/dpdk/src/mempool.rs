//! Pools of packet buffers.

use std::ffi::CString;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::rte_mempool;

use crate::{Burst, Eal, Error, Mbuf, Process, MAX_BURST};

/// Octets before a received packet in its buffer.
pub const HEADROOM_OCTETS: usize = dpdk_sys::RTE_PKTMBUF_HEADROOM as usize;

/// The functions of every pool, by name: their index differs between processes with different
/// drivers (doc/adr/0003-dpdk-linking.md).
const OPS: &std::ffi::CStr = c"ring_mp_mc";

/// Parameters of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Number of buffers; 2^n - 1 is the best use of memory.
    pub buffers: u32,
    /// Buffers in the cache of a thread, up to 512.
    pub cache: u32,
    /// Octets of each buffer including [`HEADROOM_OCTETS`].
    pub buffer_octets: u16,
}

/// A pool of packet buffers. Dropping this does not free the pool, which lives as long as DPDK.
#[derive(Clone, Debug)]
pub struct Mempool {
    pointer: NonNull<rte_mempool>,
    _eal: Eal,
}

// SAFETY: pools with OPS may be used by several threads at once.
unsafe impl Send for Mempool {}
// SAFETY: pools with OPS may be used by several threads at once.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Creates a pool, which secondaries find by its name (up to 25 octets).
    ///
    /// # Errors
    /// `EEXIST`, `ENOMEM` (the primary has too little memory), or `EINVAL`.
    pub fn create(eal: &Eal, name: &str, config: &PoolConfig) -> Result<Self, Error> {
        let c_name = c_name(name)?;
        // SAFETY: DPDK is initialised, and the strings live during the call.
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
        Self::created(eal, pointer, config)
    }

    /// As [`Mempool::create`], but each buffer is whole pages, one after another from the start of
    /// a page, and has more octets than it is asked to have.
    ///
    /// Only such a pool is fit for net_af_xdp, which registers the octets of all buffers with the
    /// kernel, from the first on: on pages of 4 KB there are gaps between the buffers of other
    /// pools, and the kernel drops frames of the last ones.
    ///
    /// # Errors
    /// As [`Mempool::create`].
    pub fn create_in_pages(eal: &Eal, name: &str, config: &PoolConfig) -> Result<Self, Error> {
        let c_name = c_name(name)?;
        // SAFETY: DPDK is initialised, and the strings live during the call.
        let pointer = unsafe {
            dpdk_sys::urdma_pool_create_in_pages(
                c_name.as_ptr(),
                config.buffers,
                config.cache,
                config.buffer_octets,
                OPS.as_ptr(),
            )
        };
        Self::created(eal, pointer, config)
    }

    /// A pool that was just created, unless DPDK could not.
    fn created(eal: &Eal, pointer: *mut rte_mempool, config: &PoolConfig) -> Result<Self, Error> {
        let what = || format!("cannot create a pool of {} buffers", config.buffers);
        Ok(Self {
            pointer: NonNull::new(pointer).ok_or_else(|| Error::last(&what()))?,
            _eal: eal.clone(),
        })
    }

    /// Finds a pool that the primary created.
    ///
    /// # Errors
    /// `ENOENT` if no pool has this name.
    pub fn lookup(eal: &Eal, name: &str) -> Result<Self, Error> {
        let what = format!("cannot find the pool {name}");
        let c_name = c_name(name)?;
        // SAFETY: DPDK is initialised, and the string lives during the call.
        let pointer = unsafe { dpdk_sys::rte_mempool_lookup(c_name.as_ptr()) };
        let pointer = NonNull::new(pointer).ok_or_else(|| Error::last(&what))?;
        if eal.process() == Process::Secondary {
            // SAFETY: the pool exists. The call changes no pool that another thread uses, since all
            // pools have the same functions.
            let result = unsafe { dpdk_sys::urdma_pool_bind(pointer.as_ptr(), OPS.as_ptr()) };
            Error::check(&what, result)?;
        }
        Ok(Self {
            pointer,
            _eal: eal.clone(),
        })
    }

    /// The number of buffers.
    pub fn buffers(&self) -> u32 {
        // SAFETY: the pool exists; its size never changes.
        unsafe { dpdk_sys::urdma_pool_size(self.pointer.as_ptr()) }
    }

    /// The number of buffers in the pool and in the caches of its users; not exact while it is in
    /// use.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool exists; the function only reads counters.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.pointer.as_ptr()) }
    }

    /// Octets of each buffer including headroom.
    pub fn buffer_octets(&self) -> u16 {
        // SAFETY: the pool exists; the size never changes.
        unsafe { dpdk_sys::urdma_pool_data_room(self.pointer.as_ptr()) }
    }

    /// Allocates `count` buffers into the burst, all or none; false if the pool has too few buffers
    /// or the burst too little room.
    #[inline]
    pub fn alloc_bulk(&self, burst: &mut Burst, count: usize) -> bool {
        let held = burst.len();
        if count > MAX_BURST - held {
            return false;
        }
        let Ok(number) = u32::try_from(count) else {
            return false;
        };
        // SAFETY: the burst has room for `count` more elements, as checked above.
        let free = unsafe { burst.as_mut_ptr().add(held) };
        // SAFETY: the pool exists; `Mbuf` is a transparent pointer; the function writes `count` of
        // them or none.
        let result =
            unsafe { dpdk_sys::urdma_mbuf_alloc_bulk(self.pointer.as_ptr(), free.cast(), number) };
        if result != 0 {
            return false;
        }
        // SAFETY: `count` more elements were just written; the burst owns their buffers.
        unsafe { burst.set_len(held + count) };
        true
    }

    /// Allocates one buffer; `None` if the pool is empty.
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut burst: Burst = ArrayVec::new();
        self.alloc_bulk(&mut burst, 1);
        burst.pop()
    }

    /// Returns every buffer to the pool, regardless of its last use: for a pool whose only user was
    /// killed.
    ///
    /// # Safety
    /// No thread of any process uses the pool, this process has no [`Mbuf`] of it, and no driver
    /// holds any of its buffers.
    pub(crate) unsafe fn rebuild(&self) -> Result<(), Error> {
        // SAFETY: the pool exists and has OPS; the caller guarantees that it is not in use.
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
