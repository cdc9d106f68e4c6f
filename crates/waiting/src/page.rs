//! The page by which a process is known to its peers, and sleeping.
//!
//! | offset | octets | content |
//! |---|---|---|
//! | 0 | 12 | magic `urdmaPAG`, version (4) |
//! | 16 | 8 | what wakes a sleep in a call on descriptors |
//! | 64 | 4 | park word: state in the low 2 bits, number of the sleep in the others |
//!
//! A sleeper stores PARKED in its park word, which its peers only read. It does not wait on that
//! word, but on one of each peer, its *bell*, in the peer's region: the peer changes its bell and
//! wakes those that wait on it. A wake-up is therefore not lost between the sleeper's last look and
//! its sleep, since the kernel compares the bells again. And a third process cannot intercept it: a
//! process that can read a word can take away those that wait on it (FUTEX_REQUEUE), and only the
//! two ends of a channel can read its bell.
//!
//! A thread that sleeps in a call on descriptors cannot wait on bells. It stores SELECTING instead,
//! and its peers wake it by the socket that they have from it ([`WakeSocket`]).
//!
//! Each PARKED and SELECTING has a number of its own, so that a peer rings once for each sleep and
//! not again until the sleeper has run.

#![allow(unsafe_code)]

use std::time::Duration;

use crate::futex::{self, Ended, Waiter, NAP, WAITERS_MAX};
use crate::signal::Signal;
use crate::sync::{fence, AtomicU32, AtomicU64, Ordering};
use crate::wake_socket::{WakeSocket, Waker};

/// The process polls, or will look before it sleeps.
const RUNNING: u32 = 1;
/// It sleeps or is about to.
const PARKED: u32 = 2;
/// It sleeps in a call on descriptors or is about to.
const SELECTING: u32 = 3;
/// The bit that the last two have in common.
const ASLEEP: u32 = PARKED & SELECTING;
/// The bits of the park word that hold the state.
const STATE: u32 = 3;
/// The first number of a sleep.
const ONE_SLEEP: u32 = STATE + 1;

