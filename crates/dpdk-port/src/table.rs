//! The C functions of the port table.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

use dpdk::MAX_BURST;
use urdma_abi::library::{store_text, Table};
use urdma_abi::port::{
    steering, OpenedPort, PoolState, Port, PortParams, PortState, PortTable, RxFrame, TxBuffer,
    TxFrame, DEVICE_OCTETS,
};

use crate::error::{OpenError, QueueError};
use crate::open::{check_driver, open as open_port, Opened, Steering};
use crate::params::Params;
use crate::port::Dpdk;

const EIO: c_int = 5;

static TABLE: PortTable = PortTable {
    size: PortTable::OCTETS,
    version: PortTable::VERSION,
    dpdk_version,
    check,
    open,
    close,
    enter,
    receive,
    release,
    alloc,
    send,
    free,
    lend,
    reclaim,
    report,
};

/// The table of the library's functions.
#[no_mangle]
pub extern "C" fn urdma_port_table() -> *const PortTable {
    &raw const TABLE
}

/// Runs `call`; a panic, which is a bug and has been reported, must not unwind into C.
fn guarded<T>(refusal: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(refusal)
}

/// Runs `call` on the port; returns `refusal` if it panics.
///
/// # Safety
/// `port` is from `open` and not closed, and no other call on it runs.
#[inline]
unsafe fn with<T>(port: *mut Port, refusal: T, call: impl FnOnce(&mut Dpdk) -> T) -> T {
    // SAFETY: the caller guarantees that the pointer is valid and that no other call uses it.
    let state = unsafe { &mut *port.cast::<Dpdk>() };
    guarded(refusal, || call(state))
}

/// Stores the sentence of an outcome for the caller; returns 0, or an errno for an error.
///
/// # Safety
/// `message` has room for `octets`.
unsafe fn store<E: ToString>(
    outcome: Result<String, E>,
    message: *mut c_char,
    octets: usize,
) -> c_int {
    let (text, errno) = match outcome {
        Ok(note) => (note, 0),
        Err(error) => (error.to_string(), EIO),
    };
    // SAFETY: the caller passes room for `octets`.
    unsafe { store_text(&text, message, octets) };
    errno
}

unsafe extern "C" fn dpdk_version() -> *const c_char {
    dpdk::version().as_ptr()
}

unsafe extern "C" fn check(driver: *const c_char, message: *mut c_char, octets: usize) -> c_int {
    // SAFETY: the caller passes a string.
    let driver = unsafe { CStr::from_ptr(driver) };
    let outcome = guarded(Err(OpenError::Panicked), || {
        match driver.to_string_lossy().as_ref() {
            "" => Ok(()),
            driver => check_driver(driver),
        }
    });
    // SAFETY: the caller passes a buffer of this length.
    unsafe { store(outcome.map(|()| String::new()), message, octets) }
}

unsafe extern "C" fn open(
    params: *const PortParams,
    opened: *mut OpenedPort,
    message: *mut c_char,
    octets: usize,
) -> c_int {
    // SAFETY: the caller passes valid parameters.
    let params = unsafe { &*params };
    let outcome = guarded(Err(OpenError::Panicked), || {
        // SAFETY: the caller passes valid parameters.
        let params = unsafe { Params::new(params) }?;
        open_port(&params)
    });
    let outcome = outcome.map(|found| {
        let (described, note) = describe(found);
        // SAFETY: the caller passes a place for it.
        unsafe { opened.write(described) };
        note
    });
    // SAFETY: the caller passes a buffer of this length.
    unsafe { store(outcome, message, octets) }
}

/// An open port as the caller gets it, with the reason why no queue can be lent.
fn describe(mut opened: Opened) -> (OpenedPort, String) {
    let (steering, entries, note) = match opened.steering {
        Ok(Steering::Peer) => (steering::PEER, 0, String::new()),
        Ok(Steering::Rules) => (steering::RULES, 0, String::new()),
        Ok(Steering::Table(entries)) => (steering::TABLE, entries, String::new()),
        Err(reason) => (steering::NONE, 0, reason.to_string()),
    };
    let mut device = [0; DEVICE_OCTETS];
    for (to, from) in device[..DEVICE_OCTETS - 1]
        .iter_mut()
        .zip(opened.device.bytes())
    {
        *to = c_char::from_ne_bytes([from]);
    }
    let capacity = opened.port.capacity();
    let described = OpenedPort {
        capacity: u32::try_from(capacity).unwrap_or(0),
        port: Box::into_raw(Box::new(opened.port)).cast(),
        device,
        steering,
        table_entries: u32::try_from(entries).unwrap_or(0),
        queues: opened.queues,
        mac: opened.mac.0,
    };
    (described, note)
}

