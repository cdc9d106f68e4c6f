//! Queue pairs as callers hold them, and the counts by which work requests reserve room for
//! completions.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use proto_trp::conn::Completion;
use urdma_trace::Recorder;
use urdma_types::Qpn;

use super::cq::Cq;
use super::events::EventSink;
use super::srq::Srq;
use super::xrc::XrcRole;
use crate::types::{Pd, QpCaps, WorkCompletion};

/// The configuration of a new queue pair.
#[derive(Clone)]
pub struct QpConfig {
    /// Protection domain; does not count for the target of extended reliable connections.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete; may be the same.
    pub recv_cq: Arc<Cq>,
    /// Where receive requests come from; if anywhere, `max_recv_wr` and `max_recv_sge` do not
    /// count.
    pub srq: Option<Arc<Srq>>,
    /// Its role in extended reliable connections.
    pub xrc: XrcRole,
    /// Nothing is acknowledged or sent again (UC).
    pub unreliable: bool,
    /// It goes to ERR when its peer has ended, as the queue pairs of an RNIC do.
    pub fails_with_peer: bool,
    /// Send work requests, 1..; rounded up.
    pub max_send_wr: u32,
    /// Receive work requests, 0..; rounded up.
    pub max_recv_wr: u32,
    /// Elements of a send work request.
    pub max_send_sge: u32,
    /// Elements of a receive work request.
    pub max_recv_sge: u32,
    /// Inline octets of a send work request.
    pub max_inline: u32,
    /// A datagram queue pair gets what it sends to a multicast group that it is attached to.
    pub hears_itself: bool,
    /// The caller's value for it in [`super::AsyncEvent`].
    pub cookie: u64,
    /// Where its asynchronous events go.
    pub events: Arc<dyn EventSink>,
}

impl QpConfig {
    /// A reliable connection with one completion queue: 128 requests each way, 4 elements each, 128
    /// inline octets.
    pub fn new(pd: Pd, cq: &Arc<Cq>, events: Arc<dyn EventSink>) -> Self {
        Self {
            pd,
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            srq: None,
            xrc: XrcRole::None,
            unreliable: false,
            fails_with_peer: false,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 128,
            hears_itself: true,
            cookie: 0,
            events,
        }
    }
}

/// A queue pair; made by [`super::Engine::create_qp`].
pub struct Qp {
    number: Qpn,
    caps: QpCaps,
    pd: Pd,
    recv_pd: Pd,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    xrc: XrcRole,
    cookie: u64,
    events: Arc<dyn EventSink>,
    /// Records what happens to it.
    recorder: Recorder,
    /// Whether the application gets an event when the send queue has drained.
    wants_drained: AtomicBool,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl Qp {
    /// The caller's side of a queue pair.
    pub(crate) fn new(
        number: Qpn,
        caps: QpCaps,
        config: &QpConfig,
        recorder: &Recorder,
    ) -> Arc<Self> {
        Arc::new(Self {
            number,
            caps,
            pd: config.pd,
            recv_pd: config.srq.as_ref().map_or(config.pd, |srq| srq.pd()),
            send_cq: Arc::clone(&config.send_cq),
            recv_cq: Arc::clone(&config.recv_cq),
            srq: config.srq.clone(),
            xrc: config.xrc.clone(),
            cookie: config.cookie,
            events: Arc::clone(&config.events),
            recorder: recorder.clone(),
            wants_drained: AtomicBool::new(false),
        })
    }

    /// Its number.
    #[inline]
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// Its sizes.
    #[inline]
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// Its protection domain.
    #[inline]
    pub fn pd(&self) -> Pd {
        match &self.xrc {
            XrcRole::None | XrcRole::Initiator => self.pd,
            XrcRole::Target(domain) => domain.pd(),
        }
    }

    /// The protection domain of the lists of its receive requests: that of the shared queue, if
    /// they come from one.
    #[inline]
    pub(crate) fn recv_pd(&self) -> Pd {
        match &self.xrc {
            XrcRole::None | XrcRole::Initiator => self.recv_pd,
            XrcRole::Target(domain) => domain.pd(),
        }
    }

    /// Its role in extended reliable connections.
    #[inline]
    pub fn xrc(&self) -> &XrcRole {
        &self.xrc
    }

    /// Where its sends complete.
    #[inline]
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    /// Where its receives complete.
    #[inline]
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }

