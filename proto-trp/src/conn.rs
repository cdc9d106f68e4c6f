//! The RC connection engine: the protocol state of one reliable queue pair, sans-IO.
//!
//! A [`Connection`] has no clock, no sockets, no threads and no memory of the application. Time, datagrams and work requests go in;
//! datagrams, placements ([`Host`]), completions, events and the next deadline come out. Nothing allocates after RTR but the packet
//! windows, which double when a path proves to need it.
//!
//! The driver's order of calls: everything that arrived ([`Connection::handle_datagram`]), timers that are due
//! ([`Connection::handle_timeout`]), then [`Connection::poll_transmit`] until it gives `None`, then [`Connection::next_deadline`].
//! An acknowledgement that the peer asked for is available from `poll_transmit` right after the datagram that asked.

mod ack;
mod bits;
mod config;
mod congestion;
mod host;
mod kept;
mod loss;
mod num;
mod packet;
mod peer_end;
mod plan;
mod qp_state;
mod queue;
mod receive;
mod recovery;
mod responder;
mod rnr;
mod rxwindow;
mod send;
mod stats;
mod terminate;
mod timers;
mod train;
mod txwindow;
mod types;
mod unreliable;

use crate::wire::{self, connection_id, ConnectionId, Flags, Terminate};
use urdma_types::Psn;

pub use config::{
    ConnConfig, RtrParams, RtsParams, MAX_DATAGRAM, MAX_INLINE, MAX_MESSAGE_OCTETS, MAX_RD_ATOMIC,
    MAX_SGE, MAX_WINDOW_PACKETS,
};
pub use congestion::CongestionAlgorithm;
pub use host::{AtomicOp, Host, PlaceError, ProtectionError, RemoteAccess};
pub use qp_state::{QpState, TransitionError};
pub use stats::ConnStats;
pub use types::{
    Completion, CompletionOp, Event, NoSharedRecv, Payload, PostError, RecvWr, RemoteAddr,
    SendFlags, SendOp, SendWr, Sge, SharedRecv, Status, WindowBind,
};
pub use urdma_types::Time;

use ack::AckState;
use congestion::Controller;
use plan::{Controls, Next};
use queue::{RecvQueue, SendQueue};
use recovery::{PathTiming, Recovery};
use responder::Responder;
use rnr::RnrPause;
use rxwindow::RxWindow;
use terminate::TerminateRepeat;
use timers::KeepAlive;
use txwindow::TxWindow;
use unreliable::Arrived;

/// Octets at the start of a datagram that the driver copies out of shared memory before it asks [`Connection::handle_datagram`].
pub const HEAD_OCTETS: usize = wire::HEAD_LEN_MAX;

/// Segments taken after which a receiver on a network acknowledges without being asked.
const NETWORK_ACK_EVERY: u32 = 8;
/// Segments after which a sender on a network asks for an acknowledgement, so that it learns the round trip.
const NETWORK_ACK_REQUEST_INTERVAL: u32 = 16;
/// Packets in flight on a path that stays in a host's memory: datagrams of 64 KB that the caches still hold when the receiver reads them.
const MEMORY_WINDOW_PACKETS: u32 = txwindow::FIRST_CAPACITY;
/// The same as long as those to be added are short: an application that posts without polling has so many on their way before it waits.
const MEMORY_SHORT_WINDOW_PACKETS: u32 = 2 * MEMORY_WINDOW_PACKETS;
/// Octets of payload of the longest that is short.
const MEMORY_SHORT_OCTETS: u32 = 1024;
/// The smallest datagram that a path may be limited to.
const MIN_DATAGRAM: u32 = 256;

/// A datagram that arrived for a connection.
#[derive(Debug)]
pub struct Datagram<'a, B: ?Sized> {
    /// A private copy of the first `min(len, HEAD_OCTETS)` octets, from the TRP header on.
    pub head: &'a [u8],
    /// Octets in all.
    pub len: usize,
    /// The whole datagram as the host knows it.
    pub body: &'a B,
    /// The network marked it (ECN CE).
    pub congestion_experienced: bool,
}

