//! `urdma run --sockets-diagnose`: which code makes system calls on sockets without the C library.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use urdma_harness::process::{wait_until, Process};
use urdma_tests::rings::{client, compile, from_call, output, status};
use urdma_tests::{alone, ports, OneHost, SHORT};

use crate::ENDS;

/// The calls of `raw.c`, and its functions that make them.
const CALLS: [(&str, &str); 7] = [
    ("read", "main"),
    ("recvfrom", "main"),
    ("poll", "look_at"),
    ("select", "look_at"),
    ("epoll_wait", "look_at"),
    ("readv", "handle_signals"),
    ("recvmsg", "in_thread"),
];

fn function_at(program: &Path, address: &str) -> String {
    let mut command = Command::new("addr2line");
    command.arg("-fe").args([program, Path::new(address)]);
    let ended = Process::run(&mut command, SHORT).unwrap();
    ended.output.lines().next().unwrap().to_owned()
}

#[test]
fn calls_without_the_c_library_are_named_once_with_their_module() {
    let _alone = alone();
    let one = OneHost::up();
    let program = compile(one.scratch.path(), "raw");
    let begin = one.scratch.path().join("begin");
    let begin = begin.to_str().unwrap();
    let observer = client(&one);
    for (joined, is_diagnosed) in [(1, true), (2, false)] {
        let port = ports().to_string();
        let mut echo = from_call(&one, 0, &["python3", ENDS, "echo", &port]);
        let mut server = Process::start(&mut echo).unwrap();
        server.wait_for_text("ready", SHORT).unwrap();
        let mut command = one.host.subcommand("run").unwrap();
        command.args(["--sockets", "--sockets-from", "0"]);
        if is_diagnosed {
            command.arg("--sockets-diagnose");
        }
        command.arg("--").arg(&program).args([&port, begin]);
        let client = Process::start(&mut command).unwrap();
        wait_until("the meeting", SHORT, || status(&observer).joined == joined).unwrap();
        File::create(begin).unwrap();
        let said = output(client);
        output(server);
        assert!(said.contains("done"), "{said}");
        std::fs::remove_file(begin).unwrap();

        let from = format!("urdma: {}+0x", program.display());
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("urdma")).collect();
        let mut expected = Vec::new();
        if is_diagnosed {
            for (name, function) in CALLS {
                let what = match name {
                    "epoll_wait" => "sockets of the epoll set may have rings",
                    _ => "it has rings",
                };
                expected.push((name, function, what));
            }
        }
        assert_eq!(lines.len(), expected.len(), "{said}");
        for (line, (name, function, what)) in lines.iter().zip(expected) {
            let says = format!(" calls {name}(2) on descriptor ");
            let why = format!(" without the C library: {what}");
            assert!(line.starts_with(&from) && line.contains(&says), "{line}");
            assert!(line.ends_with(&why), "{line}");
            let address = line.split(['+', ' ']).find(|word| word.starts_with("0x"));
            assert_eq!(function_at(&program, address.unwrap()), function);
        }
    }
    one.down();
}
