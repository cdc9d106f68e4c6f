//! Every program of rdmacm-utils, ibverbs-utils, perftest and qperf that works on an Ethernet port,
//! on one host and on two, over IPv4 and IPv6.
//!
//! doc/conformance.md lists them, with those that are refused and the reasons.
#![allow(clippy::unwrap_used)]

use std::fs;

use urdma_harness::instance::{Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::{wait_until, Process};
use urdma_harness::programs::{self, words, Job, Ready, Selection};
use urdma_tests::{alone, ports, run_all, run_script, OneHost, CHECK_LIMIT, SHORT};

/// The GID index of the second address.
const SECOND_GID: &str = "2";

/// Runs the jobs that `make` returns for a first port and the server's address, on one host with
/// `addresses`.
fn run_at(addresses: &[&str], make: impl FnOnce(u16, &str) -> Vec<Job>) {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let host = Instance::up_at(scratch.path(), "one", addresses, "").unwrap();
    let jobs = make(ports(), host.address());
    run_all(&jobs, &host, &host, LeasePolicy::Never);
    host.down().unwrap();
}

/// Verbs over the second address' GID; the programs exchange parameters by TCP at the first.
fn over_second_gid(first_port: u16, server: &str) -> Vec<Job> {
    let tools = ["ib_send_lat", "ib_write_bw", "ib_read_lat", "ib_atomic_bw"];
    let perftest = (first_port..).zip(tools).map(|(port, tool)| {
        let size_octets = if tool == "ib_atomic_bw" { 8 } else { 4096 };
        programs::perftest(tool, size_octets, false, port, server).with(&["-x", SECOND_GID])
    });
    let datagrams = programs::perftest("ib_send_lat", 64, false, first_port + 10, server)
        .with(&["-c", "UD", "-x", SECOND_GID]);
    let pingpong = ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"]
        .into_iter()
        .zip(first_port + 11..)
        .map(|(program, port)| {
            // perftest uses the last of two `-g` options.
            let mut job = programs::pingpong(program, true, port, server);
            for argv in [&mut job.server, &mut job.client] {
                argv.extend(["-g", SECOND_GID, "-s", "1024"].map(str::to_owned));
            }
            job
        });
    perftest.chain([datagrams]).chain(pingpong).collect()
}

/// The programs that connect through rdma_cm to `server`.
fn through_rdma_cm(first_port: u16, server: &str) -> Vec<Job> {
    vec![
        programs::rping(first_port, server),
        programs::ucmatose(first_port + 1, server),
        programs::udaddy(server),
        programs::rdma_client(first_port + 2, server),
    ]
}

#[test]
fn rdmacm_utils_pass() {
    run_at(&["127.0.0.1"], programs::rdmacm_utils);
}

/// curl and wget fetch from netcat over rsockets, and wget from Python's server, which TCP serves.
#[test]
fn librspreload_makes_sockets_of_programs_rsockets() {
    let said = "librspreload: all fetched";
    run_script("rsocket/preload.sh", &[], CHECK_LIMIT, said);
}

#[test]
fn rdmacm_utils_pass_over_ipv6() {
    run_at(&["::1"], programs::rdmacm_utils);
}

#[test]
fn verbs_over_an_ipv6_gid_pass() {
    run_at(&["127.0.0.1", "::1"], over_second_gid);
}

#[test]
fn two_hosts_with_ipv6_addresses_talk() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let addresses: [&[&str]; 2] = [&["127.0.0.1", "fd00::1"], &["127.0.0.2", "fd00::2"]];
    let hosts = TwoHosts::up_at(scratch.path(), Queues::Forwarded, 1500, addresses).unwrap();
    let mut jobs = over_second_gid(ports(), hosts.a.address());
    jobs.extend(through_rdma_cm(ports(), addresses[0][1]));
    jobs.extend(
        addresses[0]
            .iter()
            .map(|address| programs::mckey(address, "", "")),
    );
    run_all(&jobs, &hosts.a, &hosts.b, LeasePolicy::Never);
    hosts.down().unwrap();
}

/// Packets from another address than the peer's are dropped, so each queue pair has to send from
/// its own.
#[test]
fn two_hosts_with_two_addresses_of_a_version_talk_over_the_second_ones() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let addresses: [&[&str]; 2] = [&["127.0.0.1", "127.0.0.3"], &["127.0.0.2", "127.0.0.4"]];
    let hosts = TwoHosts::up_at(scratch.path(), Queues::Forwarded, 1500, addresses).unwrap();
    let mut jobs = over_second_gid(ports(), hosts.a.address());
    jobs.extend(through_rdma_cm(ports(), addresses[0][1]));
    run_all(&jobs, &hosts.a, &hosts.b, LeasePolicy::Never);
    hosts.down().unwrap();
}

/// On-demand paging with and without prefetching, device memory, time stamps, extended calls.
#[test]
fn pingpong_with_every_kind_of_memory_and_interface_passes() {
    let flags: [&[&str]; 7] = [
        &["-o"],
        &["-O"],
        &["-o", "-P"],
        &["-O", "-P"],
        &["-j"],
        &["-t"],
        &["-N"],
    ];
    run_at(&["127.0.0.1"], |first_port, server| {
        let job =
            |(port, flags): (u16, &[&str])| programs::rc_pingpong(false, port, server).with(flags);
        (first_port..).zip(flags).map(job).collect()
    });
}

