//! Starts instances of urdma, runs existing verbs programs over them and parses their output.
//!
//! Used by the demo, the black-box tests and the measurements:
//! - [`process`]: one program with its output and a time limit; it never outlives its owner;
//! - [`calls`]: how many system calls a program makes;
//! - [`hugepages`]: reservation of hugepages;
//! - [`instance`]: `urdma up` with a configuration, `urdma run`, `urdma down`;
//! - [`namespace`]: network namespaces as hosts;
//! - [`link`]: raw frames of a network interface, as an attacker on the link sends and sees them;
//! - [`over`]: what the octets of a program's connections go over;
//! - [`programs`]: the catalogue of programs, their command lines and output;
//! - [`pair`]: a server and a client of one program over a path;
//! - [`servers`]: Debian's TCP servers and the programs that load them;
//! - [`scheduler`]: the scheduler's groups of threads, switched off;
//! - [`tshark`]: a capture as Wireshark reads it;
//! - [`valkey`]: Valkey's server and benchmark over urdma and over TCP.

pub mod calls;
pub mod hugepages;
pub mod instance;
pub mod link;
pub mod namespace;
pub mod over;
pub mod pair;
pub mod process;
pub mod programs;
pub mod scheduler;
pub mod servers;
pub mod tshark;
pub mod valkey;

/// The failure of a run, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl Failure {
    /// A failure described by `sentence`.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}
