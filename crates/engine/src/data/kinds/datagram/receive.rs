//! Datagrams in.

use std::net::{IpAddr, Ipv6Addr};
use urdma_types::{Ip16, Qpn};

use proto_trp::conn::{Completion, CompletionOp, Host, ProtectionError, Sge, Status};
use proto_trp::wire::datagram::{is_group, DatagramHeader, HEADER_LEN};
use urdma_underlay::internet_checksum;

use crate::objects::kinds::datagram::pair::SGE_MAX;
use crate::objects::kinds::datagram::table::split;
use crate::objects::qp_host::{ListKind, QpHost};
use crate::objects::srq::NotTaken;
use crate::paths::origin::Origin;
use crate::paths::packet_body::PacketBody;
use crate::shard::Shard;
use crate::types::{Gid, Info, WorkCompletion};

/// Octets before the message in a receive buffer, as verbs define them.
const GRH_LEN: usize = 40;
/// Hop limit in the header of the receive buffer: packets do not carry it.
const HOP_LIMIT: u8 = 64;
/// UDP's number in IP headers.
const UDP: u8 = 17;
const UDP_HEADER_LEN: usize = 8;
const IPV4_HEADER_LEN: usize = 20;

impl Shard {
    /// Delivers a DATAGRAM packet. One that does not fit is dropped and counted, without an answer.
    #[inline(never)]
    pub(crate) fn dispatch_datagram(
        &mut self,
        info: &Info,
        head: &[u8],
        body: &PacketBody,
        origin: &Origin,
    ) {
        // R12-7
        //# **Errors.** A receiver MUST drop the following packets without an answer, and counts
        //# them: a packet cut short or too long; a destination GID that is neither one of the
        //# host's nor that of a group with a member; an index without a queue pair of this service
        //# in RTR or later; a Q_Key other than the queue pair's; a message for which no receive
        //# request is posted, or whose receive request is too short for it and the 40 octets before
        //# it.
        let Ok(header) = DatagramHeader::parse(head, body.len()) else {
            self.counters.malformed += 1;
            return;
        };
        // C7.1-2
        //# The source QPN of a DATAGRAM from a process MUST be of the slot of that process, or the
        //# packet has no effect.
        let sender = Qpn::from_u32(header.source_qpn).map(Qpn::slot);
        if matches!(origin, Origin::Local(slot) if sender != Some(*slot)) {
            self.counters.wrong_source += 1;
            return;
        }
        let destination = Gid(header.destination_gid);
        let is_to_group = is_group(&destination.0);
        self.counters
            .note_datagram_received(body.len(), is_to_group);
        if is_to_group {
            let is_own = is_ours(info, Gid(header.source_gid));
            self.deliver_to_group(destination, &header, body, is_own);
        } else if is_ours(info, destination) {
            self.deliver_datagram(header.destination_index, &header, body);
        } else {
            self.counters.datagrams_dropped += 1;
        }
    }

    /// Gives every queue pair that is attached to a group a copy; the sender too, unless it does
    /// not want its own.
    fn deliver_to_group(
        &mut self,
        group: Gid,
        header: &DatagramHeader,
        body: &PacketBody,
        is_own: bool,
    ) {
        let mut place = 0;
        while let Some(index) = self.qps.kinds.datagrams.member(group, place) {
            place += 1;
            let sender = self.qps.kinds.datagrams.get(index).filter(|entry| {
                is_own && entry.qp.number().to_u32() == header.source_qpn && !entry.hears_itself
            });
            if sender.is_none() {
                self.deliver_datagram(index, header, body);
            }
        }
    }

