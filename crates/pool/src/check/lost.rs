//! Messages that are lost with an initiator, and that come twice: what a node has to be told for it
//! to go on. Nothing else is sent, and no node is asked whether it is there.

use super::blocked::{pair, receive, send, settle, two_pools};
use super::pools::Pools;
use crate::fault::Fault;
use crate::{Depths, Status, Transport, VirtualId};

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

/// A message with a number of buffers comes before the messages that have taken these: they are in
/// flight again, since their initiator has failed, so that the number looks impossible.
fn delivered_twice(fault: Option<Fault>) -> u32 {
    let (mut pools, ends) = sends_that_wait(fault);
    replace_initiator(&mut pools, SENDER);
    let dropped = pools.sides[SENDER].pool.stats().dropped;
    pools.execute(RECEIVER, 0, &mut |_| {}).unwrap();
    assert!(pools.arrive(SENDER));
    assert_eq!(pools.sides[SENDER].pool.stats().dropped, dropped + 1);
    delivered(pools, ends)
}

#[test]
fn node_whose_messages_come_again_is_told_of_its_buffers() {
    assert_eq!(delivered_twice(None), SENDS);
    assert!(delivered_twice(Some(Fault::RepeatedUnanswered)) < SENDS);
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
