//! Short sends that are carried together, and short receives, which have no adverts.

use super::world::{Plan, World};
use crate::{Choice, SendId, GATHER_MAX};

const LEN_OCTETS: u64 = 10;
const LONG_OCTETS: u64 = 100_000;
const RING_OCTETS: u64 = 1000;
/// Transfers in progress behind which short sends wait.
const IN_PROGRESS: usize = 4;

/// End 0 has enough transfers in progress that short sends wait.
fn busy() -> World {
    busy_with(RING_OCTETS, LEN_OCTETS)
}

/// The same with sends of this length.
fn busy_with(ring_octets: u64, len_octets: u64) -> World {
    let mut world = World::new(&Plan::quiet(ring_octets, len_octets));
    for _ in 0..IN_PROGRESS {
        world.ends[0].send(len_octets);
        assert!(world.ends[0].transmit().unwrap());
    }
    world
}

/// End 0 posts `sends` sends, and transmits what it may: how many work requests.
fn transmitted(world: &mut World, sends: usize) -> usize {
    let end = &mut world.ends[0];
    let sent = (0..sends).map(|_| {
        end.send(LEN_OCTETS);
        std::iter::from_fn(|| end.transmit().unwrap().then_some(())).count()
    });
    sent.sum()
}

/// End 1 receives what `sends` sends have carried.
fn expect_received(world: &mut World, sends: usize) {
    expect_octets(world, sends as u64 * LEN_OCTETS);
}

/// End 1 receives this number of octets.
fn expect_octets(world: &mut World, octets: u64) {
    assert!(world.ends[1].recv(octets, true));
    while world.deliver(0).unwrap() {}
    while world.ends[1].copy().unwrap() {}
    while world.ends[0].complete() {}
    for end in &mut world.ends {
        end.events().unwrap();
    }
    assert_eq!(world.ends[0].open_sends(), 0);
    world.compare([true; 2]).unwrap();
}

#[test]
fn short_sends_behind_others_are_carried_by_one_write() {
    let mut world = busy();
    assert_eq!(transmitted(&mut world, 5), 0);
    assert!(world.ends[0].stream.poll_timeout().is_some());
    assert!(world.deliver(0).unwrap());
    assert!(world.ends[0].complete());
    assert!(world.ends[0].transmit().unwrap());
    assert!(!world.ends[0].transmit().unwrap());
    assert_eq!(world.stats()[0].indirect_transfers, IN_PROGRESS as u64 + 1);
    expect_received(&mut world, IN_PROGRESS + 5);
}

#[test]
fn short_sends_wait_no_longer_than_their_timeout() {
    let mut world = busy();
    assert_eq!(transmitted(&mut world, 2), 0);
    assert!(world.pass_time());
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.ends[0].stream.poll_timeout(), None);
    expect_received(&mut world, IN_PROGRESS + 2);
}

#[test]
fn short_sends_do_not_wait_for_a_user_that_sleeps() {
    let mut world = busy();
    world.ends[0].stream.stop_gathering();
    assert_eq!(transmitted(&mut world, 2), 0);
    world.ends[0].stream.stop_gathering();
    assert!(!world.ends[0].stream.is_gathering());
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.ends[0].stream.poll_timeout(), None);
    // The next ones wait again.
    assert_eq!(transmitted(&mut world, 2), 0);
    assert!(world.pass_time());
    assert!(world.ends[0].transmit().unwrap());
    expect_received(&mut world, IN_PROGRESS + 4);
}

#[test]
fn as_many_short_sends_as_a_write_carries_do_not_wait() {
    let mut world = busy();
    assert_eq!(transmitted(&mut world, GATHER_MAX), 1);
    expect_received(&mut world, IN_PROGRESS + GATHER_MAX);
}

#[test]
fn as_many_sends_of_1_kb_are_carried_by_one_write_as_of_a_few_octets() {
    let mut world = busy_with(1 << 16, 1024);
    let end = &mut world.ends[0];
    for _ in 0..GATHER_MAX - 1 {
        end.send(1024);
        assert!(!end.transmit().unwrap());
    }
    end.send(1024);
    assert!(end.transmit().unwrap());
    let octets = (IN_PROGRESS + GATHER_MAX) as u64 * 1024;
    expect_octets(&mut world, octets);
}

/// End 1 receives all of the work requests in progress, and end 0 takes their completions.
fn complete_all(world: &mut World) {
    while world.deliver(0).unwrap() {}
    while world.ends[0].complete() {}
}

