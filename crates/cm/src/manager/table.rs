//! What a manager consists of, and what its calls take and give.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use proto_trp::limit::RateLimit;
use rustc_hash::FxHashMap;
use urdma_trace::Recorder;
use urdma_types::{PortSpace, Psn, RawQpn, SlotId, Time};

use crate::backlog::Backlog;
use crate::conn::{Conn, ConnId, ConnState, ListenId, LocalQp, PrivateData};
use crate::cookie::KnownCookies;
use crate::ended::EndedConns;
use crate::services::{Served, Services};
use crate::wire::{Nonce, Peer, QpInfo, RejReason, Req, MAX_MESSAGE};

/// Configuration of a [`ConnectionManager`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The slot of this process, which every message carries.
    pub slot: SlotId,
    /// Seed for nonces, ids and PSNs. It must be unpredictable; tests may use a fixed one.
    pub seed: u64,
    /// Wait before the first retransmission; doubles up to 32 times.
    pub retry: Duration,
    /// Transmissions of a REQ or REP before the peer is reported as unreachable.
    pub max_tries: u32,
    /// Transmissions of a DREQ before the connection ends without an answer.
    pub max_dreq_tries: u32,
    /// Time that the peer's application has to decide about a REQ or REP, and for which a REQ that
    /// the application has not received is kept.
    pub patience: Duration,
    /// Time without a repetition after which the sender of a REQ that the application has not
    /// received counts as gone.
    pub silence: Duration,
    /// Time that an ended connection is kept in `TimeWait`.
    pub time_wait: Duration,
}

impl Config {
    /// The default times: unreachable after 4.75 s, disconnected after at most 1.55 s.
    pub fn new(slot: SlotId, seed: u64) -> Self {
        Self {
            slot,
            seed,
            retry: Duration::from_millis(50),
            max_tries: 7,
            max_dreq_tries: 5,
            patience: Duration::from_secs(60),
            silence: Duration::from_secs(10),
            time_wait: Duration::from_millis(500),
        }
    }
}

/// Why a call failed; the state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No such connection or listener.
    NotFound,
    /// The state of the connection does not permit the call.
    State,
    /// Another listener uses this address and port.
    AddrInUse,
}

/// Parameters of [`ConnectionManager::connect`].
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams {
    /// Local address and port; the address must not be the wildcard.
    pub src: SocketAddr,
    /// The listener's address and port.
    pub dst: SocketAddr,
    /// Port space.
    pub port_space: PortSpace,
    /// The local QP.
    pub qp: LocalQp,
    /// Transport retries, 0..=7.
    pub retry_count: u8,
    /// Local acknowledgement timeout, `4.096 us * 2^n`.
    pub ack_timeout: u8,
    /// Path MTU as `ibv_mtu` has it.
    pub path_mtu: u8,
    /// Private data for the listener.
    pub private_data: PrivateData,
}

/// Parameters of [`ConnectionManager::accept`].
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams {
    /// The local QP.
    pub qp: LocalQp,
    /// Private data for the active side.
    pub private_data: PrivateData,
    /// Whether the QP is in RTR or a later state; if not, the REP is held back until
    /// [`ConnectionManager::qp_ready`].
    pub qp_ready: bool,
}

/// A REQ that arrived for a listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest {
    /// The listener.
    pub listener: ListenId,
    /// The new connection, which the application accepts, rejects or destroys.
    pub conn: ConnId,
    /// The REQ's body.
    pub req: Req,
    /// The REQ's private data.
    pub private_data: PrivateData,
}

/// An event for the application.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // rare, and copying is cheaper than allocating
pub enum Event {
    /// A REQ arrived.
    ConnectRequest(ConnectRequest),
    /// A REQ has waited too long for [`ConnectionManager::take_request`]: its event is void, and
    /// the connection does not exist any more.
    Withdrawn {
        /// The listener of the [`ConnectRequest`].
        listener: ListenId,
        /// Its connection.
        conn: ConnId,
    },
    /// The REP arrived. The application sets the QP to RTR and RTS, then calls
    /// [`ConnectionManager::establish`]. For a datagram service no further step follows.
    Response {
        /// The connection.
        conn: ConnId,
        /// The peer's QP.
        qp: QpInfo,
        /// The REP's private data.
        private_data: PrivateData,
    },
    /// The passive side may send: the RTU or the first data arrived.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// The peer sent a REJ.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// The reason.
        reason: RejReason,
        /// The REJ's private data.
        private_data: PrivateData,
    },
    /// The peer did not answer in time.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// The connection has ended: one side disconnected, or the peer is gone.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// The DREQ was not answered.
        timed_out: bool,
    },
    /// The time in which late messages can arrive has passed.
    TimeWaitExit {
        /// The connection.
        conn: ConnId,
    },
}

