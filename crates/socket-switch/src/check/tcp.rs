//! The kernel's connection: two streams with room, a delay, ends and resets. An octet is its
//! position in the stream of what its end sent.

use std::collections::VecDeque;

use crate::{End, Received, Refused};

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// Octets in the socket of the sender.
    sending: VecDeque<u64>,
    /// Octets in the socket of the receiver.
    arrived: VecDeque<u64>,
    pub(super) sent: u64,
    pub(super) taken: u64,
    is_shut: bool,
    pub(super) end_arrived: bool,
}

#[derive(Debug)]
pub(super) struct Tcp {
    /// By the end that sends.
    pipes: [Pipe; 2],
    is_closed: [bool; 2],
    pub(super) is_reset: bool,
    pub(super) is_read_shut: [bool; 2],
    room_octets: u64,
    /// What a raised send buffer takes beside, by the end that sends.
    reserve_octets: [u64; 2],
}

impl Tcp {
    pub(super) fn new(room_octets: u64, reserve_octets: u64) -> Self {
        Self {
            pipes: Default::default(),
            is_closed: [false; 2],
            is_reset: false,
            is_read_shut: [false; 2],
            room_octets,
            reserve_octets: [reserve_octets; 2],
        }
    }

    pub(super) fn pipe(&self, sender: End) -> &Pipe {
        &self.pipes[sender.index()]
    }

    /// How many octets a send can give to the socket; `is_return`: into the reserve, too.
    pub(super) fn room(&self, sender: End, is_return: bool) -> Result<u64, Refused> {
        let pipe = self.pipe(sender);
        if self.is_reset || pipe.is_shut {
            return Err(Refused::Broken);
        }
        let reserve = if is_return {
            self.reserve_octets[sender.index()]
        } else {
            0
        };
        match (self.room_octets + reserve).saturating_sub(pipe.sending.len() as u64) {
            0 => Err(Refused::WouldBlock),
            room => Ok(room),
        }
    }

    pub(super) fn has_reserve(&self, sender: End) -> bool {
        let pipe = self.pipe(sender);
        !self.is_reset && !pipe.is_shut && pipe.sending.len() as u64 <= self.room_octets
    }

    /// Raises the send buffer of an end.
    pub(super) fn raise(&mut self, sender: End, reserve_octets: u64) {
        self.reserve_octets[sender.index()] = reserve_octets;
    }

    /// Within what [`Tcp::room`] says.
    pub(super) fn send(&mut self, sender: End, octets: impl ExactSizeIterator<Item = u64>) {
        let pipe = &mut self.pipes[sender.index()];
        pipe.sent += octets.len() as u64;
        pipe.sending.extend(octets);
    }

    pub(super) fn recv(&mut self, receiver: End, len: u64) -> (Received, Vec<u64>) {
        let pipe = &mut self.pipes[receiver.peer().index()];
        let len = pipe.arrived.len().min(len as usize);
        let octets: Vec<u64> = pipe.arrived.drain(..len).collect();
        pipe.taken += len as u64;
        (self.received(receiver, len), octets)
    }

    /// What a call returns that finds `len` octets.
    fn received(&self, receiver: End, len: usize) -> Received {
        let pipe = self.pipe(receiver.peer());
        if len > 0 {
            Received::Octets(len as u64)
        } else if self.is_reset {
            Received::Reset
        } else if pipe.end_arrived || self.is_read_shut[receiver.index()] {
            Received::End
        } else {
            Received::WouldBlock
        }
    }

    pub(super) fn peek(&self, receiver: End, len: u64) -> (Received, Vec<u64>) {
        let pipe = self.pipe(receiver.peer());
        let octets = pipe.arrived.iter().take(len as usize).copied();
        let octets: Vec<u64> = octets.collect();
        (self.received(receiver, octets.len()), octets)
    }

    pub(super) fn is_readable(&self, receiver: End) -> bool {
        let pipe = self.pipe(receiver.peer());
        let is_ended = pipe.end_arrived || self.is_read_shut[receiver.index()];
        !pipe.arrived.is_empty() || self.is_reset || is_ended
    }

    /// Up to `octets` octets, or the end behind them, reach the receiver. True if anything did.
    pub(super) fn carry(&mut self, sender: End, octets: u64) -> bool {
        let room = self.room_octets as usize;
        let pipe = &mut self.pipes[sender.index()];
        let free = room.saturating_sub(pipe.arrived.len());
        let len = pipe.sending.len().min(free).min(octets as usize);
        if len > 0 && self.is_closed[sender.peer().index()] {
            self.reset();
            return true;
        }
        pipe.arrived.extend(pipe.sending.drain(..len));
        let is_end = pipe.sending.is_empty() && pipe.is_shut && !pipe.end_arrived;
        pipe.end_arrived |= is_end;
        len > 0 || is_end
    }

    pub(super) fn shutdown_write(&mut self, end: End) {
        self.pipes[end.index()].is_shut = true;
    }

    /// The last descriptor of an end is closed.
    pub(super) fn close(&mut self, end: End) {
        self.is_closed[end.index()] = true;
        if self.pipe(end.peer()).arrived.is_empty() {
            self.shutdown_write(end);
        } else {
            self.reset();
        }
    }

    pub(super) fn reset(&mut self) {
        self.is_reset = true;
        for pipe in &mut self.pipes {
            pipe.sending.clear();
        }
    }

    pub(super) fn is_gone(&self, end: End) -> bool {
        self.is_closed[end.index()] || self.is_reset
    }

    pub(super) fn is_shut(&self, sender: End) -> bool {
        self.pipe(sender).is_shut
    }
}
