//! Calls on a connection with rings that need nothing else: their octets have room or are there, or
//! a receive that does not wait finds that nothing has come. Each begins and ends here, or does
//! nothing and is left to `calls`.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::SeqCst;

use libc::ssize_t;
use urdma_socket_switch::layout::{LONG_RING_OCTETS, RING_OCTETS};
use urdma_socket_switch::{recv_at_once, send_at_once, Block, End, Owner, Rings, Word};

use crate::connection::Connection;
use crate::host;
use crate::memory::Memory;
use crate::signals::Held;
use crate::table::{self, State};
use crate::{clock, process, real};

/// What does a call that was not done here, as a function of its arguments.
pub(crate) type Otherwise =
    unsafe fn(c_int, *mut c_void, usize, c_int, &'static table::Cell) -> ssize_t;

/// What no call returns.
pub(crate) const NOT_DONE: ssize_t = ssize_t::MIN;

/// Leaves a call that was not done to the caller.
///
/// # Safety
/// None.
pub(crate) unsafe fn not_done(
    _: c_int,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: &'static table::Cell,
) -> ssize_t {
    NOT_DONE
}

/// A send of one part whose flags the switch knows, on a descriptor that has rings, or `otherwise`.
/// There is one function, into which the compiler joins all that it does.
///
/// # Safety
/// The octets are the caller's, and those of `otherwise` are its arguments.
#[inline(never)]
pub(crate) unsafe fn send(
    fd: c_int,
    octets: *mut c_void,
    len: usize,
    flags: c_int,
    cell: &'static table::Cell,
    otherwise: Otherwise,
) -> ssize_t {
    let is_sent = within(cell, |connection| {
        let call = Call::new(connection, octets);
        (len > 0 && send_at_once(&call, len as u64)).then_some(())
    });
    if is_sent.is_none() {
        // SAFETY: guaranteed by the caller.
        return unsafe { otherwise(fd, octets, len, flags, cell) };
    }
    moved(len as u64)
}

/// A receive in the same way, which neither looks nor waits for all octets.
///
/// # Safety
/// As [`send`].
#[inline(never)]
pub(crate) unsafe fn recv(
    fd: c_int,
    octets: *mut c_void,
    len: usize,
    flags: c_int,
    cell: &'static table::Cell,
    otherwise: Otherwise,
) -> ssize_t {
    let taken = within(cell, |connection| {
        let call = Call::new(connection, octets);
        if len == 0 {
            return None;
        }
        if !call.block().has_octets(call.end.peer()) {
            return nothing(connection, flags);
        }
        let taken = recv_at_once(&call, len as u64)?;
        // A receive that waits has none in vain.
        connection.note_receive(true);
        Some(Taken::Octets(taken))
    });
    match taken {
        Some(taken) => taken.result(),
        // SAFETY: guaranteed by the caller.
        None => unsafe { otherwise(fd, octets, len, flags, cell) },
    }
}

/// What a receive has taken.
enum Taken {
    Octets(u64),
    /// Nothing was there. Whether the thread yields now.
    Nothing(bool),
}

impl Taken {
    #[inline(always)]
    fn result(self) -> ssize_t {
        match self {
            Self::Octets(taken) => moved(taken),
            Self::Nothing(yields) => {
                if yields {
                    std::thread::yield_now();
                }
                real::set_errno(libc::EAGAIN);
                -1
            }
        }
    }
}

fn moved(octets: u64) -> ssize_t {
    // Not more than the ring has.
    ssize_t::try_from(octets.cast_signed()).unwrap_or(ssize_t::MAX)
}

/// A receive has found no octets in the ring.
#[inline(always)]
fn nothing(connection: &Connection, flags: c_int) -> Option<Taken> {
    let is_in_vain = !connection.has_news() && connection.does_not_wait(flags);
    is_in_vain.then(|| Taken::Nothing(connection.note_receive(false)))
}

/// Begins and ends a call, of which `attempt` is what it does if there are rings.
#[inline(always)]
fn within<T>(
    cell: &'static table::Cell,
    attempt: impl FnOnce(&Connection) -> Option<T>,
) -> Option<T> {
    // A handler that was put off runs when the call has left: it need not return.
    let held = Held::at_once()?;
    let result = if cell.enter().state() == State::Rings {
        // SAFETY: the state was `Rings` when this call had entered, so the connection stays until
        // it leaves.
        unsafe { cell.connection().as_ref() }.and_then(attempt)
    } else {
        None
    };
    cell.leave();
    drop(held);
    result
}

/// The accesses of a call. It holds copies of the fields of the connection that a call uses while
/// no end sleeps, so that the call loads few cache lines beside those of the shared words.
struct Call<'a> {
    connection: &'a Connection,
    memory: Memory,
    end: End,
    owner: Owner,
    octets: *mut u8,
    /// The sleep of the peer's set for which it asked to be woken.
    sleep: Cell<u64>,
}

impl<'a> Call<'a> {
    #[inline(always)]
    fn new(connection: &'a Connection, octets: *mut c_void) -> Self {
        Self {
            connection,
            memory: connection.memory,
            end: connection.end,
            owner: process::owner(connection.process),
            octets: octets.cast(),
            sleep: Cell::new(0),
        }
    }

    #[inline(always)]
    fn block(&self) -> &Block {
        // SAFETY: the connection is mapped.
        unsafe { self.memory.block() }
    }
}

impl Rings for Call<'_> {
    #[inline(always)]
    fn end(&self) -> End {
        self.end
    }

    #[inline(always)]
    fn owner(&self) -> Owner {
        self.owner
    }

    #[inline(always)]
    fn ring_len_octets(&self) -> u64 {
        RING_OCTETS as u64
    }

    #[inline(always)]
    fn long_ring_len_octets(&self) -> u64 {
        LONG_RING_OCTETS as u64
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        clock::now_ns()
    }

    #[inline(always)]
    fn load(&self, word: Word) -> u64 {
        self.block().load(word)
    }

    #[inline(always)]
    fn store(&self, word: Word, value: u64) {
        host::store(self.block(), word, value);
    }

    #[inline(always)]
    fn swap(&self, word: Word, value: u64) -> u64 {
        if value == 0 && self.load(word) == 0 {
            return 0;
        }
        let (before, sleep) = self.connection.take_sleepers(word, value);
        self.sleep.set(sleep);
        before
    }

    #[inline(always)]
    fn compare_exchange(&self, word: Word, old: u64, new: u64) -> Result<(), u64> {
        let word = self.block().word(word);
        word.compare_exchange(old, new, SeqCst, SeqCst).map(|_| ())
    }

    #[inline(always)]
    fn is_known_to_end(&self) -> bool {
        self.connection.is_known_to_end()
    }

    #[inline(always)]
    fn copy_in(&self, at: u64, len_octets: u64) {
        let len = usize::try_from(len_octets).unwrap_or(0);
        // SAFETY: the connection is mapped, and a call copies no more octets than its buffer has.
        unsafe { self.memory.copy_in(self.end, at, self.octets, len) };
    }

    #[inline(always)]
    fn copy_out(&self, at: u64, len_octets: u64) {
        let len = usize::try_from(len_octets).unwrap_or(0);
        // SAFETY: the connection is mapped, and a call copies no more octets than its buffer has
        // room for.
        unsafe { self.memory.copy_out(self.end.peer(), at, self.octets, len) };
    }

    #[inline(always)]
    fn wake(&self, end: End) {
        self.connection.wake(end, self.sleep.take());
    }
}
