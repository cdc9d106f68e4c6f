//! The number of instructions that the engine executes for one message, both ends together, and
//! that two connections execute for one packet, counted by valgrind.
//!
//! Only instructions of this project's code count, since the C library's copies differ from
//! processor to processor. The engines have no threads and no time is measured, so the load of the
//! machine does not matter: one count is enough.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use urdma_harness::instance::Scratch;
use urdma_harness::process::Process;

use crate::samples::Sample;

const PROGRAM: &str = "urdma-perf-engine";
/// A part of the names of functions of links in memory.
const LINK: &str = "loopback";
/// Numbers of messages of two runs, whose difference is free of the start-up. Multiples of the
/// batch of a stream.
const MESSAGES: [u32; 2] = [512, 1_536];
const LIMIT: Duration = Duration::from_secs(120);

/// Length of a message that is sent in packets.
const MESSAGE_OCTETS: u32 = 65_536;
/// Octets of the headers before the payload of a packet: IPv4, UDP, TRP and DDP.
const HEADER_OCTETS: u32 = 58;
/// Numbers of messages of 64 KB for counts of packets.
const LONG_MESSAGES: [u32; 2] = [32, 96];

/// How a stream of packets travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From connection to connection, without engines.
    Connections,
    /// From engine to engine, over leased queue pairs.
    Leased,
    /// From engine to engine, through the urdmad of either host.
    Forwarded,
}

/// A part of the way of a stream of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The process that writes.
    Sender,
    /// The process that acknowledges.
    Receiver,
    /// The urdmad that sends the packets.
    DaemonOfSender,
    /// The urdmad that receives them.
    DaemonOfReceiver,
}

impl Way {
    /// Its name on the command line of `urdma-perf-engine`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "packets",
            Self::Leased => "leased",
            Self::Forwarded => "forwarded",
        }
    }

    /// The module of `urdma-perf-engine` with the functions of its parts.
    const fn module(self) -> &'static str {
        match self {
            Self::Connections => "packets",
            Self::Leased | Self::Forwarded => "network",
        }
    }
}

impl Side {
    /// The name of its function in `urdma-perf-engine`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
            Self::DaemonOfSender => "daemon_of_sender",
            Self::DaemonOfReceiver => "daemon_of_receiver",
        }
    }
}

/// What the engine does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND, each answered by one.
    Send,
    /// SEND with immediate data, each answered by one.
    SendImm,
    /// SEND, 64 posted at once.
    Stream,
    /// RDMA Write, each posted when the one before is complete.
    Write,
    /// RDMA Write with immediate data, each answered by one.
    WriteImm,
    /// RDMA Read, each posted when the one before is complete.
    Read,
    /// Fetch-and-add, each posted when the one before is complete.
    FetchAdd,
}

impl Operation {
    /// Its name on the command line of `urdma-perf-engine`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send-imm",
            Self::Stream => "stream",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
        }
    }
}

/// Instructions of one message; `programs` is the directory of `urdma-perf-engine`.
///
/// # Errors
/// valgrind is not installed, or a run failed.
pub fn per_message(programs: &Path, operation: Operation, octets: u32) -> Sample {
    per_unit(
        programs,
        None,
        [operation.name(), &octets.to_string()],
        MESSAGES,
    )
}

/// Instructions that one part of a way executes for one packet of a stream of RDMA Writes of 64 KB,
/// on a path with this MTU, acknowledgements included; `programs` as for [`per_message`].
///
/// # Errors
/// As for [`per_message`].
pub fn per_packet(programs: &Path, way: Way, side: Side, mtu: u32) -> Sample {
    let function = format!("*{}::{}", way.module(), side.name());
    let arguments = [way.name(), &mtu.to_string()];
    let of_message = per_unit(programs, Some(&function), arguments, LONG_MESSAGES)?;
    Ok(of_message / f64::from(MESSAGE_OCTETS.div_ceil(mtu - HEADER_OCTETS)))
}

