//! Clients that ask too much of urdmad.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;

use nix::sys::resource::{setrlimit, Resource};
use support::{command, eventually, expect_idle, Daemon, Scratch};
use urdma_ipc::message::{FromClient, FromDaemon, Request};
use urdma_ipc::packet::PacketSocket;
use urdma_ipc::{ControlClient, ControlError, PROTOCOL_VERSION};

fn open_files(daemon: &Daemon) -> usize {
    let fds = format!("/proc/{}/fd", daemon.child.id());
    fs::read_dir(fds).unwrap().count()
}

// Four of each packet's descriptors stayed in urdmad.
#[test]
fn descriptors_in_packets_of_clients_do_not_stay() {
    let scratch = Scratch::new();
    let daemon = Daemon::start(scratch.path(), "a", "");
    let socket = PacketSocket::connect(&daemon.run_dir.control_socket()).unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    let before = open_files(&daemon);
    for id in 0..20 {
        let version = PROTOCOL_VERSION;
        let program = "test".to_owned();
        let request = Request::Hello { version, program };
        let fds = vec![file.as_fd(); [1, 4, 5, 250][usize::try_from(id).unwrap() % 4]];
        socket.send(&FromClient { id, request }, &fds).unwrap();
        let answer: FromDaemon = socket.recv(4096).unwrap().unwrap().parse().unwrap();
        let welcomed = matches!(answer, FromDaemon::Answer { id: of, result: Ok(_) } if of == id);
        assert!(welcomed, "{answer:?}");
    }
    assert_eq!(open_files(&daemon), before);
    daemon.stop();
}

// urdmad took a processor and filled its log, and said nothing.
#[test]
fn clients_beyond_the_limit_of_open_files_are_refused_and_urdmad_sleeps() {
    const OPEN_FILES: u64 = 64;
    let scratch = Scratch::new();
    let mut limited = command(scratch.path(), "a", "");
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        limited.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES)?));
    }
    let daemon = Daemon::of(limited, scratch.path(), "a");
    let connect = || ControlClient::connect(&daemon.run_dir, "test");
    let mut held = Vec::new();
    for _ in 0..2 * OPEN_FILES {
        match connect() {
            Ok(client) => held.push(client),
            Err(error) => {
                let refused = matches!(error, ControlError::Refused(_));
                assert!(refused && error.to_string().contains("files"), "{error}");
            }
        }
    }
    assert!(held.len() < usize::try_from(OPEN_FILES).unwrap());
    // Connections that wait without an end to be refused are no work either.
    expect_idle(daemon.child.id(), 5);
    assert!(daemon.log().len() < 20_000, "{}", daemon.log());
    assert!(
        held[0].status().is_ok(),
        "those that were accepted are served"
    );
    drop(held);
    eventually("a place is free again", || connect().is_ok());
    daemon.stop();
}
