//! One host as an ordinary user, and inside an unprivileged container.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::Copies;
use urdma_harness::process::Process;
use urdma_tests::alone;

/// An ordinary user of this test alone. The session looks for files of its user, and other tests
/// create files as `nobody` at the same time.
const USER: u32 = 65_533;
const LIMIT: Duration = Duration::from_secs(180);

/// The commands of a user: an instance, two programs, down again.
const SESSION: &str = r#"
set -eu
cd "$HOME"
./urdma up
./urdma run -- ibv_devinfo | grep PORT_ACTIVE
./urdma run -- ib_write_bw -F -n 1000 -p 18990 >server.out 2>&1 &
for i in $(seq 600); do grep -q ':4A2E .* 0A ' /proc/net/tcp && break; sleep 0.05; done
./urdma run -- ib_write_bw -F -n 1000 -p 18990 127.0.0.1
wait
./urdma run -- ucmatose -b 127.0.0.1 -p 7001 >/dev/null 2>&1 &
for i in $(seq 600); do ./urdma status | grep -q 'port 7001' && break; sleep 0.05; done
./urdma run -- ucmatose -s 127.0.0.1 -p 7001
wait
./urdma down
test -z "$(find / -xdev -user "$(id -u)" -newer ./stamp -path '*urdma*' \
    -not -path "$HOME" -not -path "$HOME/*" -not -path '/proc/*' 2>/dev/null)"
echo session done
"#;

/// A home directory owned by the user, with urdma's programs in it.
fn home() -> Copies {
    let home = Copies::of_urdma().unwrap();
    fs::write(home.path().join("session.sh"), SESSION).unwrap();
    fs::write(home.path().join("stamp"), "").unwrap();
    fs::create_dir(home.path().join("run")).unwrap();
    for entry in fs::read_dir(home.path()).unwrap() {
        chown(entry.unwrap().path(), Some(USER), Some(USER)).unwrap();
    }
    chown(home.path(), Some(USER), Some(USER)).unwrap();
    fs::set_permissions(home.path().join("run"), fs::Permissions::from_mode(0o700)).unwrap();
    home
}

/// `program` as the user, without capabilities, with no environment but its home.
fn as_user(home: &Path, program: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([
            &format!("--reuid={USER}"),
            &format!("--regid={USER}"),
            "--clear-groups",
            "--inh-caps=-all",
            "--no-new-privs",
        ])
        .args(program)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", home)
        .env("XDG_RUNTIME_DIR", home.join("run"));
    command
}

fn expect_session_done(command: &mut Command) {
    let ended = Process::run(command, LIMIT).unwrap();
    assert!(
        ended.succeeded() && ended.output.contains("session done"),
        "{}\n{}",
        ended.describe(),
        ended.output
    );
}

#[test]
fn ordinary_user_runs_the_one_host_part_from_his_home() {
    let _alone = alone();
    let home = home();
    expect_session_done(&mut as_user(
        home.path(),
        &["sh", &home.path().join("session.sh").to_string_lossy()],
    ));
}

#[test]
fn unprivileged_container_runs_the_one_host_part() {
    let _alone = alone();
    let home = home();
    let home_path = home.path().to_string_lossy();
    expect_session_done(&mut as_user(
        home.path(),
        &[
            "bwrap",
            "--unshare-all",
            "--die-with-parent",
            "--ro-bind",
            "/usr",
            "/usr",
            "--ro-bind",
            "/etc",
            "/etc",
            "--symlink",
            "usr/bin",
            "/bin",
            "--symlink",
            "usr/lib",
            "/lib",
            "--symlink",
            "usr/lib64",
            "/lib64",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "--bind",
            &home_path,
            &home_path,
            "sh",
            &home.path().join("session.sh").to_string_lossy(),
        ],
    ));
}
