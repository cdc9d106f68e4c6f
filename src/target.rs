//! The instance that a command is for.

use std::path::PathBuf;

use clap::Args;
use urdma_ipc::{ControlClient, RunDir};

use crate::error::Error;

/// The instance that a command is for.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// Name of the instance [default: $URDMA_INSTANCE, else "default"]
    #[arg(long)]
    pub(crate) instance: Option<String>,
    /// Directory of the instance, instead of a name [default: $URDMA_RUN_DIR]
    #[arg(long)]
    run_dir: Option<PathBuf>,
}

impl Target {
    /// The directory of the instance.
    pub(crate) fn run_dir(&self) -> RunDir {
        RunDir::find(self.run_dir.as_deref(), self.instance.as_deref())
    }

    /// Connects to the instance's urdmad, which must match both options if both are given.
    pub(crate) fn connect(&self) -> Result<ControlClient, Error> {
        let run_dir = self.run_dir();
        let client = ControlClient::connect(&run_dir, "urdma")?;
        match &self.instance {
            Some(asked) if asked != client.instance() => Err(Error::sentence(format!(
                "the instance in {} is \"{}\", not \"{asked}\": leave --instance or --run-dir out",
                run_dir.path().display(),
                client.instance()
            ))),
            _ => Ok(client),
        }
    }

    /// The options that select the instance, with a leading space.
    pub(crate) fn options(&self) -> String {
        match (&self.run_dir, &self.instance) {
            (Some(run_dir), _) => format!(" --run-dir {}", run_dir.display()),
            (None, Some(instance)) => format!(" --instance {instance}"),
            (None, None) => String::new(),
        }
    }
}
