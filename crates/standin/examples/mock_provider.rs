//! A provider that does nothing but answer the stand-in, for its tests: each call is written down in
//! the file that `MOCK_LOG` names.
#![allow(clippy::unwrap_used)]

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::Mutex;

use urdma_abi::front::{FrontTable, FRONT_ABI, FRONT_SIZE};

static CHANNELS: Mutex<Vec<(c_int, c_int)>> = Mutex::new(Vec::new());

static TABLE: FrontTable = FrontTable {
    abi: FRONT_ABI,
    size: FRONT_SIZE,
    cm_open,
    cm_write,
    cm_close,
    channel_open,
    channel_close,
    async_open,
};

/// Gives the table.
#[no_mangle]
pub extern "C" fn urdma_front_table() -> *const FrontTable {
    log("table");
    &raw const TABLE
}

/// Would register with libibverbs.
#[no_mangle]
pub extern "C" fn urdma_register() {
    log("register");
}

fn log(line: &str) {
    let path = std::env::var_os("MOCK_LOG").unwrap();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.append(true).create(true).open(path).unwrap();
    // One write: a line of another thread comes before it or after it, never in it.
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The eventfd of the rdma_cm file that was opened last.
static EVENT_FD: AtomicI32 = AtomicI32::new(-1);
/// GET_EVENT.
const GET_EVENT: u8 = 12;
/// A command that brings an event.
const ADD_EVENT: u8 = 50;

extern "C" fn cm_open(event_fd: c_int) -> i64 {
    log("cm_open");
    EVENT_FD.store(event_fd, Ordering::Relaxed);
    42
}

/// Adds an event. The raw call goes round the stand-in.
fn add_event() {
    let one = 1_u64.to_ne_bytes();
    let fd = EVENT_FD.load(Ordering::Relaxed);
    // SAFETY: 8 readable octets.
    let added = unsafe { libc::syscall(libc::SYS_write, fd, one.as_ptr(), 8) };
    assert_eq!(added, 8);
}

/// Takes an event; false when there is none. The raw call goes round the stand-in.
fn take_event() -> bool {
    let mut count = [0_u8; 8];
    let fd = EVENT_FD.load(Ordering::Relaxed);
    let mut waiting = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    let has_event = unsafe { libc::poll(&raw mut waiting, 1, 0) } == 1;
    // SAFETY: 8 writable octets.
    has_event && unsafe { libc::syscall(libc::SYS_read, fd, count.as_mut_ptr(), 8) } == 8
}

unsafe extern "C" fn cm_write(handle: i64, command: *const c_void, len: usize) -> i64 {
    // SAFETY: the stand-in passes the application's buffer on.
    let octets = unsafe { std::slice::from_raw_parts(command.cast::<u8>(), len) };
    if octets[0] == GET_EVENT && !take_event() {
        return -i64::from(libc::EAGAIN);
    }
    log(&format!("cm_write {handle} {len} {}", octets[0]));
    // After its line: the thread that waits for the event writes one of its own.
    if octets[0] == ADD_EVENT {
        add_event();
    }
    if octets[0] == 99 {
        return -i64::from(libc::EXDEV);
    }
    i64::try_from(len).unwrap()
}

extern "C" fn cm_close(handle: i64) {
    log(&format!("cm_close {handle}"));
}

extern "C" fn channel_open(read_fd: c_int, write_fd: c_int) -> i64 {
    CHANNELS.lock().unwrap().push((read_fd, write_fd));
    let event = 7_u64.to_ne_bytes();
    // SAFETY: 8 readable octets.
    unsafe { libc::write(write_fd, event.as_ptr().cast(), 8) };
    log("channel_open");
    0
}

extern "C" fn async_open(cmd_fd: c_int) -> i64 {
    log(&format!("async_open {cmd_fd}"));
    77
}

extern "C" fn channel_close(read_fd: c_int) {
    let mut channels = CHANNELS.lock().unwrap();
    let at = channels.iter().position(|c| c.0 == read_fd).unwrap();
    let (_, write_fd) = channels.remove(at);
    // SAFETY: ours.
    unsafe { libc::close(write_fd) };
    log("channel_close");
}
