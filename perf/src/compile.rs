//! Programs in C that are measured.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use urdma_harness::process::Process;
use urdma_harness::Failure;

const LIMIT: Duration = Duration::from_secs(20);

/// Compiles a program of one file, to a name in a directory.
pub(crate) fn compile(scratch: &Path, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let program = scratch.join(name);
    let source = program.with_extension("c");
    std::fs::write(&source, text)?;
    let mut command = Command::new("cc");
    command.args(["-D_GNU_SOURCE", "-O2", "-o"]);
    let ended = Process::run(command.arg(&program).arg(&source), LIMIT)?;
    match ended.succeeded() {
        true => Ok(program),
        false => Err(Failure::new(format!("cc: {}", ended.describe()))),
    }
}
