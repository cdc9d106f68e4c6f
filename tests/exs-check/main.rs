//! `urdma-exs-check`: one end of a byte stream over verbs that sleeps whenever it has nothing to
//! do. The client sends octets of a seed in sends of random sizes, the server receives them in
//! receives of random sizes, and each prints the SHA-256 of them. The server also sends its digest
//! back, and the client fails if it is another than its own.

mod pattern;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use sha2::{Digest, Sha256};
use urdma_exs::{
    Buffer, CallError, Choice, Error, Event, Listener, Options, Outcome, Refused, Socket,
};

use crate::pattern::Pattern;

/// The longest time without an event.
const SILENCE: Duration = Duration::from_secs(60);
/// Octets of a digest.
const DIGEST: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Server,
    Client,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transfers {
    Dynamic,
    Direct,
    Indirect,
}

/// One end of a byte stream.
#[derive(Debug, Parser)]
struct Arguments {
    /// The server receives, the client sends.
    role: Role,
    /// Where the server listens.
    address: SocketAddr,
    /// How many octets are sent.
    octets: u64,
    /// What they, and the lengths of sends and receives, are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sends or receives in progress.
    #[arg(long, default_value_t = 16)]
    posted: usize,
    /// The greatest length of a send or receive.
    #[arg(long, default_value_t = 256 << 10)]
    max_octets: usize,
    /// The length of the ring.
    #[arg(long, default_value_t = 4 << 20)]
    ring_octets: usize,
    /// The client gives the stream up with this code in place of finishing it.
    #[arg(long)]
    abort: Option<u32>,
    /// How the client chooses between transfers.
    #[arg(long, value_enum, default_value_t = Transfers::Dynamic)]
    transfers: Transfers,
}

impl Arguments {
    fn options(&self) -> Options {
        let mut options = Options {
            ring_octets: self.ring_octets,
            ..Options::default()
        };
        options.config.choice = match self.transfers {
            Transfers::Dynamic => Choice::Dynamic,
            Transfers::Direct => Choice::Direct,
            Transfers::Indirect => Choice::Indirect,
        };
        options
    }

