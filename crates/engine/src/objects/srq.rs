//! Shared receive queues: any of several queue pairs takes a request when a message for it begins
//! to arrive.
//!
//! Posting takes the queue's own lock and not the engine's. No queue pair has to be notified, since
//! a sender that found the queue empty tries again by itself. Requests are taken under the engine's
//! lock (order: engine, queue).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use proto_trp::conn::{PostError, RecvWr, Sge, SharedRecv};
use urdma_zeroed::ZeroedSlice;

use super::events::{AsyncEvent, AsyncKind, EventSink};
use crate::lock::SpinLock;
use crate::types::{EngineError, Pd, LIMITS};

/// The configuration of a new shared receive queue.
#[derive(Clone)]
pub struct SrqConfig {
    /// Protection domain of its lists; queue pairs that use it may have others.
    pub pd: Pd,
    /// Work requests, 1..
    pub max_wr: u32,
    /// Elements of a work request.
    pub max_sge: u32,
    /// Fewer requests than this raise an event once; 0 for never.
    pub limit: u32,
    /// The caller's value for it in [`AsyncEvent`].
    pub cookie: u64,
    /// The receiver of its events.
    pub events: Arc<dyn EventSink>,
}

/// A shared receive queue; made by [`super::Engine::create_srq`].
pub struct Srq {
    pd: Pd,
    max_sge: u32,
    cookie: u64,
    events: Arc<dyn EventSink>,
    /// Queue pairs that use it.
    users: AtomicU32,
    ring: SpinLock<Ring>,
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq")
            .field("pd", &self.pd)
            .finish_non_exhaustive()
    }
}

/// Why no receive request was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// None is posted.
    Empty,
    /// The oldest one does not suit.
    Unwanted,
}

/// Requests in the order in which they were posted, each with `max_sge` elements.
struct Ring {
    requests: ZeroedSlice<SharedRecv>,
    sges: ZeroedSlice<Sge>,
    head: usize,
    len: usize,
    limit: u32,
}

impl Ring {
    fn new(max_wr: u32, max_sge: u32, limit: u32) -> Self {
        let entries = max_wr as usize;
        Self {
            requests: ZeroedSlice::new(entries),
            sges: ZeroedSlice::new(entries * max_sge as usize),
            head: 0,
            len: 0,
            limit,
        }
    }

    /// The place `ahead` of the oldest.
    fn place(&self, ahead: usize) -> usize {
        let at = self.head + ahead;
        if at >= self.requests.len() {
            at - self.requests.len()
        } else {
            at
        }
    }

    /// Whether fewer requests are left than the armed limit; disarms the limit.
    fn falls_below_limit(&mut self) -> bool {
        let falls = self.len < self.limit as usize;
        if falls {
            self.limit = 0;
        }
        falls
    }
}

fn is_size(max_wr: u32) -> bool {
    (1..=LIMITS.max_srq_wr).contains(&max_wr)
}

impl Srq {
    /// An empty queue.
    pub(crate) fn new(config: SrqConfig) -> Result<Arc<Self>, EngineError> {
        if !is_size(config.max_wr)
            || !(1..=LIMITS.max_sge).contains(&config.max_sge)
            || config.limit > config.max_wr
        {
            return Err(EngineError::Invalid);
        }
        Ok(Arc::new(Self {
            pd: config.pd,
            max_sge: config.max_sge,
            cookie: config.cookie,
            events: config.events,
            users: AtomicU32::new(0),
            ring: SpinLock::new(Ring::new(config.max_wr, config.max_sge, config.limit)),
        }))
    }

    /// Its protection domain.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// Elements of a work request.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Work requests that it holds, and the armed limit.
    pub fn size_and_limit(&self) -> (u32, u32) {
        let ring = self.ring.lock();
        let size = u32::try_from(ring.requests.len()).unwrap_or(u32::MAX);
        (size, ring.limit)
    }

