//! Extended reliable connections (XRC): one connection to a process serves all of its shared
//! receive queues.
//!
//! An initiator queue pair sends, and names a queue with each request. A target queue pair receives
//! and has no queue, completion queue or protection domain of its own. The domain connects targets
//! and queues: a target takes receive requests from any queue of its domain, and completes them in
//! the completion queue of that queue. Packets of writes, reads and atomics are checked when they
//! arrive, before it is known which queue they belong to. All queues of a domain therefore have one
//! protection domain, which is also that of the targets.
//!
//! A domain belongs to this process: another process that opens the same file has a domain of its
//! own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use proto_trp::conn::{NoSharedRecv, Sge, SharedRecv};
use urdma_types::Qpn;

use super::cq::{Cq, CqConfig};
use super::srq::Srq;
use crate::lock::SpinLock;
use crate::types::{EngineError, Pd, WorkCompletion, LIMITS};

/// Requests that a target may have taken and not completed: the one of the message that is
/// arriving. Those of later messages may be of other queues.
pub(crate) const IN_USE_MAX: u32 = 1;

/// A domain; made by [`super::Engine::open_xrc_domain`].
#[derive(Debug)]
pub struct XrcDomain {
    /// Protection domain of its queues, [`Pd::NONE`] while there is none.
    pd: AtomicU32,
    /// The send completion queue of targets, which never send.
    unused_cq: Arc<Cq>,
    members: SpinLock<Members>,
}

#[derive(Debug, Default)]
struct Members {
    queues: HashMap<u32, XrcQueue>,
    /// Times that it was opened and not closed.
    handles: u32,
    /// Target queue pairs.
    targets: u32,
    /// The number that was given last.
    last_number: u32,
}

#[derive(Debug)]
struct XrcQueue {
    srq: Arc<Srq>,
    cq: Arc<Cq>,
}

/// A file, which callers open a domain with: device and inode.
pub type FileId = (u64, u64);

/// Domains that were opened with a file.
pub(crate) type XrcDomains = Mutex<Vec<(FileId, Weak<XrcDomain>)>>;

/// The role of a queue pair in extended reliable connections.
#[derive(Clone, Debug, Default)]
pub enum XrcRole {
    /// Nothing: it is a plain one.
    #[default]
    None,
    /// It names a shared receive queue of the peer with each request, and receives no messages.
    Initiator,
    /// It serves the queues of the domain, and sends nothing.
    Target(Arc<XrcDomain>),
}

impl XrcDomain {
    /// Whether it was opened more often than closed.
    pub(crate) fn is_open(&self) -> bool {
        self.members.lock().handles > 0
    }

    /// A domain without members, not open yet.
    pub(crate) fn new() -> Result<Arc<Self>, EngineError> {
        let unused_cq = Cq::new(CqConfig::with_depth(1))?;
        Ok(Arc::new(Self {
            pd: AtomicU32::new(Pd::NONE.number()),
            unused_cq,
            members: SpinLock::new(Members::default()),
        }))
    }

    /// Counts one more [`super::Engine::open_xrc_domain`].
    pub(crate) fn open(&self) {
        self.members.lock().handles += 1;
    }

    /// Undoes one [`super::Engine::open_xrc_domain`].
    ///
    /// # Errors
    /// [`EngineError::Busy`]: it is the last one, and queues or queue pairs belong to the domain.
    pub fn close(&self) -> Result<(), EngineError> {
        let mut members = self.members.lock();
        let is_used = members.targets > 0 || !members.queues.is_empty();
        if members.handles == 1 && is_used {
            return Err(EngineError::Busy);
        }
        members.handles -= 1;
        Ok(())
    }

    /// What to give [`super::QpConfig`] for the completion queues of a target.
    pub fn unused_cq(&self) -> &Arc<Cq> {
        &self.unused_cq
    }

