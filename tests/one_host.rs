//! One host without a port: Debian's programs and `verbs-check` over shared memory.
#![allow(clippy::unwrap_used)]

use urdma_harness::instance::LeasePolicy;
use urdma_harness::programs;
use urdma_tests::{
    alone, check_on_one_host, expect_all_taken_back, leave_in_every_way, ports, print_of, run_all,
    Busy, OneHost,
};

#[test]
fn devices_through_run_show_an_active_port() {
    let _alone = alone();
    let one = OneHost::up();
    assert!(print_of(&one.host, &["ibv_devices"]).contains("urdma0"));
    let info = print_of(&one.host, &["ibv_devinfo", "-v"]);
    for expected in [
        "PORT_ACTIVE",
        "Ethernet",
        "::ffff:127.0.0.1, RoCE v2",
        "ATOMIC_HCA",
    ] {
        assert!(info.contains(expected), "no {expected} in\n{info}");
    }
    one.down();
}

#[test]
fn rdma_of_iproute2_shows_the_device_and_its_port() {
    let _alone = alone();
    let one = OneHost::up();
    let print = |words: &[&str]| print_of(&one.host, words);
    let link: serde_json::Value =
        serde_json::from_str(&print(&["rdma", "link", "show", "-j"])).unwrap();
    assert_eq!(link[0]["ifname"], "urdma0");
    assert_eq!(link[0]["port"], 1);
    assert_eq!(link[0]["state"], "ACTIVE");
    assert_eq!(link[0]["netdev"], "lo");
    let guid = print(&["cat", "/sys/class/infiniband/urdma0/node_guid"]);
    for (words, expected) in [
        (&["rdma", "dev", "show"][..], guid.trim()),
        (&["rdma", "dev", "show", "urdma0"], "node_type ca"),
        (
            &["rdma", "link", "show", "urdma0/1"],
            "physical_state LINK_UP",
        ),
        (&["rdma", "resource", "show"], "urdma0"),
        (&["rdma", "system", "show"], "netns shared"),
    ] {
        let text = print(words);
        assert!(
            text.contains(expected),
            "{words:?}: no {expected} in\n{text}"
        );
    }
    one.down();
}

