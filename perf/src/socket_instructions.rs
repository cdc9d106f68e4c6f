//! The number of instructions that `liburdma_sockets.so` executes for connections that stay with
//! TCP, and for one that has rings, and that the stand-in executes for connections of a program
//! without that library, counted by valgrind.
//!
//! The program has both ends of its connections. Those that stay with TCP end before they are
//! offered, or are excluded. What the kernel and the C library execute does not count.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use urdma_harness::instance::{Instance, Scratch};
use urdma_harness::over::Over;
use urdma_harness::process::Process;

use crate::compile::compile;
use crate::instructions::own_instructions;
use crate::samples::{text, Sample};

const RINGS: &str = "liburdma_sockets.so";
const STANDIN: &str = "liburdma_standin.so";
/// Its arguments: how many connections there are one after the other, or `rings` or `exchange` for
/// one that has rings; and round trips of each. A round trip is four transfers, a receive in vain,
/// and two waits on an epoll set; an exchange is four transfers.
const PROGRAM: &str = include_str!("socket_calls.c");
const LIMIT: Duration = Duration::from_secs(120);
/// Connections of two runs, whose difference is free of the start.
const CONNECTIONS: [u32; 2] = [20, 60];
/// Round trips of a connection that ends before it is offered.
const FEW: u32 = 4;
/// Round trips of connections that are excluded, in two runs. On a busy machine urdmad says only
/// after dozens of them that they are.
const MANY: [u32; 2] = [500, 1_000];
/// Those of a connection that has rings.
const BY_RINGS: [u32; 2] = [1_000, 6_000];

/// Instructions of the library.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// For a connection without round trips: both of its ends.
    pub connection: f64,
    /// For a round trip, before either end is offered.
    pub round_trip: f64,
    /// For a round trip of connections that are known to be excluded.
    pub excluded_round_trip: f64,
    /// For a round trip over rings.
    pub ring_round_trip: f64,
    /// For two sends over rings and the receives of their octets.
    pub ring_exchange: f64,
    /// Of the stand-in, for a connection without round trips: both of its ends.
    pub standin_connection: f64,
}

/// Counts them.
///
/// # Errors
/// valgrind or a C compiler is not installed, or a run failed.
pub fn counted(host: &Instance) -> Result<Counted, String> {
    let scratch = Scratch::new("socket-instructions").map_err(text)?;
    let mut counter = Counter {
        library: RINGS,
        program: compile(scratch.path(), "socket_calls", PROGRAM).map_err(text)?,
        out: scratch.path().join("callgrind.out"),
    };
    let over = Over::Rings(host);
    let few = CONNECTIONS[0];
    let connection = counter.connection(over, 0)?;
    let round_trip = (counter.connection(over, FEW)? - connection) / f64::from(FEW);
    let excluded = counter.round_trip(Over::Excluded(host), &few.to_string(), MANY)?;
    let ring_round_trip = counter.round_trip(over, "rings", BY_RINGS)?;
    let ring_exchange = counter.round_trip(over, "exchange", BY_RINGS)?;
    counter.library = STANDIN;
    Ok(Counted {
        connection,
        round_trip,
        excluded_round_trip: excluded / f64::from(few),
        ring_round_trip,
        ring_exchange,
        standin_connection: counter.connection(Over::Urdma(host), 0)?,
    })
}

/// The program, the library whose instructions count, and where valgrind writes the numbers.
struct Counter {
    library: &'static str,
    program: PathBuf,
    out: PathBuf,
}

impl Counter {
    /// What one connection with these round trips takes.
    fn connection(&self, over: Over<'_>, round_trips: u32) -> Sample {
        let [less, more] =
            CONNECTIONS.map(|connections| self.count(over, &connections.to_string(), round_trips));
        Ok((more? - less?) / f64::from(CONNECTIONS[1] - CONNECTIONS[0]))
    }

    /// What one round trip of the `connections` takes, by runs with less and with more.
    fn round_trip(&self, over: Over<'_>, connections: &str, round_trips: [u32; 2]) -> Sample {
        let [less, more] = round_trips.map(|number| self.count(over, connections, number));
        Ok((more? - less?) / f64::from(round_trips[1] - round_trips[0]))
    }

    fn count(&self, over: Over<'_>, connections: &str, round_trips: u32) -> Sample {
        let argv = [
            "valgrind".to_owned(),
            "--tool=callgrind".to_owned(),
            format!("--callgrind-out-file={}", self.out.display()),
            self.program.display().to_string(),
            connections.to_owned(),
            round_trips.to_string(),
        ];
        let ended = Process::run(&mut over.command(&argv).map_err(text)?, LIMIT).map_err(text)?;
        if !ended.succeeded() {
            return Err(ended.describe());
        }
        let out = &self.out;
        let file =
            fs::read_to_string(out).map_err(|error| format!("{}: {error}", out.display()))?;
        let library = self.library;
        match own_instructions(&file, library, |_| false)? {
            0 => Err(format!("{library} has executed nothing")),
            counted => Ok(counted as f64),
        }
    }
}
