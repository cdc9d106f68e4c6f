//! All listeners and connections of one process: the interface. `table` holds what it consists of,
//! `receive` handles datagrams, `transition` holds the state transitions and the transmission.

mod receive;
pub(crate) mod table;
mod trace;
mod transition;

use std::net::{IpAddr, SocketAddr};

use urdma_trace::Recorder;
use urdma_types::{PortSpace, Psn, RawQpn, SlotId, Time};

use crate::backlog::Backlog;
use crate::conn::{Conn, ConnId, ConnState, ListenId, PrivateData, RemoteQp, Role};
use crate::wire::{Body, CommId, Cookie, Message, Nonce, Peer, QpInfo, RejReason, Req};

use table::{info_of, Listener};
pub use table::{
    AcceptParams, Config, ConnectParams, ConnectRequest, ConnectionManager, Counters, Error, Event,
    Transmit,
};

impl ConnectionManager {
    /// Passes what happens to connections to `recorder` from now on.
    pub fn record_with(&mut self, recorder: Recorder) {
        self.recorder = recorder;
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Listens at `addr`, whose address may be the wildcard, with at most `backlog` pending REQs of
    /// one source, and twice as many of all.
    ///
    /// # Errors
    /// [`Error::AddrInUse`] if this manager already listens there.
    pub fn listen(
        &mut self,
        addr: SocketAddr,
        port_space: PortSpace,
        backlog: u32,
    ) -> Result<ListenId, Error> {
        let taken = |l: &Listener| l.addr == addr && l.port_space == port_space;
        if self.listeners.values().any(taken) {
            return Err(Error::AddrInUse);
        }
        let id = ListenId(self.fresh_id());
        self.listeners.insert(
            id,
            Listener {
                addr,
                port_space,
                backlog: Backlog::new(backlog),
            },
        );
        Ok(id)
    }

    /// Stops listening; pending REQs remain.
    pub fn close_listener(&mut self, id: ListenId) {
        self.listeners.remove(&id);
    }

    /// Sends a REQ. Ends in [`Event::Response`], [`Event::Rejected`] or [`Event::Unreachable`].
    pub fn connect(&mut self, now: Time, params: &ConnectParams) -> ConnId {
        let id = ConnId(self.fresh_id());
        let local = self.local_info(&params.qp);
        let conn = Conn {
            role: Role::Active,
            state: ConnState::ReqSent,
            owned: true,
            remote_id: CommId::NONE,
            // R9-2
            //# The active side MUST choose the nonce at random.
            nonce: Nonce(self.random()),
            peer: Peer {
                ip: params.dst.ip(),
                slot: SlotId::DAEMON,
            },
            asked: SlotId::DAEMON,
            req: Req {
                qp: local,
                retry_count: params.retry_count,
                ack_timeout: params.ack_timeout,
                path_mtu: params.path_mtu,
                port_space: params.port_space,
                src: params.src,
                dst: params.dst,
                cookie: Cookie::NONE,
            },
            local,
            remote: QpInfo::default(),
            private_data: params.private_data,
            rejected: None,
            listener: None,
            deadline: None,
            tries: 0,
            has_answered_cookie: false,
            refusals: 0,
            give_up_at: now.plus(self.config.patience),
        };
        self.by_qpn.insert(local.qpn, id);
        self.conns.insert(id, conn);
        self.trace_state(id, ConnState::Closed, ConnState::ReqSent);
        self.request(now, id);
        id
    }

    /// Accepts a REQ: sends the REP, now or when the QP is in RTR. A datagram service sends it
    /// immediately.
    ///
    /// # Errors
    /// [`Error::State`] if the REQ was withdrawn, accepted or rejected before.
    pub fn accept(&mut self, now: Time, id: ConnId, params: &AcceptParams) -> Result<(), Error> {
        self.take_request(id);
        let psn = self.conns.get(&id).ok_or(Error::NotFound)?.local.psn;
        let conn = self.expect(id, &[ConnState::ReqRcvd])?;
        conn.local = info_of(&params.qp, psn);
        conn.private_data = params.private_data;
        // R9-5
        //# It MUST be sent as soon as the application accepts, and again for each repeated REQ.
        if conn.req.port_space.is_datagram() {
            self.answer(now, id);
            return Ok(());
        }
        self.by_qpn.insert(params.qp.qpn, id);
        self.enter(id, ConnState::RepGated);
        if params.qp_ready {
            self.open_gate(now, id);
        }
        Ok(())
    }

    /// Accepts the REP: sends the RTU, now or when the QP is in RTR.
    ///
    /// # Errors
    /// [`Error::State`] if there is no REP to accept.
    pub fn establish(&mut self, now: Time, id: ConnId, qp_ready: bool) -> Result<(), Error> {
        self.expect(id, &[ConnState::RepRcvd])?;
        self.enter(id, ConnState::RtuGated);
        if qp_ready {
            self.open_gate(now, id);
        }
        Ok(())
    }

    /// Rejects a REQ (passive side) or a REP (active side).
    ///
    /// # Errors
    /// [`Error::State`] if there is nothing to reject.
    pub fn reject(
        &mut self,
        now: Time,
        id: ConnId,
        reason: RejReason,
        private_data: &PrivateData,
    ) -> Result<(), Error> {
        self.expect(id, &[ConnState::ReqRcvd, ConnState::RepRcvd])?;
        self.refuse(now, id, reason, private_data);
        Ok(())
    }

    /// Rejects a REQ whose listener was closed before the application received it, with "invalid
    /// service id", and keeps no state, so that a repeated REQ can reach the next listener. A
    /// connection in any other state is destroyed.
    pub fn turn_away(&mut self, now: Time, id: ConnId) {
        if self.state(id) == Some(ConnState::ReqRcvd) {
            self.send(id, Body::Rej(RejReason::INVALID_SERVICE_ID));
            self.drop_request(id);
        } else {
            self.destroy(now, id);
        }
    }

    /// Drops a REQ without an answer, as if it had been lost: the peer retransmits it.
    pub fn drop_request(&mut self, id: ConnId) {
        if self.state(id) == Some(ConnState::ReqRcvd) {
            self.take_request(id);
            self.forget(id);
        }
    }

    /// Sends a DREQ; ends in [`Event::Disconnected`]. Has no effect if the connection is already
    /// ending or has ended.
    ///
    /// # Errors
    /// [`Error::State`] if the connection was not established.
    pub fn disconnect(&mut self, now: Time, id: ConnId) -> Result<(), Error> {
        let conn = self.conns.get_mut(&id).ok_or(Error::NotFound)?;
        match conn.state {
            ConnState::Established | ConnState::RepSent => {
                conn.tries = 0;
                self.enter(id, ConnState::DreqSent);
                self.transmit_again(now, id);
                Ok(())
            }
            ConnState::DreqSent | ConnState::TimeWait => Ok(()),
            _ => Err(Error::State),
        }
    }

    /// Destroys a connection in any state; the peer is notified. No further event refers to it.
    pub fn destroy(&mut self, now: Time, id: ConnId) {
        self.take_request(id);
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.owned = false;
        match conn.state {
            ConnState::ReqSent => self.refuse(now, id, RejReason::TIMEOUT, &PrivateData::EMPTY),
            ConnState::ReqRcvd
            | ConnState::RepGated
            | ConnState::RepSent
            | ConnState::RepRcvd
            | ConnState::RtuGated => {
                self.refuse(now, id, RejReason::CONSUMER_DEFINED, &PrivateData::EMPTY);
            }
            ConnState::Established => {
                let _ = self.disconnect(now, id);
            }
            ConnState::Closed | ConnState::Answered if conn.deadline.is_none() => self.forget(id),
            ConnState::TimeWait => self.settle(id),
            ConnState::DreqSent | ConnState::Closed | ConnState::Answered => {}
        }
    }

    /// A QP of this process has reached RTR: sends the REP or RTU that was held back.
    pub fn qp_ready(&mut self, now: Time, qpn: RawQpn) {
        if let Some(&id) = self.by_qpn.get(&qpn) {
            self.open_gate(now, id);
        }
    }

    /// The first data arrived on a QP of this process, which implies the RTU.
    pub fn qp_data(&mut self, qpn: RawQpn) {
        if let Some(&id) = self.by_qpn.get(&qpn) {
            self.reach_established(id);
        }
    }

    /// The other end of a QP of this process is gone (RESET, retries exhausted, slot died).
    pub fn qp_gone(&mut self, now: Time, qpn: RawQpn) {
        if let Some(&id) = self.by_qpn.get(&qpn) {
            self.lose(now, id);
        }
    }

    /// A process is gone; ends all connections to it.
    pub fn peer_gone(&mut self, now: Time, peer: Peer) {
        self.services.forget_slot(peer.ip, peer.slot);
        let lost: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, c)| c.peer == peer)
            .map(|(&id, _)| id)
            .collect();
        for id in lost {
            self.lose(now, id);
        }
    }

    /// Which end of the connection this is.
    pub fn role(&self, id: ConnId) -> Option<Role> {
        self.conns.get(&id).map(|c| c.role)
    }

    /// The QP number in this end's REQ or REP; `None` before either is sent.
    pub fn local_qpn(&self, id: ConnId) -> Option<RawQpn> {
        let conn = self.conns.get(&id)?;
        (conn.state != ConnState::ReqRcvd).then_some(conn.local.qpn)
    }

    /// The attributes for the local QP; `None` before the REP (active side) or if the connection
    /// does not exist any more.
    pub fn remote(&self, id: ConnId) -> Option<RemoteQp> {
        let conn = self.conns.get(&id).filter(|c| c.knows_remote())?;
        let local = match conn.role {
            Role::Active => conn.req.src,
            Role::Passive => conn.req.dst,
        };
        Some(conn.remote_qp(conn.peer, local.ip(), [conn.remote, conn.local]))
    }

    /// The other end of an accepted connection, if it is of this manager too and waits for the REP,
    /// and the attributes for its QP.
    pub fn waiting_end(&self, id: ConnId) -> Option<(ConnId, RemoteQp)> {
        let conn = self.conns.get(&id)?;
        let other = ConnId::of(conn.remote_id);
        let is_it = |c: &&Conn| c.state == ConnState::ReqSent && c.nonce == conn.nonce;
        self.conns.get(&other).filter(is_it)?;
        let this = Peer {
            ip: conn.req.dst.ip(),
            slot: self.config.slot,
        };
        let ends = [conn.local, conn.remote];
        Some((other, conn.remote_qp(this, conn.req.src.ip(), ends)))
    }

    /// Whether the peer of a connection has a QP with this number and this first PSN.
    pub fn has_peer(&self, qpn: RawQpn, psn: Psn) -> bool {
        let peers = self.conns.values().filter(|conn| conn.knows_remote());
        peers
            .map(|conn| &conn.remote)
            .any(|remote| (remote.qpn, remote.psn) == (qpn, psn))
    }

    /// Number of connections, ended ones included, for tests and status.
    pub fn connections(&self) -> usize {
        self.conns.len() + self.ended.len()
    }

    /// Number of listeners, for tests and status.
    pub fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// Processes one datagram from a host; the content is not trusted.
    pub fn handle_datagram(&mut self, now: Time, from: IpAddr, datagram: &[u8]) {
        // R9-9
        //# A message for which this does not hold, or with a reserved value in a field, MUST be
        //# dropped and is counted.
        let Ok(message) = Message::parse(datagram) else {
            self.counters.malformed += 1;
            return;
        };
        if let Body::Req(req) = message.body {
            self.handle_req(now, &message.head, &req, message.private_data);
            return;
        }
        let id = ConnId::of(message.head.remote_id);
        let conn = self.conns.get(&id);
        let is_known = conn.is_some_and(|conn| message.is_of(conn.nonce, conn.remote_id));
        // R9-7
        //# A message whose nonce and ids do not match a conversation MUST NOT change any
        //# conversation: it is dropped.
        if !is_known {
            if !self.handle_late(id, &message) {
                self.answer_stray(now, from, &message);
            }
            return;
        }
        self.trace_received(id, &message);
        match message.body {
            Body::Rep(qp) => self.handle_rep(now, &message.head, id, &qp, message.private_data),
            Body::Rtu => self.reach_established(id),
            Body::Rej(reason) => {
                self.handle_rej(now, id, reason, message.private_data);
            }
            Body::Dreq(qpn) => self.handle_dreq(now, id, qpn),
            Body::Drep => self.handle_drep(now, id),
            Body::Mra(_) => self.handle_mra(now, id, &message.head),
            Body::Cookie(cookie) => self.handle_cookie(id, cookie),
            Body::Req(_) => {}
        }
    }

    /// Runs all timers that have expired.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(deadline, id)) = self.timers.first() {
            if deadline > now {
                break;
            }
            self.arm(id, None);
            self.fire(now, id);
        }
        while let Some(&(deadline, id)) = self.endings.front().filter(|ending| ending.0 <= now) {
            self.endings.pop_front();
            let conn = self.conns.get_mut(&id);
            if let Some(conn) = conn.filter(|conn| conn.deadline == Some(deadline)) {
                conn.deadline = None;
                self.fire(now, id);
            } else if let Some(ended) = self.ended.forget(id, deadline) {
                self.trace_forgotten(id, &ended);
            }
        }
    }

    /// When [`ConnectionManager::handle_timeout`] must be called next.
    pub fn next_deadline(&self) -> Option<Time> {
        let timer = self.timers.first().map(|&(deadline, _)| deadline);
        let ending = self.endings.front().map(|&(deadline, _)| deadline);
        timer.into_iter().chain(ending).min()
    }

    /// Whether there is a datagram to send.
    pub fn has_transmit(&self) -> bool {
        !self.out.is_empty()
    }

    /// Writes the next datagram to send into `buf`, which has at least [`MAX_MESSAGE`] octets.
    pub fn poll_transmit(&mut self, buf: &mut [u8]) -> Option<Transmit> {
        let next = self.out.pop_front()?;
        buf[..next.len].copy_from_slice(&next.octets[..next.len]);
        Some(Transmit {
            to: next.to,
            len: next.len,
        })
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
