//! The accesses of a call to the connection: [`Host`] of the switch.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::Duration;

use libc::{iovec, msghdr};
use urdma_abi::cancel::Disabled;
use urdma_socket_switch::layout::{LONG_AFTER_OCTETS, LONG_RING_OCTETS, RING_OCTETS};
use urdma_socket_switch::{Block, End, Event, Host, Owner, Received, Refused, Rings, Waits, Word};

use crate::connection::{Connection, FOR_THE_BELL};
use crate::octets::Window;
use crate::{bell, clock, process, real};

/// How long a demotion waits before it looks again, milliseconds.
const LOOK_MS: c_int = 1;
/// How often a thread yields to the owner of a lock before it sleeps for [`PAUSE`].
const YIELDS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);
/// Pauses, which take some seconds at least, after which no thread of this process has a lock.
const FALSE_AFTER: u32 = 50_000;

/// Pieces of memory that octets of both rings are in at most: two of each ring, at its end and at
/// its beginning.
const RING_PARTS: usize = 4;

/// One attempt of a call.
pub(crate) struct Call<'a> {
    connection: &'a Connection,
    window: &'a Window,
    flags: c_int,
    /// Whether waits are done here, rather than end the attempt.
    waits_here: bool,
    /// Whether a send does not wait for room: the peer need not tell of it.
    never_waits: bool,
    /// The error of TCP.
    pub(crate) errno: Cell<c_int>,
    yields: Cell<u32>,
    /// The sleep of the peer's set for which it asked to be woken last.
    sleep: Cell<u64>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(connection: &'a Connection, window: &'a Window, flags: c_int) -> Self {
        Self {
            connection,
            window,
            flags: flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            waits_here: false,
            never_waits: false,
            errno: Cell::new(0),
            yields: Cell::new(0),
            sleep: Cell::new(0),
        }
    }

    /// A send that does not wait for room. A set waits for room that was missing.
    pub(crate) fn without_a_wait(self) -> Self {
        Self {
            never_waits: self.connection.set.get().is_none(),
            ..self
        }
    }

    /// A call that moves no octets of the program and ends only when it is done.
    pub(crate) fn to_the_end(connection: &'a Connection, window: &'a Window) -> Self {
        Self {
            waits_here: true,
            ..Self::new(connection, window, 0)
        }
    }

    fn socket(&self) -> c_int {
        self.connection.socket()
    }

    fn peer(&self) -> End {
        self.connection.end.peer()
    }

    /// As many octets as a ring has; more are not between a head and a tail that the rules allow.
    fn within_ring(&self, len: u64) -> usize {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > LONG_RING_OCTETS {
            self.connection.is_violated.store(true, SeqCst);
        }
        len.min(LONG_RING_OCTETS)
    }

    /// Whether a thread of this process has had a lock for so long that it has not: threads have
    /// locks for microseconds, and the peer can write any name.
    fn is_false_owner(&self) -> bool {
        let is_false = self.yields.get() > YIELDS + FALSE_AFTER;
        if is_false {
            self.connection.is_violated.store(true, SeqCst);
        }
        is_false
    }

    fn message(parts: &mut [iovec]) -> msghdr {
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        message
    }

    fn send_parts(&self, parts: &mut [iovec], flags: c_int) -> Result<u64, Refused> {
        let message = Self::message(parts);
        // SAFETY: the parts are the caller's octets, or are in a ring.
        let sent =
            unsafe { libc::syscall(libc::SYS_sendmsg, self.socket(), &raw const message, flags) };
        match u64::try_from(sent) {
            Ok(0) => Err(Refused::WouldBlock),
            Ok(sent) => Ok(sent),
            Err(_) if matches!(real::errno(), libc::EAGAIN | libc::EINTR) => {
                Err(Refused::WouldBlock)
            }
            Err(_) => {
                self.errno.set(real::errno());
                Err(Refused::Broken)
            }
        }
    }

    fn recv_parts(&self, len_octets: u64, flags: c_int) -> Received {
        let connection = self.connection;
        if !connection.tcp_speaks.load(SeqCst) && connection.is_tcp_quiet() {
            return Received::WouldBlock;
        }
        let (mut parts, count) = self.window.first(len_octets);
        let mut message = Self::message(&mut parts[..count]);
        // SAFETY: the parts are the caller's buffers.
        let taken =
            unsafe { libc::syscall(libc::SYS_recvmsg, self.socket(), &raw mut message, flags) };
        let error = match u64::try_from(taken) {
            Ok(0) => connection.take_error(),
            Ok(taken) => return Received::Octets(taken),
            Err(_) if matches!(real::errno(), libc::EAGAIN | libc::EINTR) => {
                return Received::WouldBlock;
            }
            Err(_) => Some(real::errno()),
        };
        connection.note_end();
        match error {
            None => Received::End,
            Some(errno) => {
                self.errno.set(errno);
                Received::Reset
            }
        }
    }

    /// The places of octets of the outgoing ring, and their number.
    fn parts_of_ring(&self, at: u64, len: usize) -> ([iovec; RING_PARTS], usize) {
        let none = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let (mut parts, mut count, mut done) = ([none; RING_PARTS], 0, 0);
        while count < RING_PARTS && done < len {
            let at = at.wrapping_add(done as u64);
            // SAFETY: the connection is mapped.
            let (place, following) = unsafe { self.connection.memory.place(self.end(), at) };
            let part_len = following.min(len - done);
            parts[count] = iovec {
                iov_base: place.cast(),
                iov_len: part_len,
            };
            done += part_len;
            count += 1;
        }
        (parts, count)
    }

    /// Copies octets of the incoming ring to a buffer.
    fn copy_to(&self, window: &Window, at: u64, len_octets: u64) {
        let mut at = at;
        for part in window.parts(self.within_ring(len_octets)) {
            let (to, len) = (part.iov_base.cast(), part.iov_len);
            // SAFETY: the connection is mapped, and the part is a buffer of the caller.
            unsafe { self.connection.memory.copy_out(self.peer(), at, to, len) };
            at = at.wrapping_add(len as u64);
        }
    }
}

