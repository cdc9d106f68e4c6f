//! One connection: its state, the parameters of both ends, and its retransmission timer.
//!
//! ```text
//! active:   connect -> ReqSent --REP--> RepRcvd --establish--> [RtuGated --QP in RTR-->]
//!           Established
//! passive:  REQ -> ReqRcvd --accept--> [RepGated --QP in RTR-->] RepSent --RTU or data-->
//!           Established
//! both:     Established --disconnect--> DreqSent --DREP or DREQ--> TimeWait --time--> Closed
//!           Established --DREQ or peer gone--> TimeWait --time--> Closed
//! datagram: connect -> ReqSent --REP--> Closed
//!           REQ -> ReqRcvd --accept--> Answered (the REP is repeated for each duplicate REQ)
//! failure:  ReqSent, RepSent --REJ, timeout--> Closed;  ReqRcvd --reject--> Closed
//!           ReqRcvd, its event not received by the application --silence, timeout--> forgotten
//! ```

use std::net::{IpAddr, SocketAddr};

use urdma_types::{PortSpace, Psn, RawQpn, SlotId, Time};

use crate::wire::{CommId, Ece, Nonce, Peer, QpInfo, RejReason, Req, MAX_PRIVATE_DATA};

/// A connection of this manager: its local communication id, unique while the connection exists
/// and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(crate) u32);

impl ConnId {
    /// The connection that a message names by its communication id; it need not exist.
    pub(crate) fn of(id: CommId) -> Self {
        Self(id.0)
    }

    /// The communication id that this end sends.
    pub(crate) fn comm_id(self) -> CommId {
        CommId(self.0)
    }
}

/// A listener of this manager; listeners and connections share one number space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenId(pub(crate) u32);

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the REQ.
    Active,
    /// Received the REQ.
    Passive,
}

/// State of a connection; the diagram is in the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnState {
    /// REQ sent, no answer yet.
    ReqSent,
    /// REQ received, the application has not decided.
    ReqRcvd,
    /// Accepted, but the QP is not in RTR yet: no REP is sent.
    RepGated,
    /// REP sent, no RTU yet.
    RepSent,
    /// REP received, the application has not accepted it.
    RepRcvd,
    /// The application has accepted the REP, but the QP is not in RTR yet: no RTU is sent.
    RtuGated,
    /// Both ends may send.
    Established,
    /// DREQ sent, no answer yet.
    DreqSent,
    /// Ended; kept for `time_wait` to answer duplicates.
    TimeWait,
    /// Ended; kept until the application destroys it, or to repeat a REJ.
    Closed,
    /// A datagram service has sent its REP; kept to answer duplicates of the REQ.
    Answered,
}

/// Private data of the application, up to 255 octets.
#[derive(Clone, Copy)]
pub struct PrivateData {
    len: u8,
    octets: [u8; MAX_PRIVATE_DATA],
}

impl PrivateData {
    /// No octets.
    pub const EMPTY: Self = Self {
        len: 0,
        octets: [0; MAX_PRIVATE_DATA],
    };

    /// A copy of `octets`; `None` if they are longer than [`MAX_PRIVATE_DATA`].
    pub fn new(octets: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.octets.get_mut(..octets.len())?.copy_from_slice(octets);
        data.len = u8::try_from(octets.len()).ok()?;
        Some(data)
    }

    /// The octets.
    pub fn as_slice(&self) -> &[u8] {
        &self.octets[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateData({} octets)", self.len)
    }
}

/// The parameters of the local QP that a REQ or REP carries.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalQp {
    /// QP number.
    pub qpn: RawQpn,
    /// Maximum number of concurrent RDMA reads and atomics that this end answers (IRD).
    pub responder_resources: u8,
    /// Maximum number of RDMA reads and atomics that this end has outstanding (ORD).
    pub initiator_depth: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// End-to-end flow control as the application set it.
    pub flow_control: bool,
    /// RNR retries requested from the peer, 0..=7.
    pub rnr_retry: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
}

/// The attributes with which the local QP is set to RTR and RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteQp {
    /// The peer's host and slot.
    pub peer: Peer,
    /// The local address, as in the REQ.
    pub local_ip: IpAddr,
    /// The peer's QP, with `responder_resources` and `initiator_depth` as the peer sent them.
    pub qp: QpInfo,
    /// First PSN that this end sends.
    pub local_psn: Psn,
    /// Transport retries that the active side requested.
    pub retry_count: u8,
    /// Local acknowledgement timeout, `4.096 us * 2^n`.
    pub ack_timeout: u8,
    /// Path MTU as `ibv_mtu` has it.
    pub path_mtu: u8,
}

/// A service: the destination address of a REQ and its port space.
pub(crate) type Service = (SocketAddr, PortSpace);

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) role: Role,
    pub(crate) state: ConnState,
    /// The application has not destroyed it; otherwise it is freed as soon as the protocol permits.
    pub(crate) owned: bool,
    pub(crate) remote_id: CommId,
    pub(crate) nonce: Nonce,
    /// Destination of this end's messages; slot 0 until the peer has answered the REQ.
    pub(crate) peer: Peer,
    /// Destination of the first transmission of this end's REQ; repetitions go to slot 0.
    pub(crate) asked: SlotId,
    /// The REQ that was sent or received.
    pub(crate) req: Req,
    /// The local QP; complete from the REQ or REP on.
    pub(crate) local: QpInfo,
    /// The peer's QP; all zero in `ReqSent`.
    pub(crate) remote: QpInfo,
    /// Private data of this end's REQ, REP or REJ, for retransmission.
    pub(crate) private_data: PrivateData,
    /// Reason of the REJ that this end sent, to repeat it for duplicates.
    pub(crate) rejected: Option<RejReason>,
    /// The listener of the REQ, while the REQ counts against its backlog.
    pub(crate) listener: Option<ListenId>,
    /// When the timer expires.
    pub(crate) deadline: Option<Time>,
    /// Transmissions of the current message so far.
    pub(crate) tries: u32,
    /// A COOKIE has been answered since the last of them.
    pub(crate) has_answered_cookie: bool,
    /// Number of REJs with "invalid service id" that were ignored.
    pub(crate) refusals: u32,
    /// When the wait for the peer's application, or for this end's to receive the REQ, times out.
    pub(crate) give_up_at: Time,
}

impl Conn {
    /// The service to which an active connection connects.
    pub(crate) fn service(&self) -> Service {
        (self.req.dst, self.req.port_space)
    }

    /// The attributes for the QP of an end at `local_ip`, from those of the other end and its own.
    pub(crate) fn remote_qp(
        &self,
        peer: Peer,
        local_ip: IpAddr,
        [remote, local]: [QpInfo; 2],
    ) -> RemoteQp {
        RemoteQp {
            peer,
            local_ip,
            qp: remote,
            local_psn: local.psn,
            retry_count: self.req.retry_count,
            ack_timeout: self.req.ack_timeout,
            path_mtu: self.req.path_mtu,
        }
    }

    /// Whether a server has accepted it and it has not ended.
    pub(crate) fn is_served(&self) -> bool {
        let is_up = matches!(self.state, ConnState::Established | ConnState::DreqSent);
        is_up && self.role == Role::Active
    }

    /// Whether it is a REQ whose event the application has not received.
    pub(crate) fn is_unread(&self) -> bool {
        self.listener.is_some()
    }

    /// Whether the peer's QP is known, so that the local QP can be set to RTR.
    pub(crate) fn knows_remote(&self) -> bool {
        self.role == Role::Passive || self.remote_id != CommId::NONE
    }
}
