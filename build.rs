//! Says what to install when DPDK or rdma-core is missing.

use std::process::ExitCode;

/// Libraries that the workspace needs: pkg-config's name, Debian's package, the oldest version.
const NEEDED: [(&str, &str, &str); 3] = [
    ("libdpdk", "libdpdk-dev", "22.11"),
    ("libibverbs", "libibverbs-dev", "1.14"),
    ("librdmacm", "librdmacm-dev", "1.3"),
];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    let mut missing = Vec::new();
    for (library, package, version) in NEEDED {
        let found = pkg_config::Config::new()
            .cargo_metadata(false)
            .atleast_version(version)
            .probe(library);
        if let Err(error) = found {
            eprintln!("{library} {version} or newer is needed: {error}");
            missing.push(package);
        }
    }
    if !missing.is_empty() {
        eprintln!(
            "error: apt-get install pkg-config {} (or run scripts/install-deps.sh)",
            missing.join(" ")
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
