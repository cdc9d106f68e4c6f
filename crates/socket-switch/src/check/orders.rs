//! Orders of events that random schedules seldom meet.

use std::cell::RefCell;
use std::future::Future;
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::world::{Caller, World};
use super::Rng;
use crate::{
    demote, is_over, join, peek, recv, send, settle, Demotion, End, Over, Owner, Taken, Word,
};

/// Runs a call until it returns or sleeps.
fn run<T>(caller: &Caller, call: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    run_for(u32::MAX, caller, call)
}

/// The same, for a number of `accesses` at most.
fn run_for<T>(
    accesses: u32,
    caller: &Caller,
    mut call: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..accesses {
        if !caller.world.borrow().is_runnable(caller.owner) {
            break;
        }
        if let Poll::Ready(value) = call.as_mut().poll(&mut context) {
            return Some(value);
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
        run(end, pin!(join(end))).unwrap();
    }
    (world, reader, sender)
}

#[test]
fn demotions_of_one_end_that_meet_an_empty_ring_all_end() {
    let world = Rc::new(RefCell::new(World::new(Rng::new(1))));
    let [first, second, reader] = [1, 2, 3].map(|owner| caller(&world, End::First, owner));
    let sender = caller(&world, End::Second, 4);
    for end in [&first, &sender] {
        run(end, pin!(join(end))).unwrap();
    }
    assert_eq!(run(&sender, pin!(send(&sender, 1, true))), Some(Ok(1)));
    let mut waiting = pin!(demote(&first));
    assert_eq!(run(&first, waiting.as_mut()), None);
    // The agent of the peer does not run before another thread has emptied the ring.
    let taken = run(&reader, pin!(recv(&reader, 1, true)));
    assert_eq!(taken, Some(Taken::Octets(1)));
    assert_eq!(run(&second, pin!(demote(&second))), Some(Demotion::Done));
    assert_eq!(run(&first, waiting), Some(Demotion::Done));
}

#[test]
fn receiver_that_does_not_wait_is_not_woken() {
    let (world, reader, sender) = reader_and_sender();
    let look = || run(&reader, pin!(recv(&reader, 1, false)));
    assert_eq!(look(), Some(Taken::Nothing));
    let asked = world.borrow_mut().word(Word::ReaderSleeps(End::Second));
    assert_eq!(asked, 0);
    assert_eq!(run(&sender, pin!(send(&sender, 1, true))), Some(Ok(1)));
    assert_eq!(look(), Some(Taken::Octets(1)));
    assert_eq!(look(), Some(Taken::Nothing));
}

/// A receive that does not wait, and that was told that the ring has octets. They are handed back
/// after `steps` accesses. Returns what it has found, unless it ends before.
fn recv_beside_hand_back(steps: u32, is_drained: bool) -> Option<Taken> {
    let (world, reader, sender) = reader_and_sender();
    if is_drained {
        run(&sender, pin!(send(&sender, 1, true))).unwrap().unwrap();
        run(&reader, pin!(recv(&reader, 1, true))).unwrap();
    }
    run(&sender, pin!(send(&sender, 1, true))).unwrap().unwrap();
    let mut receive = pin!(recv(&reader, 1, false));
    if run_for(steps, &reader, receive.as_mut()).is_some() {
        return None;
    }
    let mut hand_back = pin!(settle(&sender));
    while run_for(100, &sender, hand_back.as_mut()).is_none() {
        // The receive has the lock of the readers.
        let taken = run_for(1, &reader, receive.as_mut());
        if taken.is_some() {
            return taken;
        }
    }
    world.borrow_mut().tcp.carry(End::Second, 1);
    run(&reader, receive)
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
    run(&sender, pin!(send(&sender, 1, true))).unwrap().unwrap();
    // The reader was told that the ring has an octet.
    run(&sender, pin!(settle(&sender))).unwrap();
    let mut receive = pin!(recv(&reader, 1, false));
    assert_eq!(run_for(50, &reader, receive.as_mut()), None);
    world.borrow_mut().tcp.carry(End::Second, 1);
    assert_eq!(run(&reader, receive), Some(Taken::Octets(1)));
    assert_eq!(
        run(&reader, pin!(recv(&reader, 1, false))),
        Some(Taken::Nothing)
    );
}

#[test]
fn receive_takes_octets_of_the_ring_after_those_that_are_on_their_way() {
    for does_wait in [false, true] {
        let (world, reader, sender) = reader_and_sender();
        let send_one = |may_upgrade| run(&sender, pin!(send(&sender, 1, may_upgrade)));
        assert_eq!(send_one(false), Some(Ok(1)));
        assert_eq!(send_one(true), Some(Ok(1)));
        assert_eq!(world.borrow().in_ring(End::Second), 1);
        let mut receive = pin!(recv(&reader, 2, does_wait));
        assert_eq!(run_for(100, &reader, receive.as_mut()), None);
        world.borrow_mut().tcp.carry(End::Second, 1);
        assert_eq!(run(&reader, receive), Some(Taken::Octets(1)));
        let rest = run(&reader, pin!(recv(&reader, 2, false)));
        assert_eq!(rest, Some(Taken::Octets(1)));
        // The octets were those that were sent first and second.
        assert!(world.borrow().finding.is_none());
    }
}

/// A receive that does not wait, which begins `steps` accesses after an octet, of which it was
/// told, began to be handed back. Returns what it has found, unless that has ended before.
fn recv_in_hand_back(steps: u32) -> Option<Taken> {
    let (world, reader, sender) = reader_and_sender();
    run(&sender, pin!(send(&sender, 1, true))).unwrap().unwrap();
    run(&reader, pin!(recv(&reader, 1, true))).unwrap();
    run(&sender, pin!(send(&sender, 1, true))).unwrap().unwrap();
    let mut hand_back = pin!(settle(&sender));
    if run_for(steps, &sender, hand_back.as_mut()).is_some() {
        return None;
    }
    let mut receive = pin!(recv(&reader, 1, false));
    let mut is_done = false;
    loop {
        if let Some(taken) = run_for(20, &reader, receive.as_mut()) {
            return Some(taken);
        }
        is_done = is_done || run_for(1, &sender, hand_back.as_mut()).is_some();
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
    run(&sender, pin!(send(&sender, 1, true))).unwrap().unwrap();
    run(&sender, pin!(settle(&sender))).unwrap();
    let mut look = pin!(peek(&reader, 1, false));
    assert_eq!(run_for(50, &reader, look.as_mut()), None);
    world.borrow_mut().tcp.carry(End::Second, 1);
    assert_eq!(run(&reader, look), Some(Taken::Octets(1)));
}

#[test]
fn ring_whose_octets_are_handed_back_is_not_empty_while_tcp_is_quiet() {
    let (world, reader, sender) = reader_and_sender();
    let send_one = || run(&sender, pin!(send(&sender, 1, true)));
    send_one().unwrap().unwrap();
    run(&reader, pin!(recv(&reader, 1, true))).unwrap();
    assert!(world.borrow().block.is_tcp_quiet(End::Second));
    send_one().unwrap().unwrap();
    let mut hand_back = pin!(settle(&sender));
    while run_for(1, &sender, hand_back.as_mut()).is_none() {
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
    let mut sending = pin!(send(&sender, 1, true));
    if run_for(steps, &sender, sending.as_mut()).is_some() {
        return None;
    }
    let mut demotion = pin!(demote(&peer));
    run_for(100, &peer, demotion.as_mut());
    let over = run(&agent, pin!(is_over(&agent))).unwrap();
    run(&sender, sending).unwrap().unwrap();
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
