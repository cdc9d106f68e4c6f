//! `make demo`: Debian's own verbs programs over urdma, on every path, with one table at the end.
//!
//! Host a is 127.0.0.1, host b is 127.0.0.2: two instances of urdmad joined by net_memif. Exit
//! status 0 only if all passed and nothing was left behind.

mod leftovers;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::{Instance, LeasePolicy, Queues, Scratch, TwoHosts};
use urdma_harness::process::Process;
use urdma_harness::programs::{self, Job};
use urdma_harness::scheduler::WithoutAutogroups;
use urdma_harness::{pair, Failure};

use crate::leftovers::Before;
use crate::table::{Row, Table};

const MTU: u16 = 9000;
/// Two leases per host: a server and a client may be on the same one.
const LEASE_QUEUES: u16 = 2;
/// 2 MB pages for two hosts with leases.
const HUGEPAGES: u64 = 512;
const SHORT_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let scratch = match Scratch::new("demo") {
        Ok(scratch) => scratch,
        Err(failure) => {
            eprintln!("urdma demo: {failure}");
            return ExitCode::FAILURE;
        }
    };
    let before = Before::take(scratch.path());
    let mut table = Table::new();
    let without_autogroups = WithoutAutogroups::set();
    let outcome = run_all(&mut table, &scratch);
    drop((scratch, without_autogroups));
    println!("\n{table}");
    let left = before.compare();
    if let Err(failure) = &outcome {
        eprintln!("urdma demo: {failure}");
    }
    for thing in &left {
        eprintln!("urdma demo: left behind: {thing}");
    }
    if outcome.is_ok() && left.is_empty() && table.all_passed() {
        println!("All {} passed, nothing left behind.", table.len());
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_all(table: &mut Table, scratch: &Scratch) -> Result<(), Failure> {
    one_host(table, scratch)?;
    let hugepages = Hugepages::reserve(HUGEPAGES)?;
    let hosts = TwoHosts::up(scratch.path(), Queues::Leased(LEASE_QUEUES), MTU)?;
    for (path, lease, first_port) in [
        ("two hosts, forwarded", LeasePolicy::Never, 18_600),
        ("two hosts, leased", LeasePolicy::Require, 18_700),
    ] {
        for job in programs::main_job(first_port, hosts.a.address()) {
            run_pair(table, path, &job, &hosts.a, &hosts.b, lease);
        }
    }
    hosts.down()?;
    drop(hugepages);
    Ok(())
}

fn one_host(table: &mut Table, scratch: &Scratch) -> Result<(), Failure> {
    const PATH: &str = "one host";
    let host = Instance::up(scratch.path(), "one", "127.0.0.1", "")?;
    run_alone(table, &host, &["ibv_devices"], "urdma0");
    run_alone(table, &host, &["ibv_devinfo", "-v"], "PORT_ACTIVE");
    for job in programs::main_job(18_500, host.address()) {
        run_pair(table, PATH, &job, &host, &host, LeasePolicy::Never);
    }
    host.down()
}

/// Runs a program without a peer and looks for `expected` in its output.
fn run_alone(table: &mut Table, host: &Instance, argv: &[&str], expected: &str) {
    let result = host
        .run(LeasePolicy::Never, argv)
        .and_then(|mut command| Process::run(&mut command, SHORT_LIMIT))
        .and_then(|ended| {
            if ended.succeeded() && ended.output.contains(expected) {
                Ok(None)
            } else {
                Err(Failure::new(ended.describe()))
            }
        });
    table.add(Row {
        program: argv.join(" "),
        path: "one host",
        size_octets: None,
        result,
    });
}

fn run_pair(
    table: &mut Table,
    path: &'static str,
    job: &Job,
    server: &Instance,
    client: &Instance,
    lease: LeasePolicy,
) {
    let result = pair::run(job, server, client, lease);
    table.add(Row {
        program: job.label.clone(),
        path,
        size_octets: Some(job.size_octets),
        result,
    });
}
