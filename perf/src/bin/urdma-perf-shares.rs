//! Queue pairs of one process that write to those of another without a pause:
//!
//! ```text
//! urdma-perf-shares server SOCKET QUEUE_PAIRS
//! urdma-perf-shares client SOCKET QUEUE_PAIRS WARM_UP_MS WATCH_MS
//! ```
//!
//! Both sleep when they have nothing to do, so that the daemons that make the link get the
//! processors. The client prints a line at the end of the warm-up, and a line with the octets a
//! second that each queue pair has written since.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_core_sys::verbs;
use serde::{Deserialize, Serialize};
use urdma_perf::shares::{LISTENING, OCTETS, WATCHING};
use urdma_perf::verbs_setup::{
    connect, gid, made, open, poll, queue_pair, register, request_notification, wait_for_event,
    Place, Write,
};

const LENGTH: u32 = 65_536;
/// Outstanding writes of a queue pair: 4 MB, more than the bandwidth-delay product of 1 Gbit/s and
/// 10 ms.
const DEPTH: u32 = 64;
const BATCH: usize = 32;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match *arguments.as_slice() {
        ["server", socket, count] => number(count).and_then(|count| serve(socket, count)),
        ["client", socket, count, warm_up, watch] => number(count).and_then(|count| {
            let [warm_up, watch] = [number(warm_up)?, number(watch)?];
            let times = [warm_up, watch].map(|ms| Duration::from_millis(ms.into()));
            write(socket, count, times)
        }),
        _ => Err(
            "usage: urdma-perf-shares server|client SOCKET QUEUE_PAIRS [WARM_UP_MS WATCH_MS]"
                .into(),
        ),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-shares: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not a number"))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The addresses of an end's queue pairs, and the memory that may be written.
#[derive(Serialize, Deserialize)]
struct Hello {
    places: Vec<Place>,
    address: u64,
    key: u32,
}

/// One end. All objects exist until the process ends.
struct End {
    channel: *mut verbs::ibv_comp_channel,
    cq: *mut verbs::ibv_cq,
    qps: Vec<*mut verbs::ibv_qp>,
    memory: Vec<u8>,
    key: u32,
    gid: [u8; 16],
}

impl End {
    fn new(count: u32) -> Result<Self, String> {
        let context = open()?;
        // SAFETY: the context is open.
        let (pd, channel, gid) = unsafe {
            (
                made("ibv_alloc_pd", verbs::ibv_alloc_pd(context))?,
                made(
                    "ibv_create_comp_channel",
                    verbs::ibv_create_comp_channel(context),
                )?,
                gid(context)?,
            )
        };
        let entries = i32::try_from(count * DEPTH).map_err(text)?;
        // SAFETY: context and channel are valid; no user context is given.
        let cq = unsafe { verbs::ibv_create_cq(context, entries, ptr::null_mut(), channel, 0) };
        let cq = made("ibv_create_cq", cq)?;
        // SAFETY: domain and queue were made here.
        let qps = (0..count).map(|_| unsafe { queue_pair(pd, cq, DEPTH) });
        let qps = qps.collect::<Result<_, _>>()?;
        let mut memory = vec![0; LENGTH as usize];
        // SAFETY: the memory is neither freed nor moved while the end lives.
        let region = unsafe { register(pd, &mut memory)? };
        // SAFETY: the region was just made.
        let key = unsafe { (*region).lkey };
        Ok(Self {
            channel,
            cq,
            qps,
            memory,
            key,
            gid,
        })
    }

    /// Exchanges addresses with the other end and connects the queue pairs in order.
    fn meet(&self, stream: &mut BufReader<UnixStream>) -> Result<Hello, String> {
        let place = |qp: &*mut verbs::ibv_qp| Place {
            gid: self.gid,
            // SAFETY: the queue pair lives.
            number: unsafe { (**qp).qp_num },
        };
        let hello = Hello {
            places: self.qps.iter().map(place).collect(),
            address: self.memory.as_ptr() as u64,
            key: self.key,
        };
        let hello = serde_json::to_string(&hello).map_err(text)?;
        writeln!(stream.get_mut(), "{hello}").map_err(text)?;
        let mut line = String::new();
        stream.read_line(&mut line).map_err(text)?;
        let peer: Hello = serde_json::from_str(&line).map_err(text)?;
        for (qp, place) in self.qps.iter().zip(&peer.places) {
            // SAFETY: the queue pair lives.
            unsafe { connect(*qp, place)? };
        }
        Ok(peer)
    }

    fn post(&self, number: usize, peer: &Hello) -> Result<(), String> {
        let write = Write {
            id: number as u64,
            from: verbs::ibv_sge {
                addr: self.memory.as_ptr() as u64,
                length: LENGTH,
                lkey: self.key,
            },
            to: (peer.address, peer.key),
        };
        // SAFETY: the queue pair lives.
        unsafe { write.post(self.qps[number]) }
    }
}

/// Serves as the target of writes until the client ends.
fn serve(socket: &str, count: u32) -> Result<(), String> {
    let end = End::new(count)?;
    let listener = UnixListener::bind(socket).map_err(text)?;
    println!("{LISTENING}");
    let mut stream = BufReader::new(listener.accept().map_err(text)?.0);
    end.meet(&mut stream)?;
    // Tells the client that all queue pairs are connected.
    writeln!(stream.get_mut()).map_err(text)?;
    // The connection ends with the client.
    let mut rest = String::new();
    stream.read_line(&mut rest).map(drop).map_err(text)
}

fn write(socket: &str, count: u32, [warm_up, watch]: [Duration; 2]) -> Result<(), String> {
    let end = End::new(count)?;
    let mut stream = BufReader::new(UnixStream::connect(socket).map_err(text)?);
    let peer = end.meet(&mut stream)?;
    stream.read_line(&mut String::new()).map_err(text)?;
    for number in 0..end.qps.len() {
        for _ in 0..DEPTH {
            end.post(number, &peer)?;
        }
    }
    let mut done = vec![0; end.qps.len()];
    write_for(warm_up, &end, &peer, &mut done)?;
    println!("{WATCHING}");
    done.fill(0);
    let begin = Instant::now();
    write_for(watch, &end, &peer, &mut done)?;
    let watched_s = begin.elapsed().as_secs_f64();
    let octets_s = done
        .iter()
        .map(|writes| format!("{:.0}", *writes as f64 * f64::from(LENGTH) / watched_s));
    println!("{OCTETS}{}", octets_s.collect::<Vec<_>>().join(" "));
    Ok(())
}

/// Posts a write for each completion, and counts the completions of each queue pair.
fn write_for(time: Duration, end: &End, peer: &Hello, done: &mut [u64]) -> Result<(), String> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut found: [verbs::ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
    let begin = Instant::now();
    let mut is_armed = false;
    while begin.elapsed() < time {
        // SAFETY: the completion queue lives.
        let count = unsafe { poll(end.cq, &mut found)? };
        for wc in &found[..count] {
            let number = usize::try_from(wc.wr_id).map_err(text)?;
            done[number] += 1;
            end.post(number, peer)?;
        }
        if count > 0 {
            continue;
        }
        // The queue is armed before the last poll, so that no completion is missed.
        // SAFETY: queue and channel live.
        unsafe {
            if is_armed {
                wait_for_event(end.channel)?;
            } else {
                request_notification(end.cq)?;
            }
        }
        is_armed = !is_armed;
    }
    Ok(())
}
