//! The words that both ends of a connection share.

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

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
    pub fn peer(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// 0 or 1.
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
    /// 1 if a thread of the receiver may sleep until the ring has octets or the mode changes.
    ReaderSleeps(End),
    /// 1 if a thread of the sender may sleep until the ring has room.
    WriterSleeps(End),
}

/// [`Word::Mode`]: octets are sent by TCP, and the ring is empty.
pub(crate) const TCP: u64 = 0;
/// [`Word::Mode`]: octets are sent through the ring.
pub(crate) const RING: u64 = 1;

/// What the sender stores.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct SenderWords {
    writer: AtomicU64,
    mode: AtomicU64,
    tcp_until: AtomicU64,
    head: AtomicU64,
    moving_tail: AtomicU64,
    moving_until: AtomicU64,
    moving: AtomicU64,
    stamp: AtomicU64,
}

/// What the receiver stores.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct ReceiverWords {
    reader: AtomicU64,
    tail: AtomicU64,
    drained: AtomicU64,
    wants_stamp: AtomicU64,
}

/// What one side sets and the other clears.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct SleepWords {
    reader: AtomicU64,
    writer: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Direction {
    sender: SenderWords,
    receiver: ReceiverWords,
    sleeps: SleepWords,
}

/// The shared words of a connection, in native octet order. The rings are beside it.
#[derive(Debug)]
#[repr(C)]
pub struct Block {
    refusals: [AtomicU64; 2],
    closes: [AtomicU64; 2],
    directions: [Direction; 2],
}

impl Block {
    /// The words of a connection of which no process has joined.
    pub fn new() -> Self {
        Self {
            refusals: [AtomicU64::new(1), AtomicU64::new(1)],
            closes: Default::default(),
            directions: Default::default(),
        }
    }

    /// Where the word [`Word::Head`] of a direction is in the block: what an observer reads.
    pub fn head_at(sender: End) -> usize {
        let directions = offset_of!(Self, directions) + sender.index() * size_of::<Direction>();
        directions + offset_of!(Direction, sender) + offset_of!(SenderWords, head)
    }

    /// The atomic of a word. All accesses are sequentially consistent: a sleeper stores its word
    /// before it looks at others, and a waker the converse.
    pub fn word(&self, word: Word) -> &AtomicU64 {
        let direction = |end: End| &self.directions[end.index()];
        match word {
            Word::Refusals(end) => &self.refusals[end.index()],
            Word::Closes(end) => &self.closes[end.index()],
            Word::Writer(end) => &direction(end).sender.writer,
            Word::Mode(end) => &direction(end).sender.mode,
            Word::TcpUntil(end) => &direction(end).sender.tcp_until,
            Word::Head(end) => &direction(end).sender.head,
            Word::Stamp(end) => &direction(end).sender.stamp,
            Word::MovingTail(end) => &direction(end).sender.moving_tail,
            Word::MovingUntil(end) => &direction(end).sender.moving_until,
            Word::Moving(end) => &direction(end).sender.moving,
            Word::Reader(end) => &direction(end).receiver.reader,
            Word::Tail(end) => &direction(end).receiver.tail,
            Word::Drained(end) => &direction(end).receiver.drained,
            Word::WantsStamp(end) => &direction(end).receiver.wants_stamp,
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
