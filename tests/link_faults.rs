//! Programs over a link that loses, duplicates, delays, reorders, corrupts and marks packets:
//! urdmad's fault injection at its port.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::{Instance, LeasePolicy, Scratch};
use urdma_harness::process::wait_until;
use urdma_harness::programs;
use urdma_tests::{
    alone, check, check_operations, expect_all_taken_back, kill_one_end, mix_while, ports, run_all,
    stream, up_with_faults, SHORT,
};

/// Operations per end and fault: some thousand packets.
const OPERATIONS: u32 = 200;
/// Faults, injected one at a time, then all together: the option and the counter of each.
const FAULTS: [(&[&str], &str); 4] = [
    (&["--loss", "5%"], "lost"),
    (&["--duplicate", "10%"], "duplicated"),
    (&["--reorder", "10%", "--reorder-by", "1ms"], "reordered"),
    (&["--corrupt", "5%"], "corrupted"),
];

fn count(host: &Instance, direction: &str, name: &str) -> u64 {
    let status = host.status().unwrap();
    let count = status["faults"][direction]["counts"][name].as_u64();
    count.unwrap_or_else(|| panic!("no {name}: {status}"))
}

/// The counters of a host's processes.
fn processes_count(host: &Instance, name: &str) -> u64 {
    let status = host.status().unwrap();
    let slots = status["slots"].as_array().unwrap();
    let counts = slots.iter().map(|slot| &slot["report"]["counters"][name]);
    counts.filter_map(serde_json::Value::as_u64).sum()
}

fn rping([a, b]: &[Instance; 2]) {
    let job = programs::rping(ports(), a.address());
    run_all(&[job], a, b, LeasePolicy::Never);
}

#[test]
fn programs_do_not_notice_a_bad_link() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = up_with_faults(
        &scratch,
        "[fault]\nloss = \"2%\"\nduplicate = \"2%\"\n\
         reorder = \"2%\"\ncorrupt = \"1%\"\nseed = 3\n",
    );
    rping(&hosts);
    let [a, b] = &hosts;
    check("data", a, b, LeasePolicy::Never, scratch.path());
    for host in &hosts {
        for direction in ["inbound", "outbound"] {
            for name in ["lost", "duplicated", "reordered", "corrupted"] {
                assert!(count(host, direction, name) > 0, "{direction} {name}");
            }
        }
    }
    for host in hosts {
        host.down().unwrap();
    }
}

#[test]
fn every_octet_is_right_under_each_fault_and_all_of_them() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let [a, b] = up_with_faults(&scratch, "");
    let under = |options: &[&str], counters: &[&str]| {
        let said = b.fault(options).unwrap();
        assert!(said.succeeded(), "{}", said.describe());
        mix_while((&a, &b), scratch.path(), OPERATIONS, |_, _| ());
        for direction in ["inbound", "outbound"] {
            for counter in counters {
                assert!(count(&b, direction, counter) > 0, "{direction} {counter}");
            }
        }
    };
    for (options, counter) in FAULTS {
        under(options, &[counter]);
    }
    let all = FAULTS.map(|(options, _)| options).concat();
    under(&all, &FAULTS.map(|(_, counter)| counter));
    for host in [a, b] {
        let notes = host.status().unwrap()["port"]["notes"].to_string();
        assert!(notes.contains("wrong UDP checksums"), "{notes}");
        host.down().unwrap();
    }
}

/// As simulated by `crates/cm/tests/simulation.rs`, between two real processes: each of the
/// requests is answered in the time that doc/connections.md states, and nothing of any is left.
fn connect_over_a_bad_link(requests: u32) {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = up_with_faults(
        &scratch,
        "[fault]\nloss = \"10%\"\nduplicate = \"10%\"\nreorder = \"10%\"\nseed = 3\n",
    );
    let [a, b] = &hosts;
    check_operations("answers", (a, b), scratch.path(), requests);
    for direction in ["inbound", "outbound"] {
        for name in ["lost", "duplicated", "reordered"] {
            assert!(
                count(b, direction, name) > u64::from(requests / 10),
                "{direction} {name}"
            );
        }
    }
    for host in hosts {
        expect_all_taken_back(&host);
        host.down().unwrap();
    }
}

#[test]
fn each_of_a_thousand_connections_is_answered_over_a_bad_link() {
    connect_over_a_bad_link(1_000);
}

#[test]
#[ignore = "make test-all"]
fn each_of_ten_thousand_connections_is_answered_over_a_bad_link() {
    connect_over_a_bad_link(10_000);
}

#[test]
fn slow_link_is_shown_and_can_be_ended() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let hosts = up_with_faults(&scratch, "");
    let options = [
        "--delay",
        "1ms",
        "--rate",
        "1Gbit/s",
        "--queue",
        "300kB",
        "--mark",
        "20kB",
        "--direction",
        "out",
    ];
    for host in &hosts {
        let said = host.fault(&options).unwrap();
        assert!(said.succeeded(), "{}", said.describe());
        let expected = "faults   in  none\n\
                        faults   out delay 1ms, rate 1000000000 bit/s, queue 300000 B, \
                        marks from 20000 B, seed 0; of ";
        assert!(said.output.starts_with(expected), "{}", said.output);
    }
    rping(&hosts);
    assert!(count(&hosts[0], "outbound", "offered") > 100);
    let off = hosts[0].fault(&["--off"]).unwrap();
    assert_eq!(off.output, "faults   in  none\nfaults   out none\n");
    let wrong = hosts[0].fault(&["--loss", "1"]).unwrap();
    assert!(
        !wrong.succeeded() && wrong.output.contains("such as \"0.1%\""),
        "{}",
        wrong.output
    );
    for host in hosts {
        host.down().unwrap();
    }
}

#[test]
fn marks_that_the_link_makes_come_back_to_the_sender() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let [a, b] = up_with_faults(&scratch, "");
    let ends = stream(&a, &b, LeasePolicy::Never, scratch.path());
    for counter in ["congestion_marks", "congestion_echoes"] {
        assert_eq!(
            processes_count(&a, counter) + processes_count(&b, counter),
            0
        );
    }
    // Every packet in the queue is marked.
    let options = ["--delay", "1ms", "--rate", "100Mbit/s", "--mark", "1B"];
    let said = a.fault(&options).unwrap();
    assert!(said.succeeded(), "{}", said.describe());
    for (host, counter) in [(&a, "congestion_marks"), (&b, "congestion_echoes")] {
        wait_until(counter, SHORT, || processes_count(host, counter) > 0).unwrap();
    }
    assert!(count(&a, "inbound", "marked") > 0);
    assert!(count(&a, "inbound", "waited_ns") > 0);
    kill_one_end(ends, true);
    for host in [a, b] {
        host.down().unwrap();
    }
}
