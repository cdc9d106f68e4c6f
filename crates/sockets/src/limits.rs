//! Limits of the time that calls wait: SO_RCVTIMEO and SO_SNDTIMEO.
//!
//! The kernel keeps them. A call asks for its own when it is about to sleep, in a process in which
//! a socket has ever had one.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The same options where time has 64 bits.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;

/// Whether a socket of this process has had a limit.
static ARE_USED: AtomicBool = AtomicBool::new(false);

/// Whether an option is a limit of time.
fn is_limit(level: c_int, name: c_int) -> bool {
    let names = [
        libc::SO_RCVTIMEO,
        libc::SO_SNDTIMEO,
        SO_RCVTIMEO_NEW,
        SO_SNDTIMEO_NEW,
    ];
    level == libc::SOL_SOCKET && names.contains(&name)
}

/// A socket is about to get an option.
pub(crate) fn note(level: c_int, name: c_int) {
    if is_limit(level, name) {
        note_any();
    }
}

/// A socket may get a limit.
pub(crate) fn note_any() {
    ARE_USED.store(true, SeqCst);
}

/// Notes the limits that a socket has from its listener.
pub(crate) fn note_of(socket: c_int) {
    let names = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];
    if names.iter().any(|name| of(socket, *name).is_some()) {
        note_any();
    }
}

/// Whether an option that a socket has got is a negative time: a call does not wait then, and the
/// kernel names that limit to no one.
///
/// # Safety
/// The kernel has read the value.
pub(crate) unsafe fn is_negative(level: c_int, name: c_int, value: *const c_void) -> bool {
    // SAFETY: the kernel has read two numbers there, of which this is the first.
    is_limit(level, name) && unsafe { value.cast::<i64>().read_unaligned() } < 0
}

/// A limit of a socket.
fn of(socket: c_int, name: c_int) -> Option<Duration> {
    let mut value = [0_i64; 2];
    let mut len: libc::socklen_t = 16;
    let at = value.as_mut_ptr().cast();
    // SAFETY: the option has at most `len` octets.
    let rc = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, at, &raw mut len) };
    let [seconds, micros] = value.map(|part| u64::try_from(part).unwrap_or(0));
    let limit = Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))?;
    (rc == 0 && !limit.is_zero()).then_some(limit)
}

/// How long the waits of a call may take, all together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    name: c_int,
    /// When they end, if they do; known when the first one begins.
    end: Option<Option<Instant>>,
}

impl Limit {
    pub(crate) fn of_receive() -> Self {
        Self {
            name: libc::SO_RCVTIMEO,
            end: None,
        }
    }

    pub(crate) fn of_send() -> Self {
        Self {
            name: libc::SO_SNDTIMEO,
            end: None,
        }
    }

    /// The call is about to wait: the time that is left, or `None` without a limit.
    pub(crate) fn left(&mut self, socket: c_int) -> Option<Duration> {
        if !ARE_USED.load(SeqCst) {
            return None;
        }
        let name = self.name;
        let end = || of(socket, name).and_then(|limit| Instant::now().checked_add(limit));
        let end = *self.end.get_or_insert_with(end);
        end.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// What system calls take.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
