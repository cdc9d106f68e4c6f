//! Credits in place of RNR NAK: a message is sent only if a Receive waits for it.
//!
//! [`Grant`] and [`Credit`] are the two sides of a connection's share of buffers, [`Announced`] and
//! [`Covered`] those of the Receives of one virtual queue pair. All counts are cumulative, so that
//! one that is repeated or late changes nothing, and each is compared by serial number arithmetic.

/// The fewest buffers of a share: two are kept for messages of the pool itself, and a count of half
/// of them is worth a message, which takes one.
pub const SHARE_MIN: u16 = 4;
/// The most buffers of a share: counts of 16 bits can be told apart up to here.
pub const SHARE_MAX: u16 = 1 << 14;

/// What a message is for: how many of a share it has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A Send of a user: two are left.
    User,
    /// It opens, answers or closes, or has the number of Receives of one virtual queue pair: one is
    /// left.
    Control,
    /// The number of buffers, by which the peer can go on. It may take the last one.
    Buffers,
}

impl Class {
    fn left(self) -> u16 {
        match self {
            Self::User => 2,
            Self::Control => 1,
            Self::Buffers => 0,
        }
    }
}

/// The buffers that this end has posted for its peer to one connection: granted <= posted, since
/// what is announced is the number of those that are posted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grant {
    share: u16,
    posted: u16,
    announced: u16,
    taken: u16,
}

impl Grant {
    /// A share that is posted when the connection is made; the peer is told then.
    pub fn new(share: u16) -> Self {
        Self {
            share,
            posted: share,
            announced: share,
            taken: 0,
        }
    }

    /// A message has arrived, which takes a buffer; `false`: none was posted.
    pub fn take(&mut self) -> bool {
        let is_posted = self.taken != self.posted;
        self.taken = self.taken.wrapping_add(u16::from(is_posted));
        is_posted
    }

    /// A message with this number, from 1, has arrived.
    pub fn take_numbered(&mut self, number: u16) -> Taken {
        let behind = number.wrapping_sub(self.taken);
        if behind == 0 || behind > u16::MAX / 2 {
            return Taken::Again;
        }
        match behind == 1 && self.take() {
            true => Taken::First,
            false => Taken::Never,
        }
    }

    /// What the peer was told of the count may be lost, or it may not have believed it.
    pub fn forget_announced(&mut self) {
        self.announced = self.posted.wrapping_sub(self.share);
    }

    /// A buffer of one that has arrived is posted again.
    pub fn note_posted(&mut self) {
        debug_assert!(self.waiting() < self.share, "a buffer is posted twice");
        self.posted = self.posted.wrapping_add(1);
    }

    /// Receives that are posted and not taken.
    pub fn waiting(&self) -> u16 {
        self.posted.wrapping_sub(self.taken)
    }

    /// The count for the header of a message that is sent now.
    pub fn announce(&mut self) -> u16 {
        self.announced = self.posted;
        self.posted
    }

    /// Whether the count is worth a message of its own: the peer does not know of half of the
    /// share.
    pub fn is_due(&self) -> bool {
        self.share > 0 && self.posted.wrapping_sub(self.announced) >= self.share / 2
    }
}

/// What a message is by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It takes a buffer of the share.
    First,
    /// One with this number has come before: it takes none of the share.
    Again,
    /// The peer may not send it.
    Never,
}

/// The buffers that the peer has posted for this end to one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credit {
    share: u16,
    granted: u16,
    sent: u16,
    /// The greatest number of a message that may have arrived.
    reached: u16,
}

impl Credit {
    /// The share that the peer told when the connection was made: one of more than [`SHARE_MAX`] is
    /// not used beyond it.
    pub fn new(share: u16) -> Self {
        let share = share.min(SHARE_MAX);
        Self {
            share,
            granted: share,
            sent: 0,
            reached: 0,
        }
    }

    /// Messages that the peer has buffers for.
    pub fn available(&self) -> u16 {
        self.granted.wrapping_sub(self.sent)
    }

    /// Whether a message may be sent.
    pub fn permits(&self, class: Class) -> bool {
        self.available() > class.left()
    }

