//! The transitions of `ibv_modify_qp`, and the owner's end of a connection.

use super::ack_state::AckState;
use super::arrived::Arrived;
use super::channel::ChannelState;
use super::config::{RtrParams, RtsParams, MAX_RD_ATOMIC};
use super::connection::Connection;
use super::host::Host;
use super::keepalive::KeepAlive;
use super::num;
use super::peer::{Peer, MAX_DATAGRAM, MIN_DATAGRAM};
use super::qp_state::{QpState, TransitionError};
use super::transmit::Controls;
use super::transport::Transport;
use crate::wire::{self, connection_id, Prediction};
use urdma_types::{Psn, Qpn, Time};

impl Connection {
    /// RESET or INIT to INIT.
    ///
    /// # Errors
    /// The transition does not exist.
    pub fn to_init(&mut self) -> Result<(), TransitionError> {
        self.phase.step(QpState::Init)
    }

    /// INIT to RTR: datagrams of the peer are accepted from now on.
    ///
    /// # Errors
    /// The transition does not exist, or a parameter is out of range.
    pub fn to_rtr(&mut self, now: Time, params: &RtrParams) -> Result<(), TransitionError> {
        let datagrams = MIN_DATAGRAM..=MAX_DATAGRAM;
        let transport = Transport::of(&self.config, params.path);
        let is_channel = transport.is_channel();
        let fits = is_channel || datagrams.contains(&params.max_datagram_octets);
        if !fits || params.min_rnr_timer > 31 {
            return Err(TransitionError);
        }
        self.phase.step(QpState::Rtr)?;
        let naming = if self.config.names_shared_queue {
            wire::SHARED_QUEUE_LEN
        } else {
            0
        };
        let max_payload = |overhead: usize| {
            if is_channel {
                return wire::message::MESSAGE_PAYLOAD_MAX;
            }
            // RFC5041-3-1
            //# TRP tells DDP the largest segment that the path carries.
            params.max_datagram_octets - num::len32(overhead + naming)
        };
        let rx_id = connection_id(params.remote_qpn, self.config.local_qpn, params.remote_psn);
        let prediction = match transport {
            Transport::Stream => Prediction::new(self.config.local_qpn.index(), rx_id),
            Transport::Unreliable | Transport::Channel => Prediction::NONE,
        };
        self.transport = transport;
        self.peer = Peer {
            index: params.remote_qpn.index(),
            rx_id,
            prediction,
            max_datagram: params.max_datagram_octets as usize,
            max_tagged: max_payload(wire::TAGGED_OVERHEAD),
            max_untagged: max_payload(wire::UNTAGGED_OVERHEAD),
            min_rnr_timer: params.min_rnr_timer,
            remote_qpn: Some(params.remote_qpn),
            ..Peer::NONE
        };
        self.rx.start(params.remote_psn);
        self.arrived = Arrived::from(params.remote_psn);
        self.channel = ChannelState::NONE;
        self.responder.start(params.max_dest_rd_atomic);
        self.acks = AckState::NONE;
        self.sender.on_heard(now);
        Ok(())
    }

    /// RTR to RTS: send requests are started from now on.
    ///
    /// # Errors
    /// The transition does not exist, or a parameter is out of range.
    pub fn to_rts(&mut self, now: Time, params: &RtsParams) -> Result<(), TransitionError> {
        let Some(remote_qpn) = self
            .peer
            .remote_qpn
            .filter(|_| self.phase.state() == QpState::Rtr)
        else {
            return Err(TransitionError);
        };
        if params.timeout > 31 || params.retry_cnt > 7 || params.rnr_retry > 7 {
            return Err(TransitionError);
        }
        self.phase.step(QpState::Rts)?;
        self.peer.rnr_retry = params.rnr_retry;
        match self.transport {
            Transport::Stream => self.start_or_bound_stream(now, remote_qpn, params),
            Transport::Unreliable => self.start_unreliable_stream(remote_qpn, params.local_psn),
            Transport::Channel => self.start_messages(remote_qpn, params),
        }
        Ok(())
    }

    /// Starts the outgoing stream in RTS, unless its PSN was learned in RTR.
    fn start_or_bound_stream(&mut self, now: Time, remote_qpn: Qpn, params: &RtsParams) {
        self.sq
            .limit_reads(params.max_rd_atomic.min(MAX_RD_ATOMIC).into());
        // R8.1-3
        //# When the end reaches RTS with that PSN, the stream MUST go on; with another one, which
        //# the peer would not accept, it begins anew.
        if self.phase.sends_stream() && self.sender.initial() == params.local_psn {
            self.sender.bound_silence(params);
        } else {
            self.start_stream(remote_qpn, params);
        }
        let limit = u32::from(params.retry_cnt) + 1;
        self.keepalive = KeepAlive::new(now, params.keepalive_ns, limit);
    }

    /// Changes the code of the delay that RNR packets ask for (`min_rnr_timer`; the low five bits
    /// count).
    pub fn set_min_rnr_timer(&mut self, code: u8) {
        self.peer.min_rnr_timer = code;
    }

    /// RTS to SQD: requests that have not started stay queued; [`super::Event::SqDrained`] is
    /// raised when those that have started are done.
    ///
    /// # Errors
    /// The transition does not exist.
    pub fn to_sqd<H: Host>(&mut self, host: &mut H) -> Result<(), TransitionError> {
        self.phase.step(QpState::Sqd)?;
        self.note_drained(host);
        Ok(())
    }

    /// SQD or SQE back to RTS, with unchanged parameters.
    ///
    /// # Errors
    /// The transition does not exist.
    pub fn resume(&mut self) -> Result<(), TransitionError> {
        if matches!(self.phase.state(), QpState::Sqd | QpState::Sqe) {
            self.resume_without_peer();
            self.phase.step(QpState::Rts)
        } else {
            Err(TransitionError)
        }
    }

    /// The owner destroys the queue pair. The last datagrams (acknowledgement, FIN) are then
    /// transmitted, after which the connection may be dropped.
    pub fn close(&mut self) {
        // R8.3-1: ERR and RESET receive nothing.
        if self.phase.receives()
            && self.phase.sends_stream()
            && !self.phase.peer_has_ended()
            && !self.config.unreliable
        {
            self.controls.add(Controls::FIN);
        }
        self.phase.close();
    }

    /// Sends a PROBE, which the peer answers at once.
    pub fn probe_peer(&mut self) {
        if self.phase.state() == QpState::Rts && self.phase.sends_stream() {
            self.controls.add(Controls::PROBE);
        }
    }

    /// Starts the outgoing stream: without window, timer and congestion control.
    pub(super) fn start_unreliable_stream(&mut self, remote_qpn: Qpn, local_psn: Psn) {
        self.phase.start_stream();
        self.peer.tx_id = connection_id(self.config.local_qpn, remote_qpn, local_psn);
        self.sender
            .start_unreliable(local_psn, self.config.window_packets);
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Path;
    use super::*;
    use crate::sim::{Setup, World};

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
            path: Path::Network,
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
}