#[test]
fn short_sends_after_gathered_ones_wait_behind_one_transfer() {
    let mut world = busy();
    assert_eq!(transmitted(&mut world, GATHER_MAX), 1);
    complete_all(&mut world);
    // The first is sent alone, the next ones together.
    assert_eq!(transmitted(&mut world, 1 + GATHER_MAX), 2);
    assert_eq!(world.stats()[0].indirect_transfers, IN_PROGRESS as u64 + 3);
    expect_received(&mut world, IN_PROGRESS + 2 * GATHER_MAX + 1);
}

#[test]
fn pair_of_sends_does_not_wait_once_two_were_sent_alone() {
    let mut world = busy();
    assert_eq!(transmitted(&mut world, GATHER_MAX), 1);
    for _ in 0..2 {
        complete_all(&mut world);
        assert_eq!(transmitted(&mut world, 1), 1);
    }
    complete_all(&mut world);
    assert_eq!(transmitted(&mut world, 2), 2);
    expect_received(&mut world, IN_PROGRESS + GATHER_MAX + 4);
}

#[test]
fn short_sends_that_are_the_last_do_not_wait() {
    let mut world = busy();
    assert_eq!(transmitted(&mut world, 2), 0);
    world.ends[0].stream.finish().unwrap();
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.stats()[0].indirect_transfers, IN_PROGRESS as u64 + 1);
    expect_received(&mut world, IN_PROGRESS + 2);
}

#[test]
fn canceled_send_is_left_out_between_those_that_one_write_carries() {
    let mut world = busy();
    assert_eq!(transmitted(&mut world, 3), 0);
    let canceled = SendId(IN_PROGRESS as u64 + 1);
    world.ends[0].stream.cancel_send(canceled).unwrap();
    assert!(world.pass_time());
    assert!(world.ends[0].transmit().unwrap());
    assert_eq!(world.stats()[0].indirect_transfers, IN_PROGRESS as u64 + 1);
    expect_received(&mut world, IN_PROGRESS + 2);
}

#[test]
fn message_and_answer_are_found_without_looking_at_everything() {
    const ROUND_TRIPS: usize = 20;
    let mut world = World::new(&Plan::quiet(10 * RING_OCTETS, LEN_OCTETS));
    for end in &mut world.ends {
        end.drain().unwrap();
    }
    for _ in 0..ROUND_TRIPS {
        for from in 0..2 {
            assert!(world.ends[1 - from].recv(LEN_OCTETS, true));
            world.ends[from].send(LEN_OCTETS);
            world.ends[from].drain().unwrap();
            assert!(world.deliver(from).unwrap());
            assert!(world.ends[from].complete());
            world.ends[1 - from].drain().unwrap();
        }
    }
    for end in &world.ends {
        // The write, that nothing follows it, and that nothing follows the answer and its copy.
        assert_eq!(end.short_looks, 3 * ROUND_TRIPS);
        assert_eq!(end.received_octets(), ROUND_TRIPS * LEN_OCTETS as usize);
    }
}

#[test]
fn lone_message_is_posted_by_the_call_that_sends_it() {
    const ROUND_TRIPS: usize = 20;
    let mut world = World::new(&Plan::quiet(10 * RING_OCTETS, LEN_OCTETS));
    let mut posted = [0; 2];
    for _ in 0..ROUND_TRIPS {
        for (from, posted) in posted.iter_mut().enumerate() {
            world.ends[from].drain().unwrap();
            assert!(world.ends[1 - from].recv(LEN_OCTETS, true));
            match world.ends[from].send_at_once(LEN_OCTETS).unwrap() {
                true => *posted += 1,
                // The first one is in a direct phase.
                false => world.ends[from].send(LEN_OCTETS),
            }
            world.ends[from].drain().unwrap();
            assert!(world.deliver(from).unwrap());
            assert!(world.ends[from].complete());
            world.ends[1 - from].drain().unwrap();
        }
    }
    assert_eq!(posted, [ROUND_TRIPS - 1; 2]);
    for end in &world.ends {
        assert_eq!(end.received_octets(), ROUND_TRIPS * LEN_OCTETS as usize);
    }
}

