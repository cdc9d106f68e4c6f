//! `urdma bench`: executes `urdma-bench`, a separate program, so that the command line does not
//! depend on the measurement code.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use crate::error::Error;
use crate::libraries;

/// Options of `urdma bench`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    /// Arguments of `urdma-bench`; `urdma bench --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by `urdma-bench`.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Error> {
    let program = libraries::companion("urdma-bench")?;
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(Error::sentence(format!(
        "cannot run {}: {error}",
        program.display()
    )))
}
