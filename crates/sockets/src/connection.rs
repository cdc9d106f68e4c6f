//! A connection whose ends have the memory of its rings.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use urdma_socket_switch::layout::{LONG_RING_OCTETS, RING_OCTETS};
use urdma_socket_switch::{Block, End, Word};

use crate::link::Link;
use crate::memory::Memory;
use crate::own::{Own, Spin};
use crate::peer::Peer;
use crate::sleepers::Sleepers;
use crate::yields::Polls;
use crate::{bell, futex, real};

/// Bits of [`Word::ReaderSleeps`]: the bell is to be rung; threads sleep on the word itself.
pub(crate) const FOR_THE_BELL: u64 = 1;
pub(crate) const ON_THE_WORD: u64 = 2;
/// Above them is the number of a sleep of a set, or 0: the bell is to be rung unless that of
/// another member was for the same sleep.
const SLEEP_SHIFT: u32 = 8;
const FLAGS: u64 = FOR_THE_BELL | ON_THE_WORD;
/// `TCP_ESTABLISHED` and others of `enum` in `linux/tcp_states.h`.
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;
/// States in which the end of the peer's stream has arrived: TIME_WAIT, CLOSE_WAIT, LAST_ACK,
/// CLOSING.
const WITH_END: [u8; 4] = [6, 8, 9, 11];
/// After [`UPGRADES_AT_ONCE`] upgrades that were impossible, one is tried in [`UPGRADES_EVERY`]
/// calls.
const UPGRADES_AT_ONCE: u32 = 4;
const UPGRADES_EVERY: u32 = 16;
/// Fields of SO_MEMINFO: `SK_MEMINFO_SNDBUF`, `SK_MEMINFO_WMEM_QUEUED`.
const MEMORY_FIELDS: usize = 9;
const SEND_BUFFER: usize = 3;
const SEND_QUEUED: usize = 5;
/// Octets of `struct tcp_info` that are read, and where its fields are.
const INFO_OCTETS: usize = 136;
const BYTES_ACKED_AT: usize = 120;
const BYTES_RECEIVED_AT: usize = 128;

/// How long TCP may carry octets that were handed back, and the time between two looks of a call
/// that waits for them.
pub(crate) const ARRIVAL_LIMIT: Duration = Duration::from_secs(1);
const ARRIVAL_PAUSE: Duration = Duration::from_micros(20);

/// What a new connection has.
pub(crate) struct Parts {
    pub(crate) memory: OwnedFd,
    pub(crate) socket: Own,
    pub(crate) bell: Own,
    pub(crate) peer_bell: Own,
    pub(crate) peer: Arc<Peer>,
    pub(crate) end: End,
    pub(crate) process: u64,
    pub(crate) peer_process: u64,
    pub(crate) is_accepted: bool,
    pub(crate) fd: c_int,
}

/// See the module. Shared by the cell of its descriptor, the agent and threads that sleep.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) memory: Memory,
    /// A descriptor of its own, which no other file gets while a call uses it; -1 when it is
    /// closed. The agent holds the lock while it uses the socket.
    socket: Mutex<Option<Own>>,
    socket_fd: c_int,
    pub(crate) bell: Own,
    peer_bell: Own,
    pub(crate) peer: Arc<Peer>,
    pub(crate) end: End,
    pub(crate) process: u64,
    pub(crate) peer_process: u64,
    is_accepted: bool,
    /// The program's descriptor.
    pub(crate) fd: c_int,
    /// The epoll set of which it is a member.
    pub(crate) set: Link,
    /// Threads that sleep for the bell.
    pub(crate) sleepers: Sleepers,
    /// This end has joined: it uses rings if the peer does.
    pub(crate) has_joined: AtomicBool,
    /// The peer's socket is closed, or the connection was reset.
    pub(crate) is_peer_gone: AtomicBool,
    /// TCP has the end or an error: it is asked even while the next octet is in the ring.
    pub(crate) tcp_speaks: AtomicBool,
    has_end: AtomicBool,
    /// A call has found the end of the peer's stream, or an error.
    is_known_to_end: AtomicBool,
    /// An error of TCP that no call of the program has reported: its errno, or 0.
    kept_error: AtomicI32,
    /// A call has reported a reset that TCP does not.
    is_reset_told: AtomicBool,
    /// The peer has written what the rules do not allow.
    pub(crate) is_violated: AtomicBool,
    /// How often an upgrade was impossible, and was not tried since.
    failed_upgrades: AtomicU32,
    /// The socket of a long stream did not take the octets of a long ring.
    stays_short: AtomicBool,
    /// This end has upgraded its direction.
    pub(crate) was_in_ring: AtomicBool,
    /// No call uses the connection any more.
    is_closed: AtomicBool,
    /// 1 for a socket that waits, 2 for one that does not, 0 if it is not known.
    mode: AtomicU32,
    polls: Polls,
    /// TCP_CORK as the program has set it, if the kernel does not know that yet.
    cork: Spin<Option<bool>>,
}

