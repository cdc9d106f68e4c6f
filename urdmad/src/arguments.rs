//! The command line of urdmad.

use std::path::PathBuf;

use clap::Parser;

/// The daemon of one host: packet memory, slots, ports. Usually started by `urdma up`.
#[derive(Debug, Parser)]
#[command(name = "urdmad", version)]
pub struct Arguments {
    /// Name of the instance, as the configuration says if it does [default: "default"]
    #[arg(long)]
    pub instance: Option<String>,
    /// Configuration file (TOML); without one: no port, 127.0.0.1 and the addresses of the host
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Run directory [default: $URDMA_RUN_DIR, else the instance's]
    #[arg(long)]
    pub run_dir: Option<PathBuf>,
    /// Only check the configuration
    #[arg(long)]
    pub check_config: bool,
    /// Print the kinds of ports, and why one cannot be used here
    #[arg(long)]
    pub list_kinds: bool,
    /// Log to standard error
    #[arg(long)]
    pub foreground: bool,
}