    fn deliver_datagram(&mut self, index: u16, header: &DatagramHeader, body: &PacketBody) {
        // R12-7
        //# **Errors.** A receiver MUST drop the following packets without an answer, and counts
        //# them: a packet cut short or too long; a destination GID that is neither one of the
        //# host's nor that of a group with a member; an index without a queue pair of this service
        //# in RTR or later; a Q_Key other than the queue pair's; a message for which no receive
        //# request is posted, or whose receive request is too short for it and the 40 octets before
        //# it.
        let Some(entry) = self
            .qps
            .kinds
            .datagrams
            .get(index)
            .filter(|entry| entry.state.receives() && entry.attributes.qkey == header.qkey)
        else {
            self.counters.datagrams_dropped += 1;
            return;
        };
        let (mut queues, mut host) = split(entry, &mut self.process);
        let len = body.len() - HEADER_LEN;
        let mut list = [Sge::default(); SGE_MAX];
        let octets = (GRH_LEN + len) as u64;
        let (wr_id, sges) = match queues.take_recv(&host, octets, &mut list) {
            Ok(taken) => taken,
            Err(NotTaken::Empty) => {
                self.counters.datagrams_dropped += 1;
                return;
            }
            Err(NotTaken::Unwanted) => {
                self.counters.datagrams_too_long += 1;
                return;
            }
        };
        // R12-6
        //# Before the message, the receive buffer MUST get 40 octets as in RoCE v2: an IPv6 header,
        //# or, when both GIDs are IPv4-mapped, 20 octets of zero and an IPv4 header with a valid
        //# checksum.
        match place(&mut host, sges, &grh(header, len), body, len) {
            Ok(()) => complete(&mut host, wr_id, header, len),
            Err(_) => queues.fail_recv(&mut host, wr_id),
        }
    }
}

fn is_ours(info: &Info, gid: Gid) -> bool {
    info.gids.iter().any(|entry| entry.gid == gid) || info.addresses.contains(&gid.to_ip())
}

fn place<'a>(
    host: &mut QpHost<'a>,
    sges: &[Sge],
    grh: &[u8; GRH_LEN],
    body: &PacketBody<'a>,
    len: usize,
) -> Result<(), ProtectionError> {
    host.scatter_octets(ListKind::Receive, sges, grh)?;
    host.scatter(sges, GRH_LEN as u64, body, HEADER_LEN, len)
}

fn complete(host: &mut QpHost<'_>, wr_id: u64, header: &DatagramHeader, len: usize) {
    host.complete_datagram(&WorkCompletion {
        completion: Completion {
            wr_id,
            status: Status::Success,
            op: CompletionOp::Recv,
            // A datagram is at most some thousand octets long.
            byte_len: u32::try_from(GRH_LEN + len).unwrap_or(u32::MAX),
            imm: header.imm,
            invalidated: None,
            solicited: header.solicited,
        },
        qpn: host.qp.number(),
        remote_qpn: header.source_qpn,
        packet_type: packet_type(header),
    });
}

/// See [`WorkCompletion::packet_type`].
fn packet_type(header: &DatagramHeader) -> u8 {
    const OVER_UDP: u8 = 8;
    OVER_UDP | if is_ipv4(header) { 2 } else { 1 }
}

fn is_ipv4(header: &DatagramHeader) -> bool {
    [header.source_gid, header.destination_gid].map(|gid| Ip16(gid).to_ip().is_ipv4()) == [true; 2]
}