/// Instructions of one event in the flight recorder, with its probe and the engine's clock;
/// `programs` as for [`per_message`].
///
/// # Errors
/// As for [`per_message`].
pub fn per_event(programs: &Path) -> Sample {
    let function = "*events::record";
    per_unit(programs, Some(function), ["events", "64"], MESSAGES)
}

/// Instructions of one message, as the difference of two runs; only those within `function`, if
/// there is one.
fn per_unit(
    programs: &Path,
    function: Option<&str>,
    arguments: [&str; 2],
    messages: [u32; 2],
) -> Sample {
    let scratch = Scratch::new("instructions").map_err(|failure| failure.to_string())?;
    let count = |messages| count(programs, scratch.path(), function, arguments, messages);
    let [few, many] = [count(messages[0])?, count(messages[1])?];
    Ok(many.saturating_sub(few) as f64 / f64::from(messages[1] - messages[0]))
}

fn count(
    programs: &Path,
    scratch: &Path,
    function: Option<&str>,
    arguments: [&str; 2],
    messages: u32,
) -> Result<u64, String> {
    let out = scratch.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .args(function.map(|function| format!("--toggle-collect={function}")))
        .arg(programs.join(PROGRAM))
        .args(arguments)
        .arg(messages.to_string());
    let ended = Process::run(&mut command, LIMIT).map_err(|failure| failure.to_string())?;
    if !ended.succeeded() {
        return Err(format!("{PROGRAM}: {}", ended.describe()));
    }
    let file = fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    own_instructions(&file, PROGRAM, |function| function.contains(LINK))
}

/// Instructions of a program itself in a file that callgrind has written, without those of the
/// functions with a name that `is_left_out`.
pub(crate) fn own_instructions(
    file: &str,
    program: &str,
    is_left_out: impl Fn(&str) -> bool,
) -> Result<u64, String> {
    let (mut objects, mut functions) = (HashMap::new(), HashMap::new());
    let mut is_own = false;
    let mut is_out = false;
    let mut is_call = false;
    let mut own = 0;
    for line in file.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_own = *named(&mut objects, object, |name| name.ends_with(program));
        } else if let Some(object) = line.strip_prefix("cob=") {
            named(&mut objects, object, |name| name.ends_with(program));
        } else if let Some(function) = line.strip_prefix("fn=") {
            is_out = *named(&mut functions, function, &is_left_out);
        } else if let Some(function) = line.strip_prefix("cfn=") {
            named(&mut functions, function, &is_left_out);
        } else if line.starts_with("calls=") {
            // The cost in the next line is that of the callee.
            is_call = true;
        } else if line.starts_with(|first: char| "+-*0123456789".contains(first)) {
            let cost = line.split(' ').nth(1).map_or(Ok(0), str::parse);
            let cost: u64 = cost.map_err(|_| format!("callgrind's line has no cost: {line}"))?;
            own += if is_own && !is_out && !is_call {
                cost
            } else {
                0
            };
            is_call = false;
        }
    }
    Ok(own)
}

/// What `judge` says of a name in callgrind's compressed form: "(2) name" at the first occurrence,
/// "(2)" afterwards.
fn named<'a>(
    names: &'a mut HashMap<String, bool>,
    name: &str,
    judge: impl FnOnce(&str) -> bool,
) -> &'a bool {
    let (id, name) = name.split_once(' ').unwrap_or((name, ""));
    names.entry(id.to_owned()).or_insert_with(|| judge(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_instructions_leaves_out_calls_links_and_other_objects() {
        let file = "ob=(1) /lib/libc.so\nfn=(1) memcpy\n1 100\n\
                    ob=(2) /bin/urdma-perf-engine\nfn=(2) main\n5 7\n+3 2\n\
                    cob=(1)\ncfn=(1)\ncalls=1 1\n* 100\n* 4\nfn=(3) a::loopback::b\n\
                    6 50\nob=(1)\n9 1000\n";
        let is_link = |function: &str| function.contains(LINK);
        assert_eq!(own_instructions(file, PROGRAM, is_link), Ok(13));
    }
}