#[derive(Debug)]
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    secret: AtomicU64,
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

    use urdma_memfd::{magic, Mapping, MemoryError, PAGE};

    use super::{OwnPage, PeerPage, WakeSocket, Waker, Words, PARKED, RUNNING};
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
        pub fn create() -> Result<(Self, OwnedFd), MemoryError> {
            let header = magic(MAGIC, VERSION);
            let (mapping, fd) = Mapping::create(c"urdma-page", PAGE, &header, PAGE)?;
            let memory = Memory(mapping);
            memory.park.0.store(RUNNING, Ordering::Relaxed);
            let page = Self {
                memory,
                bell: AtomicU32::new(0),
                sleeps: AtomicU32::new(PARKED),
                socket: None,
            };
            Ok((page, fd))
        }

        /// Lets threads of the process sleep in calls on descriptors. Each peer is to get a socket
        /// beside the page.
        pub fn set_socket(&mut self, socket: WakeSocket) {
            let secret = &self.memory.head.secret;
            secret.store(socket.secret(), Ordering::Relaxed);
            self.socket = Some(socket);
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
        pub fn open(fd: OwnedFd) -> Result<Self, MemoryError> {
            let mapping = Mapping::open_table(fd, &magic(MAGIC, VERSION), PAGE)?;
            Ok(Self {
                memory: Memory(mapping),
                waker: None,
            })
        }

        /// What wakes the process while it sleeps in a call on descriptors.
        pub fn set_waker(&mut self, waker: Waker) {
            self.waker = Some(waker);
        }

        /// See [`PeerPage::set_waker`].
        pub fn waker(&self) -> Option<&Waker> {
            self.waker.as_ref()
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
    /// How the thread sleeps that peers wake: the state that [`OwnPage::hand_over`] stores.
    sleeps: AtomicU32,
    socket: Option<WakeSocket>,
}

/// The page of another process.
#[derive(Debug)]
pub struct PeerPage {
    memory: Memory,
    waker: Option<Waker>,
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
    pub fn add(&mut self, bell: &AtomicU32) {
        match self.waiters.get_mut(self.count) {
            Some(waiter) => {
                *waiter = Waiter::new(bell, bell.load(Ordering::Acquire));
                self.count += 1;
            }
            None => self.is_complete = false,
        }
    }

    /// Whether there are so many that the kernel takes longer to look them up, each in a page that
    /// processes share, than a nap lasts; and no signal, for which no other thread wakes the
    /// sleeper.
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

    /// As [`OwnPage::park`], by `sleep`: a call on descriptors, one of which is the socket of this
    /// process. `None` if there was something to do, so that it did not sleep.
    pub fn park_in_call<T>(
        &self,
        bells: &Bells,
        has_work: impl FnOnce() -> bool,
        sleep: impl FnOnce() -> T,
    ) -> Option<T> {
        // Either this sees that `unpark` has changed the bell, or `unpark` how this thread sleeps.
        self.sleeps.store(SELECTING, Ordering::SeqCst);
        self.hand_over();
        let is_rung = u64::from(self.bell.load(Ordering::SeqCst)) != bells.waiters[0].value();
        let slept = (!is_rung && !has_work()).then(sleep);
        self.sleeps.store(PARKED, Ordering::SeqCst);
        self.take_over();
        slept
    }

    /// The thread that sleeps from now on does not sleep in a call on descriptors: the one that did
    /// has left it without an end.
    pub(crate) fn forget_call(&self) {
        self.sleeps.store(PARKED, Ordering::SeqCst);
    }

    /// The socket by which peers wake a thread in a call on descriptors.
    pub fn socket(&self) -> Option<&WakeSocket> {
        self.socket.as_ref()
    }

    /// Whether a thread sleeps in a call on descriptors, or is about to.
    pub fn is_selecting(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst) == SELECTING
    }

    /// Sleeps at most `limit` without asking peers to ring: for a thread while another one of its
    /// process polls. A bell ends it all the same, for example after [`OwnPage::hand_over`].
    /// One thread at a time.
    pub fn nap(&self, bells: &Bells, limit: Duration) -> Parked {
        bells.wait(Some(limit))
    }

    /// As [`OwnPage::nap`], but only the bell for this process' own threads ends it, so that
    /// a thread that calls [`OwnPage::hand_over`] meanwhile has to call [`OwnPage::unpark`].
    pub fn nap_deaf(&self, bells: &Bells, limit: Duration) -> Parked {
        Bells::wait_on(&bells.waiters[..1], Some(limit))
    }

    /// Asks peers to ring from now on, on behalf of the thread that sleeps or looks once more
    /// before it sleeps. The caller then looks at every channel: for what came before, no bell
    /// rings.
    #[inline]
    pub fn hand_over(&self) {
        let mut sleeps = self.sleeps.load(Ordering::Relaxed);
        loop {
            self.change(|word| Some((word.wrapping_add(ONE_SLEEP) & !STATE) | sleeps));
            fence(Ordering::SeqCst);
            // Another thread may have begun a sleep of the other kind, and what it has stored may
            // just have been replaced: a peer would ring where no thread sleeps.
            let sleeps_now = self.sleeps.load(Ordering::Relaxed);
            if sleeps_now == sleeps {
                return;
            }
            sleeps = sleeps_now;
        }
    }

    /// To be called between a change of the counts that peers are to ring for and a look at the
    /// channels, by a thread that finds that peers are asked to ring already: either the look finds
    /// what a peer has stored, or the peer sees the change.
    #[inline]
    pub fn fence_before_look(&self) {
        fence(Ordering::SeqCst);
    }

    /// Says that this process polls, without waking its thread that sleeps, which sleeps on until
    /// its time is over or until [`OwnPage::unpark`]. Whether peers were asked to ring before.
    #[inline]
    pub fn take_over(&self) -> bool {
        self.change(|word| (word & ASLEEP != 0).then_some((word & !STATE) | RUNNING))
    }

    /// Whether peers are asked to ring.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.word().load(Ordering::Relaxed) & ASLEEP != 0
    }

    /// Wakes the thread of this process that sleeps, or has it look once more.
    pub fn unpark(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        match &self.socket {
            Some(socket) if self.is_selecting() => socket.wake(),
            _ => futex::wake(&self.bell),
        }
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        &self.memory.park.0
    }

    /// Changes the park word, which several threads of this process do; whether it was changed.
    #[inline]
    fn change(&self, to: impl FnMut(u32) -> Option<u32>) -> bool {
        // A thread that replaces what another one has stored sees how that one sleeps.
        let changed = self
            .word()
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, to);
        changed.is_ok()
    }
}

impl PeerPage {
    /// The sleep, with its number, of a process that sleeps and may have missed what this one
    /// stored before.
    #[inline]
    pub fn sleep_to_end(&self) -> Option<u32> {
        // C6-2
        //# If that is PARKED, and the sender has not rung for the sleep with that number, it
        //# increments the bell of its outgoing region and calls FUTEX_WAKE on it.
        fence(Ordering::SeqCst);
        let word = self.memory.park.0.load(Ordering::Relaxed);
        (word & ASLEEP != 0).then_some(word)
    }

    /// Wakes the process from a sleep in a call on descriptors; false if its sleep is another one.
    #[inline]
    pub fn wake_from_call(&self, sleep: u32) -> bool {
        match &self.waker {
            Some(waker) if sleep & STATE == SELECTING => {
                waker.wake(self.memory.head.secret.load(Ordering::Relaxed));
                true
            }
            _ => false,
        }
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
                secret: AtomicU64::new(0),
            },
            park: Park(AtomicU32::new(RUNNING)),
        });
        let socket = WakeSocket::default();
        let waker = Some(socket.for_peer());
        let page = Self {
            memory: memory.clone(),
            bell: AtomicU32::new(0),
            sleeps: AtomicU32::new(PARKED),
            socket: Some(socket),
        };
        (page, PeerPage { memory, waker })
    }
}
