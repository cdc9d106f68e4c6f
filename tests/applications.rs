//! Third-party applications on one host: UCX, libfabric, Open MPI, MPICH, gloo, fio, uDAPL, QEMU,
//! Ceph, tgt.
//!
//! `make test-all` installs their packages and runs these tests; `make test` does not, because the
//! packages are large.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use serde_json::json;
use urdma_harness::instance::{LeasePolicy, Scratch};
use urdma_harness::namespace::Namespaces;
use urdma_harness::process::wait_until;
use urdma_harness::programs::{words, Job, Ready};
use urdma_tests::machine::{build_guest, Machine};
use urdma_tests::{
    alone, expect_said, host_without_configured_addresses, ports, print_of, run_all, run_script,
    OneHost, HOST_ADDRESSES,
};

const LIMIT: Duration = Duration::from_secs(120);

/// The only devices that UCX may use are urdma's, so that a test cannot pass over TCP or shared
/// memory.
const DATAGRAMS: &str = "UCX_TLS=ud_verbs,self";
const CONNECTIONS: &str = "UCX_TLS=rc_verbs,ud_verbs:aux,self";

/// `ucx_perftest` with the transports that `tls` allows.
fn ucx(tls: &str, test: &str, size_octets: u32) -> Job {
    let port = ports();
    let common = format!("env {tls} ucx_perftest -p {port}");
    let client = format!("{common} 127.0.0.1 -t {test} -n 2000 -w 100 -s {size_octets}");
    let label = format!("ucx_perftest {tls} {test}");
    Job::saying(
        &label,
        words(&common),
        words(&client),
        Ready::Tcp(port),
        "Final:",
    )
}

/// `fi_pingpong`, which checks what it receives (`-c`), to a server at `address`.
fn libfabric(provider: &str, endpoint: &str, address: &str) -> Job {
    let port = ports();
    let common = format!("fi_pingpong -p {provider} -e {endpoint} -I 50 -c");
    let label = format!("fi_pingpong {provider}");
    let server = words(&format!("{common} -B {port}"));
    let client = words(&format!("{common} -P {port} {address}"));
    Job::saying(&label, server, client, Ready::Tcp(port), "1m")
}

/// fio's rdma engine, the client writing by `verb`.
fn fio(verb: &str) -> Job {
    let port = ports();
    let common = format!("fio --ioengine=rdma --port={port} --bs=64k --size=16m --verb={verb}");
    let server = words(&format!("{common} --name=server --rw=read"));
    let client = format!("{common} --name=client --rw=write --hostname=127.0.0.1 --iodepth=8");
    let label = format!("fio {verb}");
    Job::saying(
        &label,
        server,
        words(&client),
        Ready::Cm(port),
        "WRITE: bw=",
    )
}

