//! Orders of events that random schedules seldom meet.

use std::cell::RefCell;
use std::rc::Rc;

use super::world::{Caller, InProgress, Turns, World};
use super::Rng;
use crate::{
    demote, is_over, join, peek, recv, send, settle, Demotion, End, Over, Owner, Sent, Taken, Word,
};

/// Runs a call until it returns or sleeps.
fn run<T: 'static>(caller: &Caller, call: impl FnOnce(&Turns<'_>) -> T + 'static) -> Option<T> {
    go_on(caller, &mut caller.start(call))
}

/// Goes on with a call until it returns or sleeps.
fn go_on<T>(caller: &Caller, call: &mut InProgress<T>) -> Option<T> {
    go_on_for(u32::MAX, caller, call)
}

/// The same, for a number of `accesses` at most.
fn go_on_for<T>(accesses: u32, caller: &Caller, call: &mut InProgress<T>) -> Option<T> {
    for _ in 0..accesses {
        if !caller.world.borrow().is_runnable(caller.owner) {
            break;
        }
        if let Some(returned) = call.run() {
            return Some(returned);
        }
    }
    None
}

fn caller(world: &Rc<RefCell<World>>, end: End, owner: u64) -> Caller {
    let owner = Owner(owner);
    world.borrow_mut().start_thread(owner, end);
    Caller {
        world: world.clone(),
        end,
        owner,
    }
}

/// A thread of each end, both of which have joined.
fn reader_and_sender() -> (Rc<RefCell<World>>, Caller, Caller) {
    let world = Rc::new(RefCell::new(World::new(Rng::new(1))));
    let reader = caller(&world, End::First, 1);
    let sender = caller(&world, End::Second, 2);
    for end in [&reader, &sender] {
        run(end, |h| join(h)).unwrap();
    }
    (world, reader, sender)
}

#[test]
fn demotions_of_one_end_that_meet_an_empty_ring_all_end() {
    let world = Rc::new(RefCell::new(World::new(Rng::new(1))));
    let [first, second, reader] = [1, 2, 3].map(|owner| caller(&world, End::First, owner));
    let sender = caller(&world, End::Second, 4);
    for end in [&first, &sender] {
        run(end, |h| join(h)).unwrap();
    }
    assert_eq!(
        run(&sender, |h| send(h, 1, true).unwrap()),
        Some(Sent::Octets(1))
    );
    let mut waiting = first.start(|h| demote(h).unwrap());
    assert_eq!(go_on(&first, &mut waiting), None);
    // The agent of the peer does not run before another thread has emptied the ring.
    let taken = run(&reader, |h| recv(h, 1, true).unwrap());
    assert_eq!(taken, Some(Taken::Octets(1)));
    assert_eq!(run(&second, |h| demote(h).unwrap()), Some(Demotion::Done));
    assert_eq!(go_on(&first, &mut waiting), Some(Demotion::Done));
}

#[test]
fn receiver_that_does_not_wait_is_not_woken() {
    let (world, reader, sender) = reader_and_sender();
    let look = || run(&reader, |h| recv(h, 1, false).unwrap());
    assert_eq!(look(), Some(Taken::Nothing));
    let asked = world.borrow_mut().word(Word::ReaderSleeps(End::Second));
    assert_eq!(asked, 0);
    assert_eq!(
        run(&sender, |h| send(h, 1, true).unwrap()),
        Some(Sent::Octets(1))
    );
    assert_eq!(look(), Some(Taken::Octets(1)));
    assert_eq!(look(), Some(Taken::Nothing));
}

/// A receive that does not wait, and that was told that the ring has octets. They are handed back
/// after `steps` accesses. Returns what it has found, unless it ends before.
fn recv_beside_hand_back(steps: u32, is_drained: bool) -> Option<Taken> {
    let (world, reader, sender) = reader_and_sender();
    if is_drained {
        run(&sender, |h| send(h, 1, true).unwrap()).unwrap();
        run(&reader, |h| recv(h, 1, true).unwrap()).unwrap();
    }
    run(&sender, |h| send(h, 1, true).unwrap()).unwrap();
    let mut receive = reader.start(|h| recv(h, 1, false).unwrap());
    if go_on_for(steps, &reader, &mut receive).is_some() {
        return None;
    }
    let mut hand_back = sender.start(|h| settle(h).unwrap());
    while go_on_for(100, &sender, &mut hand_back).is_none() {
        // The receive has the lock of the readers.
        let taken = go_on_for(1, &reader, &mut receive);
        if taken.is_some() {
            return taken;
        }
    }
    world.borrow_mut().tcp.carry(End::Second, 1);
    go_on(&reader, &mut receive)
}

#[test]
fn receiver_that_does_not_wait_finds_octets_that_are_handed_back_meanwhile() {
    for is_drained in [false, true] {
        let found: Vec<Taken> = (0..)
            .map_while(|steps| recv_beside_hand_back(steps, is_drained))
            .collect();
        assert!(found.len() > 3, "{found:?}");
        let is_octet = |taken: &Taken| *taken == Taken::Octets(1);
        assert!(found.iter().all(is_octet), "{is_drained} {found:?}");
    }
}

#[test]
fn receiver_that_does_not_wait_finds_octets_that_tcp_carries_late() {
    let (world, reader, sender) = reader_and_sender();
    run(&sender, |h| send(h, 1, true).unwrap()).unwrap();
    // The reader was told that the ring has an octet.
    run(&sender, |h| settle(h).unwrap()).unwrap();
    let mut receive = reader.start(|h| recv(h, 1, false).unwrap());
    assert_eq!(go_on_for(50, &reader, &mut receive), None);
    world.borrow_mut().tcp.carry(End::Second, 1);
    assert_eq!(go_on(&reader, &mut receive), Some(Taken::Octets(1)));
    assert_eq!(
        run(&reader, |h| recv(h, 1, false).unwrap()),
        Some(Taken::Nothing)
    );
}