impl Rings for Call<'_> {
    fn end(&self) -> End {
        self.connection.end
    }

    fn owner(&self) -> Owner {
        process::owner(self.connection.process)
    }

    fn ring_len_octets(&self) -> u64 {
        RING_OCTETS as u64
    }

    fn long_ring_len_octets(&self) -> u64 {
        LONG_RING_OCTETS as u64
    }

    fn now(&self) -> u64 {
        clock::now_ns()
    }

    fn load(&self, word: Word) -> u64 {
        self.connection.load(word)
    }

    fn store(&self, word: Word, value: u64) {
        match word {
            // Another thread may sleep on the word.
            Word::ReaderSleeps(_) if value == FOR_THE_BELL => {
                self.connection.block().word(word).fetch_or(value, SeqCst);
            }
            Word::WriterSleeps(_) if self.never_waits => {}
            _ => store(self.connection.block(), word, value),
        }
    }

    fn swap(&self, word: Word, value: u64) -> u64 {
        // A word that is rarely set is not written to.
        if value == 0 && self.connection.load(word) == 0 {
            return 0;
        }
        let (before, sleep) = self.connection.take_sleepers(word, value);
        self.sleep.set(sleep);
        before
    }

    fn compare_exchange(&self, word: Word, old: u64, new: u64) -> Result<(), u64> {
        let word = self.connection.block().word(word);
        word.compare_exchange(old, new, SeqCst, SeqCst).map(|_| ())
    }

    fn is_known_to_end(&self) -> bool {
        self.connection.is_known_to_end()
    }

    fn copy_in(&self, at: u64, len_octets: u64) {
        let mut at = at;
        for part in self.window.parts(self.within_ring(len_octets)) {
            let (from, len) = (part.iov_base.cast_const().cast(), part.iov_len);
            // SAFETY: the connection is mapped, and the part has octets of the caller.
            unsafe { self.connection.memory.copy_in(self.end(), at, from, len) };
            at = at.wrapping_add(len as u64);
        }
    }

    fn copy_out(&self, at: u64, len_octets: u64) {
        self.copy_to(self.window, at, len_octets);
    }

    fn wake(&self, end: End) {
        self.connection.wake(end, self.sleep.take());
    }
}