#[test]
fn lone_message_is_copied_by_the_call_that_receives_it() {
    const ROUND_TRIPS: usize = 20;
    let mut world = World::new(&Plan::quiet(10 * RING_OCTETS, LEN_OCTETS));
    for round_trip in 0..ROUND_TRIPS {
        for from in 0..2 {
            assert!(world.ends[1 - from].recv(LEN_OCTETS, true));
            world.ends[1 - from].drain().unwrap();
            world.ends[from].send(LEN_OCTETS);
            world.ends[from].drain().unwrap();
            assert!(world.deliver_at_once(from).unwrap());
            assert!(world.ends[from].complete());
            // The first one ends the direct phase.
            let is_done = round_trip > 0;
            world.ends[1 - from].expect_drained(is_done).unwrap();
            world.ends[1 - from].drain().unwrap();
        }
    }
    for end in &world.ends {
        assert_eq!(end.received_octets(), ROUND_TRIPS * LEN_OCTETS as usize);
        assert_eq!(end.received_at_once, ROUND_TRIPS - 1);
    }
}

#[test]
fn transfer_is_not_copied_at_once_behind_octets_or_into_a_part_of_a_receive() {
    let mut world = busy();
    // Behind octets for which there was no receive.
    assert!(world.deliver(0).unwrap());
    assert!(world.ends[1].recv(LEN_OCTETS, true));
    assert!(world.deliver_at_once(0).unwrap());
    world.ends[1].drain().unwrap();
    assert_eq!(world.ends[1].received_octets() as u64, LEN_OCTETS);
    // A receive that waits for more.
    assert!(world.ends[1].recv(3 * LEN_OCTETS, true));
    world.ends[1].drain().unwrap();
    assert!(world.deliver_at_once(0).unwrap());
    assert_eq!(world.ends[1].received_at_once, 0);
    // What is left of it.
    world.ends[1].drain().unwrap();
    assert!(world.deliver_at_once(0).unwrap());
    assert_eq!(world.ends[1].received_at_once, 1);
    world.ends[1].events().unwrap();
    assert_eq!(world.ends[1].received_octets() as u64, 4 * LEN_OCTETS);
}

#[test]
fn send_is_not_lone_behind_others_or_if_it_is_long() {
    let mut world = busy();
    let end = &mut world.ends[0];
    assert!(!end.send_at_once(LEN_OCTETS).unwrap());
    while world.deliver(0).unwrap() {}
    while world.ends[0].complete() {}
    let end = &mut world.ends[0];
    end.drain().unwrap();
    assert!(!end.send_at_once(RING_OCTETS).unwrap());
    assert!(!end.send_at_once(0).unwrap());
    assert!(end.send_at_once(LEN_OCTETS).unwrap());
    expect_received(&mut world, IN_PROGRESS + 1);
}

#[test]
fn short_receives_have_adverts_only_for_a_peer_that_needs_them() {
    for (choice, is_advertised) in [(Choice::Dynamic, false), (Choice::Direct, true)] {
        let mut plan = Plan::quiet(RING_OCTETS, LEN_OCTETS);
        plan.configs[0].choice = choice;
        let mut world = World::new(&plan);
        let end = &mut world.ends[1];
        assert!(end.recv(LEN_OCTETS, false));
        assert_eq!(end.transmit().unwrap(), is_advertised);
        // Receives are long on average from here on.
        assert!(end.recv(LONG_OCTETS, false));
        while end.transmit().unwrap() {}
        assert_eq!(world.stats()[1].adverts_sent, 2);
    }
}

#[test]
fn receives_of_4_kb_have_adverts_unless_many_are_queued() {
    const OCTETS: u64 = 4096;
    let mut plan = Plan::quiet(1 << 20, OCTETS);
    plan.configs[1].advert_min_octets = OCTETS;
    let mut world = World::new(&plan);
    let end = &mut world.ends[1];
    assert!(end.recv(OCTETS, true));
    assert!(end.transmit().unwrap());
    for _ in 0..32 {
        assert!(end.recv(OCTETS, true));
    }
    while end.transmit().unwrap() {}
    let advertised = world.stats()[1].adverts_sent;
    for _ in 0..32 {
        let end = &mut world.ends[1];
        assert!(end.recv(OCTETS, true));
        assert!(!end.transmit().unwrap());
    }
    assert_eq!(world.stats()[1].adverts_sent, advertised);
    // Twice as long ones have adverts in any case.
    let end = &mut world.ends[1];
    for _ in 0..32 {
        assert!(end.recv(3 * OCTETS, true));
    }
    assert!(end.transmit().unwrap());
}
