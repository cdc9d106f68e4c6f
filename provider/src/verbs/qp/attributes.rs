//! `ibv_qp_attr` to the engine's attributes, with every value checked; and back.

use rdma_core_sys::verbs::{
    ibv_ah_attr, ibv_gid, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_state,
    IBV_MIG_MIGRATED, IBV_MTU_256, IBV_MTU_4096, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET,
    IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_TIMEOUT,
};

use super::super::errno::VerbsError;
use super::super::mr;
use urdma_engine::{Gid, Info, QpAttributes, QpCaps, QpModify, QpState};

/// The number of the only port.
pub(in crate::verbs) const PORT: u8 = 1;

/// The index of the only partition key.
pub(super) const PKEY_INDEX: u16 = 0;

/// Largest values of fields of 3, 5 and 24 bits.
const THREE_BITS: u8 = 7;
const FIVE_BITS: u8 = 31;
pub(super) const BITS_24: u32 = 0x00ff_ffff;

/// The number of a state in verbs.
pub(super) const fn state_number(state: QpState) -> ibv_qp_state {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Sqd => IBV_QPS_SQD,
        QpState::Sqe => IBV_QPS_SQE,
        QpState::Error => IBV_QPS_ERR,
    }
}

/// The state with this number, as the target of a transition.
///
/// # Errors
/// [`VerbsError::Invalid`]: an unknown state, or SQE, which is entered on a send error and never
/// requested.
pub(super) const fn state_of(number: ibv_qp_state) -> Result<QpState, VerbsError> {
    Ok(match number {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_SQD => QpState::Sqd,
        IBV_QPS_ERR => QpState::Error,
        _ => return Err(VerbsError::Invalid),
    })
}

/// The attributes that `mask` includes, without the state.
///
/// # Errors
/// [`VerbsError::Invalid`]: a value that is not valid or that the device does not support.
pub(super) fn change(
    attr: &ibv_qp_attr,
    mask: ibv_qp_attr_mask,
    info: &Info,
) -> Result<QpModify, VerbsError> {
    let given = |bit: ibv_qp_attr_mask| mask & bit != 0;
    if (given(IBV_QP_PORT) && attr.port_num != PORT)
        || (given(IBV_QP_PKEY_INDEX) && attr.pkey_index != PKEY_INDEX)
        || (given(IBV_QP_PATH_MIG_STATE) && attr.path_mig_state != IBV_MIG_MIGRATED)
    {
        return Err(VerbsError::Invalid);
    }
    let up_to = |bit, value: u8, max: u8| match (given(bit), value <= max) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(value)),
        (true, false) => Err(VerbsError::Invalid),
    };
    let rd_atomic_max = info.limits.max_rd_atomic;
    Ok(QpModify {
        state: None,
        access: taken(given(IBV_QP_ACCESS_FLAGS), || {
            // The flags that concern the registration of memory have no effect here.
            mr::queue_pair_rights(attr.qp_access_flags).ok_or(VerbsError::Invalid)
        })?,
        path_mtu: taken(given(IBV_QP_PATH_MTU), || match attr.path_mtu {
            IBV_MTU_256..=IBV_MTU_4096 => Ok(attr.path_mtu),
            _ => Err(VerbsError::Invalid),
        })?,
        address: taken(given(IBV_QP_AV), || address(&attr.ah_attr, info))?,
        remote_qpn: taken(given(IBV_QP_DEST_QPN), || match attr.dest_qp_num {
            0..=BITS_24 => Ok(attr.dest_qp_num),
            _ => Err(VerbsError::Invalid),
        })?,
        // PSNs have 24 bits; the upper octet is ignored.
        rq_psn: given(IBV_QP_RQ_PSN).then_some(attr.rq_psn & BITS_24),
        sq_psn: given(IBV_QP_SQ_PSN).then_some(attr.sq_psn & BITS_24),
        max_rd_atomic: up_to(IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic, rd_atomic_max)?,
        max_dest_rd_atomic: up_to(
            IBV_QP_MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic,
            rd_atomic_max,
        )?,
        // As in mlx5 and rxe, which keep the five bits that an AETH has: programs pass 32.
        min_rnr_timer: given(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer & FIVE_BITS),
        timeout: up_to(IBV_QP_TIMEOUT, attr.timeout, FIVE_BITS)?,
        retry_cnt: up_to(IBV_QP_RETRY_CNT, attr.retry_cnt, THREE_BITS)?,
        rnr_retry: up_to(IBV_QP_RNR_RETRY, attr.rnr_retry, THREE_BITS)?,
    })
}

