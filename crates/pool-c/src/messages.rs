//! The calls for Sends and Receives.
//!
//! Pointers of the application are turned into values here, before safe code is called.

#![allow(unsafe_code)]

use std::ffi::c_int;

use urdma_pool_verbs::{UserId, VirtualId};

use crate::errno::{call, Errno};
use crate::pool::{given, place, take, Pool};
use crate::values::{
    address_at, elements_at, state_of, MessageAttr, QueueDepths, ReceiveCompletion,
    ReceiveWorkRequest, Remote, SendWorkRequest,
};

/// Has a pool exchange messages with others, which know it by an address.
///
/// # Safety
/// The pool is valid, the address has its length, the attributes can be read, and their memory is
/// allocated until the pool is destroyed. Other pools write it at any time.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_offer_messages(
    pool: *mut Pool,
    at: *const libc::sockaddr,
    at_len: libc::socklen_t,
    attr: *const MessageAttr,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (at, attr) = unsafe { (address_at(at, at_len)?, given(attr)?) };
        // SAFETY: as the caller says.
        let (mut client, memory) = unsafe { (Pool::lock(pool)?, attr.memory()?) };
        match memory {
            Some(memory) => client.offer_messages_with(at, &attr.messages()?, memory)?,
            None => client.offer_messages(at, &attr.messages()?)?,
        }
        Ok(0)
    })
}

/// Offers a service.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_listen(pool: *mut Pool, service: u32) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        Ok(client.listen(service).map(|()| 0)?)
    })
}

/// Ends a service.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_end_service(pool: *mut Pool, service: u32) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        Ok(client.end_service(service).map(|()| 0)?)
    })
}

/// Takes what has come for all users.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_progress(pool: *mut Pool) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        Ok(client.progress().map(|()| 0)?)
    })
}

/// Opens a virtual queue pair to a service.
///
/// # Safety
/// The pool is valid, the address has its length, the depths can be read, and the number can
/// be written.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_open_service(
    pool: *mut Pool,
    user: u32,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
    service: u32,
    depths: *const QueueDepths,
    qp: *mut u64,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (qp, depths) = (place(qp)?, unsafe { given(depths) }?.depths()?);
        // SAFETY: as the caller says.
        let (mut client, to) = unsafe { (Pool::lock(pool)?, address_at(to, to_len)?) };
        let opened = client.open_service(UserId(user), (to, service), depths)?;
        // SAFETY: as the caller says.
        unsafe { qp.write(opened.to_bits()) };
        Ok(0)
    })
}

/// Accepts the one that has waited the longest for a service; whether there was one.
///
/// # Safety
/// The pool is valid, the depths can be read, and the number can be written.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_accept(
    pool: *mut Pool,
    service: u32,
    user: u32,
    depths: *const QueueDepths,
    qp: *mut u64,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (qp, depths) = (place(qp)?, unsafe { given(depths) }?.depths()?);
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        let Some(accepted) = client.accept(service, UserId(user), depths)? else {
            return Ok(0);
        };
        // SAFETY: as the caller says.
        unsafe { qp.write(accepted.to_bits()) };
        Ok(1)
    })
}

/// Refuses the one that has waited the longest for a service; whether there was one.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_refuse(pool: *mut Pool, service: u32) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        Ok(client.refuse(service).map(c_int::from)?)
    })
}

/// What has become of a virtual queue pair with Sends and Receives.
///
/// # Safety
/// The pool is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_state(pool: *mut Pool, qp: u64) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let client = unsafe { Pool::lock(pool) }?;
        let id = VirtualId::from_bits(qp);
        client.pool().state(id).ok_or(Errno(libc::EINVAL))?;
        let state = client.end_state(id).ok_or(Errno(libc::EOPNOTSUPP))?;
        Ok(state_of(state))
    })
}

/// The memory that the pool of the other end offers; whether it is known.
///
/// # Safety
/// The pool is valid, and the memory's description can be written.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_peer_memory(
    pool: *mut Pool,
    qp: u64,
    remote: *mut Remote,
) -> c_int {
    call(-1, || {
        let at = place(remote)?;
        // SAFETY: as the caller says.
        let client = unsafe { Pool::lock(pool) }?;
        let id = VirtualId::from_bits(qp);
        client.pool().state(id).ok_or(Errno(libc::EINVAL))?;
        let Some((region, addr, length)) = client.offered_by_peer(id) else {
            return Ok(0);
        };
        let id = region.to_bits();
        // SAFETY: as the caller says.
        unsafe { at.write(Remote { id, addr, length }) };
        Ok(1)
    })
}

/// Posts a Send.
///
/// # Safety
/// The pool is valid, and the request can be read, with its elements.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_post_send(
    pool: *mut Pool,
    qp: u64,
    wr: *const SendWorkRequest,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (mut client, wr) = unsafe { (Pool::lock(pool)?, given(wr)?) };
        // SAFETY: as the caller says.
        let elements = unsafe { elements_at(wr.sg_list, wr.num_sge) }?;
        client.post_send(VirtualId::from_bits(qp), &wr.request()?, &elements)?;
        Ok(0)
    })
}

/// Posts a Receive.
///
/// # Safety
/// The pool is valid, and the request can be read, with its elements.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_post_recv(
    pool: *mut Pool,
    qp: u64,
    wr: *const ReceiveWorkRequest,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (mut client, wr) = unsafe { (Pool::lock(pool)?, given(wr)?) };
        // SAFETY: as the caller says.
        let elements = unsafe { elements_at(wr.sg_list, wr.num_sge) }?;
        client.post_receive(VirtualId::from_bits(qp), wr.wr_id, &elements)?;
        Ok(0)
    })
}

/// Takes completions of Receives; how many there were.
///
/// # Safety
/// The pool is valid, and there is room for `count` completions.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_poll_recv(
    pool: *mut Pool,
    qp: u64,
    count: c_int,
    wc: *mut ReceiveCompletion,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut client = unsafe { Pool::lock(pool) }?;
        let id = VirtualId::from_bits(qp);
        client.pool().state(id).ok_or(Errno(libc::EINVAL))?;
        client.end_state(id).ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: as the caller says.
        unsafe { take(count, wc, || Ok(client.poll_received(id)?.map(Into::into))) }
    })
}
