//! The C functions of the lease table.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use urdma_types::Ip16;

use dpdk::{Error, LcoreId, QueueIndex};
use urdma_abi::lease::{
    Lease, LeaseCounters, LeaseParams, LeaseRoute, LeaseTable, RxDatagram, TxBuffer, TxDatagram,
    MAX_BURST,
};
use urdma_abi::library::{self, Table};
use urdma_underlay::{Checksum, LocalInterface, MacAddr, MAX_ADDRESSES};

use crate::attach::{detach, expect_same_dpdk, is_absolute};
use crate::lease::{LeaseState, Params, EINVAL};

const EBUSY: c_int = 16;
const EFAULT: c_int = 14;

/// Whether a lease is open: at most one in a process, which has one lcore id.
static OPEN: AtomicBool = AtomicBool::new(false);

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

/// The table of the library's functions.
#[no_mangle]
pub extern "C" fn urdma_lease_table() -> *const LeaseTable {
    &raw const TABLE
}

/// Runs `call` on the lease; returns `refusal` if it panics.
///
/// # Safety
/// `lease` is from `open` and not closed, and no other call on it runs.
#[inline]
unsafe fn with<T>(lease: *mut Lease, refusal: T, call: impl FnOnce(&mut LeaseState) -> T) -> T {
    // SAFETY: the caller guarantees that the pointer is valid and that no other call uses it.
    let state = unsafe { &mut *lease.cast::<LeaseState>() };
    catch_unwind(AssertUnwindSafe(|| call(state))).unwrap_or(refusal)
}

unsafe extern "C" fn open(
    params: *const LeaseParams,
    lease: *mut *mut Lease,
    message: *mut c_char,
    message_octets: usize,
) -> c_int {
    if params.is_null() || lease.is_null() {
        return EINVAL;
    }
    // SAFETY: the caller passes valid parameters.
    let params = unsafe { &*params };
    let opened = catch_unwind(|| {
        // SAFETY: the strings and addresses of the caller live during the call.
        let params = unsafe { checked(params) }?;
        if OPEN.swap(true, Ordering::AcqRel) {
            return Err(Error::new(EBUSY, "this process already has an open lease"));
        }
        LeaseState::open(params).inspect_err(|_| OPEN.store(false, Ordering::Release))
    });
    let error = match opened {
        Ok(Ok(state)) => {
            // SAFETY: the caller passes a place for the pointer.
            unsafe { lease.write(Box::into_raw(Box::new(state)).cast()) };
            return 0;
        }
        Ok(Err(error)) => error,
        Err(_) => Error::new(EFAULT, "attaching panicked"),
    };
    // SAFETY: the caller passes a buffer of this length, or null.
    unsafe { library::store_text(&error.to_string(), message, message_octets) };
    if error.errno() > 0 {
        error.errno()
    } else {
        EFAULT
    }
}

/// Copies and validates the parameters.
///
/// # Safety
/// The pointers in `params` are null or valid, as declared.
unsafe fn checked(params: &LeaseParams) -> Result<Params, Error> {
    let invalid = |what: &str| Error::new(EINVAL, format!("invalid lease parameters: {what}"));
    if params.size != LeaseParams::OCTETS {
        return Err(invalid("size"));
    }
    let text = |pointer: *const c_char, what: &str| -> Result<String, Error> {
        if pointer.is_null() {
            return Err(invalid(what));
        }
        // SAFETY: not null, hence a string, as the caller guarantees.
        let text = unsafe { CStr::from_ptr(pointer) };
        match text.to_str() {
            Ok(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(invalid(what)),
        }
    };
    expect_same_dpdk(&text(params.dpdk, "version of DPDK")?)?;
    let count = params.address_count as usize;
    if params.addresses.is_null() || count == 0 || count > MAX_ADDRESSES {
        return Err(invalid("addresses"));
    }
    // SAFETY: not null, hence `count` addresses, as the caller guarantees.
    let addresses = unsafe { slice::from_raw_parts(params.addresses, count) };
    let addresses: Vec<_> = addresses
        .iter()
        .map(|octets| Ip16(*octets).to_ip())
        .collect();
    let mac = MacAddr(params.mac);
    let lcore = LcoreId::new(params.lcore_id)
        .filter(|lcore| *lcore != LcoreId::PRIMARY)
        .ok_or_else(|| invalid("lcore id"))?;
    let runtime_directory = CString::new(text(params.runtime_dir, "runtime directory")?)
        .ok()
        .filter(is_absolute)
        .ok_or_else(|| invalid("runtime directory"))?;
    Ok(Params {
        file_prefix: text(params.file_prefix, "file prefix")?,
        runtime_directory,
        mempool: text(params.mempool, "mempool")?,
        device: text(params.device, "device")?,
        lcore,
        queue: QueueIndex(params.queue),
        mtu: params.mtu,
        local: LocalInterface::new(mac, &addresses).map_err(|_| invalid("addresses"))?,
        checksum: if params.checksum == 0 {
            Checksum::None
        } else {
            Checksum::Full
        },
        by_driver: params.by_driver != 0,
    })
}

unsafe extern "C" fn close(lease: *mut Lease, last: c_int) {
    if lease.is_null() {
        return;
    }
    // SAFETY: the pointer is that of a box from `open`, and is restored once.
    let state = unsafe { Box::from_raw(lease.cast::<LeaseState>()) };
    // A panic must not unwind into C, and the function returns no error.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        drop(state);
        if last != 0 {
            detach();
        }
    }));
    OPEN.store(false, Ordering::Release);
}

