//! The ucma ABI as librdmacm uses it: two processes of one host, a table of listeners in place of
//! urdmad, and each command as the octets that librdmacm writes.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod flood;
mod multicast;
mod numbers;
mod order;
mod rig;
mod xrc;

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use urdma_types::{Ip16, PortSpace, Rng, SlotId, Time};
use urdma_ucma::abi::{self, cmd, event, EventResp};
use urdma_ucma::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use rig::{carry, server_qpn, Channel, Host, Pair, GUID, HOST};

#[test]
fn connection_comes_up_as_librdmacm_drives_it() {
    let pair = Pair::new();
    let listener = pair.listening();
    let client = pair.connecting();
    let request = pair.server.expect(event::CONNECT_REQUEST);
    assert_eq!((request.uid, request.status), (100, 0));
    assert_ne!(request.id, listener);
    assert_eq!(request.conn.qp_num, 0x02_0001);
    assert_eq!(&request.conn.private_data[..11], b"from client");
    assert_eq!(request.conn.private_data_len, 11);
    // One end's ORD is the other end's IRD.
    assert_eq!(
        (
            request.conn.responder_resources,
            request.conn.initiator_depth
        ),
        (9, 2)
    );
    assert_eq!(
        (request.conn.retry_count, request.conn.rnr_retry_count),
        (6, 7)
    );
    assert_eq!((request.ece.vendor_id, request.ece.attr_mod), (5, 6));
    let server = &pair.server;
    let (init, rtr, rts) = (
        server.attr(request.id, 1).unwrap(),
        server.attr(request.id, 2).unwrap(),
        server.attr(request.id, 3).unwrap(),
    );
    assert_eq!((init.qp_attr_mask, init.port_num), (0x39, 1));
    assert_eq!(rtr.qp_attr_mask, 0x12_9181);
    assert_eq!(
        (rtr.dest_qp_num, rtr.max_dest_rd_atomic, rtr.path_mtu),
        (0x02_0001, 9, 5)
    );
    assert_eq!(
        (rtr.ah_attr.dgid, rtr.ah_attr.is_global),
        (Ip16::new(HOST).0, 1)
    );
    assert_eq!((rtr.ah_attr.sgid_index, rtr.ah_attr.port_num), (1, 1));
    assert_eq!(rts.qp_attr_mask, 0x1_2e01);
    assert_eq!((rts.retry_cnt, rts.rnr_retry, rts.max_rd_atomic), (6, 7, 2));
    server.accept(request.id, 300, 0x01_0001, 1).unwrap();
    pair.carry();
    let response = pair.client.expect(event::CONNECT_RESPONSE);
    assert_eq!(&response.conn.private_data[..11], b"from server");
    let client_rtr = pair.client.attr(client, 2).unwrap();
    assert_eq!(
        (client_rtr.dest_qp_num, client_rtr.rq_psn),
        (0x01_0001, rts.sq_psn)
    );
    assert_eq!(pair.client.attr(client, 3).unwrap().sq_psn, rtr.rq_psn);
    pair.client.accept(client, 0, 0, 0).unwrap();
    pair.carry();
    server.expect(event::ESTABLISHED);
    // The request counts for the listener, the rest for the new id.
    assert_eq!(server.destroy(request.id), Ok(1));
    assert_eq!(server.destroy(listener), Ok(1));
    pair.carry();
    pair.client.expect(event::DISCONNECTED);
    assert_eq!(pair.client.destroy(client), Ok(4));
}

#[test]
fn descriptor_is_readable_exactly_while_events_wait() {
    let pair = Pair::new();
    let id = pair.client.create(1);
    assert!(!pair.client.is_readable());
    assert_eq!(pair.client.event().err(), Some(libc::EAGAIN));
    pair.client.resolve(id, "127.0.0.1:1").unwrap();
    pair.client.resolve_route(id).unwrap();
    assert!(pair.client.is_readable());
    pair.client.expect(event::ADDR_RESOLVED);
    assert!(pair.client.is_readable());
    assert_eq!(pair.client.destroy(id), Ok(1));
    assert!(!pair.client.is_readable());
}

