//! A user whose other end posts no Receives, or does not poll them, beside one that sends and
//! receives: how many messages the second one needs.

use super::pools::Pools;
use crate::fault::Fault;
use crate::{
    Access, Config, Depths, Element, EndState, MessageConfig, PostError, SendRequest, Status,
    Transport, UserId, VirtualId,
};

const USER: UserId = UserId(0);
const SERVICE: u32 = 0;
/// Sends of the user who goes on.
const SENDS: u64 = 200;
/// Receives that a user posts and does not poll.
const KEPT: u32 = 16;
const LEN: usize = 8;

/// Two pools with one connection, or one initiator each.
pub(super) fn two_pools(transport: Transport, fault: Option<Fault>) -> Pools {
    let config = Config {
        transport,
        ..Config::default()
    };
    let messages = MessageConfig {
        epoch: 0,
        buffer_octets: transport.header_octets() as u32 + LEN as u32,
        share: 8,
        backlog: 2,
        peers_max: 1,
    };
    let mut pools = Pools::new(&config, &messages, 2, fault);
    pools.sides[1].pool.listen(SERVICE).unwrap();
    pools
}

/// Until nothing happens any more.
pub(super) fn settle(pools: &mut Pools) {
    let mut is_moving = true;
    while is_moving {
        pools.turn().unwrap();
        is_moving = pools.step_connects().unwrap() || pools.has_questions();
        pools.step_questions().unwrap();
        for side in [0, 1] {
            while !pools.sides[side].actions.is_empty() {
                pools.act(side, true).unwrap();
                is_moving = true;
            }
            if pools.sides[side].qps.is_empty() {
                continue;
            }
            while pools.execute(side, 0, &mut |_| {}).unwrap().is_some() {
                pools.sides[side].acknowledge(0);
                is_moving = true;
            }
        }
        for side in [0, 1] {
            while pools.arrive(side) || pools.sides[side].handle_one() {
                is_moving = true;
            }
        }
    }
}

/// Two ends that know each other.
pub(super) fn pair(pools: &mut Pools, depths: Depths) -> [VirtualId; 2] {
    let at = (pools.sides[0].nodes[1], SERVICE);
    let opener = &mut pools.sides[0].pool;
    let opened = opener.open_service(USER, at, depths, Access::ALL).unwrap();
    settle(pools);
    let listener = &mut pools.sides[1].pool;
    let accepted = listener.accept(SERVICE, USER, depths, Access::ALL);
    let accepted = accepted.unwrap().unwrap();
    settle(pools);
    assert_eq!(pools.sides[0].pool.end_state(opened), Some(EndState::Open));
    [opened, accepted]
}

fn element(pools: &mut Pools, side: usize) -> Element {
    let side = &mut pools.sides[side];
    Element {
        local: side.locals[USER.0 as usize],
        addr: side.place(USER, LEN),
        len_octets: LEN as u32,
    }
}

pub(super) fn send(pools: &mut Pools, id: VirtualId, number: u64) -> Result<(), PostError> {
    let request = SendRequest {
        id: number,
        immediate: None,
        is_signaled: true,
    };
    let element = element(pools, 0);
    pools.sides[0].pool.post_send(id, &request, &[element])
}

pub(super) fn receive(pools: &mut Pools, id: VirtualId, number: u64) {
    let element = element(pools, 1);
    let posted = pools.sides[1].pool.post_receive(id, number, &[element]);
    posted.unwrap();
}

/// Messages for as many Sends of a user as there are, while another one has its send queue full and
/// its other end has posted this many Receives, which it does not poll.
fn messages_beside(kept: Option<u32>) -> u64 {
    let mut pools = two_pools(Config::default().transport, None);
    let depths = Depths {
        requests: 64,
        receives: KEPT,
    };
    let going = pair(&mut pools, depths);
    let blocked = kept.map(|kept| {
        let blocked = pair(&mut pools, depths);
        (0..kept).for_each(|number| receive(&mut pools, blocked[1], number.into()));
        while send(&mut pools, blocked[0], 0).is_ok() {}
        blocked
    });
    let before = pools.executed[0];
    for number in 0..SENDS {
        receive(&mut pools, going[1], number);
        send(&mut pools, going[0], number).unwrap();
        settle(&mut pools);
        let received = pools.sides[1].pool.poll_received(going[1]).unwrap();
        assert_eq!((received.id, received.status), (number, Status::Success));
        let done = pools.sides[0].pool.poll(going[0]).unwrap();
        assert_eq!((done.id, done.status), (number, Status::Success));
    }
    if let Some(blocked) = blocked {
        // What has a Receive was sent, and nothing else.
        let left = pools.sides[0].pool.outstanding(blocked[0]);
        assert_eq!(left, 64 - kept.unwrap_or(0) as usize);
    }
    pools.executed[0] - before
}

#[test]
fn user_without_receives_takes_nothing_from_others() {
    assert_eq!(messages_beside(Some(0)), messages_beside(None));
}

/// Its Receives are filled once; each takes a message, and the counts of buffers and Receives come
/// in others.
#[test]
fn user_that_never_polls_takes_what_its_receives_hold() {
    let more = messages_beside(Some(KEPT)) - messages_beside(None);
    assert!(
        (u64::from(KEPT)..2 * u64::from(KEPT)).contains(&more),
        "{more}"
    );
}
