//! A provider for the tests of the stand-in: it only answers, and appends each call to the log file
//! that `MOCK_LOG` names.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::Mutex;

use urdma_abi::front::{wait, FrontTable, LookFn, PutFn, FRONT_ABI, FRONT_SIZE};

static CHANNELS: Mutex<Vec<(c_int, c_int)>> = Mutex::new(Vec::new());

static TABLE: FrontTable = FrontTable {
    abi: FRONT_ABI,
    size: FRONT_SIZE,
    cm_open,
    cm_write,
    cm_close,
    channel_open,
    channel_close,
    channel_release,
    async_open,
    channel_wait,
    channel_has_read,
    channel_take,
    channel_has_received,
    send_events,
    set_join,
    set_part,
    set_join_cm,
    set_close,
    set_waker,
    set_wait,
    set_poll,
    set_was_woken,
    channel_waker,
    channel_poll,
    cm_waker,
    cm_poll,
    has_waited,
    interrupts,
    interrupt,
};

/// That of another version of urdma.
static OTHER_TABLE: FrontTable = FrontTable {
    abi: FRONT_ABI + 1,
    ..TABLE
};

/// Returns the table.
#[no_mangle]
pub extern "C" fn urdma_front_table() -> *const FrontTable {
    log("table");
    match std::env::var_os("MOCK_OF_ANOTHER_VERSION") {
        None => &raw const TABLE,
        Some(_) => &raw const OTHER_TABLE,
    }
}

/// A real provider registers with libibverbs here.
#[no_mangle]
pub extern "C" fn urdma_register() {
    log("register");
}