#[test]
fn remote_address_is_resolved_aside() {
    let pair = Pair::new();
    let id = pair.client.create(1);
    pair.client.resolve(id, "10.0.0.9:1").unwrap();
    pair.client.wait();
    pair.client.expect(event::ADDR_RESOLVED);
    let route = pair.client.route(id).unwrap();
    assert_eq!(route.src_addr.octets[4..8], [127, 0, 0, 1]);
    assert_eq!(
        (route.node_guid, route.port_num, route.num_paths),
        (GUID, 1, 0)
    );
    pair.client.resolve_route(id).unwrap();
    pair.client.expect(event::ROUTE_RESOLVED);
    let route = pair.client.route(id).unwrap();
    assert_eq!(
        (route.num_paths, route.ib_route[0].sgid),
        (1, Ip16::new(HOST).0)
    );
    let lost = pair.client.create(2);
    pair.client.resolve(lost, "10.0.0.8:1").unwrap();
    pair.client.wait();
    let error = pair.client.expect(1);
    assert_eq!(error.status.cast_signed(), -libc::EHOSTUNREACH);
}

/// A listener, and an id of another process that may connect to it.
fn about_to_connect() -> (Arc<Host>, Channel, Channel, u32) {
    let host = Arc::new(Host::default());
    let (server, client) = (Channel::new(&host, 1), Channel::new(&host, 2));
    let (listener, id) = (server.create(1), client.create(2));
    server.bind(listener, "127.0.0.1:7").unwrap();
    server.listen(listener, 4).unwrap();
    client.resolve(id, "127.0.0.1:7").unwrap();
    client.resolve_route(id).unwrap();
    (host, server, client, id)
}

#[test]
fn datagram_without_room_is_sent_as_soon_as_there_is_some() {
    let (host, _server, client, id) = about_to_connect();
    host.is_full.store(true, Ordering::Relaxed);
    client.connect(id, 9).unwrap();
    assert!(host.packets.lock().unwrap().is_empty());
    host.is_full.store(false, Ordering::Relaxed);
    let deadline = client.ucma.next_deadline().unwrap();
    assert!(deadline.as_ns() <= 1_000_000, "{deadline:?}");
    client.ucma.handle_timeout();
    assert_eq!(host.packets.lock().unwrap().len(), 1);
}

#[test]
fn request_in_the_name_of_another_host_is_dropped() {
    let (host, server, client, id) = about_to_connect();
    client.connect(id, 9).unwrap();
    let (_, request) = host.packets.lock().unwrap().pop_front().unwrap();
    let stranger = IpAddr::from([10, 0, 0, 9]);
    server.ucma.handle_datagram(stranger, &request);
    assert!(!server.is_readable());
    server.ucma.handle_datagram(HOST, &request);
    assert!(server.is_readable());
}

#[test]
fn event_of_a_datagram_that_has_arrived_is_found_without_a_wait() {
    let (host, server, client, id) = about_to_connect();
    assert_eq!(server.event().err(), Some(libc::EAGAIN));
    client.connect(id, 9).unwrap();
    let (_, request) = host.packets.lock().unwrap().pop_front().unwrap();
    server.process.unseen.lock().unwrap().push_back(request);
    assert_eq!(server.expect(event::CONNECT_REQUEST).uid, 1);
    assert_eq!(server.event().err(), Some(libc::EAGAIN));
}

#[test]
fn connect_without_a_listener_is_rejected_with_reason_8() {
    let pair = Pair::new();
    pair.connecting();
    assert_eq!(pair.client.expect(event::REJECTED).status, 8);
}

#[test]
fn listener_that_goes_before_it_saw_a_request_was_no_listener() {
    let pair = Pair::new();
    let listener = pair.listening();
    pair.connecting();
    assert_eq!(pair.client.event().err(), Some(libc::EAGAIN));
    pair.server.destroy(listener).unwrap();
    pair.carry();
    assert_eq!(pair.client.expect(event::REJECTED).status, 8);
}

/// What a client that ends leaves at a server that reads no events.
#[test]
fn request_of_a_client_that_has_gone_is_not_reported_after_a_while() {
    const SECOND_NS: u64 = 1_000_000_000;
    let pair = Pair::new();
    let listener = pair.listening();
    pair.connecting();
    assert!(pair.server.is_readable());
    pair.host.now_ns.store(11 * SECOND_NS, Ordering::Relaxed);
    pair.server.ucma.handle_timeout();
    assert!(!pair.server.is_readable());
    assert_eq!(pair.server.event().err(), Some(libc::EAGAIN));
    // The listener counts no event, and takes the next request.
    pair.connecting();
    let request = pair.server.expect(event::CONNECT_REQUEST);
    assert_eq!(pair.server.destroy(request.id), Ok(0));
    assert_eq!(pair.server.destroy(listener), Ok(1));
}

