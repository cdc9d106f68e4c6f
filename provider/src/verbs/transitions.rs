//! Which steps between queue pair states exist, and which attributes each step needs and takes.
//!
//! ```text
//!   RESET -> INIT -> RTR -> RTS <-> SQD        any state -> RESET, any state -> ERR
//!             |^             |^      |^
//!             +'             +'      +'        (a state to itself: attributes only)
//! ```
//! The tables are those of InfiniBand Architecture 1.4, volume 1, table 96 for reliable connections
//! and for datagrams, without alternate paths, which this device does not have. The ends of
//! extended reliable connections leave out what belongs to the other end, unreliable connections
//! what is about acknowledgements and reads. A queue pair of an unreliable service has SQE, too: a
//! send request has failed and its send queue stands still, until the application takes it back to
//! RTS.

use rdma_core_sys::verbs::{
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type, IBV_QPS_ERR, IBV_QPS_INIT,
    IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPT_RC, IBV_QPT_UC,
    IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
};

use super::errno::VerbsError;

/// What kind of service a queue pair gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// Reliable connection.
    Connection,
    /// Unreliable connection.
    UnreliableConnection,
    /// Unreliable datagram.
    Datagram,
    /// The end of an extended reliable connection that sends.
    XrcInitiator,
    /// The end of an extended reliable connection that receives.
    XrcTarget,
}

impl Service {
    /// The service of queue pairs of this type.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`].
    pub(super) const fn of(qp_type: ibv_qp_type) -> Result<Self, VerbsError> {
        match qp_type {
            IBV_QPT_RC => Ok(Service::Connection),
            IBV_QPT_UC => Ok(Service::UnreliableConnection),
            IBV_QPT_UD => Ok(Service::Datagram),
            IBV_QPT_XRC_SEND => Ok(Service::XrcInitiator),
            IBV_QPT_XRC_RECV => Ok(Service::XrcTarget),
            _ => Err(VerbsError::NotSupported),
        }
    }

    /// Whether messages are received into requests that are posted for the queue pair alone or
    /// taken off one shared queue.
    pub(super) const fn has_receive_queue(self) -> bool {
        match self {
            Service::Connection | Service::UnreliableConnection | Service::Datagram => true,
            Service::XrcInitiator | Service::XrcTarget => false,
        }
    }

    /// The attributes of steps of connections that this end has no use for, so that nobody has to
    /// give them.
    const fn unused(self) -> ibv_qp_attr_mask {
        match self {
            Service::Connection | Service::Datagram => 0,
            Service::UnreliableConnection => {
                IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER
                    | IBV_QP_TIMEOUT
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_MAX_QP_RD_ATOMIC
            }
            Service::XrcInitiator => IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            Service::XrcTarget => IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        }
    }
}

/// The attributes of a call of `ibv_modify_qp` that count. What belongs only to the other end of an
/// extended connection is ignored, as the kernel's uverbs do: perftest names it.
pub(super) const fn heard(service: Service, mask: ibv_qp_attr_mask) -> ibv_qp_attr_mask {
    match service {
        Service::XrcInitiator | Service::XrcTarget => mask & !service.unused(),
        Service::Connection | Service::UnreliableConnection | Service::Datagram => mask,
    }
}

/// A step of the state machine with the attributes that go with it.
struct Step {
    from: ibv_qp_state,
    to: ibv_qp_state,
    required: ibv_qp_attr_mask,
    optional: ibv_qp_attr_mask,
}

/// What may be changed whenever the queue pair works.
const RUNNING: ibv_qp_attr_mask =
    IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE;

const CONNECTION: [Step; 8] = [
    Step {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        optional: 0,
    },
    Step {
        from: IBV_QPS_INIT,
        to: IBV_QPS_INIT,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    },
    Step {
        from: IBV_QPS_INIT,
        to: IBV_QPS_RTR,
        required: IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER,
        optional: IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
    },
    Step {
        from: IBV_QPS_RTR,
        to: IBV_QPS_RTS,
        required: IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC,
        optional: RUNNING,
    },
    Step {
        from: IBV_QPS_RTS,
        to: IBV_QPS_RTS,
        required: 0,
        optional: RUNNING,
    },
    Step {
        from: IBV_QPS_RTS,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_EN_SQD_ASYNC_NOTIFY,
    },
    Step {
        from: IBV_QPS_SQD,
        to: IBV_QPS_RTS,
        required: 0,
        optional: RUNNING,
    },
    Step {
        from: IBV_QPS_SQD,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE,
    },
];

/// The way out of SQE, which reliable connections never enter.
const UNRELIABLE_CONNECTION: [Step; 1] = [Step {
    from: IBV_QPS_SQE,
    to: IBV_QPS_RTS,
    required: 0,
    optional: IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS,
}];

/// What may be changed whenever a datagram queue pair works.
const DATAGRAM_RUNNING: ibv_qp_attr_mask = IBV_QP_CUR_STATE | IBV_QP_QKEY;

