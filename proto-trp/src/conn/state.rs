//! The states of a queue pair and the steps between them.
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
pub enum State {
    /// Created, or reset.
    Reset,
    /// Receives may be posted.
    Init,
    /// Datagrams are taken and answered.
    Rtr,
    /// Sends are started.
    Rts,
    /// Sends are posted but not started.
    Sqd,
    /// A send of an unreliable connection has failed: sends are flushed, receives go on.
    Sqe,
    /// Everything is flushed.
    Error,
}

/// The steps that exist beside those to [`State::Reset`] and [`State::Error`], which are always allowed.
const STEPS: [(State, State); 7] = [
    (State::Reset, State::Init),
    (State::Init, State::Init),
    (State::Init, State::Rtr),
    (State::Rtr, State::Rts),
    (State::Rts, State::Sqd),
    (State::Sqd, State::Rts),
    (State::Sqe, State::Rts),
];

/// A step that does not exist, or parameters out of range (EINVAL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionError;

impl State {
    /// Whether a queue pair may step from this state to `to`.
    pub fn may_become(self, to: State) -> bool {
        matches!(to, State::Reset | State::Error) || STEPS.contains(&(self, to))
    }

    /// Whether datagrams are taken and acknowledged.
    #[inline]
    pub const fn receives(self) -> bool {
        // R8.1-1
        matches!(self, State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }

    /// Whether receive requests may be posted.
    #[inline]
    pub const fn takes_recv(self) -> bool {
        !matches!(self, State::Reset)
    }

    /// Whether send requests may be posted.
    #[inline]
    pub const fn takes_send(self) -> bool {
        matches!(self, State::Rts | State::Sqd | State::Sqe | State::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 7] = [
        State::Reset,
        State::Init,
        State::Rtr,
        State::Rts,
        State::Sqd,
        State::Sqe,
        State::Error,
    ];

    #[test]
    fn state_any_may_fail_and_be_reset() {
        for state in ALL {
            assert!(state.may_become(State::Error) && state.may_become(State::Reset));
        }
    }

    #[test]
    fn state_skipping_a_step_is_refused() {
        for (from, to) in [
            (State::Reset, State::Rtr),
            (State::Reset, State::Rts),
            (State::Init, State::Rts),
            (State::Error, State::Init),
            (State::Error, State::Rts),
            (State::Rts, State::Rtr),
            (State::Rts, State::Sqe),
            (State::Sqe, State::Sqd),
        ] {
            assert!(!from.may_become(to), "{from:?} to {to:?}");
        }
    }
}