    /// A message is sent.
    pub fn note_sent(&mut self) {
        debug_assert!(self.available() > 0, "a message without a buffer");
        self.sent = self.sent.wrapping_add(1);
        if self.sent.wrapping_sub(self.reached) <= u16::MAX / 2 {
            self.reached = self.sent;
        }
    }

    /// The number of the last message that was sent, from 1.
    pub fn number(&self) -> u16 {
        self.sent
    }

    /// The last message is not known to have arrived: the next one takes its number.
    pub fn take_back(&mut self) {
        self.sent = self.sent.wrapping_sub(1);
    }

    /// A message of the peer has this count; `false`: it cannot be right, and has no effect.
    pub fn handle_announced(&mut self, buffers: u16) -> bool {
        let more = buffers.wrapping_sub(self.granted);
        // Messages that were taken back may have arrived all the same.
        let is_possible = more <= self.share && buffers.wrapping_sub(self.reached) <= self.share;
        if is_possible {
            self.granted = buffers;
        }
        is_possible
    }
}

/// The Receives of a user of this end, of which its peer is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Announced {
    posted: u32,
    announced: u32,
}

impl Announced {
    /// The user has posted a Receive.
    pub fn note_posted(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// The count for the header of a message that is sent now.
    pub fn announce(&mut self) -> u32 {
        self.announced = self.posted;
        self.posted
    }

    /// Whether the count is worth a message of its own: the peer does not know of half of the
    /// Receives that wait.
    pub fn is_due(&self, waiting: usize) -> bool {
        let unknown = self.posted.wrapping_sub(self.announced) as usize;
        unknown > 0 && unknown * 2 >= waiting
    }
}

/// The Receives of the user of the other end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Covered {
    receives: u32,
}

impl Covered {
    /// Whether there is a Receive for the Send with this number.
    pub fn covers(&self, sequence: u32) -> bool {
        let ahead = self.receives.wrapping_sub(sequence);
        ahead != 0 && ahead <= u32::MAX / 2
    }

