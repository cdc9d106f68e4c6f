//! Links the static archives of DPDK that a leased queue needs into the library, with hidden
//! symbols, so that attaching takes milliseconds and does not affect the host program
//! (doc/adr/0003-dpdk-linking.md).

use std::env;
use std::path::{Path, PathBuf};
use std::process::{exit, Command};

/// DPDK's archives, without `librte_` and `.a`, in any order: all are linked whole. An archive that
/// is missing here makes the link fail (`-z defs`).
const ARCHIVES: &[&str] = &[
    "eal",
    "kvargs",
    "telemetry",
    "ring",
    "rcu",
    "mempool",
    "mempool_ring",
    "mbuf",
    "net",
    "meter",
    "ethdev",
    "hash",
    "bus_vdev",
    "net_ring",
    "pci",
    "net_e1000",
    "net_ena",
    "net_gve",
    "net_i40e",
    "net_iavf",
    "net_ice",
    "net_ixgbe",
    "net_virtio",
    "net_vmxnet3",
    "cryptodev",
    "security",
    "timer",
];

/// Archives of some versions of DPDK: parts move between archives, and new ones are split off.
const ARCHIVES_IF_PRESENT: &[&str] = &["argparse", "common_iavf", "log", "net_igc", "pmu"];

/// Archives in copies of which calls of these functions are replaced.
const RENAMED: &[(&str, &[(&str, &str)])] = &[
    // The kernel disables a NIC bound to uio when any process that has opened its file exits.
    ("bus_pci", &[("open64", "urdma_lease_open")]),
    // The driver rings doorbells through descriptor numbers in shared memory. They are valid in the
    // primary; in this process they may be those of any file of the host program, so they are never
    // used. The mappings of shared memory are recorded for `src/memif.rs`.
    (
        "net_memif",
        &[
            ("read", "urdma_lease_no_read"),
            ("write", "urdma_lease_no_write"),
            ("mmap64", "urdma_lease_mmap"),
            ("munmap", "urdma_lease_munmap"),
        ],
    ),
];

/// Functions of libc and DPDK that the shim replaces inside the library.
const REPLACED: &[&str] = &[
    "__fprintf_chk",
    "closelog",
    "dlopen",
    "getenv",
    "openlog",
    "rte_mp_request_sync",
    "rte_service_init",
    "rte_service_start_with_defaults",
];

fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-changed=../dpdk-sys/shim/memif_queue.h");
    let mut shim = cc::Build::new();
    shim.files(["shim/shim.c", "shim/memif.c"])
        .opt_level(2)
        .flag("-fvisibility=hidden");
    let cflags = env::var("DEP_URDMA_DPDK_CFLAGS").expect("dpdk sets the compiler's arguments");
    for flag in cflags.split(' ') {
        shim.flag(flag);
    }
    shim.compile("urdma_lease_shim");

    let directory = library_directory();
    let mut arguments = vec!["-Wl,--whole-archive".to_owned()];
    let optional = ARCHIVES_IF_PRESENT
        .iter()
        .filter(|name| archive(&directory, name).exists());
    for name in ARCHIVES.iter().chain(optional) {
        arguments.push(archive(&directory, name).display().to_string());
    }
    for (name, functions) in RENAMED {
        let archive = renamed(&directory, name, functions);
        arguments.push(archive.display().to_string());
    }
    arguments.push("-Wl,--no-whole-archive".into());
    arguments.extend(["-lnuma", "-lbsd", "-lm"].map(String::from));
    arguments.push("-Wl,-Bsymbolic".into());
    arguments.push("-Wl,--exclude-libs,ALL".into());
    // Otherwise an archive that is missing in the list shows only when the library is loaded.
    arguments.push("-Wl,-z,defs".into());
    // The library is never unloaded, since DPDK's threads run in it.
    arguments.push("-Wl,-z,nodelete".into());
    for name in REPLACED {
        arguments.push(format!("-Wl,--wrap={name}"));
    }
    for argument in arguments {
        println!("cargo:rustc-link-arg-cdylib={argument}");
    }
    // The tests contain primaries, which use the shared DPDK as the daemon does.
    let shared = env::var("DEP_URDMA_DPDK_LINK").expect("dpdk sets the linker's arguments");
    for argument in shared.split(' ') {
        println!("cargo:rustc-link-arg-tests={argument}");
    }
}

fn archive(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("librte_{name}.a"))
}

fn library_directory() -> PathBuf {
    let output = Command::new("pkg-config")
        .args(["--variable=libdir", "libdpdk"])
        .output();
    let directory = match output {
        Ok(output) if output.status.success() => {
            PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
        }
        _ => {
            eprintln!("DPDK is needed: apt-get install libdpdk-dev pkg-config");
            exit(1);
        }
    };
    let renamed = RENAMED.iter().map(|(name, _)| name);
    for name in ARCHIVES.iter().chain(renamed) {
        let archive = archive(&directory, name);
        if !archive.exists() {
            eprintln!(
                "{} is missing: apt-get install libdpdk-dev",
                archive.display()
            );
            exit(1);
        }
    }
    directory
}

/// A copy of an archive of DPDK in which calls of some functions are replaced.
fn renamed(directory: &Path, name: &str, functions: &[(&str, &str)]) -> PathBuf {
    let from = archive(directory, name);
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let to = PathBuf::from(out).join(format!("liburdma_{name}.a"));
    let mut command = Command::new("objcopy");
    for (old, new) in functions {
        command.args(["--redefine-sym", &format!("{old}={new}")]);
    }
    match command.arg(&from).arg(&to).status() {
        Ok(status) if status.success() => to,
        _ => {
            eprintln!(
                "objcopy of {} failed: apt-get install binutils libdpdk-dev",
                from.display()
            );
            exit(1);
        }
    }
}
