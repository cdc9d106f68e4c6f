//! Builds `verbs-check`, a verbs program in C as users write them, against the installed libibverbs and librdmacm.

use std::path::PathBuf;

const SOURCES: &[&str] = &[
    "main.c",
    "end.c",
    "scenarios.c",
    "mix.c",
    "leave.c",
    "limits.c",
    "datagram.c",
    "cm.c",
    "departure.c",
    "events.c",
    "loopback.c",
    "requests.c",
    "services.c",
];

fn main() {
    println!("cargo:rerun-if-changed=verbs-check");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let program = out.join("verbs-check");
    let mut compiler = cc::Build::new()
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .get_compiler()
        .to_command();
    let status = compiler
        .args(SOURCES.iter().map(|source| format!("verbs-check/{source}")))
        .arg("-o")
        .arg(&program)
        .args(["-lrdmacm", "-libverbs"])
        .status()
        .expect("no C compiler: apt-get install build-essential");
    assert!(
        status.success(),
        "verbs-check does not build: apt-get install libibverbs-dev librdmacm-dev"
    );
    println!("cargo:rustc-env=VERBS_CHECK={}", program.display());
}
