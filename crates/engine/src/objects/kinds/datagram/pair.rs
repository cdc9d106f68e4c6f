//! One datagram queue pair: its states, the requests that it takes, and their completions.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use proto_trp::conn::{
    Completion, CompletionOp, Event, Host, PostError, QpState, RecvWr, Sge, Status, Time,
};
use urdma_types::SlotId;

use super::queue::{RecvRing, SendRequest, SendRing};
use crate::objects::qp::{Counts, Qp};
use crate::objects::qp_host::QpHost;
use crate::objects::srq::NotTaken;
use crate::paths::lease::RouteId;
use crate::types::{EngineError, WorkCompletion, LIMITS};

/// Elements of a receive request at most.
pub(crate) const SGE_MAX: usize = LIMITS.max_sge as usize;

/// Whether a datagram queue pair has the transition, attributes aside: those of connections, but
/// for INIT to INIT, which changes attributes alone.
fn has_transition(from: QpState, to: QpState) -> bool {
    (from, to) != (QpState::Init, QpState::Init) && from.may_become(to)
}

/// The attributes of a datagram queue pair; each starts at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramAttributes {
    /// The `Q_Key` that a message must carry to be received.
    pub qkey: u32,
    /// First PSN of this end, as the application set it; only reported.
    pub sq_psn: u32,
}

/// A change of a datagram queue pair; `None` leaves something as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatagramModify {
    /// New state.
    pub state: Option<QpState>,
    /// `Q_Key`.
    pub qkey: Option<u32>,
    /// First PSN.
    pub sq_psn: Option<u32>,
}

/// One datagram queue pair.
pub(crate) struct DatagramEntry {
    pub(crate) qp: Arc<Qp>,
    pub(crate) state: QpState,
    pub(crate) attributes: DatagramAttributes,
    pub(crate) sends: SendRing,
    pub(super) recvs: RecvRing,
    pub(crate) counts: Counts,
    /// Whether it is in the ready list.
    pub(crate) is_queued: bool,
    /// Since when the oldest request has found no room.
    pub(crate) blocked_since: Option<Time>,
    /// Routes of the lease, by host and slot.
    pub(crate) routes: HashMap<(IpAddr, SlotId, u8), Option<RouteId>>,
    /// Multicast groups that it is attached to.
    pub(crate) group_count: u32,
    /// It gets what it sends to a group that it is attached to.
    pub(crate) hears_itself: bool,
}

impl DatagramEntry {
    pub(crate) fn new(qp: Arc<Qp>, hears_itself: bool) -> Self {
        let caps = qp.caps();
        // With a shared receive queue there is none of its own.
        let recv_depth = if qp.srq().is_some() {
            0
        } else {
            caps.max_recv_wr
        };
        Self {
            state: QpState::Reset,
            attributes: DatagramAttributes::default(),
            sends: SendRing::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline),
            recvs: RecvRing::new(recv_depth, caps.max_recv_sge),
            counts: Counts::default(),
            is_queued: false,
            blocked_since: None,
            routes: HashMap::new(),
            group_count: 0,
            hears_itself,
            qp,
        }
    }

    /// Splits the entry from its counts and its queue pair, which a host borrows.
    pub(super) fn parts(&mut self) -> (Queues<'_>, &mut Counts, &Qp) {
        (
            Queues {
                state: &mut self.state,
                sends: &mut self.sends,
                recvs: &mut self.recvs,
            },
            &mut self.counts,
            &self.qp,
        )
    }

    /// Sets attributes and the state; the caller clears or flushes queues.
    pub(crate) fn change(&mut self, change: &DatagramModify) -> Result<(), EngineError> {
        if let Some(to) = change.state {
            if !has_transition(self.state, to) {
                return Err(EngineError::Invalid);
            }
            self.state = to;
        }
        if let Some(qkey) = change.qkey {
            self.attributes.qkey = qkey;
        }
        if let Some(psn) = change.sq_psn {
            self.attributes.sq_psn = psn;
        }
        Ok(())
    }

    /// As it was when it was made.
    pub(crate) fn clear(&mut self) {
        while self.sends.pop().is_some() {}
        while self.recvs.pop().is_some() {}
        self.attributes = DatagramAttributes::default();
        self.blocked_since = None;
    }
}

/// State and rings of an entry, beside a host that borrows the rest.
pub(crate) struct Queues<'a> {
    pub(crate) state: &'a mut QpState,
    pub(crate) sends: &'a mut SendRing,
    pub(super) recvs: &'a mut RecvRing,
}

