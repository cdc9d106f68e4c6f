//! Giving up capabilities in all threads of the process.
//!
//! Capabilities belong to threads, and the C library has no call that changes those of all. Each
//! thread is therefore interrupted by a signal, whose handler gives them up. The signal is SIGSYS,
//! because DPDK's threads block all signals but those of faults (`dpdk::Eal::init`).

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, CapsHashSet};
use nix::errno::Errno;
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use nix::unistd::getpid;

use super::error::SandboxError;

/// Time limit for all threads, and the polling interval.
const LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;
/// Numbers of capabilities are below this.
const NUMBERS: libc::c_ulong = 64;

/// The capabilities that threads keep, one bit each.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// Gives up all capabilities but those of `needed` that the process has; returns their names.
///
/// # Errors
/// Some thread has kept more.
pub(super) fn keep(needed: &CapsHashSet) -> Result<String, SandboxError> {
    let own = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = own.intersection(needed).copied().collect();
    let bits = kept.iter().fold(0, |bits, cap| bits | cap.bitmask());
    KEPT.store(bits, Ordering::SeqCst);
    give_up();
    give_up_in_other_threads(&kept)?;
    let mut names: Vec<String> = kept.iter().map(ToString::to_string).collect();
    names.sort();
    Ok(if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" ")
    })
}

fn give_up_in_other_threads(kept: &CapsHashSet) -> Result<(), SandboxError> {
    let handler = SigAction::new(
        SigHandler::Handler(on_signal),
        SaFlags::SA_RESTART,
        SigSet::all(),
    );
    // SAFETY: the handler makes system calls only and preserves errno.
    let before = unsafe { sigaction(Signal::SIGSYS, &handler) };
    let before = before.map_err(SandboxError::Signal)?;
    let outcome = signal_until_all_have(kept);
    // A signal that is still pending would end the process by default.
    if outcome.is_ok() {
        // SAFETY: the action was in force before.
        let _ = unsafe { sigaction(Signal::SIGSYS, &before) };
    }
    outcome
}

/// Signals each thread once; threads that are created meanwhile are found in the next round.
fn signal_until_all_have(kept: &CapsHashSet) -> Result<(), SandboxError> {
    let start = Instant::now();
    let mut signalled = Vec::new();
    loop {
        let threads = threads().map_err(SandboxError::Threads)?;
        let more: Vec<i32> = threads
            .into_iter()
            .filter(|thread| has_more(*thread, kept))
            .collect();
        if more.is_empty() {
            return Ok(());
        }
        for thread in &more {
            if !signalled.contains(thread) {
                interrupt(*thread);
                signalled.push(*thread);
            }
        }
        if start.elapsed() > LIMIT {
            return Err(SandboxError::Silent(more.len()));
        }
        thread::sleep(LOOK);
    }
}

/// Whether a thread has more capabilities than `kept`. One that has ended has none.
fn has_more(thread: i32, kept: &CapsHashSet) -> bool {
    [CapSet::Permitted, CapSet::Effective, CapSet::Inheritable]
        .into_iter()
        .filter_map(|set| caps::read(Some(thread), set).ok())
        .any(|has| !has.is_subset(kept))
}

/// The ids of the threads of this process.
fn threads() -> io::Result<Vec<i32>> {
    let tasks = fs::read_dir("/proc/self/task")?;
    Ok(tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect())
}

fn interrupt(thread: i32) {
    // SAFETY: the call takes integers. A thread that has ended meanwhile is an error without
    // consequences.
    unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw(), thread, libc::SIGSYS) };
}

extern "C" fn on_signal(_signal: libc::c_int) {
    let errno = Errno::last_raw();
    give_up();
    Errno::set_raw(errno);
}

/// The header and the data of capset(2).
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Reduces the capabilities of the calling thread to [`KEPT`]. Async-signal-safe.
fn give_up() {
    let kept = KEPT.load(Ordering::SeqCst);
    for number in 0..NUMBERS {
        // Needs CAP_SETPCAP; without it the bounding set stays, which limits execve(2) only.
        // SAFETY: the call takes integers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
    }
    let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL;
    // SAFETY: the call takes integers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, clear, 0, 0, 0) };
    let header = Header {
        version: VERSION,
        pid: 0,
    };
    let [high @ .., _, _, _, _] = kept.to_be_bytes();
    let [_, _, _, _, low @ ..] = kept.to_be_bytes();
    let data = [low, high].map(|half| {
        let bits = u32::from_be_bytes(half);
        Data {
            effective: bits,
            permitted: bits,
            inheritable: 0,
        }
    });
    // SAFETY: header and data have the layout of version 3, and the kernel only reads them.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
}
