//! One connection: its state, what each end said, and its retransmission timer.
//!
//! ```text
//! active:   connect -> ReqSent --REP--> RepRcvd --establish--> [RtuGated --QP in RTR-->] Established
//! passive:  REQ -> ReqRcvd --accept--> [RepGated --QP in RTR-->] RepSent --RTU or data--> Established
//! both:     Established --disconnect--> DreqSent --DREP or DREQ--> TimeWait --time--> Closed
//!           Established --DREQ or peer gone--> TimeWait --time--> Closed
//! datagram: connect -> ReqSent --REP--> Closed;  REQ -> ReqRcvd --accept--> Answered (and the REP again for each REQ)
//! failure:  ReqSent, RepSent --REJ, silence--> Closed;  ReqRcvd --reject--> Closed
//! ```

use std::net::IpAddr;

use urdma_types::{Psn, RawQpn};

use crate::wire::{CommId, Ece, Nonce, Peer, QpInfo, RejReason, Req, MAX_PRIVATE_DATA};

/// A connection of this manager: its local communication id, unique while it lives and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(crate) u32);

impl ConnId {
    /// The connection whose communication id a message names; there may be none.
    pub(crate) fn of(id: CommId) -> Self {
        Self(id.0)
    }

    /// The communication id in the messages of this end.
    pub(crate) fn comm_id(self) -> CommId {
        CommId(self.0)
    }
}

/// A listener of this manager; its number is unique among listeners and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenId(pub(crate) u32);

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sent the REQ.
    Active,
    /// Got the REQ.
    Passive,
}

/// Where a connection stands; the module's head has the diagram.
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
    /// REP received, the application has not taken it.
    RepRcvd,
    /// The application has taken the REP, but the QP is not in RTR yet: no RTU is sent.
    RtuGated,
    /// Both ends may send.
    Established,
    /// DREQ sent, no answer yet.
    DreqSent,
    /// Over; kept for a while to answer duplicates.
    TimeWait,
    /// Over; kept only until the application lets go of it.
    Closed,
    /// A datagram service has sent its REP; kept for a while to answer duplicates of the REQ.
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

    /// A copy of `octets`; `None` if there are more than fit.
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

/// What this end says of its QP in its REQ or REP.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalQp {
    /// QP number.
    pub qpn: RawQpn,
    /// RDMA reads and atomics that this end answers at a time (IRD).
    pub responder_resources: u8,
    /// RDMA reads and atomics that this end has outstanding at most (ORD).
    pub initiator_depth: u8,
    /// The QP has a shared receive queue.
    pub srq: bool,
    /// End-to-end flow control as the application set it.
    pub flow_control: bool,
    /// RNR retries that the peer shall grant, 0..=7.
    pub rnr_retry: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
}

/// What a QP of this connection must be set to: both ends' numbers, known from RTR on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteQp {
    /// The peer's host and slot.
    pub peer: Peer,
    /// This end's address, as the REQ has it.
    pub local_ip: IpAddr,
    /// The peer's QP, with its `responder_resources` and `initiator_depth` as the peer gave them.
    pub qp: QpInfo,
    /// First PSN that this end sends.
    pub local_psn: Psn,
    /// Transport retries that the active side asked for.
    pub retry_count: u8,
    /// Local acknowledgement timeout, `4.096 us * 2^n`.
    pub ack_timeout: u8,
    /// Path MTU as `ibv_mtu` has it.
    pub path_mtu: u8,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) role: Role,
    pub(crate) state: ConnState,
    /// The application still holds it; if not, it is freed as soon as the protocol allows.
    pub(crate) owned: bool,
    pub(crate) remote_id: CommId,
    pub(crate) nonce: Nonce,
    /// Where this end's messages go; urdmad's slot while only the REQ is out.
    pub(crate) peer: Peer,
    /// The REQ of this conversation, sent or received.
    pub(crate) req: Req,
    /// This end's QP, complete once REQ or REP was made.
    pub(crate) local: QpInfo,
    /// The peer's QP; all zero in `ReqSent`.
    pub(crate) remote: QpInfo,
    /// Private data of this end's REQ, REP or REJ, for retransmission.
    pub(crate) private_data: PrivateData,
    /// Reason of the REJ that this end sent, to answer duplicates again.
    pub(crate) rejected: Option<RejReason>,
    /// The listener that the REQ came for, while it counts against that backlog.
    pub(crate) listener: Option<ListenId>,
    /// When the timer fires.
    pub(crate) deadline: Option<u64>,
    /// Transmissions of the current message so far.
    pub(crate) tries: u32,
    /// How often "nobody listens" was heard and not believed.
    pub(crate) refusals: u32,
    /// When the wait for the peer's application ends for good.
    pub(crate) give_up_at: u64,
}

impl Conn {
    /// Whether both ends' QPs are known, so that RTR may be set.
    pub(crate) fn knows_remote(&self) -> bool {
        self.role == Role::Passive || self.remote_id != CommId::NONE
    }
}