#[test]
fn receive_takes_octets_of_the_ring_after_those_that_are_on_their_way() {
    for does_wait in [false, true] {
        let (world, reader, sender) = reader_and_sender();
        let send_one = |may_upgrade| run(&sender, move |h| send(h, 1, may_upgrade).unwrap());
        assert_eq!(send_one(false), Some(Sent::Octets(1)));
        assert_eq!(send_one(true), Some(Sent::Octets(1)));
        assert_eq!(world.borrow().in_ring(End::Second), 1);
        let mut receive = reader.start(move |h| recv(h, 2, does_wait).unwrap());
        assert_eq!(go_on_for(100, &reader, &mut receive), None);
        world.borrow_mut().tcp.carry(End::Second, 1);
        assert_eq!(go_on(&reader, &mut receive), Some(Taken::Octets(1)));
        let rest = run(&reader, |h| recv(h, 2, false).unwrap());
        assert_eq!(rest, Some(Taken::Octets(1)));
        // The octets were those that were sent first and second.
        assert!(world.borrow().finding.is_none());
    }
}

/// A receive that does not wait, which begins `steps` accesses after an octet, of which it was
/// told, began to be handed back. Returns what it has found, unless that has ended before.
fn recv_in_hand_back(steps: u32) -> Option<Taken> {
    let (world, reader, sender) = reader_and_sender();
    run(&sender, |h| send(h, 1, true).unwrap()).unwrap();
    run(&reader, |h| recv(h, 1, true).unwrap()).unwrap();
    run(&sender, |h| send(h, 1, true).unwrap()).unwrap();
    let mut hand_back = sender.start(|h| settle(h).unwrap());
    if go_on_for(steps, &sender, &mut hand_back).is_some() {
        return None;
    }
    let mut receive = reader.start(|h| recv(h, 1, false).unwrap());
    let mut is_done = false;
    loop {
        if let Some(taken) = go_on_for(20, &reader, &mut receive) {
            return Some(taken);
        }
        is_done = is_done || go_on_for(1, &sender, &mut hand_back).is_some();
        if is_done {
            world.borrow_mut().tcp.carry(End::Second, 1);
        }
    }
}

#[test]
fn receiver_that_does_not_wait_finds_octets_that_are_being_handed_back() {
    let found: Vec<Taken> = (0..).map_while(recv_in_hand_back).collect();
    assert!(found.len() > 3, "{found:?}");
    let is_octet = |taken: &Taken| *taken == Taken::Octets(1);
    assert!(found.iter().all(is_octet), "{found:?}");
}

#[test]
fn look_that_does_not_wait_finds_octets_that_tcp_carries_late() {
    let (world, reader, sender) = reader_and_sender();
    run(&sender, |h| send(h, 1, true).unwrap()).unwrap();
    run(&sender, |h| settle(h).unwrap()).unwrap();
    let mut look = reader.start(|h| peek(h, 1, false).unwrap());
    assert_eq!(go_on_for(50, &reader, &mut look), None);
    world.borrow_mut().tcp.carry(End::Second, 1);
    assert_eq!(go_on(&reader, &mut look), Some(Taken::Octets(1)));
}

#[test]
fn ring_whose_octets_are_handed_back_is_not_empty_while_tcp_is_quiet() {
    let (world, reader, sender) = reader_and_sender();
    let send_one = || run(&sender, |h| send(h, 1, true).unwrap());
    send_one().unwrap();
    run(&reader, |h| recv(h, 1, true).unwrap()).unwrap();
    assert!(world.borrow().block.is_tcp_quiet(End::Second));
    send_one().unwrap();
    let mut hand_back = sender.start(|h| settle(h).unwrap());
    while go_on_for(1, &sender, &mut hand_back).is_none() {
        let world = world.borrow();
        let is_empty = world.block.in_ring(End::Second) == 0;
        assert!(!(is_empty && world.block.is_tcp_quiet(End::Second)));
    }
}

/// An agent looks at a connection whose peer refuses rings, while a send of its end has made
/// `steps` accesses. Returns what it has seen, and whether the send has used the ring since, unless
/// the send ends before.
fn over_beside_send(steps: u32) -> Option<(Over, bool)> {
    let (world, sender, peer) = reader_and_sender();
    let agent = caller(&world, End::First, 3);
    let mut sending = sender.start(|h| send(h, 1, true).unwrap());
    if go_on_for(steps, &sender, &mut sending).is_some() {
        return None;
    }
    let mut demotion = peer.start(|h| demote(h).unwrap());
    go_on_for(100, &peer, &mut demotion);
    let over = run(&agent, |h| is_over(h)).unwrap();
    go_on(&sender, &mut sending).unwrap();
    let is_used = world.borrow().word(Word::Mode(End::First)) != 0;
    Some((over, is_used))
}

#[test]
fn connection_is_not_over_while_a_send_may_use_its_ring() {
    let seen: Vec<(Over, bool)> = (0..).map_while(over_beside_send).collect();
    assert!(seen.iter().any(|(_, is_used)| *is_used), "{seen:?}");
    assert!(seen.contains(&(Over::Yes, false)), "{seen:?}");
    assert!(!seen.contains(&(Over::Yes, true)), "{seen:?}");
}
