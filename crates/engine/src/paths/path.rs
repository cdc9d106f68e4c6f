//! How the messages or packets of a queue pair reach its peer: over a channel, through a leased
//! queue pair of the port, or through urdmad.

use std::net::IpAddr;

use proto_trp::wire::Meta;
use urdma_types::{slot_of_source_port, source_port, udp_port, Ip16, Qpn, SlotId};

use super::lease::RouteId;
use crate::types::Info;

/// The path to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerPath {
    /// Through the channel to a slot's process.
    Channel(SlotId),
    /// To a process of this host that has ended.
    Ended,
    /// To slot 0, which adds the headers that the metadata describe.
    Daemon(Meta),
    /// Through a route of the lease.
    Lease(RouteId),
}

impl PeerPath {
    /// Whether it stays in this host's memory.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, PeerPath::Channel(_) | PeerPath::Ended)
    }
}

/// Where the packets of a queue pair's peer on another host come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSource {
    /// UDP source port and address.
    port: u16,
    ip: Ip16,
}

impl PeerSource {
    /// The value that no peer has: the source is not known.
    pub(crate) const NONE: Self = Self {
        port: 0,
        ip: Ip16::UNSPECIFIED,
    };

    /// The source of packets of `remote`, reached by `hop`.
    pub(crate) fn new(hop: NextHop, remote: Qpn) -> Self {
        match hop {
            NextHop::Local => Self::NONE,
            NextHop::Remote { ip, .. } => Self {
                port: source_port(remote),
                ip: Ip16::new(ip),
            },
        }
    }

    /// Whether a datagram came from there.
    #[inline]
    pub(crate) fn sent(&self, meta: &Meta) -> bool {
        // R3-9
        //# A packet of a connection MUST be accepted only from its peer: its IP source address is
        //# the one that the connection was set up with, and its UDP source port is that of the
        //# peer's QPN or that of the peer's slot (e = 0); in a RESET, it is that of the peer's slot
        //# or of its daemon.
        (meta.src_port == self.port || self.is_first_port(meta)) && meta.remote_ip == self.ip
    }

    /// Whether a datagram has the first source port of the peer's slot, from which its host sends
    /// what it cannot send from the queue pair's.
    #[cold]
    fn is_first_port(&self, meta: &Meta) -> bool {
        let slot = slot_of_source_port(self.port);
        slot.is_some_and(|slot| meta.src_port == source_port(Qpn::new(slot, 0)))
    }

    /// Whether a RESET came from there: from the process, which sends it without its queue pair, or
    /// from its urdmad.
    pub(crate) fn sent_reset(&self, meta: &Meta) -> bool {
        let is_port = self.is_first_port(meta) || meta.src_port == udp_port(SlotId::DAEMON);
        // R3-9
        //# A packet of a connection MUST be accepted only from its peer: its IP source address is
        //# the one that the connection was set up with, and its UDP source port is that of the
        //# peer's QPN or that of the peer's slot (e = 0); in a RESET, it is that of the peer's slot
        //# or of its daemon.
        is_port && meta.remote_ip == self.ip
    }
}

/// The result of address resolution, which happens before the engine's lock is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NextHop {
    /// The peer is on this host.
    Local,
    /// The peer is behind the port.
    Remote {
        /// The peer host's address.
        ip: IpAddr,
        /// Ethernet address of the next hop.
        mac: [u8; 6],
    },
}

/// Largest TRP datagram on the path from `info`'s host; 0 if a channel is the path.
pub(crate) fn max_datagram(info: &Info, hop: NextHop) -> u32 {
    match hop {
        NextHop::Local => 0,
        NextHop::Remote { ip, .. } => {
            let headers = if ip.is_ipv4() { 28 } else { 48 };
            u32::from(info.mtu).saturating_sub(headers)
        }
    }
}

/// Metadata of packets from `local` at the address with the GID index `gid_index` to `remote` on
/// the host `ip`.
pub(crate) fn metadata(ip: IpAddr, (local, gid_index): (Qpn, u8), remote: SlotId) -> Meta {
    Meta {
        remote_ip: Ip16::new(ip),
        src_port: source_port(local),
        dst_port: udp_port(remote),
        ecn: 0,
        gid_index,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn packets_of_a_peer_come_from_its_port_or_the_first_of_its_slot() {
        let slot = SlotId::new(3).unwrap();
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        let hop = NextHop::Remote { ip, mac: [0; 6] };
        let source = PeerSource::new(hop, Qpn::new(slot, 5));
        let from = |slot, index| metadata(ip, (Qpn::new(slot, index), 0), SlotId::DAEMON);
        assert!(source.sent(&from(slot, 5)));
        assert!(source.sent(&from(slot, 0)));
        assert!(!source.sent(&from(slot, 6)));
        let other = SlotId::new(4).unwrap();
        assert!([0, 5]
            .iter()
            .all(|index| !source.sent(&from(other, *index))));
        let elsewhere = Meta {
            remote_ip: Ip16::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3))),
            ..from(slot, 0)
        };
        assert!(!source.sent(&elsewhere));
        assert!(!PeerSource::NONE.sent(&from(slot, 0)));
    }
}
