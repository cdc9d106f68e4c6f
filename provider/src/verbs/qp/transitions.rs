//! The transitions between queue pair states, and the attributes that each requires and allows.
//!
//! ```text
//!   RESET -> INIT -> RTR -> RTS <-> SQD        any state -> RESET, any state -> ERR
//!             |^             |^      |^
//!             +'             +'      +'        (a state to itself: attributes only)
//! ```
//! The tables are those of InfiniBand Architecture 1.4, volume 1, table 96, for reliable
//! connections and for datagrams, without alternate paths, which this device does not have. The
//! ends of extended reliable connections omit the attributes of the other end, unreliable
//! connections those of acknowledgements and reads. Queue pairs of unreliable services also have
//! SQE: a send request has failed and the send queue is stopped until the application moves the
//! queue pair to RTS. The steps of the dynamically connected transport are those of mlx5's: an
//! initiator is ready in RTS, a target in RTR, and neither drains.

use rdma_core_sys::verbs::{
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type, IBV_QPS_ERR, IBV_QPS_INIT,
    IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPT_RC, IBV_QPT_UC,
    IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
};

use super::super::errno::VerbsError;

/// The service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Service {
    /// Reliable connection.
    Connection,
    /// Unreliable connection.
    UnreliableConnection,
    /// Unreliable datagram.
    Datagram,
    /// The sending end of an extended reliable connection.
    XrcInitiator,
    /// The receiving end of an extended reliable connection.
    XrcTarget,
    /// The sending end of the dynamically connected transport.
    DcInitiator,
    /// The receiving end of the dynamically connected transport.
    DcTarget,
}

impl Service {
    /// The service of this type of queue pair, of those that have a type of their own.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`] for other types.
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

    /// Whether messages go to receive requests of the queue pair itself or of one shared receive
    /// queue.
    pub(super) const fn has_receive_queue(self) -> bool {
        match self {
            Service::Connection
            | Service::UnreliableConnection
            | Service::Datagram
            | Service::DcTarget => true,
            Service::XrcInitiator | Service::XrcTarget | Service::DcInitiator => false,
        }
    }

    /// Whether it sends nothing but what the transport itself sends.
    pub(super) const fn only_receives(self) -> bool {
        matches!(self, Service::XrcTarget | Service::DcTarget)
    }