unsafe extern "C" fn close(port: *mut Port) {
    // SAFETY: the pointer is that of a box from `open`, and is restored once.
    let state = unsafe { Box::from_raw(port.cast::<Dpdk>()) };
    guarded((), || drop(state));
}

unsafe extern "C" fn enter(port: *mut Port) {
    // SAFETY: the caller passes an open port that no other call uses.
    unsafe { with(port, (), Dpdk::enter) }
}

/// The length of a burst.
fn burst(count: u32) -> usize {
    MAX_BURST.min(usize::try_from(count).unwrap_or(MAX_BURST))
}

unsafe extern "C" fn receive(port: *mut Port, queue: u16, frames: *mut RxFrame, count: u32) -> u32 {
    // SAFETY: the caller passes room for `count` frames, which are plain data.
    let frames = unsafe { slice::from_raw_parts_mut(frames, burst(count)) };
    // SAFETY: the caller passes an open port that no other call uses.
    let stored = unsafe { with(port, 0, |port| port.receive(queue, frames)) };
    u32::try_from(stored).unwrap_or(0)
}

unsafe extern "C" fn release(port: *mut Port) {
    // SAFETY: the caller passes an open port that no other call uses.
    unsafe { with(port, (), Dpdk::release) }
}

unsafe extern "C" fn alloc(port: *mut Port, buffers: *mut TxBuffer, count: u32) -> u32 {
    // SAFETY: the caller passes room for `count` buffers, which are plain data.
    let buffers = unsafe { slice::from_raw_parts_mut(buffers, burst(count)) };
    // SAFETY: the caller passes an open port that no other call uses.
    let stored = unsafe { with(port, 0, |port| port.alloc(buffers)) };
    u32::try_from(stored).unwrap_or(0)
}

unsafe extern "C" fn send(port: *mut Port, frames: *const TxFrame, count: u32) -> u32 {
    // SAFETY: the caller passes `count` frames.
    let frames = unsafe { slice::from_raw_parts(frames, burst(count)) };
    let call = |port: &mut Dpdk| {
        // SAFETY: the caller passes frames in buffers of this port that it owns.
        unsafe { port.send(frames) }
    };
    // SAFETY: the caller passes an open port that no other call uses.
    let sent = unsafe { with(port, 0, call) };
    u32::try_from(sent).unwrap_or(0)
}

unsafe extern "C" fn free(port: *mut Port, frames: *const TxFrame, count: u32) {
    // SAFETY: the caller passes `count` frames.
    let frames = unsafe { slice::from_raw_parts(frames, burst(count)) };
    let call = |port: &mut Dpdk| {
        // SAFETY: the caller passes frames in buffers of this port that it owns.
        unsafe { port.free(frames) }
    };
    // SAFETY: the caller passes an open port that no other call uses.
    unsafe { with(port, (), call) }
}

unsafe extern "C" fn lend(
    port: *mut Port,
    queue: u16,
    udp_port: u16,
    message: *mut c_char,
    octets: usize,
) -> c_int {
    let refusal = Err(QueueError::Panicked);
    // SAFETY: the caller passes an open port that no other call uses.
    let outcome = unsafe { with(port, refusal, |port| port.lend(queue, udp_port)) };
    // SAFETY: the caller passes a buffer of this length.
    unsafe { store(outcome, message, octets) }
}

unsafe extern "C" fn reclaim(
    port: *mut Port,
    queue: u16,
    message: *mut c_char,
    octets: usize,
) -> c_int {
    let refusal = Err(QueueError::Panicked);
    // SAFETY: the caller passes an open port that no other call uses.
    let outcome = unsafe { with(port, refusal, |port| port.reclaim(queue)) };
    // SAFETY: the caller passes a buffer of this length.
    unsafe { store(outcome, message, octets) }
}

unsafe extern "C" fn report(
    port: *mut Port,
    state: *mut PortState,
    pools: *mut PoolState,
    count: u32,
) {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller passes room for `count` of them, which are plain data.
    let pools = unsafe { slice::from_raw_parts_mut(pools, count) };
    let call = |port: &mut Dpdk| {
        for (queue, pool) in pools.iter_mut().enumerate() {
            *pool = port.pool(queue).unwrap_or_default();
        }
        port.state()
    };
    // SAFETY: the caller passes an open port that no other call uses.
    let found = unsafe { with(port, PortState::default(), call) };
    // SAFETY: the caller passes a place for it.
    unsafe { state.write(found) };
}
