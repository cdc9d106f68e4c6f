//! The C table through which the stand-in calls the provider.
//!
//! The provider defines the table; the stand-in looks it up.
//!
//! The provider exports two functions. [`FRONT_TABLE_SYMBOL`], of type [`FrontTableFn`], attaches
//! to urdmad if the process is not attached, and may therefore block for a short time; null means
//! that attaching failed and that the reason was written to standard error. [`REGISTER_SYMBOL`], of
//! type [`RegisterFn`], registers the provider with the copies of libibverbs that are loaded.
//!
//! All functions return 0 or more on success and a negative errno on failure; the value of `errno`
//! after a call is unspecified. All functions are thread-safe, and thread cancellation is disabled
//! in them; `cm_write`, of which a connection takes twenty, leaves that to its caller.

use std::ffi::{c_int, c_void};

/// Name of the function that the provider exports.
pub const FRONT_TABLE_SYMBOL: &std::ffi::CStr = c"urdma_front_table";

/// Name of the function by which the provider registers with libibverbs.
pub const REGISTER_SYMBOL: &std::ffi::CStr = c"urdma_register";

/// Type of the function named [`REGISTER_SYMBOL`].
pub type RegisterFn = unsafe extern "C" fn();

/// Name of the function of the stand-in by which the provider marks descriptors.
pub const MARK_SYMBOL: &std::ffi::CStr = c"urdma_mark_descriptor";

/// Type of the function named [`MARK_SYMBOL`], which gives a descriptor one of the marks of
/// [`mark`]. Returns whether it has it, 0 or 1.
pub type MarkFn = unsafe extern "C" fn(fd: c_int, mark: c_int) -> c_int;

/// What a descriptor of the provider is to the stand-in.
pub mod mark {
    use std::ffi::c_int;

    /// Nothing.
    pub const NONE: c_int = 0;
    /// It stays open when the program closes descriptors that it did not open.
    pub const SPARED: c_int = 1;
    /// The program reads asynchronous events from it, and closes it.
    pub const ASYNC_EVENTS: c_int = 2;
}

/// Value of [`FrontTable::abi`] that this declaration describes.
pub const FRONT_ABI: u32 = 12;

/// Value of [`FrontTable::size`] that this declaration describes.
#[allow(clippy::cast_possible_truncation)] // some 100 octets
pub const FRONT_SIZE: u32 = size_of::<FrontTable>() as u32;

/// Type of the function named [`FRONT_TABLE_SYMBOL`].
pub type FrontTableFn = unsafe extern "C" fn() -> *const FrontTable;

/// Looks for what the thread of [`FrontTable::set_wait`] waits for: for `limit_ns` nanoseconds, for
/// ever if that is negative, with the signals of `mask` blocked (a set as the kernel has it).
/// Returns a sum of [`look`].
pub type LookFn = unsafe extern "C" fn(call: *mut c_void, limit_ns: i64, mask: u64) -> c_int;

/// Adds an event of a member of the epoll set to those that the call of [`FrontTable::set_wait`]
/// returns: `events` and `data` as in epoll_wait(2). Returns 0 if there is no room.
pub type PutFn = unsafe extern "C" fn(call: *mut c_void, events: u32, data: u64) -> c_int;

/// What [`LookFn`] returns.
pub mod look {
    use std::ffi::c_int;

    /// There is what the thread waits for, or an error.
    pub const DONE: c_int = 1;
    /// The descriptor by which other processes wake the thread is readable.
    pub const WOKEN: c_int = 2;
}

