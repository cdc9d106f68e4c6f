//! Connections that forked processes have had together.

use urdma_harness::process::wait_until;
use urdma_tests::rings::{are_offered_at_once, at_the_end, client, output, shell, status};
use urdma_tests::{alone, ports, OneHost, SHORT};

use super::end;

const FORKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tcp-rings/forks.py");
const TRIPS: u64 = 300;

/// Round trips with a server that forks, for each way; returns the octets that rings carried.
fn carried(way: &str, meets: bool) -> u64 {
    let one = OneHost::up();
    let port = ports();
    let mut server = shell(&one, &format!("python3 {FORKS} {port} {way} {way}"));
    server.wait_for_text("ready", SHORT).unwrap();
    let observer = client(&one);
    for number in 1..=2 {
        let before = status(&observer).joined;
        let asking = if meets {
            let begin = one.scratch.path().join(format!("begin-{number}"));
            let asking = end(
                &one,
                &format!("ping {port} {TRIPS} {} /dev/null", begin.display()),
            );
            let have_met = || status(&observer).joined > before;
            wait_until("the meeting", SHORT, have_met).unwrap_or_else(|e| panic!("{way}: {e}"));
            std::fs::File::create(begin).unwrap();
            asking
        } else {
            end(&one, &format!("ping {port} {TRIPS} /dev/null /dev/null"))
        };
        assert!(output(asking).contains("done"), "{way}");
    }
    assert!(output(server).contains("served"), "{way}");
    let status = at_the_end(&one);
    one.down();
    status.ring_octets
}

#[test]
fn process_that_is_left_a_connection_has_rings() {
    let _alone = alone();
    for way in ["plain", "forking_later", "given_back", "killed"] {
        // Two clients, twice as many round trips, both ways. A meeting takes some. Connections
        // that are offered at once meet before the fork or during it: then they stay with TCP.
        let octets = carried(way, true);
        let least = 2 * 2 * 2 * TRIPS * 64 / 2;
        assert!(are_offered_at_once() || octets >= least, "{way}: {octets}");
    }
    carried("quick", false);
}

#[test]
fn process_that_shares_a_connection_stays_with_tcp() {
    let _alone = alone();
    for way in ["forking_again", "copied", "watched", "kept", "twins"] {
        // What is sent before the fork may go over rings if connections are offered at once.
        let octets = carried(way, false);
        assert!(are_offered_at_once() || octets == 0, "{way}: {octets}");
    }
}

#[test]
fn forks_leave_no_descriptors_and_no_memory() {
    let _alone = alone();
    carried("many", false);
}
