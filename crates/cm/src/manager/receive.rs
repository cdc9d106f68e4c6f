//! Received messages: the effect of each message in each state.

use std::net::{IpAddr, SocketAddr};

use super::table::{backoff, ConnectRequest, ConnectionManager, Event};
use urdma_types::{RawQpn, SlotId, Time};

use crate::backlog::Source;
use crate::conn::{Conn, ConnId, ConnState, ListenId, PrivateData, Role};
use crate::ended::Ended;
use crate::wire::{self, Body, CommId, Cookie, Head, Message, Peer, QpInfo, RejReason, Req};

/// REJs of a service that is known to exist that are ignored: 3.2 s at the default retry time.
const REFUSALS_MAX: u32 = 36;

impl ConnectionManager {
    pub(super) fn handle_req(&mut self, now: Time, head: &Head, req: &Req, private_data: &[u8]) {
        let peer = Peer {
            // R9-4
            //# All answers to a REQ MUST be sent to the source address in its body.
            ip: req.src.ip(),
            slot: head.slot,
        };
        if let Some(&id) = self.requests.get(&(peer, head.nonce)) {
            self.counters.duplicates += 1;
            self.answer_again(now, id);
            return;
        }
        if self.ended.has_request(peer, head.nonce) {
            self.counters.duplicates += 1;
            return;
        }
        let Some(listener) = self.find_listener(req) else {
            let answer = Head {
                local_id: CommId::NONE,
                remote_id: head.local_id,
                nonce: head.nonce,
                slot: self.config.slot,
            };
            self.counters.stray += 1;
            self.answer_stranger(now, peer, answer, Body::Rej(RejReason::INVALID_SERVICE_ID));
            return;
        };
        let id = ConnId(self.fresh_id());
        let psn = self.random_psn();
        let private_data = PrivateData::new(private_data).unwrap_or(PrivateData::EMPTY);
        let conn = Conn {
            role: Role::Passive,
            state: ConnState::ReqRcvd,
            owned: true,
            remote_id: head.local_id,
            nonce: head.nonce,
            peer,
            asked: SlotId::DAEMON,
            req: *req,
            local: QpInfo {
                psn,
                ..QpInfo::default()
            },
            remote: req.qp,
            private_data: PrivateData::EMPTY,
            rejected: None,
            listener: Some(listener),
            deadline: None,
            tries: 0,
            has_answered_cookie: false,
            refusals: 0,
            give_up_at: now.plus(self.config.patience),
        };
        let source = Source::of(&conn);
        let place = self.listeners.get_mut(&listener);
        if !place.is_some_and(|listener| listener.backlog.take(source)) {
            self.counters.backlog_full += 1;
            return;
        }
        self.conns.insert(id, conn);
        self.await_application(now, id);
        self.trace_request(id);
        self.requests.insert((peer, head.nonce), id);
        self.events.push_back(Event::ConnectRequest(ConnectRequest {
            listener,
            conn: id,
            req: *req,
            private_data,
        }));
    }

