//! `urdmad`: command line of the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use urdma_ipc::paths::{is_instance_name, RUN_DIR_VARIABLE};
use urdma_ipc::RunDir;
use urdmad::arguments::Arguments;
use urdmad::config::{Config, ConfigError};
use urdmad::daemon::{self, DaemonError, Options};
use urdmad::port::kinds_of_dpdk;

/// The exit status after an error that another start does not mend (EX_CONFIG of sysexits.h). The
/// systemd unit makes no further attempt then.
const EXIT_CONFIG: u8 = 78;

/// Why urdmad ends.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The command line, also together with the configuration.
    #[error("{0}")]
    Arguments(String),
    /// The daemon cannot start, or go on.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

fn main() -> ExitCode {
    let Err(failure) = run(Arguments::parse()) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("urdmad: {failure}");
    match failure {
        Failure::Config(_) | Failure::Arguments(_) => ExitCode::from(EXIT_CONFIG),
        Failure::Daemon(_) => ExitCode::FAILURE,
    }
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    if arguments.list_kinds {
        print!("{}", kinds());
        return Ok(());
    }
    let mut config = match &arguments.config {
        Some(file) => Config::read(file)?,
        None => Config::default(),
    };
    if arguments.check_config {
        return Ok(());
    }
    if let Some(instance) = arguments.instance {
        if !is_instance_name(&instance) {
            return Err(Failure::Arguments(format!(
                "\"{instance}\" cannot name an instance: use letters, digits, '.', '_' and '-'"
            )));
        }
        if let Some(named) = config.instance.filter(|named| *named != instance) {
            return Err(Failure::Arguments(format!(
                "the configuration names the instance \"{named}\" and --instance \"{instance}\": \
                leave one of them out"
            )));
        }
        config.instance = Some(instance);
    }
    let from_environment = || std::env::var_os(RUN_DIR_VARIABLE).map(PathBuf::from);
    let run_dir = arguments
        .run_dir
        .or_else(|| config.instance.is_none().then(from_environment)?)
        .map_or_else(|| RunDir::own(config.instance_name()), RunDir::at);
    let options = Options {
        config,
        run_dir,
        foreground: arguments.foreground,
    };
    Ok(daemon::run(&options)?)
}

/// One line for each kind of port: its name, followed by the reason if it cannot be used here.
fn kinds() -> String {
    let lines = kinds_of_dpdk().map(|(name, usable)| match usable {
        Ok(()) => format!("{name}\n"),
        Err(reason) => format!("{name}: {reason}\n"),
    });
    format!("udp\n{}", lines.collect::<String>())
}
