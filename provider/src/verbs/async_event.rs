//! The call of libibverbs for an asynchronous event that it has read: the event is counted with its
//! queue pair or shared receive queue.

use rdma_core_sys::verbs::{
    ibv_async_event, ibv_context, ibv_event_type, IBV_EVENT_COMM_EST, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED,
    IBV_EVENT_SRQ_LIMIT_REACHED,
};

use super::qp::structure::QueuePair;
use super::srq::SharedReceiveQueue;

/// Whether an event is about a queue pair.
const fn names_qp(kind: ibv_event_type) -> bool {
    matches!(
        kind,
        IBV_EVENT_COMM_EST
            | IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_QP_LAST_WQE_REACHED
    )
}

/// Called by libibverbs when it has read an event, before the application gets it.
pub(super) unsafe extern "C" fn async_event(_: *mut ibv_context, event: *mut ibv_async_event) {
    // SAFETY: libibverbs passes the event that it has initialized. The type says whether the union
    // holds a queue pair or a shared receive queue, which lives because its events are discarded
    // before it is freed.
    unsafe {
        if names_qp((*event).event_type) {
            QueuePair::from_ptr((*event).element.qp)
                .unacknowledged
                .count();
        } else if (*event).event_type == IBV_EVENT_SRQ_LIMIT_REACHED {
            SharedReceiveQueue::from_ptr((*event).element.srq)
                .unacknowledged
                .count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::event_type;
    use super::*;
    use urdma_engine::AsyncKind;

    #[test]
    fn async_event_of_the_device_names_no_queue_pair() {
        assert!(!names_qp(event_type(AsyncKind::DeviceFatal)));
        assert!(names_qp(event_type(AsyncKind::SqDrained)));
    }
}
