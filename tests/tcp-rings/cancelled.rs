//! Threads that are cancelled in calls on connections with rings.

use std::fs::File;

use urdma_harness::process::wait_until;
use urdma_tests::rings::{at_the_end, client, compile, output, shell, status};
use urdma_tests::{alone, ports, OneHost, SHORT};

/// Octets by rings before the first thread is cancelled: each end uses them.
const OCTETS: u64 = 1 << 20;
const CANCELS: u32 = 400;

#[test]
fn threads_that_are_cancelled_lose_no_octets_and_hold_no_lock() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile(one.scratch.path(), "cancel");
    let program = program.display();
    let port = ports();
    let mut server = shell(&one, &format!("{program} listen {port}"));
    server.wait_for_text("ready", SHORT).unwrap();
    let begin = one.scratch.path().join("begin");
    let words = format!("connect {port} {} {CANCELS}", begin.display());
    let user = shell(&one, &format!("{program} {words}"));
    let observer = client(&one);
    let has_moved = || status(&observer).ring_octets > OCTETS;
    wait_until("octets by rings", SHORT, has_moved).unwrap();
    File::create(begin).unwrap();
    let [said, answered] = [user, server].map(output);
    let counts = |said: &str| -> Vec<u64> {
        let line = said.lines().find(|line| line.contains("sent")).unwrap();
        line.split(' ')
            .filter_map(|word| word.parse().ok())
            .collect()
    };
    let [sent, received] = [counts(&said), counts(&answered)];
    assert_eq!(sent, received.into_iter().rev().collect::<Vec<_>>());
    let moved = at_the_end(&one).ring_octets;
    assert!(moved > sent.iter().sum::<u64>() / 2, "{moved} of {sent:?}");
    one.down();
}
