//! The hostile peer as a program.

use std::path::{Path, PathBuf};
use std::process::Command;

use urdma_harness::process::Process;
use urdma_tests::SHORT;

/// Compiles `main.c` into a directory.
pub(crate) fn compile(directory: &Path) -> PathBuf {
    let program = directory.join("exs-hostile");
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-pedantic"])
        .args(["-Wall", "-Wextra", "-Werror"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/exs-hostile/main.c"))
        .args(["-lrdmacm", "-libverbs", "-o"])
        .arg(&program);
    let ended = Process::run(&mut command, SHORT).unwrap();
    assert!(ended.succeeded(), "cc: {}", ended.describe());
    program
}
