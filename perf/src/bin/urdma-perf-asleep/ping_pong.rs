//! A ping-pong of 64 octets between two ends that sleep or poll.

#![allow(unsafe_code)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rdma_core_sys::verbs;
use urdma_perf::asleep::{Transport, Wait};
use urdma_perf::raw::fork::Mark;
use urdma_perf::verbs_setup::{post, post_receive};

use crate::cm::{self, Id, News};
use crate::endpoint::{Endpoint, Memory};
use crate::sets::MemberEnd;
use crate::text;

pub(crate) const OCTETS: u32 = 64;
/// Work requests of each direction.
const DEPTH: u32 = 64;
/// Offset of the message that is sent, after those that are received.
const TO_SEND: u32 = DEPTH * OCTETS;
/// Sends of which one has a completion.
const SENDS_A_COMPLETION: u32 = DEPTH / 2;
/// Completions that are polled at once.
const BATCH: usize = 4;

/// One end.
pub(crate) trait End {
    /// Sends 64 octets, of which the first is `octet`.
    fn send(&mut self, octet: u8) -> Result<(), String>;

    /// Waits for 64 octets and returns the first.
    fn receive(&mut self) -> Result<u8, String>;
}

impl End for TcpStream {
    fn send(&mut self, octet: u8) -> Result<(), String> {
        self.write_all(&[octet; OCTETS as usize]).map_err(text)
    }

    fn receive(&mut self) -> Result<u8, String> {
        let mut octets = [0; OCTETS as usize];
        let mut count = 0;
        while count < octets.len() {
            match self.read(&mut octets[count..]) {
                Ok(0) => return Err("the connection has ended".into()),
                Ok(more) => count += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(text(error)),
            }
        }
        Ok(octets[0])
    }
}

fn tcp_end(stream: TcpStream, wait: Wait) -> Result<Box<dyn End>, String> {
    stream.set_nodelay(true).map_err(text)?;
    stream.set_nonblocking(wait != Wait::Sleep).map_err(text)?;
    Ok(match wait {
        Wait::Set(idle) => Box::new(MemberEnd::new(stream, idle)?),
        Wait::Sleep | Wait::Poll => Box::new(stream),
    })
}

/// An end of a queue pair.
struct RdmaEnd {
    endpoint: Endpoint,
    wait: Wait,
    memory: Memory,
    sends: u32,
}

impl RdmaEnd {
    fn new(id: Id, wait: Wait) -> Result<Self, String> {
        if let Wait::Set(_) = wait {
            return Err("a set is of TCP's ends: use sleep or poll over rdma".into());
        }
        let endpoint = Endpoint::new(id, DEPTH)?;
        let end = Self {
            memory: endpoint.memory(TO_SEND + OCTETS)?,
            endpoint,
            wait,
            sends: 0,
        };
        (0..DEPTH).try_for_each(|place| end.post_receive(place * OCTETS))?;
        Ok(end)
    }

    /// Posts a receive request, whose `wr_id` is the offset of its message.
    fn post_receive(&self, offset: u32) -> Result<(), String> {
        let to = self.memory.sge(offset, OCTETS);
        // SAFETY: the queue pair lives.
        unsafe { post_receive(self.endpoint.qp(), offset.into(), to) }
    }

