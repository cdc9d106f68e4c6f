//! The state of a connection whose path is a channel.

use crate::wire::message::MessageEnds;
use crate::wire::MessageFlags;
use urdma_types::Time;

/// Which of the peer's requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intake {
    /// Those from the first with START on.
    FromStart,
    /// All.
    Open,
    /// Those from the first of the other epoch on: one was refused.
    FromEpoch(MessageFlags),
}

/// The time between requests being taken back and being sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    /// When the first of them is sent again; `NEVER` without a pause.
    pub(super) until: Time,
    /// One past the position of the first since it was sent again, alone.
    pub(super) retry: Option<u64>,
    /// Consecutive refusals of one message because of a missing receive request.
    pub(super) refusals: u32,
    /// The number of that message.
    pub(super) refused: u32,
}

/// The peer's queue pair is not connected: the RESETs that say so, while nothing else is heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unconnected {
    pub(super) count: u32,
    /// When the first of them arrived.
    pub(super) since: Time,
    /// Messages of the peer that are no RESETs, up to now.
    pub(super) heard: u64,
    /// The oldest request.
    pub(super) head: u32,
}

/// The state of a connection whose path is a channel.
#[derive(Clone, Copy, Debug)]
pub(in crate::conn) struct ChannelState {
    /// This queue pair and the peer's, from RTS on.
    pub(super) ends: MessageEnds,
    /// The flags of the next request beside its own.
    pub(super) flags: MessageFlags,
    pub(super) intake: Intake,
    /// Requests were taken back, and the first of them has not been accepted since.
    pub(super) is_paused: bool,
    pub(super) pause: Pause,
    pub(super) unconnected: Unconnected,
    /// RESETs received.
    pub(super) resets: u64,
    /// Every message of this connection before this position is settled.
    pub(in crate::conn) settled: u64,
}

impl ChannelState {
    pub(in crate::conn) const NONE: Self = Self {
        ends: MessageEnds::new(0, 0),
        flags: MessageFlags::NONE,
        intake: Intake::FromStart,
        is_paused: false,
        pause: Pause {
            until: Time::NEVER,
            retry: None,
            refusals: 0,
            refused: 0,
        },
        unconnected: Unconnected {
            count: 0,
            since: Time::ZERO,
            heard: 0,
            head: 0,
        },
        resets: 0,
        settled: 0,
    };

    /// When requests are sent again that were taken back; `NEVER` without a pause.
    #[inline]
    pub(in crate::conn) const fn pause_until(&self) -> Time {
        self.pause.until
    }

    /// The connection has failed: nothing is taken, and nothing is sent again.
    pub(in crate::conn) fn silence(&mut self) {
        self.intake = Intake::FromStart;
        self.is_paused = false;
        self.pause = Self::NONE.pause;
    }

    /// What was begun is void: the next request is the first that counts.
    pub(in crate::conn) fn start_anew(&mut self) {
        self.flags = self.flags | MessageFlags::START;
    }

    /// The epoch of requests.
    #[inline]
    pub(super) const fn epoch(&self) -> MessageFlags {
        self.flags.and(MessageFlags::EPOCH)
    }

    /// Requests were taken back until `until`.
    pub(super) fn begin_pause(&mut self, until: Time) {
        self.flags = self.flags ^ MessageFlags::EPOCH;
        self.is_paused = true;
        (self.pause.until, self.pause.retry) = (until, None);
    }

    /// Whether requests are sent: all of them, or the first that was taken back.
    #[inline]
    pub(super) fn may_request(&self) -> bool {
        !self.is_paused || (self.pause.until == Time::NEVER && self.pause.retry.is_none())
    }

    /// The first of the requests that were taken back was sent again at `position`.
    #[cold]
    pub(super) fn note_retry(&mut self, position: u64) {
        self.pause.retry = Some(position + 1);
    }

    /// Messages were settled: the request that was sent again may be among them.
    #[cold]
    pub(super) fn end_retry(&mut self) {
        let settled = self.settled;
        if self.pause.retry.is_some_and(|retry| retry <= settled) {
            self.is_paused = false;
            self.pause.retry = None;
            self.unconnected.count = 0;
        }
    }
}
