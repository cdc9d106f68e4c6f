//! The end of a stream on a connection whose last acknowledgements are lost.

use super::world::{Ending, Plan, World};
use crate::Config;

const LEN_OCTETS: u64 = 100;

fn plan() -> Plan {
    Plan {
        configs: [Config::default(); 2],
        rings: [1000; 2],
        longest: LEN_OCTETS,
        waitall_percent: 0,
        cancel_percent: 0,
        ending: Ending::Later,
        fault: None,
        early_immediates: false,
    }
}

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
    let mut world = World::new(&plan());
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
    world.compare(true).unwrap();
}

#[test]
fn finish_that_is_received_and_not_acknowledged_closes_both_ends() {
    for lossy in 0..2 {
        for first in 0..2 {
            finish_without_completions(lossy, first);
        }
    }
}
