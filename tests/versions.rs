//! Two versions of urdma on one host: each command and program that meets a urdmad of another
//! version says so, and `urdma down` ends it.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use urdma_harness::instance::{urdma, Copies, LeasePolicy, Scratch};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, OneHost, SHORT};

/// A urdmad of a version that does not exist yet: it refuses each Hello, as all versions do, and
/// ends with SIGTERM.
const OTHER_URDMAD: &str = r#"
import json, os, signal, socket, sys

path = sys.argv[1]
os.makedirs(os.path.dirname(path), mode=0o755)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(path)
listener.listen()

def end(*_):
    os.unlink(path)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
while True:
    client, _ = listener.accept()
    hello = json.loads(client.recv(65536))
    kind = {"version_mismatch": {"theirs": 4000}}
    refusal = {"kind": kind, "message": "another version"}
    answer = {"id": hello["id"], "result": {"Err": refusal}}
    client.send(json.dumps({"answer": answer}).encode())
    client.close()
"#;

/// What every command and program says that meets it.
const WORDS: [&str; 3] = ["another version", "control protocol 4000", "`urdma down`"];

/// That urdmad, in a directory of its own.
struct OtherUrdmad {
    process: Child,
    run_dir: PathBuf,
    _scratch: Scratch,
}

impl OtherUrdmad {
    fn start() -> Self {
        let scratch = Scratch::new("versions").unwrap();
        let run_dir = scratch.path().join("other");
        let socket = run_dir.join("control.sock");
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", OTHER_URDMAD]).arg(&socket);
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while !socket.exists() {
            assert!(start.elapsed() < SHORT, "it does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self {
            process,
            run_dir,
            _scratch: scratch,
        }
    }

    fn ask(&self, subcommand: &str, program: &[&str]) -> Ended {
        let mut command = urdma().unwrap();
        command.arg(subcommand).arg("--run-dir").arg(&self.run_dir);
        Process::run(command.args(program), SHORT).unwrap()
    }
}

impl Drop for OtherUrdmad {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn expect_words(ended: &Ended, words: &[&str]) {
    for word in words {
        assert!(ended.output.contains(word), "no {word} in {}", ended.output);
    }
}

#[test]
fn command_that_meets_another_version_says_so() {
    let _alone = alone();
    let other = OtherUrdmad::start();
    for subcommand in ["status", "top", "metrics", "trace", "run"] {
        let program: &[&str] = if subcommand == "run" { &["true"] } else { &[] };
        let ended = other.ask(subcommand, program);
        assert!(!ended.succeeded(), "{subcommand}: {}", ended.output);
        expect_words(&ended, &WORDS);
    }
}

// A urdmad that was restarted with another version, while a shell with its environment runs on.
#[test]
fn program_that_meets_another_version_says_so() {
    let _alone = alone();
    let one = OneHost::up();
    let other = OtherUrdmad::start();
    let variable = format!("URDMA_RUN_DIR={}", other.run_dir.display());
    let argv = ["env", &variable, "ibv_devinfo", "-d", "urdma0"];
    // Without SYSFS_PATH, which is still that of the first.
    let mut run = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut run, SHORT).unwrap();
    assert!(!ended.succeeded(), "{}", ended.output);
    expect_words(&ended, &WORDS);
    one.down();
}

// After an upgrade of the package, `urdma down` is that of the new version, and urdmad is not.
#[test]
fn down_ends_an_urdmad_of_another_version() {
    let _alone = alone();
    let mut other = OtherUrdmad::start();
    let ended = other.ask("down", &[]);
    assert!(ended.succeeded(), "{}", ended.output);
    expect_words(&ended, &["is down"]);
    assert!(other.process.wait().unwrap().success());
    assert!(!other.run_dir.join("control.sock").exists());
}

/// Builds a program that is that urdmad: `urdma` starts no script.
fn build_other_urdmad(scratch: &Path, program: &Path) {
    let (script, source) = (scratch.join("urdmad.py"), scratch.join("urdmad.c"));
    std::fs::write(&script, OTHER_URDMAD).unwrap();
    // The directory follows the first option.
    let main = format!(
        r#"
        #include <stdio.h>
        #include <unistd.h>
        int main(int count, char **words) {{
            char path[256];
            snprintf(path, sizeof(path), "%s/control.sock", words[count > 2 ? 2 : 0]);
            execl("/usr/bin/python3", "python3", "{}", path, (char *)0);
            return 1;
        }}"#,
        script.display()
    );
    std::fs::write(&source, main).unwrap();
    let mut compiler = Command::new("cc");
    let built = compiler.arg(&source).arg("-o").arg(program).status();
    assert!(built.unwrap().success());
}

// An installation of which one program was replaced. The test fails by its time limit if urdma goes
// on asking.
#[test]
fn up_ends_its_urdmad_of_another_version() {
    let _alone = alone();
    let copies = Copies::of_urdma().unwrap();
    let urdmad = copies.path().join("urdmad");
    let scratch = Scratch::new("versions").unwrap();
    build_other_urdmad(scratch.path(), &urdmad);
    let run_dir = scratch.path().join("other");
    let mut command = Command::new(copies.path().join("urdma"));
    command.arg("up").arg("--run-dir").arg(&run_dir);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(!ended.succeeded(), "{}", ended.output);
    let shown = urdmad.display().to_string();
    let words = [
        &shown,
        "another version",
        "control protocol 4000",
        "both of one version",
    ];
    expect_words(&ended, &words);
    let socket = run_dir.join("control.sock");
    assert!(!socket.exists(), "it has not been ended");
}

/// `urdma run` of copies, for an instance.
fn run_of(copies: &Copies, run_dir: &Path) -> [String; 5] {
    let urdma = copies.path().join("urdma").display().to_string();
    let run_dir = run_dir.display().to_string();
    [
        urdma,
        "run".into(),
        "--run-dir".into(),
        run_dir,
        "--".into(),
    ]
}

// A shell that runs under the wheel's urdma, say, starts a program with the package's: the program
// loads the libraries of both.
#[test]
fn program_of_two_installations_has_the_device_of_the_inner_one() {
    // The server may not listen yet.
    const SCRIPT: &str = "ibv_devinfo -d urdma0; ucmatose & \
                          until ucmatose -s 127.0.0.1; do sleep 0.1; done; wait $!";
    let _alone = alone();
    let (outer, inner) = (OneHost::up(), OneHost::up());
    let copies = Copies::of_urdma().unwrap();
    let mut argv = run_of(&copies, inner.host.run_dir()).to_vec();
    argv.extend(["sh".into(), "-c".into()]);
    argv.push(SCRIPT.into());
    let mut run = outer.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut run, SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.output);
    inner.down();
    outer.down();
}
