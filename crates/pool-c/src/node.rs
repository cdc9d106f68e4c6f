//! The calls for nodes.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, NonNull};
use std::time::Duration;

use urdma_pool_verbs::{Foreign, Node as Inner};

use crate::errno::{call, Errno};
use crate::handle::Handle;
use crate::values::{address_at, is_dc, services_at};

/// `struct urdma_pool_node`.
pub(crate) type Node = Handle<Inner>;

/// Offers memory of the caller at an address.
///
/// # Safety
/// The address has its length, and the memory is allocated until the node is destroyed. Clients
/// write it at any time.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_node_create(
    at: *const libc::sockaddr,
    at_len: libc::socklen_t,
    addr: *mut c_void,
    length: usize,
    transport: c_int,
) -> *mut Node {
    call(null_mut(), || {
        let start = NonNull::new(addr.cast()).ok_or(Errno(libc::EFAULT))?;
        // SAFETY: as the caller says.
        let memory = unsafe { Foreign::new(start, length) }.ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as the caller says.
        let at = unsafe { address_at(at, at_len) }?;
        let offers_target = is_dc(transport)?;
        let mut node = Inner::listen_with(at, memory)?;
        if offers_target {
            node.offer_target()?;
        }
        Ok(Node::give(node))
    })
}

/// Registers a node at metadata services.
///
/// # Safety
/// The node is valid, and there are `count` addresses.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_node_register(
    node: *mut Node,
    services: *const libc::sockaddr_storage,
    count: c_int,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let (mut node, services) = unsafe { (Node::lock(node)?, services_at(services, count)?) };
        Ok(node.register(&services).map(|()| 0)?)
    })
}

/// Waits for clients, and does what they ask for.
///
/// # Safety
/// The node is valid.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_node_wait(node: *mut Node, timeout_ms: c_int) -> c_int {
    call(-1, || {
        // SAFETY: as the caller says.
        let mut node = unsafe { Node::lock(node) }?;
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Ok(node.wait(limit).map(|()| 0)?)
    })
}

/// Destroys a node.
///
/// # Safety
/// The node is valid, and no other call uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn urdma_pool_node_destroy(node: *mut Node) -> c_int {
    // SAFETY: as the caller says.
    call(-1, || unsafe { Node::destroy(node) })
}
