//! Users of one machine who do not trust one another.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::{Copies, LeasePolicy};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, OneHost, CHECK_LIMIT, VERBS_CHECK};

/// User ids without accounts.
const ATTACKER: u32 = 64_001;
const VICTIM: u32 = 64_002;
const LIMIT: Duration = Duration::from_secs(60);

/// A copy of urdma's programs that all users can execute.
struct Programs(Copies);

impl Programs {
    fn new() -> Self {
        Self(Copies::of_urdma().unwrap())
    }

    /// `urdma` as a user without a runtime directory.
    fn urdma(&self, user: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={user}"))
            .args(["--clear-groups", "--inh-caps=-all", "--no-new-privs"])
            .arg(self.0.path().join("urdma"))
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command
    }

    fn ask(&self, user: u32, arguments: &[&str]) -> Ended {
        Process::run(&mut self.urdma(user, arguments), LIMIT).unwrap()
    }
}

/// An instance of the attacker that admits every user; it ends when dropped.
struct OfAttacker<'a> {
    programs: &'a Programs,
    run_dir: String,
    base: PathBuf,
}

impl<'a> OfAttacker<'a> {
    /// Starts it below `base`, which the attacker creates.
    fn up(programs: &'a Programs, base: &Path, name: &str) -> Self {
        fs::create_dir(base).unwrap();
        chown(base, Some(ATTACKER), Some(ATTACKER)).unwrap();
        let instance = Self {
            programs,
            run_dir: base.join(name).display().to_string(),
            base: base.to_owned(),
        };
        let up = programs.ask(ATTACKER, &["up", "--run-dir", &instance.run_dir]);
        assert!(up.succeeded(), "{}", up.describe());
        allow(&instance.run_dir, 0o755);
        allow(Path::new(&instance.run_dir).join("control.sock"), 0o666);
        instance
    }
}

impl Drop for OfAttacker<'_> {
    fn drop(&mut self) {
        let down = ["down", "--run-dir", &self.run_dir];
        let down = self.programs.ask(ATTACKER, &down);
        if !down.succeeded() {
            eprintln!("{}", down.describe());
        }
        let _ = fs::remove_dir_all(&self.base);
    }
}

fn allow(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An instance of root that the victim may use; down when dropped.
struct OfRoot<'a> {
    programs: &'a Programs,
    name: String,
}

impl<'a> OfRoot<'a> {
    fn up(programs: &'a Programs, name: &str, keys: &str) -> Self {
        let config = programs.0.path().join("root.toml");
        let keys = format!("instance = \"{name}\"\naddress = [\"127.0.0.1\"]\n{keys}");
        fs::write(&config, keys).unwrap();
        let up = programs.ask(0, &["up", "--config", config.to_str().unwrap()]);
        assert!(up.succeeded(), "{}", up.describe());
        Self {
            programs,
            name: name.to_owned(),
        }
    }

    fn socket(&self) -> PathBuf {
        Path::new("/run/urdma")
            .join(&self.name)
            .join("control.sock")
    }
}

impl Drop for OfRoot<'_> {
    fn drop(&mut self) {
        self.programs.ask(0, &["down", "--instance", &self.name]);
    }
}

// Programs of the victim attached to memory that the attacker reads and writes.
#[test]
fn instance_of_another_user_in_the_place_of_the_callers_own_is_refused() {
    let _alone = alone();
    let programs = Programs::new();
    let name = format!("squat-{}", std::process::id());
    let base = PathBuf::from(format!("/tmp/urdma-{VICTIM}"));
    let squat = OfAttacker::up(&programs, &base, &name);
    for options in [["--run-dir", &squat.run_dir], ["--instance", &name]] {
        for command in ["status", "run", "down"] {
            let program: &[&str] = if command == "run" { &["true"] } else { &[] };
            let said = programs.ask(VICTIM, &[&[command][..], &options, program].concat());
            assert!(!said.succeeded(), "{command}: {}", said.output);
            let fault = format!("{} belongs to user {ATTACKER}", base.display());
            assert!(said.output.contains(&fault), "{command}: {}", said.output);
        }
    }
    // The victim cannot have an instance of its own there.
    let up = programs.ask(VICTIM, &["up", "--instance", &name]);
    assert!(!up.succeeded(), "{}", up.output);
    assert!(up.output.contains("another user"), "{}", up.output);
    // An instance of root is used instead.
    let root = OfRoot::up(&programs, &name, "");
    allow(root.socket().parent().unwrap(), 0o755);
    allow(root.socket(), 0o666);
    let status = programs.ask(VICTIM, &["status", "--instance", &name, "--json"]);
    let dir = format!("/run/urdma/{name}");
    assert!(status.output.contains(&dir), "{}", status.describe());
}