impl Connection {
    /// Maps the memory, whose length must be that of block and rings.
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let memory = Memory::map(&parts.memory)?;
        let socket = parts.socket;
        Ok(Self {
            memory,
            socket_fd: socket.as_raw_fd(),
            socket: Mutex::new(Some(socket)),
            bell: parts.bell,
            peer_bell: parts.peer_bell,
            peer: parts.peer,
            end: parts.end,
            process: parts.process,
            peer_process: parts.peer_process,
            is_accepted: parts.is_accepted,
            fd: parts.fd,
            set: Link::new(),
            sleepers: Sleepers::new(),
            polls: Polls::new(),
            has_joined: AtomicBool::new(false),
            is_peer_gone: AtomicBool::new(false),
            tcp_speaks: AtomicBool::new(false),
            has_end: AtomicBool::new(false),
            is_known_to_end: AtomicBool::new(false),
            kept_error: AtomicI32::new(0),
            is_reset_told: AtomicBool::new(false),
            is_violated: AtomicBool::new(false),
            failed_upgrades: AtomicU32::new(0),
            stays_short: AtomicBool::new(false),
            was_in_ring: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            mode: AtomicU32::new(0),
            cork: Spin::new(None),
        })
    }

    /// A pointer that stands for a reference.
    pub(crate) fn into_raw(this: Arc<Self>) -> *mut Self {
        Arc::into_raw(this).cast_mut()
    }

    /// The reference for which a pointer stands, or `None` for null.
    ///
    /// # Safety
    /// The pointer is from [`Self::into_raw`], and is not used again.
    pub(crate) unsafe fn from_raw(pointer: *mut Self) -> Option<Arc<Self>> {
        // SAFETY: guaranteed by the caller.
        (!pointer.is_null()).then(|| unsafe { Arc::from_raw(pointer.cast_const()) })
    }

    /// One more reference, which a thread has while it sleeps; it stays if the thread ends there.
    ///
    /// # Safety
    /// The pointer is from [`Self::into_raw`], and its reference lives.
    pub(crate) unsafe fn hold(pointer: *mut Self) {
        // SAFETY: guaranteed by the caller.
        unsafe { Arc::increment_strong_count(pointer.cast_const()) };
    }

    #[inline]
    pub(crate) fn block(&self) -> &Block {
        // SAFETY: the mapping lives as long as `self`.
        unsafe { self.memory.block() }
    }

    #[inline]
    pub(crate) fn load(&self, word: Word) -> u64 {
        self.block().load(word)
    }

    /// The socket; after [`Self::close`] a number that may be another file's.
    pub(crate) fn socket(&self) -> c_int {
        self.socket_fd
    }

    /// Runs `use_it` while the socket is open; `None` if it is closed.
    pub(crate) fn with_socket<T>(&self, use_it: impl FnOnce() -> T) -> Option<T> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.is_some().then(use_it)
    }

    /// Closes the socket. No call uses the connection any more.
    pub(crate) fn close(&self) {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        drop(socket.take());
        drop(socket);
        self.is_closed.store(true, SeqCst);
        self.ring(self.end);
        bell::notice();
    }

    /// Wakes the threads of an end.
    #[cold]
    pub(crate) fn ring(&self, end: End) {
        let word = self.block().word(Word::ReaderSleeps(end.peer()));
        let sleeps = || word.load(SeqCst) & ON_THE_WORD != 0;
        if sleeps() && word.fetch_and(!ON_THE_WORD, SeqCst) & ON_THE_WORD != 0 {
            futex::wake(word);
        }
        let is_own = end == self.end;
        let bell = if is_own { &self.bell } else { &self.peer_bell };
        bell::ring(bell.as_raw_fd());
    }

    /// Takes a word of sleepers that may be set; those that sleep on it are woken. Returns what it
    /// was, 0 if no bell is to be rung, and the sleep of the peer's set that it named.
    #[cold]
    pub(crate) fn take_sleepers(&self, word: Word, value: u64) -> (u64, u64) {
        let atomic = self.block().word(word);
        let before = atomic.swap(value, SeqCst);
        let Word::ReaderSleeps(sender) = word else {
            return (before, 0);
        };
        if before & ON_THE_WORD != 0 {
            futex::wake(atomic);
        }
        let before = before & !ON_THE_WORD;
        if sender != self.end {
            return (before, 0);
        }
        let (sleep, is_asked) = self.asked(before);
        (if is_asked { before } else { 0 }, sleep)
    }

    /// Wakes the threads of an end, for the sleep of the peer's set that a word has named.
    #[cold]
    pub(crate) fn wake(&self, end: End, sleep: u64) {
        self.ring(end);
        if end != self.end {
            // Only now: another thread that finds it noted does not ring.
            self.peer.note_rung(sleep);
        }
    }

    /// Has the peer ring the bell when the incoming ring changes: for threads that sleep for it, or
    /// with its number for a sleep of a set, for which one bell of a peer's process is enough.
    pub(crate) fn ask_for_bell(&self, sleep: u64) {
        let word = self.block().word(Word::ReaderSleeps(self.end.peer()));
        // Another thread may sleep on the word, or for the bell.
        if sleep == 0 {
            word.fetch_or(FOR_THE_BELL, SeqCst);
            return;
        }
        let with_it = |seen: u64| Some(seen & FLAGS | sleep << SLEEP_SHIFT);
        _ = word.fetch_update(SeqCst, SeqCst, with_it);
    }

    /// The peer need not ring the bell for the sleep of a set: the set looks at the ring.
    pub(crate) fn end_sleep(&self) {
        let word = self.block().word(Word::ReaderSleeps(self.end.peer()));
        let without = |seen: u64| (seen >> SLEEP_SHIFT != 0).then_some(seen & FLAGS);
        _ = word.fetch_update(SeqCst, SeqCst, without);
    }

    /// Of what the word of the peer's readers was: the sleep of a set that it named, and whether a
    /// bell is to be rung.
    pub(crate) fn asked(&self, word: u64) -> (u64, bool) {
        let sleep = word >> SLEEP_SHIFT;
        let is_asked = word & FOR_THE_BELL != 0 || sleep != 0 && !self.peer.is_rung(sleep);
        (sleep, is_asked)
    }

    /// Wakes the own threads as the peer is gone: it may have been killed when it had taken the bit
    /// of a sleeper and had not woken it yet.
    pub(crate) fn wake_own(&self) {
        futex::wake(self.block().word(Word::ReaderSleeps(self.end.peer())));
        self.ring(self.end);
    }

    /// Calls the agent of the peer's process.
    pub(crate) fn call_peer(&self) {
        self.peer.call();
    }

    /// Whether the incoming ring has octets.
    pub(crate) fn has_octets(&self) -> bool {
        self.in_ring(self.end.peer()) != 0
    }

    /// Whether a receive that waits for octets of the incoming ring is to look again.
    pub(crate) fn has_news(&self) -> bool {
        self.has_octets()
            || !self.is_tcp_quiet()
            || self.tcp_speaks.load(SeqCst)
            || self.is_closed.load(SeqCst)
    }

    /// Sleeps for at most `limit` until the incoming ring changes, if only that or the agent can
    /// end the sleep; `None` if TCP can. The result is 0 or the negative errno.
    ///
    /// # Safety
    /// The thread may be cancelled here: its frames have no values to be dropped.
    pub(crate) unsafe fn sleep_for_ring(
        &self,
        limit: Option<Duration>,
    ) -> Option<std::ffi::c_long> {
        let peer = self.end.peer();
        // A set waits for the bell.
        if !self.is_tcp_quiet() || self.tcp_speaks.load(SeqCst) || self.set.get().is_some() {
            return None;
        }
        let word = self.block().word(Word::ReaderSleeps(peer));
        let seen = word.load(SeqCst);
        // The bit of this thread is not distinguished from that of another one at the bell.
        let asleep = if self.sleepers.is_empty() {
            ON_THE_WORD
        } else {
            ON_THE_WORD | FOR_THE_BELL
        };
        if seen == 0 || word.compare_exchange(seen, asleep, SeqCst, SeqCst).is_err() {
            return Some(0);
        }
        let is_alone = self.sleepers.is_empty() && self.set.get().is_none();
        if asleep == ON_THE_WORD && !is_alone {
            // Another thread or a set has begun to wait for the bell, and its bit may be gone.
            bell::ring(self.bell.as_raw_fd());
            return Some(0);
        }
        // Who has rung before that has looked at the word has not woken.
        if self.has_news() {
            return Some(0);
        }
        // SAFETY: guaranteed by the caller.
        Some(unsafe { futex::sleep(word, asleep, limit) })
    }

    /// A receive that did not wait has ended. Returns whether the thread is to yield.
    #[inline]
    pub(crate) fn note_receive(&self, has_found: bool) -> bool {
        self.polls.note(has_found)
    }

    /// Whether calls on the socket do not wait.
    pub(crate) fn is_nonblocking(&self) -> bool {
        match self.mode.load(SeqCst) {
            0 => {
                // SAFETY: the command takes no argument.
                let flags = unsafe { real::fcntl(self.socket_fd, libc::F_GETFL, null_mut()) };
                let is_nonblocking = flags >= 0 && flags & libc::O_NONBLOCK != 0;
                self.mode.store(1 + u32::from(is_nonblocking), SeqCst);
                is_nonblocking
            }
            mode => mode == 2,
        }
    }

    /// Whether a call with these flags does not wait.
    #[inline]
    pub(crate) fn does_not_wait(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.is_nonblocking()
    }

    /// The program may have changed it.
    pub(crate) fn forget_mode(&self) {
        self.mode.store(0, SeqCst);
    }

    /// What poll(2) has said of the socket: while TCP is quiet, only an end or an error.
    pub(crate) fn note_socket(&self, events: libc::c_short) {
        let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        if events & (libc::POLLIN | ends) != 0 && self.is_tcp_quiet() {
            self.tcp_speaks.store(true, SeqCst);
        }
        if events & ends != 0 {
            self.note_end();
        }
    }

    /// TCP has the end of the peer's stream, or an error: what is sent from now on is answered as
    /// TCP does.
    pub(crate) fn note_end(&self) {
        self.is_known_to_end.store(true, SeqCst);
    }

    pub(crate) fn is_known_to_end(&self) -> bool {
        self.is_known_to_end.load(SeqCst)
    }

    /// A call that is not the program's has taken the error of TCP.
    pub(crate) fn keep_error(&self, errno: c_int) {
        self.kept_error.store(errno, SeqCst);
    }

    /// The error that a call of the program is to report, once.
    pub(crate) fn take_error(&self) -> Option<c_int> {
        let is_kept = self.kept_error.load(SeqCst) != 0;
        let taken = || self.kept_error.swap(0, SeqCst);
        is_kept.then(taken).filter(|errno| *errno != 0)
    }

    /// A call reports a reset that TCP does not.
    pub(crate) fn tell_reset(&self) {
        self.is_reset_told.store(true, SeqCst);
    }

    /// Whether the connection was reset, or a call has reported that it was.
    pub(crate) fn is_reset(&self) -> bool {
        self.is_reset_told.load(SeqCst) || self.is_tcp_reset()
    }

    pub(crate) fn is_tcp_reset(&self) -> bool {
        self.info()[0] == CLOSED
    }

    /// Whether TCP is quiet ([`Block::is_tcp_quiet`]) in the direction of the peer.
    pub(crate) fn is_tcp_quiet(&self) -> bool {
        self.block().is_tcp_quiet(self.end.peer())
    }

    /// Whether the octets of `sender` go to its ring.
    pub(crate) fn is_in_ring(&self, sender: End) -> bool {
        self.load(Word::Mode(sender)) != 0
    }

    /// Whether both ends use rings.
    pub(crate) fn is_wanted(&self) -> bool {
        self.load(Word::Refusals(End::First)) == 0 && self.load(Word::Refusals(End::Second)) == 0
    }

    /// Octets that the ring of `sender` has.
    pub(crate) fn in_ring(&self, sender: End) -> u64 {
        self.block().in_ring(sender)
    }

    /// Whether octets of the incoming ring are being handed back: counts of the ring and of TCP may
    /// both have them.
    pub(crate) fn is_moving(&self) -> bool {
        self.load(Word::Moving(self.end.peer())) != 0
    }

    /// Octets that the ring of `sender` may have.
    pub(crate) fn ring_len(&self, sender: End) -> u64 {
        let is_long = self.load(Word::LongFrom(sender)) != 0;
        let len = if is_long {
            LONG_RING_OCTETS
        } else {
            RING_OCTETS
        };
        len as u64
    }

    /// Whether the outgoing ring may go on in the long one: the socket takes as many octets. One
    /// that does not is asked once.
    pub(crate) fn may_grow(&self) -> bool {
        let may = !self.stays_short.load(SeqCst) && self.takes(LONG_RING_OCTETS as u64);
        self.stays_short.store(!may, SeqCst);
        may
    }

    /// Whether all descriptors of the peer are closed, or the connection was reset.
    pub(crate) fn look_for_peer(&self) -> bool {
        if self.is_peer_gone.load(SeqCst) {
            return true;
        }
        let is_gone = self.info()[0] != ESTABLISHED;
        if is_gone {
            self.tcp_speaks.store(true, SeqCst);
            self.is_peer_gone.store(true, SeqCst);
        }
        is_gone
    }

    fn info(&self) -> [u8; INFO_OCTETS] {
        let info = info(self.socket_fd);
        if WITH_END.contains(&info[0]) {
            self.has_end.store(true, SeqCst);
        }
        info
    }

    /// Octets in the queue that `request` names.
    fn queued(&self, request: libc::c_ulong) -> u64 {
        let mut octets: c_int = 0;
        // SAFETY: the request fills an int.
        unsafe { libc::syscall(libc::SYS_ioctl, self.socket_fd, request, &raw mut octets) };
        u64::try_from(octets).unwrap_or(0)
    }

    /// Octets given to TCP by this end since the connection began. The kernel counts the SYN of the
    /// end that has connected.
    pub(crate) fn tcp_sent(&self) -> u64 {
        let syn = u64::from(!self.is_accepted);
        loop {
            let before = field(&self.info(), BYTES_ACKED_AT);
            let queued = self.queued(libc::TIOCOUTQ);
            if field(&self.info(), BYTES_ACKED_AT) == before {
                return before.wrapping_add(queued).wrapping_sub(syn);
            }
        }
    }

    /// Octets that were received by TCP, in the queue or taken. The kernel counts the end.
    pub(crate) fn tcp_received(&self) -> u64 {
        let info = self.info();
        let has_end = self.has_end.load(SeqCst) && info[0] != ESTABLISHED;
        field(&info, BYTES_RECEIVED_AT).wrapping_sub(u64::from(has_end))
    }

    /// Whether TCP has received what was handed back, of which the program may have been told;
    /// true, too, if an end or an error may keep it from that.
    pub(crate) fn has_arrived(&self) -> bool {
        let until = self.load(Word::TcpUntil(self.end.peer()));
        let missing = until.wrapping_sub(self.tcp_received());
        missing == 0 || missing > LONG_RING_OCTETS as u64 || self.is_known_to_end()
    }

    /// Those that were taken.
    pub(crate) fn tcp_taken(&self) -> u64 {
        loop {
            let before = self.queued(libc::FIONREAD);
            let received = self.tcp_received();
            if self.queued(libc::FIONREAD) == before {
                return received.wrapping_sub(before);
            }
        }
    }

    /// Octets that the peer has no memory for, as `request` says of TCP: SIOCOUTQ or SIOCOUTQNSD.
    /// One half of a ring is the memory of its receiver, as its receive buffer is.
    pub(crate) fn unsent(&self, request: libc::c_ulong) -> u64 {
        let ring_len = self.ring_len(self.end);
        let in_ring = self.in_ring(self.end).min(ring_len);
        let of_sender = in_ring.saturating_sub(ring_len / 2);
        self.queued(request).saturating_add(of_sender)
    }

    /// Octets that a receive gets now: those of TCP, and those of the ring if none are on their way
    /// in TCP.
    pub(crate) fn readable(&self) -> u64 {
        let peer = self.end.peer();
        if self.is_tcp_quiet() && !self.tcp_speaks.load(SeqCst) {
            return self.in_ring(peer);
        }
        let queued = self.queued(libc::FIONREAD);
        let until = self.load(Word::TcpUntil(peer));
        let is_next = || self.tcp_taken().wrapping_add(queued) == until;
        if self.is_in_ring(peer) && is_next() && !self.is_moving() {
            queued.saturating_add(self.in_ring(peer))
        } else {
            queued
        }
    }

    /// Waits until TCP has received what was handed back, of which the program may have been told:
    /// a call of the kernel's finds it then.
    pub(crate) fn wait_for_arrival(&self) {
        let begin = Instant::now();
        while !self.has_arrived() && begin.elapsed() < ARRIVAL_LIMIT && !self.is_tcp_reset() {
            std::thread::sleep(ARRIVAL_PAUSE);
        }
    }

    /// Whether an upgrade is tried: an impossible one costs system calls.
    pub(crate) fn may_upgrade(&self) -> bool {
        let failed = self.failed_upgrades.load(SeqCst);
        if failed < UPGRADES_AT_ONCE {
            return true;
        }
        self.failed_upgrades.fetch_add(1, SeqCst);
        failed.is_multiple_of(UPGRADES_EVERY)
    }

    /// Whether the socket is open for writing, and takes a whole ring beside what it holds.
    pub(crate) fn has_reserve(&self) -> bool {
        let has = self.takes(self.ring_len(self.end));
        if has {
            self.was_in_ring.store(true, SeqCst);
        } else {
            self.failed_upgrades.fetch_add(1, SeqCst);
        }
        has
    }

    /// Whether the socket is open for writing, and takes `len_octets` beside what it holds.
    fn takes(&self, len_octets: u64) -> bool {
        let mut memory = [0_u32; MEMORY_FIELDS];
        let mut len: libc::socklen_t = 36;
        let at = memory.as_mut_ptr().cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_MEMINFO);
        // SAFETY: the kernel writes at most `len` octets.
        unsafe { libc::getsockopt(self.socket_fd, level, name, at, &raw mut len) };
        let free = memory[SEND_BUFFER].saturating_sub(memory[SEND_QUEUED]);
        // The kernel counts its buffers, which are longer than the octets in them.
        self.info()[0] == ESTABLISHED && u64::from(free) >= 3 * len_octets
    }

    /// The program sets TCP_CORK. While octets go to the ring, TCP has none to hold back or to
    /// send, and the kernel is not asked.
    pub(crate) fn set_cork(&self, is_on: bool) {
        self.cork.with(|cork| {
            if self.is_in_ring(self.end) {
                *cork = Some(is_on);
            } else {
                *cork = None;
                self.set_option(libc::TCP_CORK, c_int::from(is_on));
            }
        });
    }

    /// The kernel gets to know TCP_CORK: octets are about to go by TCP, or have moved there, or the
    /// program asks.
    pub(crate) fn settle_cork(&self) {
        self.cork.with(|cork| {
            if let Some(is_on) = cork.take() {
                self.set_option(libc::TCP_CORK, c_int::from(is_on));
            }
        });
    }

    /// Runs `send` while TCP holds nothing back, neither for more octets (TCP_CORK, MSG_MORE) nor
    /// for an acknowledgement (Nagle's algorithm), not even what it has.
    pub(crate) fn uncorked<T>(&self, send: impl FnOnce() -> T) -> T {
        self.settle_cork();
        let option = |name| int_option(self.socket_fd, libc::IPPROTO_TCP, name);
        let is_corked = option(libc::TCP_CORK).is_some_and(|value| value != 0);
        self.set_option(libc::TCP_CORK, 0);
        let is_delayed = option(libc::TCP_NODELAY) == Some(0);
        if is_delayed {
            self.set_option(libc::TCP_NODELAY, 1);
        }
        let result = send();
        if is_delayed {
            self.set_option(libc::TCP_NODELAY, 0);
        }
        if is_corked {
            self.set_option(libc::TCP_CORK, 1);
        }
        result
    }

    fn set_option(&self, name: c_int, value: c_int) {
        let at = (&raw const value).cast();
        // SAFETY: the option is an int.
        unsafe { real::setsockopt(self.socket_fd, libc::IPPROTO_TCP, name, at, 4) };
    }

    /// Resets the connection: octets are lost that the program would miss without an error.
    pub(crate) fn reset(&self) {
        reset(self.socket_fd);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: no reference to the mapping is left.
        unsafe { self.memory.unmap() };
    }
}

