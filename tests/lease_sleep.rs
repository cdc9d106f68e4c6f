//! Two hosts joined by net_memif: a process that sleeps and has leased a queue is woken by the
//! interrupt of the queue and not by the clock.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::{LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::{wait_until, Process};
use urdma_tests::{alone, check, check_end, check_leased_alone, SHORT};

const HUGEPAGES: u64 = 512;

/// The numbers of epoll_wait, epoll_pwait and epoll_pwait2.
const EPOLL_WAITS: [&str; 3] = ["232", "281", "441"];
const PPOLL: &str = "271";
#[cfg(not(target_arch = "x86_64"))]
compile_error!("the numbers are those of x86-64");

fn entries(directory: String) -> impl Iterator<Item = PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten();
    found.flatten().map(|entry| entry.path())
}

/// Whether a thread of a process sleeps on a set of descriptors that has an eventfd, which is that
/// of the lease: the control threads' sets have none.
fn sleeps_on_eventfd(process: u32) -> bool {
    let sets = sets_with_eventfd(process);
    entries(format!("/proc/{process}/task")).any(|thread| {
        let call = fs::read_to_string(thread.join("syscall")).unwrap_or_default();
        let words: Vec<&str> = call.split_whitespace().collect();
        let [number, first, ..] = words[..] else {
            return false;
        };
        let Ok(first) = u64::from_str_radix(first.trim_start_matches("0x"), 16) else {
            return false;
        };
        match number {
            PPOLL => first_of_list(process, first).is_some_and(|set| sets.contains(&set)),
            number => EPOLL_WAITS.contains(&number) && sets.contains(&first),
        }
    })
}

/// The first descriptor of a list of poll(2) in the memory of a process.
fn first_of_list(process: u32, address: u64) -> Option<u64> {
    let memory = File::open(format!("/proc/{process}/mem")).ok()?;
    let mut octets = [0; 4];
    memory.read_exact_at(&mut octets, address).ok()?;
    u64::try_from(i32::from_ne_bytes(octets)).ok()
}

/// The sets of descriptors of a process that have an eventfd.
fn sets_with_eventfd(process: u32) -> Vec<u64> {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u64>().ok();
    let events: Vec<u64> = entries(format!("/proc/{process}/fd"))
        .filter(|path| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("[eventfd]"))
        })
        .filter_map(|path| number(&path))
        .collect();
    let is_event = |line: &str| {
        let member = line.strip_prefix("tfd:").map(str::trim_start);
        let member = member.and_then(|rest| rest.split(' ').next()?.parse().ok());
        member.is_some_and(|member: u64| events.contains(&member))
    };
    entries(format!("/proc/{process}/fdinfo"))
        .filter(|path| fs::read_to_string(path).is_ok_and(|text| text.lines().any(is_event)))
        .filter_map(|path| number(&path))
        .collect()
}

/// The sum of what was written to the eventfds of a process: it reads none of them.
fn interrupts(process: u32) -> u64 {
    let counts = entries(format!("/proc/{process}/fdinfo")).filter_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("eventfd-count:"))?;
        u64::from_str_radix(count.trim(), 16).ok()
    });
    counts.sum()
}

fn start(hosts: &TwoHosts, scratch: &Scratch) -> (Process, Process) {
    let start = |role, host| {
        check_end(
            "summon",
            role,
            host,
            LeasePolicy::Require,
            scratch.path(),
            &[1],
        )
        .unwrap()
    };
    let (mut asleep, mut other) = (start("server", &hosts.a), start("client", &hosts.b));
    asleep.wait_for_text("waiting", SHORT).unwrap();
    other.wait_for_text("ready", SHORT).unwrap();
    (asleep, other)
}

#[test]
fn lessee_that_sleeps_is_woken_by_the_interrupt_of_its_queue() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let _hugepages = Hugepages::reserve(HUGEPAGES).unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Leased(2), 1500).unwrap();
    let (mut asleep, other) = start(&hosts, &scratch);
    wait_until("asleep", SHORT, || sleeps_on_eventfd(asleep.id())).unwrap();
    let before = interrupts(asleep.id());
    other.signal(Signal::SIGUSR1).unwrap();
    asleep.wait_for_text("woken", SHORT).unwrap();
    assert!(interrupts(asleep.id()) > before);
    other.signal(Signal::SIGUSR1).unwrap();
    for end in [asleep, other] {
        let ended = end.wait(SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    hosts.down().unwrap();
}

#[test]
fn interrupt_wakes_the_thread_that_sleeps_and_not_the_background_thread_before_it() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let _hugepages = Hugepages::reserve(HUGEPAGES).unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Leased(2), 1500).unwrap();
    for scenario in ["sleep", "epoll", "poll", "select"] {
        check(
            scenario,
            &hosts.a,
            &hosts.b,
            LeasePolicy::Require,
            scratch.path(),
        );
    }
    hosts.down().unwrap();
}

#[test]
fn waits_of_a_lessee_are_as_those_of_other_processes() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let _hugepages = Hugepages::reserve(HUGEPAGES).unwrap();
    let hosts = TwoHosts::up(scratch.path(), Queues::Leased(2), 1500).unwrap();
    for scenario in ["sleeps", "sets", "unread", "cancel", "events"] {
        check_leased_alone(&hosts.a, LeasePolicy::Require, scenario);
    }
    hosts.down().unwrap();
}