/// What the next datagram will be; see [`Connection::plan_transmit`].
#[derive(Clone, Copy, Debug)]
pub struct TransmitPlan {
    next: Next,
    len: usize,
}

impl TransmitPlan {
    /// Octets that the buffer must hold: never more than `max_datagram_octets`, and a little more than will be written.
    #[inline]
    pub const fn room(self) -> usize {
        self.len
    }

    /// Whether it is several messages, which are likely to need all of that room.
    #[inline]
    pub const fn is_train(self) -> bool {
        matches!(self.next, Next::Train)
    }
}

/// A datagram that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Octets of the buffer that are to be sent.
    pub len: usize,
    /// It carries application data, so it is to be marked ECN-capable.
    pub ecn_capable: bool,
}

/// The peer, the path to it, and what both ends agreed on.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Index of the peer's queue pair in its process.
    index: u16,
    /// Id of the stream sent from here.
    tx_id: ConnectionId,
    /// Id of the stream received here.
    rx_id: ConnectionId,
    max_datagram: usize,
    /// Payload octets of a tagged segment.
    max_tagged: u32,
    /// Payload octets of an untagged segment.
    max_untagged: u32,
    reliable_path: bool,
    min_rnr_timer: u8,
    rnr_retry: u8,
    max_rd_atomic: u32,
    /// Segments after which an acknowledgement is asked for.
    ack_request_interval: u64,
    /// Packets in flight to which none is added but short ones.
    long_window: u32,
    /// The peer has said that it takes trains.
    takes_trains: bool,
    remote_qpn: Option<urdma_types::Qpn>,
}

impl Peer {
    const NONE: Self = Self {
        index: 0,
        tx_id: ConnectionId::from_u32(0),
        rx_id: ConnectionId::from_u32(0),
        max_datagram: 0,
        max_tagged: 0,
        max_untagged: 0,
        reliable_path: false,
        min_rnr_timer: 0,
        rnr_retry: 0,
        max_rd_atomic: 0,
        ack_request_interval: 1,
        long_window: u32::MAX,
        takes_trains: false,
        remote_qpn: None,
    };
}

/// The protocol state of one RC queue pair.
#[derive(Debug)]
pub struct Connection {
    state: QpState,
    /// See [`ConnConfig::unreliable`].
    unreliable: bool,
    /// RTS has been reached: this end has a stream of its own.
    sends_stream: bool,
    /// The peer has destroyed its queue pair, or is gone: nothing is sent to it any more.
    peer_closed: bool,
    /// The peer is gone without a FIN: the next send fails at once.
    peer_gone: bool,
    /// The owner is about to destroy this one.
    closing: bool,
    /// A packet has been taken.
    established: bool,
    /// [`Event::SqDrained`] was raised.
    drained: bool,
    /// The peer's requests are refused for want of a receive request.
    refused: bool,
    /// The epoch of the requests that are refused.
    refused_epoch: Flags,
    /// The epoch of the requests sent from here: alternates with each refusal.
    epoch: Flags,
    /// Whether a response comes before a request when both are ready.
    answers_turn: bool,
    controls: Controls,
    peer: Peer,
    tx: TxWindow,
    rx: RxWindow,
    acks: AckState,
    sq: SendQueue,
    rq: RecvQueue,
    /// Reads and atomics begun and not answered.
    reads_outstanding: u32,
    /// Next message number of queue 0.
    message_msn: u32,
    /// Next message number of queue 1.
    request_msn: u32,
    /// The segment that asked for an acknowledgement last.
    last_ack_request: u64,
    /// Makes the names of read sinks differ between connections.
    cookie: u32,
    recovery: Recovery,
    control: Controller,
    responder: Responder,
    rnr: RnrPause,
    keepalive: KeepAlive,
    /// When sends to a closed peer fail.
    fail_deadline: Time,
    /// What the peer is told in ERROR.
    terminate: Option<Terminate>,
    terminate_repeat: TerminateRepeat,
    /// What of an unreliable stream has arrived.
    arrived: Arrived,
    stats: ConnStats,
    config: ConnConfig,
}

