//! urdmad while its file system is full.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::{send, MsgFlags};
use support::{eventually, fill, mount_small, Daemon, Scratch};
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::RunDir;

/// Something that urdmad logs.
fn send_garbage(run_dir: &RunDir) {
    let socket = PacketSocket::connect(&run_dir.control_socket()).unwrap();
    send(
        socket.as_fd().as_raw_fd(),
        b"garbage",
        MsgFlags::MSG_NOSIGNAL,
    )
    .unwrap();
}

// The message that says that the log cannot be written ended the thread that logged.
#[test]
fn full_disk_costs_lines_of_the_log_which_are_counted() {
    let scratch = Scratch::new();
    mount_small(scratch.path());
    let daemon = Daemon::start(scratch.path(), "a", "");
    let process = daemon.attach();
    let rest = fill(scratch.path());
    let lost = || daemon.status().counters.log_lines_lost;
    let before = lost();
    eventually("lines are lost", || {
        send_garbage(&daemon.run_dir);
        drop(daemon.attach());
        lost() > before + 10
    });
    assert!(process.client.recordings().is_ok());
    fs::remove_file(rest).unwrap();
    eventually("the log goes on", || {
        drop(daemon.attach());
        daemon.log().contains(" lines could not be written\n")
    });
    daemon.stop();
}
