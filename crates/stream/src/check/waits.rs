//! A sender that has run out of adverts, on a path that is busy and on one that is idle.

use super::world::{Plan, World};

const LEN_OCTETS: u64 = 5000;
const IDLE_NS: u64 = 1000;

/// End 0 has used both adverts of end 1, after a transfer that was complete after a nanosecond and
/// answered after so many, and has one send more.
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
