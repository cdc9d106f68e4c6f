//! A connection: its parts, and what can be said about it from them.

use super::ack_state::AckState;
use super::arrived::Arrived;
use super::channel::ChannelState;
use super::config::{
    ConnConfig, Path, RtsParams, MAX_INLINE, MAX_RD_ATOMIC, MAX_SGE, MAX_WINDOW_PACKETS,
};
use super::ending::Ending;
use super::keepalive::KeepAlive;
use super::peer::Peer;
use super::phase::Phase;
use super::qp_state::QpState;
use super::queues::SegmentSource;
use super::queues::{RecvQueue, SendQueue};
use super::responder::Responder;
use super::rxwindow::RxWindow;
use super::stats::ConnStats;
use super::stream::Sender;
use super::transmit::Controls;
use super::transport::Transport;
use crate::wire::{self, connection_id};
use std::mem;
use urdma_types::{Psn, Qpn};

/// The protocol state of one RC or UC queue pair.
#[derive(Debug)]
pub struct Connection {
    pub(super) phase: Phase,
    pub(super) transport: Transport,
    pub(super) controls: Controls,
    pub(super) peer: Peer,
    pub(super) sender: Sender,
    pub(super) rx: RxWindow,
    pub(super) acks: AckState,
    pub(super) sq: SendQueue,
    pub(super) rq: RecvQueue,
    pub(super) responder: Responder,
    /// The state of a path through a channel.
    pub(super) channel: ChannelState,
    pub(super) keepalive: KeepAlive,
    pub(super) ending: Ending,
    /// Receive state of an unreliable stream.
    pub(super) arrived: Arrived,
    pub(super) stats: ConnStats,
    pub(super) config: ConnConfig,
}

impl Connection {
    /// The configuration with sizes clamped and rounded.
    pub(crate) fn clamped(config: ConnConfig) -> ConnConfig {
        ConnConfig {
            sq_depth: config.sq_depth.clamp(1, 1 << 15).next_power_of_two(),
            rq_depth: config.rq_depth.min(1 << 15),
            max_send_sge: config.max_send_sge.clamp(1, MAX_SGE),
            max_recv_sge: config.max_recv_sge.clamp(1, MAX_SGE),
            max_inline: config.max_inline.min(MAX_INLINE),
            // R4-2
            //# It MUST be at least 1, except in RESET, where the octet holds a reason and a bit
            //# (section 8.4).
            window_packets: config
                .window_packets
                .clamp(wire::WINDOW_UNIT_PACKETS, MAX_WINDOW_PACKETS)
                .next_multiple_of(wire::WINDOW_UNIT_PACKETS),
            max_dest_rd_atomic_cap: config.max_dest_rd_atomic_cap.min(MAX_RD_ATOMIC),
            ..config
        }
    }

    /// A connection in [`QpState::Reset`]. Sizes out of range are clamped.
    pub fn new(config: ConnConfig) -> Self {
        let config = Self::clamped(config);
        let queues = (
            SendQueue::new(&config),
            RecvQueue::new(config.rq_depth, config.max_recv_sge, config.shared_recv),
        );
        Self::unconnected(config, queues, ConnStats::default())
    }