impl Connection {
    /// A connection in [`QpState::Reset`]. Sizes out of range are clamped.
    pub fn new(config: ConnConfig) -> Self {
        let config = ConnConfig {
            sq_depth: config.sq_depth.clamp(1, 1 << 15).next_power_of_two(),
            rq_depth: config.rq_depth.min(1 << 15),
            max_send_sge: config.max_send_sge.clamp(1, MAX_SGE),
            max_recv_sge: config.max_recv_sge.clamp(1, MAX_SGE),
            max_inline: config.max_inline.min(MAX_INLINE),
            // R4-2
            window_packets: config
                .window_packets
                .clamp(wire::WINDOW_UNIT_PACKETS, MAX_WINDOW_PACKETS)
                .next_multiple_of(wire::WINDOW_UNIT_PACKETS),
            max_dest_rd_atomic_cap: config.max_dest_rd_atomic_cap.min(MAX_RD_ATOMIC),
            ..config
        };
        let window = config.window_packets;
        Self {
            state: QpState::Reset,
            unreliable: config.unreliable,
            sends_stream: false,
            peer_closed: false,
            peer_gone: false,
            closing: false,
            established: false,
            drained: false,
            refused: false,
            refused_epoch: Flags::NONE,
            epoch: Flags::NONE,
            answers_turn: false,
            controls: Controls::default(),
            peer: Peer::NONE,
            tx: TxWindow::new(),
            rx: RxWindow::new(window),
            acks: AckState::new(NETWORK_ACK_EVERY, PathTiming::NETWORK.max_ack_delay_ns),
            sq: SendQueue::new(config.sq_depth, config.max_send_sge, config.max_inline),
            rq: RecvQueue::new(config.rq_depth, config.max_recv_sge, config.shared_recv),
            reads_outstanding: 0,
            message_msn: 1,
            request_msn: 1,
            last_ack_request: 0,
            cookie: num::low32(config.seed ^ config.seed >> 32),
            recovery: Recovery::new(),
            control: Controller::new(CongestionAlgorithm::FixedWindow, window),
            responder: Responder::new(config.max_dest_rd_atomic_cap),
            rnr: RnrPause::NONE,
            keepalive: KeepAlive::default(),
            fail_deadline: Time::NEVER,
            terminate: None,
            terminate_repeat: TerminateRepeat::NONE,
            arrived: Arrived::default(),
            stats: ConnStats::default(),
            config,
        }
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Counters.
    #[inline]
    pub fn stats(&self) -> &ConnStats {
        &self.stats
    }

    /// The sizes that the connection really has.
    #[inline]
    pub fn config(&self) -> &ConnConfig {
        &self.config
    }

    /// RESET or INIT to INIT.
    ///
    /// # Errors
    /// The step does not exist.
    pub fn to_init(&mut self) -> Result<(), TransitionError> {
        self.step(QpState::Init)
    }

    /// INIT to RTR: datagrams of the peer are taken from now on.
    ///
    /// # Errors
    /// The step does not exist, or a parameter is out of range.
    pub fn to_rtr(&mut self, now: Time, params: &RtrParams) -> Result<(), TransitionError> {
        let datagrams = MIN_DATAGRAM..=MAX_DATAGRAM;
        if !datagrams.contains(&params.max_datagram_octets) || params.min_rnr_timer > 31 {
            return Err(TransitionError);
        }
        self.step(QpState::Rtr)?;
        let naming = if self.config.names_shared_queue {
            wire::SHARED_QUEUE_LEN
        } else {
            0
        };
        // RFC5041-3-1
        let overhead = |octets: usize| params.max_datagram_octets - num::len32(octets + naming);
        self.peer = Peer {
            index: params.remote_qpn.index(),
            rx_id: connection_id(params.remote_qpn, self.config.local_qpn, params.remote_psn),
            max_datagram: params.max_datagram_octets as usize,
            max_tagged: overhead(wire::TAGGED_OVERHEAD),
            max_untagged: overhead(wire::UNTAGGED_OVERHEAD),
            reliable_path: params.reliable_path,
            min_rnr_timer: params.min_rnr_timer,
            remote_qpn: Some(params.remote_qpn),
            ..Peer::NONE
        };
        self.rx.start(params.remote_psn);
        self.arrived = Arrived::from(params.remote_psn);
        self.responder.start(params.max_dest_rd_atomic);
        let (every, timing) = if params.reliable_path {
            (MEMORY_WINDOW_PACKETS / 4, PathTiming::MEMORY)
        } else {
            (NETWORK_ACK_EVERY, PathTiming::NETWORK)
        };
        self.acks = AckState::new(every, timing.max_ack_delay_ns);
        self.recovery.on_heard(now);
        Ok(())
    }

    /// RTR to RTS: sends are started from now on.
    ///
    /// # Errors
    /// The step does not exist, or a parameter is out of range.
    pub fn to_rts(&mut self, now: Time, params: &RtsParams) -> Result<(), TransitionError> {
        let Some(remote_qpn) = self.peer.remote_qpn.filter(|_| self.state == QpState::Rtr) else {
            return Err(TransitionError);
        };
        if params.timeout > 31 || params.retry_cnt > 7 || params.rnr_retry > 7 {
            return Err(TransitionError);
        }
        self.step(QpState::Rts)?;
        self.peer.rnr_retry = params.rnr_retry;
        if self.unreliable {
            self.start_unreliable_stream(remote_qpn, params.local_psn);
            return Ok(());
        }
        self.peer.max_rd_atomic = u32::from(params.max_rd_atomic.min(MAX_RD_ATOMIC));
        // R8.1-3
        if self.sends_stream && self.tx.initial() == params.local_psn {
            self.recovery.bound(params);
        } else {
            self.start_stream(remote_qpn, params);
        }
        let limit = u32::from(params.retry_cnt) + 1;
        self.keepalive = KeepAlive::new(now, params.keepalive_ns, limit);
        Ok(())
    }

    /// Changes the code of the delay that RNR answers ask for (`min_rnr_timer`, of which the low five bits count).
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.peer.min_rnr_timer = code;
    }

