//! One end of bare UDP sockets:
//!
//! ```text
//! urdma-perf-udp server|client latency|stream ADDRESS
//! ```
//!
//! The server has the address. It echoes each datagram (latency), or receives messages that the
//! kernel may have coalesced (stream). One end prints `result VALUE`: the client microseconds of
//! half a round trip, the server GB/s that have arrived.

#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use urdma_perf::raw::fork::{typical_half_round_trip, Mark};
use urdma_perf::raw::Mode;
use urdma_perf::sockets::{DATAGRAM_OCTETS, LISTENING, RESULT};

/// A port that no instance of urdma has.
const PORT: u16 = 21_490;
const SMALL: usize = 64;
/// Datagrams of a message: as many as fit an IP packet.
const SEGMENTS: usize = 44;
const WATCH: Duration = Duration::from_secs(1);
/// The other end has ended if nothing arrives for this time.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// The stream has ended if nothing arrives for this time.
const END: Duration = Duration::from_millis(300);
const BUFFER_OCTETS: libc::c_int = 4 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("urdma-perf-udp: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let usage = || io::Error::other("usage: urdma-perf-udp server|client latency|stream ADDRESS");
    let &[role, mode, address] = &words[..] else {
        return Err(usage());
    };
    let is_latency = mode == Mode::Latency.name();
    let socket = match role {
        "server" => UdpSocket::bind((address, PORT))?,
        "client" => UdpSocket::bind(("0.0.0.0", 0))?,
        _ => return Err(usage()),
    };
    socket.set_read_timeout(Some(SILENCE_LIMIT))?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER_OCTETS)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER_OCTETS)?;
    match (role, is_latency) {
        ("server", _) => {
            println!("{LISTENING}");
            if is_latency {
                echo(&socket)
            } else {
                count(&socket)
            }
        }
        (_, true) => {
            socket.connect((address, PORT))?;
            ask(&socket)
        }
        (_, false) => {
            socket.connect((address, PORT))?;
            send(&socket)
        }
    }
}

fn set(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let octets = libc::socklen_t::try_from(size_of_val(&value)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads an integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            octets,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn echo(socket: &UdpSocket) -> io::Result<()> {
    let mut datagram = [0; SMALL];
    loop {
        let (octets, from) = socket.recv_from(&mut datagram)?;
        socket.send_to(&datagram[..octets], from)?;
        if datagram[0] == Mark::Last.octet() {
            return Ok(());
        }
    }
}

fn ask(socket: &UdpSocket) -> io::Result<()> {
    let mut failure = None;
    let us = typical_half_round_trip(|mark| {
        let mut datagram = [mark.octet(); SMALL];
        let answered = socket
            .send(&datagram)
            .and_then(|_| socket.recv(&mut datagram));
        failure = failure.take().or(answered.err());
    });
    match failure {
        Some(error) => Err(error),
        None => {
            println!("{RESULT} {us}");
            Ok(())
        }
    }
}

fn send(socket: &UdpSocket) -> io::Result<()> {
    let segment = libc::c_int::try_from(DATAGRAM_OCTETS).map_err(io::Error::other)?;
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, segment)?;
    let message = vec![7; SEGMENTS * DATAGRAM_OCTETS];
    let begin = Instant::now();
    while begin.elapsed() < WATCH {
        socket.send(&message)?;
    }
    Ok(())
}

fn count(socket: &UdpSocket) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    let mut message = vec![0; 1 << 16];
    let mut octets = socket.recv(&mut message)?;
    socket.set_read_timeout(Some(END))?;
    let begin = Instant::now();
    let mut end = begin;
    while let Ok(more) = socket.recv(&mut message) {
        octets += more;
        end = Instant::now();
    }
    let seconds = end.duration_since(begin).as_secs_f64();
    println!("{RESULT} {}", octets as f64 / seconds / 1e9);
    Ok(())
}