    /// One more queue pair uses it.
    pub(crate) fn acquire(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// One queue pair less uses it.
    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether queue pairs use it.
    pub(crate) fn is_used(&self) -> bool {
        self.users.load(Ordering::Relaxed) > 0
    }

    /// Adds a request.
    ///
    /// # Errors
    /// The request was not accepted.
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let max_sge = self.max_sge as usize;
        let count = wr.sges.len();
        if count > max_sge {
            return Err(PostError::TooManySges);
        }
        let mut ring = self.ring.lock();
        if ring.len == ring.requests.len() {
            return Err(PostError::QueueFull);
        }
        let place = ring.place(ring.len);
        let at = place * max_sge;
        ring.sges[at..at + count].copy_from_slice(wr.sges);
        ring.requests[place] = SharedRecv {
            wr_id: wr.wr_id,
            sge_count: u8::try_from(count).map_err(|_| PostError::TooManySges)?,
        };
        ring.len += 1;
        Ok(())
    }

    /// Takes the oldest request off; `sges` has room for its list.
    pub(crate) fn take(&self, sges: &mut [Sge]) -> Option<SharedRecv> {
        self.take_if(sges, |_| true).ok()
    }

    /// Takes the oldest request off if its list is `wanted`; `sges` has room for the list.
    ///
    /// # Errors
    /// The request stays where it is.
    pub(crate) fn take_if(
        &self,
        sges: &mut [Sge],
        wanted: impl FnOnce(&[Sge]) -> bool,
    ) -> Result<SharedRecv, NotTaken> {
        let mut ring = self.ring.lock();
        if ring.len == 0 {
            return Err(NotTaken::Empty);
        }
        let place = ring.head;
        let taken = ring.requests[place];
        let (at, count) = (place * self.max_sge as usize, usize::from(taken.sge_count));
        let list = &ring.sges[at..at + count];
        if !wanted(list) {
            return Err(NotTaken::Unwanted);
        }
        sges[..count].copy_from_slice(list);
        ring.head = ring.place(1);
        ring.len -= 1;
        let falls = ring.falls_below_limit();
        drop(ring);
        if falls {
            self.tell_limit();
        }
        Ok(taken)
    }

    #[cold]
    fn tell_limit(&self) {
        self.events.async_event(AsyncEvent {
            kind: AsyncKind::SrqLimitReached,
            element: Some(self.cookie),
        });
    }

