//! Links this crate's tests with shared DPDK, and passes the arguments for the linker and the C
//! compiler on to the build scripts of dependent packages (`DEP_URDMA_DPDK_LINK` for programs,
//! `DEP_URDMA_DPDK_LIBRARY_LINK` for libraries, `DEP_URDMA_DPDK_CFLAGS`).

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let arguments = |name| env::var(name).expect("dpdk-sys sets the linker's arguments");
    let library_link = arguments("DEP_URDMA_DPDK_SYS_LIBRARY_LINK");
    let link = format!("{} {library_link}", arguments("DEP_URDMA_DPDK_SYS_REPLACE"));
    for argument in link.split(' ') {
        println!("cargo:rustc-link-arg={argument}");
    }
    println!("cargo:link={link}");
    println!("cargo:library_link={library_link}");
    let cflags =
        env::var("DEP_URDMA_DPDK_SYS_CFLAGS").expect("dpdk-sys sets the compiler's arguments");
    println!("cargo:cflags={cflags}");
}