    /// Polls until there is no completion; returns the first octet of a message that has arrived.
    fn poll(&self) -> Result<Option<u8>, String> {
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut found: [verbs::ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
        let mut octet = None;
        loop {
            let count = self.endpoint.poll(&mut found)?;
            for wc in &found[..count] {
                if wc.opcode & verbs::IBV_WC_RECV != 0 {
                    let offset = u32::try_from(wc.wr_id).map_err(text)?;
                    // SAFETY: the octet is ours, and its receive request is complete.
                    octet = Some(unsafe { self.memory.at(offset).read() });
                    self.post_receive(offset)?;
                }
            }
            if count < BATCH {
                return Ok(octet);
            }
        }
    }
}

impl End for RdmaEnd {
    fn send(&mut self, octet: u8) -> Result<(), String> {
        let mut from = self.memory.sge(TO_SEND, OCTETS);
        // SAFETY: the octet is ours; the message before has been answered.
        unsafe { self.memory.at(TO_SEND).write(octet) };
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut wr: verbs::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.opcode = verbs::IBV_WR_SEND;
        (wr.sg_list, wr.num_sge) = (&mut from, 1);
        self.sends += 1;
        if self.sends.is_multiple_of(SENDS_A_COMPLETION) {
            wr.send_flags = verbs::IBV_SEND_SIGNALED;
        }
        // SAFETY: the queue pair lives; the request refers to what lives.
        unsafe { post(self.endpoint.qp(), &mut wr) }
    }

    fn receive(&mut self) -> Result<u8, String> {
        loop {
            if self.wait == Wait::Sleep {
                self.endpoint.take_event()?;
                self.endpoint.arm()?;
            }
            if let Some(octet) = self.poll()? {
                return Ok(octet);
            }
        }
    }
}

/// Connects to a server.
pub(crate) fn connect(
    transport: Transport,
    to: (Ipv4Addr, u16),
    wait: Wait,
) -> Result<Box<dyn End>, String> {
    match transport {
        Transport::Tcp => tcp_end(TcpStream::connect(to).map_err(text)?, wait),
        Transport::Rdma => {
            let end = cm::connect(to, |id| RdmaEnd::new(id, wait))?;
            Ok(Box::new(end))
        }
    }
}

/// Accepts a client; `tell` is called with the port before.
fn accept(
    transport: Transport,
    address: Ipv4Addr,
    wait: Wait,
    tell: &mut dyn FnMut(u16) -> Result<(), String>,
) -> Result<Box<dyn End>, String> {
    if transport == Transport::Tcp {
        let listener = TcpListener::bind((address, 0)).map_err(text)?;
        tell(listener.local_addr().map_err(text)?.port())?;
        return tcp_end(listener.accept().map_err(text)?.0, wait);
    }
    let port = cm::Port::new(address)?;
    tell(port.number())?;
    let mut accepted = None;
    loop {
        match (port.next()?, accepted) {
            (News::Request(id), None) => {
                accepted = Some(RdmaEnd::new(id, wait)?);
                cm::accept(id)?;
            }
            (News::Established, Some(end)) => return Ok(Box::new(end)),
            _ => return Err("there is more than one client".into()),
        }
    }
}

/// Answers each message of a client until one is marked as the last.
pub(crate) fn answer(
    transport: Transport,
    address: Ipv4Addr,
    wait: Wait,
    tell: &mut dyn FnMut(u16) -> Result<(), String>,
) -> Result<(), String> {
    let mut end = accept(transport, address, wait, tell)?;
    loop {
        let octet = end.receive()?;
        end.send(octet)?;
        if octet == Mark::Last.octet() {
            return Ok(());
        }
    }
}

fn round_trip(end: &mut dyn End, mark: Mark) -> Result<(), String> {
    end.send(mark.octet())?;
    match end.receive()? == mark.octet() {
        true => Ok(()),
        false => Err("an answer is not that to its message".into()),
    }
}

/// Sends and receives for some time; returns the number of round trips, and the time they took.
pub(crate) fn play_for(time: Duration, end: &mut dyn End) -> Result<(u64, Duration), String> {
    let (mut round_trips, begin) = (0, Instant::now());
    loop {
        round_trip(end, Mark::More)?;
        round_trips += 1;
        let took = begin.elapsed();
        if took >= time {
            return Ok((round_trips, took));
        }
    }
}

/// Tells the server that there is no further message.
pub(crate) fn end(end: &mut dyn End) -> Result<(), String> {
    round_trip(end, Mark::Last)
}
