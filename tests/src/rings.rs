//! Programs whose TCP connections go over rings (`urdma run --sockets`).
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use urdma_harness::process::{wait_until, Process};
use urdma_ipc::{ControlClient, RunDir, SocketReason, SocketStatus};
use urdma_types::Rng;

use crate::{OneHost, SHORT};

/// Octets of a file, more than any buffer of the kernel's.
const FILE_OCTETS: usize = 20 << 20;

/// A client of an instance that observes it.
pub fn client(one: &OneHost) -> ControlClient {
    ControlClient::connect(&RunDir::at(one.host.run_dir()), "test").unwrap()
}

/// What status says of connections with rings.
pub fn status(client: &ControlClient) -> SocketStatus {
    client.status().unwrap().sockets
}

/// `urdma run --sockets` with a shell, so that a file can be its standard input or output.
pub fn shell(one: &OneHost, line: &str) -> Process {
    let mut command = one.host.subcommand("run").unwrap();
    command.args(["--sockets", "--", "sh", "-c", &format!("exec {line}")]);
    Process::start(&mut command).unwrap()
}

/// Whether the connections of all programs are offered rings when they are connected.
pub fn are_offered_at_once() -> bool {
    std::env::var("URDMA_SOCKETS_FROM").as_deref() == Ok("0")
}

/// `urdma run --sockets` whose connections are offered rings from a call of theirs on; 0: when they
/// are connected.
pub fn from_call(one: &OneHost, call: u32, argv: &[&str]) -> Command {
    let mut command = one.host.subcommand("run").unwrap();
    command.args(["--sockets", "--sockets-from", &call.to_string(), "--"]);
    command.args(argv);
    command
}

/// Builds a program in C of `tests/tcp-rings` in a folder.
pub fn compile(folder: &Path, name: &str) -> PathBuf {
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tcp-rings");
    let source = source.join(name).with_extension("c");
    let arguments = ["-std=gnu11", "-O1", "-fno-inline", "-pthread"].map(OsStr::new);
    crate::compile(&program, arguments.into_iter().chain([source.as_os_str()]));
    program
}

/// What a program has printed that ends, and succeeds.
pub fn output(process: Process) -> String {
    let ended = process.wait(SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    ended.output
}

/// The status, when no connection is open any more.
pub fn at_the_end(one: &OneHost) -> SocketStatus {
    let client = client(one);
    wait_until("the end", SHORT, || status(&client).open == 0).unwrap();
    status(&client)
}

/// A file of octets that do not repeat.
pub fn file(path: &Path) -> Vec<u8> {
    let mut rng = Rng::new(38);
    let mut octets = vec![0; FILE_OCTETS];
    rng.fill(&mut octets);
    std::fs::write(path, &octets).unwrap();
    octets
}

/// The reasons that status has counted.
pub fn reasons(client: &ControlClient) -> Vec<(SocketReason, u64)> {
    let all = status(client).reasons;
    assert_eq!(all.len(), SocketReason::ALL.len());
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}
