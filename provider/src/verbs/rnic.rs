//! What is different for a device that shows itself as an RNIC: it has reliable connections only,
//! and rdma_cm makes them. Programs know such a device by its node type and have a way of their own
//! for it.
//!
//! The kernel module's device is always one, that of the stand-in if the configuration says so
//! (`personality = "iwarp"`).

use rdma_core_sys::verbs::{
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_SQD, IBV_QP_AV, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_STATE,
};

use super::backend::Backend;
use super::device::Context;
use super::errno::VerbsError;
use super::query::{PKEY_INDEX, PORT};
use urdma_engine::{Engine, Personality};

/// Who sets the queue pairs of an RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rnic {
    /// librdmacm, with attributes that the stand-in gives it.
    StandIn,
    /// urdmad, told by the kernel's rdma_cm, which gives librdmacm no attributes.
    Kernel,
}

impl Context {
    /// Whether the device is an RNIC, and which.
    pub(super) fn rnic(&self) -> Option<Rnic> {
        match (&self.backend, self.engine.info().personality) {
            (Backend::Kernel(_), _) => Some(Rnic::Kernel),
            (Backend::StandIn(_), Personality::Iwarp) => Some(Rnic::StandIn),
            (Backend::StandIn(_), Personality::Roce) => None,
        }
    }

    /// For what RNICs have not.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`] on an RNIC.
    pub(super) fn refuse_on_rnic(&self) -> Result<(), VerbsError> {
        match self.rnic() {
            None => Ok(()),
            Some(_) => Err(VerbsError::NotSupported),
        }
    }
}

/// The attributes of a call of `ibv_modify_qp`, and which of them count.
pub(super) type Change = (ibv_qp_attr, ibv_qp_attr_mask);

impl Rnic {
    /// The change that a call of `ibv_modify_qp` towards state `to` means; `None` if there is
    /// nothing to do now.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`]: the queue pair would be connected without rdma_cm.
    pub(super) fn change(
        self,
        engine: &Engine,
        attr: &ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        to: ibv_qp_state,
    ) -> Result<Option<Change>, VerbsError> {
        let mut attr = *attr;
        let mut mask = mask;
        match (self, to) {
            _ if mask & IBV_QP_STATE == 0 => {}
            // Who knows that it is an RNIC says nothing of what that has not.
            (_, IBV_QPS_INIT) if mask & IBV_QP_PKEY_INDEX == 0 => {
                (attr.port_num, attr.pkey_index) = (PORT, PKEY_INDEX);
                mask |= IBV_QP_PORT | IBV_QP_PKEY_INDEX;
            }
            // urdmad has it set when the connection is made.
            (Rnic::Kernel, IBV_QPS_RTR) if mask & IBV_QP_AV == 0 => return Ok(None),
            (Rnic::StandIn, IBV_QPS_RTR) if !engine.has_met(attr.dest_qp_num, attr.rq_psn) => {
                eprintln!(
                    "urdma: this device is an RNIC (personality = \"iwarp\"): only rdma_cm \
                     connects its queue pairs"
                );
                return Err(VerbsError::NotSupported);
            }
            // So librdmacm ends an RNIC's connection; there is no kernel here to fail the queue
            // pair after that.
            (Rnic::StandIn, IBV_QPS_SQD) => {
                (attr.qp_state, mask) = (IBV_QPS_ERR, IBV_QP_STATE);
            }
            _ => {}
        }
        Ok(Some((attr, mask)))
    }
}
