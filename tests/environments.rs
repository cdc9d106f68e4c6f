//! Environments in which something is missing, and the messages of urdma there.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sched::{unshare, CloneFlags};
use nix::sys::resource::{setrlimit, Resource};
use urdma_harness::instance::{urdma, Copies, Instance, LeasePolicy};
use urdma_harness::process::Process;
use urdma_harness::programs::{words, Job, Ready};
use urdma_tests::{alone, ports, run_all, OneHost, SHORT};

/// Enough for a program and its channels, and for urdmad.
const ADDRESSES_OCTETS: u64 = 1 << 30;

/// Runs a command and checks that it fails with these words.
fn expect_words(command: &mut Command, words: &[&str]) {
    let ended = Process::run(command, SHORT).unwrap();
    assert!(!ended.succeeded(), "{}", ended.output);
    for word in words {
        assert!(ended.output.contains(word), "no {word} in {}", ended.output);
    }
}

fn limit_addresses(command: &mut Command) {
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            Ok(setrlimit(
                Resource::RLIMIT_AS,
                ADDRESSES_OCTETS,
                ADDRESSES_OCTETS,
            )?)
        });
    }
}

/// `command` in a container whose /dev is empty.
fn without_dev(command: &Command) -> Command {
    let mut contained = Command::new("bwrap");
    contained
        .args(["--bind", "/", "/", "--tmpfs", "/dev", "--die-with-parent"])
        .arg(command.get_program())
        .args(command.get_args());
    contained
}

/// A subcommand of `urdma` for an additional instance.
fn another(host: &Instance, subcommand: &str) -> Command {
    let mut command = urdma().unwrap();
    command
        .arg(subcommand)
        .arg("--run-dir")
        .arg(host.run_dir().with_file_name("another"));
    command
}

// The number of slots takes no addresses: memory is mapped for each process that there is.
#[test]
fn address_limit_leaves_room_for_programs_and_urdmad() {
    let _alone = alone();
    let one = OneHost::up();
    let run = one.host.run(LeasePolicy::Never, &["ibv_devinfo"]).unwrap();
    let [up, down] = ["up", "down"].map(|subcommand| another(&one.host, subcommand));
    let ended = [run, up, down].map(|mut command| {
        limit_addresses(&mut command);
        Process::run(&mut command, SHORT).unwrap()
    });
    for ended in ended {
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    one.down();
}

#[test]
fn missing_dev_is_named() {
    let _alone = alone();
    let one = OneHost::up();
    let run = one.host.run(LeasePolicy::Never, &["ibv_devinfo"]).unwrap();
    for command in [run, another(&one.host, "up")] {
        expect_words(&mut without_dev(&command), &["there is no /dev/null"]);
    }
    one.down();
}

/// `SUBCOMMAND` of the copies of urdma in a directory; with the options of `urdma run` for an
/// instance.
fn of_copies(copies: &Path, host: &Instance, subcommand: &str) -> Command {
    let mut command = Command::new(copies.join("urdma"));
    let run_dir = match subcommand {
        "up" => host.run_dir().with_file_name("another"),
        _ => host.run_dir().to_owned(),
    };
    command.arg(subcommand).arg("--run-dir").arg(run_dir);
    if subcommand == "run" {
        command.args(["--", "ibv_devinfo"]);
    }
    command
}

/// The files that `urdma` needs, and the subcommand that needs each.
const NEEDED: [(&str, &str); 3] = [
    ("urdmad", "up"),
    ("liburdma_provider.so", "run"),
    ("liburdma_standin.so", "run"),
];

#[test]
fn missing_file_beside_urdma_is_named() {
    let _alone = alone();
    let one = OneHost::up();
    for (file, subcommand) in NEEDED {
        let copies = Copies::of_urdma().unwrap();
        std::fs::remove_file(copies.path().join(file)).unwrap();
        let mut command = of_copies(copies.path(), &one.host, subcommand);
        expect_words(&mut command, &[file, "unpack the tarball again"]);
    }
    one.down();
}

#[test]
fn file_for_another_processor_is_named() {
    let _alone = alone();
    let one = OneHost::up();
    for (file, subcommand) in NEEDED {
        let copies = Copies::of_urdma().unwrap();
        let path = copies.path().join(file);
        let mut octets = std::fs::read(&path).unwrap();
        // e_machine; 183 is AArch64, 62 is x86-64.
        octets[18] = if octets[18] == 183 { 62 } else { 183 };
        std::fs::write(&path, octets).unwrap();
        let mut command = of_copies(copies.path(), &one.host, subcommand);
        expect_words(&mut command, &[file, "is for another processor"]);
    }
    one.down();
}

/// Runs `script` in a mount namespace of its own, with `$1` and so on.
fn in_mount_namespace(script: &str, arguments: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", script, "sh"]);
    command.args(arguments);
    command
}

#[test]
fn library_on_a_file_system_without_executable_files_is_named() {
    const SCRIPT: &str = "
        mkdir $1/bin $1/lib $1/lib/urdma
        mount -t tmpfs -o noexec tmpfs $1/lib/urdma
        mv $1/liburdma_* $1/lib/urdma
        mv $1/urdma* $1/bin
        exec $1/bin/urdma run --run-dir $2 -- ibv_devinfo";
    let _alone = alone();
    let one = OneHost::up();
    let copies = Copies::of_urdma().unwrap();
    let mut command = in_mount_namespace(SCRIPT, &[copies.path(), one.host.run_dir()]);
    expect_words(&mut command, &["liburdma_provider.so", "mounted noexec"]);
    one.down();
}

// Frames that came when there was room again followed a part of one.
#[test]
fn full_disk_ends_the_capture_of_a_program_and_not_the_program() {
    let _alone = alone();
    let one = OneHost::up();
    let small = one.scratch.path().join("small");
    std::fs::create_dir(&small).unwrap();
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let private = ["--make-rprivate", "/"].map(Path::new);
    let mounted = ["-t", "tmpfs", "-o", "size=64k", "small"].map(Path::new);
    for arguments in [&private[..], &[&mounted[..], &[&small]].concat()] {
        assert!(Command::new("mount")
            .args(arguments)
            .status()
            .unwrap()
            .success());
    }
    let port = ports();
    let captured = format!("env URDMA_CAPTURE={}/%p", small.display());
    let server = format!("{captured} ib_send_bw -d urdma0 -p {port} -n 100 -s 4096");
    let client = format!("{server} 127.0.0.1");
    let ready = Ready::Tcp(port);
    let job = Job::saying("captured", words(&server), words(&client), ready, "4096");
    run_all(&[job], &one.host, &one.host, LeasePolicy::Never);
    let files: Vec<_> = std::fs::read_dir(&small).unwrap().collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        let mut command = Command::new("tshark");
        let ended = Process::run(command.arg("-r").arg(file.unwrap().path()), SHORT).unwrap();
        assert!(ended.succeeded(), "{}", ended.describe());
    }
    let unmounted = Command::new("umount").arg(&small).status().unwrap();
    assert!(unmounted.success());
    one.down();
}

