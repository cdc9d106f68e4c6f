//! Links the few archives of DPDK that a leased queue needs into the library, whole and hidden, so that attaching
//! takes milliseconds and the host program sees nothing of it (doc/adr/0003-dpdk-linking.md).

use std::env;
use std::path::{Path, PathBuf};
use std::process::{exit, Command};

/// DPDK's archives, without `librte_` and `.a`; order does not matter, all are linked whole.
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
    "bus_pci",
    "net_e1000",
    "net_ena",
    "net_gve",
    "common_iavf",
    "net_i40e",
    "net_iavf",
    "net_ice",
    "net_igc",
    "net_ixgbe",
    "net_virtio",
    "net_vmxnet3",
    "cryptodev",
    "security",
    "timer",
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
    let mut shim = cc::Build::new();
    shim.files(["shim/shim.c", "shim/memif.c"])
        .opt_level(2)
        .flag("-fvisibility=hidden");
    let cflags = env::var("DEP_URDMA_DPDK_CFLAGS").expect("dpdk says how to compile for DPDK");
    for flag in cflags.split(' ') {
        shim.flag(flag);
    }
    shim.compile("urdma_lease_shim");

    let directory = library_directory();
    let memif = quiet_memif(&directory);
    let mut arguments = vec!["-Wl,--whole-archive".to_owned()];
    for name in ARCHIVES {
        arguments.push(
            directory
                .join(format!("librte_{name}.a"))
                .display()
                .to_string(),
        );
    }
    arguments.push(memif.display().to_string());
    arguments.push("-Wl,--no-whole-archive".into());
    arguments.extend(["-lnuma", "-lbsd", "-lm"].map(String::from));
    arguments.push("-Wl,-Bsymbolic".into());
    arguments.push("-Wl,--exclude-libs,ALL".into());
    // Never unloaded: DPDK's threads run in it.
    arguments.push("-Wl,-z,nodelete".into());
    for name in REPLACED {
        arguments.push(format!("-Wl,--wrap={name}"));
    }
    for argument in arguments {
        println!("cargo:rustc-link-arg-cdylib={argument}");
    }
    // The tests are primaries, which link the shared DPDK as the daemon does.
    let shared = env::var("DEP_URDMA_DPDK_LINK").expect("dpdk says how to link DPDK");
    for argument in shared.split(' ') {
        println!("cargo:rustc-link-arg-tests={argument}");
    }
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
    for name in ARCHIVES {
        let archive = directory.join(format!("librte_{name}.a"));
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

/// net_memif rings doorbells by descriptor numbers that it keeps in shared memory. They are numbers of the primary: in
/// this process they may name any file of the host program. In this copy of the driver they are never touched. Where it maps
/// the shared memory is noted, for `src/memif.rs`.
fn quiet_memif(directory: &Path) -> PathBuf {
    let from = directory.join("librte_net_memif.a");
    let to = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
        .join("liburdma_net_memif.a");
    let status = Command::new("objcopy")
        .args(["--redefine-sym", "read=urdma_lease_no_read"])
        .args(["--redefine-sym", "write=urdma_lease_no_write"])
        .args(["--redefine-sym", "mmap64=urdma_lease_mmap"])
        .args(["--redefine-sym", "munmap=urdma_lease_munmap"])
        .arg(&from)
        .arg(&to)
        .status();
    match status {
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