impl Host for Call<'_> {
    fn may_grow(&self, given_octets: u64) -> bool {
        given_octets >= LONG_AFTER_OCTETS && self.connection.may_grow()
    }

    fn add(&self, word: Word, value: u64) {
        self.connection.block().word(word).fetch_add(value, SeqCst);
    }

    fn is_dead(&self, owner: Owner) -> bool {
        match process::of_owner(owner) {
            process if process == self.connection.process => self.is_false_owner(),
            process if process == self.connection.peer_process => self.connection.look_for_peer(),
            // No process of either end has this name.
            _ => owner.0 != 0,
        }
    }

    fn relax(&self) {
        let yields = self.yields.get();
        self.yields.set(yields.saturating_add(1));
        if yields < YIELDS {
            std::thread::yield_now();
        } else {
            let _uncancelled = Disabled::new();
            std::thread::sleep(PAUSE);
        }
    }

    fn tcp_send(&self, len_octets: u64) -> Result<u64, Refused> {
        self.connection.settle_cork();
        let (mut parts, count) = self.window.first(len_octets);
        let sent = self.send_parts(&mut parts[..count], self.flags);
        if sent == Err(Refused::Broken) {
            if let Some(errno) = self.connection.take_error() {
                self.errno.set(errno);
            }
        }
        sent
    }

    fn tcp_return(&self, at: u64, len_octets: u64) -> Result<u64, Refused> {
        let len = self.within_ring(len_octets);
        if self.connection.is_violated.load(SeqCst) {
            return Err(Refused::Broken);
        }
        let (mut parts, count) = self.parts_of_ring(at, len);
        if self.connection.is_tcp_reset() {
            // A call of the program reports that.
            return Err(Refused::Broken);
        }
        // The peer was told of these octets.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = self
            .connection
            .uncorked(|| self.send_parts(&mut parts[..count], flags));
        if sent == Err(Refused::Broken) {
            self.connection.keep_error(self.errno.take());
        }
        sent
    }

    fn tcp_recv(&self, len_octets: u64) -> Received {
        self.recv_parts(len_octets, libc::MSG_DONTWAIT)
    }

    fn tcp_peek(&self, len_octets: u64) -> Received {
        self.recv_parts(len_octets, libc::MSG_DONTWAIT | libc::MSG_PEEK)
    }

    fn tcp_sent(&self, end: End) -> u64 {
        // The count of the peer is asked for when it was killed, and its end has arrived with all
        // that was before it.
        if end == self.connection.end {
            self.connection.tcp_sent()
        } else {
            self.connection.tcp_received()
        }
    }

    fn tcp_taken(&self) -> u64 {
        self.connection.tcp_taken()
    }

    fn tcp_has_reserve(&self) -> bool {
        let has = self.connection.has_reserve();
        if has {
            // More goes to the ring, behind what TCP holds back.
            self.connection.uncorked(|| ());
        }
        has
    }

    fn tcp_shutdown_write(&self) {
        // SAFETY: no memory is named.
        unsafe { real::shutdown(self.socket(), libc::SHUT_WR) };
    }

    fn is_peer_gone(&self) -> bool {
        // The agent notices the end of a peer, and a send that waits asks the kernel.
        let is_told = || self.connection.is_known_to_end();
        (!self.never_waits || is_told()) && self.connection.look_for_peer()
    }

    fn is_reset(&self) -> bool {
        self.connection.is_reset()
    }

    fn look_out(&self, at: u64, len_octets: u64, skip: u64) {
        self.copy_to(&self.window.after(skip), at, len_octets);
    }

    fn call_agents(&self, end: End) {
        if end == self.connection.end {
            bell::notice();
        } else {
            self.connection.call_peer();
        }
    }

    fn wait(&self, event: Event) -> Result<(), Waits> {
        if !self.waits_here {
            return Err(Waits(event));
        }
        let mut list = libc::pollfd {
            fd: self.connection.socket(),
            events: match event {
                Event::Writable => libc::POLLOUT,
                Event::Readable => libc::POLLIN,
                Event::Peer => libc::POLLRDHUP,
            },
            revents: 0,
        };
        // SAFETY: a list of one entry. The bell may be another thread's.
        unsafe { real::poll(&raw mut list, 1, LOOK_MS) };
        Ok(())
    }
}

/// Stores a word with the order that it needs.
#[inline(always)]
pub(crate) fn store(block: &Block, word: Word, value: u64) {
    let order = match word {
        // The head follows, which the receiver reads before.
        Word::Stamp(_) => Relaxed,
        // Only owners of the lock of the writers read it.
        Word::SeenTail(_) => Relaxed,
        // The next owner of the lock has acquired it.
        Word::Writer(_) | Word::Reader(_) => Release,
        _ => SeqCst,
    };
    block.word(word).store(value, order);
}

#[cfg(test)]
pub(crate) mod tests;