#[test]
fn ends_whose_clocks_differ_by_a_day_exchange_messages() {
    const LATER: &str = "unshare --time --monotonic 86400 --boottime 86400 --fork";
    let _alone = alone();
    let one = OneHost::up();
    let jobs: Vec<_> = [["", LATER], [LATER, ""], [LATER, LATER]]
        .map(|[server, client]| {
            let port = ports();
            let program = format!("ib_send_lat -e -d urdma0 -p {port} -n 500");
            let server = words(&format!("{server} {program}"));
            let client = words(&format!("{client} {program} 127.0.0.1"));
            Job::saying("another clock", server, client, Ready::Tcp(port), "500")
        })
        .into();
    run_all(&jobs, &one.host, &one.host, LeasePolicy::Never);
    one.down();
}

#[test]
fn instance_needs_neither_shared_memory_files_nor_executable_ones_where_it_runs() {
    const SCRIPT: &str = "
        mkdir $1/run
        mount -t tmpfs -o noexec tmpfs $1/run
        mount -t tmpfs -o ro tmpfs /dev/shm
        export TMPDIR=$1/run
        $1/urdma up --run-dir $1/run/other
        trap '$1/urdma down --run-dir $1/run/other' EXIT
        $1/urdma run --run-dir $1/run/other -- ibv_devinfo";
    let _alone = alone();
    let copies = Copies::of_urdma().unwrap();
    let mut command = in_mount_namespace(SCRIPT, &[copies.path()]);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    assert!(ended.output.contains("urdma0"), "{}", ended.describe());
}

#[test]
fn script_of_the_tarball_installs_what_the_machine_executes() {
    let copies = Copies::of_urdma().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/tarball-install.sh");
    let prefix = copies.path().join("prefix");
    let mut install = Command::new(copies.of(&script).unwrap());
    install.arg(&prefix);
    let ended = Process::run(&mut install, SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());
    let mut installed = Command::new(prefix.join("bin/urdma"));
    let ended = Process::run(installed.arg("--version"), SHORT).unwrap();
    assert!(ended.succeeded(), "{}", ended.describe());

    // As a program without its dynamic loader ends.
    std::fs::write(copies.path().join("urdma"), "#!/no/loader\n").unwrap();
    expect_words(&mut install, &["glibc 2.28 or later"]);
}