fn taken<T>(
    given: bool,
    value: impl FnOnce() -> Result<T, VerbsError>,
) -> Result<Option<T>, VerbsError> {
    given.then(value).transpose()
}

/// The peer's GID and the index of the local one. Peers of an Ethernet port are reached by GID only
/// (doc/adr/0009-no-lids.md).
///
/// # Errors
/// [`VerbsError::Invalid`]: no GID, another port, or an index beyond the table.
pub(in crate::verbs) fn address(ah: &ibv_ah_attr, info: &Info) -> Result<(Gid, u8), VerbsError> {
    let index = ah.grh.sgid_index;
    // SAFETY: every bit pattern of the union is 16 octets.
    let remote = unsafe { ah.grh.dgid.raw };
    if ah.is_global == 0 {
        eprintln!(
            "urdma: this port has no LIDs; set a GRH with the GID of the peer \
             (for ibv_rc_pingpong: -g 1)"
        );
        return Err(VerbsError::Invalid);
    }
    if ah.port_num != PORT || usize::from(index) >= info.gids.len() || remote == [0; 16] {
        return Err(VerbsError::Invalid);
    }
    Ok((Gid(remote), index))
}

/// The answer of `ibv_query_qp`; `ah` is the address vector that the application has set.
pub(super) fn answer(
    state: QpState,
    attributes: &QpAttributes,
    cap: ibv_qp_cap,
    ah: Option<&ibv_ah_attr>,
) -> ibv_qp_attr {
    let number = state_number(state);
    let has_port = number != IBV_QPS_RESET;
    let mut attr = ibv_qp_attr {
        qp_state: number,
        cur_qp_state: number,
        path_mtu: attributes.path_mtu,
        path_mig_state: IBV_MIG_MIGRATED,
        rq_psn: attributes.rq_psn,
        sq_psn: attributes.sq_psn,
        dest_qp_num: attributes.remote_qpn,
        qp_access_flags: attributes.access.bits(),
        cap,
        pkey_index: PKEY_INDEX,
        port_num: if has_port { PORT } else { 0 },
        max_rd_atomic: attributes.max_rd_atomic,
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        timeout: attributes.timeout,
        retry_cnt: attributes.retry_cnt,
        rnr_retry: attributes.rnr_retry,
        ..ibv_qp_attr::default()
    };
    if let Some(ah) = ah {
        attr.ah_attr = *ah;
        attr.ah_attr.grh.sgid_index = attributes.sgid_index;
        attr.ah_attr.grh.dgid = ibv_gid {
            raw: attributes.remote_gid.0,
        };
    }
    attr
}