/// Resets a connection: connect(2) to no address does what close(2) does with SO_LINGER without a
/// time.
pub(crate) fn reset(fd: c_int) {
    let nowhere = libc::sockaddr {
        // AF_UNSPEC.
        sa_family: 0,
        sa_data: [0; 14],
    };
    let len: libc::socklen_t = 16;
    // SAFETY: an address of the length that is named.
    unsafe { real::connect(fd, &raw const nowhere, len) };
}

/// Whether a socket is of TCP.
pub(crate) fn is_tcp(fd: c_int) -> bool {
    int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// An option of a socket that is an int; `None` if it has none. errno stays.
pub(crate) fn int_option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let before = real::errno();
    let mut value: c_int = 0;
    let mut len: libc::socklen_t = 4;
    let at = (&raw mut value).cast();
    // SAFETY: the option has at most `len` octets.
    let rc = unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) };
    real::set_errno(before);
    (rc == 0).then_some(value)
}

/// Whether TCP can move octets in both directions.
pub(crate) fn is_established(fd: c_int) -> bool {
    info(fd)[0] == ESTABLISHED
}

/// TCP_INFO of a socket.
fn info(fd: c_int) -> [u8; INFO_OCTETS] {
    let mut info = [0; INFO_OCTETS];
    let mut len: libc::socklen_t = 136;
    let at = info.as_mut_ptr().cast();
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `len` octets.
    let rc = unsafe { libc::getsockopt(fd, level, name, at, &raw mut len) };
    if rc < 0 {
        info[0] = CLOSED;
    }
    info
}

fn field(info: &[u8; INFO_OCTETS], at: usize) -> u64 {
    let mut octets = [0; 8];
    octets.copy_from_slice(&info[at..at + 8]);
    u64::from_ne_bytes(octets)
}