    /// Sets size and limit; one that is not given stays. A queue that already holds fewer requests
    /// than the limit raises the event at once.
    pub(crate) fn modify(
        &self,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), EngineError> {
        let mut ring = self.ring.lock();
        let size = max_wr.map_or(ring.requests.len(), |wr| wr as usize);
        if max_wr.is_some_and(|wr| !is_size(wr))
            || size < ring.len
            || limit.is_some_and(|limit| limit as usize > size)
        {
            return Err(EngineError::Invalid);
        }
        if let Some(max_wr) = max_wr {
            let mut other = Ring::new(max_wr, self.max_sge, ring.limit);
            let max_sge = self.max_sge as usize;
            for ahead in 0..ring.len {
                let from = ring.place(ahead);
                other.requests[ahead] = ring.requests[from];
                other.sges[ahead * max_sge..][..max_sge]
                    .copy_from_slice(&ring.sges[from * max_sge..][..max_sge]);
            }
            other.len = ring.len;
            *ring = other;
        }
        if let Some(limit) = limit {
            ring.limit = limit;
        }
        let falls = ring.falls_below_limit();
        drop(ring);
        if falls {
            self.tell_limit();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Sink(Mutex<Vec<AsyncEvent>>);

    impl EventSink for Sink {
        fn async_event(&self, event: AsyncEvent) {
            self.0.lock().unwrap().push(event);
        }
    }

    fn srq(max_wr: u32, limit: u32) -> (Arc<Srq>, Arc<Sink>) {
        let sink = Arc::new(Sink::default());
        let config = SrqConfig {
            pd: Pd(1),
            max_wr,
            max_sge: 2,
            limit,
            cookie: 7,
            events: sink.clone(),
        };
        (Srq::new(config).unwrap(), sink)
    }

    fn post(srq: &Srq, wr_id: u64) -> Result<(), PostError> {
        let sge = Sge {
            addr: wr_id,
            length: 8,
            lkey: 1,
        };
        srq.post(&RecvWr {
            wr_id,
            sges: &[sge],
        })
    }

    fn take(srq: &Srq) -> Option<u64> {
        let mut sges = [Sge::default(); 2];
        let taken = srq.take(&mut sges)?;
        assert_eq!((sges[0].addr, taken.sge_count), (taken.wr_id, 1));
        Some(taken.wr_id)
    }

    #[test]
    fn requests_come_out_in_order_round_the_ring() {
        let (srq, _) = srq(3, 0);
        let mut next = 0;
        for wr_id in 0..3 {
            post(&srq, wr_id).unwrap();
        }
        assert_eq!(post(&srq, 9), Err(PostError::QueueFull));
        for wr_id in 3..20 {
            assert_eq!(take(&srq), Some(next));
            next += 1;
            post(&srq, wr_id).unwrap();
        }
        assert_eq!(
            (take(&srq), take(&srq), take(&srq), take(&srq)),
            (Some(17), Some(18), Some(19), None)
        );
    }

    #[test]
    fn request_that_is_not_wanted_stays_the_oldest_and_tells_no_limit() {
        let (srq, sink) = srq(4, 1);
        let mut sges = [Sge::default(); 2];
        let longer_than = |octets| move |list: &[Sge]| list[0].length > octets;
        let taken = srq.take_if(&mut sges, longer_than(8));
        assert_eq!(taken, Err(NotTaken::Empty));
        post(&srq, 1).unwrap();
        let taken = srq.take_if(&mut sges, longer_than(8));
        assert_eq!(taken, Err(NotTaken::Unwanted));
        assert_eq!(sink.0.lock().unwrap().len(), 0);
        let taken = srq.take_if(&mut sges, longer_than(7));
        assert_eq!(taken.map(|taken| taken.wr_id), Ok(1));
        assert_eq!(sink.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn limit_is_told_once_when_fewer_are_left() {
        let (srq, sink) = srq(4, 2);
        for wr_id in 0..4 {
            post(&srq, wr_id).unwrap();
        }
        let told = || sink.0.lock().unwrap().len();
        take(&srq);
        take(&srq);
        assert_eq!(told(), 0);
        take(&srq);
        assert_eq!((told(), srq.size_and_limit()), (1, (4, 0)));
        take(&srq);
        assert_eq!(told(), 1);
        let event = sink.0.lock().unwrap()[0];
        assert_eq!(
            (event.kind, event.element),
            (AsyncKind::SrqLimitReached, Some(7))
        );
    }

    #[test]
    fn modify_keeps_what_is_posted_and_refuses_less_room() {
        let (srq, sink) = srq(4, 0);
        for wr_id in 0..4 {
            post(&srq, wr_id).unwrap();
        }
        take(&srq);
        post(&srq, 4).unwrap();
        assert_eq!(srq.modify(Some(3), None), Err(EngineError::Invalid));
        assert_eq!(srq.modify(None, Some(5)), Err(EngineError::Invalid));
        assert_eq!(
            srq.modify(Some(LIMITS.max_srq_wr + 1), None),
            Err(EngineError::Invalid)
        );
        srq.modify(Some(6), Some(5)).unwrap();
        // Four are posted, fewer than the limit: the event is raised and the limit disarmed.
        assert_eq!(srq.size_and_limit(), (6, 0));
        assert_eq!(sink.0.lock().unwrap().len(), 1);
        post(&srq, 5).unwrap();
        post(&srq, 6).unwrap();
        let order: Vec<_> = std::iter::from_fn(|| take(&srq)).collect();
        assert_eq!(order, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        let (_, sink) = srq(1, 0);
        for (max_wr, max_sge, limit) in [
            (0, 1, 0),
            (LIMITS.max_srq_wr + 1, 1, 0),
            (1, LIMITS.max_sge + 1, 0),
            (1, 1, 2),
        ] {
            let config = SrqConfig {
                pd: Pd(1),
                max_wr,
                max_sge,
                limit,
                cookie: 0,
                events: sink.clone(),
            };
            assert_eq!(Srq::new(config).unwrap_err(), EngineError::Invalid);
        }
    }
}
