//! Loads the provider and its table on the first use of a stand-in file.

use std::ffi::{c_int, c_void, CStr};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::{active, owner, real};
use urdma_abi::front::{
    FrontTable, FrontTableFn, RegisterFn, FRONT_ABI, FRONT_SIZE, FRONT_TABLE_SYMBOL,
    REGISTER_SYMBOL,
};

static TABLE: AtomicPtr<FrontTable> = AtomicPtr::new(std::ptr::null_mut());
/// The process that has loaded it.
static LOADED_IN: AtomicI32 = AtomicI32::new(0);
/// The thread that is loading; 0 if none is.
static LOADER: AtomicI32 = AtomicI32::new(0);
/// The process in which a failure was reported.
static REPORTED: AtomicI32 = AtomicI32::new(0);

/// The provider's table if it was loaded in this process: a forked child must not call it.
pub(crate) fn own() -> Option<&'static FrontTable> {
    known().filter(|_| LOADED_IN.load(Ordering::Acquire) == owner::pid())
}

/// The thread is about to look at descriptors without the provider: events in the provider's memory
/// are to be in the sockets.
pub(crate) fn send_events() {
    if let Some(table) = own() {
        // SAFETY: no precondition.
        unsafe { (table.send_events)() };
    }
}

/// The provider's table if it is loaded.
fn known() -> Option<&'static FrontTable> {
    // SAFETY: null or the provider's table, which lives as long as the process.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// The provider's table; `None`, with a message on standard error, if it is not available.
pub(crate) fn table() -> Option<&'static FrontTable> {
    if let Some(table) = known() {
        return Some(table);
    }
    if !begin_loading() {
        return None;
    }
    let table = load();
    if let Some(table) = table {
        LOADED_IN.store(owner::pid(), Ordering::Release);
        TABLE.store(std::ptr::from_ref(table).cast_mut(), Ordering::Release);
    }
    LOADER.store(0, Ordering::Release);
    table
}

/// Waits for another thread that loads; false if this thread is loading already.
fn begin_loading() -> bool {
    // SAFETY: gettid has no preconditions.
    let me = unsafe { libc::gettid() };
    loop {
        match LOADER.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(loader) if loader == me => return false,
            // SAFETY: sched_yield has no preconditions.
            Err(_) => unsafe { libc::sched_yield() },
        };
    }
}

/// Registers the provider with the copies of libibverbs that are loaded. A copy that was loaded
/// after the provider does not load it again, so the provider would not register with it.
pub(crate) fn register() {
    let Some(library) = library() else {
        return;
    };
    // SAFETY: a library handle and a C string.
    let symbol: *mut c_void = unsafe { libc::dlsym(library, REGISTER_SYMBOL.as_ptr()) };
    if symbol.is_null() {
        report(b"the provider has no urdma_register; it does not belong to this stand-in");
        return;
    }
    // SAFETY: the provider exports this name with this type only.
    let function: RegisterFn = unsafe { std::mem::transmute(symbol) };
    // SAFETY: the function may be called at any time.
    unsafe { function() };
}

/// Loads the provider; `None`, with a message on standard error, on failure.
fn library() -> Option<*mut c_void> {
    let Some(path) = active::variable(c"URDMA_PROVIDER").filter(|path| !path.is_empty()) else {
        report(b"URDMA_PROVIDER is not set; start the program with `urdma run`");
        return None;
    };
    // SAFETY: getenv's strings end in a zero, right after `path`.
    let library = unsafe { libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        report_load_failure(path);
        return None;
    }
    Some(library)
}

fn load() -> Option<&'static FrontTable> {
    let library = library()?;
    // SAFETY: a library handle and a C string.
    let symbol: *mut c_void = unsafe { libc::dlsym(library, FRONT_TABLE_SYMBOL.as_ptr()) };
    if symbol.is_null() {
        report(b"the provider has no urdma_front_table; it does not belong to this stand-in");
        return None;
    }
    // SAFETY: the provider exports this name with this type only.
    let function: FrontTableFn = unsafe { std::mem::transmute(symbol) };
    // SAFETY: the function may be called at any time; it gives null or a table that stays.
    let table = unsafe { function().as_ref() }?;
    if table.abi != FRONT_ABI || table.size < FRONT_SIZE {
        report(
            b"the provider and the stand-in are of different versions of urdma: \
            start the program with the `urdma run` of one version",
        );
        return None;
    }
    Some(table)
}

fn report_load_failure(path: &[u8]) {
    // SAFETY: dlerror gives null or a C string that stays until the next call in this thread.
    let why = unsafe { libc::dlerror() };
    let why = if why.is_null() {
        b"unknown error"
    } else {
        // SAFETY: not null, see above.
        unsafe { CStr::from_ptr(why) }.to_bytes()
    };
    report(&[b"cannot load the provider ", path, b": ", why].concat());
}

/// Writes a message to standard error, once per process.
pub(crate) fn report(sentence: &[u8]) {
    let me: c_int = owner::pid();
    if REPORTED.swap(me, Ordering::Relaxed) == me {
        return;
    }
    let line = [b"urdma: ", sentence, b"\n"].concat();
    // SAFETY: `line` is readable.
    unsafe { real::write(2, line.as_ptr().cast(), line.len()) };
}
