//! Attributes of the device and its port. Only capabilities that work are reported.

use std::ffi::{c_char, c_int};
use std::mem::size_of;

use rdma_core_sys::verbs::{
    ibv_context, ibv_device_attr_ex, ibv_port_attr, ibv_query_device_ex_input, ibv_values_ex,
    IBV_ATOMIC_HCA, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_MEM_MGT_EXTENSIONS,
    IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_DEVICE_RC_RNR_NAK_GEN,
    IBV_DEVICE_SRQ_RESIZE, IBV_DEVICE_XRC, IBV_LINK_LAYER_ETHERNET, IBV_MTU_4096, IBV_ODP_SUPPORT,
    IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_RECV,
    IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE, IBV_PORT_ACTIVE,
    IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS, IBV_VALUES_MASK_RAW_CLOCK,
};

use super::context::Context;
use super::dm::MAX_DM_OCTETS;
use super::errno::VerbsError;
use super::ffi;
use super::qp::attributes::PORT;
use super::qp::rnic::Rnic;
use urdma_engine::Info;
use urdma_ipc::gid_table_len;

/// Maximum time until this end acknowledges, as `local_ca_ack_delay`: 4.096 us * 2^15 = 134 ms, for
/// a busy host.
const ACK_DELAY: u8 = 15;

/// Ethernet, as the type of the attribute.
const LINK_LAYER: u8 = 2;
const _: () = assert!(IBV_LINK_LAYER_ETHERNET == 2);

/// The kernel's `IB_UVERBS_QPF_GRH_REQUIRED`: peers are reached by GID only.
const GRH_REQUIRED: u8 = 1;

/// Operations on on-demand memory over a reliable connection: all.
const ODP_RC: u32 = IBV_ODP_SUPPORT_SEND
    | IBV_ODP_SUPPORT_RECV
    | IBV_ODP_SUPPORT_WRITE
    | IBV_ODP_SUPPORT_READ
    | IBV_ODP_SUPPORT_ATOMIC
    | IBV_ODP_SUPPORT_SRQ_RECV;

/// Operations on on-demand memory with datagrams: all that datagrams have.
const ODP_UD: u32 = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;

/// Frequency of the clock of completions: one tick is a nanosecond.
const CLOCK_KHZ: u64 = 1_000_000;

/// The vendor id must be a number of 24 bits other than 0: "urd", which is not assigned.
const VENDOR: u32 = 0x0075_7264;

/// `ibv_query_device` and `ibv_query_device_ex`
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_octets: usize,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes null or the application's structure.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: libibverbs passes an open context of this plugin.
        let context = unsafe { Context::from_ptr(context) };
        let mut answer = device_attr(context.engine.info());
        if context.rnic().is_some() {
            answer.orig_attr.device_cap_flags &= !IBV_DEVICE_XRC;
            answer.device_cap_flags_ex &= !u64::from(IBV_DEVICE_XRC);
            answer.xrc_odp_caps = 0;
            answer.orig_attr.max_mcast_grp = 0;
            answer.orig_attr.max_mcast_qp_attach = 0;
            answer.orig_attr.max_total_mcast_qp_attach = 0;
        }
        let known = attr_octets.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the caller's structure has `attr_octets` octets, and `known` is at most the size
        // of `answer`. The structure may be shorter than the type, so no reference to it is made.
        unsafe {
            attr.cast::<u8>().write_bytes(0, attr_octets);
            attr.cast::<u8>()
                .copy_from_nonoverlapping((&raw const answer).cast(), known);
        }
        Ok(())
    })
}

/// `ibv_query_port`
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    ffi::status(|| {
        if port != PORT {
            return Err(VerbsError::Invalid);
        }
        // SAFETY: libibverbs passes an open context of this plugin.
        let context = unsafe { Context::from_ptr(context) };
        let mut answer = port_attr(context.engine.info());
        if let Some(rnic) = context.rnic() {
            answer.gid_tbl_len = match rnic {
                // The Ethernet address.
                Rnic::StandIn => 1,
                // The module's table: index 0 is an Ethernet address, followed by the engine's
                // GIDs.
                Rnic::Kernel => urdma_kernel::abi::GID_TABLE_LEN,
            };
            answer.port_cap_flags &= !IBV_PORT_IP_BASED_GIDS;
        }
        // SAFETY: libibverbs passes a zeroed structure at least as long as that of the version this
        // was built against.
        unsafe { attr.write(answer) };
        Ok(())
    })
}

