//! The differences of a device that presents itself as an RNIC: it has reliable connections only,
//! which rdma_cm sets up. Programs recognise such a device by its node type and handle it
//! differently.
//!
//! The kernel module's device is always an RNIC. The stand-in's is one if the configuration says so
//! (`personality = "iwarp"`).

use rdma_core_sys::verbs::{
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_SQD, IBV_QP_AV, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_STATE,
};

use super::super::backend::Backend;
use super::super::context::Context;
use super::super::errno::VerbsError;
use super::attributes::{PKEY_INDEX, PORT};
use urdma_engine::{Engine, Personality, Psn, RawQpn};

/// The party that changes the states of an RNIC's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Rnic {
    /// librdmacm, with attributes from the stand-in.
    StandIn,
    /// urdmad, on behalf of the kernel's rdma_cm, which gives librdmacm no attributes.
    Kernel,
}

impl Context {
    /// The kind of RNIC, or `None` if the device is not an RNIC.
    pub(in crate::verbs) fn rnic(&self) -> Option<Rnic> {
        match (&self.backend, self.engine.info().personality) {
            (Backend::Kernel(_), _) => Some(Rnic::Kernel),
            (Backend::StandIn(_), Personality::Iwarp) => Some(Rnic::StandIn),
            (Backend::StandIn(_), Personality::Roce) => None,
        }
    }

    /// Refuses a feature that RNICs do not have.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`] on an RNIC.
    pub(in crate::verbs) fn refuse_on_rnic(&self) -> Result<(), VerbsError> {
        match self.rnic() {
            None => Ok(()),
            Some(_) => Err(VerbsError::NotSupported),
        }
    }
}

/// The attributes of a call of `ibv_modify_qp` and their mask.
pub(super) type Change = (ibv_qp_attr, ibv_qp_attr_mask);

impl Rnic {
    /// Translates a call of `ibv_modify_qp` with target state `to`; `None` if nothing is to be done
    /// now.
    ///
    /// # Errors
    /// [`VerbsError::NotSupported`]: the call would connect the queue pair without rdma_cm.
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
            // Programs that know an RNIC omit the attributes that it does not have.
            (_, IBV_QPS_INIT) if mask & IBV_QP_PKEY_INDEX == 0 => {
                (attr.port_num, attr.pkey_index) = (PORT, PKEY_INDEX);
                mask |= IBV_QP_PORT | IBV_QP_PKEY_INDEX;
            }
            // urdmad sets the state when the connection is established.
            (Rnic::Kernel, IBV_QPS_RTR) if mask & IBV_QP_AV == 0 => return Ok(None),
            (Rnic::StandIn, IBV_QPS_RTR) if !has_met(engine, &attr) => {
                eprintln!(
                    "urdma: this device is an RNIC (personality = \"iwarp\"): its queue pairs \
                     are connected by rdma_cm only"
                );
                return Err(VerbsError::NotSupported);
            }
            // librdmacm ends an RNIC's connection this way. No kernel is there to move the queue
            // pair to ERR afterwards.
            (Rnic::StandIn, IBV_QPS_SQD) => {
                (attr.qp_state, mask) = (IBV_QPS_ERR, IBV_QP_STATE);
            }
            _ => {}
        }
        Ok(Some((attr, mask)))
    }
}

/// Whether rdma_cm of this process has met the peer in the attributes.
fn has_met(engine: &Engine, attr: &ibv_qp_attr) -> bool {
    match (RawQpn::new(attr.dest_qp_num), Psn::from_u32(attr.rq_psn)) {
        (Some(qpn), Some(psn)) => engine.has_met(qpn, psn),
        _ => false,
    }
}
