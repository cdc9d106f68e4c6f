//! The program `urdma-stream`.

use std::process::ExitCode;

fn main() -> ExitCode {
    urdma_exs_cli::main()
}