#[test]
fn instance_of_another_user_is_used_where_it_is_named() {
    let _alone = alone();
    let programs = Programs::new();
    let base = programs.0.path().join("base");
    let instance = OfAttacker::up(&programs, &base, "a");
    let ask = || programs.ask(VICTIM, &["status", "--run-dir", &instance.run_dir]);
    let status = ask();
    assert!(status.succeeded(), "{}", status.describe());
    // Users other than its owner could replace files there.
    allow(&base, 0o777);
    let refused = ask();
    assert!(!refused.succeeded(), "{}", refused.output);
    let fault = format!("{} can be changed by other users", base.display());
    assert!(refused.output.contains(&fault), "{}", refused.output);
    allow(&base, 0o755);
}

/// Two users who share nothing but a system-wide instance that admits everyone, one of them in a
/// container.
#[test]
fn programs_of_two_users_communicate_on_an_instance_of_everyone() {
    let _alone = alone();
    let programs = Programs::new();
    let dir = programs.0.path();
    programs.0.of(Path::new(VERBS_CHECK)).unwrap();
    let meet = dir.join("meet");
    fs::create_dir(&meet).unwrap();
    allow(&meet, 0o777);
    let name = format!("everyone-{}", std::process::id());
    let instance = OfRoot::up(&programs, &name, "access = \"everyone\"\n");
    let (check, path) = (dir.join("verbs-check"), meet.join("mix"));
    let (check, path) = (check.to_str().unwrap(), path.to_str().unwrap());
    let run_dir = instance.socket().parent().unwrap().display().to_string();
    let argv = |role| {
        let run = ["run", "--run-dir", &run_dir, "--"];
        [&run[..], &[check, "mix", role, path]].concat()
    };
    let server = with_open_files(&programs.urdma(ATTACKER, &argv("server")));
    let client = in_container(&programs.urdma(VICTIM, &argv("client")), dir);
    for end in [server, client].map(|mut end| Process::start(&mut end).unwrap()) {
        let ended = end.wait(CHECK_LIMIT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    // They may look at it, and not end it.
    let status = programs.ask(VICTIM, &["status", "--instance", &name]);
    assert!(status.succeeded(), "{}", status.describe());
    let down = programs.ask(VICTIM, &["down", "--instance", &name]);
    assert!(!down.succeeded(), "{}", down.output);
    let log = instance.socket().with_file_name("urdmad.log");
    assert_eq!(
        fs::metadata(log).unwrap().permissions().mode() & 0o777,
        0o640
    );
}

/// A program of `setpriv` before which others are put.
fn behind(command: &Command, wrapper: &[&str]) -> Command {
    let arguments: Vec<_> = command.get_args().collect();
    let options = arguments
        .iter()
        .take_while(|argument| argument.to_string_lossy().starts_with("--"))
        .count();
    let mut wrapped = Command::new(command.get_program());
    wrapped
        .args(&arguments[..options])
        .args(wrapper)
        .args(&arguments[options..])
        .env_clear()
        .env("PATH", "/usr/bin:/bin");
    wrapped
}

/// The files and sockets that the program creates can be used by all.
fn with_open_files(command: &Command) -> Command {
    behind(command, &["sh", "-c", "umask 0; exec \"$@\"", "sh"])
}

/// In namespaces of its own, with the base directory of the host's instances mounted.
fn in_container(command: &Command, programs: &Path) -> Command {
    let programs = programs.to_str().unwrap();
    let binds = ["/usr", "/etc", "/run/urdma"].map(|dir| ["--ro-bind", dir, dir]);
    let mut wrapper = vec!["bwrap", "--unshare-all", "--die-with-parent"];
    wrapper.extend(binds.iter().flatten());
    for (target, link) in [
        ("usr/bin", "/bin"),
        ("usr/lib", "/lib"),
        ("usr/lib64", "/lib64"),
    ] {
        wrapper.extend(["--symlink", target, link]);
    }
    wrapper.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    wrapper.extend(["--bind", programs, programs]);
    behind(command, &wrapper)
}

// Regression: ibv_query_gid failed with EACCES.
#[test]
fn process_that_gives_up_root_goes_on_using_its_device() {
    let _alone = alone();
    let one = OneHost::up();
    allow(one.scratch.path(), 0o755);
    let argv = [VERBS_CHECK, "setuid"];
    let mut command = one.host.run(LeasePolicy::Never, &argv).unwrap();
    let ended = Process::run(&mut command, CHECK_LIMIT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    // Other users see the sysfs of a device, and nothing else.
    let socket = one.host.run_dir().join("control.sock");
    for (path, mode) in [
        (one.host.run_dir().to_owned(), 0o711),
        (socket, 0o660),
        (one.host.run_dir().join("pid"), 0o600),
        (one.host.run_dir().join("urdmad.log"), 0o640),
    ] {
        let found = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{}", path.display());
    }
    one.down();
}