    /// The attributes of a connection's transitions that this end does not use and therefore does
    /// not require.
    const fn unused(self) -> ibv_qp_attr_mask {
        match self {
            Service::Connection | Service::Datagram | Service::DcInitiator | Service::DcTarget => 0,
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

/// The attributes of a call of `ibv_modify_qp` that apply. Attributes of the other end of an
/// extended connection are ignored, as in the kernel's uverbs; perftest passes them.
pub(super) const fn applicable(service: Service, mask: ibv_qp_attr_mask) -> ibv_qp_attr_mask {
    match service {
        Service::XrcInitiator | Service::XrcTarget => mask & !service.unused(),
        _ => mask,
    }
}

/// A transition and its attributes.
struct Transition {
    from: ibv_qp_state,
    to: ibv_qp_state,
    required: ibv_qp_attr_mask,
    optional: ibv_qp_attr_mask,
}

/// The attributes that can be changed at any time once the queue pair is operational.
const RUNNING: ibv_qp_attr_mask =
    IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE;

const CONNECTION: [Transition; 8] = [
    Transition {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        optional: 0,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_INIT,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    },
    Transition {
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
    Transition {
        from: IBV_QPS_RTR,
        to: IBV_QPS_RTS,
        required: IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC,
        optional: RUNNING,
    },
    Transition {
        from: IBV_QPS_RTS,
        to: IBV_QPS_RTS,
        required: 0,
        optional: RUNNING,
    },
    Transition {
        from: IBV_QPS_RTS,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_EN_SQD_ASYNC_NOTIFY,
    },
    Transition {
        from: IBV_QPS_SQD,
        to: IBV_QPS_RTS,
        required: 0,
        optional: RUNNING,
    },
    Transition {
        from: IBV_QPS_SQD,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE,
    },
];

/// The transition out of SQE, which reliable connections never enter.
const UNRELIABLE_CONNECTION: [Transition; 1] = [Transition {
    from: IBV_QPS_SQE,
    to: IBV_QPS_RTS,
    required: 0,
    optional: IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS,
}];

/// As [`RUNNING`], of datagram queue pairs.
const DATAGRAM_RUNNING: ibv_qp_attr_mask = IBV_QP_CUR_STATE | IBV_QP_QKEY;

const DATAGRAM: [Transition; 9] = [
    Transition {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        optional: 0,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_INIT,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_RTR,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
    },
    Transition {
        from: IBV_QPS_RTR,
        to: IBV_QPS_RTS,
        required: IBV_QP_SQ_PSN,
        optional: DATAGRAM_RUNNING,
    },
    Transition {
        from: IBV_QPS_RTS,
        to: IBV_QPS_RTS,
        required: 0,
        optional: DATAGRAM_RUNNING,
    },
    Transition {
        from: IBV_QPS_RTS,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_EN_SQD_ASYNC_NOTIFY,
    },
    Transition {
        from: IBV_QPS_SQD,
        to: IBV_QPS_RTS,
        required: 0,
        optional: DATAGRAM_RUNNING,
    },
    Transition {
        from: IBV_QPS_SQD,
        to: IBV_QPS_SQD,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
    },
    Transition {
        from: IBV_QPS_SQE,
        to: IBV_QPS_RTS,
        required: 0,
        optional: DATAGRAM_RUNNING,
    },
];

const DC_INITIATOR: [Transition; 5] = [
    Transition {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        required: IBV_QP_PKEY_INDEX | IBV_QP_PORT,
        optional: IBV_QP_ACCESS_FLAGS,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_INIT,
        required: 0,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_RTR,
        required: IBV_QP_PATH_MTU,
        optional: IBV_QP_PKEY_INDEX | IBV_QP_AV,
    },
    Transition {
        from: IBV_QPS_RTR,
        to: IBV_QPS_RTS,
        required: IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC,
        optional: IBV_QP_MIN_RNR_TIMER,
    },
    Transition {
        from: IBV_QPS_RTS,
        to: IBV_QPS_RTS,
        required: 0,
        optional: IBV_QP_MIN_RNR_TIMER,
    },
];

const DC_TARGET: [Transition; 2] = [
    Transition {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        required: IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        optional: 0,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_RTR,
        required: IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER,
        // mlx5 requires it; answers go back where requests came from.
        optional: IBV_QP_AV,
    },
];

/// The target state of a call of `ibv_modify_qp` on a queue pair in `from`.
///
/// # Errors
/// [`VerbsError::Invalid`]: the caller's current state is not `from`.
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

/// The transitions of this service, except those to RESET and ERR, which exist from every state.
fn transitions(service: Service) -> impl Iterator<Item = &'static Transition> {
    let (all, own): (&[Transition], &[Transition]) = match service {
        Service::Datagram => (&DATAGRAM, &[]),
        Service::UnreliableConnection => (&CONNECTION, &UNRELIABLE_CONNECTION),
        Service::Connection | Service::XrcInitiator | Service::XrcTarget => (&CONNECTION, &[]),
        Service::DcInitiator => (&DC_INITIATOR, &[]),
        Service::DcTarget => (&DC_TARGET, &[]),
    };
    all.iter().chain(own)
}

/// Checks a transition that a call of `ibv_modify_qp` asks for.
///
/// # Errors
/// [`VerbsError::Invalid`]: there is no such transition, a required attribute is missing, or an
/// attribute is not allowed.
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
        _ => transitions(service)
            .find(|transition| transition.from == from && transition.to == to)
            .map(|transition| {
                let used = !service.unused();
                (transition.required & used, transition.optional & used)
            })
            .ok_or(VerbsError::Invalid)?,
    };
    if mask & required != required || mask & !(required | optional | IBV_QP_STATE) != 0 {
        return Err(VerbsError::Invalid);
    }
    Ok(())
}

/// Whether the call asks for the event that the send queue has drained.
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
    fn transition_without_a_required_attribute_is_refused() {
        for transition in &CONNECTION {
            let full = transition.required | IBV_QP_STATE;
            assert_eq!(check(transition.from, transition.to, full), Ok(()));
            for bit in (0..25)
                .map(|shift| 1 << shift)
                .filter(|bit| transition.required & bit != 0)
            {
                assert_eq!(
                    check(transition.from, transition.to, full & !bit),
                    Err(VerbsError::Invalid)
                );
            }
        }
    }

    #[test]
    fn transition_with_a_foreign_attribute_is_refused() {
        for transition in &CONNECTION {
            for foreign in [IBV_QP_QKEY, IBV_QP_ALT_PATH, 1 << 30] {
                let mask = transition.required | IBV_QP_STATE | foreign;
                assert_eq!(
                    check(transition.from, transition.to, mask),
                    Err(VerbsError::Invalid)
                );
            }
        }
    }

    #[test]
    fn transition_that_does_not_exist_is_refused() {
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
    fn ends_of_the_dynamically_connected_transport_are_ready_where_mlx5s_are() {
        for (service, table, last) in [
            (Service::DcInitiator, &DC_INITIATOR[..], IBV_QPS_RTS),
            (Service::DcTarget, &DC_TARGET[..], IBV_QPS_RTR),
        ] {
            let check = |from, to, mask| super::check(service, from, to, mask | IBV_QP_STATE);
            for transition in table {
                let (from, to) = (transition.from, transition.to);
                let all = transition.required | transition.optional;
                assert_eq!(check(from, to, transition.required), Ok(()));
                assert_eq!(check(from, to, all), Ok(()));
                assert!(check(from, to, all | IBV_QP_QKEY).is_err());
                assert!(check(from, to, all | IBV_QP_DEST_QPN).is_err());
                if transition.required != 0 {
                    assert!(check(from, to, 0).is_err());
                }
            }
            for to in [IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_INIT] {
                assert!(check(last, to, 0).is_err());
            }
            assert_eq!(check(last, IBV_QPS_ERR, 0), Ok(()));
            assert_eq!(check(IBV_QPS_ERR, IBV_QPS_RESET, 0), Ok(()));
        }
        let to_rts = DC_INITIATOR[3].required | IBV_QP_STATE;
        assert!(super::check(Service::DcTarget, IBV_QPS_RTR, IBV_QPS_RTS, to_rts).is_err());
    }

    #[test]
    fn ends_of_extended_connections_leave_out_what_the_other_end_has() {
        let rtr = CONNECTION[2].required | IBV_QP_STATE;
        let rts = CONNECTION[3].required | IBV_QP_STATE;
        for service in [Service::XrcInitiator, Service::XrcTarget] {
            let needed = |mask| applicable(service, mask);
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