impl Queues<'_> {
    pub(crate) fn sends_outstanding(&self) -> u32 {
        // A ring's depth fits in 32 bits.
        u32::try_from(self.sends.len()).unwrap_or(u32::MAX)
    }

    /// Takes the oldest receive request, of its own or of the shared receive queue, if it holds
    /// `octets`, and fills in its list.
    ///
    /// # Errors
    /// The request stays where it is.
    pub(crate) fn take_recv<'l>(
        &mut self,
        host: &QpHost<'_>,
        octets: u64,
        list: &'l mut [Sge; SGE_MAX],
    ) -> Result<(u64, &'l [Sge]), NotTaken> {
        let holds = |sges: &[Sge]| {
            let room: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
            room >= octets
        };
        let (wr_id, count) = if host.qp.srq().is_some() {
            let taken = host.take_shared_recv_if(list, holds)?;
            (taken.wr_id, usize::from(taken.sge_count))
        } else {
            // R12-8
            //# That request MUST stay the oldest, for the next message.
            if !holds(self.recvs.front().ok_or(NotTaken::Empty)?) {
                return Err(NotTaken::Unwanted);
            }
            let (request, sges) = self.recvs.pop().ok_or(NotTaken::Empty)?;
            list[..sges.len()].copy_from_slice(sges);
            (request.wr_id, sges.len())
        };
        Ok((wr_id, &list[..count]))
    }

    pub(crate) fn recvs_outstanding(&self) -> u32 {
        u32::try_from(self.recvs.len()).unwrap_or(u32::MAX)
    }

    /// Takes the request that `push` adds to the ring, in a state that takes one.
    pub(crate) fn post_send(
        &mut self,
        host: &mut QpHost<'_>,
        push: impl FnOnce(&mut SendRing) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        use QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
        match *self.state {
            Reset | Init | Rtr => return Err(PostError::InvalidState),
            Rts | Sqd | Sqe | Error => push(self.sends)?,
        }
        if matches!(*self.state, Sqe | Error) {
            self.flush_sends(host);
        }
        Ok(())
    }

    pub(crate) fn post_recv(
        &mut self,
        wr: &RecvWr<'_>,
        host: &mut QpHost<'_>,
    ) -> Result<(), PostError> {
        if *self.state == QpState::Reset {
            return Err(PostError::InvalidState);
        }
        self.recvs.push(wr)?;
        if *self.state == QpState::Error {
            self.flush_recvs(host);
        }
        Ok(())
    }

    /// Ends the oldest send request with `status`; a failed one stops the send queue.
    pub(crate) fn complete_send(&mut self, host: &mut QpHost<'_>, status: Status) {
        let Some(request) = self.sends.pop() else {
            return;
        };
        if status != Status::Success {
            *self.state = QpState::Sqe;
        }
        if status != Status::Success || request.signaled {
            host.complete(send_completion(&request, status));
        }
        if status != Status::Success {
            self.flush_sends(host);
        }
    }

    pub(super) fn flush_sends(&mut self, host: &mut QpHost<'_>) {
        while let Some(request) = self.sends.pop() {
            host.complete(send_completion(&request, Status::WorkRequestFlushed));
        }
    }

    pub(super) fn flush_recvs(&mut self, host: &mut QpHost<'_>) {
        while let Some((request, _)) = self.recvs.pop() {
            host.complete(Completion {
                wr_id: request.wr_id,
                op: CompletionOp::Recv,
                ..failure(Status::WorkRequestFlushed)
            });
        }
    }

    /// To ERROR: everything is flushed.
    pub(crate) fn fail(&mut self, host: &mut QpHost<'_>) {
        *self.state = QpState::Error;
        self.flush_sends(host);
        self.flush_recvs(host);
    }

    /// The memory of a receive request that was taken may not be written: the receive queue has
    /// failed, and with it the queue pair.
    pub(crate) fn fail_recv(&mut self, host: &mut QpHost<'_>, wr_id: u64) {
        host.complete(Completion {
            wr_id,
            op: CompletionOp::Recv,
            ..failure(Status::LocalProtectionError)
        });
        self.fail(host);
        host.event(Event::Fatal);
    }
}

fn failure(status: Status) -> Completion {
    Completion {
        status,
        solicited: true,
        ..WorkCompletion::NONE.completion
    }
}

fn send_completion(request: &SendRequest, status: Status) -> Completion {
    Completion {
        wr_id: request.wr_id,
        // A message that is sent fits in 32 bits; of one that is too long the length does not
        // count.
        byte_len: u32::try_from(request.length).unwrap_or(u32::MAX),
        solicited: status != Status::Success,
        op: request.unsupported.unwrap_or(CompletionOp::Send),
        ..failure(status)
    }
}

#[cfg(test)]
mod tests {
    use super::has_transition;
    use super::QpState::{Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

    #[test]
    fn may_become_is_the_table_of_datagram_services() {
        let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
        let steps = [
            (Reset, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqe, Rts),
        ];
        for from in all {
            for to in all {
                let expected = matches!(to, Reset | Error) || steps.contains(&(from, to));
                assert_eq!(has_transition(from, to), expected, "{from:?} to {to:?}");
            }
        }
    }
}
