//! The number of instructions that `liburdma_sockets.so` executes in a program whose connections
//! stay with TCP, counted by valgrind.
//!
//! The program has both ends of its connections, which have no rings: they end before they are
//! offered, or are excluded. What the kernel and the C library execute does not count.

use std::fs;
use std::path::Path;
use std::time::Duration;

use urdma_harness::instance::{Instance, Scratch};
use urdma_harness::over::Over;
use urdma_harness::process::Process;

use crate::compile::compile;
use crate::instructions::own_instructions;
use crate::samples::{text, Sample};

const LIBRARY: &str = "liburdma_sockets.so";
/// Its arguments: how many connections there are one after the other, and round trips of each.
/// A round trip is four transfers, a receive in vain, and two waits on an epoll set.
const PROGRAM: &str = include_str!("socket_calls.c");
const LIMIT: Duration = Duration::from_secs(120);
/// Connections of two runs, whose difference is free of the start.
const CONNECTIONS: [u32; 2] = [20, 60];
/// Round trips of a connection that ends before it is offered.
const FEW: u32 = 4;
/// Round trips of connections that are excluded, in two runs.
const MANY: [u32; 2] = [20, 60];

/// Instructions of the library.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// For a connection without round trips: both of its ends.
    pub connection: f64,
    /// For a round trip, before either end is offered.
    pub round_trip: f64,
    /// For a round trip of connections that are known to be excluded.
    pub excluded_round_trip: f64,
}

/// Counts them.
///
/// # Errors
/// valgrind or a C compiler is not installed, or a run failed.
pub fn counted(host: &Instance) -> Result<Counted, String> {
    let scratch = Scratch::new("socket-instructions").map_err(text)?;
    let program = compile(scratch.path(), "socket_calls", PROGRAM).map_err(text)?;
    let count = |over, connections, round_trips| {
        count(
            over,
            &program,
            &scratch.path().join("callgrind.out"),
            [connections, round_trips],
        )
    };
    let over = Over::Rings(host);
    let [few, many] = CONNECTIONS;
    let each = |round_trips| -> Sample {
        let counts = [
            count(over, few, round_trips)?,
            count(over, many, round_trips)?,
        ];
        Ok((counts[1] - counts[0]) / f64::from(many - few))
    };
    let connection = each(0)?;
    let round_trip = (each(FEW)? - connection) / f64::from(FEW);
    let over = Over::Excluded(host);
    let counts = [count(over, few, MANY[0])?, count(over, few, MANY[1])?];
    let excluded_round_trip = (counts[1] - counts[0]) / f64::from(few * (MANY[1] - MANY[0]));
    Ok(Counted {
        connection,
        round_trip,
        excluded_round_trip,
    })
}

fn count(over: Over<'_>, program: &Path, out: &Path, numbers: [u32; 2]) -> Sample {
    let file = format!("--callgrind-out-file={}", out.display());
    let program = program.display().to_string();
    let argv = ["valgrind", "--tool=callgrind", &file, &program];
    let argv = argv.map(str::to_owned).into_iter();
    let argv: Vec<String> = argv
        .chain(numbers.map(|number| number.to_string()))
        .collect();
    let ended = Process::run(&mut over.command(&argv).map_err(text)?, LIMIT).map_err(text)?;
    if !ended.succeeded() {
        return Err(ended.describe());
    }
    let file = fs::read_to_string(out).map_err(|error| format!("{}: {error}", out.display()))?;
    match own_instructions(&file, LIBRARY, |_| false)? {
        0 => Err(format!("{LIBRARY} has executed nothing")),
        counted => Ok(counted as f64),
    }
}
