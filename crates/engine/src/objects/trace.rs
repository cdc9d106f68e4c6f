//! What the flight recorder of the process is told (doc/tracing.md).

use std::os::fd::AsFd;

use proto_trp::conn::{QpState, Status, Trace};
use urdma_channel::OwnRecording;
use urdma_ipc::ControlClient;
use urdma_trace::Recorder;

use super::qp::{Qp, QpConfig};
use super::xrc::XrcRole;
use crate::clock;
use crate::types::QpAttributes;

/// The recorder of an engine; urdmad gets its recording. Without memory for one nothing is
/// recorded.
pub(crate) fn recorder(control: Option<&ControlClient>) -> Recorder {
    let Ok((recording, memory)) = OwnRecording::create() else {
        return Recorder::default();
    };
    if let Some(control) = control {
        // An urdmad that has ended or does not read shows no recordings.
        let _ = control.offer_recording(memory.as_fd());
    }
    Recorder::new(recording, clock::now_ns)
}

/// The number of a queue pair's type in verbs (`enum ibv_qp_type`).
pub(crate) fn type_number(config: &QpConfig) -> u32 {
    match config.xrc {
        XrcRole::None if config.unreliable => 3,
        XrcRole::None => 2,
        XrcRole::Initiator => 9,
        XrcRole::Target(_) => 10,
    }
}

/// The type of a datagram queue pair.
pub(crate) const DATAGRAM_TYPE: u32 = 4;
/// The type of an initiator or target of the dynamically connected transport.
pub(crate) const DRIVER_TYPE: u32 = 0xff;

/// The number of a state in verbs (`enum ibv_qp_state`).
fn state_number(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Error => 6,
    }
}

/// The number of a status in verbs (`enum ibv_wc_status`).
fn status_number(status: Status) -> u32 {
    match status {
        Status::Success => 0,
        Status::LocalLengthError => 1,
        Status::LocalQpOperationError => 2,
        Status::LocalProtectionError => 4,
        Status::WorkRequestFlushed => 5,
        Status::WindowBindError => 6,
        Status::LocalAccessError => 8,
        Status::RemoteInvalidRequestError => 9,
        Status::RemoteAccessError => 10,
        Status::RemoteOperationError => 11,
        Status::RetryExceeded => 12,
        Status::RnrRetryExceeded => 13,
    }
}

/// A queue pair has gone from one state to another.
pub(crate) fn state_changed(qp: &Qp, attributes: &QpAttributes, from: QpState, to: QpState) {
    if from != to {
        let states = (state_number(from), state_number(to));
        let remote = (attributes.remote_gid.0, attributes.remote_qpn);
        qp.recorder()
            .qp_modify(qp.number().to_u32(), states, remote);
    }
}

/// What a connection tells.
pub(crate) fn of_connection(qp: &Qp, trace: Trace) {
    let (recorder, qpn) = (qp.recorder(), qp.number().to_u32());
    match trace {
        Trace::ProbeTimeout {
            backoff,
            interval_ns,
        } => recorder.rto(qpn, backoff, interval_ns),
        Trace::SentAgain => recorder.sent_again(qpn),
        Trace::Failed(status) => recorder.qp_error(qpn, status_number(status)),
        Trace::Window { packets, rtt_ns } => recorder.cwnd(qpn, packets, rtt_ns),
    }
}
