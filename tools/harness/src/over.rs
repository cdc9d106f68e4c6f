//! What the octets of a program's connections go over.

use std::process::Command;

use crate::instance::{Instance, LeasePolicy};
use crate::Failure;

/// The variable with the rules of connections that stay with TCP, and the rule for all of them.
const EXCLUDE: (&str, &str) = ("URDMA_SOCKETS_EXCLUDE", "0.0.0.0/0");

/// What the octets go over.
#[derive(Debug, Clone, Copy)]
pub enum Over<'a> {
    /// Queue pairs of this instance, which has the address 127.0.0.1.
    Urdma(&'a Instance),
    /// TCP connections whose octets this instance moves to rings.
    Rings(&'a Instance),
    /// TCP connections that this instance is told to leave with TCP.
    Excluded(&'a Instance),
    /// Sockets of the kernel.
    Tcp,
}

impl Over<'_> {
    /// A program with its arguments.
    ///
    /// # Errors
    /// `urdma` has not been built, or `argv` is empty.
    pub fn command(&self, argv: &[String]) -> Result<Command, Failure> {
        match self {
            Self::Urdma(host) => return host.run(LeasePolicy::Never, argv),
            Self::Rings(host) => return host.run_over_rings(argv),
            Self::Excluded(host) => {
                let mut command = host.run_over_rings(argv)?;
                command.env(EXCLUDE.0, EXCLUDE.1);
                return Ok(command);
            }
            Self::Tcp => {}
        }
        let (program, arguments) = argv
            .split_first()
            .ok_or_else(|| Failure::new("there is no program"))?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    }
}