    /// Where its receive requests come from, if not from a queue of its own.
    #[inline]
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// A completion of it, with the fields that the application gets in addition.
    #[inline(always)]
    pub(crate) fn work_completion(
        &self,
        remote_qpn: u32,
        completion: Completion,
    ) -> WorkCompletion {
        WorkCompletion {
            completion,
            qpn: self.number,
            remote_qpn,
            packet_type: 0,
        }
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Sets whether the next drain of the send queue is an event.
    pub fn tell_when_drained(&self, wanted: bool) {
        self.wants_drained.store(wanted, Ordering::Relaxed);
    }

    pub(crate) fn wants_drained(&self) -> bool {
        self.wants_drained.load(Ordering::Relaxed)
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn events(&self) -> &dyn EventSink {
        &*self.events
    }
}

/// Completions that a queue pair has pushed into the rings of its queues; wraps round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) send_pushed: u32,
    pub(crate) recv_pushed: u32,
}

/// Those that were polled; wraps round. Written under the completion queue's lock.
#[derive(Debug, Default)]
pub(crate) struct Polled {
    send: AtomicU32,
    recv: AtomicU32,
}

impl Polled {
    /// One more was polled.
    #[inline]
    pub(crate) fn count(&self, is_send: bool) {
        let word = if is_send { &self.send } else { &self.recv };
        let count = word.load(Ordering::Relaxed);
        #[cfg(test)]
        crate::check::point();
        word.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Send completions that were pushed and not polled.
    #[inline]
    pub(crate) fn send_waiting(&self, counts: &Counts) -> u32 {
        counts
            .send_pushed
            .wrapping_sub(self.send.load(Ordering::Acquire))
    }

    /// Receive completions that were pushed and not polled.
    #[inline]
    pub(crate) fn recv_waiting(&self, counts: &Counts) -> u32 {
        counts
            .recv_pushed
            .wrapping_sub(self.recv.load(Ordering::Acquire))
    }

    /// Resets the counts after all completions were purged.
    pub(crate) fn reset(&self, counts: &Counts) {
        self.send.store(counts.send_pushed, Ordering::Release);
        self.recv.store(counts.recv_pushed, Ordering::Release);
    }
}

/// [`Polled`] of every index, reachable without a lock. Pages of indices that are not in use are
/// never touched, and take no memory.
#[derive(Debug)]
pub(crate) struct PolledTable(Box<[Polled; INDICES]>);

const INDICES: usize = 1 << 16;

impl PolledTable {
    /// An empty table.
    pub(crate) fn new() -> Self {
        let layout = std::alloc::Layout::new::<[Polled; INDICES]>();
        // SAFETY: the layout has a size.
        let zeroes = unsafe { std::alloc::alloc_zeroed(layout) };
        if zeroes.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: allocated with the layout of the box's content, of which zeroes are a value.
        Self(unsafe { Box::from_raw(zeroes.cast()) })
    }

    /// The counts of `index`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u16) -> &Polled {
        &self.0[usize::from(index)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polled_across_the_wrap_counts_what_waits() {
        let table = PolledTable::new();
        let polled = table.get(700);
        let mut counts = Counts {
            send_pushed: u32::MAX,
            recv_pushed: 5,
        };
        polled.reset(&counts);
        assert_eq!(polled.send_waiting(&counts), 0);
        counts.send_pushed = counts.send_pushed.wrapping_add(3);
        polled.count(true);
        assert_eq!(polled.send_waiting(&counts), 2);
        assert_eq!(table.get(700).recv_waiting(&counts), 0);
        assert_eq!(table.get(0).send_waiting(&Counts::default()), 0);
    }
}
