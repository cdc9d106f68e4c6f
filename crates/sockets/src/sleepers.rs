//! Threads that sleep for the bell of a connection, each with a bell of its own beside.
//!
//! What is rung can be taken once. The thread that takes it rings the bells of the others, so that
//! each looks again. A thread that has ended in its sleep, or left it by a handler that does not
//! return, takes nothing: its bell is rung in vain.

use std::cell::RefCell;
use std::ffi::c_int;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::Arc;

use urdma_abi::cancel::Disabled;

use crate::bell;
use crate::own::{Own, Spin};
use crate::signals::Masked;

/// The bell of a thread. Connections where the thread has left a sleep keep it open.
struct Mine(RefCell<Option<Arc<Own>>>);

thread_local! {
    static MINE: Mine = const { Mine(RefCell::new(None)) };
}

impl Drop for Mine {
    fn drop(&mut self) {
        let _masked = Masked::new();
        self.0.take();
    }
}

/// The bell of the calling thread; `None` without a descriptor for it.
fn mine() -> Option<Arc<Own>> {
    let bell = MINE.try_with(|mine| {
        let mut bell = mine.0.borrow_mut();
        if bell.is_none() {
            *bell = Own::bell().map(Arc::new);
        }
        bell.clone()
    });
    bell.ok().flatten()
}

/// This is a forked child, in which the bell is closed.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn in_child() {
    let _ = MINE.try_with(|mine| mem::forget(mine.0.take()));
}

/// How a sleep has begun.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The thread sleeps for this bell too.
    Bell(c_int),
    /// What was rung was taken meanwhile: the thread looks again.
    Taken,
    /// There is no descriptor for a bell.
    Impossible,
}

/// Those of a connection.
#[derive(Debug)]
pub(crate) struct Sleepers {
    bells: Spin<Vec<Arc<Own>>>,
    count: AtomicUsize,
    taken: AtomicU64,
}

impl Sleepers {
    pub(crate) const fn new() -> Self {
        Self {
            bells: Spin::new(Vec::new()),
            count: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
        }
    }

    fn with<R>(&self, use_them: impl FnOnce(&mut Vec<Arc<Own>>) -> R) -> R {
        let _uncancelled = Disabled::new();
        let _masked = Masked::new();
        self.bells.with(|bells| {
            let result = use_them(bells);
            self.count.store(bells.len(), SeqCst);
            result
        })
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// How often what was rung was taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(SeqCst)
    }

    /// The calling thread is about to sleep, and looks once more before; returns its bell.
    pub(crate) fn enter(&self) -> Option<c_int> {
        self.with(|bells| {
            let bell = mine()?;
            let fd = bell.as_raw_fd();
            if bells.iter().all(|known| known.as_raw_fd() != fd) {
                bells.push(bell);
            }
            Some(fd)
        })
    }

    /// The calling thread is about to sleep. It has asked for a wake-up after [`Self::taken`] was
    /// `taken`, and has looked.
    pub(crate) fn begin(&self, taken: u64) -> Begun {
        match self.enter() {
            None => Begun::Impossible,
            Some(fd) if self.taken() != taken => {
                self.end(fd);
                Begun::Taken
            }
            Some(fd) => Begun::Bell(fd),
        }
    }

    /// The calling thread, whose bell is `mine`, does not sleep any more.
    pub(crate) fn end(&self, mine: c_int) {
        self.with(|bells| bells.retain(|bell| bell.as_raw_fd() != mine));
    }

    /// The calling thread, whose bell is `mine`, takes what was rung by `take`.
    pub(crate) fn take(&self, mine: c_int, take: impl FnOnce()) {
        self.with(|bells| {
            take();
            self.taken.fetch_add(1, SeqCst);
            let others = bells.iter().map(|bell| bell.as_raw_fd());
            others.filter(|bell| *bell != mine).for_each(bell::ring);
        });
    }
}

#[cfg(test)]
mod tests;