fn log(line: &str) {
    let path = std::env::var_os("MOCK_LOG").unwrap();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.append(true).create(true).open(path).unwrap();
    // One write call, so that lines of several threads do not mix.
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The rdma_cm file that was opened last, an epoll set.
static CM_FD: AtomicI32 = AtomicI32::new(-1);
/// The eventfd in it.
static EVENT_FD: AtomicI32 = AtomicI32::new(-1);
/// GET_EVENT.
const GET_EVENT: u8 = 12;
/// A command of the tests that adds an event.
const ADD_EVENT: u8 = 50;
/// A command of the tests after which the next GET_EVENT closes the file while it is carried out,
/// and fails with the errno that is the command's second octet.
const CLOSE_IN_GET_EVENT: u8 = 51;
static CLOSES_WITH: AtomicI32 = AtomicI32::new(0);
/// A command of the tests after which the close of the file lasts until another thread, which has
/// begun a GET_EVENT meanwhile, sleeps or has returned.
const GET_EVENT_IN_CLOSE: u8 = 52;
static GETS_EVENT: AtomicBool = AtomicBool::new(false);

extern "C" fn cm_open(set_fd: c_int) -> i64 {
    log("cm_open");
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    // SAFETY: eventfd has no preconditions, and `event` is one valid event.
    let (event_fd, failed) = unsafe {
        let event_fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        let add = libc::EPOLL_CTL_ADD;
        (
            event_fd,
            libc::epoll_ctl(set_fd, add, event_fd, &raw mut event),
        )
    };
    assert_eq!(failed, 0);
    CM_FD.store(set_fd, Ordering::Relaxed);
    EVENT_FD.store(event_fd, Ordering::Relaxed);
    42
}

/// Adds an event. The raw system call bypasses the stand-in.
fn add_event() {
    let one = 1_u64.to_ne_bytes();
    let fd = EVENT_FD.load(Ordering::Relaxed);
    // SAFETY: `one` is 8 readable octets.
    let added = unsafe { libc::syscall(libc::SYS_write, fd, one.as_ptr(), 8) };
    assert_eq!(added, 8);
}

/// Takes an event; false when there is none. The raw system call bypasses the stand-in.
fn take_event() -> bool {
    let mut count = [0_u8; 8];
    let fd = EVENT_FD.load(Ordering::Relaxed);
    // SAFETY: `count` is 8 writable octets.
    unsafe { libc::syscall(libc::SYS_read, fd, count.as_mut_ptr(), 8) == 8 }
}

unsafe extern "C" fn cm_write(handle: i64, command: *const c_void, len: usize) -> i64 {
    // SAFETY: the stand-in passes on the application's buffer of `len` octets.
    let octets = unsafe { std::slice::from_raw_parts(command.cast::<u8>(), len) };
    if octets[0] == GET_EVENT_IN_CLOSE {
        GETS_EVENT.store(true, Ordering::Relaxed);
    }
    if octets[0] == CLOSE_IN_GET_EVENT {
        CLOSES_WITH.store(octets[1].into(), Ordering::Relaxed);
    }
    let closes_with = CLOSES_WITH.load(Ordering::Relaxed);
    if octets[0] == GET_EVENT && closes_with != 0 {
        // SAFETY: the file that the test has opened; the stand-in takes this for the test's call.
        assert_eq!(unsafe { libc::close(CM_FD.load(Ordering::Relaxed)) }, 0);
        return -i64::from(closes_with);
    }
    if octets[0] == GET_EVENT && !take_event() {
        return -i64::from(libc::EAGAIN);
    }
    log(&format!("cm_write {handle} {len} {}", octets[0]));
    // After the log line, since the thread that waits for the event logs a line too.
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
    if GETS_EVENT.swap(false, Ordering::Relaxed) {
        let (send, number) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            // SAFETY: gettid touches no memory.
            send.send(unsafe { libc::gettid() }).unwrap();
            let mut command = [0_u8; 24];
            (command[0], command[4]) = (GET_EVENT, 16);
            let fd = CM_FD.load(Ordering::Relaxed);
            // SAFETY: 24 readable octets; the stand-in takes this for the test's call.
            let written = unsafe { libc::write(fd, command.as_ptr().cast(), command.len()) };
            log(&format!("written {written}"));
        });
        let call = format!("/proc/self/task/{}/syscall", number.recv().unwrap());
        let polls = [libc::SYS_poll, libc::SYS_ppoll].map(|number| format!("{number} "));
        let sleeps = || {
            let call = std::fs::read_to_string(&call).unwrap_or_default();
            polls.iter().any(|poll| call.starts_with(poll))
        };
        while !sleeps() && !waiter.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
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

extern "C" fn channel_close(read_fd: c_int) -> i64 {
    let mut channels = CHANNELS.lock().unwrap();
    let at = channels.iter().position(|c| c.0 == read_fd).unwrap();
    let (_, write_fd) = channels.remove(at);
    log("channel_close");
    i64::from(write_fd)
}

extern "C" fn channel_release(write_fd: i64) {
    let write_fd = c_int::try_from(write_fd).unwrap();
    let mut end = libc::pollfd {
        fd: write_fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: `end` is one valid pollfd.
    let has_ended = unsafe { libc::poll(&raw mut end, 1, 0) } == 1;
    // SAFETY: `channel_open` took over the descriptor.
    unsafe { libc::close(write_fd) };
    let is_open = if has_ended { "closed" } else { "open" };
    log(&format!("channel_release {is_open}"));
}

unsafe extern "C" fn channel_wait(_read_fd: c_int, _interrupts: u32) -> i64 {
    wait::NOT_DRIVEN
}

unsafe extern "C" fn channel_has_read(_read_fd: c_int) {}

unsafe extern "C" fn channel_take(_read_fd: c_int, _event: *mut u64) -> i64 {
    0
}

unsafe extern "C" fn channel_has_received(_read_fd: c_int) {}

unsafe extern "C" fn send_events() {}

unsafe extern "C" fn set_join(_set_fd: c_int, _read_fd: c_int, _events: u32, _data: u64) {
    log("set_join");
}

unsafe extern "C" fn set_part(_set_fd: c_int, _read_fd: c_int) {
    log("set_part");
}

unsafe extern "C" fn set_join_cm(_set_fd: c_int, _handle: i64) {
    log("set_join_cm");
}

unsafe extern "C" fn set_close(_set_fd: c_int) {
    log("set_close");
}

unsafe extern "C" fn set_waker(_set_fd: c_int) -> i64 {
    -i64::from(libc::EOPNOTSUPP)
}

unsafe extern "C" fn set_wait(
    _set_fd: c_int,
    _interrupts: u32,
    _is_guarded: c_int,
    call: *mut c_void,
    look: LookFn,
    _put: PutFn,
) -> i64 {
    // SAFETY: the stand-in passes a function with its argument.
    match unsafe { look(call, 0, 0) } {
        0 => wait::BYSTANDER,
        _ => wait::READY,
    }
}

unsafe extern "C" fn set_poll(
    _set_fd: c_int,
    _interrupts: u32,
    _is_guarded: c_int,
    _call: *mut c_void,
    _look: LookFn,
) -> i64 {
    wait::NOT_DRIVEN
}

unsafe extern "C" fn set_was_woken(_set_fd: c_int) {
    log("set_was_woken");
}

unsafe extern "C" fn channel_waker(_read_fd: c_int) -> i64 {
    -i64::from(libc::EOPNOTSUPP)
}

unsafe extern "C" fn channel_poll(
    _read_fd: c_int,
    _interrupts: u32,
    _is_guarded: c_int,
    _call: *mut c_void,
    _look: LookFn,
) -> i64 {
    wait::NOT_DRIVEN
}

unsafe extern "C" fn cm_waker(_handle: i64) -> i64 {
    -i64::from(libc::EOPNOTSUPP)
}

unsafe extern "C" fn cm_poll(
    _handle: i64,
    _interrupts: u32,
    _is_guarded: c_int,
    _call: *mut c_void,
    _look: LookFn,
) -> i64 {
    wait::NOT_DRIVEN
}

unsafe extern "C" fn has_waited() {
    log("has_waited");
}

unsafe extern "C" fn interrupts() -> u32 {
    0
}

unsafe extern "C" fn interrupt() {}
