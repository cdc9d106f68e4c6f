//! Two processes that wake each other: the least that a message costs when both applications sleep.

#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use nix::sys::eventfd::EventFd;

use super::fork::{two_processes, typical_half_round_trip, Mark};
use crate::samples::Sample;

/// The value that ends the other process; it answers any other.
const LAST: u64 = 1 << 32;

fn signal(fd: &EventFd, value: u64) {
    // SAFETY: writes the eight octets of our value.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const value).cast(), size_of::<u64>()) };
}

fn wait(fd: &EventFd) -> u64 {
    let mut value = 0u64;
    // SAFETY: reads eight octets into our value.
    let read = unsafe { libc::read(fd.as_raw_fd(), (&raw mut value).cast(), size_of::<u64>()) };
    // An interrupted read counts as the end, so that no side waits for ever.
    if read < 0 {
        LAST
    } else {
        value
    }
}

/// Microseconds of a round trip, which is two wake-ups.
///
/// # Errors
/// An eventfd could not be made, or the second process failed.
pub fn two_wake_ups() -> Sample {
    let make = || EventFd::new().map_err(|errno| format!("eventfd: {errno}"));
    let (there, back) = (make()?, make()?);
    two_processes(
        || {
            while wait(&there) < LAST {
                signal(&back, 1);
            }
            signal(&back, 1);
        },
        || {
            2.0 * typical_half_round_trip(|mark| {
                signal(&there, if mark == Mark::Last { LAST } else { 1 });
                wait(&back);
            })
        },
    )
}
