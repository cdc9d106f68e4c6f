//! Scheduling: which segment or other datagram is sent next, and how much room it needs.

use super::connection::Connection;
use super::transmit::{
    Next, Planned, TransmitPlan, CONTROL_LEN, SEGMENT_HEADERS, TRAIN_MESSAGE_OCTETS_MAX,
};
use crate::wire;

/// The longest RDMAP request, which a segment has in place of payload.
const REQUEST_LEN: usize = wire::rdmap::ATOMIC_REQUEST_LEN;

impl Connection {
    /// What would be sent next and the buffer that it needs; `None` if nothing may be sent now.
    #[inline]
    pub fn plan_transmit(&self) -> Option<TransmitPlan> {
        self.plan()
    }

    /// What would be sent next. A plan is two words, and this function and its callees are inlined:
    /// a value that is stored and then loaded in pieces of another width waits for all stores
    /// before it (no store-to-load forwarding), among them those into the previous packet.
    #[inline(always)]
    pub(super) fn plan(&self) -> Option<TransmitPlan> {
        self.plan_plain().or_else(|| self.plan_any())
    }

    /// A function of its own, which takes no registers from the usual case; its plan is returned in
    /// registers.
    #[inline(never)]
    fn plan_any(&self) -> Option<TransmitPlan> {
        if !self.may_have_tx() {
            return None;
        }
        let planned = match self.controls.next() {
            Some(control) => Planned::alone(control, 0),
            // RFC5040-5.4-4, RFC5040-7-1
            //# After a Terminate an end sends no other message of the stream.
            //# A stream that has failed carries no more data.
            None if !self.phase.receives() => return None,
            None if self.acks.due && self.rx.has_gap() => Planned::alone(Next::Ack, 0),
            None => match self.plan_segment() {
                Some(segment) => segment,
                None if self.acks.due => Planned::alone(Next::Ack, 0),
                None => return None,
            },
        };
        let octets = planned.len as usize;
        let longest = match planned.next {
            Next::Request | Next::Answer | Next::Again | Next::Retry => {
                SEGMENT_HEADERS + REQUEST_LEN.max(octets)
            }
            // Only the cumulative acknowledgement.
            Next::Ack if !self.rx.has_ahead() && !self.phase.refuses() => wire::UNTAGGED_OVERHEAD,
            // A train, or a datagram without a segment.
            _ => CONTROL_LEN + octets,
        };
        Some(TransmitPlan {
            next: planned.next,
            is_followed: planned.is_followed,
            run: 0,
            len: longest.min(self.peer.max_datagram),
        })
    }

    #[inline(always)]
    fn plan_segment(&self) -> Option<Planned> {
        // R8.3-4
        //# It MUST NOT send any more DATA.
        if !self.phase.sends_stream() || self.phase.is_ending() {
            return None;
        }
        // R7.6-1
        //# Lost packets MUST be sent again, and only those, before new ones and within the
        //# congestion window.
        if self.sender.has_lost() {
            return self.plan_again();
        }
        if !self.sender.may_send() {
            return None;
        }
        self.plan_new()
    }

    /// A lost segment, if the congestion window or a probe allows it.
    #[cold]
    fn plan_again(&self) -> Option<Planned> {
        let (_, spec) = self.sender.may_send_again()?;
        Some(Planned::alone(Next::Again, spec.len))
    }

    #[inline(always)]
    fn plan_new(&self) -> Option<Planned> {
        if self.sender.is_refused() {
            return self.plan_refused();
        }
        if self.responder.has_answers() {
            return self.plan_answer();
        }
        self.plan_request()
    }

    #[inline(always)]
    fn plan_request(&self) -> Option<Planned> {
        let spec = self.next_request_segment()?;
        let waiting = self.sq.unsent();
        // R4.4-1
        //# A sender MUST NOT send a train before it has received a packet of the connection with
        //# the flag TR.
        if waiting > 1 && self.peer.takes_trains && spec.len <= TRAIN_MESSAGE_OCTETS_MAX {
            return Some(self.plan_train(waiting, spec.len));
        }
        Some(Planned::part(Next::Request, &spec))
    }

    /// Responses and requests alternate.
    #[inline(never)]
    fn plan_answer(&self) -> Option<Planned> {
        let answer = self.next_answer_segment()?;
        let request = self.plan_request().filter(|_| !self.responder.has_turn());
        Some(request.unwrap_or(Planned::part(Next::Answer, &answer)))
    }

    /// While the peer is not ready only responses are sent; after that the refused segment, alone
    /// until it is accepted.
    #[cold]
    fn plan_refused(&self) -> Option<Planned> {
        // R7.9-6
        //# It MUST begin epoch e + 1, wait for the time of the code, and then send the segment that
        //# had PSN n again, under its next PSN and alone.
        if self.sender.may_retry() {
            if let Some(spec) = self.next_request_segment() {
                return Some(Planned::alone(Next::Retry, spec.len));
            }
        }
        let answer = self.next_answer_segment()?;
        Some(Planned::part(Next::Answer, &answer))
    }
}
