//! RDMA Writes with Immediate of 1 MB between two processes, both of which poll:
//!
//! ```text
//! urdma-perf-writes SOURCES SINKS   the writer, which starts the other
//! urdma-perf-writes target          the other; its standard input is a socket of the writer
//! ```
//!
//! As many Writes as there are sources are in progress, each out of the next source and into the
//! next sink. Prints the rate in 10^9 octets a second.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::ptr;
use std::time::Instant;

use rdma_core_sys::verbs;
use serde::{Deserialize, Serialize};
use urdma_perf::verbs_setup::{
    connect, gid, made, open, poll, post_receive, queue_pair, register, Place, Write,
};
use urdma_perf::writes::{OCTETS, RATE};

/// Writes of a run.
const WRITES: usize = 2_000;
/// Receive requests of the target, and room for its peer's Writes.
const DEPTH: u32 = 64;
const BATCH: usize = 16;
/// The argument of the process that the writer starts.
const TARGET: &str = "target";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let counts: Result<Vec<usize>, _> = arguments.iter().map(|count| count.parse()).collect();
    let outcome = match (arguments.as_slice(), counts.as_deref()) {
        ([role], _) if role == TARGET => take(),
        (_, Ok(&[sources, sinks])) if sources > 0 && sinks > 0 => write(sources, sinks),
        _ => Err("usage: urdma-perf-writes SOURCES SINKS".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-writes: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What an end tells the other.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Hello {
    place: Place,
    /// Its messages, one behind the other.
    address: u64,
    key: u32,
    messages: usize,
}

/// The verbs objects of a process, which exist until it ends.
struct End {
    cq: *mut verbs::ibv_cq,
    qp: *mut verbs::ibv_qp,
    hello: Hello,
    found: [verbs::ibv_wc; BATCH],
}

impl End {
    /// An end with memory for so many messages, all of which is written.
    fn new(messages: usize) -> Result<Self, String> {
        let context = open()?;
        // SAFETY: the context is open; neither user context nor channel is given.
        let (pd, cq, gid) = unsafe {
            (
                made("ibv_alloc_pd", verbs::ibv_alloc_pd(context))?,
                made(
                    "ibv_create_cq",
                    verbs::ibv_create_cq(
                        context,
                        2 * DEPTH.cast_signed(),
                        ptr::null_mut(),
                        ptr::null_mut(),
                        0,
                    ),
                )?,
                gid(context)?,
            )
        };
        let memory = vec![1; messages * OCTETS].leak();
        let address = memory.as_ptr() as u64;
        // SAFETY: the memory is never freed; domain and queue live.
        let (region, qp) = unsafe { (register(pd, memory)?, queue_pair(pd, cq, DEPTH)?) };
        // SAFETY: both were just made.
        let (key, number) = unsafe { ((*region).lkey, (*qp).qp_num) };
        Ok(Self {
            cq,
            qp,
            hello: Hello {
                place: Place { gid, number },
                address,
                key,
                messages,
            },
            // SAFETY: all zeroes is a valid value of this plain structure.
            found: unsafe { std::mem::zeroed() },
        })
    }

    fn connect(&self, peer: &Hello) -> Result<(), String> {
        // SAFETY: the queue pair lives.
        unsafe { connect(self.qp, &peer.place) }
    }

    /// Polls once: how many requests are complete.
    fn poll(&mut self) -> Result<usize, String> {
        // SAFETY: the completion queue lives.
        unsafe { poll(self.cq, &mut self.found) }
    }

    fn receive(&self) -> Result<(), String> {
        let nothing = verbs::ibv_sge {
            addr: self.hello.address,
            length: 0,
            lkey: self.hello.key,
        };
        // SAFETY: the queue pair lives.
        unsafe { post_receive(self.qp, 0, nothing) }
    }

    /// Posts the Write with this number.
    fn write(&self, number: usize, peer: &Hello) -> Result<(), String> {
        let at = |hello: &Hello| hello.address + (number % hello.messages * OCTETS) as u64;
        let write = Write {
            id: 0,
            from: verbs::ibv_sge {
                addr: at(&self.hello),
                length: u32::try_from(OCTETS).map_err(text)?,
                lkey: self.hello.key,
            },
            to: (at(peer), peer.key),
        };
        // SAFETY: the queue pair lives.
        unsafe { write.post_with_immediate(self.qp) }
    }
}

fn tell<T: Serialize>(socket: &mut BufReader<UnixStream>, value: &T) -> Result<(), String> {
    let line = serde_json::to_string(value).map_err(text)?;
    writeln!(socket.get_mut(), "{line}").map_err(text)
}

fn learn<T: for<'de> Deserialize<'de>>(socket: &mut BufReader<UnixStream>) -> Result<T, String> {
    let mut line = String::new();
    socket.read_line(&mut line).map_err(text)?;
    serde_json::from_str(&line).map_err(text)
}

/// The target, which is told how many messages it has.
fn take() -> Result<(), String> {
    // SAFETY: asks for a signal to this process, nothing else.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let mut socket = BufReader::new(UnixStream::from(stdin.map_err(text)?));
    let (sinks, peer): (usize, Hello) = learn(&mut socket)?;
    let mut end = End::new(sinks)?;
    end.connect(&peer)?;
    (0..DEPTH).try_for_each(|_| end.receive())?;
    tell(&mut socket, &end.hello)?;
    let mut received = 0;
    while received < WRITES {
        let count = end.poll()?;
        (0..count).try_for_each(|_| end.receive())?;
        received += count;
    }
    // The writer may need this process until its last Write is complete.
    learn(&mut socket)
}

fn write(sources: usize, sinks: usize) -> Result<(), String> {
    let mut end = End::new(sources)?;
    let (ours, theirs) = UnixStream::pair().map_err(text)?;
    let mut child = Command::new(std::env::current_exe().map_err(text)?)
        .arg(TARGET)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .map_err(text)?;
    let mut socket = BufReader::new(ours);
    tell(&mut socket, &(sinks, end.hello))?;
    let peer: Hello = learn(&mut socket)?;
    end.connect(&peer)?;
    let begin = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < WRITES {
        while posted < WRITES.min(done + sources) {
            end.write(posted, &peer)?;
            posted += 1;
        }
        done += end.poll()?;
    }
    println!(
        "{RATE}{:.4}",
        (WRITES * OCTETS) as f64 / begin.elapsed().as_secs_f64() / 1e9
    );
    tell(&mut socket, &())?;
    child.wait().map(drop).map_err(text)
}