#[test]
fn application_that_rejects_is_heard_with_its_data() {
    let pair = Pair::new();
    pair.listening();
    let client = pair.connecting();
    let request = pair.server.expect(event::CONNECT_REQUEST);
    let mut body = abi::Reject::new_zeroed();
    body.id = request.id;
    body.private_data_len = 3;
    body.private_data[..3].copy_from_slice(b"why");
    pair.server.write(cmd::REJECT, 0, &body).unwrap();
    pair.carry();
    let rejected = pair.client.expect(event::REJECTED);
    assert_eq!((rejected.status, rejected.conn.private_data_len), (28, 3));
    assert_eq!(pair.client.disconnect(client), Ok(()));
}

#[test]
fn both_sides_disconnect_and_each_hears_it_once() {
    let pair = Pair::new();
    let (_, client, server) = pair.connected();
    pair.client.disconnect(client).unwrap();
    pair.server.disconnect(server).unwrap();
    pair.carry();
    pair.client.expect(event::DISCONNECTED);
    pair.server.expect(event::DISCONNECTED);
    assert_eq!(pair.client.event().err(), Some(libc::EAGAIN));
    pair.host.now_ns.store(1_000_000_000, Ordering::Relaxed);
    assert!(pair.client.ucma.next_deadline().unwrap() <= Time::from_ns(1_000_000_000));
    pair.client.ucma.handle_timeout();
    pair.client.expect(event::TIMEWAIT_EXIT);
    assert_eq!(pair.client.ucma.next_deadline(), None);
}

#[test]
fn accept_waits_for_the_queue_pair() {
    let pair = Pair::new();
    pair.listening();
    pair.connecting();
    let request = pair.server.expect(event::CONNECT_REQUEST);
    pair.server
        .process
        .unready
        .lock()
        .unwrap()
        .insert(server_qpn().into());
    pair.server.accept(request.id, 300, 0x01_0001, 1).unwrap();
    pair.carry();
    assert_eq!(pair.client.event().err(), Some(libc::EAGAIN));
    pair.server.ucma.qp_ready(server_qpn());
    pair.carry();
    pair.client.expect(event::CONNECT_RESPONSE);
}

#[test]
fn wrong_order_and_wrong_ids_are_refused() {
    let pair = Pair::new();
    let id = pair.client.create(1);
    assert_eq!(pair.client.resolve_route(id), Err(libc::EINVAL));
    assert_eq!(pair.client.connect(id, 1), Err(libc::EINVAL));
    assert_eq!(pair.client.accept(id, 1, 1, 1), Err(libc::EINVAL));
    assert_eq!(pair.client.disconnect(id), Err(libc::EINVAL));
    assert_eq!(pair.client.attr(id, 1).err(), Some(libc::EINVAL));
    assert_eq!(pair.client.resolve_route(id + 1), Err(libc::ENOENT));
    let second = Channel::of(&pair.client.ucma, &pair.client.process);
    assert_eq!(second.resolve_route(id), Err(libc::EINVAL));
    assert_eq!(second.destroy(id), Err(libc::EINVAL));
}

/// The parameters in an event of a datagram service.
fn datagram_param(event: &EventResp) -> abi::UdParam {
    let octets = [event.conn.as_bytes(), &event.rest].concat();
    abi::UdParam::read_from_bytes(&octets).unwrap()
}

