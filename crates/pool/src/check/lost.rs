//! Messages that are lost with an initiator, and that come twice: what a node has to be told for it
//! to go on. Nothing else is sent, and no node is asked whether it is there.

use super::blocked::{pair, receive, send, settle, two_pools};
use super::pools::Pools;
use crate::fault::Fault;
use crate::{
    Config, Depths, EndState, Header, Label, Message, Status, Taken, Transport, VirtualId,
};

/// More than a share.
const SENDS: u32 = 24;

/// The side that sends, and the one that receives.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// Two pools over one initiator each, with two ends that know each other and their Receives. Sends
/// wait for buffers: all that there were have taken a message, and the message that tells so is
/// posted.
fn sends_that_wait(fault: Option<Fault>) -> (Pools, [VirtualId; 2]) {
    let mut pools = two_pools(Transport::Initiators { count: 1 }, fault);
    let depths = Depths {
        requests: SENDS,
        receives: SENDS,
    };
    let ends = pair(&mut pools, depths);
    (0..SENDS).for_each(|number| receive(&mut pools, ends[RECEIVER], number.into()));
    settle(&mut pools);
    for number in 0..SENDS {
        send(&mut pools, ends[SENDER], number.into()).unwrap();
    }
    pools.turn().unwrap();
    while pools.execute(SENDER, 0, &mut |_| {}).unwrap().is_some() {}
    while pools.arrive(RECEIVER) {}
    pools.turn().unwrap();
    (pools, ends)
}

/// An initiator fails with its messages in flight, and is replaced.
fn replace_initiator(pools: &mut Pools, side: usize) {
    pools.break_link(side, 0, Status::Flushed);
    pools.turn().unwrap();
    while pools.sides[side].handle_one() {}
    for _ in ["it is destroyed", "another one is created"] {
        pools.turn().unwrap();
        pools.act(side, true).unwrap();
    }
    assert!(!pools.sides[side].qps[0].is_broken);
}

/// How many Sends are delivered in the end.
fn delivered(mut pools: Pools, [_, receiver]: [VirtualId; 2]) -> u32 {
    settle(&mut pools);
    let pool = &mut pools.sides[RECEIVER].pool;
    let received = std::iter::from_fn(|| pool.poll_received(receiver));
    received
        .map(|one| assert_eq!(one.status, Status::Success))
        .count() as u32
}

/// A message with a number of buffers comes when those that have taken them are to be sent again,
/// since their initiator has failed. It is the only one with that number.
#[test]
fn number_of_buffers_of_messages_that_come_again_is_believed() {
    let (mut pools, ends) = sends_that_wait(None);
    replace_initiator(&mut pools, SENDER);
    let dropped = pools.sides[SENDER].pool.stats().dropped;
    pools.execute(RECEIVER, 0, &mut |_| {}).unwrap();
    assert!(pools.arrive(SENDER));
    assert_eq!(pools.sides[SENDER].pool.stats().dropped, dropped);
    assert_eq!(delivered(pools, ends), SENDS);
}

/// A message with a number of buffers is lost with its initiator.
fn delivered_without(fault: Option<Fault>) -> u32 {
    let (mut pools, ends) = sends_that_wait(fault);
    replace_initiator(&mut pools, RECEIVER);
    delivered(pools, ends)
}

#[test]
fn node_is_told_again_of_buffers_when_an_initiator_has_failed() {
    assert_eq!(delivered_without(None), SENDS);
    assert!(delivered_without(Some(Fault::CountsNotRepeated)) < SENDS);
}

/// What it has to be answered has no end, and others share the initiator.
#[test]
fn node_that_takes_no_answers_ends_what_is_exchanged_with_it() {
    let mut pools = two_pools(Transport::Initiators { count: 1 }, None);
    let depths = Depths {
        requests: 1,
        receives: 1,
    };
    let [_, accepted] = pair(&mut pools, depths);
    let pool = &mut pools.sides[RECEIVER].pool;
    let exchange = pool.exchange_of(accepted).unwrap();
    let own = exchange.meeting.unwrap().own.unwrap();
    let posted = exchange.grant;
    let probe = Header {
        buffers: 8,
        message: Message::Probe,
    };
    let most = Config::default().virtual_max;
    let first = (1..).find(|number| posted.clone().take_numbered(*number) == Taken::First);
    for number in (0..=most).map(|n| first.unwrap().wrapping_add(n as u16)) {
        let label = Label {
            token: own.token,
            number,
        };
        let message = probe.with_label(Some(label));
        pool.handle_target_message(0, &message, message.len());
    }
    assert_eq!(pool.end_state(accepted), Some(EndState::Closed));
    assert_eq!(pool.stats().failed, 0);
}
