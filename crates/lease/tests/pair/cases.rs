//! The test cases and the measurements.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::ExitCode;

use crate::child::Role;
use crate::host::Hosts;
use crate::secondary::{DPDK_VARIABLE, DRIVER_VARIABLE, PIN_VARIABLE};

type Case = (&'static str, fn(&mut Hosts));

const CASES: &[Case] = &[
    ("datagrams_of_every_size_pass_both_ways", every_size),
    (
        "attach_does_not_change_the_host_program_and_leases_can_be_opened_again",
        reopen,
    ),
    (
        "bad_routes_and_lengths_are_refused_and_cost_no_buffer",
        refusals,
    ),
    (
        "datagrams_beside_refused_and_discarded_ones_arrive_in_order",
        gaps,
    ),
    (
        "attach_without_a_primary_is_refused_with_a_message",
        no_primary,
    ),
    (
        "attach_to_a_primary_of_another_dpdk_is_refused_with_a_message",
        other_dpdk,
    ),
    ("buffers_of_a_process_that_ended_are_reclaimed", ended),
    (
        "buffers_of_a_killed_process_are_reclaimed_and_its_queue_works_again",
        killed,
    ),
    (
        "lease_outlives_the_peers_daemon_and_reaches_the_next_one",
        peer_restarted,
    ),
    (
        "datagram_for_a_process_that_sleeps_raises_an_interrupt",
        interrupted,
    ),
    ("process_that_polls_is_not_interrupted", polls_undisturbed),
    (
        "process_that_sleeps_is_interrupted_by_the_peers_next_daemon_too",
        interrupted_after_restart,
    ),
];

/// Runs the cases whose name contains `filter`.
pub(crate) fn run(filter: Option<&str>) -> ExitCode {
    let mut failed = 0;
    let mut hosts = Hosts::start();
    for way in ["in the rings", "by the driver"] {
        if way == "by the driver" {
            std::env::set_var(DRIVER_VARIABLE, "1");
        }
        for (name, case) in CASES {
            if filter.is_some_and(|filter| !name.contains(filter)) {
                continue;
            }
            let passed = catch_unwind(AssertUnwindSafe(|| case(&mut hosts))).is_ok();
            let outcome = if passed { "ok" } else { "FAILED" };
            println!("test {name}, {way} ... {outcome}");
            failed += u32::from(!passed);
        }
    }
    drop(hosts);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Whether packets go through the driver's burst functions and buffers of the queue's pool.
fn by_driver() -> bool {
    std::env::var_os(DRIVER_VARIABLE).is_some()
}

/// Lends queue 1 of both hosts to a secondary each.
fn pair(hosts: &mut Hosts) -> (Role, Role) {
    lend(&mut hosts.a);
    lend(&mut hosts.b);
    (hosts.secondary("a", 1, 1), hosts.secondary("b", 1, 1))
}

fn lend(host: &mut Role) {
    assert_eq!(host.ask("lend 1"), "lent 1023");
}

/// Reclaims queue 1; returns how many buffers were not in the pool before.
fn take_back(host: &mut Role) -> u32 {
    let answer = host.ask("take-back 1");
    let missing = answer.strip_prefix("back 1023 ");
    missing
        .unwrap_or_else(|| panic!("{answer}"))
        .parse()
        .unwrap()
}

fn end(hosts: &mut Hosts, pair: (Role, Role)) {
    pair.0.finish();
    pair.1.finish();
    take_back(&mut hosts.a);
    take_back(&mut hosts.b);
}

fn round_trips(a: &mut Role, b: &mut Role, count: usize, octets: u32) -> (f64, f64) {
    assert_eq!(b.ask(&format!("echo {count}")), "echoing");
    let answer = a.ask(&format!("ping {count} {octets}"));
    b.expect("echoed");
    let mut numbers = answer
        .split(' ')
        .skip(1)
        .map(|n| n.parse::<f64>().unwrap() / 1000.0);
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn every_size(hosts: &mut Hosts) {
    let (mut a, mut b) = pair(hosts);
    for octets in [0, 1, 18, 64, 1472, 2048, 4096, 8971, 8972] {
        round_trips(&mut a, &mut b, 200, octets);
        round_trips(&mut b, &mut a, 200, octets);
    }
    end(hosts, (a, b));
}

fn reopen(hosts: &mut Hosts) {
    // Every attach also compares the state of the host program: see `secondary.rs`.
    let (mut a, mut b) = pair(hosts);
    assert_eq!(a.ask("reopen"), format!("reopened {}", libc::EBUSY));
    round_trips(&mut a, &mut b, 10, 64);
    end(hosts, (a, b));
}

fn refusals(hosts: &mut Hosts) {
    let (mut a, b) = pair(hosts);
    assert_eq!(a.ask("refusals"), "refused");
    let all = if by_driver() {
        "held 1023"
    } else {
        "held 1024"
    };
    assert_eq!(a.ask("hold 2000"), all);
    end(hosts, (a, b));
}

fn gaps(hosts: &mut Hosts) {
    let (mut a, mut b) = pair(hosts);
    leave_gaps(&mut a, &mut b);
    leave_gaps(&mut b, &mut a);
    end(hosts, (a, b));
}

fn leave_gaps(from: &mut Role, to: &mut Role) {
    assert_eq!(from.ask("gaps"), "sent");
    assert_eq!(to.ask("collect 3"), "collected 1 4 6");
    round_trips(from, to, 10, 64);
}

fn no_primary(hosts: &mut Hosts) {
    let stranger = hosts.attach("absent", 1, 1);
    let line = stranger.line();
    assert!(line.starts_with("refused 2 no DPDK primary"), "{line}");
    stranger.finish();
    let unknown = hosts.attach("a", 9, 1);
    let line = unknown.line();
    assert!(
        line.starts_with("refused 2 cannot find the pool lease9"),
        "{line}"
    );
    unknown.finish();
}

fn other_dpdk(hosts: &mut Hosts) {
    std::env::set_var(DPDK_VARIABLE, "DPDK 1.2.3");
    let lessee = hosts.attach("a", 1, 1);
    std::env::remove_var(DPDK_VARIABLE);
    let line = lessee.line();
    let expected = format!("refused {} urdmad uses DPDK 1.2.3 and", libc::EPROTO);
    assert!(line.starts_with(&expected), "{line}");
    lessee.finish();
}

fn ended(hosts: &mut Hosts) {
    let (mut a, b) = pair(hosts);
    assert_eq!(a.ask("hold 100"), "held 100");
    a.finish();
    assert_eq!(take_back(&mut hosts.a), if by_driver() { 100 } else { 0 });
    b.finish();
    take_back(&mut hosts.b);
}

fn killed(hosts: &mut Hosts) {
    let mut lost = 0;
    for round in 0..10 {
        let (mut a, mut b) = pair(hosts);
        assert_eq!(a.ask("hold 10"), "held 10");
        for role in [&mut a, &mut b] {
            assert_eq!(role.ask("flood 10000"), "flooding");
        }
        std::thread::sleep(std::time::Duration::from_millis(50 + 7 * round));
        a.kill();
        lost += take_back(&mut hosts.a);
        // The queue works for the next process, while the peer's is unchanged.
        b.kill();
        take_back(&mut hosts.b);
    }
    assert!(
        lost >= 100 || !by_driver(),
        "the killed processes held buffers"
    );
    let (mut a, mut b) = pair(hosts);
    // Packets of the killed peer are still in the queues.
    for role in [&mut a, &mut b] {
        assert_eq!(role.ask("drain"), "drained");
    }
    round_trips(&mut a, &mut b, 200, 8972);
    end(hosts, (a, b));
}

fn peer_restarted(hosts: &mut Hosts) {
    let (mut a, mut b) = pair(hosts);
    round_trips(&mut a, &mut b, 10, 64);
    // It polls as long as its peer's daemon is away, however long that is: net_memif maps new
    // memory only in a process that has looked at the link while it was down.
    assert_eq!(a.ask("sink"), "sinking");
    b.kill();
    hosts.replace_b();
    lend(&mut hosts.b);
    let mut b = hosts.secondary("b", 1, 1);
    assert!(a.ask("stop").starts_with("sunk"));
    // The end of a link sets the positions in its rings back, so datagrams may arrive again.
    assert_eq!(a.ask("drain"), "drained");
    round_trips(&mut a, &mut b, 200, 8972);
    end(hosts, (a, b));
}

/// Has `to` sleep without a limit of its own until a datagram of `from` ends that.
fn expect_interrupt(from: &mut Role, to: &mut Role) {
    assert_eq!(to.ask("sleep"), "asleep");
    assert_eq!(from.ask("send"), "sent");
    to.expect("woken 1");
}

fn interrupted(hosts: &mut Hosts) {
    let (mut a, mut b) = pair(hosts);
    if by_driver() {
        assert_eq!(a.ask("sleep"), "no interrupts");
    } else {
        for _ in 0..100 {
            expect_interrupt(&mut a, &mut b);
            expect_interrupt(&mut b, &mut a);
        }
    }
    end(hosts, (a, b));
}

fn polls_undisturbed(hosts: &mut Hosts) {
    if by_driver() {
        return;
    }
    let (mut a, mut b) = pair(hosts);
    expect_interrupt(&mut a, &mut b);
    round_trips(&mut a, &mut b, 100, 64);
    assert_eq!(b.ask("interrupts"), "interrupts 0");
    // A process that was killed in its sleep leaves them unmasked.
    assert_eq!(b.ask("sleep"), "asleep");
    b.kill();
    take_back(&mut hosts.b);
    lend(&mut hosts.b);
    let mut b = hosts.secondary("b", 1, 1);
    round_trips(&mut a, &mut b, 100, 64);
    assert_eq!(b.ask("interrupts"), "interrupts 0");
    end(hosts, (a, b));
}

fn interrupted_after_restart(hosts: &mut Hosts) {
    if by_driver() {
        return;
    }
    let (mut a, mut b) = pair(hosts);
    assert_eq!(a.ask("doze"), "dozing");
    b.kill();
    hosts.replace_b();
    lend(&mut hosts.b);
    let mut b = hosts.secondary("b", 1, 1);
    assert_eq!(a.ask("stop"), "sunk 0");
    for role in [&mut a, &mut b] {
        assert_eq!(role.ask("drain"), "drained");
    }
    expect_interrupt(&mut a, &mut b);
    expect_interrupt(&mut b, &mut a);
    end(hosts, (a, b));
}

/// Prints round trips, bandwidth and attach times.
pub(crate) fn measure() -> ExitCode {
    let mut hosts = Hosts::start();
    let mut attach_ms = Vec::new();
    for _ in 0..15 {
        lend(&mut hosts.a);
        let role = hosts.attach("a", 1, 1);
        let line = role.line();
        let us: f64 = line.strip_prefix("attached ").unwrap().parse().unwrap();
        attach_ms.push(us / 1000.0);
        role.finish();
        take_back(&mut hosts.a);
    }
    attach_ms.sort_unstable_by(f64::total_cmp);
    println!(
        "attach: median {:.1} ms, worst {:.1} ms",
        attach_ms[7], attach_ms[14]
    );
    std::env::set_var(PIN_VARIABLE, "1");
    let (mut a, mut b) = pair(&mut hosts);
    for octets in [64, 1472, 8972] {
        let (median, late) = round_trips(&mut a, &mut b, 20_000, octets);
        println!("round trip of {octets} octets: median {median:.2} us, 99 % {late:.2} us");
    }
    assert_eq!(b.ask("sink"), "sinking");
    assert_eq!(a.ask("flood 2000"), "flooding");
    let flooded = a.line();
    let sunk = b.ask("stop");
    let count: f64 = sunk.strip_prefix("sunk ").unwrap().parse().unwrap();
    println!(
        "one way, 8972 octets: {:.1} Gb/s ({flooded}; {sunk})",
        count * 8972.0 * 8.0 / 2e9
    );
    end(&mut hosts, (a, b));
    ExitCode::SUCCESS
}
