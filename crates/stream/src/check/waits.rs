//! A sender that has run out of adverts, on a path that is busy and on one that is idle.

use super::world::{Plan, World};

const LEN_OCTETS: u64 = 5000;
const IDLE_NS: u64 = 1000;

/// End 0 has used both adverts of end 1, after a transfer that was complete after a nanosecond and
/// answered after `answer_ns`, and has one send more.
fn without_adverts(answer_ns: u64) -> World {
    let mut world = World::new(&Plan::quiet(10 * LEN_OCTETS, LEN_OCTETS));
    advertise(&mut world, 2);
    world.ends[0].now_ns = IDLE_NS;
    world.ends[0].send(LEN_OCTETS);
    assert!(world.ends[0].transmit().unwrap());
    assert!(world.deliver(0).unwrap());
    assert!(world.ends[0].complete());
    world.ends[0].now_ns = IDLE_NS + answer_ns;
    advertise(&mut world, 1);
    for _ in 0..3 {
        world.ends[0].send(LEN_OCTETS);
    }
    assert!(world.ends[0].transmit().unwrap());
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.stats()[0].direct_transfers, 3);
    world
}

/// End 1 posts receives, whose adverts arrive.
fn advertise(world: &mut World, count: usize) {
    world.ends[1].events().unwrap();
    for _ in 0..count {
        assert!(world.ends[1].recv(LEN_OCTETS, false));
        assert!(world.ends[1].transmit().unwrap());
        assert!(world.deliver(1).unwrap());
    }
}

#[test]
fn busy_path_transfer_waits_for_the_next_advert() {
    let mut world = without_adverts(100);
    assert!(!world.ends[0].transmit().unwrap());
    assert!(world.ends[0].stream.poll_timeout().is_some());
    assert!(world.deliver(0).unwrap());
    advertise(&mut world, 1);
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.ends[0].stream.poll_timeout(), None);
    let stats = world.stats()[0];
    assert_eq!((stats.direct_transfers, stats.indirect_transfers), (4, 0));
}

#[test]
fn busy_path_without_receives_ends_the_wait_by_its_timeout() {
    let mut world = without_adverts(100);
    assert!(!world.ends[0].transmit().unwrap());
    assert!(world.pass_time());
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.ends[0].stream.poll_timeout(), None);
    assert_eq!(world.stats()[0].indirect_transfers, 1);
}

#[test]
fn idle_path_transfer_is_indirect_at_once() {
    let mut world = without_adverts(1);
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.stats()[0].indirect_transfers, 1);
}

/// A transfer is cut, so that a message of the same end is not behind all of it.
#[test]
fn long_transfer_lets_messages_pass_between_its_pieces() {
    let mut plan = Plan::quiet(10 * LEN_OCTETS, LEN_OCTETS);
    for config in &mut plan.configs {
        config.piece_max_octets = 1000;
    }
    let mut world = World::new(&plan);
    let end = &mut world.ends[0];
    end.send(LEN_OCTETS);
    assert!(end.transmit().unwrap());
    assert!(end.recv(LEN_OCTETS, false));
    assert!(end.transmit().unwrap());
    let stats = end.stream.stats();
    assert_eq!((stats.adverts_sent, stats.indirect_transfers), (1, 1));
    let mut pieces = 0;
    while end.transmit().unwrap() {
        pieces += 1;
    }
    assert_eq!(pieces, 4);
    for _ in 0..6 {
        assert!(world.deliver(0).unwrap());
    }
    assert!(world.ends[1].recv(LEN_OCTETS, false));
    world.ends[1].drain().unwrap();
    while world.ends[0].complete() {}
    world.ends[0].events().unwrap();
    world.compare([true; 2]).unwrap();
}
