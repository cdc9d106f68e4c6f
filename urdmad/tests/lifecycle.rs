//! Starting, refusing to start, taking over, ending.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use nix::sys::resource::{getrlimit, Resource};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use support::{command, eventually, expect_idle, Daemon, Scratch, LIMIT};

fn said(scratch: &Scratch, name: &str, config: &str) -> String {
    let output = command(scratch.path(), name, config).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn second_instance_of_the_name_is_refused_and_the_first_lives_on() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let said = said(&scratch, "a", "");
    let expected = format!(
        "instance \"a\" runs already (process {})",
        daemon.child.id()
    );
    assert!(said.contains(&expected), "{said}");
    assert!(daemon.client().status().is_ok());
    daemon.stop();
}

// The kernel makes the table of a process with threads larger after a grace period of RCU only.
#[test]
fn table_of_descriptors_is_large_from_the_start() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    let size: usize = size.unwrap().trim().parse().unwrap();
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(size >= usize::try_from(limit.min(4096)).unwrap(), "{size}");
    daemon.stop();
}

#[test]
fn directory_of_a_killed_daemon_is_taken_over() {
    let scratch = Scratch::new();
    let mut daemon = Daemon::start(scratch.path(), "a", "");
    let guid = daemon.status().node_guid;
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(daemon.run_dir.control_socket().exists());
    let second = Daemon::start(scratch.path(), "a", "");
    assert_eq!(second.status().node_guid, guid, "the GUID is stable");
    second.stop();
}

/// Has a process wait for a processor whenever another one wants it.
fn give_least_priority(pid: u32) {
    let pid = i32::try_from(pid).unwrap();
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are valid for the call, and the process is a child of this one.
    let outcome = unsafe { libc::sched_setscheduler(pid, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(outcome, 0);
}

// On a busy machine the new one was refused: "runs already".
#[test]
fn daemon_starts_while_the_one_that_was_killed_still_ends() {
    let scratch = Scratch::new();
    let stop = Arc::new(AtomicBool::new(false));
    let burners = std::thread::available_parallelism().unwrap().get();
    for _ in 0..burners {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {});
    }
    let mut ended = Vec::new();
    for _ in 0..10 {
        let daemon = Daemon::start(scratch.path(), "a", "");
        give_least_priority(daemon.child.id());
        let killed = Pid::from_raw(i32::try_from(daemon.child.id()).unwrap());
        kill(killed, Signal::SIGKILL).unwrap();
        ended.push(daemon);
    }
    stop.store(true, Ordering::Relaxed);
}

#[test]
fn directory_with_foreign_files_is_refused_and_untouched() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("a");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("thesis.tex"), "precious").unwrap();
    let said = said(&scratch, "a", "");
    assert!(
        said.contains("no run directory") && said.contains("thesis.tex"),
        "{said}"
    );
    assert_eq!(
        fs::read_to_string(dir.join("thesis.tex")).unwrap(),
        "precious"
    );
}

#[test]
fn run_directory_longer_than_a_socket_address_works() {
    let scratch = Scratch::new();
    let long = scratch.path().join("x".repeat(100));
    fs::create_dir(&long).unwrap();
    let daemon = Daemon::start(&long, "a", "");
    let _process = daemon.attach();
    daemon.stop();
}

#[test]
fn bad_configuration_names_file_line_and_key() {
    let scratch = Scratch::new();
    let said = said(&scratch, "a", "\n[port]\nkind = \"udp\"\nmtu = 70000\n");
    assert!(
        said.starts_with("urdmad: ") && said.contains("a.toml, line 4, key \"port.mtu\""),
        "{said}"
    );
    assert!(!scratch.path().join("a").exists(), "nothing was made");
    // The status of which the systemd unit knows that another start is in vain.
    let status = command(scratch.path(), "a", "slots = 0").status().unwrap();
    assert_eq!(status.code(), Some(78));
}

#[test]
fn check_config_starts_nothing() {
    let scratch = Scratch::new();
    let mut check = command(scratch.path(), "a", "slots = 3");
    assert!(check.arg("--check-config").status().unwrap().success());
    assert!(!scratch.path().join("a").exists());
}

#[test]
fn sigterm_ends_it_in_order() {
    let scratch = Scratch::new();
    let mut daemon = Daemon::start(scratch.path(), "a", "");
    let process = daemon.attach();
    kill(
        Pid::from_raw(daemon.child.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    assert!(daemon.child.wait().unwrap().success());
    assert!(!daemon.run_dir.path().exists());
    let event = process.next_event();
    assert_eq!(event, Some(urdma_ipc::Event::Shutdown));
}

#[test]
fn service_manager_is_told_when_it_is_ready() {
    let scratch = Scratch::new();
    let path = scratch.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut child = command(scratch.path(), "a", "")
        .env("NOTIFY_SOCKET", &path)
        .spawn()
        .unwrap();
    let mut text = [0; 64];
    let length = socket.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"READY=1");
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let length = socket.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"STOPPING=1");
    assert!(child.wait().unwrap().success());
}

#[test]
fn full_log_is_copied_and_truncated_while_urdmad_runs() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let log = daemon.run_dir.log_file();
    assert!(daemon.log().contains("system calls are filtered"));
    let mut file = fs::OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(&vec![b'x'; 2 << 20]).unwrap();
    drop(daemon.attach());
    eventually("the log is short again", || {
        daemon.log().contains("has ended") && fs::metadata(&log).unwrap().len() < 1 << 20
    });
    let copy = fs::metadata(log.with_extension("log.1")).unwrap();
    assert!(copy.len() >= 2 << 20);
    daemon.stop();
}

#[test]
fn idle_daemon_sleeps() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    expect_idle(daemon.child.id(), 5);
}
