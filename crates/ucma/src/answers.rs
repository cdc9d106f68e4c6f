//! Answers to queries: addresses, routes, and the QP attributes up to RTS.

use std::net::SocketAddr;

use urdma_cm::ConnId;
use urdma_types::Ip16;
use zerocopy::{FromZeros, IntoBytes};

use crate::abi::{PathRec, PathRecData, QpAttr, QueryAddrResp, QueryPathResp, QueryRouteResp};
use crate::driver::Errno;
use crate::handle::CmId;
use crate::ids::{Id, IdState, UcmaState};
use crate::param::{way, HOP_LIMIT, PORT, UDP_QKEY};
use crate::service::Service;
use crate::sockaddr;

/// The only P_Key, in network order.
const PKEY: [u8; 2] = [0xff, 0xff];
/// `ibdev_index` of devices that were not discovered through netlink.
const NO_INDEX: u32 = u32::MAX;
/// RNR timer, the wait of a sender when no receive is posted: code 12, 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// Packet life time in path records: 4.096 us * 2^14.
const PACKET_LIFE_TIME: u8 = 14;
/// `IBV_RATE_10_GBPS`; informational only.
const RATE: u8 = 3;

/// `enum ibv_qp_attr_mask`.
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// `enum ibv_qp_state`.
mod qp_state {
    pub(super) const INIT: u32 = 1;
    pub(super) const RTR: u32 = 2;
    pub(super) const RTS: u32 = 3;
}

/// `enum ibv_access_flags`.
mod access {
    pub(super) const REMOTE_WRITE: u32 = 2;
    pub(super) const REMOTE_READ: u32 = 4;
    pub(super) const REMOTE_ATOMIC: u32 = 8;
}

