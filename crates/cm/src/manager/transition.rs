//! State transitions of connections, and the messages that they send.

use super::table::{backoff, info_of, ConnectionManager, Error, Event, Outgoing};
use urdma_types::{Psn, RawQpn, SlotId, Time};

use crate::backlog::Source;
use crate::conn::{Conn, ConnId, ConnState, ListenId, LocalQp, PrivateData, Role};
use crate::ended::Ended;
use crate::services::Dispatch;
use crate::wire::{Body, CommId, Head, Kind, Message, Peer, QpInfo, RejReason, MAX_MESSAGE};

impl ConnectionManager {
    /// Moves a connection to another state; no other function does.
    pub(super) fn enter(&mut self, id: ConnId, to: ConnState) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let was_served = conn.is_served();
        let from = std::mem::replace(&mut conn.state, to);
        match (was_served, conn.is_served()) {
            (false, true) => self.served.add(conn.req.dst),
            (true, false) => self.served.remove(conn.req.dst),
            _ => {}
        }
        self.trace_state(id, from, to);
    }

    pub(super) fn expect(&mut self, id: ConnId, states: &[ConnState]) -> Result<&mut Conn, Error> {
        let conn = self.conns.get_mut(&id).ok_or(Error::NotFound)?;
        if states.contains(&conn.state) {
            Ok(conn)
        } else {
            Err(Error::State)
        }
    }

    pub(super) fn open_gate(&mut self, now: Time, id: ConnId) {
        let patience = self.config.patience;
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        match conn.state {
            ConnState::RepGated => {
                conn.tries = 0;
                conn.give_up_at = now.plus(patience);
                self.enter(id, ConnState::RepSent);
                self.transmit_again(now, id);
            }
            ConnState::RtuGated => {
                self.enter(id, ConnState::Established);
                self.send(id, Body::Rtu);
            }
            _ => {}
        }
    }

    pub(super) fn reach_established(&mut self, id: ConnId) {
        match self.conns.get(&id) {
            Some(conn) if conn.state == ConnState::RepSent => {
                self.enter(id, ConnState::Established);
                self.arm(id, None);
                self.emit(id, Event::Established { conn: id });
            }
            _ => self.counters.duplicates += 1,
        }
    }

    /// Removes a REQ from the backlog, because the application has received its event.
    pub fn take_request(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let Some(listener) = conn.listener.take() else {
            return;
        };
        let source = Source::of(conn);
        self.arm(id, None);
        if let Some(listener) = self.listeners.get_mut(&listener) {
            listener.backlog.release(source);
        }
    }

    pub(super) fn refuse(
        &mut self,
        now: Time,
        id: ConnId,
        reason: RejReason,
        private_data: &PrivateData,
    ) {
        self.take_request(id);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.private_data = *private_data;
        conn.rejected = Some(reason);
        let qpn = conn.local.qpn;
        self.enter(id, ConnState::Closed);
        self.release_qpn(qpn, id);
        self.send_current(id);
        self.arm_ending(now, id);
    }

    /// Sends the REP of a datagram service, and keeps the connection for as long as the REQ may be
    /// retransmitted.
    pub(super) fn answer(&mut self, now: Time, id: ConnId) {
        let longest = backoff(self.config.retry, u32::MAX);
        let keep = longest.saturating_mul(self.config.max_tries);
        self.enter(id, ConnState::Answered);
        self.arm(id, Some(now.plus(keep)));
        self.send_current(id);
    }

    /// The peer is gone without a DREQ or REJ.
    pub(super) fn lose(&mut self, now: Time, id: ConnId) {
        self.trace_lost(id);
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        match conn.state {
            ConnState::Established
            | ConnState::DreqSent
            | ConnState::RepRcvd
            | ConnState::RtuGated => {
                self.end(now, id, false);
            }
            ConnState::ReqSent | ConnState::RepSent | ConnState::ReqRcvd | ConnState::RepGated => {
                self.emit(id, Event::Unreachable { conn: id });
                self.close(id);
            }
            ConnState::TimeWait | ConnState::Closed | ConnState::Answered => {}
        }
    }

    /// Ends a connection that was established.
    pub(super) fn end(&mut self, now: Time, id: ConnId, timed_out: bool) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let qpn = conn.local.qpn;
        self.enter(id, ConnState::TimeWait);
        self.trace_end(id, timed_out);
        self.release_qpn(qpn, id);
        self.arm_ending(now, id);
        self.emit(
            id,
            Event::Disconnected {
                conn: id,
                timed_out,
            },
        );
        self.settle(id);
    }

    /// Ends a connection that was not established. A REQ keeps its place in the backlog, and its
    /// deadline, until the application has received its event: events are bounded by places.
    pub(super) fn close(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let (qpn, owned, is_unread) = (conn.local.qpn, conn.owned, conn.is_unread());
        if !is_unread {
            self.arm(id, None);
        }
        self.enter(id, ConnState::Closed);
        self.release_qpn(qpn, id);
        if !owned {
            self.forget(id);
        }
    }

    pub(super) fn forget(&mut self, id: ConnId) {
        self.arm(id, None);
        if let Some(conn) = self.conns.remove(&id) {
            if conn.role == Role::Passive {
                self.requests.remove(&(conn.peer, conn.nonce));
            }
            self.release_qpn(conn.local.qpn, id);
        }
    }

    /// Keeps of a connection what its late messages need, if it is over and destroyed.
    pub(super) fn settle(&mut self, id: ConnId) {
        let Some(ended) = self.conns.get(&id).and_then(Ended::of) else {
            return;
        };
        self.conns.remove(&id);
        if ended.role == Role::Passive {
            self.requests.remove(&(ended.peer, ended.nonce));
        }
        self.ended.insert(id, ended);
    }

    pub(super) fn release_qpn(&mut self, qpn: RawQpn, id: ConnId) {
        if self.by_qpn.get(&qpn) == Some(&id) {
            self.by_qpn.remove(&qpn);
        }
    }

    pub(super) fn fire(&mut self, now: Time, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        // R9-14
        //# A REQ that waits MUST be forgotten, with its event, when it has not been repeated for a
        //# time (urdma: 10 s), and when its sender must have given up (60 s); after a REJ of its
        //# sender it keeps its place until then.
        if let Some(listener) = conn.listener {
            return self.withdraw(listener, id);
        }
        let owned = conn.owned;
        let out_of_tries = conn.tries >= self.config.max_tries || now >= conn.give_up_at;
        match conn.state {
            ConnState::ReqSent | ConnState::RepSent if out_of_tries => {
                self.trace_unreachable(id);
                self.emit(id, Event::Unreachable { conn: id });
                self.refuse(now, id, RejReason::TIMEOUT, &PrivateData::EMPTY);
            }
            ConnState::DreqSent if conn.tries >= self.config.max_dreq_tries => {
                self.end(now, id, true);
            }
            ConnState::ReqSent | ConnState::RepSent | ConnState::DreqSent => {
                self.transmit_again(now, id)
            }
            ConnState::TimeWait => {
                self.emit(id, Event::TimeWaitExit { conn: id });
                self.close(id);
            }
            ConnState::Closed | ConnState::Answered if !owned => self.forget(id),
            _ => {}
        }
    }

    /// Ends a REQ of `listener` whose event the application has not received.
    fn withdraw(&mut self, listener: ListenId, id: ConnId) {
        if self.state(id) == Some(ConnState::ReqRcvd) {
            self.trace_state(id, ConnState::ReqRcvd, ConnState::Closed);
        }
        self.emit(id, Event::Withdrawn { listener, conn: id });
        self.take_request(id);
        self.forget(id);
    }

    pub(super) fn emit(&mut self, id: ConnId, event: Event) {
        if self.conns.get(&id).is_some_and(|c| c.owned) {
            self.events.push_back(event);
        }
    }
}

