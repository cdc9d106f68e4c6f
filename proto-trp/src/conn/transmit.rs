//! The next datagram to be sent: its kind, the plan for it, and what was written.

/// The kind of the next datagram.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// A pure acknowledgement.
    Ack,
    /// RNR: refuses the expected packet because no receive request is posted.
    Rnr,
    /// A Terminate for an error found here.
    Terminate,
    /// The orderly end of the connection.
    Fin,
    /// The answer to a FIN.
    FinAck,
    /// A keep-alive probe.
    Probe,
    /// A lost segment.
    Again,
    /// The next segment of a request.
    Request,
    /// A train of short requests.
    Train,
    /// The next segment of a response.
    Answer,
    /// The segment that was refused (RNR), under a new number.
    Retry,
}

/// A segment or a train to be sent, and its payload in octets.
pub(super) type Planned = (Next, u32);

/// Datagrams without payload that are due to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Controls {
    pub(super) terminate: bool,
    pub(super) rnr: bool,
    pub(super) fin: bool,
    pub(super) fin_ack: bool,
    pub(super) probe: bool,
}

impl Controls {
    #[inline]
    pub(super) fn any(self) -> bool {
        self.terminate | self.rnr | self.fin | self.fin_ack | self.probe
    }

    #[inline]
    pub(super) fn next(self) -> Option<Next> {
        if !self.any() {
            None
        } else if self.terminate {
            Some(Next::Terminate)
        } else if self.rnr {
            Some(Next::Rnr)
        } else if self.fin_ack {
            Some(Next::FinAck)
        } else if self.probe {
            Some(Next::Probe)
        } else {
            Some(Next::Fin)
        }
    }
}

/// What the next datagram is; see [`super::Connection::plan_transmit`].
#[derive(Clone, Copy, Debug)]
pub struct TransmitPlan {
    pub(super) next: Next,
    pub(super) len: usize,
}

impl TransmitPlan {
    /// Octets that the buffer must hold: an upper bound of what is written, and at most
    /// `max_datagram_octets`.
    #[inline]
    pub const fn room(self) -> usize {
        self.len
    }

    /// Whether it is a train, which is likely to need all of that room.
    #[inline]
    pub const fn is_train(self) -> bool {
        matches!(self.next, Next::Train)
    }
}

/// A datagram that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Octets of the buffer to send.
    pub len: usize,
    /// It carries application data, and is sent with ECN-Capable Transport (ECT).
    pub ecn_capable: bool,
}
