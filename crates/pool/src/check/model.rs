//! The plain model: what each request of each virtual queue pair may still become.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Finding;
use crate::types::{Access, Completion, Element, NodeId, Request, Status, UserId, VirtualId};

/// What is known of a request.
#[derive(Clone, Debug)]
struct Known {
    owner: usize,
    request: Request,
    elements: Vec<Element>,
    executed: u32,
    /// It has completed, or was dropped: it must not be executed any more.
    is_ended: bool,
}

/// A virtual queue pair.
#[derive(Debug)]
pub(super) struct Virtual {
    pub(super) id: VirtualId,
    pub(super) user: UserId,
    pub(super) node: NodeId,
    pub(super) depth: u32,
    pub(super) operations: Access,
    /// Requests that may have a completion still, in order.
    waiting: VecDeque<u64>,
    is_failed: bool,
    /// With which statuses it may fail; a culprit with that of one request.
    excuses: HashSet<Status>,
    culprit: Option<u64>,
    pub(super) is_open: bool,
}

/// All of them, and all requests by serial.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) virtuals: Vec<Virtual>,
    requests: HashMap<u64, Known>,
}

impl Model {
    pub(super) fn open(
        &mut self,
        id: VirtualId,
        (user, node): (UserId, NodeId),
        depth: u32,
        operations: Access,
    ) {
        self.virtuals.push(Virtual {
            id,
            user,
            node,
            depth,
            operations,
            waiting: VecDeque::new(),
            is_failed: false,
            excuses: HashSet::new(),
            culprit: None,
            is_open: true,
        });
    }

    /// A request was taken: the queue had a place.
    pub(super) fn taken(
        &mut self,
        owner: usize,
        request: &Request,
        elements: &[Element],
    ) -> Result<(), Finding> {
        let poster = &mut self.virtuals[owner];
        poster.waiting.push_back(request.id);
        let known = Known {
            owner,
            request: *request,
            elements: elements.to_vec(),
            executed: 0,
            is_ended: false,
        };
        self.requests.insert(request.id, known);
        let is_signaled = |serial: &&u64| self.requests[*serial].request.is_signaled;
        let signaled = self.virtuals[owner].waiting.iter().filter(is_signaled);
        if signaled.count() > self.virtuals[owner].depth as usize {
            return Err("a virtual queue pair has more requests than places".to_owned());
        }
        Ok(())
    }

    /// Whether a refusal because of a full queue can be right.
    pub(super) fn may_be_full(&self, owner: usize) -> bool {
        self.virtuals[owner].waiting.len() >= self.virtuals[owner].depth as usize
    }

    pub(super) fn owner(&self, serial: u64) -> Option<&Virtual> {
        let known = self.requests.get(&serial)?;
        self.virtuals.get(known.owner)
    }

    pub(super) fn owner_index(&self, serial: u64) -> Option<usize> {
        self.requests.get(&serial).map(|known| known.owner)
    }

    /// A request is posted to a queue pair.
    pub(super) fn posted(&self, serial: u64) -> Result<(&Request, &[Element]), Finding> {
        let known = self
            .requests
            .get(&serial)
            .ok_or("an unknown request is posted")?;
        if known.is_ended {
            return Err(format!("request {serial} is posted after its end"));
        }
        Ok((&known.request, &known.elements))
    }

    /// A node executes a request.
    pub(super) fn executed(&mut self, serial: u64) -> Result<(), Finding> {
        let known = self.requests.get_mut(&serial).unwrap();
        known.executed += 1;
        let Known {
            owner,
            request,
            executed,
            is_ended,
            ..
        } = *known;
        if is_ended {
            return Err(format!("request {serial} is executed after its end"));
        }
        if request.operation.has_effect() && executed > 1 {
            return Err(format!("request {serial} is executed twice"));
        }
        let before = self.virtuals[owner].waiting.iter();
        let mut before = before.take_while(|earlier| **earlier < serial);
        let is_skipped = |earlier: &u64| self.requests[earlier].executed == 0;
        match before.find(|earlier| is_skipped(earlier)) {
            Some(earlier) => Err(format!("request {serial} is executed before {earlier}")),
            None => Ok(()),
        }
    }

