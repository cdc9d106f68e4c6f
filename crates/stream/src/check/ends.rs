//! The end of a stream on a connection whose last acknowledgements are lost.

use super::world::{Plan, World};
use crate::CallError;

const LEN_OCTETS: u64 = 100;
const RING_OCTETS: u64 = 1000;

/// Passes everything on until nothing happens; work requests of end `lossy` do not complete.
fn run(world: &mut World, lossy: usize) {
    loop {
        let mut any = false;
        for index in 0..2 {
            let end = &mut world.ends[index];
            any |= end.copy().unwrap() | end.transmit().unwrap();
            any |= index != lossy && end.complete();
            end.events().unwrap();
            any |= world.deliver(index).unwrap();
        }
        if !any {
            return;
        }
    }
}

/// Each end sends and finishes, end `first` before the other; the completions of one are lost.
fn finish_without_completions(lossy: usize, first: usize) {
    let mut world = World::new(&Plan::quiet(RING_OCTETS, LEN_OCTETS));
    for end in &mut world.ends {
        assert!(end.recv(LEN_OCTETS, false));
        end.send(LEN_OCTETS);
    }
    for index in [first, 1 - first] {
        world.ends[index].stream.finish().unwrap();
        run(&mut world, lossy);
    }
    for end in &world.ends {
        assert!(end.closed, "{end:?}");
        assert_eq!((end.open_sends(), end.open_recvs()), (0, 0));
    }
    assert!(world.ends[1 - lossy].stream.is_settled());
    world.compare([true; 2]).unwrap();
}

#[test]
fn finish_that_is_received_and_not_acknowledged_closes_both_ends() {
    for lossy in 0..2 {
        for first in 0..2 {
            finish_without_completions(lossy, first);
        }
    }
}

/// What is closed by end 0 while its octets are in the ring of end 1; `is_known`: end 0 has end 1's
/// FINISH before the connection ends.
fn close_before_receives(is_known: bool) {
    let mut world = World::new(&Plan::quiet(RING_OCTETS, LEN_OCTETS));
    for _ in 0..3 {
        world.ends[0].send(LEN_OCTETS);
    }
    world.ends[0].stream.close().unwrap();
    if is_known {
        run(&mut world, 2);
    } else {
        while world.ends[0].transmit().unwrap() {}
        while world.deliver(0).unwrap() {}
        world.ends[1].events().unwrap();
    }
    world.disconnect().unwrap();
    assert_eq!(world.ends[0].closed, is_known);
    assert!(!world.ends[1].closed);
    while !world.ends[1].end_of_stream {
        let end = &mut world.ends[1];
        assert!(end.recv(LEN_OCTETS - 1, false), "{end:?}");
        end.copy().unwrap();
        end.events().unwrap();
    }
    let end = &world.ends[1];
    assert!(end.closed && end.failed.is_none(), "{end:?}");
    let refused = world.ends[1].stream.send(1, ());
    assert_eq!(refused, Err((CallError::Finished, ())));
    world.compare([false, is_known]).unwrap();
}

#[test]
fn octets_in_the_ring_are_received_after_the_peer_has_closed() {
    close_before_receives(true);
    close_before_receives(false);
}