/// Sizes in verbs terms; with a shared receive queue the receive queue has none.
pub(super) const fn caps_answer(caps: QpCaps, is_shared: bool) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: if is_shared { 0 } else { caps.max_recv_wr },
        max_send_sge: caps.max_send_sge,
        max_recv_sge: if is_shared { 0 } else { caps.max_recv_sge },
        max_inline_data: caps.max_inline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::query::tests::info;
    use urdma_engine::Access;

    const ALL: ibv_qp_attr_mask = IBV_QP_ACCESS_FLAGS
        | IBV_QP_AV
        | IBV_QP_DEST_QPN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MAX_QP_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER
        | IBV_QP_PATH_MTU
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_RQ_PSN
        | IBV_QP_SQ_PSN
        | IBV_QP_TIMEOUT;

    fn valid() -> ibv_qp_attr {
        let mut attr = ibv_qp_attr {
            path_mtu: IBV_MTU_4096,
            port_num: 1,
            dest_qp_num: BITS_24,
            rq_psn: 5,
            sq_psn: 0xff00_0006,
            qp_access_flags: 0xf,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..ibv_qp_attr::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.sgid_index = 1;
        attr.ah_attr.grh.dgid = ibv_gid { raw: [7; 16] };
        attr
    }

    #[test]
    fn change_of_all_attributes_has_all_values() {
        let change = change(&valid(), ALL, &info()).unwrap();
        assert_eq!(change.address, Some((Gid([7; 16]), 1)));
        assert_eq!(change.remote_qpn, Some(BITS_24));
        assert_eq!((change.rq_psn, change.sq_psn), (Some(5), Some(6)));
        assert_eq!(change.access, Some(Access::REMOTE | Access::LOCAL_WRITE));
        assert_eq!((change.timeout, change.rnr_retry), (Some(14), Some(7)));
        assert_eq!(change.path_mtu, Some(IBV_MTU_4096));
    }

    #[test]
    fn change_without_mask_ignores_every_value() {
        let mut attr = valid();
        attr.port_num = 99;
        attr.timeout = 255;
        attr.ah_attr.is_global = 0;
        let change = change(&attr, 0, &info()).unwrap();
        assert!(change.address.is_none() && change.timeout.is_none() && change.access.is_none());
    }

    #[test]
    fn change_with_a_value_out_of_range_is_invalid() {
        let refused = |spoil: fn(&mut ibv_qp_attr)| {
            let mut attr = valid();
            spoil(&mut attr);
            let error = change(&attr, ALL, &info()).unwrap_err();
            assert_eq!(error, VerbsError::Invalid);
        };
        refused(|attr| attr.port_num = 2);
        refused(|attr| attr.pkey_index = 1);
        refused(|attr| attr.qp_access_flags = 1 << 30);
        refused(|attr| attr.qp_access_flags = 1 << 31);
        refused(|attr| attr.path_mtu = 0);
        refused(|attr| attr.path_mtu = 6);
        refused(|attr| attr.dest_qp_num = 1 << 24);
        refused(|attr| attr.max_rd_atomic = 129);
        refused(|attr| attr.max_dest_rd_atomic = 129);
        refused(|attr| attr.timeout = 32);
        refused(|attr| attr.retry_cnt = 8);
        refused(|attr| attr.rnr_retry = 8);
        refused(|attr| attr.ah_attr.is_global = 0);
        refused(|attr| attr.ah_attr.port_num = 0);
        refused(|attr| attr.ah_attr.grh.sgid_index = 2);
        refused(|attr| attr.ah_attr.grh.dgid = ibv_gid { raw: [0; 16] });
    }

    #[test]
    fn rnr_timer_keeps_its_low_five_bits() {
        for (given, kept) in [(31, 31), (32, 0), (33, 1), (255, 31)] {
            let attr = ibv_qp_attr {
                min_rnr_timer: given,
                ..valid()
            };
            let change = change(&attr, ALL, &info()).unwrap();
            assert_eq!(change.min_rnr_timer, Some(kept));
        }
    }

    #[test]
    fn state_number_of_each_state_maps_back_except_sqe() {
        for number in 0..=6 {
            match state_of(number) {
                Ok(state) => assert_eq!(state_number(state), number),
                Err(error) => assert_eq!((number, error), (IBV_QPS_SQE, VerbsError::Invalid)),
            }
        }
        assert!(state_of(7).is_err());
    }

    #[test]
    fn answer_repeats_what_was_set() {
        let attributes = QpAttributes {
            remote_gid: Gid([9; 16]),
            sgid_index: 1,
            remote_qpn: 77,
            timeout: 14,
            ..QpAttributes::default()
        };
        let caps = QpCaps {
            max_send_wr: 8,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 2,
            max_inline: 64,
        };
        let attr = answer(
            QpState::Rtr,
            &attributes,
            caps_answer(caps, false),
            Some(&valid().ah_attr),
        );
        assert_eq!(
            (attr.qp_state, attr.cur_qp_state),
            (IBV_QPS_RTR, IBV_QPS_RTR)
        );
        assert_eq!((attr.dest_qp_num, attr.timeout, attr.port_num), (77, 14, 1));
        assert_eq!((attr.cap.max_recv_wr, attr.cap.max_inline_data), (16, 64));
        assert_eq!(attr.ah_attr.is_global, 1);
        // SAFETY: every bit pattern of the union is 16 octets.
        assert_eq!(unsafe { attr.ah_attr.grh.dgid.raw }, [9; 16]);
    }
}
