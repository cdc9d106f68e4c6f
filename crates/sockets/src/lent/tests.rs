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
        end_fork();
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

/// Calls of [`count`].
static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: c_int) {
    COUNT.fetch_add(1, SeqCst);
}

#[test]
fn handler_of_a_signal_runs_neither_in_a_fork_nor_with_a_lock_of_one() {
    let _alone = alone();
    let signal = libc::SIGWINCH;
    // SAFETY: zeroes are a valid sigaction, and the handler is a function.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as libc::sighandler_t;
        let old = std::ptr::null_mut();
        crate::signals::HANDLERS.install(signal, &raw const action, old)
    };
    assert_eq!(installed, 0);
    // SAFETY: the thread lives.
    let raise = || unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    begin();
    raise();
    assert_eq!(COUNT.load(SeqCst), 0);
    Child::of_begun(&[]).end();
    assert_eq!(COUNT.load(SeqCst), 1);
    LENDS.with(|_| {
        raise();
        assert_eq!(COUNT.load(SeqCst), 1);
    });
    assert_eq!(COUNT.load(SeqCst), 2);
}

/// Whether the first socket of a process, which is made while another thread forks, counts as the
/// child's too for good, and the next one does not. In a process of its own.
fn is_first_socket_lent() -> bool {
    for word in [&FORKS, &LATEST, &KEPT] {
        word.store(0, SeqCst);
    }
    IS_USED.store(false, SeqCst);
    LENDS.with(|lends| std::mem::forget(std::mem::take(lends)));
    // The fork finds nothing that it would lend.
    begin_fork();
    let was_used = is_used();
    let first = forks();
    lock(std::iter::empty());
    after_fork();
    end_fork();
    !was_used && is_lent(FD, first) && !is_lent(FD, forks())
}

#[test]
fn first_socket_that_is_made_while_another_thread_forks_is_lent() {
    let _alone = alone();
    // SAFETY: the child uses this module alone, which allocates nothing there.
    let process = unsafe { libc::fork() };
    if process == 0 {
        // SAFETY: no memory is named.
        unsafe { libc::alarm(10) };
        let status = i32::from(!is_first_socket_lent());
        // SAFETY: ends the child.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the child of above.
    let ended = unsafe { libc::waitpid(process, &raw mut status, 0) };
    assert_eq!((ended, status), (process, 0));
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