const DATAGRAM: [Step; 9] = [
    Step {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        optional: 0,
    },
    Step {
        from: IBV_QPS_INIT,
        to: IBV_QPS_INIT,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
    },
    Step {
        from: IBV_QPS_INIT,
        to: IBV_QPS_RTR,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
    },
    Step {
        from: IBV_QPS_RTR,
        to: IBV_QPS_RTS,
        required: IBV_QP_SQ_PSN,
        optional: DATAGRAM_RUNNING,
    },
    Step {
        from: IBV_QPS_RTS,
        to: IBV_QPS_RTS,
        required: 0,
        optional: DATAGRAM_RUNNING,
    },
    Step {
        from: IBV_QPS_RTS,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_EN_SQD_ASYNC_NOTIFY,
    },
    Step {
        from: IBV_QPS_SQD,
        to: IBV_QPS_RTS,
        required: 0,
        optional: DATAGRAM_RUNNING,
    },
    Step {
        from: IBV_QPS_SQD,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
    },
    Step {
        from: IBV_QPS_SQE,
        to: IBV_QPS_RTS,
        required: 0,
        optional: DATAGRAM_RUNNING,
    },
];

/// The state that a call of `ibv_modify_qp` on a queue pair in `from` asks for.
///
/// # Errors
/// [`VerbsError::Invalid`]: the caller takes the queue pair for one in another state.
pub(super) fn target(
    from: ibv_qp_state,
    attr: &ibv_qp_attr,
    mask: ibv_qp_attr_mask,
) -> Result<ibv_qp_state, VerbsError> {
    if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(VerbsError::Invalid);
    }
    Ok(if mask & IBV_QP_STATE == 0 {
        from
    } else {
        attr.qp_state
    })
}

/// The steps of queue pairs of this service, but for those to RESET and ERR, which any state has.
fn steps(service: Service) -> impl Iterator<Item = &'static Step> {
    let (all, own): (&[Step], &[Step]) = match service {
        Service::Datagram => (&DATAGRAM, &[]),
        Service::UnreliableConnection => (&CONNECTION, &UNRELIABLE_CONNECTION),
        Service::Connection | Service::XrcInitiator | Service::XrcTarget => (&CONNECTION, &[]),
    };
    all.iter().chain(own)
}

/// Checks a step that a call of `ibv_modify_qp` asks for.
///
/// # Errors
/// [`VerbsError::Invalid`]: no such step, an attribute is missing, or one does not belong to the
/// step.
pub(super) fn check(
    service: Service,
    from: ibv_qp_state,
    to: ibv_qp_state,
    mask: ibv_qp_attr_mask,
) -> Result<(), VerbsError> {
    if mask & IBV_QP_CUR_STATE != 0
        && !matches!(from, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE)
    {
        return Err(VerbsError::Invalid);
    }
    let (required, optional) = match to {
        IBV_QPS_RESET | IBV_QPS_ERR => (0, IBV_QP_CUR_STATE),
        _ => steps(service)
            .find(|step| step.from == from && step.to == to)
            .map(|step| {
                let used = !service.unused();
                (step.required & used, step.optional & used)
            })
            .ok_or(VerbsError::Invalid)?,
    };
    if mask & required != required || mask & !(required | optional | IBV_QP_STATE) != 0 {
        return Err(VerbsError::Invalid);
    }
    Ok(())
}

