//! What the flight recorder and the probes are told (doc/tracing.md): single calls where a message
//! is sent or received and where a state changes.

use std::net::IpAddr;

use urdma_trace::recorder::Message as Traced;
use urdma_trace::{CmMessage, CmState, Direction, End, Link};

use super::table::ConnectionManager;
use crate::conn::{Conn, ConnId, ConnState, Role};
use crate::ended::Ended;
use crate::wire::{Body, Kind, Message};

impl From<ConnState> for CmState {
    fn from(state: ConnState) -> Self {
        match state {
            ConnState::ReqSent => Self::ReqSent,
            ConnState::ReqRcvd => Self::ReqRcvd,
            ConnState::RepGated => Self::RepGated,
            ConnState::RepSent => Self::RepSent,
            ConnState::RepRcvd => Self::RepRcvd,
            ConnState::RtuGated => Self::RtuGated,
            ConnState::Established => Self::Established,
            ConnState::DreqSent => Self::DreqSent,
            ConnState::TimeWait => Self::TimeWait,
            ConnState::Closed => Self::Closed,
            ConnState::Answered => Self::Answered,
        }
    }
}

fn message_of(kind: Kind) -> CmMessage {
    match kind {
        Kind::Req => CmMessage::Req,
        Kind::Rep => CmMessage::Rep,
        Kind::Rtu => CmMessage::Rtu,
        Kind::Rej => CmMessage::Rej,
        Kind::Dreq => CmMessage::Dreq,
        Kind::Drep => CmMessage::Drep,
        Kind::Mra => CmMessage::Mra,
        Kind::Cookie => CmMessage::Cookie,
    }
}

/// The message of a connection as the recorder takes it.
fn traced(conn: &Conn, body: &Body, direction: Direction) -> Traced {
    // MRA, RTU and DREP repeat nothing by themselves.
    let tries = match (direction, body.kind()) {
        (Direction::Sent, Kind::Req | Kind::Rep | Kind::Dreq) => conn.tries,
        _ => 0,
    };
    let peer = match conn.role {
        Role::Active => conn.req.dst.ip(),
        Role::Passive => conn.req.src.ip(),
    };
    Traced {
        tries,
        ..untried(conn.req.dst.port(), peer, body, direction)
    }
}

/// A message that repeats nothing.
fn untried(port: u16, peer: IpAddr, body: &Body, direction: Direction) -> Traced {
    Traced {
        message: message_of(body.kind()),
        direction,
        port,
        tries: 0,
        reason: match body {
            Body::Rej(reason) => reason.0,
            _ => 0,
        },
        peer,
    }
}

/// The connection that is remembered.
fn link_of(id: ConnId, ended: &Ended) -> Link {
    Link {
        conn: id.0,
        qpn: ended.qpn.to_u32(),
    }
}

impl ConnectionManager {
    fn link(&self, id: ConnId) -> (Link, Option<&Conn>) {
        let conn = self.conns.get(&id);
        let qpn = conn.map_or(0, |conn| conn.local.qpn.to_u32());
        (Link { conn: id.0, qpn }, conn)
    }

    #[inline]
    pub(crate) fn trace_state(&self, id: ConnId, from: ConnState, to: ConnState) {
        let (link, _) = self.link(id);
        self.recorder.cm_state(link, from.into(), to.into());
    }

    pub(crate) fn trace_sent(&self, id: ConnId, body: &Body) {
        let (link, conn) = self.link(id);
        if let Some(conn) = conn {
            let message = traced(conn, body, Direction::Sent);
            self.recorder.cm_message(link, &message);
        }
    }

    pub(crate) fn trace_received(&self, id: ConnId, message: &Message<'_>) {
        let (link, conn) = self.link(id);
        if let Some(conn) = conn {
            let message = traced(conn, &message.body, Direction::Received);
            self.recorder.cm_message(link, &message);
        }
    }

    /// A REQ has made a connection.
    pub(crate) fn trace_request(&self, id: ConnId) {
        let (link, conn) = self.link(id);
        if let Some(conn) = conn {
            let message = traced(conn, &Body::Req(conn.req), Direction::Received);
            self.recorder.cm_message(link, &message);
        }
        self.trace_state(id, ConnState::Closed, ConnState::ReqRcvd);
    }

    /// The peer has not answered.
    pub(crate) fn trace_unreachable(&self, id: ConnId) {
        let (link, conn) = self.link(id);
        let tries = conn.map_or(0, |conn| conn.tries);
        self.recorder.cm_end(link, End::Unreachable, tries);
    }

    /// The peer's process or queue pair is gone.
    pub(crate) fn trace_lost(&self, id: ConnId) {
        let (link, conn) = self.link(id);
        let is_over = |conn: &&Conn| {
            use ConnState::{Answered, Closed, TimeWait};
            matches!(conn.state, Answered | Closed | TimeWait)
        };
        if conn.filter(|conn| !is_over(conn)).is_some() {
            self.recorder.cm_end(link, End::PeerGone, 0);
        }
    }

    /// A connection that is only remembered has received a message, which it answers or drops.
    pub(super) fn trace_late_received(&self, id: ConnId, ended: &Ended, message: &Message<'_>) {
        self.trace_late(id, ended, &message.body, Direction::Received);
    }

    /// A connection that is only remembered answers.
    pub(super) fn trace_late_sent(&self, id: ConnId, ended: &Ended, body: &Body) {
        self.trace_late(id, ended, body, Direction::Sent);
    }

    fn trace_late(&self, id: ConnId, ended: &Ended, body: &Body, direction: Direction) {
        let message = untried(ended.port, ended.peer.ip, body, direction);
        self.recorder.cm_message(link_of(id, ended), &message);
    }

    /// A connection that was remembered is forgotten.
    pub(super) fn trace_forgotten(&self, id: ConnId, ended: &Ended) {
        let (from, to) = (ConnState::TimeWait.into(), ConnState::Closed.into());
        self.recorder.cm_state(link_of(id, ended), from, to);
    }

    /// A connection that was established has ended.
    pub(crate) fn trace_end(&self, id: ConnId, timed_out: bool) {
        let (link, conn) = self.link(id);
        let (end, tries) = if timed_out {
            (End::NoReply, conn.map_or(0, |conn| conn.tries))
        } else {
            (End::Disconnected, 0)
        };
        self.recorder.cm_end(link, end, tries);
    }
}
