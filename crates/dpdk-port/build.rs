//! Links shared DPDK, so that any installed driver can be loaded; it loads drivers only when a port
//! is opened. Compiles the program that an AF_XDP port loads into the kernel.

use std::path::Path;
use std::process::Command;

const STEER: &str = "bpf/steer.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={STEER}");
    let link = std::env::var("DEP_URDMA_DPDK_LIBRARY_LINK");
    for argument in link
        .expect("the crate dpdk says how to link DPDK")
        .split(' ')
    {
        println!("cargo:rustc-link-arg={argument}");
    }
    // Otherwise a missing library shows only when this one is loaded. It is never unloaded, since
    // DPDK's threads run in it.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,defs,-z,nodelete");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    compile_steer(&Path::new(&out).join("steer.o"));
}

/// The kernel's headers are below a directory of the host's architecture that clang does not look
/// into for another target.
fn compile_steer(to: &Path) {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let status = Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c"])
        .arg(format!("-I/usr/include/{arch}-linux-gnu"))
        .arg(format!("-DPORT_FIRST={}", urdma_types::PORT_BASE))
        .arg(format!(
            "-DPORT_LAST={}",
            urdma_types::PORT_BASE + u16::from(urdma_types::MAX_SLOTS) - 1
        ))
        .arg("-DQUEUES_MAX=64")
        .arg(STEER)
        .arg("-o")
        .arg(to)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("clang cannot compile crates/dpdk-port/{STEER} for BPF: {status}"),
        Err(error) => {
            panic!("clang is needed for crates/dpdk-port/{STEER} (apt-get install clang): {error}")
        }
    }
}