fn run(jobs: &[Job]) {
    let _alone = alone();
    let one = OneHost::up();
    run_all(jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn ucx_over_datagrams_passes() {
    run(&[
        ucx(DATAGRAMS, "tag_lat", 64),
        ucx(DATAGRAMS, "tag_bw", 65_536),
        ucx(DATAGRAMS, "ucp_am_lat", 1024),
    ]);
}

#[test]
#[ignore = "make test-all"]
fn ucx_over_connections_passes() {
    run(&[
        ucx(CONNECTIONS, "tag_lat", 64),
        ucx(CONNECTIONS, "tag_bw", 65_536),
        ucx(CONNECTIONS, "ucp_put_lat", 64),
        ucx(CONNECTIONS, "ucp_get", 65_536),
        ucx(CONNECTIONS, "ucp_fadd", 8),
    ]);
}

#[test]
#[ignore = "make test-all"]
fn libfabric_reliable_datagrams_over_connections_pass() {
    run(&[
        libfabric("verbs", "msg", "127.0.0.1"),
        libfabric("verbs;ofi_rxm", "rdm", "127.0.0.1"),
    ]);
}

/// libfabric's verbs provider accepts no loopback addresses.
#[test]
#[ignore = "make test-all"]
fn libfabric_connects_over_the_addresses_of_the_host() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let spaces = Namespaces::new().unwrap();
    let host = host_without_configured_addresses(&spaces, &scratch);
    let found = print_of(&host, &["fi_info", "-p", "verbs", "-s", HOST_ADDRESSES[0]]);
    assert!(found.contains("domain: urdma0"), "{found}");
    let jobs = [
        libfabric("verbs", "msg", host.address()),
        libfabric("verbs;ofi_rxm", "rdm", host.address()),
    ];
    run_all(&jobs, &host, &host, LeasePolicy::Never);
    host.down().unwrap();
}

#[test]
#[ignore = "make test-all"]
fn fio_writes_and_reads_remote_memory() {
    run(&[fio("write"), fio("read")]);
}

/// Builds `mpi-check` with an MPI's compiler and runs two ranks over urdma.
fn mpi(compiler: &str, launcher: &[&str]) {
    let _alone = alone();
    let one = OneHost::up();
    let program = one.scratch.path().join("mpi-check");
    let built = Command::new(compiler)
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/mpi-check/main.c"))
        .status()
        .expect("no MPI compiler: scripts/install-deps.sh all");
    assert!(built.success(), "mpi-check does not build");
    let program = program.to_string_lossy();
    for tls in [
        "UCX_TLS=ud_verbs,self",
        "UCX_TLS=rc_verbs,ud_verbs:aux,self",
    ] {
        let argv = [&["env", tls], launcher, &[&*program]].concat();
        let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
        expect_said(&mut command, LIMIT, "mpi-check: 2 ranks ok");
    }
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn open_mpi_over_ucx_passes() {
    let launcher =
        "mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 --mca pml ucx --mca osc ucx";
    mpi("mpicc.openmpi", &launcher.split(' ').collect::<Vec<_>>());
}

#[test]
#[ignore = "make test-all"]
fn mpich_over_ucx_passes() {
    mpi("mpicc.mpich", &["mpirun.mpich", "-n", "2"]);
}

/// Three processes that connect by gloo's own messages; every value is checked.
#[test]
#[ignore = "make test-all"]
fn gloo_sums_and_broadcasts() {
    let _alone = alone();
    let one = OneHost::up();
    let program = one.scratch.path().join("gloo-check");
    let built = Command::new("c++")
        .args(["-std=c++14", "-O1", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/gloo-check/main.cc"))
        .args(["-lgloo", "-libverbs"])
        .status()
        .unwrap();
    assert!(built.success(), "gloo-check does not build");
    let directory = one.scratch.path().join("gloo");
    std::fs::create_dir(&directory).unwrap();
    let argv = [program.as_path(), directory.as_path()];
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    expect_said(&mut command, LIMIT, "gloo-check: 3 ranks ok");
    one.down();
}

/// Where Debian's libucx-dev has the examples of UCX.
const UCX_EXAMPLES: &str = "/usr/share/doc/libucx-dev/examples";

/// Connects through rdma_cm, each end with a datagram queue pair in the handshake that it uses for
/// nothing else.
#[test]
#[ignore = "make test-all"]
fn ucx_connects_through_rdma_cm() {
    let _alone = alone();
    let one = OneHost::up();
    let program = one.scratch.path().join("ucp_client_server");
    let built = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(format!("{UCX_EXAMPLES}/ucp_client_server.c"))
        .args(["-lucp", "-lucs"])
        .status()
        .unwrap();
    assert!(built.success(), "ucp_client_server does not build");
    let jobs = ["stream", "tag", "am"].map(|interface| {
        let port = ports();
        let common = format!(
            "env UCX_TLS=rc_verbs,ud_verbs,self {} -p {port} -c {interface} -i 100 -s 300",
            program.display()
        );
        let client = format!("{common} -a 127.0.0.1");
        let label = format!("ucp_client_server {interface}");
        let said = "iteration #100";
        Job::saying(
            &label,
            words(&common),
            words(&client),
            Ready::Cm(port),
            said,
        )
        .served_forever()
    });
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

/// The file in which uDAPL looks for its interfaces: connections by librdmacm over the loopback
/// interface, and by a socket and verbs.
const DAT_CONF: &str = "\
cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"lo 0\" \"\"
scm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"urdma0 1\" \"\"
";

/// uDAPL's own tests: messages, writes and reads, polled and asleep; atomic operations and
/// immediate data; a shared receive queue.
#[test]
#[ignore = "make test-all"]
fn udapl_passes_its_own_tests() {
    let _alone = alone();
    let one = OneHost::up();
    let conf = one.scratch.path().join("dat.conf");
    std::fs::write(&conf, DAT_CONF).unwrap();
    let env = format!("env DAT_OVERRIDE={} DAPL_SCM_NETDEV=lo", conf.display());
    // The programs have no option for their ports.
    let address_exchange = Ready::Tcp(15_828);
    let programs = [
        ("dtest -P cma", address_exchange, "PASSED"),
        ("dtest -P cma -p", address_exchange, "PASSED"),
        ("dtest -P scm", address_exchange, "PASSED"),
        ("dtestx -P cma", address_exchange, "PASSED"),
        ("dtestsrq -P cma", Ready::Cm(45_248), "Test Complete"),
    ];
    let jobs = programs.map(|(program, ready, said)| {
        let server = words(&format!("{env} {program}"));
        let client = words(&format!("{env} {program} -h 127.0.0.1"));
        Job::saying(program, server, client, ready, said)
    });
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

/// How many rounds a guest runs before and after its migration.
const ROUNDS: u64 = 3;
/// Pages that the guest fills with other values than zero, which alone are written by RDMA.
const FILLED_PAGES: u64 = (32 << 20) / 4096;

/// Migrates a running guest, compares the memory of both machines and lets the guest go on.
fn migrate(pin_all: bool) {
    let _alone = alone();
    let one = OneHost::up();
    let guest = build_guest(one.scratch.path());
    let mut source = Machine::start(&one, "source", &guest, &[]);
    let waiting = ["-S", "-incoming", "defer"];
    let mut target = Machine::start(&one, "target", &guest, &waiting);
    let capability = json!({ "capability": "rdma-pin-all", "state": pin_all });
    for machine in [&mut source, &mut target] {
        machine.ask(
            "migrate-set-capabilities",
            json!({ "capabilities": [capability] }),
        );
    }
    wait_until("the guest runs", LIMIT, || source.rounds() >= ROUNDS).unwrap();

    let uri = json!({ "uri": format!("rdma:127.0.0.1:{}", ports()) });
    target.ask("migrate-incoming", uri.clone());
    source.ask("migrate", uri);
    let mut migration = json!(null);
    wait_until("the migration ends", LIMIT, || {
        migration = source.ask("query-migrate", json!({}));
        ["completed", "failed"].contains(&migration["status"].as_str().unwrap())
    })
    .unwrap();
    assert_eq!(migration["status"], "completed", "{migration}");
    let sent_pages = migration["ram"]["normal"].as_u64().unwrap();
    assert!(sent_pages >= FILLED_PAGES, "{migration}");
    assert_eq!(source.state(), "postmigrate");
    assert_eq!(target.state(), "paused");
    assert!(source.memory() == target.memory(), "the memory differs");

    target.ask("cont", json!({}));
    wait_until("the guest goes on", LIMIT, || target.rounds() >= ROUNDS).unwrap();
    assert_eq!(target.state(), "running");
    for machine in [source, target] {
        let ended = machine.quit();
        assert!(ended.succeeded(), "{}", ended.describe());
        let device = ended.output.contains("kernel name urdma0");
        assert!(device, "{}", ended.output);
    }
    one.down();
}

#[test]
#[ignore = "make test-all"]
fn qemu_migrates_a_running_guest() {
    migrate(false);
}

#[test]
#[ignore = "make test-all"]
fn qemu_migrates_a_running_guest_with_all_memory_pinned() {
    migrate(true);
}

/// A monitor and an OSD in memory; objects are written, read and compared.
fn ceph(connected_by: &str) {
    let said = "rados: written and read";
    run_script("ceph/rados-bench.sh", &[connected_by], LIMIT, said);
}

#[test]
#[ignore = "make test-all"]
fn ceph_writes_and_reads_objects() {
    ceph("ib");
}

#[test]
#[ignore = "make test-all"]
fn ceph_that_connects_through_rdma_cm_writes_and_reads_objects() {
    ceph("iwarp");
}

/// libiscsi's own tests of a disk that tgt serves over iSER.
#[test]
#[ignore = "make test-all"]
fn tgt_serves_a_disk_over_iser() {
    run_script("tgt/iser.sh", &[], LIMIT, "tgt: written and read");
}