    /// The protection domain of its queues.
    #[inline]
    pub(crate) fn pd(&self) -> Pd {
        Pd(self.pd.load(Ordering::Relaxed))
    }

    /// Adds a queue and gives its number.
    fn add_queue(&self, srq: &Arc<Srq>, cq: &Arc<Cq>) -> Result<u32, EngineError> {
        let mut members = self.members.lock();
        if !members.queues.is_empty() && self.pd() != srq.pd() {
            return Err(EngineError::Invalid);
        }
        // There are fewer queues than numbers of 24 bits.
        let mut number = members.last_number;
        loop {
            number = number % 0x00ff_ffff + 1;
            if !members.queues.contains_key(&number) {
                break;
            }
        }
        cq.attach_shared(members.targets * IN_USE_MAX)?;
        self.pd.store(srq.pd().number(), Ordering::Relaxed);
        members.last_number = number;
        let queue = XrcQueue {
            srq: Arc::clone(srq),
            cq: Arc::clone(cq),
        };
        members.queues.insert(number, queue);
        Ok(number)
    }

    fn remove_queue(&self, number: u32) {
        let mut members = self.members.lock();
        if let Some(queue) = members.queues.remove(&number) {
            queue.cq.detach_shared(members.targets * IN_USE_MAX);
        }
        if members.queues.is_empty() {
            self.pd.store(Pd::NONE.number(), Ordering::Relaxed);
        }
    }

    /// Reserves room for the completions of one more target.
    pub(super) fn attach_target(&self) -> Result<(), EngineError> {
        let mut members = self.members.lock();
        let mut reserved = Vec::new();
        for queue in members.queues.values() {
            if let Err(error) = queue.cq.reserve(IN_USE_MAX) {
                reserved
                    .iter()
                    .for_each(|cq: &Arc<Cq>| cq.unreserve(IN_USE_MAX));
                return Err(error);
            }
            reserved.push(Arc::clone(&queue.cq));
        }
        members.targets += 1;
        Ok(())
    }

    /// Undoes [`XrcDomain::attach_target`].
    pub(super) fn detach_target(&self) {
        let mut members = self.members.lock();
        members.targets -= 1;
        for queue in members.queues.values() {
            queue.cq.unreserve(IN_USE_MAX);
        }
    }

    /// Removes the unpolled completions of a target.
    pub(crate) fn purge(&self, target: Qpn) {
        for queue in self.members.lock().queues.values() {
            queue.cq.purge(|wc| wc.qpn == target);
        }
    }

    /// Takes the oldest request off a queue.
    #[cold]
    pub(crate) fn take(&self, number: u32, sges: &mut [Sge]) -> Result<SharedRecv, NoSharedRecv> {
        let members = self.members.lock();
        let queue = members.queues.get(&number).ok_or(NoSharedRecv::NoQueue)?;
        if !queue.cq.takes_shared() {
            return Err(NoSharedRecv::Empty);
        }
        queue.srq.take(sges).ok_or(NoSharedRecv::Empty)
    }

    /// Completes a request of a queue; dropped when the queue has been destroyed.
    pub(crate) fn complete(&self, number: u32, completion: &WorkCompletion) {
        if let Some(queue) = self.members.lock().queues.get(&number) {
            queue.cq.push(completion);
        }
    }
}

/// A shared receive queue of a domain; made by [`super::Engine::create_xrc_srq`].
#[derive(Debug)]
pub struct XrcMembership {
    domain: Arc<XrcDomain>,
    number: u32,
}

impl XrcMembership {
    /// Adds a queue to a domain.
    pub(crate) fn join(
        domain: &Arc<XrcDomain>,
        srq: &Arc<Srq>,
        cq: &Arc<Cq>,
    ) -> Result<Self, EngineError> {
        let number = domain.add_queue(srq, cq)?;
        Ok(Self {
            domain: Arc::clone(domain),
            number,
        })
    }

