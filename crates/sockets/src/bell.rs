//! The bell of this process's agent, and what is done with any. System calls are made directly:
//! the stand-in looks twice at descriptors that it keeps open.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::process;

/// How long a thread waits for the agent to wake up, and how long between two looks.
const LIMIT: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(20);

/// Its descriptor, -1 without one.
static BELL: AtomicI32 = AtomicI32::new(-1);
/// How often the agent has begun or ended to wait: odd while it waits.
static TURN: AtomicU64 = AtomicU64::new(0);

/// The agent has a bell, or none with -1.
pub(crate) fn set(fd: c_int) {
    BELL.store(fd, SeqCst);
    TURN.store(0, SeqCst);
}

/// The agent waits, or does not any more.
pub(crate) fn turn() {
    TURN.fetch_add(1, SeqCst);
}

/// Has the agent look at everything, and returns when it does not wait for files that were closed
/// before this: poll(2) keeps them open.
pub(crate) fn notice_closed() {
    let begin = Instant::now();
    let turn = TURN.load(SeqCst);
    notice();
    if BELL.load(SeqCst) >= 0 && !turn.is_multiple_of(2) {
        while TURN.load(SeqCst) == turn && begin.elapsed() < LIMIT {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Has the agent look at everything.
pub(crate) fn notice() {
    let bell = BELL.load(SeqCst);
    if bell >= 0 {
        ring(bell);
    }
}

/// Whether there is an agent that hears it.
pub(crate) fn is_heard() -> bool {
    BELL.load(SeqCst) >= 0
}

/// The bell, if this is a vforked child: it does not close it before it executes a program.
pub(crate) fn spared() -> Option<c_int> {
    let bell = BELL.load(SeqCst);
    (bell >= 0 && !process::is_home()).then_some(bell)
}

/// Rings a bell. It does not wait: a bell that is full has been rung.
pub(crate) fn ring(bell: c_int) {
    let one = 1_u64;
    // SAFETY: eight octets.
    unsafe { libc::syscall(libc::SYS_write, bell, &raw const one, 8_usize) };
}

/// Takes what was rung.
pub(crate) fn silence(bell: c_int) {
    let mut count = 0_u64;
    // SAFETY: an eventfd writes eight octets, and does not wait.
    unsafe { libc::syscall(libc::SYS_read, bell, &raw mut count, 8_usize) };
}
