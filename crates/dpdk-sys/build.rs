//! Generates declarations from the headers of the installed DPDK, and compiles the shim.
//!
//! The crate links no part of DPDK. Packages of programs and libraries select the shared or the
//! static DPDK. `DEP_URDMA_DPDK_SYS_LIBRARY_LINK` has the arguments for the shared one, and
//! `DEP_URDMA_DPDK_SYS_REPLACE` those by which programs replace some of its functions.

use std::env;
use std::path::PathBuf;
use std::process::exit;

const MINIMUM_VERSION: &str = "22.11";

/// The declarations that `crates/dpdk` uses; no others are generated.
const FUNCTIONS: &[&str] = &[
    "rte_dev_probe",
    "rte_eal_cleanup",
    "rte_eal_init",
    "rte_eal_process_type",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_dev_configure",
    "rte_eth_dev_get_mtu",
    "rte_eth_dev_get_name_by_port",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_info_get",
    "rte_eth_dev_rx_intr_ctl_q_get_fd",
    "rte_eth_dev_rx_intr_disable",
    "rte_eth_dev_rx_intr_enable",
    "rte_eth_dev_rx_queue_start",
    "rte_eth_dev_rx_queue_stop",
    "rte_eth_dev_socket_id",
    "rte_eth_dev_tx_queue_start",
    "rte_eth_dev_tx_queue_stop",
    "rte_eth_find_next",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_enable",
    "rte_eth_rx_queue_setup",
    "rte_eth_stats_get",
    "rte_eth_tx_queue_setup",
    "rte_flow_destroy",
    "rte_log_set_global_level",
    "rte_mempool_avail_count",
    "rte_mempool_free",
    "rte_mempool_lookup",
    "rte_openlog_stream",
    "rte_pktmbuf_pool_create_by_ops",
    "rte_strerror",
    "rte_version",
    "urdma_.*",
];

const TYPES: &[&str] = &[
    "rte_mbuf",
    "rte_eth_dev_info",
    "rte_eth_stats",
    "urdma_mbuf_offsets",
];

const CONSTANTS: &[&str] = &[
    "RTE_EAL_PMD_PATH",
    "RTE_ETH_NAME_MAX_LEN",
    "RTE_MAX_LCORE",
    "RTE_MEMPOOL_NAMESIZE",
    "RTE_PKTMBUF_HEADROOM",
    "RTE_PROC_.*",
];

fn main() {
    println!("cargo:rerun-if-changed=shim/guard.c");
    println!("cargo:rerun-if-changed=shim/interrupts.c");
    println!("cargo:rerun-if-changed=shim/memif_queue.h");
    println!("cargo:rerun-if-changed=shim/shim.c");
    println!("cargo:rerun-if-changed=shim/shim.h");
    println!("cargo:rerun-if-changed=shim/virtio.c");
    let library = match pkg_config::Config::new()
        .cargo_metadata(false)
        .atleast_version(MINIMUM_VERSION)
        .probe("libdpdk")
    {
        Ok(library) => library,
        Err(error) => {
            eprintln!(
                "DPDK {MINIMUM_VERSION} or later is needed: apt-get install libdpdk-dev\n{error}"
            );
            exit(1);
        }
    };
    let flags = compiler_flags();
    compile_shim(&flags);
    generate(&flags);

    let mut link: Vec<String> = library
        .link_paths
        .iter()
        .map(|path| format!("-L{}", path.display()))
        .collect();
    link.extend(guard(&flags));
    link.push("-Wl,--as-needed".into());
    // In DPDK 22.11 the log is a part of the EAL.
    let wanted =
        ["ethdev", "mbuf", "mempool", "ring", "log", "eal"].map(|name| format!("rte_{name}"));
    let installed = wanted.iter().filter(|name| library.libs.contains(name));
    link.extend(installed.map(|name| format!("-l{name}")));
    println!("cargo:cflags={}", flags.join(" "));
    println!("cargo:library_link={}", link.join(" "));
    println!("cargo:replace={}", replacements().join(" "));
    println!("cargo:version={}", library.version);
}

/// DPDK's compiler flags from pkg-config. They name the instruction set and force an include, which
/// the pkg-config crate omits.
fn compiler_flags() -> Vec<String> {
    let output = std::process::Command::new(env::var("PKG_CONFIG").unwrap_or("pkg-config".into()))
        .args(["--cflags", "libdpdk"])
        .output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        _ => {
            eprintln!("pkg-config --cflags libdpdk failed: apt-get install libdpdk-dev pkg-config");
            exit(1);
        }
    }
}

fn compile_shim(flags: &[String]) {
    let mut build = cc::Build::new();
    build
        .files(["shim/interrupts.c", "shim/shim.c", "shim/virtio.c"])
        .include("shim")
        .opt_level(2);
    for flag in flags {
        build.flag(flag);
    }
    build
        .flag("-Wno-unused-parameter")
        .flag("-fvisibility=hidden")
        .compile("urdma_dpdk_shim");
}

/// Compiles `guard.c`, which only shared DPDK needs; returns the arguments that link it before
/// DPDK.
fn guard(flags: &[String]) -> Vec<String> {
    let mut build = cc::Build::new();
    build
        .file("shim/guard.c")
        .include("shim")
        .opt_level(2)
        .cargo_metadata(false);
    for flag in flags {
        build.flag(flag);
    }
    build.compile("urdma_dpdk_guard");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let archive = out.join("liburdma_dpdk_guard.a");
    vec![
        "-Wl,--whole-archive".to_owned(),
        archive.display().to_string(),
        "-Wl,--no-whole-archive".to_owned(),
    ]
}

/// The arguments by which a program has functions of `guard.c` under the names of DPDK's. A library
/// that Rust links shows no symbols but those of Rust functions.
fn replacements() -> [String; 3] {
    ["register", "unregister", "unregister_pending"].map(|function| {
        let replaced = format!("rte_intr_callback_{function}");
        format!("-Wl,--defsym={replaced}=urdma_guard_{function},--export-dynamic-symbol={replaced}")
    })
}

fn generate(flags: &[String]) {
    let mut builder = bindgen::Builder::default()
        .header("shim/shim.h")
        .clang_args(flags)
        .allowlist_recursively(true)
        .derive_debug(false)
        .layout_tests(false)
        .generate_comments(false)
        .prepend_enum_name(false)
        // Packed structures with aligned members, which Rust cannot express, and whose members are
        // not used.
        .opaque_type("rte_l2tpv2_.*")
        .opaque_type("rte_gtp_psc_.*")
        .opaque_type("rte_arp_.*")
        .opaque_type("rte_mempool.*")
        .opaque_type("rte_flow.*")
        .opaque_type("rte_device")
        .opaque_type("rte_mbuf")
        .wrap_unsafe_ops(true);
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    let bindings = match builder.generate() {
        Ok(bindings) => bindings,
        Err(error) => {
            eprintln!(
                "cannot read DPDK's headers: apt-get install libdpdk-dev libclang-dev\n{error}"
            );
            exit(1);
        }
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bindings
        .write_to_file(out.join("bindings.rs"))
        .expect("the build directory is writable");
}
