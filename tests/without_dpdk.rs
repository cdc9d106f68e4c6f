//! urdmad without DPDK: what it needs, what it says of ports that need DPDK, and that others work.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use urdma_harness::instance::{binary_dir, urdma, Scratch};
use urdma_harness::process::{Ended, Process};
use urdma_tests::{alone, SHORT};

/// Names the library of DPDK's ports for urdmad.
const LIBRARY_VARIABLE: &str = "URDMA_DPDK_LIB";
/// Where no library is.
const NOWHERE: &str = "/nowhere/liburdma_dpdk.so";
/// What every system with a C library has.
const C_LIBRARY: [&str; 4] = [
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
];

fn built(name: &str) -> PathBuf {
    binary_dir().unwrap().join(name)
}

/// The output of a tool that must succeed.
fn tool(argv: &[&str]) -> String {
    let ended = Process::run(Command::new(argv[0]).args(&argv[1..]), SHORT)
        .unwrap_or_else(|failure| panic!("{argv:?}: {failure}: run scripts/install-deps.sh"));
    assert!(ended.succeeded(), "{argv:?}: {}", ended.describe());
    ended.output
}

/// The libraries that a file needs.
fn needed(file: &Path) -> Vec<String> {
    tool(&["readelf", "--dynamic", "--wide", file.to_str().unwrap()])
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()))
        .collect()
}

// Each process of a program loads these two.
#[test]
fn libraries_of_every_process_are_loaded_without_the_unwinder() {
    for name in ["liburdma_provider.so", "liburdma_standin.so"] {
        let libraries = needed(&built(name));
        assert!(
            !libraries.iter().any(|library| library.contains("libgcc_s")),
            "{name} needs {libraries:?}"
        );
    }
}

#[test]
fn programs_and_libraries_of_one_host_need_the_c_library_only() {
    for name in [
        "urdma",
        "urdmad",
        "liburdma_provider.so",
        "liburdma_standin.so",
        "liburdma_lease.so",
    ] {
        let mut others = needed(&built(name));
        others.retain(|library| !C_LIBRARY.contains(&library.as_str()));
        // DPDK is inside of the lease's library; the names of these have not changed for years.
        if name == "liburdma_lease.so" {
            others.retain(|library| !["libnuma.so.1", "libbsd.so.0"].contains(&library.as_str()));
        }
        assert!(others.is_empty(), "{name} needs {others:?}");
    }
    let library = needed(&built("liburdma_dpdk.so"));
    let is_dpdk = |name: &String| name.starts_with("librte_");
    assert!(library.iter().any(is_dpdk), "{library:?}");
}

/// A port that needs DPDK.
const MEMIF: &str = "kind = \"memif\"\nrole = \"server\"\nsocket = \"/nowhere/socket\"\n";

/// An instance with this port, or without one, whose urdmad finds `library`.
struct Attempt {
    scratch: Scratch,
    library: PathBuf,
}

impl Attempt {
    fn new(port: &str, library: impl Into<PathBuf>) -> Self {
        let scratch = Scratch::new("test").unwrap();
        let text = format!("address = [\"127.0.0.1\"]\n{port}");
        fs::write(scratch.path().join("a.toml"), text).unwrap();
        Self {
            scratch,
            library: library.into(),
        }
    }

    fn run_dir(&self) -> PathBuf {
        self.scratch.path().join("a")
    }

    /// `urdma <name>` with these arguments.
    fn ask(&self, name: &str, arguments: &[&str]) -> Ended {
        let mut command = urdma().unwrap();
        command.arg(name).arg("--run-dir").arg(self.run_dir());
        command.args(arguments).env(LIBRARY_VARIABLE, &self.library);
        Process::run(&mut command, SHORT).unwrap()
    }

    fn up(&self) -> Ended {
        let config = self.scratch.path().join("a.toml");
        self.ask("up", &["--config", config.to_str().unwrap()])
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // It may not be up.
        self.ask("down", &[]);
    }
}

/// Checks that a port with DPDK is refused in one sentence with these words.
fn expect_refusal(library: impl Into<PathBuf>, words: &[&str]) {
    let attempt = Attempt::new(&format!("[port]\n{MEMIF}"), library);
    let ended = attempt.up();
    assert!(!ended.succeeded(), "{}", ended.describe());
    for word in words {
        assert!(ended.output.contains(word), "no {word}: {}", ended.output);
    }
    assert_eq!(ended.output.trim().lines().count(), 1, "{}", ended.output);
    assert!(!attempt.run_dir().exists());
}

