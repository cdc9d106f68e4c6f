//! One end of net_memif without a protocol:
//!
//! ```text
//! urdma-perf-memif server|client latency|stream SOCKET PAYLOAD_OCTETS plain|huge
//! ```
//!
//! The last argument selects the pages of the packet buffers. The server echoes each frame
//! (latency), or counts the frames and answers once at the end (stream). The client prints
//! `result VALUE`: microseconds of half a round trip, or GB/s of payload.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use dpdk::{
    Burst, Drivers, Eal, EalOptions, LcoreId, Log, Memory, PoolConfig, Port, PortConfig, Process,
    QueueIndex, QueuePair, MAX_BURST,
};
use urdma_perf::raw::fork::{typical_half_round_trip, Mark};
use urdma_perf::raw::memif::{HEADERS_OCTETS, RESULT};
use urdma_perf::raw::Mode;
use urdma_perf::workloads::STREAM_OCTETS;

/// The most frames of a stream; small ones take as long as large ones.
const FRAMES_MAX: usize = 10_000_000;
/// The median of the rates of chunks of this length counts; the ring between the ends holds less.
const CHUNK_OCTETS: usize = 32 << 20;
const LINK_LIMIT: Duration = Duration::from_secs(10);
/// The other end has ended if nothing arrives for this time.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
const POLLS_BEFORE_YIELD: u32 = 1 << 14;
const POOL_MEGABYTES: u32 = 64;
const POOL: PoolConfig = PoolConfig {
    buffers: 1023,
    cache: 256,
    buffer_octets: BUFFER_OCTETS,
};
/// Room for a frame of an MTU of 9000 behind the headroom.
const BUFFER_OCTETS: u16 = 9600;

struct Arguments {
    is_server: bool,
    mode: Mode,
    socket: String,
    frame_octets: usize,
    memory: Memory,
}

