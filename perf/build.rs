//! Links DPDK into `urdma-perf-memif`, the only program here that uses it directly.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let link = env::var("DEP_URDMA_DPDK_LINK").expect("dpdk says how to link DPDK");
    for argument in link.split(' ') {
        println!("cargo:rustc-link-arg-bin=urdma-perf-memif={argument}");
    }
}