/// The functions of the provider that the stand-in calls. The table lives as long as the process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FrontTable {
    /// [`FRONT_ABI`].
    pub abi: u32,
    /// Size of this structure in octets.
    pub size: u32,
    /// `/dev/infiniband/rdma_cm` was opened. `set_fd` is an empty epoll set that the application
    /// uses as the file; the provider adds a descriptor of its own, which is readable while events
    /// are pending. Returns a handle (0 or more).
    pub cm_open: unsafe extern "C" fn(set_fd: c_int) -> i64,
    /// A write of `len` octets at `command` to an open rdma_cm file: one ucma command. Returns
    /// `len`, or -EAGAIN for a GET_EVENT that finds no event: the stand-in then waits until
    /// `set_fd` is readable, unless the file is non-blocking.
    pub cm_write: unsafe extern "C" fn(handle: i64, command: *const c_void, len: usize) -> i64,
    /// The last descriptor of an open rdma_cm file was closed.
    pub cm_close: unsafe extern "C" fn(handle: i64),
    /// A completion channel was created. The application reads `read_fd`, 8 octets per completion
    /// event; the provider writes them to `write_fd`, which is non-blocking and belongs to the
    /// provider if the function returns 0.
    pub channel_open: unsafe extern "C" fn(read_fd: c_int, write_fd: c_int) -> i64,
    /// The application closes `read_fd`, its end of a completion channel or of asynchronous events.
    /// Returns what is passed to `channel_release` once it is closed; 0 if there was no such
    /// channel.
    pub channel_close: unsafe extern "C" fn(read_fd: c_int) -> i64,
    /// The application's end of a channel is closed: the provider closes its own. Before that, a
    /// thread that waits on a set with the channel would be told of its end.
    pub channel_release: unsafe extern "C" fn(closed: i64),
    /// libibverbs opens the file of asynchronous events of a context that it has just imported with
    /// `cmd_fd`. Returns the descriptor, which libibverbs owns from then on.
    pub async_open: unsafe extern "C" fn(cmd_fd: c_int) -> i64,
    /// The calling thread is about to sleep until `read_fd`, the blocking end of a completion
    /// channel or of asynchronous events, has an event. `interrupts` is what `interrupts` returned
    /// before the thread last acted on a request to cancel it. Returns one of [`wait`].
    pub channel_wait: unsafe extern "C" fn(read_fd: c_int, interrupts: u32) -> i64,
    /// The thread has read `read_fd` after [`wait::BYSTANDER`].
    pub channel_has_read: unsafe extern "C" fn(read_fd: c_int),
    /// Takes an event of the completion channel `read_fd` that is in the provider's memory: stores
    /// what read(2) would have returned in `event`. Returns one of [`take`].
    pub channel_take: unsafe extern "C" fn(read_fd: c_int, event: *mut u64) -> i64,
    /// An event was read from the socket `read_fd`.
    pub channel_has_received: unsafe extern "C" fn(read_fd: c_int),
    /// The thread is about to look at descriptors, and not by `channel_wait` or `set_wait`.
    pub send_events: unsafe extern "C" fn(),
    /// The completion channel `read_fd` was added to the epoll set `set_fd`, or is now to be
    /// reported so; `events` and `data` as in epoll_ctl(2).
    pub set_join: unsafe extern "C" fn(set_fd: c_int, read_fd: c_int, events: u32, data: u64),
    /// The completion channel was removed from the epoll set.
    pub set_part: unsafe extern "C" fn(set_fd: c_int, read_fd: c_int),
    /// The rdma_cm file with this handle was added to the epoll set.
    pub set_join_cm: unsafe extern "C" fn(set_fd: c_int, handle: i64),
    /// The epoll set was closed.
    pub set_close: unsafe extern "C" fn(set_fd: c_int),
    /// The descriptor that is to be in the epoll set when `set_wait` is called; negative if the set
    /// needs none.
    pub set_waker: unsafe extern "C" fn(set_fd: c_int) -> i64,
    /// The calling thread is about to sleep until the epoll set has an event. Calls `look` with
    /// `call` until there is one, or `put`. `interrupts` as for `channel_wait`. If `is_guarded` is
    /// not 0, handlers of signals run in `look` only, and `look` does not need its mask. Returns
    /// one of [`wait`].
    pub set_wait: unsafe extern "C" fn(
        set_fd: c_int,
        interrupts: u32,
        is_guarded: c_int,
        call: *mut c_void,
        look: LookFn,
        put: PutFn,
    ) -> i64,
    /// As `set_wait`, on a list of descriptors with the epoll set.
    pub set_poll: unsafe extern "C" fn(
        set_fd: c_int,
        interrupts: u32,
        is_guarded: c_int,
        call: *mut c_void,
        look: LookFn,
    ) -> i64,
    /// The descriptor of `set_waker` is readable, which a call other than `look` has found.
    pub set_was_woken: unsafe extern "C" fn(set_fd: c_int),
    /// As `set_waker`, of a list of descriptors with the completion channel `read_fd`.
    pub channel_waker: unsafe extern "C" fn(read_fd: c_int) -> i64,
    /// As `set_wait`, on a list of descriptors with the completion channel `read_fd`.
    pub channel_poll: unsafe extern "C" fn(
        read_fd: c_int,
        interrupts: u32,
        is_guarded: c_int,
        call: *mut c_void,
        look: LookFn,
    ) -> i64,
    /// As `set_waker`, of a list of descriptors with the rdma_cm file with this handle.
    pub cm_waker: unsafe extern "C" fn(handle: i64) -> i64,
    /// As `set_wait`, on a list of descriptors with the rdma_cm file with this handle.
    pub cm_poll: unsafe extern "C" fn(
        handle: i64,
        interrupts: u32,
        is_guarded: c_int,
        call: *mut c_void,
        look: LookFn,
    ) -> i64,
    /// The thread has slept after [`wait::BYSTANDER`] of `set_wait` or `channel_poll`.
    pub has_waited: unsafe extern "C" fn(),
    /// How often `interrupt` was called.
    pub interrupts: unsafe extern "C" fn() -> u32,
    /// A thread is to act on a request to cancel it: ends all waits.
    pub interrupt: unsafe extern "C" fn(),
}

/// Results of [`FrontTable::channel_take`].
pub mod take {
    /// None is in memory; the socket may have one, or the descriptor is no completion channel.
    pub const NOT_IN_MEMORY: i64 = 0;
    /// An event was taken.
    pub const TAKEN: i64 = 1;
    /// None is in memory or in the socket.
    pub const NOTHING: i64 = 2;
}

/// Results of [`FrontTable::channel_wait`], [`FrontTable::set_wait`] and
/// [`FrontTable::channel_poll`]; a negative one means [`wait::NOT_DRIVEN`].
pub mod wait {
    /// There may be an event; another thread may take it first.
    pub const READY: i64 = 0;
    /// The thread should sleep in read(2), or in epoll_wait(2).
    pub const NOT_DRIVEN: i64 = 1;
    /// The thread should sleep there and then call `channel_has_read` or `has_waited`.
    pub const BYSTANDER: i64 = 2;
    /// read(2) fails with EINTR.
    pub const INTERRUPTED: i64 = 3;
    /// Another thread has closed the descriptor: the end of the file.
    pub const CLOSED: i64 = 4;
}
