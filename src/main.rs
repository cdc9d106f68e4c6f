//! `urdma`: the command line of the library beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    urdma_cli::main()
}
