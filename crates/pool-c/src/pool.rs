//! The calls for pools.
//!
//! Pointers of the application are turned into values here, before safe code is called.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, NonNull};

use urdma_pool_verbs::{Client, Foreign, LocalRegionId, UserId, VirtualId};

use crate::errno::{call, Errno};
use crate::handle::Handle;
use crate::values::{
    address_at, elements_at, services_at, Attr, Counters, Remote, WorkCompletion, WorkRequest,
};

/// `struct urdma_pool`.
pub(crate) type Pool = Handle<Client>;

/// What the application points to.
///
/// # Safety
/// The pointer is null, or valid.
pub(crate) unsafe fn given<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or(Errno(libc::EFAULT))
}

/// Where the application is told something.
pub(crate) fn place<T>(pointer: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(pointer).ok_or(Errno(libc::EFAULT))
}

/// Creates a pool.
///
/// # Safety
/// The address has its length, and the attributes can be read; both may be null.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_create(
    from: *const libc::sockaddr,
    from_len: libc::socklen_t,
    attr: *const Attr,
) -> *mut Pool {
    call(null_mut(), || {
        // SAFETY: as the caller says.
        let (from, attr) = unsafe { (address_at(from, from_len)?, given(attr)?) };
        let client = Client::new(from.ip(), &attr.config()?)?;
        Ok(Pool::give(client))
    })
}

/// Has a pool learn of nodes from metadata services.
///
/// # Safety
/// The pool is valid, and there are `count` addresses.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_use_metadata(
    pool: *mut Pool,
    services: *const libc::sockaddr_storage,
    count: c_int,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (mut client, services) = unsafe { (Pool::lock(pool)?, services_at(services, count)?) };
        Ok(client.use_metadata(&services).map(|()| 0)?)
    })
}

/// Tells what a pool has counted.
///
/// # Safety
/// The pool is valid, and the counters can be written.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_get_stats(
    pool: *mut Pool,
    stats: *mut Counters,
) -> c_int {
    call(-1, || {
        let stats = place(stats)?;
        // SAFETY: as the caller says.
        let client = unsafe { Pool::lock(pool) }?;
        // SAFETY: as the caller says.
        unsafe { stats.write(client.pool().stats().into()) };
        Ok(0)
    })
}

/// Destroys a pool with everything that it has.
///
/// # Safety
/// The pool is valid, and no other call uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_destroy(pool: *mut Pool) -> c_int {
    // SAFETY: as the caller says.
    call(-1, || unsafe { Pool::destroy(pool) })
}

/// Registers memory of the caller.
///
/// # Safety
/// The pool is valid, the number can be written, and the memory is allocated until
/// `urdma_pool_dereg_mr` succeeds for it or the pool is destroyed.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_reg_mr(
    pool: *mut Pool,
    user: u32,
    addr: *mut c_void,
    length: usize,
    mr: *mut u64,
) -> c_int {
    call(-1, || {
        let (start, mr) = (place(addr.cast())?, place(mr)?);
        // SAFETY: as the caller says.
        let memory = unsafe { Foreign::new(start, length) }.ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        let id = client.register_foreign(UserId(user), memory)?;
        // SAFETY: as the caller says.
        unsafe { mr.write(id.to_bits()) };
        Ok(0)
    })
}

/// Ends the registration of memory, after the requests that use it.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_dereg_mr(pool: *mut Pool, mr: u64) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        client.deregister(LocalRegionId::from_bits(mr))?;
        Ok(0)
    })
}

/// Opens a virtual queue pair.
///
/// # Safety
/// The pool is valid, the address has its length, and number and memory can be written.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_open(
    pool: *mut Pool,
    user: u32,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
    depth: u32,
    qp: *mut u64,
    remote: *mut Remote,
) -> c_int {
    call(-1, || {
        if depth == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let (qp, at) = (place(qp)?, place(remote)?);
        // SAFETY: as the caller says.
        let (mut client, to) = unsafe { (Pool::lock(pool)?, address_at(to, to_len)?) };
        let (opened, region, addr) = client.open(UserId(user), to, depth)?;
        let length = client
            .pool()
            .remote(region)
            .map_or(0, |region| region.len_octets);
        let memory = Remote {
            id: region.to_bits(),
            addr,
            length,
        };
        // SAFETY: as the caller says.
        unsafe {
            qp.write(opened.to_bits());
            at.write(memory);
        }
        Ok(0)
    })
}

/// Closes a virtual queue pair.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_close(pool: *mut Pool, qp: u64) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        client.close(VirtualId::from_bits(qp))?;
        Ok(0)
    })
}

/// Makes a virtual queue pair ready after an error.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_reset(pool: *mut Pool, qp: u64) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        client.reset(VirtualId::from_bits(qp))?;
        Ok(0)
    })
}

/// Posts a request.
///
/// # Safety
/// The pool is valid, and the request can be read, with its elements.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_post(
    pool: *mut Pool,
    qp: u64,
    wr: *const WorkRequest,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (mut client, wr) = unsafe { (Pool::lock(pool)?, given(wr)?) };
        // SAFETY: as the caller says.
        let elements = unsafe { elements_at(wr.sg_list, wr.num_sge) }?;
        client.post(VirtualId::from_bits(qp), &wr.request()?, &elements)?;
        Ok(0)
    })
}

/// Takes completions; how many there were.
///
/// # Safety
/// The pool is valid, and there is room for `count` completions.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_poll(
    pool: *mut Pool,
    qp: u64,
    count: c_int,
    wc: *mut WorkCompletion,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        let id = VirtualId::from_bits(qp);
        client.pool().state(id).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as the caller says.
        unsafe { take(count, wc, || Ok(client.poll(id)?.map(Into::into))) }
    })
}

/// Takes completions until there are no more or `count` are taken; how many.
///
/// # Safety
/// There is room for `count` completions, or the pointer is null.
pub(crate) unsafe fn take<T>(
    count: c_int,
    to: *mut T,
    mut next: impl FnMut() -> Result<Option<T>, Errno>,
) -> Result<c_int, Errno> {
    let to = place(to)?;
    let most = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    let mut taken = 0;
    while taken < most {
        let Some(completion) = next()? else {
            break;
        };
        // SAFETY: there is room for `most`, of which this is one.
        unsafe { to.add(taken).write(completion) };
        taken += 1;
    }
    c_int::try_from(taken).map_err(|_| Errno(libc::EOVERFLOW))
}
