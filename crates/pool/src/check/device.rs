//! A device with reliable connections and initiators: each executes its work requests in order, and
//! completes them in order. An initiator sends nothing to a node before the requests to the node
//! before are complete.

use std::collections::VecDeque;

use super::Finding;
use crate::types::{NodeId, PhysicalId, Sge, Status, Transmit};
use crate::{Config, Transport};

/// Why a queue pair is in ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The node has refused the oldest request.
    Refusal,
    /// The node did not answer the oldest request.
    Silence,
    /// Something else.
    Event,
}

/// A work request whose place is not free yet.
#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) work: Transmit,
    pub(super) elements: Vec<Sge>,
    pub(super) serial: u64,
    is_executed: bool,
    is_acknowledged: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) id: PhysicalId,
    /// None of an initiator.
    pub(super) node: Option<NodeId>,
    pub(super) broken: Option<Broken>,
    /// Work requests whose places in the send queue are taken.
    pub(super) posted: VecDeque<Posted>,
}

/// The completion queue and its queue pairs.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) queue_pairs: Vec<QueuePair>,
    completions: VecDeque<(u64, Status)>,
    sq_depth: usize,
    cq_depth: usize,
}

impl Device {
    pub(super) fn new(sq_depth: u32, cq_depth: u32) -> Self {
        Self {
            queue_pairs: Vec::new(),
            completions: VecDeque::new(),
            sq_depth: sq_depth as usize,
            cq_depth: cq_depth as usize,
        }
    }

    pub(super) fn create(&mut self, id: PhysicalId, node: Option<NodeId>) {
        self.queue_pairs.push(QueuePair {
            id,
            node,
            broken: None,
            posted: VecDeque::new(),
        });
    }

    /// Queue pairs as the one to `node` are as many as configured at most, as are connections.
    pub(super) fn check_count(&self, config: &Config, node: Option<NodeId>) -> Result<(), Finding> {
        let most = match (config.transport, node) {
            (Transport::Connections { per_node }, Some(_)) => Some(per_node),
            (Transport::Connections { .. }, None) => None,
            (Transport::Initiators { count }, None) => Some(count),
            (Transport::Initiators { .. }, Some(_)) => config.switching.map(|_| 1),
        };
        let count = |is_meant: &dyn Fn(&QueuePair) -> bool| {
            self.queue_pairs.iter().filter(|qp| is_meant(qp)).count()
        };
        let reaching = count(&|qp| qp.node == node);
        let connections = count(&|qp| qp.node.is_some());
        let is_many = config
            .switching
            .is_some_and(|switching| connections > usize::from(switching.connections_max));
        match most.is_some_and(|most| reaching <= usize::from(most)) && !is_many {
            true => Ok(()),
            false => {
                Err("there are more queue pairs than configured, or of another transport".into())
            }
        }
    }

    /// Posts a work request. One that is in ERR flushes it.
    pub(super) fn post(
        &mut self,
        (work, elements): (&Transmit, &[Sge]),
        serial: u64,
    ) -> Result<(), Finding> {
        let found = self
            .queue_pairs
            .iter_mut()
            .find(|qp| qp.id == work.physical);
        let qp = found.ok_or("a work request for a queue pair that does not exist")?;
        if qp.posted.len() == self.sq_depth {
            return Err("the send queue overflows".to_owned());
        }
        qp.posted.push_back(Posted {
            work: *work,
            elements: elements.to_vec(),
            serial,
            is_executed: false,
            is_acknowledged: false,
        });
        if qp.broken.is_some() {
            self.complete(work.wr_id, Status::Flushed)?;
        }
        Ok(())
    }

    fn complete(&mut self, wr_id: u64, status: Status) -> Result<(), Finding> {
        if self.completions.len() == self.cq_depth {
            return Err("the completion queue overflows".to_owned());
        }
        self.completions.push_back((wr_id, status));
        Ok(())
    }