/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL`.
const PATH_FLAGS: u32 = 0x13;

/// The answer to INIT_QP_ATTR.
pub(crate) fn qp_attr(
    state: &UcmaState,
    wanted: u32,
    service: Service,
    src: Option<SocketAddr>,
    conn: Option<ConnId>,
) -> Result<QpAttr, Errno> {
    let mut attr = QpAttr::new_zeroed();
    attr.qp_state = wanted;
    attr.cur_qp_state = wanted;
    if service == Service::Datagram {
        return datagram_attr(attr, wanted);
    }
    let mut attr = connection_attr(state, attr, src, conn)?;
    attr.qp_attr_mask &= !other_end(service);
    Ok(attr)
}

/// The attributes that apply only to the other end of an extended reliable connection.
const fn other_end(service: Service) -> u32 {
    match service {
        Service::Connection | Service::Datagram => 0,
        Service::XrcInitiator => mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
        Service::XrcTarget => mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC,
    }
}

fn connection_attr(
    state: &UcmaState,
    mut attr: QpAttr,
    src: Option<SocketAddr>,
    conn: Option<ConnId>,
) -> Result<QpAttr, Errno> {
    match attr.qp_state {
        qp_state::INIT => {
            attr.qp_attr_mask = mask::STATE | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT;
            attr.port_num = PORT;
            if state.role_of(conn).is_some() {
                attr.qp_access_flags =
                    access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
            }
            Ok(attr)
        }
        qp_state::RTR => ready_to_receive(state, attr, src, conn),
        qp_state::RTS => {
            let remote = conn.and_then(|conn| state.manager.remote(conn));
            let remote = remote.ok_or(libc::EINVAL)?;
            attr.qp_attr_mask = mask::STATE
                | mask::SQ_PSN
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC;
            attr.sq_psn = remote.local_psn.to_u32();
            attr.timeout = remote.ack_timeout;
            attr.retry_cnt = remote.retry_count;
            attr.rnr_retry = remote.qp.rnr_retry;
            attr.max_rd_atomic = remote.qp.responder_resources;
            Ok(attr)
        }
        _ => Err(libc::EINVAL),
    }
}

fn ready_to_receive(
    state: &UcmaState,
    mut attr: QpAttr,
    src: Option<SocketAddr>,
    conn: Option<ConnId>,
) -> Result<QpAttr, Errno> {
    let remote = conn.and_then(|conn| state.manager.remote(conn));
    let remote = remote.ok_or(libc::EINVAL)?;
    attr.qp_attr_mask = mask::STATE
        | mask::AV
        | mask::PATH_MTU
        | mask::DEST_QPN
        | mask::RQ_PSN
        | mask::MAX_DEST_RD_ATOMIC
        | mask::MIN_RNR_TIMER;
    attr.path_mtu = u32::from(remote.path_mtu.min(state.device.path_mtu));
    attr.dest_qp_num = remote.qp.qpn.to_u32();
    attr.rq_psn = remote.qp.psn.to_u32();
    attr.max_dest_rd_atomic = remote.qp.initiator_depth;
    attr.min_rnr_timer = MIN_RNR_TIMER;
    attr.port_num = PORT;
    attr.ah_attr = way(&state.device, src, remote.peer.ip);
    Ok(attr)
}

fn datagram_attr(mut attr: QpAttr, wanted: u32) -> Result<QpAttr, Errno> {
    match wanted {
        qp_state::INIT => {
            attr.qp_attr_mask = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY;
            attr.port_num = PORT;
            attr.qkey = UDP_QKEY;
        }
        qp_state::RTR => attr.qp_attr_mask = mask::STATE,
        qp_state::RTS => attr.qp_attr_mask = mask::STATE | mask::SQ_PSN,
        _ => return Err(libc::EINVAL),
    }
    Ok(attr)
}

/// The answer to QUERY_ROUTE.
pub(crate) fn route(state: &mut UcmaState, number: CmId) -> QueryRouteResp {
    let (node_guid, mtu) = (state.device.node_guid, state.device.path_mtu);
    let mut answer = QueryRouteResp::new_zeroed();
    answer.ibdev_index = NO_INDEX;
    let Some(id) = state.any_id(number) else {
        return answer;
    };
    answer.src_addr = sockaddr::to_in6(id.src);
    answer.dst_addr = sockaddr::to_in6(id.dst);
    if !id.has_device {
        return answer;
    }
    answer.node_guid = node_guid;
    answer.port_num = PORT;
    answer.num_paths = u32::from(has_route(id));
    answer.ib_route[0] = if has_route(id) {
        path_rec(id, mtu)
    } else {
        PathRec {
            dgid: gid_or_zero(id.dst),
            sgid: gid_or_zero(id.src),
            pkey: PKEY,
            ..PathRec::new_zeroed()
        }
    };
    answer
}

/// The answer to QUERY with option ADDR.
pub(crate) fn addr(state: &mut UcmaState, number: CmId) -> QueryAddrResp {
    let mut answer = device_part(state, number);
    if let Some(id) = state.any_id(number) {
        answer.src_size = sockaddr::size_of(id.src);
        answer.dst_size = sockaddr::size_of(id.dst);
        answer.src_addr = sockaddr::to_storage(id.src);
        answer.dst_addr = sockaddr::to_storage(id.dst);
    }
    answer
}

/// The answer to QUERY with option GID.
pub(crate) fn gid(state: &mut UcmaState, number: CmId) -> QueryAddrResp {
    let mut answer = device_part(state, number);
    if let Some(id) = state.any_id(number) {
        let port = |addr: Option<SocketAddr>| addr.map_or(0, |addr| addr.port());
        let (src, src_size) = sockaddr::to_ib(gid_or_zero(id.src), id.space.0, port(id.src));
        let (dst, dst_size) = sockaddr::to_ib(gid_or_zero(id.dst), id.space.0, port(id.dst));
        (answer.src_addr, answer.src_size) = (src, src_size);
        (answer.dst_addr, answer.dst_size) = (dst, dst_size);
    }
    answer
}

/// The answer to QUERY with option PATH: the header, then the path if there is one.
pub(crate) fn path(state: &mut UcmaState, number: CmId) -> Vec<u8> {
    let mtu = state.device.path_mtu;
    let mut head = QueryPathResp::new_zeroed();
    let mut octets = Vec::new();
    let id = state.any_id(number).filter(|id| has_route(id));
    head.num_paths = u32::from(id.is_some());
    octets.extend_from_slice(head.as_bytes());
    if let Some(id) = id {
        let data = PathRecData {
            flags: PATH_FLAGS,
            reserved: 0,
            path_rec: packed_path(&path_rec(id, mtu)),
        };
        octets.extend_from_slice(data.as_bytes());
    }
    octets
}

fn device_part(state: &mut UcmaState, number: CmId) -> QueryAddrResp {
    let node_guid = state.device.node_guid;
    let mut answer = QueryAddrResp::new_zeroed();
    answer.ibdev_index = NO_INDEX;
    if state.any_id(number).is_some_and(|id| id.has_device) {
        answer.node_guid = node_guid;
        answer.port_num = PORT;
        answer.pkey = PKEY;
    }
    answer
}

fn has_route(id: &Id) -> bool {
    matches!(id.state, IdState::RouteResolved | IdState::Connected(_))
}

fn gid_or_zero(addr: Option<SocketAddr>) -> [u8; 16] {
    addr.map_or([0; 16], |addr| Ip16::new(addr.ip()).0)
}

fn path_rec(id: &Id, mtu: u8) -> PathRec {
    PathRec {
        dgid: gid_or_zero(id.dst),
        sgid: gid_or_zero(id.src),
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: 0,
        reversible: 1,
        mtu: u32::from(mtu),
        pkey: PKEY,
        hop_limit: HOP_LIMIT,
        traffic_class: id.tos,
        numb_path: 1,
        sl: 0,
        mtu_selector: 2,
        rate_selector: 2,
        rate: RATE,
        packet_life_time_selector: 2,
        packet_life_time: PACKET_LIFE_TIME,
        preference: 0,
    }
}

/// The path record in the wire format of SA path records (InfiniBand specification, 15.2.5.16).
fn packed_path(rec: &PathRec) -> [u8; 64] {
    let mut out = [0; 64];
    out[8..24].copy_from_slice(&rec.dgid);
    out[24..40].copy_from_slice(&rec.sgid);
    out[47] = rec.hop_limit;
    out[48] = rec.traffic_class;
    out[49] = 0x80 | rec.numb_path;
    out[50..52].copy_from_slice(&rec.pkey);
    out[54] = rec.mtu_selector << 6 | rec.mtu.to_le_bytes()[0];
    out[55] = rec.rate_selector << 6 | rec.rate;
    out[56] = rec.packet_life_time_selector << 6 | rec.packet_life_time;
    out
}
