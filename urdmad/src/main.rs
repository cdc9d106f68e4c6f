//! `urdmad`: command line of the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use urdma_ipc::paths::{is_instance_name, RUN_DIR_VARIABLE};
use urdma_ipc::RunDir;
use urdmad::arguments::Arguments;
use urdmad::config::Config;
use urdmad::daemon::{self, Options};
use urdmad::port::kinds_of_dpdk;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("urdmad: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), String> {
    if arguments.list_kinds {
        print!("{}", kinds());
        return Ok(());
    }
    let mut config = match &arguments.config {
        Some(file) => Config::read(file).map_err(|error| error.to_string())?,
        None => Config::default(),
    };
    if arguments.check_config {
        return Ok(());
    }
    if let Some(instance) = arguments.instance {
        if !is_instance_name(&instance) {
            return Err(format!(
                "\"{instance}\" cannot name an instance: use letters, digits, '.', '_' and '-'"
            ));
        }
        if let Some(named) = config.instance.filter(|named| *named != instance) {
            return Err(format!(
                "the configuration names the instance \"{named}\" and --instance \"{instance}\": \
                leave one of them out"
            ));
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
    daemon::run(&options).map_err(|error| error.to_string())
}

/// One line for each kind of port: its name, followed by the reason if it cannot be used here.
fn kinds() -> String {
    let lines = kinds_of_dpdk().map(|(name, usable)| match usable {
        Ok(()) => format!("{name}\n"),
        Err(reason) => format!("{name}: {reason}\n"),
    });
    format!("udp\n{}", lines.collect::<String>())
}