    /// Begins to send DATA: numbers, window and timers of the stream.
    fn start_stream(&mut self, remote_qpn: urdma_types::Qpn, params: &RtsParams) {
        self.sends_stream = true;
        self.peer.tx_id = connection_id(self.config.local_qpn, remote_qpn, params.local_psn);
        self.tx.start(params.local_psn);
        let timing = if self.peer.reliable_path {
            self.peer.ack_request_interval = u64::from(MEMORY_WINDOW_PACKETS / 2);
            self.peer.long_window = MEMORY_WINDOW_PACKETS;
            let window = MEMORY_SHORT_WINDOW_PACKETS;
            self.control = Controller::new(CongestionAlgorithm::FixedWindow, window);
            PathTiming::MEMORY
        } else {
            // The first packets all ask, before they queue behind one another.
            self.peer.ack_request_interval = 1;
            let window = self.config.window_packets;
            self.control = Controller::new(self.config.congestion, window);
            PathTiming::NETWORK
        };
        self.recovery.start(timing, params);
    }

    /// The peer's first DATA says which PSN it expects from here: all that an end in RTR, which nobody has told its own, needs to answer
    /// requests (doc/spec/trp.md, section 8.1). How long to wait for a silent peer it does not know either.
    #[cold]
    fn learn_stream(&mut self, expected: Psn) {
        if let Some(remote_qpn) = self.peer.remote_qpn {
            // R8.1-2
            let params = RtsParams {
                local_psn: expected,
                timeout: 0,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 0,
                keepalive_ns: 0,
            };
            self.start_stream(remote_qpn, &params);
        }
    }