#[test]
fn datagram_service_tells_where_to_send() {
    let pair = Pair::new();
    let listener = pair.server.create_in(100, PortSpace::UDP.0).unwrap();
    pair.server.bind(listener, "0.0.0.0:7471").unwrap();
    pair.server.listen(listener, 0).unwrap();
    let id = pair.client.create_in(200, PortSpace::UDP.0).unwrap();
    pair.route(id);
    pair.client.connect(id, 0x02_0001).unwrap();
    pair.carry();
    let request = pair.server.expect(event::CONNECT_REQUEST);
    let asked = datagram_param(&request);
    assert_eq!(&asked.private_data[..11], b"from client");
    assert_eq!(asked.private_data_len, 11);
    pair.server.accept(request.id, 300, 0x01_0001, 1).unwrap();
    pair.carry();
    let answer = pair.client.expect(event::ESTABLISHED);
    let told = datagram_param(&answer);
    // RDMA_UDP_QKEY of rdma/rdma_cma.h.
    assert_eq!((told.qp_num, told.qkey), (0x01_0001, 0x0123_4567));
    assert_eq!(&told.private_data[..11], b"from server");
    let way = told.ah_attr;
    assert_eq!((way.dgid, way.sgid_index), (Ip16::new(HOST).0, 1));
    assert_eq!((way.is_global, way.port_num), (1, 1));
    assert_eq!(pair.client.destroy(id), Ok(3));
    assert_eq!(pair.server.destroy(request.id), Ok(0));
    pair.carry();
    assert_eq!(pair.server.event().err(), Some(libc::EAGAIN));
}

#[test]
fn malformed_writes_are_refused() {
    let pair = Pair::new();
    let raw = |octets: &[u8]| {
        // SAFETY: none of these carries an address.
        unsafe { pair.client.ucma.write(pair.client.handle, octets) }
    };
    assert_eq!(raw(&[]), Err(libc::EINVAL));
    assert_eq!(raw(&[1, 0, 0, 0, 16, 0, 4, 0]), Err(libc::EINVAL));
    assert_eq!(raw(&[77, 0, 0, 0, 0, 0, 0, 0]), Err(libc::EINVAL));
    assert_eq!(raw(&[13, 0, 0, 0, 0, 0, 0, 0]), Err(libc::ENOSYS));
    let create = abi::CreateId {
        uid: 1,
        response: 0,
        ps: PortSpace::TCP.0,
        qp_type: 0,
        reserved: [0; 5],
    };
    assert_eq!(
        pair.client.write(cmd::CREATE_ID, 0, &create),
        Err(libc::ENOSPC)
    );
    assert_eq!(
        pair.client.write(cmd::CREATE_ID, 4, &create),
        Err(libc::EFAULT)
    );
    let join = abi::JoinIpMcast::new_zeroed();
    assert_eq!(
        pair.client.write(cmd::JOIN_IP_MCAST, 4, &join),
        Err(libc::EINVAL)
    );
}

#[test]
fn id_moves_to_another_file_with_its_events() {
    let pair = Pair::new();
    let id = pair.client.create(1);
    pair.client.resolve(id, "127.0.0.1:1").unwrap();
    let second = Channel::of(&pair.client.ucma, &pair.client.process);
    let reported: u32 = second
        .ask(cmd::MIGRATE_ID, |response| abi::MigrateId {
            response,
            id,
            fd: pair.client.fd.cast_unsigned(),
        })
        .unwrap();
    assert_eq!(reported, 0);
    assert!(!pair.client.is_readable() && second.is_readable());
    second.expect(event::ADDR_RESOLVED);
    assert_eq!(pair.client.resolve_route(id), Err(libc::EINVAL));
    assert_eq!(second.resolve_route(id), Ok(()));
}

#[test]
fn closing_the_file_ends_its_ids() {
    let pair = Pair::new();
    pair.connected();
    let Pair {
        host,
        server,
        client,
    } = pair;
    let second = Channel::of(&server.ucma, &server.process);
    drop(server);
    assert!(host.listeners.lock().unwrap().is_empty());
    carry(&host, &[&client, &second]);
    client.expect(event::DISCONNECTED);
}

#[test]
fn deaths_are_reported() {
    let pair = Pair::new();
    let (_, client, _) = pair.connected();
    let slot = SlotId::new(1).unwrap();
    pair.client.ucma.slot_gone(slot, || true);
    assert_eq!(pair.client.event().err(), Some(libc::EAGAIN));
    pair.client.ucma.slot_gone(slot, || false);
    pair.client.expect(event::DISCONNECTED);
    pair.server.ucma.qp_gone(server_qpn());
    pair.server.expect(event::DISCONNECTED);
    pair.client.ucma.device_removed();
    pair.client.ucma.device_removed();
    assert_eq!(pair.client.expect(event::DEVICE_REMOVAL).id, client);
    assert_eq!(pair.client.event().err(), Some(libc::EAGAIN));
    assert_eq!(
        pair.client.create_in(1, PortSpace::TCP.0),
        Err(libc::ENODEV)
    );
}

