//! The hostile peer as a program.

use std::path::{Path, PathBuf};

/// Compiles `main.c` into a directory.
pub(crate) fn compile(directory: &Path) -> PathBuf {
    let program = directory.join("exs-hostile");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/exs-hostile/main.c");
    urdma_tests::compile(&program, [source, "-lrdmacm", "-libverbs"]);
    program
}