    /// RTS to SQD: requests that have not begun stay queued; [`Event::SqDrained`] comes when those that have begun are done.
    ///
    /// # Errors
    /// The step does not exist.
    pub fn to_sqd<H: Host>(&mut self, host: &mut H) -> Result<(), TransitionError> {
        self.step(QpState::Sqd)?;
        self.drained = false;
        self.note_drained(host);
        Ok(())
    }

    /// SQD or SQE back to RTS with the parameters of before.
    ///
    /// # Errors
    /// The step does not exist.
    pub fn resume(&mut self) -> Result<(), TransitionError> {
        if matches!(self.state, QpState::Sqd | QpState::Sqe) {
            self.resume_to_nobody();
            self.step(QpState::Rts)
        } else {
            Err(TransitionError)
        }
    }

    /// Any state to RESET: everything is forgotten and nothing completes.
    pub fn reset(&mut self) {
        self.state = QpState::Reset;
        self.sends_stream = false;
        self.peer_closed = false;
        self.peer_gone = false;
        self.closing = false;
        self.established = false;
        self.refused = false;
        self.epoch = Flags::NONE;
        self.controls = Controls::default();
        self.peer = Peer::NONE;
        self.tx.start(Psn::new(0));
        self.rx.start(Psn::new(0));
        self.acks.on_sent();
        self.sq.clear();
        self.rq.clear();
        self.reads_outstanding = 0;
        (self.message_msn, self.request_msn) = (1, 1);
        self.last_ack_request = 0;
        self.responder.start(0);
        self.rnr.clear();
        self.keepalive = KeepAlive::default();
        self.recovery.loss_deadline = Time::NEVER;
        self.fail_deadline = Time::NEVER;
        self.terminate = None;
        self.terminate_repeat.stop();
    }

    /// The counters of a new connection begin with `count`, as if it had been in use for long: so simulations reach their wrap. Both ends must do it.
    pub(crate) fn count_from(&mut self, count: u32) {
        (self.message_msn, self.request_msn) = (count, count);
        self.rq.head_msn = count;
        self.responder.number_from(wire::Msn(count));
        (self.sq.head, self.sq.next, self.sq.tail) = (count, count, count);
        (self.rq.head, self.rq.tail) = (count, count);
        self.tx.count_transmissions_from(count);
        self.recovery.largest_transmission = count;
    }

    /// The owner destroys the queue pair: `poll_transmit` then gives what is owed (acknowledgement, FIN), after which the connection may be dropped.
    pub fn close(&mut self) {
        // R8.3-1: ERR and RESET receive nothing.
        if self.state.receives() && self.sends_stream && !self.peer_closed && !self.unreliable {
            self.controls.fin = true;
        }
        self.closing = true;
    }

    fn step(&mut self, to: QpState) -> Result<(), TransitionError> {
        if !self.state.may_become(to) {
            return Err(TransitionError);
        }
        self.state = to;
        Ok(())
    }

    /// What would be sent next, so that a buffer of the right size can be found; `None` when nothing may be sent now.
    #[inline]
    pub fn plan_transmit(&self) -> Option<TransmitPlan> {
        self.plan()
    }

    /// Whether the payload of the datagram stays the connection's until its arrival is known, and is sent for the first time: then the driver may leave it where
    /// it is, if its peer can get it from there. What did not arrive that way is sent again, and then must be copied.
    #[inline]
    pub const fn may_refer(&self, plan: TransmitPlan) -> bool {
        !self.unreliable && !matches!(plan.next, Next::Again)
    }

