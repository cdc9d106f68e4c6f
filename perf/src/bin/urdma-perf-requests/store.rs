//! The event loops of a key-value store and of its clients: each reads from all connections that
//! are readable, then writes to them, then sleeps.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use urdma_perf::requests::Transport;

use crate::stream::{self, Listener, Stream};
use crate::{text, valkey};

/// Events that are taken at once.
const EVENTS: usize = 1024;
/// Limit of a wait for the server.
const LIMIT_MS: u16 = 20_000;
/// Octets of a request: the number of a key, and what a GET has beside it.
const REQUEST: usize = 40;
/// Octets of a value, which begins with the number of its key.
const VALUE: usize = 32;
const KEYS: u32 = 1024;

/// A set of descriptors, each with a number.
struct Set {
    epoll: Epoll,
    events: Vec<EpollEvent>,
}

impl Set {
    fn new() -> Result<Self, String> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(text)?,
            events: vec![EpollEvent::empty(); EVENTS],
        })
    }

    fn add(&self, descriptor: impl AsFd, number: usize) -> Result<(), String> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
        self.epoll.add(descriptor, event).map_err(text)
    }

    /// Sleeps until there is an event; returns the numbers of the descriptors.
    fn wait(&mut self, timeout: EpollTimeout) -> Result<impl Iterator<Item = usize> + '_, String> {
        let count = loop {
            match self.epoll.wait(&mut self.events, timeout) {
                Err(Errno::EINTR) => {}
                outcome => break outcome.map_err(text)?,
            }
        };
        let numbers = self.events[..count].iter().map(EpollEvent::data);
        Ok(numbers.flat_map(usize::try_from))
    }
}

/// A connection and what it has received and not yet sent.
struct Peer {
    stream: Box<dyn Stream>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Peer {
    fn new(stream: Box<dyn Stream>) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
        }
    }

    fn receive(&mut self) -> Result<(), String> {
        self.stream.receive(&mut self.input)
    }

    fn send(&mut self) -> Result<(), String> {
        if !self.output.is_empty() {
            let count = self.stream.send(&self.output)?;
            self.output.drain(..count);
        }
        Ok(())
    }
}

fn number_of(octets: &[u8]) -> u32 {
    octets.first_chunk().copied().map_or(0, u32::from_le_bytes)
}

/// The values of all keys.
fn values() -> Vec<[u8; VALUE]> {
    let value = |key: u32| {
        let mut value = [b'x'; VALUE];
        value[..4].copy_from_slice(&key.to_le_bytes());
        value
    };
    (0..KEYS).map(value).collect()
}

/// Answers requests until the client ends `control`.
pub(crate) fn serve(listener: &mut dyn Listener, control: &UnixStream) -> Result<(), String> {
    let values = values();
    let mut set = Set::new()?;
    let (of_control, of_listener) = (usize::MAX, usize::MAX - 1);
    set.add(control, of_control)?;
    set.add(listener.descriptor(), of_listener)?;
    let mut peers: Vec<Peer> = Vec::new();
    let mut ready = Vec::new();
    loop {
        ready.extend(set.wait(EpollTimeout::NONE)?);
        if ready.contains(&of_control) {
            return Ok(());
        }
        for &number in &ready {
            if number == of_listener {
                if let Some(stream) = listener.accept()? {
                    set.add(stream.descriptor(), peers.len())?;
                    peers.push(Peer::new(stream));
                }
                continue;
            }
            let peer = &mut peers[number];
            peer.receive()?;
            let requests = peer.input.chunks_exact(REQUEST);
            let begun = requests.remainder().len();
            for request in requests {
                let key = number_of(request) % KEYS;
                peer.output.extend_from_slice(&values[key as usize]);
            }
            peer.input.drain(..peer.input.len() - begun);
        }
        for number in ready.drain(..).filter(|number| *number < of_listener) {
            peers[number].send()?;
        }
    }
}

/// A connection of the generator.
struct Client {
    peer: Peer,
    /// The key of the first request that has no answer.
    key: u32,
}

impl Client {
    /// Writes `in_a_row` requests, for `key` and those that follow.
    fn request(&mut self, key: u32, in_a_row: u32) {
        self.key = key;
        for at in 0..in_a_row {
            let mut request = [b' '; REQUEST];
            request[..4].copy_from_slice(&((key + at) % KEYS).to_le_bytes());
            self.peer.output.extend_from_slice(&request);
        }
    }

    /// Takes answers; returns whether there are all `in_a_row`.
    fn take_answers(&mut self, in_a_row: u32) -> Result<bool, String> {
        self.peer.receive()?;
        let expected = in_a_row as usize * VALUE;
        if self.peer.input.len() < expected {
            return Ok(false);
        }
        let mut answers = (self.key..).zip(self.peer.input.chunks_exact(VALUE));
        let is_right = answers.all(|(key, value)| number_of(value) == key % KEYS);
        if !is_right || self.peer.input.len() > expected {
            return Err("an answer is not that to its request".into());
        }
        self.peer.input.clear();
        Ok(true)
    }
}

/// Clients of one thread, each of which waits for the answers to `in_a_row` requests.
pub(crate) struct Clients {
    set: Set,
    all: Vec<Client>,
    in_a_row: u32,
    /// The key of the next request.
    key: u32,
}

impl Clients {
    /// Connects all clients, each of which sends requests.
    pub(crate) fn connect(
        transport: Transport,
        to: (Ipv4Addr, u16),
        count: u32,
        in_a_row: u32,
    ) -> Result<Self, String> {
        let mut clients = Self {
            set: Set::new()?,
            all: Vec::new(),
            in_a_row,
            key: 0,
        };
        for _ in 0..count {
            let stream = match transport {
                Transport::Tcp => stream::connect(to)?,
                Transport::Rdma => valkey::connect(to)?,
            };
            clients.set.add(stream.descriptor(), clients.all.len())?;
            let peer = Peer::new(stream);
            clients.all.push(Client { peer, key: 0 });
        }
        for number in 0..clients.all.len() {
            clients.request(number);
            clients.all[number].peer.send()?;
        }
        Ok(clients)
    }

    /// Writes the next requests of a client.
    fn request(&mut self, number: usize) {
        self.all[number].request(self.key, self.in_a_row);
        self.key = (self.key + self.in_a_row) % KEYS;
    }

    /// Sends requests for some time; returns how many were answered, and the time it took.
    pub(crate) fn ask_for(&mut self, time: Duration) -> Result<(u64, Duration), String> {
        let mut ready = Vec::new();
        let (mut answered, begin) = (0, Instant::now());
        loop {
            ready.extend(self.set.wait(EpollTimeout::from(LIMIT_MS))?);
            if ready.is_empty() {
                return Err("no answer has arrived for 20 s".into());
            }
            for &number in &ready {
                if self.all[number].take_answers(self.in_a_row)? {
                    answered += u64::from(self.in_a_row);
                    self.request(number);
                }
            }
            for number in ready.drain(..) {
                self.all[number].peer.send()?;
            }
            let took = begin.elapsed();
            if took >= time {
                return Ok((answered, took));
            }
        }
    }
}