    /// A connection in [`QpState::Reset`] with these queues, which are empty, and counters: what a
    /// queue pair keeps when it is reset. The configuration is clamped.
    fn unconnected(config: ConnConfig, (sq, rq): (SendQueue, RecvQueue), stats: ConnStats) -> Self {
        let window = config.window_packets;
        Self {
            phase: Phase::RESET,
            transport: Transport::of(&config, Path::Network),
            controls: Controls::default(),
            peer: Peer::NONE,
            sender: Sender::new(window),
            rx: RxWindow::new(window),
            acks: AckState::NONE,
            sq,
            rq,
            responder: Responder::new(config.max_dest_rd_atomic_cap),
            channel: ChannelState::NONE,
            keepalive: KeepAlive::default(),
            ending: Ending::NONE,
            arrived: Arrived::default(),
            stats,
            config,
        }
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> QpState {
        self.phase.state()
    }

    /// Counters.
    #[inline]
    pub fn stats(&self) -> &ConnStats {
        &self.stats
    }

    /// The configuration in effect, with sizes clamped and rounded.
    #[inline]
    pub fn config(&self) -> &ConnConfig {
        &self.config
    }

    /// Any state to RESET: all state but the counters is discarded and nothing completes.
    pub fn reset(&mut self) {
        self.sq.reset();
        self.rq.clear();
        let queues = (mem::take(&mut self.sq), mem::take(&mut self.rq));
        *self = Self::unconnected(self.config, queues, self.stats);
    }

    /// Sets the counters of a new connection to `count`, so that simulations reach their wrap. Both
    /// ends must do it.
    pub fn count_from(&mut self, count: u32) {
        self.sq.count_from(count);
        self.rq.count_from(count);
        self.responder.number_from(wire::Msn(count));
        self.sender.count_from(count);
    }

    /// What the sink STags of reads are made from, for simulations of a peer that knows it.
    pub fn cookie(&self) -> u32 {
        self.sq.cookie()
    }

    /// Whether there is anything to transmit, now or when a window opens or an RNR pause ends.
    /// Costs a few comparisons.
    #[inline]
    pub fn may_have_tx(&self) -> bool {
        self.has_unsent()
            || (self.acks.due | self.controls.any())
            || self.responder.has_answers()
            || self.sender.has_lost()
    }

    /// Whether a posted request has not been sent, or not all of it.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.sq.unsent() > 0
    }

    /// Whether an acknowledgement is due that the peer waits for.
    #[inline]
    pub fn ack_is_due(&self) -> bool {
        self.acks.due
    }

    /// Send requests that have not completed.
    #[inline]
    pub fn sends_outstanding(&self) -> u32 {
        self.sq.len()
    }

    /// The congestion window in packets, and the smoothed round-trip time in nanoseconds; zeroes
    /// over a channel and before the first sample.
    pub fn window_and_rtt(&self) -> (u32, u64) {
        match self.transport {
            Transport::Stream => self.sender.window_and_rtt(),
            Transport::Unreliable | Transport::Channel => (0, 0),
        }
    }

    /// The next PSN of the outgoing stream, if every packet before it is acknowledged.
    pub fn acknowledged_to(&self) -> Option<Psn> {
        let acknowledged = self.sender.psn(self.sender.oldest());
        self.sender.is_empty().then_some(acknowledged)
    }

    /// Whether an atomic of this end is acknowledged whose response has not arrived: it was
    /// executed, and must not be sent on another connection.
    pub fn has_executed_atomic(&self) -> bool {
        let mut atomics = self.sq.sent().filter(|(_, wqe)| wqe.is_atomic());
        atomics.any(|(index, _)| !self.sender.carries(SegmentSource::Request(index)))
    }

    /// Whether this end owes nothing but acknowledgements: every response has been sent and
    /// acknowledged, and no message has arrived in part.
    pub fn is_quiescent(&self) -> bool {
        self.sender.is_empty() && !self.responder.has_answers() && self.rq.len() == 0
    }

    /// Receive requests that have not completed.
    #[inline]
    pub fn recvs_outstanding(&self) -> u32 {
        self.rq.len()
    }

    /// Starts the outgoing stream: sequence numbers, congestion controller and timers.
    pub(super) fn start_stream(&mut self, remote_qpn: Qpn, params: &RtsParams) {
        self.phase.start_stream();
        self.peer.tx_id = connection_id(self.config.local_qpn, remote_qpn, params.local_psn);
        let config = &self.config;
        self.sender
            .start(config.congestion, config.window_packets, params);
    }