    /// A completion is polled.
    pub(super) fn polled(&mut self, owner: usize, completion: &Completion) -> Result<(), Finding> {
        let Completion { id, status, .. } = *completion;
        let poller = &mut self.virtuals[owner];
        loop {
            let next = poller.waiting.pop_front();
            let next = next.ok_or(format!("a completion of request {id}, which has none"))?;
            let known = self.requests.get_mut(&next).unwrap();
            known.is_ended = true;
            let is_success = next != id || status == Status::Success;
            if is_success && (known.executed == 0 || poller.is_failed) {
                return Err(format!("request {next} succeeded without being executed"));
            }
            if next == id {
                break;
            }
            if known.request.is_signaled {
                return Err(format!("request {next} has no completion"));
            }
        }
        let elements = self.requests[&id].elements.iter();
        if completion.len_octets != elements.map(|element| element.len_octets).sum::<u32>() {
            return Err(format!("the completion of request {id} has another length"));
        }
        if status == Status::Success {
            let is_wanted = self.requests[&id].request.is_signaled;
            return is_wanted
                .then_some(())
                .ok_or(format!("request {id} asked for no completion"));
        }
        if std::mem::replace(&mut poller.is_failed, true) {
            let is_flushed = status == Status::Flushed;
            return is_flushed
                .then_some(())
                .ok_or(format!("{id}: {status:?} behind an error"));
        }
        let is_culprit = poller.culprit == Some(id) && status == Status::RemoteAccess;
        if is_culprit || poller.excuses.contains(&status) {
            return Ok(());
        }
        Err(format!(
            "request {id} ends with {status:?} without a reason"
        ))
    }

    /// A queue pair that this one has requests on has failed for a reason that may end them.
    pub(super) fn excuse(&mut self, owner: usize, status: Status) {
        self.virtuals[owner].excuses.insert(status);
    }

    /// A node refuses this request.
    pub(super) fn refused(&mut self, serial: u64) {
        let owner = self.requests[&serial].owner;
        self.virtuals[owner].culprit = Some(serial);
    }

    pub(super) fn is_failed(&self, owner: usize) -> bool {
        self.virtuals[owner].is_failed
    }

    /// It was made ready again: everything before has been polled.
    pub(super) fn reset(&mut self, owner: usize) -> Result<(), Finding> {
        let failed = &mut self.virtuals[owner];
        if let Some(serial) = failed.waiting.front() {
            return Err(format!("request {serial} has no completion after an error"));
        }
        (failed.is_failed, failed.culprit) = (false, None);
        failed.excuses.clear();
        Ok(())
    }

    /// It was closed: only what is posted may still be executed.
    pub(super) fn closed(&mut self, owner: usize, is_posted: impl Fn(u64) -> bool) {
        self.virtuals[owner].is_open = false;
        let waiting = std::mem::take(&mut self.virtuals[owner].waiting);
        for serial in waiting.into_iter().filter(|serial| !is_posted(*serial)) {
            self.end(serial);
        }
    }

    /// A request must not be executed any more.
    pub(super) fn end(&mut self, serial: u64) {
        self.requests.get_mut(&serial).unwrap().is_ended = true;
    }

    /// At the end everything is complete: requests without a completion have been executed.
    pub(super) fn all_done(&self) -> Result<(), Finding> {
        for open in self.virtuals.iter().filter(|open| open.is_open) {
            let is_done = |serial: &u64| {
                let known = &self.requests[serial];
                known.executed > 0 && !known.request.is_signaled
            };
            if let Some(serial) = open.waiting.iter().find(|serial| !is_done(serial)) {
                return Err(format!("request {serial} does not end"));
            }
        }
        Ok(())
    }
}
