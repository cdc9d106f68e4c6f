//! `urdma-metad`: the metadata service of pools as a verbs program. doc/pool.md describes it
//! ("Metadata service").

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use urdma_pool_verbs::{Limits, MetadataService};

/// Descriptors of the program besides those of connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// Serve a directory of nodes, which clients of pools read by RDMA.
///
/// A node is in it for as long as its connection to the service lasts. It is a verbs program:
/// `urdma run -- urdma-metad --listen ADDRESS:PORT`.
#[derive(Debug, Parser)]
#[command(name = "urdma-metad", version, max_term_width = 100)]
struct Arguments {
    /// The address and port at which nodes register and clients connect
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The most nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=Limits::MAX.into()))]
    nodes_max: u32,
    /// The most clients
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=Limits::MAX.into()))]
    clients_max: u32,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot listen at {at}: {error}")]
    Listen {
        at: SocketAddr,
        #[source]
        error: urdma_pool_verbs::Error,
    },
    #[error(
        "so many nodes and clients need {needed} descriptors, and this process may have {limit}: \
         raise the limit (ulimit -Hn), or give lower --nodes-max and --clients-max"
    )]
    Descriptors { needed: u64, limit: u64 },
    #[error(transparent)]
    Removed(urdma_pool_verbs::Error),
    #[error("the limit of descriptors: {0}")]
    Limit(#[from] nix::errno::Errno),
}

/// The definition by which the program parses its arguments.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Raises the limit of descriptors, of which each connection needs one.
fn allow_descriptors(limits: Limits) -> Result<(), Error> {
    let needed = u64::from(limits.nodes) + u64::from(limits.clients) + OTHER_DESCRIPTORS;
    let (soft, limit) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if needed > limit {
        return Err(Error::Descriptors { needed, limit });
    }
    Ok(setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), limit)?)
}

fn run(arguments: &Arguments) -> Result<Infallible, Error> {
    let limits = Limits {
        nodes: arguments.nodes_max,
        clients: arguments.clients_max,
    };
    allow_descriptors(limits)?;
    let at = arguments.listen;
    let listening = MetadataService::listen(at, limits);
    let mut service = listening.map_err(|error| Error::Listen { at, error })?;
    println!("listens at {at}");
    loop {
        match service.turn() {
            Ok(()) => {}
            Err(error @ urdma_pool_verbs::Error::Removed) => return Err(Error::Removed(error)),
            // One that cannot be served does not end the others.
            Err(error) => eprintln!("urdma-metad: {error}"),
        }
    }
}

/// The program: parses the arguments of the process, and serves.
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("urdma-metad: {error}");
            ExitCode::FAILURE
        }
    }
}
