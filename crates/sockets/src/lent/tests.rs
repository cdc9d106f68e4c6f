//! Forks of this process, whose children wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::*;

const FD: c_int = 5;
const LIMIT: Duration = Duration::from_secs(10);

/// Forks of different tests are not in progress at once.
static ALONE: Mutex<()> = Mutex::new(());

/// A child, which waits until it is ended.
pub(crate) struct Child(libc::pid_t);

/// No other test forks while this is there.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn begin() {
    begin_fork();
    before_fork(usize::try_from(FD).unwrap() + 1);
}

impl Child {
    /// Forks, and does what the handlers of forks do in the parent. `sockets`: those that the child
    /// may be left.
    pub(crate) fn fork(sockets: &[(c_int, u64)]) -> Self {
        begin();
        Self::of_begun(sockets)
    }

    fn of_begun(sockets: &[(c_int, u64)]) -> Self {
        lock(sockets.iter().copied());
        // SAFETY: the child makes these system calls alone.
        let process = unsafe { libc::fork() };
        if process == 0 {
            loop {
                // SAFETY: no argument.
                unsafe { libc::pause() };
            }
        }
        assert!(process > 0);
        after_fork();
        Self(process)
    }

    /// Ends the child, and returns when its descriptors are closed.
    pub(crate) fn end(self) {
        let mut status = 0;
        // SAFETY: a child that was not waited for.
        let ended = unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, &raw mut status, 0)
        };
        assert_eq!(ended, self.0);
    }
}

/// Whether nothing is lent soon that was made after the first `forks` forks. Children of other
/// tests have copies of all descriptors for a moment.
fn is_soon_free(forks: u64) -> bool {
    let begin = Instant::now();
    while is_lent(FD, forks) {
        if begin.elapsed() > LIMIT {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn threads_that_fork_at_once_have_a_pipe_each() {
    let _alone = alone();
    let forks = forks();
    begin();
    let (has_begun, wait_for_begin) = std::sync::mpsc::channel();
    let (has_forked, wait_for_fork) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        begin();
        has_begun.send(()).unwrap();
        wait_for_fork.recv().unwrap();
        Child::of_begun(&[])
    });
    wait_for_begin.recv().unwrap();
    Child::of_begun(&[]).end();
    has_forked.send(()).unwrap();
    let child = other.join().unwrap();
    assert!(is_lent(FD, forks));
    child.end();
    assert!(is_soon_free(forks));
}

#[test]
fn child_is_not_left_a_socket_that_is_in_use_when_another_child_gets_it() {
    let _alone = alone();
    let socket = (FD, forks());
    let child = Child::fork(&[socket]);
    let is_left = || {
        LENDS.with(|lends| {
            let lend = lends.iter().find(|lend| lend.number > socket.1).unwrap();
            let share = lend.share.as_ref().unwrap();
            assert!(share.is_lent(FD, Side::Child));
            share.is_of(FD, Side::Child)
        })
    };
    // The parent uses it.
    let other = Child::fork(&[]);
    give_back(FD, socket.1);
    assert!(!is_left());
    other.end();
    child.end();
    assert!(is_soon_free(socket.1));
}