    /// The work request that a node executes next.
    pub(super) fn next_to_execute(&self, at: usize) -> Option<&Posted> {
        let qp = self.queue_pairs.get(at).filter(|qp| qp.broken.is_none())?;
        let next = qp.posted.iter().find(|posted| !posted.is_executed)?;
        let mut before = qp.posted.iter().take_while(|posted| posted.is_executed);
        let is_free = before.all(|one| one.is_acknowledged || one.work.node == next.work.node);
        is_free.then_some(next)
    }

    /// Work requests that a node has executed, if it was silent since: the oldest that is not
    /// acknowledged, and those behind it that go to the same node.
    pub(super) fn sent(&self, at: usize) -> impl Iterator<Item = &Posted> {
        let posted = self.queue_pairs[at].posted.iter();
        let mut left = posted
            .skip_while(|posted| posted.is_acknowledged)
            .peekable();
        let node = left.peek().map(|oldest| oldest.work.node);
        left.take_while(move |posted| Some(posted.work.node) == node)
    }

    pub(super) fn note_executed(&mut self, at: usize) {
        let mut posted = self.queue_pairs[at].posted.iter_mut();
        posted
            .find(|posted| !posted.is_executed)
            .unwrap()
            .is_executed = true;
    }

    /// The oldest executed work request is acknowledged; whether there was one.
    pub(super) fn acknowledge(&mut self, at: usize) -> Result<bool, Finding> {
        let qp = &mut self.queue_pairs[at];
        let next = qp.posted.iter_mut().find(|posted| !posted.is_acknowledged);
        let Some(next) = next.filter(|next| next.is_executed && qp.broken.is_none()) else {
            return Ok(false);
        };
        next.is_acknowledged = true;
        let (wr_id, is_signaled) = (next.work.wr_id, next.work.is_signaled);
        if is_signaled {
            self.complete(wr_id, Status::Success)?;
        }
        Ok(true)
    }

    /// The oldest work request that is not acknowledged; the node is about to execute it.
    pub(super) fn is_next_oldest(&self, at: usize) -> bool {
        let qp = &self.queue_pairs[at];
        let oldest = qp.posted.iter().find(|posted| !posted.is_acknowledged);
        oldest.is_some_and(|oldest| !oldest.is_executed)
    }

    /// The queue pair enters ERR: whatever is not acknowledged completes in error.
    pub(super) fn break_one(&mut self, at: usize, why: Broken) -> Result<(), Finding> {
        let qp = &mut self.queue_pairs[at];
        if qp.broken.replace(why).is_some() {
            return Ok(());
        }
        let mut status = match why {
            Broken::Refusal => Status::RemoteAccess,
            Broken::Silence => Status::RetryExceeded,
            Broken::Event => Status::Flushed,
        };
        let left = qp.posted.iter().filter(|posted| !posted.is_acknowledged);
        let left: Vec<u64> = left.map(|posted| posted.work.wr_id).collect();
        for wr_id in left {
            self.complete(wr_id, status)?;
            status = Status::Flushed;
        }
        Ok(())
    }

    /// Takes the oldest completion out, by which places become free.
    pub(super) fn poll(&mut self) -> Option<(u64, Status)> {
        let (wr_id, status) = self.completions.pop_front()?;
        for qp in &mut self.queue_pairs {
            let place = qp
                .posted
                .iter()
                .position(|posted| posted.work.wr_id == wr_id);
            let Some(place) = place else {
                continue;
            };
            // Those before one that failed have succeeded; it keeps its own place.
            let done = qp
                .posted
                .iter()
                .take(place + usize::from(status == Status::Success));
            let done = done.take_while(|posted| posted.is_acknowledged).count();
            qp.posted.drain(..done);
        }
        Some((wr_id, status))
    }

    /// Destroys a queue pair, with its completions.
    pub(super) fn destroy(&mut self, id: PhysicalId) -> Option<QueuePair> {
        let at = self.queue_pairs.iter().position(|qp| qp.id == id)?;
        let qp = self.queue_pairs.swap_remove(at);
        let is_own = |wr_id: u64| qp.posted.iter().any(|posted| posted.work.wr_id == wr_id);
        self.completions.retain(|(wr_id, _)| !is_own(*wr_id));
        Some(qp)
    }

    pub(super) fn completions(&self) -> usize {
        self.completions.len()
    }
}
