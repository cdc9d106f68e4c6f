//! The program `urdma-metad`.

use std::process::ExitCode;

fn main() -> ExitCode {
    urdma_metad::main()
}
