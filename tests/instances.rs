//! Selection of the instance for a command: by its options, its configuration, or neither.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::{urdma, Scratch};
use urdma_harness::process::{Ended, Process};
use urdma_tests::alone;

const LIMIT: Duration = Duration::from_secs(60);
/// Where root's instances are.
const BASE: &str = "/run/urdma";

/// `urdma` with these arguments, and without the environment variables that select an instance.
fn command(arguments: &[&str]) -> Command {
    let mut command = urdma().unwrap();
    command.args(arguments);
    command
        .env_remove("URDMA_RUN_DIR")
        .env_remove("URDMA_INSTANCE");
    command
}

fn ask(arguments: &[&str]) -> Ended {
    Process::run(&mut command(arguments), LIMIT).unwrap()
}

/// An instance of root with its own name, and its configuration.
struct Named {
    name: String,
    /// A name that no instance has.
    other: String,
    config: PathBuf,
    scratch: Scratch,
}

impl Named {
    fn new(purpose: &str) -> Self {
        let scratch = Scratch::new("test").unwrap();
        let name = format!("test-{purpose}-{}", std::process::id());
        let config = scratch.path().join("a.toml");
        let text = format!("instance = \"{name}\"\naddress = [\"127.0.0.1\"]\n");
        fs::write(&config, text).unwrap();
        let other = format!("{name}-other");
        Self {
            name,
            other,
            config,
            scratch,
        }
    }

    fn config(&self) -> &str {
        self.config.to_str().unwrap()
    }

    fn run_dir(&self) -> PathBuf {
        Path::new(BASE).join(&self.name)
    }

    /// A run directory outside root's.
    fn elsewhere(&self) -> String {
        self.scratch.path().join("elsewhere").display().to_string()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // Left by a failed test.
        ask(&["down", "--instance", &self.name]);
        ask(&["down", "--instance", &self.other]);
        ask(&["down", "--run-dir", &self.elsewhere()]);
    }
}

fn expect_failure(ended: &Ended, words: &[&str]) {
    assert!(!ended.succeeded(), "{}", ended.output);
    for word in words {
        assert!(ended.output.contains(word), "no {word} in {}", ended.output);
    }
}

#[test]
fn instance_named_by_its_configuration_runs_under_that_name() {
    let _alone = alone();
    let named = Named::new("config");
    // The configuration takes precedence over the environment.
    let mut up = command(&["up", "--config", named.config()]);
    up.env("URDMA_INSTANCE", &named.other);
    up.env("URDMA_RUN_DIR", named.elsewhere());
    let up = Process::run(&mut up, LIMIT).unwrap();
    assert!(up.succeeded(), "{}", up.describe());
    let hint = format!("urdma run --instance {} --", named.name);
    assert!(up.output.contains(&hint), "{}", up.output);
    assert!(named.run_dir().join("control.sock").exists());
    expect_failure(
        &ask(&["up", "--config", named.config()]),
        &[&named.name, "is up already"],
    );
    let by_name = ["--instance", named.name.as_str()];
    let status = ask(&[&["status"][..], &by_name].concat());
    let shown = format!("instance {} ", named.name);
    assert!(status.output.contains(&shown), "{}", status.output);
    let ran = ask(&[&["run"][..], &by_name, &["--", "printenv", "URDMA_RUN_DIR"]].concat());
    assert_eq!(Path::new(ran.output.trim()), named.run_dir());
    let down = ask(&[&["down"][..], &by_name].concat());
    assert!(down.output.contains(&named.name), "{}", down.output);
    assert!(!named.run_dir().exists());
}

#[test]
fn instance_named_by_a_pipe_or_standard_input_runs_under_that_name() {
    let _alone = alone();
    let named = Named::new("pipe");
    let scripts = [
        r#"cat "$2" | "$1" up --config /dev/stdin"#,
        r#"exec "$1" up --config /dev/stdin <"$2""#,
        r#"cat "$2" | "$1" up --config /dev/fd/3 3<&0 </dev/null"#,
        r#"mkfifo "$2.pipe"; cat "$2" >"$2.pipe" & "$1" up --config "$2.pipe"; wait"#,
    ];
    for script in scripts {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]);
        shell.arg(urdma().unwrap().get_program());
        shell.arg(named.config());
        shell
            .env_remove("URDMA_RUN_DIR")
            .env_remove("URDMA_INSTANCE");
        let up = Process::run(&mut shell, LIMIT).unwrap();
        assert!(up.succeeded(), "{script}: {}", up.describe());
        let control = named.run_dir().join("control.sock");
        assert!(control.exists(), "{script}: {}", up.output);
        let down = ask(&["down", "--instance", &named.name]);
        assert!(down.succeeded(), "{script}: {}", down.describe());
    }
}

#[test]
fn error_in_a_configuration_on_standard_input_is_reported() {
    let _alone = alone();
    let scratch = Scratch::new("test").unwrap();
    let mut shell = Command::new("sh");
    let script = r#"echo no_such_key = 1 | "$1" up --run-dir "$2" --config /dev/stdin"#;
    shell.args(["-c", script, "sh"]);
    shell.arg(urdma().unwrap().get_program());
    shell.arg(scratch.path().join("a"));
    let up = Process::run(&mut shell, LIMIT).unwrap();
    expect_failure(&up, &["/dev/stdin", "no_such_key"]);
    let run_dir = scratch.path().join("a").display().to_string();
    let missing = ask(&["up", "--run-dir", &run_dir, "--config", "/dev/fd/99"]);
    expect_failure(&missing, &["/dev/fd/99"]);
}

#[test]
fn option_and_configuration_that_disagree_start_nothing() {
    let _alone = alone();
    let named = Named::new("clash");
    let up = ask(&["up", "--instance", &named.other, "--config", named.config()]);
    expect_failure(&up, &[named.config(), &named.name, &named.other]);
    assert!(!named.run_dir().exists());
    assert!(!Path::new(BASE).join(&named.other).exists());
}

#[test]
fn run_directory_and_name_must_be_those_of_one_instance() {
    let _alone = alone();
    let named = Named::new("dir");
    let run_dir = named.elsewhere();
    let up = ask(&["up", "--run-dir", &run_dir, "--config", named.config()]);
    assert!(up.succeeded(), "{}", up.describe());
    for command in ["status", "down", "run"] {
        let arguments = [command, "--run-dir", &run_dir, "--instance", &named.other];
        let program: &[&str] = if command == "run" { &["true"] } else { &[] };
        let said = ask(&[&arguments[..], program].concat());
        expect_failure(&said, &[&run_dir, &named.name, &named.other]);
    }
    let down = ask(&["down", "--run-dir", &run_dir]);
    assert!(down.succeeded(), "{}", down.describe());
    assert!(down.output.contains(&named.name), "{}", down.output);
}
