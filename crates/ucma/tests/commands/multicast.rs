//! Joining and leaving multicast groups.

use urdma_types::{Ip16, PortSpace};
use urdma_ucma::abi::{self, cmd, event, join};
use urdma_ucma::Errno;
use zerocopy::FromZeros;

use crate::datagram_param;
use crate::rig::{in6, Channel, Pair};

const GROUP: &str = "239.1.2.3:0";

impl Channel {
    fn join_ip(&self, id: u32, uid: u64, group: &str) -> Result<u32, Errno> {
        self.ask(cmd::JOIN_IP_MCAST, |response| abi::JoinIpMcast {
            response,
            uid,
            addr: in6(group),
            id,
        })
    }

    fn join(&self, id: u32, family: u16, size: u16, join_flags: u16) -> Result<u32, Errno> {
        let mut addr = abi::SockaddrStorage::new_zeroed();
        addr.octets[..2].copy_from_slice(&family.to_ne_bytes());
        // Offset of the address in a sockaddr_in6.
        addr.octets[8..10].copy_from_slice(&[0xff, 0x0e]);
        addr.octets[23] = 7;
        self.ask(cmd::JOIN_MCAST, |response| abi::JoinMcast {
            response,
            uid: 77,
            id,
            addr_size: size,
            join_flags,
            addr,
        })
    }

    fn leave(&self, membership: u32) -> Result<u32, Errno> {
        self.ask(cmd::LEAVE_MCAST, |response| abi::DestroyId {
            response,
            id: membership,
            reserved: 0,
        })
    }

    /// An id of the datagram service that may join.
    fn datagram_id(&self) -> u32 {
        let id = self.create_in(200, PortSpace::UDP.0).unwrap();
        self.resolve(id, GROUP).unwrap();
        self.expect(event::ADDR_RESOLVED);
        id
    }
}

#[test]
fn join_tells_how_to_send_to_the_group_and_both_counts_agree() {
    let pair = Pair::new();
    let channel = &pair.client;
    let id = channel.datagram_id();
    let membership = channel.join_ip(id, 55, GROUP).unwrap();
    let joined = channel.expect(event::MULTICAST_JOIN);
    // librdmacm finds its membership by the uid that it passed.
    assert_eq!((joined.uid, joined.id, joined.status), (55, membership, 0));
    let told = datagram_param(&joined);
    // As the kernel reports for RoCE v2: all queue pairs, RDMA_UDP_QKEY.
    assert_eq!((told.qp_num, told.qkey), (0x00ff_ffff, 0x0123_4567));
    assert_eq!(told.ah_attr.dgid, Ip16::new("239.1.2.3".parse().unwrap()).0);
    let way = told.ah_attr;
    assert_eq!((way.sgid_index, way.is_global, way.port_num), (1, 1, 1));
    assert_eq!(way.hop_limit, 64);
    // One event of the membership, two of its id.
    assert_eq!(channel.leave(membership), Ok(1));
    assert_eq!(channel.leave(membership), Err(libc::ENOENT));
    assert_eq!(channel.destroy(id), Ok(2));
}

#[test]
fn leave_removes_an_event_that_was_not_fetched() {
    let pair = Pair::new();
    let channel = &pair.client;
    let id = channel.datagram_id();
    let first = channel.join_ip(id, 55, GROUP).unwrap();
    let second = channel.join_ip(id, 56, "239.1.2.4:0").unwrap();
    assert_eq!(channel.leave(first), Ok(0));
    assert_eq!(channel.expect(event::MULTICAST_JOIN).id, second);
    assert!(!channel.is_readable());
    assert_eq!(channel.destroy(id), Ok(2));
    assert_eq!(channel.leave(second), Err(libc::ENOENT));
}

#[test]
fn groups_of_ipv6_are_joined_by_full_members_and_by_those_who_only_send() {
    const AF_INET6: u16 = 10;
    let pair = Pair::new();
    let channel = &pair.client;
    let id = channel.datagram_id();
    for flags in [join::FULL_MEMBER, join::SEND_ONLY] {
        channel.join(id, AF_INET6, 28, flags).unwrap();
        let joined = channel.expect(event::MULTICAST_JOIN);
        let group = "ff0e::7".parse().unwrap();
        assert_eq!(datagram_param(&joined).ah_attr.dgid, Ip16::new(group).0);
    }
    let refused = |family, size, flags| channel.join(id, family, size, flags).err();
    assert_eq!(refused(AF_INET6, 16, join::FULL_MEMBER), Some(libc::EINVAL));
    assert_eq!(refused(AF_INET6, 28, 2), Some(libc::EINVAL));
    // AF_IB, which Ethernet ports do not support.
    assert_eq!(refused(27, 48, join::FULL_MEMBER), Some(libc::EAFNOSUPPORT));
}

#[test]
fn joining_without_a_device_a_group_or_a_datagram_id_is_refused() {
    let pair = Pair::new();
    let channel = &pair.client;
    let idle = channel.create_in(200, PortSpace::UDP.0).unwrap();
    assert_eq!(channel.join_ip(idle, 1, GROUP), Err(libc::EINVAL));
    let bound = channel.create_in(200, PortSpace::UDP.0).unwrap();
    channel.bind(bound, "127.0.0.1:0").unwrap();
    assert_eq!(channel.join_ip(bound, 1, "10.0.0.1:0"), Err(libc::EINVAL));
    let connected = channel.create(200);
    channel.bind(connected, "127.0.0.1:0").unwrap();
    assert_eq!(channel.join_ip(connected, 1, GROUP), Err(libc::EINVAL));
    let other = Channel::of(&channel.ucma, &channel.process);
    assert_eq!(other.join_ip(bound, 1, GROUP), Err(libc::EINVAL));
    let membership = channel.join_ip(bound, 1, GROUP).unwrap();
    assert_eq!(other.leave(membership), Err(libc::EINVAL));
    assert_eq!(channel.leave(membership), Ok(0));
}