/// Whether a step asks for the event that the send queue has drained.
pub(super) fn wants_drained(attr: &ibv_qp_attr, mask: ibv_qp_attr_mask) -> bool {
    mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_core_sys::verbs::IBV_QP_ALT_PATH;

    fn check(
        from: ibv_qp_state,
        to: ibv_qp_state,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        super::check(Service::Connection, from, to, mask)
    }

    const TO_INIT: ibv_qp_attr_mask =
        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

    #[test]
    fn usual_way_to_rts_is_taken() {
        assert_eq!(check(IBV_QPS_RESET, IBV_QPS_INIT, TO_INIT), Ok(()));
        let rtr = CONNECTION[2].required | IBV_QP_STATE;
        assert_eq!(check(IBV_QPS_INIT, IBV_QPS_RTR, rtr), Ok(()));
        let rts = CONNECTION[3].required | IBV_QP_STATE;
        assert_eq!(check(IBV_QPS_RTR, IBV_QPS_RTS, rts), Ok(()));
    }

    #[test]
    fn step_without_a_required_attribute_is_refused() {
        for step in &CONNECTION {
            let full = step.required | IBV_QP_STATE;
            assert_eq!(check(step.from, step.to, full), Ok(()));
            for bit in (0..25)
                .map(|shift| 1 << shift)
                .filter(|bit| step.required & bit != 0)
            {
                assert_eq!(
                    check(step.from, step.to, full & !bit),
                    Err(VerbsError::Invalid)
                );
            }
        }
    }

    #[test]
    fn step_with_a_foreign_attribute_is_refused() {
        for step in &CONNECTION {
            for foreign in [IBV_QP_QKEY, IBV_QP_ALT_PATH, 1 << 30] {
                let mask = step.required | IBV_QP_STATE | foreign;
                assert_eq!(check(step.from, step.to, mask), Err(VerbsError::Invalid));
            }
        }
    }

    #[test]
    fn step_that_does_not_exist_is_refused() {
        for (from, to) in [
            (IBV_QPS_RESET, IBV_QPS_RTR),
            (IBV_QPS_INIT, IBV_QPS_RTS),
            (IBV_QPS_RTS, IBV_QPS_INIT),
            (IBV_QPS_ERR, IBV_QPS_RTS),
            (IBV_QPS_RTS, IBV_QPS_SQE),
            (IBV_QPS_RTS, 99),
        ] {
            assert_eq!(check(from, to, IBV_QP_STATE), Err(VerbsError::Invalid));
        }
    }

    #[test]
    fn unreliable_connections_have_no_attributes_of_acknowledgements() {
        let check = |from, to, mask| super::check(Service::UnreliableConnection, from, to, mask);
        let rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        assert_eq!(check(IBV_QPS_INIT, IBV_QPS_RTR, rtr), Ok(()));
        let rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
        assert_eq!(check(IBV_QPS_RTR, IBV_QPS_RTS, rts), Ok(()));
        for foreign in [IBV_QP_MIN_RNR_TIMER, IBV_QP_MAX_DEST_RD_ATOMIC] {
            assert!(check(IBV_QPS_INIT, IBV_QPS_RTR, rtr | foreign).is_err());
        }
        for foreign in [IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_MAX_QP_RD_ATOMIC] {
            assert!(check(IBV_QPS_RTR, IBV_QPS_RTS, rts | foreign).is_err());
        }
    }

    #[test]
    fn only_unreliable_services_come_back_from_sqe() {
        let again = IBV_QP_STATE | IBV_QP_CUR_STATE;
        let back = |service, mask| super::check(service, IBV_QPS_SQE, IBV_QPS_RTS, mask);
        let access = again | IBV_QP_ACCESS_FLAGS;
        assert_eq!(back(Service::UnreliableConnection, access), Ok(()));
        assert!(back(Service::UnreliableConnection, again | IBV_QP_SQ_PSN).is_err());
        assert_eq!(back(Service::Datagram, again | IBV_QP_QKEY), Ok(()));
        assert!(back(Service::Datagram, access).is_err());
        for service in [
            Service::Connection,
            Service::XrcInitiator,
            Service::XrcTarget,
        ] {
            assert!(back(service, again).is_err());
        }
        for service in [Service::UnreliableConnection, Service::Datagram] {
            for (from, to) in [(IBV_QPS_RTS, IBV_QPS_SQE), (IBV_QPS_SQE, IBV_QPS_SQD)] {
                assert!(super::check(service, from, to, IBV_QP_STATE).is_err());
            }
        }
    }

    #[test]
    fn ends_of_extended_connections_leave_out_what_the_other_end_has() {
        let rtr = CONNECTION[2].required | IBV_QP_STATE;
        let rts = CONNECTION[3].required | IBV_QP_STATE;
        for service in [Service::XrcInitiator, Service::XrcTarget] {
            let needed = |mask| heard(service, mask);
            for (from, to, mask) in [
                (IBV_QPS_INIT, IBV_QPS_RTR, rtr),
                (IBV_QPS_RTR, IBV_QPS_RTS, rts),
            ] {
                let check = |mask| super::check(service, from, to, mask);
                assert_eq!(check(needed(mask)), Ok(()));
                assert_eq!(check(mask).is_ok(), needed(mask) == mask);
                assert!(check(needed(mask) & !(IBV_QP_AV | IBV_QP_SQ_PSN)).is_err());
            }
        }
    }

    #[test]
    fn reset_and_error_from_any_state_are_taken() {
        for from in [
            IBV_QPS_RESET,
            IBV_QPS_INIT,
            IBV_QPS_RTR,
            IBV_QPS_RTS,
            IBV_QPS_SQD,
            IBV_QPS_SQE,
            IBV_QPS_ERR,
        ] {
            for to in [IBV_QPS_RESET, IBV_QPS_ERR] {
                assert_eq!(check(from, to, IBV_QP_STATE), Ok(()));
                assert_eq!(
                    check(from, to, IBV_QP_STATE | IBV_QP_PORT),
                    Err(VerbsError::Invalid)
                );
            }
        }
    }

    #[test]
    fn current_state_in_reset_is_refused() {
        assert_eq!(
            check(IBV_QPS_RESET, IBV_QPS_INIT, TO_INIT | IBV_QP_CUR_STATE),
            Err(VerbsError::Invalid)
        );
    }
}