/// A datagram to send, of `len` octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Destination.
    pub to: Peer,
    /// Length in octets.
    pub len: usize,
}

/// Counters of messages that were dropped or answered as strays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Malformed datagrams.
    pub malformed: u64,
    /// Messages for a connection that does not exist.
    pub stray: u64,
    /// Messages recognised as duplicates.
    pub duplicates: u64,
    /// REQs dropped because their source had no place in the backlog.
    pub backlog_full: u64,
    /// Messages for unknown connections that were not answered because of the rate limit.
    pub unanswered: u64,
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) addr: SocketAddr,
    pub(super) port_space: PortSpace,
    pub(super) backlog: Backlog,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) to: Peer,
    pub(super) len: usize,
    pub(super) octets: [u8; MAX_MESSAGE],
}

/// The connection manager of one process.
#[derive(Debug)]
pub struct ConnectionManager {
    pub(super) config: Config,
    pub(super) random: u64,
    pub(super) next_id: u32,
    /// By numbers that this manager gives, so that no peer chooses what their hashes are.
    pub(crate) conns: FxHashMap<ConnId, Conn>,
    /// Those that are over and destroyed, which are not in `conns`.
    pub(super) ended: EndedConns,
    pub(super) listeners: HashMap<ListenId, Listener>,
    /// Passive connections of `conns` by (peer, nonce).
    pub(super) requests: HashMap<(Peer, Nonce), ConnId>,
    pub(super) by_qpn: FxHashMap<RawQpn, ConnId>,
    pub(super) timers: BTreeSet<(Time, ConnId)>,
    /// Deadlines of connections that have ended, in order; one that no longer is the connection's
    /// is skipped. There are many, so that a tree would cost more.
    pub(super) endings: VecDeque<(Time, ConnId)>,
    pub(super) out: VecDeque<Outgoing>,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: Counters,
    /// Limits the rate of answers to messages for unknown connections.
    pub(super) strangers: RateLimit,
    pub(super) services: Services,
    pub(crate) served: Served,
    pub(super) cookies: KnownCookies,
    /// Records what happens to connections.
    pub(crate) recorder: Recorder,
}

impl ConnectionManager {
    /// A manager with no listener and no connection.
    pub fn new(config: Config) -> Self {
        let mut manager = Self {
            config,
            random: 0,
            next_id: 0,
            conns: FxHashMap::default(),
            ended: EndedConns::default(),
            listeners: HashMap::new(),
            requests: HashMap::new(),
            by_qpn: FxHashMap::default(),
            timers: BTreeSet::new(),
            endings: VecDeque::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            strangers: RateLimit::default(),
            services: Services::default(),
            served: Served::default(),
            cookies: KnownCookies::default(),
            recorder: Recorder::default(),
        };
        let [a, b, c, d, ..] = manager.random().to_le_bytes();
        manager.next_id = u32::from_le_bytes([a, b, c, d]);
        manager
    }

    /// The state of a connection; `None` if it does not exist any more.
    pub fn state(&self, id: ConnId) -> Option<ConnState> {
        let ended = || self.ended.contains(id).then_some(ConnState::TimeWait);
        self.conns.get(&id).map(|c| c.state).or_else(ended)
    }

    /// A keyed hash of a counter: reproducible from the seed, hard to predict without it.
    pub(super) fn random(&mut self) -> u64 {
        use std::hash::{DefaultHasher, Hasher};
        self.random = self.random.wrapping_add(1);
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.config.seed);
        hasher.write_u64(self.random);
        hasher.write_u64(u64::from(self.config.slot.number()));
        hasher.finish()
    }
}

pub(super) fn info_of(qp: &LocalQp, psn: Psn) -> QpInfo {
    QpInfo {
        qpn: qp.qpn,
        psn,
        responder_resources: qp.responder_resources,
        initiator_depth: qp.initiator_depth,
        srq: qp.srq,
        flow_control: qp.flow_control,
        rnr_retry: qp.rnr_retry,
        ece: qp.ece,
    }
}

/// Wait after the `tries`-th transmission: doubles five times, then stays constant.
pub(super) fn backoff(first: Duration, tries: u32) -> Duration {
    first * (1 << tries.saturating_sub(1).min(5))
}
