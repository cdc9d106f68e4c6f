//! Leased queue pairs: granted once each, taken back from the dead, counted. Needs root, to reserve
//! hugepages.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use support::{eventually, meta, Daemon, Process, Scratch};
use urdma_harness::hugepages::Hugepages;
use urdma_ipc::{ControlClient, LeaseAnswer, LeaseParams};

const PAGES: u64 = 200;

/// Both tests reserve hugepages and count the files in them.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(address: &str, role: &str, scratch: &Scratch) -> String {
    format!(
        "address = [\"{address}\"]\n[port]\nkind = \"memif\"\nrole = \"{role}\"\nsocket = \
        \"{}\"\nmtu = 1500\nlease_queues = 2\n",
        scratch.path().join("memif.sock").display()
    )
}

fn lease(daemon: &Daemon) -> (ControlClient, Result<LeaseParams, String>) {
    let client = daemon.client();
    let (attached, _arena) = client.attach(true).unwrap();
    let answer = match attached.lease {
        LeaseAnswer::Granted(params) => Ok(*params),
        LeaseAnswer::Refused(reason) => Err(reason),
        LeaseAnswer::NotAsked => panic!("it was asked for"),
    };
    (client, answer)
}

/// How DPDK names what the running daemon a of `scratch` has in the hugepages' directory: as the
/// directory of its sockets.
fn file_prefix(scratch: &Scratch) -> String {
    let mut sockets = fs::read_dir(scratch.path().join("a/dpdk")).unwrap();
    let entry = sockets.next().unwrap().unwrap();
    entry.file_name().to_string_lossy().into_owned()
}

fn hugepage_files(prefix: &str) -> Vec<String> {
    fs::read_dir("/dev/hugepages")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

#[test]
fn queues_are_leased_once_and_taken_back() {
    let _alone = alone();
    let _pages = Hugepages::reserve(PAGES).unwrap();
    let scratch = Scratch::new();
    let a = Daemon::start(
        scratch.path(),
        "a",
        &config("127.0.0.1", "server", &scratch),
    );
    let b = Daemon::start(
        scratch.path(),
        "b",
        &config("127.0.0.2", "client", &scratch),
    );
    eventually("the link is up", || a.status().port.unwrap().link_up);
    let before = a.status().port.unwrap().mbufs;

    let prefix = file_prefix(&scratch);
    assert!(!hugepage_files(&prefix).is_empty());

    let (first_client, first) = lease(&a);
    let (_second_client, second) = lease(&a);
    let (_third_client, third) = lease(&a);
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((first.queue, second.queue), (1, 2));
    assert_ne!(first.mempool, second.mempool);
    assert_ne!(first.lcore_id, second.lcore_id);
    assert!(third.unwrap_err().contains("all 2 queue pairs are leased"));
    assert_eq!(
        a.status()
            .leases
            .iter()
            .filter(|lease| lease.slot.is_some())
            .count(),
        2
    );

    // Forwarding goes on beside the leases.
    let (mut sender, mut receiver) = (a.attach(), b.attach());
    pass(&mut sender, &mut receiver);

    drop(first_client);
    eventually("the queue is free again", || {
        a.status().leases[0].slot.is_none()
    });
    assert_eq!(lease(&a).1.unwrap().queue, 1);
    eventually("all queues but one are free again", || {
        a.status()
            .leases
            .iter()
            .filter(|lease| lease.slot.is_some())
            .count()
            == 1
    });
    eventually("every packet buffer is back", || {
        a.status().port.unwrap().mbufs == before
    });
    drop((sender, receiver));
    b.stop();
    a.stop();
    assert!(hugepage_files(&prefix).is_empty());
}

#[test]
fn hugepages_of_a_killed_daemon_are_freed_by_the_next() {
    let _alone = alone();
    let _pages = Hugepages::reserve(PAGES).unwrap();
    let scratch = Scratch::new();
    let mut first = Daemon::start(
        scratch.path(),
        "a",
        &config("127.0.0.1", "server", &scratch),
    );
    let prefix = file_prefix(&scratch);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(!hugepage_files(&prefix).is_empty());
    let second = Daemon::start(scratch.path(), "a", "address = [\"127.0.0.1\"]");
    assert!(hugepage_files(&prefix).is_empty());
    second.stop();
}

/// Debian's `nobody` and `daemon`.
const NOBODY: u32 = 65_534;
const DAEMON: u32 = 1;

/// A lease for a user of another process.
fn lease_as(daemon: &Daemon, uid: u32) -> (ControlClient, Result<LeaseParams, String>) {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            // SAFETY: the call takes three integers. Made past the C library it changes this thread
            // only.
            let outcome = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
            assert_eq!(outcome, 0);
            lease(daemon)
        });
        asking.join().unwrap()
    })
}

#[test]
fn leases_are_for_members_of_the_configured_group() {
    let _alone = alone();
    let _pages = Hugepages::reserve(PAGES).unwrap();
    let scratch = Scratch::new();
    let config = config("127.0.0.1", "server", &scratch) + "lease_group = \"daemon\"\n";
    let daemon = Daemon::start(scratch.path(), "a", &config);
    for (path, mode) in [
        (scratch.path(), 0o755),
        (daemon.run_dir.path(), 0o755),
        (&daemon.run_dir.control_socket(), 0o666),
    ] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let (_other, refused) = lease_as(&daemon, NOBODY);
    let reason = refused.unwrap_err();
    assert!(
        reason.contains("user 65534 is not a member of group \"daemon\""),
        "{reason}"
    );
    let (_member, granted) = lease_as(&daemon, DAEMON);
    assert_eq!(granted.unwrap().queue, 1);
    let (_root, granted) = lease(&daemon);
    assert_eq!(granted.unwrap().queue, 2);
    daemon.stop();
}

fn pass(sender: &mut Process, receiver: &mut Process) {
    sender.send(&meta("127.0.0.2", receiver.attached.slot), b"beside");
    assert_eq!(receiver.receive().unwrap().octets, b"beside");
}