unsafe extern "C" fn route_open(
    lease: *mut Lease,
    route: *const LeaseRoute,
    number: *mut u32,
) -> c_int {
    // SAFETY: the caller passes a valid route.
    let route = unsafe { &*route };
    // SAFETY: the caller passes an open lease that no other call uses.
    match unsafe { with(lease, Err(EFAULT), |state| state.route_open(route)) } {
        Ok(opened) => {
            // SAFETY: the caller passes a place for the number.
            unsafe { number.write(opened) };
            0
        }
        Err(errno) => errno,
    }
}

unsafe extern "C" fn route_update(
    lease: *mut Lease,
    number: u32,
    route: *const LeaseRoute,
) -> c_int {
    // SAFETY: the caller passes a valid route.
    let route = unsafe { &*route };
    // SAFETY: the caller passes an open lease that no other call uses.
    match unsafe {
        with(lease, Err(EFAULT), |state| {
            state.route_update(number, route)
        })
    } {
        Ok(()) => 0,
        Err(errno) => errno,
    }
}

unsafe extern "C" fn route_close(lease: *mut Lease, number: u32) {
    // SAFETY: the caller passes an open lease that no other call uses.
    unsafe { with(lease, (), |state| state.route_close(number)) }
}

unsafe extern "C" fn tx_alloc(
    lease: *mut Lease,
    route: u32,
    buffers: *mut TxBuffer,
    count: u32,
) -> u32 {
    let count = count.min(MAX_BURST);
    // SAFETY: the caller passes room for `count` buffers, which are plain data.
    let buffers = unsafe { slice::from_raw_parts_mut(buffers, count as usize) };
    // SAFETY: the caller passes an open lease that no other call uses.
    let stored = unsafe { with(lease, 0, |state| state.tx_alloc(route, buffers)) };
    if stored == 0 {
        0
    } else {
        count
    }
}

unsafe extern "C" fn tx_burst(lease: *mut Lease, datagrams: *const TxDatagram, count: u32) -> u32 {
    let count = count.min(MAX_BURST);
    // SAFETY: the caller passes `count` datagrams.
    let datagrams = unsafe { slice::from_raw_parts(datagrams, count as usize) };
    let call = |state: &mut LeaseState| {
        // SAFETY: the caller passes buffers of this lease that it owns.
        unsafe { state.tx_burst(datagrams) }
    };
    // SAFETY: the caller passes an open lease that no other call uses.
    let consumed = unsafe { with(lease, 0, call) };
    u32::try_from(consumed).unwrap_or(count)
}

unsafe extern "C" fn rx_burst(lease: *mut Lease, datagrams: *mut RxDatagram, count: u32) -> u32 {
    let count = count.min(MAX_BURST);
    // SAFETY: the caller passes room for `count` datagrams, which are plain data.
    let datagrams = unsafe { slice::from_raw_parts_mut(datagrams, count as usize) };
    // SAFETY: the caller passes an open lease that no other call uses.
    let stored = unsafe { with(lease, 0, |state| state.rx_burst(datagrams)) };
    u32::try_from(stored).unwrap_or(0)
}

unsafe extern "C" fn tx_free(lease: *mut Lease, buffers: *const *mut c_void, count: u32) {
    // SAFETY: the caller passes `count` unsent buffers of the lease, which no other call uses.
    unsafe { free(lease, buffers, count, false) };
}

unsafe extern "C" fn rx_free(lease: *mut Lease, buffers: *const *mut c_void, count: u32) {
    // SAFETY: the caller passes `count` received buffers of the lease, which no other call uses.
    unsafe { free(lease, buffers, count, true) };
}

/// # Safety
/// `buffers` are `count` of an open lease that no other call uses, all received or all unsent.
unsafe fn free(lease: *mut Lease, buffers: *const *mut c_void, count: u32, are_received: bool) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller passes `count` buffers.
    let buffers = unsafe { slice::from_raw_parts(buffers, count as usize) };
    for buffers in buffers.chunks(MAX_BURST as usize) {
        let call = |state: &mut LeaseState| {
            // SAFETY: the caller passes buffers of this lease that it owns.
            unsafe { state.free(buffers, are_received) };
        };
        // SAFETY: the caller passes an open lease that no other call uses.
        unsafe { with(lease, (), call) };
    }
}

unsafe extern "C" fn counters(lease: *const Lease, counters: *mut LeaseCounters) {
    // SAFETY: the caller passes an open lease that no other call uses.
    let state = unsafe { &*lease.cast::<LeaseState>() };
    // SAFETY: the caller passes a place for the counters.
    unsafe { counters.write(state.counters) };
}

unsafe extern "C" fn interrupts(lease: *mut Lease) -> c_int {
    // SAFETY: the caller passes an open lease that no other call uses.
    unsafe { with(lease, -1, |state| state.interrupts().unwrap_or(-1)) }
}

unsafe extern "C" fn unmask(lease: *mut Lease) -> c_int {
    // SAFETY: the caller passes an open lease that no other call uses.
    unsafe { with(lease, true, LeaseState::unmask) }.into()
}

unsafe extern "C" fn mask(lease: *mut Lease) {
    // SAFETY: the caller passes an open lease that no other call uses.
    unsafe { with(lease, (), |state| state.mask()) }
}
