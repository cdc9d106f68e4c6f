//! Parameters of events, and the address handle attributes of a host.

use std::net::{IpAddr, SocketAddr};

use urdma_cm::wire::QpInfo;
use urdma_cm::PrivateData;
use urdma_types::{Ip16, RawQpn};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{AhAttr, ConnParam, Ece, UdParam, PRIVATE_DATA_FIELD};
use crate::driver::Device;

/// The only port of the device.
pub(crate) const PORT: u8 = 1;
/// `RDMA_UDP_QKEY`.
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;
/// Hop limit in address handles.
pub(crate) const HOP_LIMIT: u8 = 64;
/// Difference in length between the parameters of datagram services and of connections, in octets.
pub(crate) const REST: usize = size_of::<UdParam>() - size_of::<ConnParam>();

/// Parameters as the other end sees them: one end's ORD is the other end's IRD.
pub(crate) fn param_of(qp: &QpInfo, retry_count: u8, private_data: &PrivateData) -> ConnParam {
    let octets = private_data.as_slice();
    let mut param = empty_param();
    param.qp_num = qp.qpn.to_u32();
    param.private_data[..octets.len()].copy_from_slice(octets);
    param.private_data_len = u8::try_from(octets.len()).unwrap_or(u8::MAX);
    param.srq = u8::from(qp.srq);
    param.responder_resources = qp.initiator_depth;
    param.initiator_depth = qp.responder_resources;
    param.flow_control = u8::from(qp.flow_control);
    param.retry_count = retry_count;
    param.rnr_retry_count = qp.rnr_retry;
    param
}

/// A datagram service's parameters, in the two parts of [`EventResp`].
pub(crate) fn datagram_param(
    qpn: RawQpn,
    ah_attr: AhAttr,
    private_data: &PrivateData,
) -> (ConnParam, [u8; REST]) {
    let octets = private_data.as_slice();
    let mut param = UdParam {
        qp_num: qpn.to_u32(),
        qkey: if qpn == RawQpn::NONE { 0 } else { UDP_QKEY },
        ah_attr,
        private_data: [0; PRIVATE_DATA_FIELD],
        private_data_len: u8::try_from(octets.len()).unwrap_or(u8::MAX),
        reserved: [0; 7],
    };
    param.private_data[..octets.len()].copy_from_slice(octets);
    let (conn, rest) = param.as_bytes().split_at(size_of::<ConnParam>());
    let conn = ConnParam::read_from_bytes(conn).unwrap_or_else(|_| empty_param());
    (conn, rest.try_into().unwrap_or([0; REST]))
}

pub(crate) fn empty_param() -> ConnParam {
    ConnParam {
        qp_num: 0,
        qkey: 0,
        private_data: [0; PRIVATE_DATA_FIELD],
        private_data_len: 0,
        srq: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        valid: 0,
    }
}

pub(crate) fn ece_of(qp: &QpInfo) -> Ece {
    Ece {
        vendor_id: qp.ece.vendor_id,
        attr_mod: qp.ece.attr_mod,
    }
}

pub(crate) fn no_ece() -> Ece {
    Ece {
        vendor_id: 0,
        attr_mod: 0,
    }
}

/// The address handle attributes for a host, from an id's source address.
pub(crate) fn way(device: &Device, src: Option<SocketAddr>, to: IpAddr) -> AhAttr {
    let own = src.map(|src| Ip16::new(src.ip()).0);
    let index = device.gids.iter().position(|gid| Some(*gid) == own);
    AhAttr {
        dgid: Ip16::new(to).0,
        flow_label: 0,
        sgid_index: index.and_then(|i| u8::try_from(i).ok()).unwrap_or(0),
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
        grh_reserved: 0,
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: PORT,
        reserved: 0,
    }
}