#[test]
fn pingpong_over_extended_connections_passes() {
    let job = |port: u16, flags: &str, server: &str| {
        let serve = format!("ibv_xsrq_pingpong -g 1 -p {port}{flags}");
        let ask = format!("{serve} {server}");
        Job::saying(
            &serve,
            words(&serve),
            words(&ask),
            Ready::Tcp(port),
            "success",
        )
    };
    run_at(&["127.0.0.1"], |port, server| {
        vec![job(port, "", server), job(port + 1, " -e", server)]
    });
}

#[test]
fn perftest_takes_every_flag() {
    run_at(&["127.0.0.1"], |first_port, server| {
        programs::perftest_matrix(Selection::Fast, first_port, server)
    });
}

#[test]
#[ignore = "make test-all"]
fn perftest_takes_every_flag_with_every_tool() {
    run_at(&["127.0.0.1"], |first_port, server| {
        programs::perftest_matrix(Selection::All, first_port, server)
    });
}

#[test]
fn rnic_is_connected_by_rdma_cm_and_by_nothing_else() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let iwarp = "personality = \"iwarp\"\n";
    let host = Instance::up_at(scratch.path(), "one", &["127.0.0.1"], iwarp).unwrap();
    assert_eq!(host.status().unwrap()["personality"], "iwarp");
    let mut command = host.run(LeasePolicy::Never, &["ibv_devinfo"]).unwrap();
    let devinfo = Process::run(&mut command, SHORT).unwrap();
    assert!(devinfo.output.contains("iWARP (1)"), "{}", devinfo.output);

    let (first_port, server) = (ports(), host.address());
    let mut jobs = vec![
        programs::rping(first_port, server),
        programs::ucmatose(first_port + 1, server),
        programs::rdma_client(first_port + 2, server),
        programs::rstream(first_port + 10, server),
    ];
    let tools = ["ib_send_lat", "ib_write_bw", "ib_read_lat", "ib_atomic_bw"];
    let perftest = (first_port + 3..).zip(tools).map(|(port, tool)| {
        let size_octets = if tool == "ib_atomic_bw" { 8 } else { 4096 };
        programs::perftest(tool, size_octets, true, port, server)
    });
    jobs.extend(perftest);
    run_all(&jobs, &host, &host, LeasePolicy::Never);

    let said = refused_pingpong(&host, first_port + 11, "-g 0");
    assert!(said.contains("connected by rdma_cm only"), "{said}");
    host.down().unwrap();
}

/// Runs both ends of an `ibv_rc_pingpong` that is refused; returns the server's output.
fn refused_pingpong(host: &Instance, port: u16, flags: &str) -> String {
    let pingpong = format!("ibv_rc_pingpong -p {port} {flags}");
    let serve = words(&pingpong);
    let ask = words(&format!("{pingpong} {}", host.address()));
    let mut serving = Process::start(&mut host.run(LeasePolicy::Never, &serve).unwrap()).unwrap();
    // The client ends at once while the server does not listen yet.
    wait_until("refused", SHORT, || {
        let mut command = host.run(LeasePolicy::Never, &ask).unwrap();
        let asked = Process::run(&mut command, SHORT).unwrap();
        assert!(!asked.succeeded(), "{}", asked.output);
        !serving.is_running()
    })
    .unwrap();
    serving.printed()
}

#[test]
fn peer_named_by_lid_is_refused_with_a_sentence() {
    let _alone = alone();
    let one = OneHost::up();
    let said = refused_pingpong(&one.host, ports(), "-s 64");
    assert!(said.contains("this port has no LIDs"), "{said}");
    let argv = ["udpong", "-s", one.host.address()];
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(!ended.succeeded(), "{}", ended.output);
    let said = ended.output;
    assert!(said.contains("this port has no LIDs"), "{said}");
    one.down();
}

#[test]
fn qperf_measures_and_verifies_over_rdma_cm() {
    run_at(&["127.0.0.1"], programs::qperf);
}

#[test]
fn rcopy_copies_every_octet() {
    let _alone = alone();
    let one = OneHost::up();
    let port = ports();
    let [source, copy] = ["source", "copy"].map(|name| one.scratch.path().join(name));
    let octets: Vec<u8> = (0..1_000_003_u64)
        .map(|i| ((i * i) >> 7).to_le_bytes()[0])
        .collect();
    fs::write(&source, &octets).unwrap();
    let target = format!("{}:{}", one.host.address(), copy.display());
    let job = Job::saying(
        "rcopy",
        words(&format!("rcopy -p {port}")),
        words(&format!("rcopy {} {target} -p {port}", source.display())),
        Ready::Cm(port),
        "1000003 bytes",
    );
    run_all(
        &[job.served_forever()],
        &one.host,
        &one.host,
        LeasePolicy::Never,
    );
    assert!(fs::read(&copy).unwrap() == octets, "the copy differs");
    one.down();
}

#[test]
fn asyncwatch_shows_the_loss_of_the_daemon() {
    let _alone = alone();
    let one = OneHost::up();
    // The output is a pipe, to which the program writes only when its buffer is full.
    let argv = ["stdbuf", "-oL", "ibv_asyncwatch"];
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let mut watching = Process::start(&mut command).unwrap();
    watching.wait_for_text("async event FD", SHORT).unwrap();
    one.host.kill_and_restart().unwrap();
    watching.wait_for_text("event_type", SHORT).unwrap();
    drop(watching);
    one.down();
}