    /// The listener for a REQ: exact address first, then the wildcard.
    pub(super) fn find_listener(&self, req: &Req) -> Option<ListenId> {
        let find = |ip: IpAddr| {
            let addr = SocketAddr::new(ip, req.dst.port());
            self.listeners
                .iter()
                .find(|(_, l)| l.addr == addr && l.port_space == req.port_space)
                .map(|(&id, _)| id)
        };
        find(req.dst.ip())
            .or_else(|| find(wire::unspecified_like(req.dst.ip())))
            .or_else(|| find(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)))
    }

    /// A REQ has arrived for the first time or again: sets the time at which it is withdrawn if the
    /// application has not received it.
    fn await_application(&mut self, now: Time, id: ConnId) {
        let silent = now.plus(self.config.silence);
        let is_waiting = |conn: &&Conn| conn.is_unread() && conn.state == ConnState::ReqRcvd;
        let waiting = self.conns.get(&id).filter(is_waiting);
        if let Some(end) = waiting.map(|conn| conn.give_up_at.earlier(silent)) {
            self.arm(id, Some(end));
        }
    }

    /// Repeats the last answer for a duplicate REQ.
    pub(super) fn answer_again(&mut self, now: Time, id: ConnId) {
        self.await_application(now, id);
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        match (conn.state, conn.rejected) {
            (ConnState::ReqRcvd | ConnState::RepGated, _) => self.send_mra(id),
            // R9-5
            //# It MUST be sent as soon as the application accepts, and again for each repeated REQ.
            (ConnState::RepSent | ConnState::Answered, _) => self.send_current(id),
            (ConnState::Closed, Some(_)) => self.send_current(id),
            _ => {}
        }
    }

    pub(super) fn handle_rep(
        &mut self,
        now: Time,
        head: &Head,
        id: ConnId,
        qp: &QpInfo,
        private_data: &[u8],
    ) {
        let Some(conn) = self.conns.get_mut(&id).filter(|c| c.role == Role::Active) else {
            self.counters.stray += 1;
            return;
        };
        match conn.state {
            ConnState::ReqSent => {
                conn.remote_id = head.local_id;
                conn.peer.slot = head.slot;
                conn.remote = *qp;
                let is_datagram = conn.req.port_space.is_datagram();
                self.enter(id, ConnState::RepRcvd);
                self.arm(id, None);
                self.events.push_back(Event::Response {
                    conn: id,
                    qp: *qp,
                    private_data: PrivateData::new(private_data).unwrap_or(PrivateData::EMPTY),
                });
                self.has_answered(now, id, head.slot);
                if is_datagram {
                    self.close(id);
                }
            }
            ConnState::RepRcvd | ConnState::RtuGated => {
                self.counters.duplicates += 1;
                self.send_mra(id);
            }
            ConnState::Established => {
                self.counters.duplicates += 1;
                self.send(id, Body::Rtu);
            }
            ConnState::TimeWait | ConnState::Closed => {
                let peer = conn.peer;
                self.reject_late(peer, head);
            }
            ConnState::ReqRcvd
            | ConnState::RepGated
            | ConnState::RepSent
            | ConnState::DreqSent
            | ConnState::Answered => {}
        }
    }

    pub(super) fn handle_rej(
        &mut self,
        now: Time,
        id: ConnId,
        reason: RejReason,
        private_data: &[u8],
    ) {
        let has_no_listener = reason == RejReason::INVALID_SERVICE_ID;
        if has_no_listener && (self.ask_slot_0(now, id) || self.ask_again(now, id)) {
            return;
        }
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        match conn.state {
            // The answer to a retransmitted REQ that arrived after the listener had accepted the
            // first one and closed.
            ConnState::RepRcvd
            | ConnState::RtuGated
            | ConnState::Established
            | ConnState::DreqSent
                if has_no_listener =>
            {
                self.counters.duplicates += 1;
            }
            ConnState::ReqSent
            | ConnState::ReqRcvd
            | ConnState::RepGated
            | ConnState::RepSent
            | ConnState::RepRcvd
            | ConnState::RtuGated => {
                let private_data = PrivateData::new(private_data).unwrap_or(PrivateData::EMPTY);
                self.emit(
                    id,
                    Event::Rejected {
                        conn: id,
                        reason,
                        private_data,
                    },
                );
                self.close(id);
            }
            ConnState::Established | ConnState::DreqSent => self.end(now, id, false),
            ConnState::TimeWait | ConnState::Closed | ConnState::Answered => {
                self.counters.duplicates += 1
            }
        }
    }

    /// Sends a REQ to slot 0 if it was rejected by a slot that had the listener before. Returns
    /// false if it was not sent there.
    fn ask_slot_0(&mut self, now: Time, id: ConnId) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else {
            return false;
        };
        if conn.state != ConnState::ReqSent || conn.asked == SlotId::DAEMON {
            return false;
        }
        // R9-10
        //# A REQ that such a slot refuses with reason 8 MUST be sent again to slot 0.
        conn.asked = SlotId::DAEMON;
        conn.tries = 0;
        let service = conn.service();
        self.services.forget(service);
        self.transmit_again(now, id);
        true
    }

    /// Retries a REQ that was rejected because of a missing listener, if a server has accepted one
    /// at the same address and port. Returns false if the REJ is final.
    fn ask_again(&mut self, now: Time, id: ConnId) -> bool {
        let first = self.config.retry / 16;
        let Some(conn) = self.conns.get_mut(&id) else {
            return false;
        };
        // R9-15
        //# While a slot has an established connection to an address and port, it SHOULD send a REQ
        //# to these, in any port space, again when slot 0 refuses it with reason 8, for a few
        //# seconds.
        let is_served = self.served.contains(conn.req.dst);
        if !is_served || conn.state != ConnState::ReqSent || conn.refusals >= REFUSALS_MAX {
            return false;
        }
        conn.refusals += 1;
        conn.tries = 0;
        let wait = backoff(first, conn.refusals);
        self.arm(id, Some(now.plus(wait)));
        true
    }

    pub(super) fn handle_dreq(&mut self, now: Time, id: ConnId, qpn: RawQpn) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        if conn.local.qpn != qpn && conn.state != ConnState::ReqSent {
            self.counters.stray += 1;
            return;
        }
        let mut is_up = true;
        match conn.state {
            ConnState::RepSent => self.reach_established(id),
            ConnState::RepRcvd
            | ConnState::RtuGated
            | ConnState::Established
            | ConnState::DreqSent => {}
            ConnState::ReqSent => {
                is_up = false;
                self.handle_rej(now, id, RejReason::CONSUMER_DEFINED, &[]);
            }
            ConnState::ReqRcvd | ConnState::RepGated => return,
            ConnState::TimeWait | ConnState::Closed | ConnState::Answered => {
                is_up = false;
                self.counters.duplicates += 1;
            }
        }
        self.send(id, Body::Drep);
        if is_up {
            self.end(now, id, false);
        }
    }

    pub(super) fn handle_drep(&mut self, now: Time, id: ConnId) {
        match self.conns.get(&id).map(|c| c.state) {
            Some(ConnState::DreqSent) => self.end(now, id, false),
            _ => self.counters.duplicates += 1,
        }
    }

    /// The peer's application has not decided: retransmits at the longest interval.
    pub(super) fn handle_mra(&mut self, now: Time, id: ConnId, head: &Head) {
        let max_tries = self.config.max_tries;
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if !matches!(conn.state, ConnState::ReqSent | ConnState::RepSent) {
            return;
        }
        let is_active = conn.state == ConnState::ReqSent;
        if is_active {
            conn.peer.slot = head.slot;
        }
        conn.tries = conn.tries.min(max_tries.saturating_sub(3)).max(1);
        let wait = backoff(self.config.retry, u32::MAX);
        self.arm(id, Some(now.plus(wait)));
        if is_active {
            self.has_answered(now, id, head.slot);
        }
    }

    /// The host of the listener asks for this cookie: sends the REQ again with it, without counting
    /// the transmission. Only the first COOKIE after a transmission is answered, so that a host
    /// whose cookies never do costs no more than one that is silent.
    pub(super) fn handle_cookie(&mut self, id: ConnId, cookie: Cookie) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if conn.state != ConnState::ReqSent {
            self.counters.duplicates += 1;
            return;
        }
        self.cookies.learn(&conn.req, cookie);
        let is_sent = conn.req.cookie == cookie;
        if is_sent || std::mem::replace(&mut conn.has_answered_cookie, true) {
            self.counters.duplicates += 1;
            return;
        }
        // R9-13
        //# The answer to a COOKIE is the same REQ with its cookie, at once; a sender MUST answer at
        //# most one COOKIE for each transmission of the REQ otherwise.
        self.send_current(id);
    }

    /// Processes a message for a connection that is only remembered. False if there is none.
    pub(super) fn handle_late(&mut self, id: ConnId, message: &Message<'_>) -> bool {
        let ended = self.ended.get(id).copied();
        let is_its = |ended: &Ended| message.is_of(ended.nonce, ended.remote_id);
        let Some(ended) = ended.filter(is_its) else {
            return false;
        };
        self.trace_late_received(id, &ended, message);
        match message.body {
            Body::Dreq(qpn) if qpn == ended.qpn => {
                self.counters.duplicates += 1;
                self.trace_late_sent(id, &ended, &Body::Drep);
                let answer = self.answer_head(&message.head);
                self.push(ended.peer, answer, Body::Drep, &[]);
            }
            Body::Rep(_) if ended.role == Role::Active => {
                self.reject_late(ended.peer, &message.head);
            }
            Body::Dreq(_) | Body::Rep(_) => self.counters.stray += 1,
            Body::Mra(_) => {}
            _ => self.counters.duplicates += 1,
        }
        true
    }

    /// Answers a REP of a connection that has ended.
    pub(super) fn reject_late(&mut self, peer: Peer, head: &Head) {
        let answer = self.answer_head(head);
        let to = Peer {
            ip: peer.ip,
            slot: head.slot,
        };
        self.push(to, answer, Body::Rej(RejReason::INVALID_COMM_ID), &[]);
    }

    /// Answers a message for an unknown connection, so that the peer can end its connection.
    pub(super) fn answer_stray(&mut self, now: Time, from: IpAddr, message: &Message<'_>) {
        self.counters.stray += 1;
        let to = Peer {
            // R15-1
            //# An answer MUST be sent to the address that the packet came from, never to one that
            //# only its body names.
            ip: from,
            slot: message.head.slot,
        };
        let answer = self.answer_head(&message.head);
        match message.body {
            Body::Rep(_) => {
                self.answer_stranger(now, to, answer, Body::Rej(RejReason::INVALID_COMM_ID));
            }
            Body::Dreq(_) => self.answer_stranger(now, to, answer, Body::Drep),
            _ => {}
        }
    }

    /// Answers a message for an unknown connection, which may be forged, within the rate limit.
    fn answer_stranger(&mut self, now: Time, to: Peer, head: Head, body: Body) {
        if self.strangers.allows(now.as_ns()) {
            self.push(to, head, body, &[]);
        } else {
            self.counters.unanswered += 1;
        }
    }

    pub(super) fn answer_head(&self, head: &Head) -> Head {
        Head {
            local_id: head.remote_id,
            remote_id: head.local_id,
            nonce: head.nonce,
            slot: self.config.slot,
        }
    }
}
