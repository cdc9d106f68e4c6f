//! `urdma bench`: a program of its own, since it needs what measures and nothing of it belongs into
//! the command line.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use crate::{libraries, Error};

/// Options of `urdma bench`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    /// What `urdma bench --help` names
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes `urdma-bench`.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Error> {
    let program = libraries::companion("urdma-bench")?;
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(Error::sentence(format!(
        "cannot run {}: {error}",
        program.display()
    )))
}
