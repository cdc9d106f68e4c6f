//! Ends that block.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use urdma_exs::{Buffer, ByteStream, Event, Kind, Listener, Options, Outcome, Socket};
use urdma_harness::process::wait_until;
use urdma_tests::SHORT;

use crate::{content, digest};
use urdma_exs_cli::pattern::Pattern;

/// How many octets are echoed, and passed in one direction.
const ECHOED: usize = 16 << 20;
const PASSED: usize = 5_000_003;
/// What an end that has written and not read has in progress at most.
const WINDOW: usize = 1 << 20;

pub(crate) fn run(role: &str, address: SocketAddr) -> io::Result<()> {
    match role {
        "echo" => echo(address),
        "asks" => ask(address),
        "receives" => receive(address),
        "drops" => pass(address, |mut stream, octets| {
            stream.write_all(octets)?;
            drop(stream);
            Ok(())
        }),
        "sends a file" => pass(address, send_file),
        "refuses" => refuse(address),
        "is refused" => be_refused(address),
        "is stopped" => be_stopped(address),
        "sleeps" => sleep_behind_short_sends(address),
        other => panic!("no role {other}"),
    }
}

fn listen(address: SocketAddr) -> io::Result<Listener> {
    let listener = Listener::bind(address)?;
    println!("listening");
    Ok(listener)
}

fn connect(address: SocketAddr) -> io::Result<ByteStream> {
    ByteStream::connect(address, &Options::default())
}

fn echo(address: SocketAddr) -> io::Result<()> {
    let mut stream = ByteStream::accept(&listen(address)?, &Options::default())?;
    let mut octets = vec![0; 100_000];
    loop {
        match stream.read(&mut octets)? {
            0 => break,
            count => stream.write_all(&octets[..count])?,
        }
    }
    stream.close()
}

fn ask(address: SocketAddr) -> io::Result<()> {
    let mut stream = connect(address)?;
    assert_eq!(stream.peer(), Some(address));
    let octets = content(ECHOED);
    let mut answer = vec![0; ECHOED];
    let (mut written, mut read) = (0, 0);
    let mut lengths = Pattern::new(3);
    while written < ECHOED {
        let len = (1 + lengths.below(100_000)).min(ECHOED - written);
        written += stream.write(&octets[written..written + len])?;
        if written - read > WINDOW {
            read += stream.read(&mut answer[read..])?;
        }
    }
    stream.flush()?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_exact(&mut answer[read..])?;
    assert_eq!(digest(&answer), digest(&octets));
    assert_eq!(stream.read(&mut [0])?, 0, "the end of the stream");
    assert_eq!(
        stream.write(&[0]).unwrap_err().kind(),
        ErrorKind::BrokenPipe
    );
    stream.close()
}

/// Receives until the end of a stream, and sends the digest in another.
fn receive(address: SocketAddr) -> io::Result<()> {
    let listener = listen(address)?;
    let mut octets = Vec::new();
    ByteStream::accept(&listener, &Options::default())?.read_to_end(&mut octets)?;
    let mut second = ByteStream::accept(&listener, &Options::default())?;
    second.write_all(digest(&octets).as_bytes())?;
    second.close()
}

