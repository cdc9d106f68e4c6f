//! The words that both ends of a connection share.

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// One of the two ends of a connection. An end is a socket: all processes that have a descriptor of
/// it belong to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The end with the lower address and port.
    First,
    /// The other one.
    Second,
}

impl End {
    /// The end at the other side.
    #[inline]
    pub fn peer(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// 0 or 1.
    #[inline]
    pub fn index(self) -> usize {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

/// A thread that may own a lock. Never 0, and never used again: a thread after exec has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// The name of a shared word. Words of a direction are named by the end that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// How many reasons an end has to use TCP alone. Rings are used while both have none. An end
    /// begins with one: no process of it has called [`crate::join`].
    Refusals(End),
    /// 1 once a process of the end has closed the socket: TCP answers what the peer sends.
    Closes(End),
    /// The thread that sends, hands back or changes the mode; 0 for none.
    Writer(End),
    /// [`crate::block::TCP`] or [`crate::block::RING`]: where the next octet is sent.
    Mode(End),
    /// In mode RING: how many octets the sender has given to TCP. They precede those of the ring.
    TcpUntil(End),
    /// How many octets were written to the ring.
    Head(End),
    /// The position from which on octets are in the long ring of the direction, and not in the
    /// short one; 0 while there are none.
    LongFrom(End),
    /// A tail that the sender has seen: what has left the ring since is more room.
    SeenTail(End),
    /// When octets came into the ring while it was empty, or the end closed with an empty ring, by
    /// a clock of the host: stored while the receiver wants it ([`Word::WantsStamp`]). No rule
    /// depends on it.
    Stamp(End),
    /// The tail when the transfer from ring to TCP began that is in progress.
    MovingTail(End),
    /// The octets given to TCP when that transfer began.
    MovingUntil(End),
    /// 1 while such a transfer is in progress.
    Moving(End),
    /// The thread that takes octets out of the ring; 0 for none.
    Reader(End),
    /// How many octets have left the ring.
    Tail(End),
    /// One more than the `TcpUntil` up to which the receiver has taken all octets of TCP.
    Drained(End),
    /// 1 if the receiver compares when octets came through several rings ([`Word::Stamp`]).
    WantsStamp(End),
    /// Not 0 if a thread of the receiver may sleep until the ring has octets or the mode changes.
    ReaderSleeps(End),
    /// 1 if a thread of the sender may sleep until the ring has room.
    WriterSleeps(End),
}

/// [`Word::Mode`]: octets are sent by TCP, and the ring is empty.
pub(crate) const TCP: u64 = 0;
/// [`Word::Mode`]: octets are sent through the ring.
pub(crate) const RING: u64 = 1;

/// What both ends read, and store when the use of rings or of the socket begins or ends.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct EndWords {
    refusals: [AtomicU64; 2],
    closes: [AtomicU64; 2],
    wants_stamp: [AtomicU64; 2],
}

/// What the threads that send use among themselves.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct WriterWords {
    writer: AtomicU64,
    seen_tail: AtomicU64,
    moving_tail: AtomicU64,
    moving_until: AtomicU64,
    moving: AtomicU64,
}

/// What the sender stores and a receiver looks at again and again.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct StreamWords {
    mode: AtomicU64,
    tcp_until: AtomicU64,
    head: AtomicU64,
    long_from: AtomicU64,
    stamp: AtomicU64,
}

/// What the threads that receive use among themselves, and the tail, at which a sender looks when
/// it has no room by what it has seen.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct ReaderWords {
    reader: AtomicU64,
    tail: AtomicU64,
    drained: AtomicU64,
}

/// What one side sets and the other clears.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct SleepWords {
    reader: AtomicU64,
    writer: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Direction {
    writers: WriterWords,
    stream: StreamWords,
    readers: ReaderWords,
    sleeps: SleepWords,
}

/// The shared words of a connection, in native octet order. The rings are beside it.
///
/// Words that different threads store at each message are in different pairs of cache lines, since
/// a processor may fetch two lines together. A message moves the line of its head and those of its
/// octets to the receiver, and no others while both ends are awake and the ring has room.
#[derive(Debug)]
#[repr(C)]
pub struct Block {
    ends: EndWords,
    directions: [Direction; 2],
}

impl Block {
    /// The words of a connection of which no process has joined.
    pub fn new() -> Self {
        Self {
            ends: EndWords {
                refusals: [AtomicU64::new(1), AtomicU64::new(1)],
                ..EndWords::default()
            },
            directions: Default::default(),
        }
    }

    /// The value of a word.
    #[inline(always)]
    pub fn load(&self, word: Word) -> u64 {
        self.word(word).load(SeqCst)
    }

    /// Octets that the ring of a sender has.
    pub fn in_ring(&self, sender: End) -> u64 {
        let head = self.load(Word::Head(sender));
        head.wrapping_sub(self.load(Word::Tail(sender)))
    }

    /// Whether that of a sender has any.
    #[inline(always)]
    pub fn has_octets(&self, sender: End) -> bool {
        self.load(Word::Head(sender)) != self.load(Word::Tail(sender))
    }

    /// Whether TCP was drained and the direction is its ring's: TCP has no octets, and gets none
    /// while that holds. Octets that are handed back end it before they leave the ring, so that a
    /// receiver that finds the ring empty and then TCP quiet misses none.
    pub fn is_tcp_quiet(&self, sender: End) -> bool {
        let until = self.load(Word::TcpUntil(sender));
        self.load(Word::Drained(sender)) == until.wrapping_add(1)
            && self.load(Word::Mode(sender)) == RING
    }

    /// Where the word [`Word::Head`] of a direction is in the block: what an observer reads.
    pub fn head_at(sender: End) -> usize {
        let directions = offset_of!(Self, directions) + sender.index() * size_of::<Direction>();
        directions + offset_of!(Direction, stream) + offset_of!(StreamWords, head)
    }

    /// The atomic of a word. Accesses are sequentially consistent, since a sleeper stores its word
    /// before it looks at others, and a waker the converse; but the store that releases a lock
    /// releases no more, and what only owners of a lock look at needs no order of its own.
    #[inline(always)]
    pub fn word(&self, word: Word) -> &AtomicU64 {
        let direction = |end: End| &self.directions[end.index()];
        match word {
            Word::Refusals(end) => &self.ends.refusals[end.index()],
            Word::Closes(end) => &self.ends.closes[end.index()],
            Word::Writer(end) => &direction(end).writers.writer,
            Word::SeenTail(end) => &direction(end).writers.seen_tail,
            Word::MovingTail(end) => &direction(end).writers.moving_tail,
            Word::MovingUntil(end) => &direction(end).writers.moving_until,
            Word::Moving(end) => &direction(end).writers.moving,
            Word::Mode(end) => &direction(end).stream.mode,
            Word::TcpUntil(end) => &direction(end).stream.tcp_until,
            Word::Head(end) => &direction(end).stream.head,
            Word::LongFrom(end) => &direction(end).stream.long_from,
            Word::Stamp(end) => &direction(end).stream.stamp,
            Word::Reader(end) => &direction(end).readers.reader,
            Word::Tail(end) => &direction(end).readers.tail,
            Word::Drained(end) => &direction(end).readers.drained,
            Word::WantsStamp(end) => &self.ends.wants_stamp[end.index()],
            Word::ReaderSleeps(end) => &direction(end).sleeps.reader,
            Word::WriterSleeps(end) => &direction(end).sleeps.writer,
        }
    }
}

impl Default for Block {
    fn default() -> Self {
        Self::new()
    }
}
