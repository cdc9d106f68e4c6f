//! Extended reliable connections, in RDMA_PS_IB.

use urdma_types::PortSpace;
use urdma_ucma::abi::{self, cmd, event, option};
use urdma_ucma::Errno;

use crate::rig::{Channel, Pair};

// `enum ibv_qp_state`; `enum ibv_qp_attr_mask` by the end that it is for.
const RTR: u32 = 2;
const RTS: u32 = 3;
const AS_RESPONDER: u32 = 1 << 15 | 1 << 17;
const AS_REQUESTER: u32 = 1 << 10 | 1 << 11 | 1 << 13;
const TIMEOUT: u32 = 1 << 9;

fn create(channel: &Channel, uid: u64, qp_type: u8) -> Result<u32, Errno> {
    channel.create_for(uid, PortSpace::IB.0, qp_type)
}

/// A target of the server that listens.
fn listening(pair: &Pair) -> u32 {
    let id = create(&pair.server, 100, abi::QPT_XRC_RECV).unwrap();
    pair.server.bind(id, "0.0.0.0:7471").unwrap();
    pair.server.listen(id, 0).unwrap();
    id
}

#[test]
fn each_end_gets_the_attributes_that_it_has() {
    let pair = Pair::new();
    listening(&pair);
    let client = create(&pair.client, 200, abi::QPT_XRC_SEND).unwrap();
    pair.route(client);
    pair.client.connect(client, 0x02_0001).unwrap();
    pair.carry();
    let request = pair.server.expect(event::CONNECT_REQUEST);
    let asked = request.conn;
    assert_eq!((request.uid, asked.qp_num), (100, 0x02_0001));
    let server = request.id;
    let masks = |channel: &Channel, id| {
        [RTR, RTS].map(|state| channel.attr(id, state).unwrap().qp_attr_mask)
    };
    let [to_rtr, to_rts] = masks(&pair.server, server);
    assert_eq!(to_rtr & AS_RESPONDER, AS_RESPONDER);
    assert_eq!(to_rts & (AS_REQUESTER | TIMEOUT), TIMEOUT);
    pair.server.accept(server, 300, 0x01_0001, 1).unwrap();
    pair.carry();
    let answer = pair.client.expect(event::CONNECT_RESPONSE).conn;
    assert_eq!(answer.qp_num, 0x01_0001);
    assert_eq!(&answer.private_data[..11], b"from server");
    let [to_rtr, to_rts] = masks(&pair.client, client);
    assert_eq!(to_rtr & AS_RESPONDER, 0);
    assert_eq!(to_rts & AS_REQUESTER, AS_REQUESTER);
    assert_eq!(to_rts & TIMEOUT, TIMEOUT);
    pair.client.accept(client, 0, 0, 0).unwrap();
    pair.carry();
    assert_eq!(pair.server.expect(event::ESTABLISHED).uid, 300);
    pair.client.disconnect(client).unwrap();
    pair.carry();
    pair.server.expect(event::DISCONNECTED);
}

#[test]
fn plain_connection_does_not_find_a_target() {
    let pair = Pair::new();
    listening(&pair);
    pair.connecting();
    assert_eq!(pair.server.event().err(), Some(libc::EAGAIN));
    // IB_CM_REJ_INVALID_SERVICE_ID.
    assert_eq!(pair.client.expect(event::REJECTED).status, 8);
}

#[test]
fn each_end_keeps_to_its_part() {
    let pair = Pair::new();
    for other in [0, abi::QPT_RC, abi::QPT_UD] {
        assert_eq!(create(&pair.client, 1, other), Err(libc::EINVAL));
    }
    let target = create(&pair.client, 200, abi::QPT_XRC_RECV).unwrap();
    pair.route(target);
    assert_eq!(pair.client.connect(target, 1), Err(libc::EINVAL));
    let initiator = create(&pair.client, 200, abi::QPT_XRC_SEND).unwrap();
    assert_eq!(pair.client.listen(initiator, 1), Err(libc::EINVAL));
    let wait_longer = |id| {
        let timeout = [18_u8];
        let body = abi::SetOption {
            optval: timeout.as_ptr() as usize as u64,
            id,
            level: option::LEVEL_ID,
            optname: option::ID_ACK_TIMEOUT,
            optlen: 1,
        };
        pair.client.write(cmd::SET_OPTION, 0, &body)
    };
    assert_eq!(wait_longer(initiator), Ok(()));
    assert_eq!(wait_longer(target), Err(libc::EINVAL));
}
