//! The number of instructions that the library of TCP over rings executes for connections that stay
//! with TCP, and for one that has rings, and the stand-in for those of a program without that
//! library, counted by valgrind. The test fails when a count grows by more than a twentieth. A
//! change that makes the way shorter, or longer for a reason, enters the new figure; doc/sockets.md
//! says what was there before.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{Instance, Scratch};
use urdma_perf::socket_instructions::counted;

/// Instructions of a connection, of a round trip, of a round trip that is excluded, of one over
/// rings, of an exchange over rings, and of a connection without `--sockets`.
const FIGURES: [f64; 6] = [904.0, 493.0, 240.0, 3_587.0, 721.0, 78.0];
const TOLERANCE: f64 = 0.05;

#[test]
fn instructions_of_connections_are_within_their_limits() {
    let scratch = Scratch::new("perf-socket-instructions").unwrap();
    let host = Instance::up(scratch.path(), "sockets", "127.0.0.1", "").unwrap();
    let counted = counted(&host);
    host.down().unwrap();
    let counted = counted.unwrap();
    println!("{counted:?}, figures {FIGURES:?}");
    let found = [
        counted.connection,
        counted.round_trip,
        counted.excluded_round_trip,
        counted.ring_round_trip,
        counted.ring_exchange,
        counted.standin_connection,
    ];
    for (found, figure) in found.into_iter().zip(FIGURES) {
        assert!(
            found <= figure * (1.0 + TOLERANCE),
            "{found:.0} instead of {figure}"
        );
    }
}