#[test]
fn programs_on_one_host_pass() {
    let _alone = alone();
    let one = OneHost::up();
    let jobs = programs::main_job(ports(), one.host.address());
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

#[test]
fn random_operations_move_every_octet() {
    check_on_one_host(&["data", "mix"]);
}

// Regression: the responder ended with SIGSEGV.
#[test]
fn memory_that_is_unmapped_while_it_is_registered_is_accessed_as_with_a_nic() {
    check_on_one_host(&["unmapped"]);
}

#[test]
fn faults_of_a_program_reach_its_handlers_or_end_it() {
    check_alone("segv");
}

#[test]
fn forbidden_access_fails_both_ends_and_writes_nothing() {
    check_on_one_host(&[
        "wrong-rkey",
        "bounds",
        "wrap",
        "foreign-pd",
        "no-remote-write",
        "no-remote-read",
        "no-remote-atomic",
        "wrong-lkey",
    ]);
}

#[test]
fn receive_queue_short_or_empty_ends_as_verbs_say() {
    check_on_one_host(&["long-message", "slow-receiver", "rnr-late", "rnr-never"]);
}

// Regression: every second unsignaled message, and nearly every one whose receiver called _exit,
// ended with RETRY_EXC.
#[test]
fn receiver_that_leaves_with_a_completion_fails_neither_its_sender_nor_an_idle_peer() {
    let _alone = alone();
    let one = OneHost::up();
    let _busy = Busy::start();
    leave_in_every_way(&one.host, &one.host, LeasePolicy::Never, one.scratch.path());
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn end_of_a_server_is_an_event_of_rdma_cm_alone() {
    check_alone("departures");
}

#[test]
fn full_queue_refuses_and_loses_nothing() {
    check_on_one_host(&["full"]);
}

/// Runs a single-process check of `verbs-check`.
fn check_alone(scenario: &str) {
    check_alone_at(&["127.0.0.1"], scenario);
}

/// The same on a host with these addresses.
fn check_alone_at(addresses: &[&str], scenario: &str) {
    let _alone = alone();
    check_alone_on(OneHost::up_at(addresses), scenario);
}

fn check_alone_on(one: OneHost, scenario: &str) {
    urdma_tests::check_alone(&one.host, scenario);
    one.down();
}

#[test]
fn limits_hold_exactly_where_the_device_says() {
    check_alone("limits");
}

#[test]
fn datagrams_arrive_with_addresses_that_can_be_answered() {
    check_alone("datagram");
}

#[test]
fn events_states_and_fork_are_as_the_man_pages_have_them() {
    check_alone("events");
}

#[test]
fn requests_of_every_shape_do_what_they_say_and_the_first_bad_one_is_named() {
    check_alone("requests");
}

#[test]
fn requests_that_a_service_does_not_have_are_taken_and_fail() {
    check_alone("services");
}

// Regression: glibc's unwinding of a cancelled thread reached a Rust frame, which aborted the
// process.
#[test]
fn thread_that_is_cancelled_in_a_call_ends_alone() {
    check_alone("cancel");
}

#[test]
fn message_wakes_the_thread_that_sleeps_and_not_the_background_thread_before_it() {
    check_on_one_host(&["sleep", "epoll", "poll", "poll-set", "select"]);
}

#[test]
fn message_of_connection_management_wakes_the_thread_that_sleeps_alone() {
    check_alone("connects");
}

#[test]
fn message_that_raises_an_asynchronous_event_wakes_the_thread_that_sleeps_alone() {
    check_alone("async");
}

#[test]
fn wait_on_descriptors_returns_what_epoll_wait_poll_and_select_return() {
    check_alone("sets");
    check_alone("sets-of-old-kernels");
}

#[test]
fn event_that_is_not_read_is_seen_by_every_call_as_with_the_kernel() {
    check_alone("unread");
}

#[test]
fn sleep_until_an_event_ends_with_signals_and_other_threads_as_read_does() {
    check_alone("sleeps");
}

// Regression: a server that learnt late of a client's end ended its connection to the next client,
// which had the same slot.
#[test]
fn end_of_a_client_is_not_that_of_the_next_one_in_its_slot() {
    let _alone = alone();
    let one = OneHost::up_with(&["127.0.0.1"], "slots = 2\n");
    let _busy = Busy::start();
    check_alone_on(one, "successors");
}

// Regression: the child closed the file with the number of its parent's connection to urdmad.
#[test]
fn child_of_a_program_that_closed_the_devices_descriptors_keeps_its_own() {
    check_alone("fork-descriptors");
}

// Regression: urdmad took the end of its connection for the end of the process.
#[test]
fn program_that_closes_all_descriptors_keeps_the_device() {
    check_alone("closefrom");
}

// Regression: netcat, whose sets of select(2) have room for 16 descriptors, could not be a server.
#[test]
fn device_takes_none_of_the_low_descriptors_but_those_of_the_verbs() {
    check_alone("low-descriptors");
}

#[test]
fn keys_open_what_they_are_for_and_nothing_else() {
    check_alone("keys");
}

#[test]
fn refused_calls_set_errno_and_destroyed_objects_are_not_touched() {
    check_alone("refusals");
}

#[test]
fn times_of_completions_never_go_backwards() {
    check_alone("clock");
}

#[test]
fn process_connects_to_itself_through_rdma_cm() {
    check_alone("cm");
}

// Regression: the end of the process overtook its REJ, and the private data was lost.
#[test]
fn message_of_rdma_cm_arrives_before_the_end_of_its_process() {
    check_alone("last-words");
}

#[test]
fn ids_of_rdma_cm_take_ports_and_calls_as_the_kernel_has_them() {
    check_alone_at(&["127.0.0.1", "127.0.0.3", "::1"], "ids");
}

#[test]
fn device_has_a_pci_address_wherever_libraries_look_for_it() {
    check_alone("sysfs");
}

#[test]
fn datagram_programs_on_one_host_pass() {
    let _alone = alone();
    let one = OneHost::up();
    let jobs = programs::datagrams(ports(), one.host.address());
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}
