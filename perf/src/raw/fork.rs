//! Two processes on two cores that share memory.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Limit of a run, after which the second process is killed.
const LIMIT: Duration = Duration::from_secs(20);
/// Round trips timed together.
const CHUNK: usize = 100;
const WARM_UP_CHUNKS: usize = 100;
const MEASURED_CHUNKS: usize = 2_000;
/// On a busy machine fewer chunks are sufficient.
const TIME_LIMIT: Duration = Duration::from_secs(4);
/// Empty polls before a polling process yields.
const POLLS_BEFORE_YIELD: u32 = 1 << 14;

/// Zeroed memory that a process shares with those it forks.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    octets: usize,
}

impl SharedMemory {
    /// Makes a new mapping.
    ///
    /// # Errors
    /// The mapping could not be made.
    pub fn new(octets: usize) -> Result<Self, String> {
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                octets,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(format!("mmap: {}", std::io::Error::last_os_error()));
        }
        let start = NonNull::new(start.cast()).ok_or("mmap returned address 0")?;
        Ok(Self { start, octets })
    }

    /// Its first octet.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length.
    pub fn octets(&self) -> usize {
        self.octets
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; borrowers of it are gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.octets) };
    }
}

/// Runs `second` in a forked process on core 1 while `first` runs in this one on core 0, and
/// returns what `first` returned.
///
/// `second` must neither allocate nor print, since other threads of this process may hold locks,
/// and must end when `first` has ended.
///
/// # Errors
/// There are fewer than two cores, or the second process failed.
pub fn two_processes<T>(second: impl FnOnce(), first: impl FnOnce() -> T) -> Result<T, String> {
    let before = affinity();
    pin(0)?;
    // SAFETY: the child only runs `second`, as the caller promised, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(pin(1).is_err());
        if status == 0 {
            second();
        }
        // SAFETY: ends only the child.
        unsafe { libc::_exit(status) };
    }
    if child < 0 {
        restore(&before);
        return Err(format!("fork: {}", std::io::Error::last_os_error()));
    }
    let result = first();
    restore(&before);
    reap(child).map(|()| result)
}

fn reap(child: libc::pid_t) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: waits for our own child; the status is ours.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if ended == child {
            return if status == 0 {
                Ok(())
            } else {
                Err(format!("the second process ended with status {status:#x}"))
            };
        }
        if start.elapsed() > LIMIT {
            // SAFETY: kills our own child, which has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn affinity() -> libc::cpu_set_t {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills our set, whose size is given.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    set
}

fn restore(set: &libc::cpu_set_t) {
    // SAFETY: reads the set, whose size is given.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
}

/// Keeps the calling thread, and those that it starts, on a core.
///
/// # Errors
/// There is no such core.
pub fn pin(core: usize) -> Result<(), String> {
    // SAFETY: all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours; the access to it is checked.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: reads the set, whose size is given.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) } {
        0 => Ok(()),
        _ => Err(format!("cannot use core {core}: two cores are needed")),
    }
}

/// Whether a message is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// More messages follow.
    More,
    /// It is the last one: the other process answers it and ends.
    Last,
}

impl Mark {
    /// The octet in a message.
    pub const fn octet(self) -> u8 {
        match self {
            Self::More => 0,
            Self::Last => 0xff,
        }
    }
}

/// Half of the typical round trip in microseconds: the median over chunks, so that an occasional
/// preemption does not count.
///
/// `round_trip` gets the mark of its message.
pub fn typical_half_round_trip(mut round_trip: impl FnMut(Mark)) -> f64 {
    let mut chunks: Vec<f64> = Vec::with_capacity(MEASURED_CHUNKS);
    let begin = Instant::now();
    for chunk in 0..WARM_UP_CHUNKS + MEASURED_CHUNKS {
        let start = Instant::now();
        for _ in 0..CHUNK {
            round_trip(Mark::More);
        }
        let took = start.elapsed().as_secs_f64() * 1e6 / 2.0 / CHUNK as f64;
        if chunk >= WARM_UP_CHUNKS || begin.elapsed() > TIME_LIMIT {
            chunks.push(took);
        }
        if begin.elapsed() > TIME_LIMIT {
            break;
        }
    }
    round_trip(Mark::Last);
    chunks.sort_by(f64::total_cmp);
    chunks[chunks.len() / 2]
}

/// Polls with `look` until it finds something, and yields from time to time.
#[inline]
pub fn poll<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let mut polls = 0u32;
    loop {
        if let Some(found) = look() {
            return found;
        }
        polls += 1;
        if polls.is_multiple_of(POLLS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}