    /// Starts the outgoing stream in RTR, with the PSN that the peer's first DATA says it expects:
    /// all that is needed to answer requests (doc/spec/trp.md, section 8.1). The timeouts of
    /// `ibv_modify_qp` are unknown until RTS, so there is no bound of the peer's silence.
    #[cold]
    pub(super) fn learn_stream(&mut self, expected: Psn) {
        if let Some(remote_qpn) = self.peer.remote_qpn {
            // R8.1-2
            //# An end in RTR MUST answer Reads and Atomics, although its own initial PSN has not
            //# been set yet: it takes it from the cumulative acknowledgement of the first DATA that
            //# it accepts, which is the PSN that the peer expects first.
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
}

#[cfg(test)]
mod tests {
    use super::super::stream::CongestionAlgorithm;
    use super::super::types::{RemoteAddr, SendOp};
    use super::*;
    use crate::sim::{Rights, Setup, SimHost, World};

    /// Packets in flight when 200 sends have been posted to a silent peer.
    fn in_flight(congestion: CongestionAlgorithm) -> u32 {
        let setup = Setup {
            max_datagram_octets: 9000,
            config: ConnConfig {
                sq_depth: 256,
                congestion,
                ..Setup::default().config
            },
            ..Setup::default()
        };
        let mut world = World::new(&setup, 1);
        world.blackout(1_000_000_000);
        let memory = world.ends[0].host.register(vec![7; 4096], Rights::ALL);
        for wr_id in 0..200 {
            world.post(0, wr_id, SendOp::Send, &[SimHost::sge(memory, 0, 4096)]);
        }
        world.flush(0);
        world.conn(0).sender.in_flight()
    }

    /// Two ends that write to one another over links that lose packets. The first has an RTT
    /// sample, lost packets, and some that arrived ahead of a missing one.
    fn busy() -> World {
        let mut setup = Setup::default();
        setup.link.loss_ppm = 100_000;
        let mut world = World::new(&setup, 1);
        let memories = world
            .ends
            .each_mut()
            .map(|end| end.host.register(vec![7; 65_536], Rights::ALL));
        for wr_id in 0..20 {
            for end in [0, 1] {
                let sges = [SimHost::sge(memories[end], 0, 65_536)];
                let (stag, to) = (memories[1 - end], SimHost::base(memories[1 - end]));
                let remote = RemoteAddr { stag, to };
                world.post(end, wr_id, SendOp::Write { remote }, &sges);
            }
        }
        let is_busy = world.run_until(100_000_000, |world| {
            let conn = world.conn(0);
            conn.rx.has_ahead() && conn.sender.has_lost() && conn.window_and_rtt() != (0, 0)
        });
        assert!(is_busy);
        world
    }

    /// A connection without what a reset keeps.
    fn without_kept(conn: &mut Connection) -> String {
        (conn.sq, conn.rq) = Default::default();
        conn.stats = ConnStats::default();
        format!("{conn:?}")
    }

    #[test]
    fn reset_connection_is_as_a_new_one() {
        let mut world = busy();
        let conn = world.conn(0);
        let mut new = Connection::new(conn.config);
        conn.reset();
        assert_eq!((conn.sq.len(), conn.rq.len()), (0, 0));
        assert_eq!(without_kept(conn), without_kept(&mut new));
    }

    #[test]
    fn reset_forgets_round_trip_time_and_congestion_window() {
        let mut world = busy();
        let conn = world.conn(0);
        conn.reset();
        assert_eq!(conn.window_and_rtt(), (0, 0));
    }

    #[test]
    fn reset_frees_the_send_window_that_has_grown() {
        let setup = Setup {
            config: ConnConfig {
                congestion: CongestionAlgorithm::FixedWindow,
                ..Setup::default().config
            },
            ..Setup::default()
        };
        let mut world = World::new(&setup, 1);
        let conn = world.conn(0);
        conn.reset();
        let new = Sender::new(conn.config.window_packets);
        assert_eq!(format!("{:?}", conn.sender), format!("{new:?}"));
    }

    #[test]
    fn reset_frees_what_arrived_ahead() {
        let mut world = busy();
        let conn = world.conn(0);
        conn.reset();
        let new = RxWindow::new(conn.config.window_packets);
        assert_eq!(format!("{:?}", conn.rx), format!("{new:?}"));
    }

    #[test]
    fn reset_keeps_the_counters() {
        let mut world = busy();
        let conn = world.conn(0);
        let stats = *conn.stats();
        assert!(stats.tx_datagrams > 0);
        conn.reset();
        assert_eq!(*conn.stats(), stats);
    }

    #[test]
    fn congestion_algorithm_on_a_network_is_the_configured_one() {
        assert_eq!(in_flight(CongestionAlgorithm::DelayBased), 32);
        assert_eq!(in_flight(CongestionAlgorithm::FixedWindow), 200);
    }
}