#[test]
fn port_that_needs_dpdk_is_refused_with_what_to_do() {
    let _alone = alone();
    let needs = "a port of kind \"memif\" needs DPDK";
    let remedy = "install the package urdma-dpdk, or use kind = \"udp\"";
    expect_refusal(NOWHERE, &[needs, NOWHERE, remedy]);

    // The library of packages for another DPDK.
    let scratch = Scratch::new("test").unwrap();
    let copy = scratch.path().join("liburdma_dpdk.so");
    fs::copy(built("liburdma_dpdk.so"), &copy).unwrap();
    let eal = needed(&copy);
    let eal = eal.iter().find(|name| name.contains("librte_eal")).unwrap();
    let path = copy.to_str().unwrap();
    tool(&[
        "patchelf",
        "--replace-needed",
        eal,
        "librte_eal.so.99",
        path,
    ]);
    expect_refusal(&copy, &[needs, "librte_eal.so.99", remedy]);

    // A library of another version has another table, or none.
    let other = built("liburdma_lease.so");
    expect_refusal(&other, &[needs, "another version", "from one build"]);
}

#[test]
fn port_of_dpdk_that_cannot_be_opened_says_why() {
    let _alone = alone();
    let library = built("liburdma_dpdk.so");
    let refusal = |port: &str, program: &[&str]| {
        let attempt = Attempt::new(&format!("[port]\n{port}"), &library);
        let urdma = built("urdma");
        let mut command = Command::new(program.first().map_or(urdma.as_path(), Path::new));
        if let Some((_, arguments)) = program.split_first() {
            command.args(arguments).arg(&urdma);
        }
        command.arg("up").arg("--run-dir").arg(attempt.run_dir());
        command
            .arg("--config")
            .arg(attempt.scratch.path().join("a.toml"));
        let ended = Process::run(&mut command, SHORT).unwrap();
        assert!(!ended.succeeded(), "{}", ended.describe());
        ended.output
    };
    let expect = |said: String, words: &[&str]| {
        for word in words {
            assert!(said.contains(word), "no {word}: {said}");
        }
    };
    let without_privilege = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let said = refusal("kind = \"tap\"\nnetdev = \"utap9\"\n", &without_privilege);
    expect(said, &["\"tap\" needs CAP_NET_ADMIN", "use kind = \"udp\""]);
    let said = refusal("kind = \"tap\"\nnetdev = \"lo\"\n", &[]);
    expect(said, &["network interface \"lo\" already", "port.netdev"]);
    let said = refusal("kind = \"af_xdp\"\nnetdev = \"nosuch\"\n", &[]);
    expect(said, &["there is no network interface \"nosuch\""]);
    expect(
        refusal(MEMIF, &[]),
        &["there is no directory /nowhere", "mkdir"],
    );
    let said = refusal("kind = \"device\"\ndevice = \"net_nosuch0\"\n", &[]);
    expect(
        said,
        &[
            "librte_net_nosuch.so",
            "which is not installed",
            "urdma-dpdk",
        ],
    );
}

/// Whether a process has a part of DPDK in its memory.
fn maps_dpdk(run_dir: &Path) -> bool {
    let pid = fs::read_to_string(run_dir.join("pid")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", pid.trim())).unwrap();
    assert!(maps.contains("urdmad"), "{maps}");
    maps.contains("librte_") || maps.contains("liburdma_dpdk")
}

#[test]
fn other_instances_run_without_dpdk() {
    let _alone = alone();
    for port in ["", "[port]\nkind = \"none\"\n", "[port]\nkind = \"udp\"\n"] {
        for library in [PathBuf::from(NOWHERE), built("liburdma_dpdk.so")] {
            let attempt = Attempt::new(port, library);
            let up = attempt.up();
            assert!(up.succeeded(), "{port}: {}", up.describe());
            assert!(!maps_dpdk(&attempt.run_dir()), "{port}");
            let ran = attempt.ask("run", &["--", "ibv_devinfo", "-d", "urdma0"]);
            assert!(ran.succeeded(), "{port}: {}", ran.describe());
        }
    }
}

#[test]
fn doctor_says_which_kinds_of_ports_can_be_used() {
    let report = |library: PathBuf| {
        let mut command = urdma().unwrap();
        command.arg("doctor").env(LIBRARY_VARIABLE, library);
        let ended = Process::run(&mut command, SHORT).unwrap();
        let lines = ended.output.lines();
        let found: Vec<&str> = lines
            .skip_while(|line| !line.starts_with("ports "))
            .collect();
        found[..found.len().min(2)].join("\n")
    };
    let with = report(built("liburdma_dpdk.so"));
    assert!(
        with.contains("kinds udp, memif, tap, af_xdp, device"),
        "{with}"
    );
    let without = report(NOWHERE.into());
    for word in ["kinds udp; not memif, tap", NOWHERE, "package urdma-dpdk"] {
        assert!(without.contains(word), "no {word}: {without}");
    }
}