/// A time after `deadline`, the same for those of some milliseconds: connections that have ended
/// are forgotten together, and not each by a wake-up of its own.
fn together(deadline: Time) -> Time {
    const STEP_NS: u64 = 1 << 24;
    let later = deadline.as_ns().checked_next_multiple_of(STEP_NS);
    later.map_or(Time::NEVER, Time::from_ns)
}

/// Transmission.
impl ConnectionManager {
    /// Sends the REQ of a new connection, or holds it.
    pub(super) fn request(&mut self, now: Time, id: ConnId) {
        let retry = self.config.retry;
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        match self.services.dispatch(now, retry, conn.service(), id) {
            Dispatch::Send(slot) => {
                conn.asked = slot;
                self.transmit_again(now, id);
            }
            Dispatch::Hold => self.arm(id, Some(now.plus(retry))),
        }
    }

    /// The listener of an active connection has answered from `slot`: sends the REQs that were held
    /// for it.
    pub(super) fn has_answered(&mut self, now: Time, id: ConnId, slot: SlotId) {
        let Some(service) = self.conns.get(&id).map(Conn::service) else {
            return;
        };
        for held in self.services.learn(service, slot) {
            let conn = self.conns.get_mut(&held);
            let unsent = conn.filter(|c| c.state == ConnState::ReqSent && c.tries == 0);
            if let Some(conn) = unsent {
                conn.asked = slot;
                self.transmit_again(now, held);
            }
        }
    }

