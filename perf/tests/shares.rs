//! Queue pairs that share a link of the daemon: each has a share, and the wait for the link is
//! counted.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{binary_dir, Queues, Scratch, TwoHosts};
use urdma_perf::shares::SHARED;

#[test]
fn queue_pairs_that_share_a_link_have_shares_and_waits() {
    let scratch = Scratch::new("perf-shares").unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Forwarded, 9000).unwrap();
    let ends = Ok((&hosts.a, &hosts.b));
    let seen = SHARED[0].measure(ends, &binary_dir().unwrap(), scratch.path());
    hosts.down().unwrap();
    let [line, fairness, wait] = seen.map(|(_, sample)| sample.unwrap());
    // Writes that were outstanding at the start of the measurement complete in it, too: some
    // milliseconds of three seconds.
    assert!(line > 0.0 && line < 1.1, "{line}");
    assert!(fairness > 0.125 && fairness <= 1.0, "{fairness}");
    assert!(wait > 0.0, "{wait}");
}
