//! What a queue pair of any kind has of other objects: room in its completion queues, its shared
//! receive queue, its domain of extended reliable connections.

use super::qp::{Qp, QpConfig};
use super::xrc::XrcRole;
use crate::types::{EngineError, QpCaps, LIMITS};

/// Requests of a shared receive queue that half-arrived messages of one connection may use.
pub(crate) const SHARED_IN_USE_MAX: u32 = 64;

/// Whether there can be a queue pair of these sizes.
pub(crate) fn check_sizes(config: &QpConfig) -> Result<(), EngineError> {
    let fits = (1..=LIMITS.max_qp_wr).contains(&config.max_send_wr)
        && config.max_recv_wr <= LIMITS.max_qp_wr
        && config.max_send_sge <= LIMITS.max_sge
        && config.max_recv_sge <= LIMITS.max_sge
        && config.max_inline <= LIMITS.max_inline;
    if fits {
        Ok(())
    } else {
        Err(EngineError::Invalid)
    }
}

/// Reserves room for all completions of a queue pair, and keeps the shared receive queue.
pub(crate) fn attach(config: &QpConfig, caps: QpCaps) -> Result<(), EngineError> {
    if let XrcRole::Target(domain) = &config.xrc {
        return domain.attach_target();
    }
    config.send_cq.attach(caps.max_send_wr)?;
    let received = match &config.srq {
        Some(_) => config.recv_cq.attach_shared(caps.max_recv_wr),
        None => config.recv_cq.attach(caps.max_recv_wr),
    };
    if received.is_err() {
        config.send_cq.detach(caps.max_send_wr);
        return received;
    }
    if let Some(srq) = &config.srq {
        srq.acquire();
    }
    Ok(())
}

/// Undoes [`attach`].
pub(crate) fn detach(qp: &Qp) {
    if let XrcRole::Target(domain) = qp.xrc() {
        return domain.detach_target();
    }
    let caps = qp.caps();
    qp.send_cq().detach(caps.max_send_wr);
    match qp.srq() {
        Some(srq) => {
            qp.recv_cq().detach_shared(caps.max_recv_wr);
            srq.release();
        }
        None => qp.recv_cq().detach(caps.max_recv_wr),
    }
}

/// Removes the unpolled completions of a queue pair.
pub(crate) fn purge(qp: &Qp) {
    let number = qp.number();
    qp.send_cq().purge(|wc| wc.qpn == number);
    qp.recv_cq().purge(|wc| wc.qpn == number);
    if let XrcRole::Target(domain) = qp.xrc() {
        domain.purge(number);
    }
}
