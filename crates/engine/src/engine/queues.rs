//! Calls on completion queues, shared receive queues and domains of extended reliable connections.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use proto_trp::conn::{PostError, RecvWr};

use crate::engine::Engine;
use crate::fault::{has, Fault};
use crate::objects::cq::{Cq, CqConfig, Notify};
use crate::objects::srq::{Srq, SrqConfig};
use crate::objects::xrc::{FileId, XrcDomain, XrcMembership};
use crate::types::{EngineError, WorkCompletion, LIMITS};

/// Polls in a row that may find the lock taken before the processor is yielded.
const CONTENDED_POLLS_MAX: u32 = 32;
/// Pauses of the processor after such a poll, a few microseconds.
const CONTENDED_PAUSES: u32 = 256;

impl Engine {
    /// A new completion queue.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a depth out of range.
    pub fn create_cq(&self, config: CqConfig) -> Result<Arc<Cq>, EngineError> {
        self.usable()?;
        let mut shard = self.shard.lock();
        if shard.process.cq_count >= LIMITS.max_cq {
            return Err(EngineError::NoMemory);
        }
        let cq = Cq::of(config, self.info.slot)?;
        shard.process.cq_count += 1;
        Ok(cq)
    }

    /// Sets the depth that the application asks for; never below what the attached queues need.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a depth out of range or below the number of completions that
    /// wait.
    pub fn resize_cq(&self, cq: &Cq, depth: u32) -> Result<(), EngineError> {
        self.usable()?;
        cq.resize(depth)
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while queue pairs use it.
    pub fn destroy_cq(&self, cq: &Cq) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        if cq.is_used() {
            return Err(EngineError::Busy);
        }
        shard.process.cq_count -= 1;
        Ok(())
    }

    /// Removes up to `max` completions from `cq`, oldest first, and makes progress when there is
    /// none. Returns their number.
    ///
    /// # Errors
    /// [`EngineError::Forked`] in a forked child. The device's end is no error here: flushed
    /// requests are still delivered.
    #[inline]
    pub fn poll_cq(
        &self,
        cq: &Cq,
        max: usize,
        mut take: impl FnMut(&WorkCompletion),
    ) -> Result<usize, EngineError> {
        self.not_forked()?;
        let count = |wc: &WorkCompletion| {
            if wc.qpn.slot() == self.info.slot {
                self.polled
                    .get(wc.qpn.index())
                    .count(wc.completion.is_send());
            } else {
                self.count_polled_elsewhere(wc);
            }
        };
        let mut taken = 0;
        if !cq.has_completions() || self.has_batch.load(Ordering::Relaxed) {
            taken = self.progress_for_poll(cq, max, |wc| {
                if has(Fault::CountUnlocked) {
                    count(wc);
                }
                take(wc);
            });
            if taken == max || !cq.has_completions() {
                return Ok(taken);
            }
        }
        let popped = cq.pop(max - taken, |wc| {
            count(wc);
            take(wc);
        });
        Ok(taken + popped)
    }

    /// Counts a polled completion of another lane's queue pair.
    #[cold]
    fn count_polled_elsewhere(&self, wc: &WorkCompletion) {
        if let Some(engine) = self.lanes.find(wc.qpn.slot()) {
            let polled = engine.polled.get(wc.qpn.index());
            polled.count(wc.completion.is_send());
        }
    }

    /// Makes progress; returns the number of completions that went directly to `take`.
    #[inline]
    fn progress_for_poll(&self, cq: &Cq, max: usize, take: impl FnMut(&WorkCompletion)) -> usize {
        let Some(mut shard) = self.shard.try_lock() else {
            self.count_contention();
            return 0;
        };
        shard.direct.begin(cq, max);
        if self.has_batch.load(Ordering::Relaxed) {
            self.has_batch.store(false, Ordering::Relaxed);
        }
        shard.progress_for_poll(&self.info, || cq.has_completions());
        let taken = shard.direct.end(take);
        let has_found = taken > 0 || cq.has_completions();
        if self.sleep_control.polled(&mut shard, cq, has_found) {
            drop(shard);
            self.sleep_control.give_way();
        }
        taken
    }

    #[cold]
    fn count_contention(&self) {
        // Each look takes the lock's cache line from the thread that makes progress.
        for _ in 0..CONTENDED_PAUSES {
            std::hint::spin_loop();
        }
        let polls = self.contended_polls.load(Ordering::Relaxed) + 1;
        if polls >= CONTENDED_POLLS_MAX {
            self.contended_polls.store(0, Ordering::Relaxed);
            std::thread::yield_now();
        } else {
            self.contended_polls.store(polls, Ordering::Relaxed);
        }
    }

