//! `liburdma-exs.so`: a C program that uses `exs.h`, compiled by the test.
#![allow(clippy::unwrap_used)]

#[path = "exs-hostile/program.rs"]
mod hostile;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use urdma_harness::instance::{binary_dir, Instance, LeasePolicy};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, compile, expect_all_taken_back, ports, OneHost, NOTICE, SHORT};

/// The directory of the sources.
const TESTS: &str = env!("CARGO_MANIFEST_DIR");
/// How long a program may run.
const LIMIT: Duration = Duration::from_secs(180);
/// The names under which the library is linked and loaded.
const NAMES: [&str; 2] = ["liburdma-exs.so", "liburdma-exs.so.0"];

/// Compiles `tests/exs-c-check` as a user of the installed library does.
fn compile_check(directory: &Path) -> PathBuf {
    let library = binary_dir().unwrap().join("liburdma_exs_c.so");
    let library = fs::canonicalize(&library)
        .unwrap_or_else(|error| panic!("{}: {error}: run make build", library.display()));
    for name in NAMES {
        symlink(&library, directory.join(name)).unwrap();
    }
    let program = directory.join("exs-c-check");
    let sources = [
        "main.c",
        "stream.c",
        "errors.c",
        "file.c",
        "close.c",
        "threads.c",
        "example.c",
    ];
    let mut arguments = vec![format!("-I{TESTS}/../crates/exs-c/include")];
    arguments.extend(sources.map(|source| format!("{TESTS}/exs-c-check/{source}")));
    arguments.push(format!("-Wl,-rpath,{}", directory.display()));
    arguments.push(format!("-L{}", directory.display()));
    arguments.push("-lurdma-exs".to_owned());
    compile(&program, arguments);
    program
}

fn start(host: &Instance, program: &Path, arguments: &[&str]) -> Process {
    let mut argv = vec![program.to_str().unwrap()];
    argv.extend(arguments);
    Process::start(&mut host.run(LeasePolicy::Never, &argv).unwrap()).unwrap()
}

fn expect_done(ended: &Ended) {
    assert!(ended.succeeded(), "{}", ended.describe());
    assert!(ended.output.contains("done"), "{}", ended.describe());
}

#[test]
fn streams_of_one_queue_arrive() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    for (sockets, octets) in [(1, 64 << 20), (10, 4 << 20), (50, 1000)] {
        let (port, sockets) = (ports().to_string(), sockets.to_string());
        let octets = octets.to_string();
        let mut serving = start(&one.host, &program, &["server", &port, &sockets]);
        serving.wait_for_text("listening", SHORT).unwrap();
        let asking = start(&one.host, &program, &["client", &port, &sockets, &octets]);
        let asked = asking.wait(LIMIT).unwrap();
        assert!(
            asked.succeeded(),
            "{}: {}",
            asked.describe(),
            serving.printed()
        );
        expect_done(&asked);
        expect_done(&serving.wait(SHORT).unwrap());
        expect_all_taken_back(&one.host);
    }
    one.down();
}

#[test]
fn calls_and_operations_fail_as_documented() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    let port = ports().to_string();
    let checking = start(&one.host, &program, &["errors", &port]);
    expect_done(&checking.wait(LIMIT).unwrap());
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn threads_share_sockets_and_queues() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    for _ in 0..3 {
        let port = ports().to_string();
        let checking = start(&one.host, &program, &["threads", &port]);
        expect_done(&checking.wait(LIMIT).unwrap());
        expect_all_taken_back(&one.host);
    }
    one.down();
}

#[test]
fn example_of_the_paper_is_compiled_and_runs() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    let port = ports().to_string();
    let sending = start(&one.host, &program, &["example", &port]);
    let sent = sending.wait(LIMIT).unwrap();
    expect_done(&sent);
    let line = "Send of 4096/4096 bytes complete with errno=0";
    assert!(sent.output.contains(line), "{}", sent.describe());
    one.down();
}

#[test]
fn long_file_is_sent_in_bounded_memory() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    let path = one.scratch.path().join("file");
    let mut file = BufWriter::new(File::create(&path).unwrap());
    for number in 0..(256_u64 << 20) / 8 {
        file.write_all(&number.to_le_bytes()).unwrap();
    }
    file.into_inner().unwrap();
    let port = ports().to_string();
    let arguments = ["file", &port, path.to_str().unwrap()];
    let checking = start(&one.host, &program, &arguments);
    expect_done(&checking.wait(LIMIT).unwrap());
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn kill_of_the_server_ends_operations_of_the_client() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    let port = ports().to_string();
    let mut serving = start(&one.host, &program, &["server", &port, "2"]);
    serving.wait_for_text("listening", SHORT).unwrap();
    // More than the server can have received before it is killed.
    let octets = (1_u64 << 40).to_string();
    let asking = start(&one.host, &program, &["client", &port, "2", &octets]);
    serving.wait_for_text("accepted 2", SHORT).unwrap();
    serving.signal(Signal::SIGKILL).unwrap();
    let asked = asking.wait(NOTICE).unwrap();
    let told = "Connection reset by peer";
    assert!(asked.output.contains(told), "{}", asked.describe());
    expect_all_taken_back(&one.host);
    one.down();
}

#[test]
fn violation_of_the_protocol_ends_operations_with_eproto() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile_check(one.scratch.path());
    let hostile = hostile::compile(one.scratch.path());
    let port = ports().to_string();
    let mut serving = start(&one.host, &program, &["server", &port, "1"]);
    serving.wait_for_text("listening", SHORT).unwrap();
    // A control message of an unknown type.
    let unknown = format!("send=63{}", "00".repeat(15));
    let begin = one.scratch.path().join("begin");
    let wait = format!("file={}", begin.display());
    let steps = ["127.0.0.1", &port, &wait, &unknown];
    let attacking = start(&one.host, &hostile, &steps);
    // Once the connection has ended, calls fail in another way.
    serving.wait_for_text("accepted 1", SHORT).unwrap();
    File::create(&begin).unwrap();
    let served = serving.wait(NOTICE).unwrap();
    let told = "Protocol error";
    assert!(served.output.contains(told), "{}", served.describe());
    let attacked = attacking.wait(NOTICE).unwrap();
    assert!(attacked.succeeded(), "{}", attacked.describe());
    expect_all_taken_back(&one.host);
    one.down();
}
