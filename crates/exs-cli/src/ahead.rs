//! The receives of messages that are sent back.
//!
//! A short message takes about ten times as long as its receive takes to be posted, so that is done
//! while the message is on its way: another receive is posted already. A long one is received into
//! the memory that the one before it was received into, which caches may hold.

use urdma_exs::{Buffer, Socket};

use crate::end;
use crate::error::Error;

/// The longest message with two receives.
const SHORT_OCTETS: usize = 16 << 10;

/// How many buffers of messages of this length are used in turn.
pub(crate) fn buffers_in_turn(octets: usize) -> usize {
    match octets <= SHORT_OCTETS {
        true => 2,
        false => 1,
    }
}

/// Receives of messages of one length, and buffers for more.
#[derive(Debug)]
pub(crate) struct Ahead {
    free: Vec<Buffer>,
    posted: usize,
    /// How many are to be posted.
    most: usize,
}

impl Ahead {
    /// Receives of `octets` octets; as many buffers as those, and `others` more.
    pub(crate) fn new(octets: usize, others: usize) -> Result<Self, Error> {
        let most = buffers_in_turn(octets);
        Ok(Self {
            free: end::buffers(most + others, octets)?,
            posted: 0,
            most,
        })
    }

    /// A message has come.
    pub(crate) fn received(&mut self) {
        self.posted -= 1;
    }

    /// A buffer is not in use any more.
    pub(crate) fn put(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Before a message is sent: a receive for the next one must be posted.
    #[inline]
    pub(crate) fn before(&mut self, socket: &mut Socket) -> Result<(), Error> {
        self.post(1, socket)
    }

    /// After a message is sent.
    #[inline]
    pub(crate) fn after(&mut self, socket: &mut Socket) -> Result<(), Error> {
        self.post(self.most, socket)
    }

    #[inline]
    fn post(&mut self, most: usize, socket: &mut Socket) -> Result<(), Error> {
        while self.posted < most {
            let Some(buffer) = self.free.pop() else {
                return Ok(());
            };
            let octets = buffer.len();
            end::recv(socket, buffer, octets, true)?;
            self.posted += 1;
        }
        Ok(())
    }
}