/// A count as C's `int`, saturated.
fn int(count: u32) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn device_attr(info: &Info) -> ibv_device_attr_ex {
    let limits = &info.limits;
    let rd_atomic = c_int::from(limits.max_rd_atomic);
    let capabilities = IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_XRC;
    let mut attr = ibv_device_attr_ex::default();
    let basic = &mut attr.orig_attr;
    for (to, from) in basic
        .fw_ver
        .iter_mut()
        .zip(env!("CARGO_PKG_VERSION").bytes())
    {
        *to = c_char::from_ne_bytes([from]);
    }
    basic.node_guid = info.node_guid.to_be();
    basic.sys_image_guid = info.node_guid.to_be();
    basic.max_mr_size = limits.max_mr_octets;
    // Regions are addressed by octet, so every page size is supported.
    basic.page_size_cap = !0xfff;
    basic.vendor_id = VENDOR;
    basic.max_qp = int(limits.max_qp);
    basic.max_qp_wr = int(limits.max_qp_wr);
    basic.device_cap_flags = capabilities;
    basic.max_sge = int(limits.max_sge);
    basic.max_sge_rd = int(limits.max_sge);
    basic.max_cq = int(limits.max_cq);
    basic.max_cqe = int(limits.max_cqe);
    basic.max_mr = int(limits.max_mr);
    basic.max_mw = int(limits.max_mw);
    basic.max_pd = int(limits.max_pd);
    basic.max_srq = int(limits.max_srq);
    basic.max_srq_wr = int(limits.max_srq_wr);
    basic.max_srq_sge = int(limits.max_sge);
    basic.max_ah = int(limits.max_ah);
    basic.max_mcast_grp = int(limits.max_mcast_grp);
    basic.max_mcast_qp_attach = int(limits.max_mcast_qp_attach);
    basic.max_total_mcast_qp_attach = int(limits.max_mcast_grp * limits.max_mcast_qp_attach);
    basic.max_qp_rd_atom = rd_atomic;
    basic.max_res_rd_atom = rd_atomic.saturating_mul(int(limits.max_qp));
    basic.max_qp_init_rd_atom = rd_atomic;
    basic.atomic_cap = IBV_ATOMIC_HCA;
    basic.max_pkeys = 1;
    basic.local_ca_ack_delay = ACK_DELAY;
    basic.phys_port_cnt = PORT;
    attr.device_cap_flags_ex = u64::from(capabilities);
    attr.phys_port_cnt_ex = u32::from(PORT);
    attr.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    attr.odp_caps.per_transport_caps.rc_odp_caps = ODP_RC;
    attr.odp_caps.per_transport_caps.ud_odp_caps = ODP_UD;
    attr.xrc_odp_caps = ODP_RC;
    attr.completion_timestamp_mask = u64::MAX;
    attr.hca_core_clock = CLOCK_KHZ;
    attr.max_dm_size = MAX_DM_OCTETS;
    attr
}

/// `ibv_query_rt_values_ex`
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    ffi::status(|| {
        // SAFETY: libibverbs passes an open context of this plugin, the application its structure.
        let (context, values) = unsafe { (Context::from_ptr(context), &mut *values) };
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(VerbsError::Invalid);
        }
        // The ticks of the clock are returned in the field for nanoseconds, whatever a tick is.
        values.raw_clock.tv_sec = 0;
        values.raw_clock.tv_nsec = context.engine.clock_ns().cast_signed();
        Ok(())
    })
}

fn port_attr(info: &Info) -> ibv_port_attr {
    ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: info.path_mtu_code().into(),
        gid_tbl_len: c_int::try_from(gid_table_len(info.gids.len())).unwrap_or(c_int::MAX),
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: info.limits.max_message_octets,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        // 4 lanes of 25 Gb/s, the order of magnitude of memory bandwidth; no behaviour depends on
        // it.
        active_width: 2,
        active_speed: 32,
        // LinkUp
        phys_state: 5,
        link_layer: LINK_LAYER,
        flags: GRH_REQUIRED,
        ..ibv_port_attr::default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rdma_core_sys::verbs::{IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_256};
    use urdma_engine::{Gid, GidEntry, LeaseState, SlotId, LIMITS};

    /// The information of an engine on one host.
    pub(in super::super) fn info() -> Info {
        let gid = |last| GidEntry {
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last]),
            netdev: None,
        };
        Info {
            slot: SlotId::new(1).unwrap(),
            node_guid: 0x0200_00ff_fe00_0001,
            personality: urdma_engine::Personality::Roce,
            gids: vec![gid(0), gid(1)],
            addresses: vec![],
            mtu: 0,
            lease: LeaseState::NotAsked,
            limits: LIMITS,
        }
    }

    #[test]
    fn device_attr_says_the_limits_of_the_engine() {
        let attr = device_attr(&info());
        let basic = &attr.orig_attr;
        assert_eq!(basic.max_qp_wr, int(LIMITS.max_qp_wr));
        assert_eq!(basic.max_sge, int(LIMITS.max_sge));
        assert_eq!(basic.max_qp_rd_atom, c_int::from(LIMITS.max_rd_atomic));
        assert_eq!(
            basic.node_guid.to_ne_bytes(),
            [2, 0, 0, 0xff, 0xfe, 0, 0, 1]
        );
        assert_eq!(basic.phys_port_cnt, 1);
        assert!(basic.max_res_rd_atom > 0);
    }

    #[test]
    fn device_attr_fits_librdmacms_octets() {
        assert!(device_attr(&info()).orig_attr.max_qp_rd_atom <= 255);
    }

    #[test]
    fn port_attr_is_an_active_ethernet_port_with_gids() {
        let attr = port_attr(&info());
        assert_eq!((attr.state, attr.link_layer, attr.phys_state), (4, 2, 5));
        assert_eq!((attr.gid_tbl_len, attr.pkey_tbl_len), (16, 1));
        assert_eq!(attr.max_msg_sz, 1 << 31);
    }

    #[test]
    fn active_mtu_leaves_room_for_headers() {
        for (mtu, active) in [
            (0, IBV_MTU_4096),
            (9000, IBV_MTU_4096),
            (4096, IBV_MTU_2048),
            (1500, IBV_MTU_1024),
            (576, IBV_MTU_256),
            (68, IBV_MTU_256),
        ] {
            let attr = port_attr(&Info { mtu, ..info() });
            assert_eq!(attr.active_mtu, active, "{mtu}");
        }
    }
}