    /// A message of the peer has this count; whether it is more than was known.
    pub fn handle_announced(&mut self, receives: u32) -> bool {
        let more = receives.wrapping_sub(self.receives);
        let is_more = more != 0 && more <= u32::MAX / 2;
        if is_more {
            self.receives = receives;
        }
        is_more
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use urdma_types::Rng;

    use super::*;

    /// One end of a connection whose messages do nothing but take buffers.
    struct End {
        grant: Grant,
        credit: Credit,
        /// What it has sent that has not arrived: the counts.
        sent: VecDeque<u16>,
        /// What has arrived and keeps its buffer.
        kept: u16,
    }

    impl End {
        fn new(own: u16, peer: u16) -> Self {
            Self {
                grant: Grant::new(own),
                credit: Credit::new(peer),
                sent: VecDeque::new(),
                kept: 0,
            }
        }

        fn send(&mut self, class: Class) -> bool {
            let may_send = self.credit.permits(class);
            if may_send {
                self.credit.note_sent();
                self.sent.push_back(self.grant.announce());
            }
            may_send
        }

        fn arrived(&mut self, buffers: u16) {
            assert!(self.grant.take(), "no Receive is posted");
            assert!(self.credit.handle_announced(buffers));
            self.kept += 1;
        }

        fn free(&mut self) {
            if self.kept > 0 {
                self.kept -= 1;
                self.grant.note_posted();
            }
        }
    }

    fn step(ends: &mut [End; 2], rng: &mut Rng) {
        let at = rng.below_len(2);
        match rng.below(5) {
            0 => drop(ends[at].send(Class::User)),
            1 => drop(ends[at].send(Class::Control)),
            2 if ends[at].grant.is_due() => drop(ends[at].send(Class::Buffers)),
            3 => {
                if let Some(buffers) = ends[at].sent.pop_front() {
                    ends[1 - at].arrived(buffers);
                }
            }
            _ => ends[at].free(),
        }
    }

    /// Everything arrives and is freed, and counts are announced until none is due.
    fn settle(ends: &mut [End; 2]) {
        for _ in 0..20 {
            for at in [0, 1] {
                while let Some(buffers) = ends[at].sent.pop_front() {
                    ends[1 - at].arrived(buffers);
                }
            }
            let mut is_settled = true;
            for end in ends.iter_mut() {
                while end.kept > 0 {
                    end.free();
                }
                if end.grant.is_due() {
                    is_settled = false;
                    end.send(Class::Buffers);
                }
            }
            if is_settled {
                return;
            }
        }
        panic!("counts are announced without end");
    }

    /// Each message finds a Receive, whatever both ends send, and both can always go on.
    #[test]
    fn messages_find_receives_and_both_ends_go_on() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let shares = [0; 2].map(|_| rng.between(SHARE_MIN.into(), 12) as u16);
            let mut ends = [
                End::new(shares[0], shares[1]),
                End::new(shares[1], shares[0]),
            ];
            for _ in 0..2_000 {
                step(&mut ends, &mut rng);
                // Everything arrives, and both send what they can, now and then.
                if !rng.percent(1) {
                    continue;
                }
                settle(&mut ends);
                for end in &mut ends {
                    assert!(end.send(Class::User), "seed {seed}");
                }
            }
        }
    }

    /// Both ends have sent all that they may, and nothing is announced but by messages of its own.
    #[test]
    fn ends_without_credit_go_on() {
        let mut ends = [End::new(4, 4), End::new(4, 4)];
        for end in &mut ends {
            while end.send(Class::User) || end.send(Class::Control) {}
            assert_eq!(end.credit.available(), 1);
        }
        settle(&mut ends);
        for end in &mut ends {
            assert!(end.send(Class::User));
        }
    }

    #[test]
    fn count_of_buffers_beyond_the_share_has_no_effect() {
        let mut credit = Credit::new(8);
        credit.note_sent();
        assert!(!credit.handle_announced(10), "more than were sent");
        assert!(!credit.handle_announced(7), "less than before");
        assert!(credit.handle_announced(9));
        assert_eq!(credit.available(), 8);
        // What is taken back may have arrived.
        credit.note_sent();
        credit.take_back();
        assert!(!credit.handle_announced(11), "more than may have arrived");
        assert!(credit.handle_announced(10));
        assert_eq!((credit.available(), credit.number()), (9, 1));
        assert_eq!(Credit::new(u16::MAX).available(), SHARE_MAX);
    }

    #[test]
    fn message_without_a_posted_buffer_is_noticed() {
        let mut grant = Grant::new(SHARE_MIN);
        assert!((0..SHARE_MIN).all(|_| grant.take()));
        assert!(!grant.take());
        grant.note_posted();
        assert!(grant.take() && !grant.take());
        assert!(!grant.is_due());
        grant.note_posted();
        assert!(grant.is_due(), "two of four");
        assert_eq!(grant.announce(), SHARE_MIN + 2);
        assert!(!grant.is_due());
    }

    #[test]
    fn sends_are_covered_by_as_many_receives() {
        for begin in [0, u32::MAX - 1] {
            let mut covered = Covered { receives: begin };
            assert!(!covered.covers(begin));
            assert!(covered.handle_announced(begin.wrapping_add(2)));
            let is_covered = |n: u32| covered.covers(begin.wrapping_add(n));
            assert_eq!([0, 1, 2].map(is_covered), [true, true, false]);
            let mut late = covered;
            assert!(!late.handle_announced(begin.wrapping_add(1)));
            assert!(!late.handle_announced(begin.wrapping_add(2)));
            assert!(late.covers(begin.wrapping_add(1)));
        }
    }

    #[test]
    fn half_of_the_receives_are_worth_a_message() {
        let mut announced = Announced::default();
        assert!(!announced.is_due(0));
        announced.note_posted();
        assert!(announced.is_due(1));
        assert_eq!(announced.announce(), 1);
        for _ in 0..2 {
            announced.note_posted();
        }
        assert!(announced.is_due(4) && !announced.is_due(5));
    }
}
