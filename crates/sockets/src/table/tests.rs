use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::*;
use crate::host::tests::{ends, socket};
use crate::lent::tests::{alone as alone_in_forks, Child};

/// A cell of no descriptor.
fn alone() -> Cell {
    let cell = Cell::new();
    cell.begin(0, false, lent::forks());
    cell
}

#[test]
fn call_sees_the_state_from_before_it_and_counts() {
    let cell = alone();
    assert_eq!(cell.enter().state(), State::Alone);
    assert_eq!(cell.enter().users(), 1);
    cell.leave();
    cell.leave();
    assert_eq!(cell.seen().users(), 0);
    assert_eq!(cell.seen().state(), State::Alone);
}

#[test]
fn change_is_refused_after_another_call_has_begun() {
    let cell = alone();
    let seen = cell.seen();
    cell.enter();
    assert!(!cell.change(seen, State::Rings));
    assert_eq!(cell.seen().state(), State::Alone);
}

#[test]
fn descriptor_is_the_kernels_when_the_last_call_has_ended() {
    let cell = alone();
    let before = cell.seen().generation();
    cell.enter();
    cell.enter();
    cell.end(false);
    cell.leave();
    assert_eq!(cell.seen().state(), State::Ending);
    cell.leave();
    assert_eq!(cell.seen().state(), State::Kernel);
    assert_eq!(cell.seen().generation(), before);
}

#[test]
fn closed_descriptor_has_another_generation_in_which_nothing_advances() {
    let cell = alone();
    let before = cell.seen().generation();
    cell.enter();
    cell.end(true);
    cell.leave();
    cell.begin(0, true, lent::forks());
    assert!(cell.is_accepted());
    assert!(cell.advance(before, State::Alone, State::Offered).is_none());
    let now = cell.seen().generation();
    assert!(cell.advance(now, State::Alone, State::Offered).is_some());
}

#[test]
fn paused_descriptor_is_offered_again_when_the_last_call_has_ended() {
    let cell = alone();
    assert_eq!(cell.count_call(true), 1);
    let generation = cell.seen().generation();
    cell.advance(generation, State::Alone, State::Offered);
    cell.enter();
    cell.enter();
    cell.pause();
    cell.leave();
    assert_eq!(cell.seen().state(), State::Pausing);
    cell.leave();
    assert_eq!(cell.seen().state(), State::Alone);
    assert_eq!(cell.count_call(true), 1);
}

#[test]
fn paused_descriptor_is_the_kernels_if_it_moves_to_tcp_for_good() {
    for is_first in [true, false] {
        let cell = alone();
        let generation = cell.seen().generation();
        cell.advance(generation, State::Alone, State::Offered);
        cell.enter();
        if is_first {
            cell.pause();
        }
        cell.end(false);
        if !is_first {
            cell.pause();
        }
        cell.leave();
        assert_eq!(cell.seen().state(), State::Kernel);
    }
}

#[test]
fn new_socket_is_the_kernels_while_a_call_on_the_earlier_one_is_in_progress() {
    let cell = alone();
    cell.enter();
    cell.enter();
    cell.end(true);
    cell.leave();
    cell.begin(0, false, lent::forks());
    assert_eq!(cell.seen().state(), State::Ending);
}

#[test]
fn calls_of_earlier_eras_do_not_count_in_a_later_one() {
    let cell = alone();
    let generation = cell.seen().generation();
    // More eras than their number has.
    for _ in 0..1 << 13 {
        let earlier = cell.enter();
        let seen = cell.seen();
        assert!(cell.exchange(seen, seen.with_next_era()));
        assert_eq!(cell.seen().users(), 0);
        let now = cell.enter();
        cell.leave_since(earlier);
        assert_eq!(cell.seen().users(), 1);
        cell.leave_since(now);
        assert_eq!(cell.seen().users(), 0);
    }
    assert_eq!(cell.seen().state(), State::Alone);
    assert_eq!(cell.seen().generation(), generation);
}

#[test]
fn connection_that_no_call_has_used_ends_before_the_calls_in_progress() {
    for is_paused in [false, true] {
        let cell = alone();
        let [connection, _peer] = ends().map(Arc::new);
        cell.enter();
        let generation = cell.seen().generation();
        give(&cell, &connection, State::Ready);
        cell.enter();
        if is_paused {
            cell.pause();
        } else {
            cell.end(true);
        }
        cell.leave();
        assert!(connection.with_socket(|| ()).is_none());
        assert_eq!(cell.seen().users(), 1);
        let closings = u64::from(!is_paused);
        assert_eq!(cell.seen().generation(), generation + closings);
    }
}

#[test]
fn generations_do_not_reach_into_the_state() {
    let cell = alone();
    let before = cell.seen().generation();
    for _ in 0..3 {
        cell.enter();
        cell.end(true);
        cell.leave();
        cell.begin(0, false, lent::forks());
    }
    assert_eq!(cell.seen().state(), State::Alone);
    assert_eq!(cell.seen().generation(), before + 6);
}

#[test]
fn socket_has_another_generation_than_one_that_was_the_kernels_when_it_was_closed() {
    let cell = alone();
    let before = cell.seen().generation();
    // It is shut down while it is offered, and closed.
    assert!(cell.advance(before, State::Alone, State::Offered).is_some());
    cell.enter();
    cell.end(false);
    cell.leave();
    assert_eq!(cell.seen().state(), State::Kernel);
    // The answer to the offer arrives when another socket of the number is offered.
    cell.begin(0, true, lent::forks());
    let now = cell.seen().generation();
    assert!(cell.advance(now, State::Alone, State::Offered).is_some());
    assert!(cell.advance(before, State::Offered, State::Waits).is_none());
}

/// Offers a socket whose cell is alone, and gives it rings.
fn give_rings(cell: &Cell, connection: &Arc<Connection>) {
    give(cell, connection, State::Rings);
}

fn give(cell: &Cell, connection: &Arc<Connection>, state: State) {
    let generation = cell.seen().generation();
    let offered = cell.advance(generation, State::Alone, State::Offered);
    assert!(offered.is_some());
    let before = cell.set_connection(Connection::into_raw(Arc::clone(connection)));
    assert!(before.is_null());
    assert!(cell.advance(generation, State::Offered, state).is_some());
}

#[test]
fn call_that_ends_late_leaves_the_connection_of_the_next_socket() {
    for is_paused in [false, true] {
        let cell = alone();
        let [before, now] = ends().map(Arc::new);
        give_rings(&cell, &before);
        cell.enter();
        if is_paused {
            cell.pause();
        } else {
            cell.end(true);
        }
        let seen = cell.count_out();
        // Another call begins and ends before this one goes on.
        cell.enter();
        cell.leave();
        if !is_paused {
            cell.begin(0, true, lent::forks());
        }
        give_rings(&cell, &now);
        cell.end_if_last(seen);
        assert!(cell.has(&now));
        assert!(now.with_socket(|| ()).is_some());
        assert!(before.with_socket(|| ()).is_none());
        // It is closed.
        cell.enter();
        cell.end(true);
        cell.leave();
        assert!(now.with_socket(|| ()).is_none());
    }
}

#[test]
fn socket_that_was_made_before_a_fork_and_noted_after_it_is_lent() {
    let _alone = alone_in_forks();
    let forks = lent::forks();
    let (socket, _peer, cell) = socket();
    let fd = socket.as_raw_fd();
    let child = Child::fork(&[]);
    cell.begin(fd, true, forks);
    assert!(cell.is_lent(fd));
    child.end();
}
