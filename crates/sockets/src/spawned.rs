//! A vforked child, which has the memory of this process and copies of its descriptors: what it
//! hands on to the program that it executes is made the kernel's by a thread of this process.

use std::ffi::c_int;
use std::time::Duration;

use urdma_abi::cancel::Disabled;

use crate::own::Spin;
use crate::signals::Masked;
use crate::table::{self, State};
use crate::{bell, real, sets};

/// How often a child looks whether the thread is done, and the time between.
const LOOKS: u32 = 5000;
const BETWEEN: Duration = Duration::from_millis(1);

/// The descriptors that children hand on.
static HANDED_ON: Spin<Vec<c_int>> = Spin::new(Vec::new());

/// The calling child hands a descriptor on. Returns when it is the kernel's.
#[cold]
pub(crate) fn hand_on(fd: c_int) {
    if is_kernels(fd) {
        return;
    }
    let before = real::errno();
    let _uncancelled = Disabled::new();
    let _masked = Masked::sleeping();
    HANDED_ON.with(|fds| fds.push(fd));
    bell::notice();
    for _ in 0..LOOKS {
        if is_kernels(fd) {
            break;
        }
        std::thread::sleep(BETWEEN);
    }
    real::set_errno(before);
}

/// Whether a descriptor is the kernel's, which one becomes that was never offered.
fn is_kernels(fd: c_int) -> bool {
    let is_set = sets::known(fd).is_some_and(|set| !set.is_plain());
    let is_socket = table::hit(fd).is_some_and(|cell| {
        let seen = cell.seen();
        let is_alone = || cell.advance(seen.generation(), State::Alone, State::Kernel);
        seen.state() != State::Ending && is_alone().is_none()
    });
    !is_set && !is_socket
}

/// Whether children hand anything on.
pub(crate) fn has_any() -> bool {
    HANDED_ON.with(|fds| !fds.is_empty())
}

/// What children hand on.
pub(crate) fn handed_on() -> Vec<c_int> {
    HANDED_ON.with(std::mem::take)
}