    /// Takes the queue out of the domain.
    pub(crate) fn leave(&self) {
        self.domain.remove_queue(self.number);
    }

    /// The queue's number, by which peers name it.
    pub fn number(&self) -> u32 {
        self.number
    }
}

const _: () = assert!(LIMITS.max_srq < 0x00ff_ffff);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::events::{AsyncEvent, EventSink};
    use crate::objects::srq::SrqConfig;
    use proto_trp::conn::{Completion, RecvWr};

    struct Sink;

    impl EventSink for Sink {
        fn async_event(&self, _event: AsyncEvent) {}
    }

    fn cq() -> Arc<Cq> {
        Cq::new(CqConfig::with_depth(2)).unwrap()
    }

    fn srq(pd: Pd) -> Arc<Srq> {
        let config = SrqConfig {
            pd,
            max_wr: 4,
            max_sge: 1,
            limit: 0,
            cookie: 0,
            events: Arc::new(Sink),
        };
        Srq::new(config).unwrap()
    }

    fn completion() -> WorkCompletion {
        WorkCompletion {
            completion: Completion {
                wr_id: 5,
                ..WorkCompletion::NONE.completion
            },
            ..WorkCompletion::NONE
        }
    }

    #[test]
    fn queues_of_a_domain_share_a_protection_domain_and_differ_in_number() {
        let domain = XrcDomain::new().unwrap();
        assert_eq!(domain.pd(), Pd::NONE);
        let first = domain.add_queue(&srq(Pd(1)), &cq()).unwrap();
        let second = domain.add_queue(&srq(Pd(1)), &cq()).unwrap();
        assert_ne!(first, second);
        let foreign = domain.add_queue(&srq(Pd(2)), &cq());
        assert_eq!(foreign, Err(EngineError::Invalid));
        assert_eq!(domain.pd(), Pd(1));
        domain.remove_queue(first);
        domain.remove_queue(second);
        assert_eq!(domain.pd(), Pd::NONE);
        assert!(domain.add_queue(&srq(Pd(2)), &cq()).is_ok());
    }

    #[test]
    fn requests_come_off_the_queue_that_is_named_and_complete_where_its_completions_go() {
        let domain = XrcDomain::new().unwrap();
        let (queue, completions) = (srq(Pd(1)), cq());
        domain.attach_target().unwrap();
        let number = domain.add_queue(&queue, &completions).unwrap();
        domain.attach_target().unwrap();
        let mut sges = [Sge::default(); 1];
        assert_eq!(domain.take(number, &mut sges), Err(NoSharedRecv::Empty));
        assert_eq!(
            domain.take(number + 1, &mut sges),
            Err(NoSharedRecv::NoQueue)
        );
        let wr = RecvWr {
            wr_id: 5,
            sges: &[],
        };
        for _ in 0..3 {
            queue.post(&wr).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(
                domain.take(number, &mut sges).map(|taken| taken.wr_id),
                Ok(5)
            );
            domain.complete(number, &completion());
        }
        // As many wait as the application has asked for: the next one stays posted.
        assert_eq!(domain.take(number, &mut sges), Err(NoSharedRecv::Empty));
        assert_eq!(
            completions.pop(9, |wc| assert_eq!(wc.completion.wr_id, 5)),
            2
        );
        domain.detach_target();
        domain.remove_queue(number);
        domain.complete(number, &completion());
        assert!(!completions.has_completions() && !completions.is_used());
        domain.detach_target();
    }

    #[test]
    fn last_close_of_a_domain_with_members_is_refused() {
        let domain = XrcDomain::new().unwrap();
        domain.members.lock().handles = 2;
        domain.attach_target().unwrap();
        assert_eq!(domain.close(), Ok(()));
        assert_eq!(domain.close(), Err(EngineError::Busy));
        domain.detach_target();
        assert_eq!(domain.close(), Ok(()));
        assert!(!domain.is_open());
    }
}
