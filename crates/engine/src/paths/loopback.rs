//! Two leased queue pairs, each the other's link, in the memory of this process: for
//! counts of the instructions of an engine, without DPDK.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::rc::Rc;

use urdma_abi::lease::{
    Lease, LeaseCounters, LeaseParams, LeaseRoute, LeaseTable, RxDatagram, TxBuffer, TxDatagram,
    READABLE,
};
use urdma_abi::library::Table;

use super::lease::LeasedQueue;

/// Buffers of a queue pair: no fewer than are in flight.
const BUFFERS: usize = 4096;

static TABLE: LeaseTable = LeaseTable {
    size: LeaseTable::OCTETS,
    version: LeaseTable::VERSION,
    open,
    close,
    route_open,
    route_update,
    route_close,
    tx_alloc,
    tx_burst,
    tx_free,
    rx_burst,
    rx_free,
    counters,
    interrupts,
    unmask,
    mask,
};

/// A datagram in a buffer, on its way over a route.
struct Carried {
    buffer: *mut u8,
    octets: u32,
    route: LeaseRoute,
    ecn: u8,
}

/// What is on its way to one end.
type Line = Rc<RefCell<VecDeque<Carried>>>;

/// One end.
struct End {
    capacity: u32,
    routes: Vec<LeaseRoute>,
    /// The buffers of both ends.
    free: Rc<RefCell<Vec<*mut u8>>>,
    out: Line,
    into: Line,
}

/// Two queue pairs for datagrams of up to `capacity` octets, whose routes lead to each other. One
/// thread drives both; buffers are never freed.
pub fn leased_pair(capacity: u32) -> [LeasedQueue; 2] {
    let room = READABLE.max(capacity as usize);
    let buffers = (0..BUFFERS).map(|_| vec![0u8; room].leak().as_mut_ptr());
    let free = Rc::new(RefCell::new(buffers.collect()));
    let lines: [Line; 2] = Default::default();
    [0, 1].map(|which| {
        let end = End {
            capacity,
            routes: Vec::new(),
            free: Rc::clone(&free),
            out: Rc::clone(&lines[1 - which]),
            into: Rc::clone(&lines[which]),
        };
        let end = NonNull::from(Box::leak(Box::new(end)));
        LeasedQueue::new(&TABLE, end.cast())
    })
}

/// # Safety
/// `lease` is one of [`leased_pair`], and no other call uses it.
unsafe fn end_of<'a>(lease: *mut Lease) -> &'a mut End {
    // SAFETY: the caller's promise.
    unsafe { &mut *lease.cast::<End>() }
}

unsafe extern "C" fn open(
    _: *const LeaseParams,
    _: *mut *mut Lease,
    _: *mut c_char,
    _: usize,
) -> c_int {
    libc::ENOTSUP
}

unsafe extern "C" fn close(_: *mut Lease, _: c_int) {}

unsafe extern "C" fn route_open(
    lease: *mut Lease,
    route: *const LeaseRoute,
    number: *mut u32,
) -> c_int {
    // SAFETY: the engine passes its lease, which is of `leased_pair`, in one call at a time.
    let end = unsafe { end_of(lease) };
    let next = u32::try_from(end.routes.len()).unwrap_or(u32::MAX);
    // SAFETY: the caller passes a valid route.
    end.routes.push(unsafe { *route });
    // SAFETY: the caller passes a place for the number.
    unsafe { number.write(next) };
    0
}

unsafe extern "C" fn route_update(_: *mut Lease, _: u32, _: *const LeaseRoute) -> c_int {
    libc::ENOTSUP
}

unsafe extern "C" fn route_close(_: *mut Lease, _: u32) {}

unsafe extern "C" fn tx_alloc(
    lease: *mut Lease,
    _: u32,
    buffers: *mut TxBuffer,
    count: u32,
) -> u32 {
    // SAFETY: the engine passes its lease, which is of `leased_pair`, in one call at a time.
    let end = unsafe { end_of(lease) };
    let mut free = end.free.borrow_mut();
    if free.len() < count as usize {
        return 0;
    }
    let taken = free.iter().rev().take(count as usize);
    for (at, &data) in taken.enumerate() {
        let buffer = TxBuffer {
            buffer: data.cast(),
            data,
            capacity: end.capacity,
        };
        // SAFETY: the caller passes room for `count` buffers.
        unsafe { buffers.add(at).write(buffer) };
    }
    let left = free.len() - count as usize;
    free.truncate(left);
    count
}

unsafe extern "C" fn tx_burst(lease: *mut Lease, datagrams: *const TxDatagram, count: u32) -> u32 {
    // SAFETY: the engine passes its lease, which is of `leased_pair`, in one call at a time.
    let end = unsafe { end_of(lease) };
    // SAFETY: the caller passes `count` datagrams.
    let datagrams = unsafe { std::slice::from_raw_parts(datagrams, count as usize) };
    let mut line = end.out.borrow_mut();
    // In a loop: a function of the standard library would count as the engine's.
    for datagram in datagrams {
        line.push_back(Carried {
            buffer: datagram.buffer.cast(),
            octets: datagram.octets,
            route: end.routes[datagram.route as usize],
            ecn: datagram.ecn,
        });
    }
    count
}

unsafe extern "C" fn rx_burst(lease: *mut Lease, datagrams: *mut RxDatagram, count: u32) -> u32 {
    // SAFETY: the engine passes its lease, which is of `leased_pair`, in one call at a time.
    let end = unsafe { end_of(lease) };
    let mut line = end.into.borrow_mut();
    let count = line.len().min(count as usize);
    for (at, carried) in line.drain(..count).enumerate() {
        let datagram = RxDatagram {
            buffer: carried.buffer.cast(),
            data: carried.buffer,
            octets: carried.octets,
            source_port: carried.route.source_port,
            destination_port: carried.route.destination_port,
            // Every route of this end leads to the other.
            source: end.routes.first().map_or([0; 16], |back| back.remote),
            ecn: carried.ecn,
            local_index: carried.route.local_index,
        };
        // SAFETY: the caller passes room for `count` datagrams.
        unsafe { datagrams.add(at).write(datagram) };
    }
    u32::try_from(count).unwrap_or(0)
}

unsafe extern "C" fn tx_free(lease: *mut Lease, buffers: *const *mut c_void, count: u32) {
    // SAFETY: the caller passes `count` buffers of this lease.
    unsafe { rx_free(lease, buffers, count) };
}

unsafe extern "C" fn rx_free(lease: *mut Lease, buffers: *const *mut c_void, count: u32) {
    // SAFETY: the engine passes its lease, which is of `leased_pair`, in one call at a time.
    let end = unsafe { end_of(lease) };
    // SAFETY: the caller passes `count` buffers.
    let buffers = unsafe { std::slice::from_raw_parts(buffers, count as usize) };
    let buffers = buffers.iter().map(|buffer| buffer.cast::<u8>());
    end.free.borrow_mut().extend(buffers);
}

unsafe extern "C" fn counters(_: *const Lease, counters: *mut LeaseCounters) {
    // SAFETY: the caller passes a place for the counters.
    unsafe { counters.write(LeaseCounters::default()) };
}

unsafe extern "C" fn interrupts(_: *mut Lease) -> c_int {
    -1
}

unsafe extern "C" fn unmask(_: *mut Lease) -> c_int {
    1
}

unsafe extern "C" fn mask(_: *mut Lease) {}