    /// The buffers of the operations in progress, parts of one allocation.
    fn buffers(&self) -> Result<Vec<Buffer>, String> {
        let mut rest = Buffer::new(self.posted * self.max_octets).map_err(text)?;
        let mut buffers = Vec::new();
        for _ in 0..self.posted {
            let next = rest.split_off(self.max_octets);
            buffers.push(std::mem::replace(&mut rest, next));
        }
        Ok(buffers)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.role {
        Role::Server => serve(&arguments),
        Role::Client => send_all(&arguments),
    };
    match result {
        Ok(digest) => {
            println!("sha256 {}", pattern::hex(&digest));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("urdma-exs-check: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// The next event, which must come. If the stream has failed, it is the last: those before it
/// return the buffers of the operations in progress.
fn next(socket: &mut Socket) -> Result<Event, String> {
    let mut returned = 0;
    loop {
        let event = socket.wait(Some(SILENCE)).map_err(text)?;
        match event.ok_or("no event comes")? {
            Event::Failed(failure) => {
                return Err(format!("stream ended: {failure}, {returned} returned"));
            }
            Event::Sent {
                outcome: Outcome::Failed(_),
                ..
            }
            | Event::Received {
                outcome: Outcome::Failed(_),
                ..
            } => returned += 1,
            event => return Ok(event),
        }
    }
}

/// Why an operation is not posted.
fn refused(socket: &mut Socket, refused: &Refused) -> String {
    if !matches!(refused.error, Error::Refused(CallError::Failed)) {
        return text(refused);
    }
    loop {
        if let Err(reason) = next(socket) {
            return reason;
        }
    }
}

/// Waits until both halves are finished.
fn wait_for_close(socket: &mut Socket) -> Result<(), String> {
    loop {
        match next(socket)? {
            Event::Closed => return Ok(()),
            Event::Received {
                outcome: Outcome::EndOfStream,
                ..
            } => {}
            Event::Sent {
                outcome: Outcome::Done,
                ..
            } => {}
            other => return Err(format!("{other:?} while the stream is closed")),
        }
    }
}

fn say_how(socket: &Socket) {
    let stats = socket.stats();
    println!(
        "direct {} indirect {} adverts {} stale {} pauses {} copied {} controls {}",
        stats.direct_transfers,
        stats.indirect_transfers,
        stats.adverts_sent,
        stats.adverts_stale,
        stats.pauses,
        stats.copied_octets,
        stats.controls_sent
    );
}

fn serve(arguments: &Arguments) -> Result<[u8; DIGEST], String> {
    let listener = Listener::bind(arguments.address).map_err(text)?;
    println!("listening at port {}", listener.port());
    let mut socket = listener.accept(&arguments.options()).map_err(text)?;
    let mut lengths = Pattern::new(!arguments.seed);
    for buffer in arguments.buffers()? {
        post_recv(&mut socket, buffer, &mut lengths, arguments.max_octets)?;
    }
    let (mut hash, mut received) = (Sha256::new(), 0);
    println!("receiving");
    loop {
        let event = next(&mut socket)?;
        let Event::Received {
            buffer,
            octets,
            outcome,
            ..
        } = event
        else {
            return Err(format!("{event:?} instead of octets"));
        };
        hash.update(&buffer[..usize::try_from(octets).map_err(text)?]);
        received += octets;
        match outcome {
            Outcome::Done => post_recv(&mut socket, buffer, &mut lengths, arguments.max_octets)?,
            Outcome::EndOfStream => break,
            other => return Err(format!("a receive ended with {other:?}")),
        }
    }
    if received != arguments.octets {
        return Err(format!("{received} octets of {}", arguments.octets));
    }
    let digest: [u8; DIGEST] = hash.finalize().into();
    let mut answer = Buffer::new(DIGEST).map_err(text)?;
    answer.copy_from_slice(&digest);
    socket.send(answer, DIGEST).map_err(text)?;
    socket.finish().map_err(text)?;
    wait_for_close(&mut socket)?;
    say_how(&socket);
    Ok(digest)
}

/// Posts a receive into the beginning of a buffer, or all of it.
fn post_recv(
    socket: &mut Socket,
    buffer: Buffer,
    lengths: &mut Pattern,
    max_octets: usize,
) -> Result<(), String> {
    let waitall = lengths.below(4) == 0;
    let len = 1 + lengths.below(max_octets);
    match socket.recv(buffer, len, waitall) {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(socket, &error)),
    }
}

fn send_all(arguments: &Arguments) -> Result<[u8; DIGEST], String> {
    let mut socket = Socket::connect(arguments.address, &arguments.options()).map_err(text)?;
    let mut lengths = Pattern::new(arguments.seed.rotate_left(32));
    let mut content = Pattern::new(arguments.seed);
    let mut hash = Sha256::new();
    let mut free = arguments.buffers()?;
    let mut left = arguments.octets;
    println!("sending");
    while left > 0 {
        let Some(mut buffer) = free.pop() else {
            free.push(sent(next(&mut socket)?)?);
            continue;
        };
        let len = 1 + lengths.below(arguments.max_octets);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        content.fill(&mut buffer[..len]);
        hash.update(&buffer[..len]);
        left -= len as u64;
        if let Err(error) = socket.send(buffer, len) {
            return Err(refused(&mut socket, &error));
        }
    }
    if let Some(code) = arguments.abort {
        socket.abort(code);
        loop {
            next(&mut socket)?;
        }
    }
    let digest: [u8; DIGEST] = hash.finalize().into();
    let answer = Buffer::new(DIGEST).map_err(text)?;
    socket.recv(answer, DIGEST, true).map_err(text)?;
    socket.finish().map_err(text)?;
    loop {
        match next(&mut socket)? {
            Event::Received { buffer, octets, .. } => {
                if octets != DIGEST as u64 || buffer[..] != digest {
                    return Err("the server has received other octets".to_owned());
                }
                break;
            }
            event => drop(sent(event)?),
        }
    }
    wait_for_close(&mut socket)?;
    say_how(&socket);
    Ok(digest)
}

/// The buffer of a send that is complete.
fn sent(event: Event) -> Result<Buffer, String> {
    match event {
        Event::Sent {
            buffer,
            outcome: Outcome::Done,
            ..
        } => Ok(buffer),
        other => Err(format!("{other:?} instead of a complete send")),
    }
}