    /// Writes the next datagram into `buf`, which holds `max_datagram_octets`; `None` when nothing may be sent now.
    #[inline]
    pub fn poll_transmit<H: Host>(
        &mut self,
        now: Time,
        buf: &mut [u8],
        host: &mut H,
    ) -> Option<Transmit> {
        while let Some(plan) = self.plan() {
            if let Some(transmit) = self.write_transmit(now, plan, buf, host) {
                return Some(transmit);
            }
        }
        None
    }

    /// Whether there is anything that `poll_transmit` may give now or, when a window opens or a pause ends, later: a few comparisons.
    #[inline]
    pub fn may_have_tx(&self) -> bool {
        self.acks.due
            || self.sq.next != self.sq.tail
            || self.responder.has_answers()
            || self.tx.lost > 0
            || self.controls.any()
    }

    /// Whether an acknowledgement is owed that the peer waits for.
    #[inline]
    pub fn ack_is_due(&self) -> bool {
        self.acks.due
    }

    /// Send requests that have not completed.
    #[inline]
    pub fn sends_outstanding(&self) -> u32 {
        self.sq.len()
    }

    /// Receive requests that have not completed.
    #[inline]
    pub fn recvs_outstanding(&self) -> u32 {
        self.rq.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Rights, Setup, SimHost, World};

    #[test]
    fn connection_out_of_range_parameters_are_refused() {
        let mut world = World::unconnected(&Setup::default(), 1);
        let conn = world.conn(0);
        let rtr = RtrParams {
            remote_qpn: conn.config().local_qpn,
            remote_psn: Psn::new(1),
            max_datagram_octets: 1472,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 0,
            reliable_path: false,
        };
        let rts = RtsParams {
            local_psn: Psn::new(1),
            timeout: 32,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            keepalive_ns: 0,
        };
        let short = RtrParams {
            max_datagram_octets: 255,
            ..rtr
        };
        assert_eq!(conn.to_rts(Time::ZERO, &rts), Err(TransitionError));
        assert_eq!(conn.to_rtr(Time::ZERO, &short), Err(TransitionError));
        assert_eq!(conn.to_rtr(Time::ZERO, &rtr), Ok(()));
        assert_eq!(conn.to_rts(Time::ZERO, &rts), Err(TransitionError));
        assert_eq!(conn.state(), QpState::Rtr);
        conn.reset();
        assert_eq!(conn.to_rtr(Time::ZERO, &rtr), Err(TransitionError));
    }

    /// Packets in flight inside a host, and the records for them, when sends of these lengths have been posted to a peer that says nothing.
    fn in_flight(lengths: impl Iterator<Item = u32>) -> (u32, u32) {
        let setup = Setup {
            reliable_path: true,
            max_datagram_octets: 9000,
            config: ConnConfig {
                sq_depth: 256,
                ..Setup::default().config
            },
            ..Setup::default()
        };
        let mut world = World::new(&setup, 1);
        world.blackout(1_000_000_000);
        let memory = world.ends[0].host.register(vec![7; 4096], Rights::ALL);
        for (wr_id, len) in (0..).zip(lengths) {
            world.post(0, wr_id, SendOp::Send, &[SimHost::sge(memory, 0, len)]);
        }
        world.flush(0);
        let tx = &world.conn(0).tx;
        (tx.in_flight, tx.capacity())
    }

    #[test]
    fn more_short_packets_than_long_ones_are_in_flight_inside_a_host() {
        let (short, long) = (MEMORY_SHORT_OCTETS, MEMORY_SHORT_OCTETS + 1);
        assert_eq!(in_flight((0..200).map(|_| short)), (128, 128));
        assert_eq!(in_flight((0..200).map(|_| long)), (64, 64));
        // A long one waits behind short ones, and short ones behind a long one.
        let mixed = |i| if i == 90 { long } else { short };
        assert_eq!(in_flight((0..200).map(mixed)), (90, 128));
        assert_eq!(in_flight((0..63).map(|_| short)), (63, 64));
    }
}