/// The octets before the message in the receive buffer: an IPv6 header, or 20 zero octets and an
/// IPv4 header.
fn grh(header: &DatagramHeader, len: usize) -> [u8; GRH_LEN] {
    let udp_octets = UDP_HEADER_LEN + HEADER_LEN + len;
    // At most some thousand octets.
    let length = |octets: usize| u16::try_from(octets).unwrap_or(u16::MAX).to_be_bytes();
    let mut grh = [0; GRH_LEN];
    let ends = [header.source_gid, header.destination_gid].map(|gid| Ip16(gid).to_ip());
    if let [IpAddr::V4(source), IpAddr::V4(destination)] = ends {
        let ip = &mut grh[GRH_LEN - IPV4_HEADER_LEN..];
        // Version 4, 5 words.
        ip[0] = 0x45;
        ip[1] = header.traffic_class;
        ip[2..4].copy_from_slice(&length(IPV4_HEADER_LEN + udp_octets));
        // Do not fragment.
        ip[6] = 0x40;
        ip[8] = HOP_LIMIT;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..20].copy_from_slice(&destination.octets());
        let checksum = internet_checksum(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        // Version 6, traffic class, no flow label.
        grh[0] = 0x60 | header.traffic_class >> 4;
        grh[1] = header.traffic_class << 4;
        grh[4..6].copy_from_slice(&length(udp_octets));
        grh[6] = UDP;
        grh[7] = HOP_LIMIT;
        grh[8..24].copy_from_slice(&Ipv6Addr::from(header.source_gid).octets());
        grh[24..40].copy_from_slice(&Ipv6Addr::from(header.destination_gid).octets());
    }
    grh
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{engine, instance, qp_config, until, Events, GID};
    use crate::{CqConfig, DatagramModify, DatagramWr, Payload, QpState, RecvWr, SendFlags};
    use std::sync::Arc;

    #[test]
    fn messages_without_and_with_a_short_receive_are_counted_apart() {
        let engine = engine(&instance(), 1);
        let pd = engine.alloc_pd().unwrap();
        let config = CqConfig::with_depth(16);
        let cq = engine.create_cq(config).unwrap();
        let config = qp_config(pd, &cq, &Arc::new(Events::default()), false);
        let qp = engine.create_datagram_qp(&config).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let change = DatagramModify {
                state: Some(state),
                ..DatagramModify::default()
            };
            engine.modify_datagram_qp(&qp, &change).unwrap();
        }
        let handle = engine.create_ah(pd, 0, GID, 0).unwrap();
        let send = || {
            let wr = DatagramWr {
                wr_id: 1,
                imm: None,
                flags: SendFlags::default(),
                payload: Payload::Inline(&[b"x"]),
                handle: &handle,
                remote_qpn: qp.number().to_u32(),
                remote_qkey: 0,
            };
            engine.post_datagram(&qp, &wr).unwrap();
        };
        let counted = |dropped, too_long| {
            until("the message is dropped", || {
                engine.poll_cq(&cq, 1, |_| panic!("a completion")).unwrap();
                let counters = engine.shard.lock().counters;
                (counters.datagrams_dropped, counters.datagrams_too_long) == (dropped, too_long)
            });
        };
        send();
        counted(1, 0);
        let wr = RecvWr {
            wr_id: 2,
            sges: &[],
        };
        engine.post_datagram_recv(&qp, &wr).unwrap();
        send();
        counted(1, 1);
    }

    fn header(source: &str, destination: &str) -> DatagramHeader {
        let gid = |text: &str| match text.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        DatagramHeader {
            destination_index: 1,
            qkey: 2,
            traffic_class: 0x12,
            source_qpn: 3,
            imm: None,
            solicited: false,
            source_gid: gid(source),
            destination_gid: gid(destination),
        }
    }

    #[test]
    fn grh_of_ipv4_is_a_valid_header_in_the_last_20_octets() {
        let grh = grh(&header("192.0.2.1", "192.0.2.2"), 100);
        assert_eq!(grh[..20], [0; 20]);
        let ip = &grh[20..];
        assert_eq!(ip[..4], [0x45, 0x12, 0, 176]);
        assert_eq!(ip[12..20], [192, 0, 2, 1, 192, 0, 2, 2]);
        // A header with its checksum in place sums up to nothing.
        assert_eq!(internet_checksum(ip), 0);
    }

    #[test]
    fn grh_of_ipv6_has_both_gids() {
        assert_eq!(packet_type(&header("2001:db8::1", "fe80::2")), 9);
        assert_eq!(packet_type(&header("192.0.2.1", "fe80::2")), 9);
        assert_eq!(packet_type(&header("192.0.2.1", "192.0.2.2")), 10);
        let header = header("2001:db8::1", "fe80::2");
        let grh = grh(&header, 4);
        assert_eq!(grh[..8], [0x61, 0x20, 0, 0, 0, 60, 17, 64]);
        assert_eq!(grh[8..24], header.source_gid);
        assert_eq!(grh[24..], header.destination_gid);
    }
}
