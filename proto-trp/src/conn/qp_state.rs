//! The states of a queue pair and the transitions between them.
//!
//! ```text
//!            to_init        to_rtr        to_rts        to_sqd
//!   RESET ----------> INIT -------> RTR -------> RTS <---------> SQD
//!     ^                 |            |            |    resume     |
//!     | reset (any)     +------------+------+-----+---------------+
//!     +---------------------- ERROR <-------+  to_error, failure
//!
//!   unreliable only:  RTS, SQD ---------------> SQE ----------> RTS
//!                        failure of a send request     resume
//! ```

/// State of a queue pair; the names are those of `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Created, or reset.
    Reset,
    /// Receives may be posted.
    Init,
    /// Datagrams are accepted and acknowledged.
    Rtr,
    /// Send requests are started.
    Rts,
    /// Send requests may be posted but are not started.
    Sqd,
    /// A send request of an unreliable connection has failed: sends are flushed, receives continue.
    Sqe,
    /// All requests are flushed.
    Error,
}

/// The transitions beside those to [`QpState::Reset`] and [`QpState::Error`], which are always
/// allowed.
const STEPS: [(QpState, QpState); 7] = [
    (QpState::Reset, QpState::Init),
    (QpState::Init, QpState::Init),
    (QpState::Init, QpState::Rtr),
    (QpState::Rtr, QpState::Rts),
    (QpState::Rts, QpState::Sqd),
    (QpState::Sqd, QpState::Rts),
    (QpState::Sqe, QpState::Rts),
];

/// A transition that does not exist, or parameters out of range (EINVAL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionError;

impl QpState {
    /// Whether the transition from this state to `to` exists.
    pub fn may_become(self, to: QpState) -> bool {
        matches!(to, QpState::Reset | QpState::Error) || STEPS.contains(&(self, to))
    }

    /// Whether datagrams are accepted and acknowledged.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(
            self,
            // R8.1-1
            //# An end that reaches RTR MUST accept DATA from then on; an end that reaches RTS
            //# sends.
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    /// Whether receive requests may be posted.
    #[inline]
    pub const fn takes_recv(self) -> bool {
        !matches!(self, QpState::Reset)
    }

    /// Whether send requests may be posted.
    #[inline]
    pub const fn takes_send(self) -> bool {
        matches!(
            self,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Error,
    ];

    #[test]
    fn state_any_may_fail_and_be_reset() {
        for state in ALL {
            assert!(state.may_become(QpState::Error) && state.may_become(QpState::Reset));
        }
    }

    #[test]
    fn state_skipping_a_step_is_refused() {
        for (from, to) in [
            (QpState::Reset, QpState::Rtr),
            (QpState::Reset, QpState::Rts),
            (QpState::Init, QpState::Rts),
            (QpState::Error, QpState::Init),
            (QpState::Error, QpState::Rts),
            (QpState::Rts, QpState::Rtr),
            (QpState::Rts, QpState::Sqe),
            (QpState::Sqe, QpState::Sqd),
        ] {
            assert!(!from.may_become(to), "{from:?} to {to:?}");
        }
    }
}