    /// Asks for one event on the queue's channel. A completion that is already in the queue raises
    /// it only if the application has polled since the last event.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn req_notify_cq(&self, cq: &Cq, notify: Notify) -> Result<(), EngineError> {
        self.not_forked()?;
        cq.arm(notify);
        // The application is about to sleep: from now on senders have to ring the doorbell.
        let mut shard = self.shard.lock();
        shard.flush();
        self.sleep_control.armed(&mut shard);
        Ok(())
    }

    /// A new shared receive queue.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for sizes out of range, [`EngineError::NoMemory`] when there are
    /// too many.
    pub fn create_srq(&self, config: SrqConfig) -> Result<Arc<Srq>, EngineError> {
        self.usable()?;
        let mut shard = self.shard.lock();
        if shard.process.srq_count >= LIMITS.max_srq {
            return Err(EngineError::NoMemory);
        }
        let srq = Srq::new(config)?;
        shard.process.pds.acquire(srq.pd())?;
        shard.process.srq_count += 1;
        Ok(srq)
    }

    /// Sets size and limit; one that is not given stays.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: out of range, or smaller than what is posted.
    pub fn modify_srq(
        &self,
        srq: &Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), EngineError> {
        self.usable()?;
        srq.modify(max_wr, limit)
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The request was not accepted.
    pub fn post_srq_recv(&self, srq: &Srq, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.is_forked() {
            return Err(PostError::InvalidState);
        }
        srq.post(wr)
    }

    /// Ends a shared receive queue; requests that were not taken are dropped.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while queue pairs use it.
    pub fn destroy_srq(&self, srq: &Srq) -> Result<(), EngineError> {
        self.not_forked()?;
        let mut shard = self.shard.lock();
        if srq.is_used() {
            return Err(EngineError::Busy);
        }
        shard.process.pds.release(srq.pd());
        shard.process.srq_count -= 1;
        Ok(())
    }

    /// Opens the domain that goes with a file, or a new one that goes with none.
    ///
    /// # Errors
    /// [`EngineError::Invalid`]: it must be new and is not; [`EngineError::Again`]: it must not be
    /// new and is.
    pub fn open_xrc_domain(
        &self,
        file: Option<FileId>,
        may_be_new: bool,
        must_be_new: bool,
    ) -> Result<Arc<XrcDomain>, EngineError> {
        self.usable()?;
        let mut domains = self
            .xrc_domains
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        domains.retain(|(_, domain)| domain.strong_count() > 0);
        let known = domains
            .iter()
            .filter(|(id, _)| Some(*id) == file)
            .find_map(|(_, domain)| domain.upgrade().filter(|domain| domain.is_open()));
        let domain = match known {
            Some(_) if must_be_new => return Err(EngineError::Invalid),
            Some(domain) => domain,
            None if file.is_some() && !may_be_new => return Err(EngineError::Again),
            None => {
                let domain = XrcDomain::new()?;
                if let Some(file) = file {
                    domains.push((file, Arc::downgrade(&domain)));
                }
                domain
            }
        };
        domain.open();
        Ok(domain)
    }

    /// A new shared receive queue of a domain, whose completions go to `cq`.
    ///
    /// # Errors
    /// As [`Engine::create_srq`]; [`EngineError::Invalid`] when the domain's queues have another
    /// protection domain.
    pub fn create_xrc_srq(
        &self,
        domain: &Arc<XrcDomain>,
        cq: &Arc<Cq>,
        config: SrqConfig,
    ) -> Result<(Arc<Srq>, XrcMembership), EngineError> {
        let srq = self.create_srq(config)?;
        match XrcMembership::join(domain, &srq, cq) {
            Ok(membership) => Ok((srq, membership)),
            Err(error) => {
                self.destroy_srq(&srq)?;
                Err(error)
            }
        }
    }

    /// Ends a queue of a domain: messages for it are refused from now on.
    ///
    /// # Errors
    /// [`EngineError::Forked`].
    pub fn destroy_xrc_srq(
        &self,
        srq: &Srq,
        membership: &XrcMembership,
    ) -> Result<(), EngineError> {
        self.not_forked()?;
        membership.leave();
        self.destroy_srq(srq)
    }
}