    /// Sends the message of the current state and sets the retransmission timer.
    pub(super) fn transmit_again(&mut self, now: Time, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.tries += 1;
        conn.has_answered_cookie = false;
        let wait = backoff(self.config.retry, conn.tries);
        self.arm(id, Some(now.plus(wait)));
        self.send_current(id);
    }

    /// Sends the message of the current state: REQ, REP, DREQ or REJ.
    pub(super) fn send_current(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let body = match (conn.state, conn.rejected) {
            (ConnState::ReqSent, _) => {
                conn.req.cookie = self.cookies.of(&conn.req);
                Body::Req(conn.req)
            }
            (ConnState::RepSent | ConnState::Answered, _) => Body::Rep(conn.local),
            (ConnState::DreqSent, _) => Body::Dreq(conn.remote.qpn),
            (ConnState::Closed, Some(reason)) => Body::Rej(reason),
            _ => return,
        };
        self.send(id, body);
    }

    pub(super) fn send_mra(&mut self, id: ConnId) {
        let ms = u32::try_from(self.config.patience.as_millis()).unwrap_or(u32::MAX);
        self.send(id, Body::Mra(ms));
    }

    pub(super) fn send(&mut self, id: ConnId, body: Body) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let mut to = conn.peer;
        // R9-1
        //# A REQ MUST be sent to slot 0 of the destination host, except that its first
        //# transmission, and the one that answers a COOKIE to it, MAY go to the slot from which a
        //# listener at the same address, port and port space has answered before; every other
        //# message is sent from slot to slot.
        if body.kind() == Kind::Req {
            let is_first = conn.tries <= 1;
            to.slot = if is_first { conn.asked } else { SlotId::DAEMON };
        } else if to.slot == SlotId::DAEMON && conn.remote_id == CommId::NONE {
            return; // the REQ is unanswered, so the peer's slot is not known
        }
        let head = Head {
            local_id: id.comm_id(),
            remote_id: conn.remote_id,
            // R9-3
            //# The nonce MUST be the same in every message of a conversation.
            nonce: conn.nonce,
            slot: self.config.slot,
        };
        self.trace_sent(id, &body);
        let private_data = match body {
            Body::Req(_) | Body::Rep(_) | Body::Rej(_) => conn.private_data,
            _ => PrivateData::EMPTY,
        };
        self.push(to, head, body, private_data.as_slice());
    }

    pub(super) fn push(&mut self, to: Peer, head: Head, body: Body, private_data: &[u8]) {
        let mut octets = [0; MAX_MESSAGE];
        let message = Message {
            head,
            body,
            private_data,
        };
        let len = message.write(&mut octets);
        self.out.push_back(Outgoing { to, len, octets });
    }

    pub(super) fn arm(&mut self, id: ConnId, deadline: Option<Time>) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if let Some(old) = conn.deadline.take() {
            self.timers.remove(&(old, id));
        }
        if let Some(new) = deadline {
            conn.deadline = Some(new);
            self.timers.insert((new, id));
        }
    }

    /// Sets the timer of a connection that has ended.
    fn arm_ending(&mut self, now: Time, id: ConnId) {
        self.arm(id, None);
        let deadline = together(now.plus(self.config.time_wait));
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.deadline = Some(deadline);
            self.endings.push_back((deadline, id));
        }
    }

    pub(super) fn local_info(&mut self, qp: &LocalQp) -> QpInfo {
        let psn = self.random_psn();
        info_of(qp, psn)
    }

    pub(super) fn fresh_id(&mut self) -> u32 {
        loop {
            self.next_id = self.next_id.wrapping_add(1);
            let id = self.next_id;
            let is_taken = self.conns.contains_key(&ConnId(id))
                || self.ended.contains(ConnId(id))
                || self.listeners.contains_key(&ListenId(id));
            if id != 0 && !is_taken {
                return id;
            }
        }
    }

    pub(super) fn random_psn(&mut self) -> Psn {
        let [a, b, c, ..] = self.random().to_le_bytes();
        Psn::new(u32::from_le_bytes([a, b, c, 0]))
    }
}
