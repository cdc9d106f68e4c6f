//! Links this crate's tests with shared DPDK, and passes the arguments for the linker and the C
//! compiler on to the build scripts of dependent packages (`DEP_URDMA_DPDK_LINK`,
//! `DEP_URDMA_DPDK_CFLAGS`).

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let link = env::var("DEP_URDMA_DPDK_SYS_LINK").expect("dpdk-sys sets the linker's arguments");
    for argument in link.split(' ') {
        println!("cargo:rustc-link-arg={argument}");
    }
    println!("cargo:link={link}");
    let cflags =
        env::var("DEP_URDMA_DPDK_SYS_CFLAGS").expect("dpdk-sys sets the compiler's arguments");
    println!("cargo:cflags={cflags}");
}
