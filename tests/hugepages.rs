//! Hugepages that were reserved for two hosts are released, however the program that reserved them
//! ends. Needs root.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use nix::sys::signal::{kill, killpg, signal, SigHandler, Signal};
use nix::unistd::Pid;
use urdma_harness::hugepages::Hugepages;
use urdma_harness::instance::{urdma, Queues, Scratch, TwoHosts};
use urdma_harness::process::wait_until;
use urdma_tests::{alone, SHORT};

/// Pages for two hosts with leases.
const HUGEPAGES: u64 = 512;
const PAGE_OCTETS: usize = 2 << 20;
/// The variable with the directory in which a copy of this program starts hosts.
const OWNER: &str = "URDMA_TEST_OWNER";
const PANICS: &str = "URDMA_TEST_PANICS";

/// Reserved pages of the machine.
fn reserved() -> u64 {
    let count = fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap();
    count.trim().parse().unwrap()
}

/// Waits until at most `before` pages are reserved; other programs may reserve some meanwhile.
fn expect_given_back(before: u64) {
    wait_until("the hugepages to be given back", SHORT, || {
        reserved() <= before
    })
    .unwrap();
}

fn expect_down(run_dir: &Path) {
    wait_until("the instance to be down", SHORT, || !run_dir.exists()).unwrap();
}

#[test]
fn failed_start_of_two_hosts_gives_all_pages_back() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let before = reserved();
    // The run directory of the second host contains a file that urdmad does not remove.
    fs::create_dir(scratch.path().join("b")).unwrap();
    fs::write(scratch.path().join("b/foreign"), "").unwrap();
    let pages = Hugepages::reserve(HUGEPAGES).unwrap();
    let failure = TwoHosts::up(scratch.path(), Queues::Leased(2), 9000).unwrap_err();
    assert!(failure.to_string().contains("foreign"), "{failure}");
    drop(pages);
    expect_given_back(before);
    expect_down(&scratch.path().join("a"));
}

#[test]
fn reservation_beside_pages_that_are_in_use_but_given_back_is_given_back() {
    let _alone = alone();
    let before = reserved();
    let pages = Hugepages::reserve(2).unwrap();
    let size = NonZeroUsize::new(2 * PAGE_OCTETS).unwrap();
    let (read_write, huge) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE | MapFlags::MAP_HUGETLB | MapFlags::MAP_POPULATE,
    );
    // SAFETY: a new mapping at an address that the kernel chooses.
    let memory = unsafe { mmap_anonymous(None, size, read_write, huge) }.unwrap();
    drop(pages);
    let pages = Hugepages::reserve(2).unwrap();
    // SAFETY: the mapping from above; no reference to it exists.
    unsafe { munmap(memory, size.get()) }.unwrap();
    drop(pages);
    expect_given_back(before);
}

/// A copy of this program with two hosts, and the way in which it is to end.
#[test]
#[ignore = "an owner, which the other tests start"]
fn owner_of_two_hosts() {
    let directory = PathBuf::from(std::env::var_os(OWNER).unwrap());
    let _pages = Hugepages::reserve(HUGEPAGES).unwrap();
    let _hosts = TwoHosts::up(&directory, Queues::Leased(2), 9000).unwrap();
    println!("\nowner is ready");
    assert!(std::env::var_os(PANICS).is_none(), "as it was asked to");
    loop {
        std::thread::park();
    }
}

/// Starts a program as a terminal does: SIGINT ends it, also when these tests run in the background
/// of a shell, whose programs ignore SIGINT.
fn in_foreground(command: &mut Command) -> &mut Command {
    // SAFETY: sigaction is async-signal-safe, and the default action runs no code.
    unsafe {
        command.pre_exec(|| {
            signal(Signal::SIGINT, SigHandler::SigDfl)?;
            Ok(())
        })
    }
}

/// Starts the copy and waits until its hosts are up.
fn start_owner(directory: &Path, panics: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "owner_of_two_hosts", "--nocapture", "--ignored"])
        .env(OWNER, directory)
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if panics {
        command.env(PANICS, "1");
    }
    let mut owner = in_foreground(&mut command).spawn().unwrap();
    let output = BufReader::new(owner.stdout.take().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "owner is ready"));
    owner
}

#[test]
fn pages_of_a_program_that_panics_or_is_killed_are_given_back() {
    let _alone = alone();
    let before = reserved();
    for signal in [
        None,
        Some(Signal::SIGINT),
        Some(Signal::SIGTERM),
        Some(Signal::SIGKILL),
    ] {
        let scratch = Scratch::new("test").unwrap();
        let mut owner = start_owner(scratch.path(), signal.is_none());
        let group = Pid::from_raw(i32::try_from(owner.id()).unwrap());
        if let Some(signal) = signal {
            // As a terminal does.
            killpg(group, signal).unwrap();
        }
        assert!(!owner.wait().unwrap().success());
        expect_down(&scratch.path().join("a"));
        expect_down(&scratch.path().join("b"));
        expect_given_back(before);
    }
}

/// The process in a pid file, once the file has one.
fn pid_in(file: &Path) -> Option<Pid> {
    let text = fs::read_to_string(file).ok()?;
    text.trim().parse().ok().map(Pid::from_raw)
}

#[test]
fn daemon_whose_start_is_interrupted_ends_and_leaves_nothing() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let (run_dir, config) = (scratch.path().join("a"), scratch.path().join("a.toml"));
    let socket = scratch.path().join("memif.sock");
    let port = format!(
        "[port]\nkind = \"memif\"\nrole = \"server\"\nsocket = \"{}\"\n",
        socket.display()
    );
    fs::write(&config, port).unwrap();
    let pid_file = run_dir.join("pid");
    let ask = |subcommand: &str| {
        let mut command = urdma().unwrap();
        command.arg(subcommand).arg("--run-dir").arg(&run_dir);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    for _ in 0..20 {
        let mut command = ask("up");
        command.arg("--config").arg(&config);
        let mut up = in_foreground(&mut command).spawn().unwrap();
        let mut daemon = None;
        while daemon.is_none() && up.try_wait().unwrap().is_none() {
            daemon = pid_in(&pid_file);
        }
        // It is blocked until the command has ended.
        if let Some(daemon) = daemon {
            let _ = kill(daemon, Signal::SIGSTOP);
        }
        let pid = Pid::from_raw(i32::try_from(up.id()).unwrap());
        kill(pid, Signal::SIGINT).unwrap();
        up.wait().unwrap();
        if let Some(daemon) = daemon {
            let _ = kill(daemon, Signal::SIGCONT);
        }
        let mut is_up = false;
        wait_until("the end of urdmad, or its start", SHORT, || {
            is_up = ask("status").status().unwrap().success();
            is_up || !run_dir.exists()
        })
        .unwrap();
        if !is_up {
            return;
        }
        // The start had completed before it could be interrupted.
        let _ = ask("down").status();
        expect_down(&run_dir);
    }
    panic!("no start was interrupted");
}