#[test]
fn written_event_is_read_with_its_status_and_argument() {
    let pair = Pair::new();
    let id = pair.client.create(1);
    let write = |id, event| {
        let body = abi::WriteCmEvent {
            id,
            reserved: 0,
            event,
            status: 7,
            arg: 0x0102_0304_0506_0708,
        };
        pair.client.write(cmd::WRITE_CM_EVENT, 0, &body)
    };
    assert_eq!(write(id, event::ESTABLISHED), Err(libc::EINVAL));
    assert_eq!(write(id + 1, event::USER), Err(libc::ENOENT));
    for event in [event::USER, event::INTERNAL] {
        assert_eq!(write(id, event), Ok(()));
        let read = pair.client.expect(event);
        assert_eq!((read.uid, read.id, read.status), (1, id, 7));
        let argument = &read.conn.as_bytes()[..8];
        assert_eq!(argument, 0x0102_0304_0506_0708_u64.to_ne_bytes());
    }
    let body = abi::Query::new_zeroed();
    let refused = pair.client.write(cmd::RESOLVE_IB_SERVICE, 0, &body);
    assert_eq!(refused, Err(libc::EOPNOTSUPP));
}

#[test]
fn options_are_checked() {
    let pair = Pair::new();
    let id = pair.client.create(1);
    let set = |level, optname, value: &[u8]| {
        let body = abi::SetOption {
            optval: value.as_ptr() as usize as u64,
            id,
            level,
            optname,
            optlen: value.len() as u32,
        };
        pair.client.write(cmd::SET_OPTION, 0, &body)
    };
    assert_eq!(set(0, 0, &[8]), Ok(()));
    assert_eq!(set(0, 0, &[8, 8]), Err(libc::EINVAL));
    assert_eq!(set(0, 1, &[1, 0, 0, 0]), Ok(()));
    assert_eq!(set(0, 3, &[20]), Ok(()));
    assert_eq!(set(0, 9, &[1]), Err(libc::ENOSYS));
    assert_eq!(set(7, 0, &[1]), Err(libc::ENOSYS));
    assert_eq!(set(1, 1, &[0; 71]), Err(libc::EINVAL));
    pair.client.resolve(id, "127.0.0.1:7471").unwrap();
    pair.client.expect(event::ADDR_RESOLVED);
    assert_eq!(set(1, 1, &[0; 72]), Ok(()));
    pair.client.expect(event::ROUTE_RESOLVED);
}

#[test]
fn queries_by_option_answer() {
    let pair = Pair::new();
    let (_, client, _) = pair.connected();
    let query = |option| {
        move |response| abi::Query {
            response,
            id: client,
            option,
        }
    };
    let addr: abi::QueryAddrResp = pair.client.ask(cmd::QUERY, query(0)).unwrap();
    assert_eq!((addr.src_size, addr.dst_size, addr.port_num), (16, 16, 1));
    let gid: abi::QueryAddrResp = pair.client.ask(cmd::QUERY, query(2)).unwrap();
    assert_eq!(gid.dst_addr.octets[8..24], Ip16::new(HOST).0);
    let path: abi::QueryPathResp = pair.client.ask(cmd::QUERY, query(1)).unwrap();
    assert_eq!(path.num_paths, 1);
    let unknown: Result<abi::QueryPathResp, Errno> = pair.client.ask(cmd::QUERY, query(9));
    assert_eq!(unknown.err(), Some(libc::ENOSYS));
}

/// A command of random octets; an address in it is that of `scratch`.
fn random_command(random: &mut Rng, scratch: u64) -> Vec<u8> {
    // Offset of the address in the body of each command.
    let address_at = |number: u32| match number {
        cmd::CREATE_ID => Some(8),
        cmd::DESTROY_ID | cmd::QUERY_ROUTE | cmd::QUERY | cmd::INIT_QP_ATTR => Some(0),
        cmd::GET_EVENT | cmd::MIGRATE_ID | cmd::LEAVE_MCAST | cmd::BIND_IP => Some(0),
        cmd::SET_OPTION | cmd::JOIN_MCAST | cmd::JOIN_IP_MCAST => Some(0),
        _ => None,
    };
    let number = random.below(25) as u32;
    let mut body = vec![0_u8; 320];
    for octet in &mut body {
        *octet = if random.below(3) == 0 {
            random.below(12) as u8
        } else {
            0
        };
    }
    if let Some(at) = address_at(number) {
        body[at..at + 8].copy_from_slice(&scratch.to_ne_bytes());
    }
    if number == cmd::CREATE_ID {
        body[16..18].copy_from_slice(&PortSpace::TCP.0.to_ne_bytes());
    }
    if number == cmd::SET_OPTION {
        body[20..24].copy_from_slice(&(random.below(100) as u32).to_ne_bytes());
    }
    let mut command = number.to_ne_bytes().to_vec();
    command.extend_from_slice(&(random.below(321) as u16).to_ne_bytes());
    command.extend_from_slice(&(random.below(400) as u16).to_ne_bytes());
    command.extend_from_slice(&body);
    command
}

