//! Calls that handlers of signals leave by siglongjmp, and sleeps in which threads are cancelled.

use std::fs::File;

use urdma_harness::process::wait_until;
use urdma_tests::rings::{at_the_end, client, compile, output, shell, status};
use urdma_tests::{alone, ports, OneHost, SHORT};

use crate::ENDS;

/// Octets by rings before the calls that are left: each end uses them.
const OCTETS: u64 = 1 << 17;
const JUMPS: u32 = 1000;
/// Connections without rings, whose sleeps are left.
const LEFT: u64 = 3;

/// A call that a handler has left does not count as in progress: the next connection with the
/// descriptor gets rings too.
#[test]
fn calls_that_handlers_leave_end_with_their_connection() {
    const CONNECTIONS: u64 = 3;
    let _alone = alone();
    let one = OneHost::up();
    let program = compile(one.scratch.path(), "jump");
    let port = ports();
    let connections = LEFT + CONNECTIONS;
    let mut server = shell(
        &one,
        &format!("python3 {ENDS} events {port} {connections} level"),
    );
    server.wait_for_text("ready", SHORT).unwrap();
    let begin = |number: u64| one.scratch.path().join(format!("begin-{number}"));
    let begins = (1..=CONNECTIONS).map(|number| begin(number).display().to_string());
    let begins = begins.collect::<Vec<_>>().join(" ");
    let user = shell(
        &one,
        &format!("{} {port} {JUMPS} {begins}", program.display()),
    );
    let observer = client(&one);
    for number in 1..=CONNECTIONS {
        let before = status(&observer).ring_octets;
        wait_until(&format!("rings of connection {number}"), SHORT, || {
            let now = status(&observer);
            now.joined == number && now.ring_octets > before + OCTETS
        })
        .unwrap();
        File::create(begin(number)).unwrap();
    }
    assert!(output(user).contains("done"));
    assert!(output(server).contains("served"));
    assert_eq!(at_the_end(&one).joined, CONNECTIONS);
    one.down();
}
