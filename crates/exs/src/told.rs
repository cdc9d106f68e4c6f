//! The protocol, which is told late which work requests are complete.

use urdma_stream::{Buffer, CallError, Event, RecvId, RingCopy, SendId, Stream};

use crate::clock::Clock;
use crate::registrations::Posted;

/// A stream and the completions of work requests that it has not been told of.
///
/// The peer waits for the answer to what it has sent, and not for what the stream keeps of sends.
/// So the stream is told of them where it is used next, by [`ToldStream::told`], except by the few
/// calls that are the way from a short message to its answer, which need not know of them.
#[derive(Debug)]
pub(crate) struct ToldStream {
    stream: Stream<Posted>,
    /// Numbers of the oldest work request that the stream has not been told of, and behind the last
    /// that is complete.
    oldest: u64,
    completed: u64,
}

impl ToldStream {
    pub(crate) fn new(stream: Stream<Posted>) -> Self {
        Self {
            stream,
            oldest: 0,
            completed: 0,
        }
    }

    /// The work requests up to this one are complete. The stream is not told now.
    #[inline]
    pub(crate) fn complete(&mut self, number: u64) {
        self.completed = number + 1;
    }

    /// Tells the stream which work requests are complete; whether it has not known of them.
    #[inline]
    pub(crate) fn tell(&mut self, clock: &mut Clock) -> bool {
        let is_new = self.completed > self.oldest;
        if is_new {
            self.tell_new(clock);
        }
        is_new
    }

    #[inline(never)]
    fn tell_new(&mut self, clock: &mut Clock) {
        let count = self.completed - self.oldest;
        self.oldest = self.completed;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.stream.handle_sent(count, clock);
    }

    /// The stream, which knows all work requests that are complete.
    #[inline]
    pub(crate) fn told(&mut self, clock: &mut Clock) -> &mut Stream<Posted> {
        self.tell(clock);
        &mut self.stream
    }

    /// The stream as far as it has been told.
    #[inline]
    pub(crate) fn as_told(&self) -> &Stream<Posted> {
        &self.stream
    }

    /// Whether the stream has been told that this work request is complete.
    pub(crate) fn knows(&self, number: u64) -> bool {
        number < self.oldest
    }

    /// [`Stream::poll_event`]. What the stream has not been told of may have more events.
    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<Event<Posted>> {
        self.stream.poll_event()
    }

    /// [`Stream::poll_complete`].
    #[inline]
    pub(crate) fn poll_complete(&mut self) -> Option<Event<Posted>> {
        self.stream.poll_complete()
    }

    /// [`Stream::join`].
    #[inline]
    pub(crate) fn join(&mut self, len_octets: u64, memory: Posted) -> SendId {
        self.stream.join(len_octets, memory)
    }

    /// [`Stream::recv`].
    #[inline]
    pub(crate) fn recv(
        &mut self,
        buffer: Buffer,
        memory: Posted,
        waitall: bool,
    ) -> Result<RecvId, (CallError, Posted)> {
        self.stream.recv(buffer, memory, waitall)
    }

    /// [`Stream::receive_lone`].
    #[inline]
    pub(crate) fn receive_lone(
        &mut self,
        word: u32,
        written_octets: u32,
        is_last: bool,
        copy: impl FnOnce(&RingCopy, &mut Posted),
    ) -> bool {
        self.stream
            .receive_lone(word, written_octets, is_last, copy)
    }

    /// [`Stream::send_lone`].
    #[inline]
    pub(crate) fn send_lone(
        &mut self,
        len_octets: u64,
        memory: Posted,
        clock: &mut Clock,
    ) -> SendId {
        self.stream.send_lone(len_octets, memory, clock)
    }
}
