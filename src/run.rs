//! `urdma run`: runs a program with the environment by which libibverbs finds the urdma device.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::{Args, ValueEnum, ValueHint};
use urdma_ipc::socket_rules::{SocketRules, SocketRulesError};

use crate::error::Error;
use crate::libraries::Libraries;
use crate::target::Target;

/// Which call of a direction is the first that may give a connection rings.
const SOCKETS_FROM: &str = "URDMA_SOCKETS_FROM";
/// Which connections stay with TCP.
const SOCKETS_EXCLUDE: &str = "URDMA_SOCKETS_EXCLUDE";
/// The same whether raw system calls are named.
const SOCKETS_DIAGNOSE: &str = "URDMA_SOCKETS_DIAGNOSE";

/// Options of `urdma run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    target: Target,
    /// Whether the program gets its own queue pair of the port
    #[arg(long, value_enum, default_value_t = LeaseMode::Try)]
    lease: LeaseMode,
    /// TCP connections to programs of this host that run so, too, go through shared memory
    #[arg(long)]
    sockets: bool,
    /// With --sockets: which call that sends octets, or receives some, may give a connection shared
    /// memory; 0: connect and accept
    #[arg(long, value_name = "CALL", env = SOCKETS_FROM, hide_env_values = true)]
    #[arg(default_value_t = 8)]
    sockets_from: u32,
    /// With --sockets: connections that stay with TCP, by what one of their ends has: a port
    /// (6379), ports (6000-6999), an address or network (10.0.0.0/8, ::1), or both
    /// (127.0.0.1:6379, [::1]:6000-6999); several with commas between
    #[arg(long, value_name = "RULES", env = SOCKETS_EXCLUDE, hide_env_values = true)]
    #[arg(default_value = "", hide_default_value = true, value_parser = excluded)]
    sockets_exclude: String,
    /// With --sockets: says on standard error which code makes system calls on TCP sockets without
    /// the C library, as which connections through shared memory fail (x86-64)
    #[arg(long, requires = "sockets")]
    sockets_diagnose: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// The value of `--sockets-exclude`, if it is rules.
fn excluded(text: &str) -> Result<String, SocketRulesError> {
    text.parse::<SocketRules>().map(|_| text.to_owned())
}

/// Use of leases.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LeaseMode {
    /// All packets go through urdmad
    Never,
    /// Lease a queue pair if one is available, else go through urdmad
    Try,
    /// Lease a queue pair, or fail
    Require,
}

impl LeaseMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Try => "try",
            Self::Require => "require",
        }
    }
}

/// Replaces this process by the program.
pub(crate) fn run(args: &RunArgs) -> Result<(), Error> {
    let run_dir = args.target.run_dir();
    drop(args.target.connect()?);
    let libraries = Libraries::find()?;
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(Error::sentence("name a program to run"));
    };
    let mut preload = OsString::new();
    if args.sockets {
        preload.push(libraries.sockets()?);
        preload.push(":");
    }
    preload.push(&libraries.standin);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let error = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env("IBV_DRIVERS", &libraries.driver)
        .env("SYSFS_PATH", run_dir.sysfs())
        .env("URDMA_RUN_DIR", run_dir.path())
        .env("URDMA_PROVIDER", &libraries.plugin)
        .env("URDMA_LEASE", args.lease.as_str())
        .env(SOCKETS_FROM, args.sockets_from.to_string())
        .env(SOCKETS_EXCLUDE, &args.sockets_exclude)
        .env(
            SOCKETS_DIAGNOSE,
            u8::from(args.sockets_diagnose).to_string(),
        )
        .exec();
    Err(Error::sentence(format!(
        "cannot run {}: {error}",
        program.to_string_lossy()
    )))
}
