//! The examples in the documents are compiled and run.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use urdma_harness::instance::{LeasePolicy, Scratch};
use urdma_harness::process::Process;
use urdma_tests::{alone, OneHost, SHORT};

/// The first block of `language` in a document.
fn example(document: &str, language: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../doc");
    let text = std::fs::read_to_string(path.join(document)).unwrap();
    let begin = format!("```{language}\n");
    let (_, rest) = text.split_once(&begin).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

fn compile(scratch: &Scratch, source: &str) -> PathBuf {
    let (file, program) = (scratch.path().join("hello.c"), scratch.path().join("hello"));
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new("cc");
    command.args([
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Werror",
    ]);
    command.arg("-o").args([&program, &file]);
    command.args(["-lrdmacm", "-libverbs"]);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    program
}

#[test]
fn example_of_connections_carries_a_message() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile(&one.scratch, &example("connections.md", "c"));
    let program = program.to_str().unwrap();
    let command = |role| {
        let argv = [program, role, "127.0.0.1"];
        one.host.run(LeasePolicy::Never, &argv).unwrap()
    };
    let mut server = Process::start(&mut command("server")).unwrap();
    server.wait_for_text("listening", SHORT).unwrap();
    let client = Process::run(&mut command("client"), SHORT).unwrap();
    let server = server.wait(SHORT).unwrap();
    for end in [client, server] {
        assert!(end.succeeded(), "{}", end.describe());
        assert!(end.output.contains("success: hello"), "{}", end.describe());
    }
    one.down();
}