fn main() -> ExitCode {
    let outcome = arguments().and_then(|arguments| run(&arguments));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("urdma-perf-memif: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Arguments, String> {
    let usage = || {
        "usage: urdma-perf-memif server|client latency|stream SOCKET PAYLOAD_OCTETS plain|huge"
            .to_owned()
    };
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [role, mode, socket, payload, pages] = given.as_slice() else {
        return Err(usage());
    };
    let mode = [Mode::Latency, Mode::Stream]
        .into_iter()
        .find(|m| m.name() == mode)
        .ok_or_else(usage)?;
    let payload: usize = payload.parse().map_err(|_| usage())?;
    let memory = match pages.as_str() {
        "plain" => Memory::Plain {
            megabytes: POOL_MEGABYTES,
        },
        "huge" => Memory::Huge {
            megabytes: POOL_MEGABYTES,
            directory: None,
        },
        _ => return Err(usage()),
    };
    Ok(Arguments {
        is_server: role == "server",
        mode,
        socket: socket.clone(),
        frame_octets: HEADERS_OCTETS + payload,
        memory,
    })
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let text = |error: dpdk::Error| error.to_string();
    let role = if arguments.is_server {
        "server"
    } else {
        "client"
    };
    let device = format!(
        "net_memif0,role={role},socket={},socket-abstract=no,bsize=9600",
        arguments.socket
    );
    let eal = Eal::init(&EalOptions {
        process: Process::Primary,
        file_prefix: format!("urdma-perf-{role}-{}", std::process::id()),
        runtime_directory: None,
        lcore: LcoreId::PRIMARY,
        memory: arguments.memory.clone(),
        drivers: Drivers::of_devices([device.as_str()]),
        pci: None,
        log: Log::Off,
    })
    .map_err(text)?;
    let mut port = Port::attach(&eal, &device).map_err(text)?;
    let pool = dpdk::Mempool::create(&eal, "perf", &POOL).map_err(text)?;
    port.configure(&PortConfig {
        pools: std::slice::from_ref(&pool),
        mtu: 9000,
        descriptors: None,
        rx_interrupts: false,
        hash_key: None,
    })
    .map_err(text)?;
    port.start().map_err(text)?;
    let start = Instant::now();
    while !port.link().map_err(text)?.up {
        if start.elapsed() > LINK_LIMIT {
            return Err("the link to the other end did not come up".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut pair = port.take_pair(QueueIndex(0)).ok_or("no queue pair")?;
    match (arguments.is_server, arguments.mode) {
        (true, Mode::Latency) => echo(&mut pair),
        (true, Mode::Stream) => count(&mut pair, arguments.frame_octets),
        (false, Mode::Latency) => report(round_trips(&mut pair, arguments.frame_octets)?),
        (false, Mode::Stream) => report(stream(&mut pair, arguments.frame_octets)?),
    }
}

fn report(value: f64) -> Result<(), String> {
    println!("{RESULT} {value}");
    Ok(())
}

/// Receives at least one frame; fails when the other end is silent for too long.
fn receive(pair: &mut QueuePair, burst: &mut Burst) -> Result<(), String> {
    let mut polls = 0u32;
    let mut silent_since = None;
    while pair.rx.burst(burst) == 0 {
        polls += 1;
        if polls.is_multiple_of(POLLS_BEFORE_YIELD) {
            std::thread::yield_now();
            if silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE_LIMIT {
                return Err("the other end sends nothing".into());
            }
        }
    }
    Ok(())
}

/// Transmits the whole burst.
fn transmit(pair: &mut QueuePair, burst: &mut Burst) -> Result<(), String> {
    let mut tries = 0u32;
    while !burst.is_empty() {
        if pair.tx.burst(burst) == 0 {
            tries += 1;
            if tries.is_multiple_of(POLLS_BEFORE_YIELD) {
                std::thread::yield_now();
            }
            if tries > POLLS_BEFORE_YIELD << 12 {
                return Err("the other end receives nothing".into());
            }
        }
    }
    Ok(())
}

/// Adds `wanted` frames to the burst, or none if there are no buffers; their first octet is the
/// mark.
fn fill(
    pair: &QueuePair,
    burst: &mut Burst,
    wanted: usize,
    frame_octets: usize,
    mark: Mark,
) -> Result<usize, String> {
    let held = burst.len();
    if !pair.pool.alloc_bulk(burst, wanted) {
        return Ok(0);
    }
    for mbuf in &mut burst[held..] {
        let frame = mbuf
            .set_frame(dpdk::HEADROOM_OCTETS, frame_octets)
            .ok_or("the frame is too long")?;
        if let Some(first) = frame.first_mut() {
            *first = mark.octet();
        }
    }
    Ok(wanted)
}

fn echo(pair: &mut QueuePair) -> Result<(), String> {
    let mut burst = Burst::new();
    let mut mark = Mark::More.octet();
    while mark != Mark::Last.octet() {
        receive(pair, &mut burst)?;
        mark = burst
            .last()
            .and_then(|frame| frame.data().first().copied())
            .unwrap_or(mark);
        transmit(pair, &mut burst)?;
    }
    linger();
    Ok(())
}

fn round_trips(pair: &mut QueuePair, frame_octets: usize) -> Result<f64, String> {
    let mut burst = Burst::new();
    let mut failure = Ok(());
    let half = typical_half_round_trip(|mark| {
        if failure.is_ok() {
            failure = round_trip(pair, &mut burst, frame_octets, mark);
        }
    });
    failure.map(|()| half)
}

fn round_trip(
    pair: &mut QueuePair,
    burst: &mut Burst,
    frame_octets: usize,
    mark: Mark,
) -> Result<(), String> {
    if fill(pair, burst, 1, frame_octets, mark)? == 0 {
        return Err("no packet buffer".into());
    }
    transmit(pair, burst)?;
    receive(pair, burst)?;
    burst.clear();
    Ok(())
}

fn frames(frame_octets: usize) -> usize {
    (STREAM_OCTETS / frame_octets).min(FRAMES_MAX)
}

fn count(pair: &mut QueuePair, frame_octets: usize) -> Result<(), String> {
    let mut left = frames(frame_octets);
    let mut burst = Burst::new();
    while left > 0 {
        receive(pair, &mut burst)?;
        left = left.saturating_sub(burst.len());
        dpdk::free_bulk(&mut burst);
    }
    fill(pair, &mut burst, 1, frame_octets, Mark::Last)?;
    transmit(pair, &mut burst)?;
    linger();
    Ok(())
}

fn stream(pair: &mut QueuePair, frame_octets: usize) -> Result<f64, String> {
    let mut left = frames(frame_octets);
    let mut burst = Burst::new();
    let mut chunks = Vec::new();
    let (mut start, mut in_chunk) = (Instant::now(), 0);
    while left > 0 {
        let filled = fill(
            pair,
            &mut burst,
            left.min(MAX_BURST),
            frame_octets,
            Mark::More,
        )?;
        transmit(pair, &mut burst)?;
        left -= filled;
        in_chunk += filled * (frame_octets - HEADERS_OCTETS);
        if in_chunk >= CHUNK_OCTETS {
            chunks.push(in_chunk as f64 / start.elapsed().as_secs_f64() / 1e9);
            (start, in_chunk) = (Instant::now(), 0);
        }
    }
    receive(pair, &mut burst)?;
    chunks.sort_by(f64::total_cmp);
    chunks
        .get(chunks.len() / 2)
        .copied()
        .ok_or_else(|| "the stream is shorter than a chunk".into())
}

/// Waits until the other end has received the last frame, before the link goes down.
fn linger() {
    std::thread::sleep(Duration::from_millis(100));
}
