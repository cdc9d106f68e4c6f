//! Builds `verbs-check`, a typical verbs program in C, against the installed libibverbs and
//! librdmacm.

use std::path::PathBuf;

/// Every C file of `verbs-check`.
fn sources() -> Vec<PathBuf> {
    let files = std::fs::read_dir("verbs-check").expect("verbs-check is beside this file");
    let mut sources: Vec<PathBuf> = files
        .map(|file| file.expect("a directory can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    sources
}

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
        .args(sources())
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