/// The calls of [`random_call`], by number.
const CALLS: [&str; 13] = [
    "create",
    "bind",
    "listen",
    "resolve",
    "route",
    "connect",
    "accept",
    "disconnect",
    "destroy",
    "event",
    "attributes",
    "query",
    "option",
];

/// A call as librdmacm makes it, of a random one of the ids, in any state; which, and its outcome.
fn random_call(
    channel: &Channel,
    ids: &mut Vec<u32>,
    random: &mut Rng,
) -> (usize, Result<(), Errno>) {
    // The newest is often a request that can be accepted.
    let id = match (ids.last(), random.below(2)) {
        (None, _) => 0,
        (Some(newest), 0) => *newest,
        (Some(_), _) => ids[random.below(ids.len() as u64) as usize],
    };
    let (port, qpn) = (7400 + random.below(4), server_qpn().to_u32());
    let number = random.below(CALLS.len() as u64) as usize;
    let outcome = match CALLS[number] {
        "create" if ids.len() < 32 => {
            let created = channel.create_in(random.below(9), PortSpace::TCP.0);
            created.map(|id| ids.push(id))
        }
        "create" => Err(0),
        "bind" => channel.bind(id, &format!("127.0.0.1:{port}")),
        "listen" => channel.listen(id, random.below(9) as u32),
        "resolve" => channel.resolve(id, &format!("127.0.0.1:{port}")),
        "route" => channel.resolve_route(id),
        "connect" => channel.connect(id, qpn),
        "accept" => channel.accept(id, random.below(9), qpn, random.below(2) as u8),
        "disconnect" => channel.disconnect(id),
        "destroy" if ids.len() < 8 => Err(0),
        "destroy" => channel
            .destroy(id)
            .map(|_| ids.retain(|other| *other != id)),
        "event" => channel.event().map(|event| {
            if event.event == event::CONNECT_REQUEST {
                ids.push(event.id);
            }
        }),
        "attributes" => channel.attr(id, 1 + random.below(3) as u32).map(drop),
        "query" => channel.route(id).map(drop),
        _ => channel.option(id, random.below(5) as u32, random.below(9) as u32),
    };
    (number, outcome)
}

#[test]
fn random_commands_never_harm() {
    let mut random = Rng::new(0x0bad_cafe_dead_beef);
    let pair = Pair::new();
    let mut scratch = vec![0_u64; 128];
    let address = scratch.as_mut_ptr() as usize as u64;
    let mut ids = [Vec::new(), Vec::new()];
    let mut taken = [0_u32; CALLS.len()];
    for _ in 0..100_000 {
        let which = random.below(2) as usize;
        let channel = [&pair.server, &pair.client][which];
        if random.below(2) == 0 {
            let command = random_command(&mut random, address);
            // SAFETY: the only address is that of `scratch`, which is longer than any answer.
            let _ = unsafe { channel.ucma.write(channel.handle, &command) };
        } else {
            let (call, outcome) = random_call(channel, &mut ids[which], &mut random);
            taken[call] += u32::from(outcome.is_ok());
        }
        pair.carry();
        let step_ns = random.below(50_000_000);
        let now_ns = pair.host.now_ns.fetch_add(step_ns, Ordering::Relaxed);
        let deadline = channel.ucma.next_deadline();
        if deadline.is_some_and(|at| at.as_ns() <= now_ns) {
            channel.ucma.handle_timeout();
        }
    }
    // Every call came through the states in which it is one that is taken.
    for (call, count) in CALLS.iter().zip(taken) {
        assert!(count > 5, "{call}: {count} of {taken:?}");
    }
}
