//! The page by which a process is known to its peers, and sleeping (unsafe).
//!
//! | offset | octets | content |
//! |---|---|---|
//! | 0 | 12 | magic `urdmaPAG`, version (4) |
//! | 64 | 4 | park word: state in the low 2 bits, number of the sleep in the others |
//!
//! A sleeper stores PARKED in its park word, which its peers only read. It does not wait on that
//! word, but on one of each peer, its *bell*, in the peer's region: the peer changes its bell and
//! wakes those that wait on it. A wake-up is therefore not lost between the sleeper's last look and
//! its sleep, since the kernel compares the bells again. And a third process cannot intercept it:
//! whoever can read a word can take away those that wait on it (FUTEX_REQUEUE), and only the two
//! ends of a channel can read its bell.
//!
//! Each PARKED has a number of its own, so that a peer rings once for each sleep and not again
//! until the sleeper has run.

use std::time::Duration;

use crate::futex::{self, Ended, Waiter, NAP, WAITERS_MAX};
use crate::signal::Signal;
use crate::sync::{fence, AtomicU32, AtomicU64, Ordering};

/// The process polls, or will look before it sleeps.
const RUNNING: u32 = 1;
/// It sleeps or is about to.
const PARKED: u32 = 2;
/// The bits of the park word that hold the state.
const STATE: u32 = 3;
/// The first number of a sleep.
const ONE_SLEEP: u32 = STATE + 1;

#[derive(Debug)]
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Park(AtomicU32);

#[derive(Debug)]
#[repr(C)]
struct Words {
    head: Head,
    park: Park,
}

#[cfg(not(loom))]
mod mapped {
    //! Pages in memfds.

    use std::ops::Deref;
    use std::os::fd::OwnedFd;

    use super::{OwnPage, PeerPage, Words, RUNNING};
    use crate::map::{magic, Mapping, RegionError, PAGE};
    use crate::sync::{AtomicU32, Ordering};

    const MAGIC: &[u8; 8] = b"urdmaPAG";
    const VERSION: u32 = 1;
    /// The park word of a process that does not use its page any more.
    const VACANT: u32 = 0;

    const _: () = assert!(size_of::<Words>() <= PAGE);

    #[derive(Debug)]
    pub(super) struct Memory(Mapping);

    impl Deref for Memory {
        type Target = Words;

        #[inline]
        fn deref(&self) -> &Words {
            // SAFETY: a page is mapped, and the words are atomics, valid in any bit pattern.
            unsafe { self.0.at(0).cast().as_ref() }
        }
    }

    impl OwnPage {
        /// Creates the page of this process. The descriptor is for its peers; the page does not
        /// need it.
        ///
        /// # Errors
        /// What a system call says.
        pub fn create() -> Result<(Self, OwnedFd), RegionError> {
            let header = magic(MAGIC, VERSION);
            let (mapping, fd) = Mapping::create(c"urdma-page", PAGE, &header, PAGE)?;
            let memory = Memory(mapping);
            memory.park.0.store(RUNNING, Ordering::Relaxed);
            let bell = AtomicU32::new(0);
            Ok((Self { memory, bell }, fd))
        }
    }

    impl Drop for OwnPage {
        fn drop(&mut self) {
            self.memory.park.0.store(VACANT, Ordering::Relaxed);
        }
    }

    impl PeerPage {
        /// Maps another process' page read-only, if it is one. Closes the descriptor.
        ///
        /// # Errors
        /// Whatever makes it unusable: its kind, its seals, its header; or what a system call says.
        pub fn open(fd: OwnedFd) -> Result<Self, RegionError> {
            let mapping = Mapping::open_table(fd, &magic(MAGIC, VERSION), PAGE)?;
            Ok(Self {
                memory: Memory(mapping),
            })
        }
    }
}

#[cfg(not(loom))]
use mapped::Memory;
#[cfg(loom)]
type Memory = loom::sync::Arc<Words>;

/// The page of this process.
#[derive(Debug)]
pub struct OwnPage {
    memory: Memory,
    /// The bell for this process' own threads.
    bell: AtomicU32,
}

/// The page of another process.
#[derive(Debug)]
pub struct PeerPage {
    memory: Memory,
}

/// See [`Bells::are_many`].
const NAP_BELLS: usize = 8;

/// The bells that a sleeper waits on. To be collected anew for each sleep, beginning with
/// [`OwnPage::listen`]; what comes afterwards ends the sleep.
#[derive(Debug)]
pub struct Bells {
    /// The first is for the sleeper's own.
    waiters: [Waiter; WAITERS_MAX],
    count: usize,
    is_complete: bool,
    has_signal: bool,
}

impl Default for Bells {
    fn default() -> Self {
        Self {
            waiters: [Waiter::default(); WAITERS_MAX],
            count: 1,
            is_complete: true,
            has_signal: false,
        }
    }
}

impl Bells {
    /// Adds a bell with its present value. The kernel takes a limited number; a sleeper with more
    /// sleeps only shortly.
    #[inline]
    pub(crate) fn add(&mut self, bell: &AtomicU32) {
        match self.waiters.get_mut(self.count) {
            Some(waiter) => {
                *waiter = Waiter::new(bell, bell.load(Ordering::Acquire));
                self.count += 1;
            }
            None => self.is_complete = false,
        }
    }

