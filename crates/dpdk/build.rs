//! Hands the arguments that link shared DPDK on to whoever makes a program (`DEP_URDMA_DPDK_LINK`),
//! with those that compile C for it (`DEP_URDMA_DPDK_CFLAGS`), and links this crate's own tests.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let link = env::var("DEP_URDMA_DPDK_SYS_LINK").expect("dpdk-sys says how to link DPDK");
    for argument in link.split(' ') {
        println!("cargo:rustc-link-arg={argument}");
    }
    println!("cargo:link={link}");
    let cflags =
        env::var("DEP_URDMA_DPDK_SYS_CFLAGS").expect("dpdk-sys says how to compile for DPDK");
    println!("cargo:cflags={cflags}");
}
