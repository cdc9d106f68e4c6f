//! The phase of a connection: the state of its queue pair, and how far both ends have come.

use super::qp_state::{QpState, TransitionError};

/// What is known of the peer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerEnd {
    /// It takes part, as far as is known.
    Present,
    /// It has destroyed its queue pair (FIN): nothing more is sent to it.
    Closed,
    /// It is gone without a FIN: nothing more is sent to it, and the next send fails at once.
    Gone,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    state: QpState,
    /// This end has an outgoing stream: RTS was reached, or its PSN was learned in RTR.
    sends_stream: bool,
    peer: PeerEnd,
    /// The owner is about to destroy this queue pair.
    is_closing: bool,
    /// A packet has been accepted.
    is_established: bool,
    /// [`super::Event::SqDrained`] was raised since SQD was entered.
    is_drained: bool,
    /// The peer's requests are refused (RNR) because no receive request is posted.
    refuses: bool,
    /// See [`Phase::starts_requests`]; derived, for the test of each packet that is planned.
    starts_requests: bool,
    /// See [`Phase::exchanges`]; derived, for the test of each packet that arrives.
    exchanges: bool,
}

impl Phase {
    /// That of a new connection, and of one that was reset.
    pub(super) const RESET: Self = Self {
        state: QpState::Reset,
        sends_stream: false,
        peer: PeerEnd::Present,
        is_closing: false,
        is_established: false,
        is_drained: false,
        refuses: false,
        starts_requests: false,
        exchanges: false,
    };

    /// Derives what follows from the other fields. Called by each method that changes one.
    fn derive(&mut self) {
        self.starts_requests = self.state == QpState::Rts && self.sends_stream && !self.is_ending();
        self.exchanges =
            self.receives() && self.sends_stream && self.is_established && !self.refuses;
    }

    /// The state of the queue pair.
    #[inline(always)]
    pub(super) const fn state(&self) -> QpState {
        self.state
    }

    /// Whether packets are accepted and acknowledged.
    #[inline(always)]
    pub(super) const fn receives(&self) -> bool {
        self.state.receives()
    }

    /// Makes a transition.
    ///
    /// # Errors
    /// It does not exist.
    pub(super) fn step(&mut self, to: QpState) -> Result<(), TransitionError> {
        if !self.state.may_become(to) {
            return Err(TransitionError);
        }
        self.state = to;
        self.is_drained = false;
        self.derive();
        Ok(())
    }

    /// To ERROR. Returns whether it was there already.
    pub(super) fn fail(&mut self) -> bool {
        let had_failed = self.state == QpState::Error;
        self.state = QpState::Error;
        self.refuses = false;
        self.derive();
        had_failed
    }

    /// To SQE: a send request of an unreliable connection has failed.
    pub(super) fn stop_sends(&mut self) {
        self.state = QpState::Sqe;
        self.derive();
    }

    /// Whether this end has an outgoing stream.
    #[inline(always)]
    pub(super) const fn sends_stream(&self) -> bool {
        self.sends_stream
    }

    /// This end has an outgoing stream from now on.
    pub(super) fn start_stream(&mut self) {
        self.sends_stream = true;
        self.derive();
    }

    /// Whether nothing more is sent to the peer, because it has closed or is gone.
    #[inline(always)]
    pub(super) fn peer_has_ended(&self) -> bool {
        self.peer != PeerEnd::Present
    }

    /// Whether the peer is gone without a FIN.
    pub(super) fn peer_is_gone(&self) -> bool {
        self.peer == PeerEnd::Gone
    }

    /// The peer has destroyed its queue pair (FIN).
    pub(super) fn on_peer_closed(&mut self) {
        self.peer = PeerEnd::Closed;
        self.derive();
    }

    /// The peer is gone without a FIN.
    pub(super) fn on_peer_gone(&mut self) {
        self.peer = PeerEnd::Gone;
        self.derive();
    }

    /// The owner is about to destroy this queue pair.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        self.derive();
    }

    /// Whether an end of the connection is about to go, or has gone: no request or response is
    /// sent.
    #[inline(always)]
    pub(super) fn is_ending(&self) -> bool {
        self.peer_has_ended() | self.is_closing
    }

    /// Whether requests of an outgoing stream may start: it is RTS, and no end has gone.
    #[inline(always)]
    pub(super) const fn starts_requests(&self) -> bool {
        self.starts_requests
    }

    /// Whether packets are accepted as in most of a connection's time: both ends have a stream, and
    /// no request is refused.
    #[inline(always)]
    pub(super) const fn exchanges(&self) -> bool {
        self.exchanges
    }

    /// A packet was accepted. Returns whether it is the first one, in RTR.
    #[inline(always)]
    pub(super) fn establish(&mut self) -> bool {
        !self.is_established && self.establish_first()
    }

    #[cold]
    fn establish_first(&mut self) -> bool {
        self.is_established = true;
        self.derive();
        self.state == QpState::Rtr
    }

    /// Whether the end of the requests that have started is to be reported (SQD).
    pub(super) fn drains(&self) -> bool {
        self.state == QpState::Sqd && !self.is_drained
    }

    /// The end of the requests that had started is reported.
    pub(super) fn on_drained(&mut self) {
        self.is_drained = true;
    }

    /// Whether the peer's requests are refused (RNR).
    #[inline(always)]
    pub(super) const fn refuses(&self) -> bool {
        self.refuses
    }

    /// Begins or ends to refuse the peer's requests.
    #[inline(always)]
    pub(super) fn refuse(&mut self, refuses: bool) {
        if self.refuses != refuses {
            self.refuses = refuses;
            self.derive();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_rts() -> Phase {
        let mut phase = Phase::RESET;
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            assert_eq!(phase.step(to), Ok(()));
        }
        phase.start_stream();
        phase
    }

    #[test]
    fn requests_start_in_rts_until_an_end_goes() {
        let phase = in_rts();
        assert!(phase.starts_requests());
        let ends: [fn(&mut Phase); 5] = [
            Phase::close,
            Phase::on_peer_closed,
            Phase::on_peer_gone,
            Phase::stop_sends,
            |phase| assert_eq!(phase.step(QpState::Sqd), Ok(())),
        ];
        for end in ends {
            let mut phase = phase;
            end(&mut phase);
            assert!(!phase.starts_requests(), "{phase:?}");
        }
    }

    #[test]
    fn drained_is_reported_once_for_each_time_in_sqd() {
        let mut phase = in_rts();
        for _ in 0..2 {
            assert!(!phase.drains());
            assert_eq!(phase.step(QpState::Sqd), Ok(()));
            assert!(phase.drains());
            phase.on_drained();
            assert!(!phase.drains());
            assert_eq!(phase.step(QpState::Rts), Ok(()));
        }
    }

    #[test]
    fn established_is_reported_in_rtr_only() {
        let mut early = Phase::RESET;
        assert_eq!(early.step(QpState::Init), Ok(()));
        assert_eq!(early.step(QpState::Rtr), Ok(()));
        let mut late = in_rts();
        assert!(early.establish() && !early.establish());
        assert!(!late.exchanges());
        assert!(!late.establish() && late.exchanges());
        late.refuse(true);
        assert!(!late.exchanges());
    }

    #[test]
    fn failure_ends_refusing_and_is_new_once() {
        let mut phase = in_rts();
        phase.refuse(true);
        assert!(!phase.fail());
        assert!(!phase.refuses() && !phase.receives());
        assert!(phase.fail());
    }
}