    /// Whether there are so many that the kernel takes longer to look them up, each in a page that
    /// processes share, than a nap lasts; and no signal, for which nobody else wakes the sleeper.
    pub fn are_many(&self) -> bool {
        self.count > NAP_BELLS && !self.has_signal
    }

    /// Adds a signal of this process that was raised `count` times; false if there is no room.
    #[must_use]
    pub fn add_signal(&mut self, signal: &Signal, count: u32) -> bool {
        let Some(waiter) = self.waiters.get_mut(self.count) else {
            return false;
        };
        *waiter = Waiter::new(signal.word(), count);
        self.count += 1;
        self.has_signal = true;
        true
    }

    /// Sleeps until a bell changes.
    fn wait(&self, timeout: Option<Duration>) -> Parked {
        let limit = Some(NAP).filter(|_| !self.is_complete);
        let timeout = timeout.into_iter().chain(limit).min();
        Self::wait_on(&self.waiters[..self.count], timeout)
    }

    fn wait_on(waiters: &[Waiter], timeout: Option<Duration>) -> Parked {
        match futex::wait(waiters, timeout) {
            Ended::Woken => Parked::Woken,
            Ended::Timeout => Parked::Timeout,
            Ended::Interrupted => Parked::Interrupted,
        }
    }
}

/// How a call to park ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// A bell rang, or it woke for no reason.
    Woken,
    /// The time was up.
    Timeout,
    /// There was something to do, so it did not sleep.
    HadWork,
    /// A handler of a signal ran that does not restart system calls.
    Interrupted,
}

impl OwnPage {
    /// Begins a list of bells with the one for this process' own threads.
    #[inline]
    pub fn listen(&self, bells: &mut Bells) {
        bells.waiters[0] = Waiter::new(&self.bell, self.bell.load(Ordering::Acquire));
        bells.count = 1;
        bells.is_complete = true;
        bells.has_signal = false;
    }

    /// Sleeps until a bell rings, unless `has_work`, which looks at every channel of `bells` once
    /// more. One thread at a time.
    pub fn park(
        &self,
        bells: &Bells,
        timeout: Option<Duration>,
        has_work: impl FnOnce() -> bool,
    ) -> Parked {
        // C6-1: the bells were read before, so the kernel sees whether they rang since.
        self.hand_over();
        let parked = if has_work() {
            Parked::HadWork
        } else {
            bells.wait(timeout)
        };
        self.take_over();
        parked
    }

    /// Sleeps at most `limit` without asking peers to ring: for a thread while another one of its
    /// process polls. A bell ends it all the same, for example after [`OwnPage::hand_over`].
    /// One thread at a time.
    pub fn nap(&self, bells: &Bells, limit: Duration) -> Parked {
        bells.wait(Some(limit))
    }

    /// As [`OwnPage::nap`], but only the bell for this process' own threads ends it, so that
    /// whoever calls [`OwnPage::hand_over`] meanwhile has to call [`OwnPage::unpark`].
    pub fn nap_deaf(&self, bells: &Bells, limit: Duration) -> Parked {
        Bells::wait_on(&bells.waiters[..1], Some(limit))
    }

    /// Asks peers to ring from now on, on behalf of the thread that sleeps or looks once more
    /// before it sleeps. The caller then looks at every channel: for what came before, no bell
    /// rings.
    #[inline]
    pub fn hand_over(&self) {
        self.change(|word| Some((word.wrapping_add(ONE_SLEEP) & !STATE) | PARKED));
        fence(Ordering::SeqCst);
    }

    /// Says that this process polls, without waking its thread that sleeps, which sleeps on until
    /// its time is over or until [`OwnPage::unpark`]. Whether peers were asked to ring before.
    #[inline]
    pub fn take_over(&self) -> bool {
        self.change(|word| (word & STATE == PARKED).then_some((word & !STATE) | RUNNING))
    }

    /// Whether peers are asked to ring.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.word().load(Ordering::Relaxed) & STATE == PARKED
    }

    /// Wakes the thread of this process that sleeps, or has it look once more.
    pub fn unpark(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        futex::wake(&self.bell);
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        &self.memory.park.0
    }

    /// Changes the park word, which several threads of this process do; whether it was changed.
    #[inline]
    fn change(&self, to: impl FnMut(u32) -> Option<u32>) -> bool {
        let changed = self
            .word()
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, to);
        changed.is_ok()
    }
}

impl PeerPage {
    /// The number of the sleep of a process that sleeps and may have missed what this one stored
    /// before.
    #[inline]
    pub(crate) fn sleep_to_end(&self) -> Option<u32> {
        // C6-2
        fence(Ordering::SeqCst);
        let word = self.memory.park.0.load(Ordering::Relaxed);
        (word & STATE == PARKED).then_some(word & !STATE)
    }
}

#[cfg(loom)]
impl OwnPage {
    /// A page in the model's memory.
    pub fn model() -> (Self, PeerPage) {
        let memory = Memory::new(Words {
            head: Head {
                magic: AtomicU64::new(0),
                version: AtomicU32::new(0),
            },
            park: Park(AtomicU32::new(RUNNING)),
        });
        let page = Self {
            memory: memory.clone(),
            bell: AtomicU32::new(0),
        };
        (page, PeerPage { memory })
    }
}
