//! Programs with their own libibverbs under another name, as in Python wheels.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use urdma_harness::instance::LeasePolicy;
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, OneHost, CHECK_LIMIT, SHORT};

/// The directory of the sources.
const TESTS: &str = env!("CARGO_MANIFEST_DIR");
/// The suffix of the names of copied libraries, as by Python's auditwheel.
const MARK: &str = "-abcdef12";

/// Runs a tool that a test needs.
fn tool(argv: &[&str]) -> String {
    let mut command = Command::new(argv[0]);
    let ended = Process::run(command.args(&argv[1..]), SHORT)
        .unwrap_or_else(|failure| panic!("{argv:?}: {failure}: run scripts/install-deps.sh"));
    assert!(ended.succeeded(), "{argv:?}: {}", ended.describe());
    ended.output
}

/// A path as text.
fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Copies a library of the system to a directory under another name and soname, and makes it depend
/// on the `renamed` copies; returns its path.
fn renamed_copy(library: &str, dir: &Path, renamed: &[&str]) -> PathBuf {
    let system = tool(&["cc", &format!("-print-file-name={library}")]);
    let name = marked(library);
    let copy = dir.join(&name);
    fs::copy(system.trim(), &copy).unwrap();
    tool(&["patchelf", "--set-soname", &name, text(&copy)]);
    need_renamed(&copy, dir, renamed);
    copy
}

/// `libibverbs.so.1` with the suffix.
fn marked(library: &str) -> String {
    library.replacen(".so", &format!("{MARK}.so"), 1)
}

/// Makes a file depend on the renamed copies of these libraries in `dir`.
fn need_renamed(file: &Path, dir: &Path, renamed: &[&str]) {
    for library in renamed {
        let arguments = ["patchelf", "--replace-needed", library, &marked(library)];
        tool(&[&arguments[..], &[text(file)]].concat());
    }
    tool(&["patchelf", "--set-rpath", text(dir), text(file)]);
}

/// Compiles a file of `tests/libibverbs-copies`.
fn compile(source: &str, output: &Path, flags: &[&str]) {
    let source = format!("{TESTS}/libibverbs-copies/{source}");
    let command = ["cc", "-Wall", "-Wextra", "-Werror", &source, "-o"];
    tool(&[&command[..], &[text(output)], flags].concat());
}

/// Builds `verbs-check` as a shared object that depends on the renamed copies in `dir`.
fn renamed_verbs_check(dir: &Path) -> PathBuf {
    let object = dir.join("verbs-check.so");
    let sources: Vec<String> = fs::read_dir(format!("{TESTS}/verbs-check"))
        .unwrap()
        .map(|entry| text(&entry.unwrap().path()).to_owned())
        .filter(|path| path.ends_with(".c"))
        .collect();
    let mut argv = vec!["cc", "-shared", "-fPIC", "-o", text(&object)];
    argv.extend(sources.iter().map(String::as_str));
    argv.extend(["-lrdmacm", "-libverbs"]);
    tool(&argv);
    need_renamed(&object, dir, &["libibverbs.so.1", "librdmacm.so.1"]);
    object
}

/// Runs a program over the host and waits for its end.
fn run(one: &OneHost, argv: &[&str]) -> Ended {
    let mut command = one.host.run(LeasePolicy::Never, argv).unwrap();
    let ended = Process::run(&mut command, CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{argv:?}: {}", ended.describe());
    ended
}

#[test]
fn program_with_its_own_libibverbs_has_the_device() {
    let _alone = alone();
    let one = OneHost::up();
    let dir = one.scratch.path();
    renamed_copy("libibverbs.so.1", dir, &[]);
    renamed_copy("librdmacm.so.1", dir, &["libibverbs.so.1"]);
    let object = renamed_verbs_check(dir);
    let program = dir.join("load");
    compile("load.c", &program, &[]);
    for scenario in ["requests", "datagram", "events", "cm"] {
        let ended = run(&one, &[text(&program), text(&object), scenario]);
        let said = ended.output.contains(&format!("{scenario}: ok"));
        assert!(said, "{scenario}: {}", ended.output);
    }
    one.down();
}

/// Opens the device through the copies in turn and checks that each can use it.
fn expect_each_to_work(one: &OneHost, program: &Path, copies: &[&str]) {
    let argv = [&[text(program)], copies].concat();
    let ended = run(one, &argv);
    for copy in copies {
        let said = ended.output.contains(&format!("{copy}: urdma0 works"));
        assert!(said, "{copies:?}: {}", ended.output);
    }
}

#[test]
fn every_copy_of_libibverbs_in_a_process_has_the_device() {
    let _alone = alone();
    let one = OneHost::up();
    let dir = one.scratch.path();
    let copy = renamed_copy("libibverbs.so.1", dir, &[]);
    let program = dir.join("open");
    compile("open.c", &program, &[]);
    let system = "libibverbs.so.1";
    expect_each_to_work(&one, &program, &[text(&copy)]);
    expect_each_to_work(&one, &program, &[system, text(&copy)]);
    expect_each_to_work(&one, &program, &[text(&copy), system]);
    one.down();
}

/// uDAPL's registry loads and unloads its provider in this way, and libibverbs with it.
#[test]
fn libibverbs_that_is_unloaded_and_loaded_again_has_the_device() {
    let _alone = alone();
    let one = OneHost::up();
    let program = one.scratch.path().join("open");
    compile("open.c", &program, &[]);
    let system = "libibverbs.so.1";
    let argv = [text(&program), "--unload", system, system, system];
    let ended = run(&one, &argv);
    let worked = ended.output.matches("urdma0 works").count();
    assert_eq!(worked, 3, "{}", ended.output);
    one.down();
}

#[test]
fn libibverbs_of_an_unknown_private_abi_is_named() {
    let _alone = alone();
    let one = OneHost::up();
    let dir = one.scratch.path();
    let unknown = dir.join("libibverbs-unknown.so.1");
    compile("unknown.c", &unknown, &["-shared", "-fPIC"]);
    let program = dir.join("open");
    compile("open.c", &program, &[]);
    let ended = run(&one, &[text(&program), text(&unknown)]);
    assert!(ended.output.contains("no device"), "{}", ended.output);
    let sentence = format!("urdma: {} has the private provider ABI 777", text(&unknown));
    assert!(ended.errors.contains(&sentence), "{}", ended.errors);
    one.down();
}