/// Sends octets, and compares the digest.
fn pass(
    address: SocketAddr,
    send: impl FnOnce(ByteStream, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let octets = content(PASSED);
    send(connect(address)?, &octets)?;
    let mut answer = String::new();
    connect(address)?.read_to_string(&mut answer)?;
    assert_eq!(answer, digest(&octets));
    Ok(())
}

fn send_file(mut stream: ByteStream, octets: &[u8]) -> io::Result<()> {
    let path = std::env::temp_dir().join(format!("urdma-exs-rust-{}", std::process::id()));
    std::fs::write(&path, octets)?;
    let file = File::open(&path)?;
    std::fs::remove_file(&path)?;
    stream.write_all(&octets[..10])?;
    let middle = 3_000_000;
    assert_eq!(stream.send_file(&file, 10, middle)?, middle);
    // More than there is.
    let sent = stream.send_file(&file, 10 + middle, 1 << 40)?;
    assert_eq!(sent, octets.len() as u64 - 10 - middle);
    stream.close()
}

/// Drops a stream that the client writes to, and aborts another.
fn refuse(address: SocketAddr) -> io::Result<()> {
    let listener = listen(address)?;
    let mut stream = ByteStream::accept(&listener, &Options::default())?;
    stream.read_exact(&mut [0; 1000])?;
    drop(stream);
    let mut stream = ByteStream::accept(&listener, &Options::default())?;
    stream.read_exact(&mut [0; 1000])?;
    stream.abort(7);
    let error = loop {
        if let Err(error) = stream.read(&mut [0; 1000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    let error = ByteStream::accept(&listener, &messages()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    Ok(())
}

fn be_refused(address: SocketAddr) -> io::Result<()> {
    for expected in [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset] {
        let mut stream = connect(address)?;
        let error = loop {
            if let Err(error) = stream.write_all(&[1; 1000]) {
                break error;
            }
        };
        assert_eq!(error.kind(), expected, "{error}");
    }
    let error = connect(address_without_a_listener(address)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    let error = ByteStream::new(Socket::connect(address, &messages())?).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    Ok(())
}

/// The options of a socket that is none of octets.
fn messages() -> Options {
    let mut options = Options::default();
    options.config.kind = Kind::Messages;
    options
}

/// The next port.
fn address_without_a_listener(mut address: SocketAddr) -> SocketAddr {
    address.set_port(address.port() + 1);
    address
}

/// Octets of a short send.
const SHORT_OCTETS: usize = 10;

/// Serves two clients, which stop this process as soon as they have its number.
fn be_stopped(address: SocketAddr) -> io::Result<()> {
    let listener = listen(address)?;
    for numbers in [vec![0, 1, 2, 3, 4, 6, 7, 8], (0..7).collect::<Vec<u8>>()] {
        let mut stream = ByteStream::accept(&listener, &Options::default())?;
        stream.write_all(&std::process::id().to_be_bytes())?;
        let mut octets = Vec::new();
        stream.read_to_end(&mut octets)?;
        let expected = numbers.iter().flat_map(|&number| [number; SHORT_OCTETS]);
        assert_eq!(octets, expected.collect::<Vec<u8>>());
        stream.close()?;
    }
    Ok(())
}

/// Stops the process with this number, and waits until it is stopped.
fn stop(process: [u8; 4]) -> Pid {
    let pid = Pid::from_raw(i32::from_be_bytes(process));
    kill(pid, Signal::SIGSTOP).unwrap();
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") T ")
    };
    wait_until("the peer stopped", SHORT, is_stopped).unwrap();
    pid
}

/// Transfers that a socket has begun.
fn transfers(stats: urdma_exs::Stats) -> u64 {
    stats.direct_transfers + stats.indirect_transfers
}

/// Posts short sends behind a peer that takes nothing, so that they are gathered, and then does
/// what an end does before it sleeps.
fn sleep_behind_short_sends(address: SocketAddr) -> io::Result<()> {
    let mut socket = Socket::connect(address, &Options::default())?;
    socket.recv(Buffer::new(4)?, 4, true).unwrap();
    let peer = match socket.wait(Some(SHORT))? {
        Some(Event::Received { buffer, .. }) => stop(buffer[..4].try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    let send = |socket: &mut Socket, number| {
        let mut buffer = Buffer::new(SHORT_OCTETS).unwrap();
        buffer.fill(number);
        socket.send(buffer, SHORT_OCTETS).unwrap()
    };
    let sends = [0, 1, 2, 3, 4, 5, 6].map(|number| send(&mut socket, number));
    assert_eq!(transfers(socket.stats()), 4);
    assert!(socket.is_gathering());
    socket.cancel_send(sends[5]).unwrap();
    match socket.pop_event() {
        Some(Event::Sent {
            id,
            octets,
            outcome,
            ..
        }) => {
            assert_eq!((id, octets, outcome), (sends[5], 0, Outcome::Canceled));
        }
        other => panic!("{other:?}"),
    }
    while !socket.turn() {}
    assert_eq!(
        socket.deadline(),
        None,
        "a turn leaves nothing to a deadline"
    );
    assert_eq!(transfers(socket.stats()), 5);
    for number in [7, 8] {
        send(&mut socket, number);
    }
    assert!(socket.is_gathering());
    assert!(socket.wait(Some(Duration::ZERO))?.is_none());
    assert_eq!(socket.deadline(), None, "it does not sleep for a deadline");
    assert_eq!(transfers(socket.stats()), 6);
    kill(peer, Signal::SIGCONT).unwrap();
    socket.close().unwrap();
    while !matches!(socket.wait(Some(SHORT))?.unwrap(), Event::Closed) {}
    drop(socket);
    let mut stream = connect(address)?;
    let mut process = [0; 4];
    stream.read_exact(&mut process)?;
    let peer = stop(process);
    for number in 0..7 {
        stream.write_all(&[number; SHORT_OCTETS])?;
    }
    assert_eq!(transfers(stream.stats()), 7, "each write is sent at once");
    kill(peer, Signal::SIGCONT).unwrap();
    stream.close()
}
