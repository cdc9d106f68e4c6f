//! What a driver supplies: the shared words, the socket, the rings, and waiting.

use crate::block::{End, Owner, Word};

/// What TCP gave to a receive that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many octets, at least one.
    Octets(u64),
    /// None now.
    WouldBlock,
    /// The end of the stream: recv(2) returns 0.
    End,
    /// The connection was reset.
    Reset,
}

/// Why octets cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room now. Only TCP refuses so; a call waits.
    WouldBlock,
    /// The stream is shut for writing, its peer is gone, or it was reset: EPIPE or ECONNRESET.
    Broken,
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The socket has octets, an end or a reset; or a wake-up.
    Readable,
    /// TCP has room or is broken; or a wake-up.
    Writable,
    /// The peer is gone ([`Host::is_peer_gone`]); or a wake-up.
    Peer,
}

/// A call waits for an event, and is to be repeated then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits(pub Event);

/// One call of one thread, as far as it moves octets over the rings. Each method is one access,
/// which other threads see wholly or not at all; a thread may be killed between any two.
///
/// Octets of the caller are named by the number of those that are wanted: a call moves octets once,
/// from the start of its buffer.
pub trait Rings {
    /// The end to which the thread belongs.
    fn end(&self) -> End;
    /// The thread.
    fn owner(&self) -> Owner;
    /// Octets of the short ring of each direction.
    fn ring_len_octets(&self) -> u64;
    /// Octets of the long ring of each direction.
    fn long_ring_len_octets(&self) -> u64;
    /// The time by a clock that both ends read. Only its order has a meaning.
    fn now(&self) -> u64;
    /// Loads a shared word.
    fn load(&self, word: Word) -> u64;
    /// Stores a shared word.
    fn store(&self, word: Word, value: u64);
    /// Stores a shared word and returns what it was; 0 for [`Word::ReaderSleeps`], too, if those
    /// that it names are woken already, and look at what they wait for when they are.
    fn swap(&self, word: Word, value: u64) -> u64;
    /// Stores `new` if the word is `old`.
    ///
    /// # Errors
    /// The word, if it is not `old`.
    fn compare_exchange(&self, word: Word, old: u64, new: u64) -> Result<(), u64>;
    /// Whether TCP is known to have the end of the peer's stream, or an error. It may be so before
    /// it is known.
    fn is_known_to_end(&self) -> bool;
    /// Copies octets of the caller to the outgoing ring at position `at`.
    fn copy_in(&self, at: u64, len_octets: u64);
    /// Copies octets of the incoming ring from position `at` to the buffer of the caller.
    fn copy_out(&self, at: u64, len_octets: u64);
    /// Ends each wait of the threads of an end that is in progress, or the next one of a thread
    /// that has none.
    fn wake(&self, end: End);
}

/// The other accesses of a call. No method that names TCP waits.
pub trait Host: Rings {
    /// Whether the outgoing ring, which has no room and to which `given_octets` were written since
    /// the connection began, goes on in the long one now. If so, this end's socket takes a whole
    /// long ring beside what it holds.
    fn may_grow(&self, given_octets: u64) -> bool;
    /// Adds to a shared word, modulo 2^64.
    fn add(&self, word: Word, value: u64);
    /// Whether a thread has ended.
    fn is_dead(&self, owner: Owner) -> bool;
    /// Lets the thread run that has a lock.
    fn relax(&self);
    /// Sends octets of the caller by TCP; returns how many, at least one.
    ///
    /// # Errors
    /// [`Refused`]
    fn tcp_send(&self, len_octets: u64) -> Result<u64, Refused>;
    /// Sends octets of the outgoing ring by TCP, from position `at`; returns how many.
    ///
    /// # Errors
    /// [`Refused`]
    fn tcp_return(&self, at: u64, len_octets: u64) -> Result<u64, Refused>;
    /// Receives up to `len_octets` octets by TCP into the buffer of the caller.
    fn tcp_recv(&self, len_octets: u64) -> Received;
    /// Copies up to `len_octets` octets of TCP into the buffer of the caller; TCP keeps them.
    fn tcp_peek(&self, len_octets: u64) -> Received;
    /// How many octets an end has given to TCP since the connection began.
    fn tcp_sent(&self, end: End) -> u64;
    /// How many octets this end has taken from TCP since the connection began.
    fn tcp_taken(&self) -> u64;
    /// Whether this end's socket is open for writing, and takes a whole ring beside what it holds:
    /// the long one if there is one.
    fn tcp_has_reserve(&self) -> bool;
    /// shutdown(2) with SHUT_WR.
    fn tcp_shutdown_write(&self);
    /// Whether all descriptors of the peer are closed, or the connection was reset.
    fn is_peer_gone(&self) -> bool;
    /// Whether the connection was reset, and TCP reports that, or has: an end follows.
    fn is_reset(&self) -> bool;
    /// As [`Rings::copy_out`] behind the first `skip` octets of the buffer, for a call that leaves
    /// the octets where they are.
    fn look_out(&self, at: u64, len_octets: u64, skip: u64);
    /// Has each process of an end call [`crate::attend`] at once.
    fn call_agents(&self, end: End);
    /// Waits for an event, with spurious wake-ups.
    ///
    /// # Errors
    /// [`Waits`] of a driver that ends the call here, and repeats it when it has waited.
    fn wait(&self, event: Event) -> Result<(), Waits>;
}
